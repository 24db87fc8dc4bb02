//! `voxlane serve`.

use tokio::signal::unix::{SignalKind, signal};

use super::{CommandError, ServeFlags};
use crate::engine::Embedded;
use crate::reload::Reloader;
use crate::server::{ServeError, Server};

pub(super) fn run(flags: &ServeFlags, embedded: Option<Embedded>) -> Result<(), CommandError> {
    let (resolved, config) = flags.resolve()?;
    crate::logs::start(&config.log);
    crate::logs::hide_panic_payloads();
    for name in &resolved.unknown_variables {
        tracing::warn!(name, "this environment variable names no key and is not used");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(config.server.threads)
        .thread_name("gateway")
        .enable_all()
        .build()
        .map_err(|error| CommandError::Failed(format!("cannot start the async runtime: {error}")))?;
    let outcome = runtime.block_on(async {
        let hash = resolved.hash();
        let server = Server::bind(config, embedded)?;
        let (public, admin) = (server.public_address()?, server.admin_address()?);
        tracing::info!(%public, %admin, config = hash, "listening");
        let stop = stop_signal()?;
        reload_on_hangup(server.reloader(), flags.clone())?;
        let scheme = if server.is_secure() { "https" } else { "http" };
        server.run(move || println!("voxlane is ready: {scheme}://{public}/"), stop).await
    });
    // What is left after the drain has had its time.
    runtime.shutdown_background();
    if matches!(outcome, Err(ServeError::Lost(_))) {
        end_for_certain();
    }
    outcome.map_err(|error| match error {
        ServeError::Listen(crate::ListenError::Refused(error)) => CommandError::Config(error),
        other => CommandError::Failed(other.to_string()),
    })
}

/// A driver may wait for its stuck device as the process ends: not for ever.
fn end_for_certain() {
    const PATIENCE: std::time::Duration = std::time::Duration::from_secs(10);
    // Without the thread the process ends as its driver lets it.
    let _waiting = std::thread::Builder::new().spawn(|| {
        std::thread::park_timeout(PATIENCE);
        std::process::abort();
    });
}

/// Reads file, environment and flags again at each SIGHUP. What cannot be read changes nothing.
fn reload_on_hangup(reloader: Reloader, flags: ServeFlags) -> Result<(), ServeError> {
    let mut hangup = signal(SignalKind::hangup())?;
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            let (reloader, flags) = (reloader.clone(), flags.clone());
            // Files are read where blocking is allowed.
            let reloaded = tokio::task::spawn_blocking(move || {
                let (_, config) = flags.resolve()?;
                reloader.reload(&config)
            });
            if let Ok(Err(error)) = reloaded.await {
                tracing::error!(%error, "the configuration cannot be reloaded; the old one stays");
            }
        }
    });
    Ok(())
}

/// Resolves at the first SIGTERM or SIGINT. A second one ends the process at once.
pub(super) fn stop_signal() -> std::io::Result<impl Future<Output = ()> + Send> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let (sender, receiver) = tokio::sync::oneshot::channel();
    tokio::spawn(async move {
        let mut sender = Some(sender);
        loop {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            match sender.take() {
                // The receiver lives as long as the server runs.
                Some(sender) => drop(sender.send(())),
                None => std::process::exit(1),
            }
        }
    });
    Ok(async move {
        // A sender that is gone without a word means the runtime is ending: stop too.
        drop(receiver.await);
    })
}
