//! One serving process: bind, open the model in the background, serve, drain.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use contract::{Health, Span};
use tokio::net::{TcpListener, UnixListener};

use crate::app::App;
use crate::auth::Policy;
use crate::clock::Clock;
use crate::config::{Config, ConfigError};
use crate::drain::Drain;
use crate::engine::Embedded;
use crate::listen::{Front, ListenError, Listener, Service, accept, bind, bind_unix};
use crate::metrics::Metrics;
use crate::places::Places;
use crate::reload::Reloader;
use crate::tls::Tls;
use crate::{admin, http};

/// Time the last sessions get to say goodbye after the grace period.
const CLOSING: Duration = Duration::from_secs(3);
/// Connections of the admin side.
const ADMIN_CONNECTIONS_MAX: usize = 64;

/// Why serving ended.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error(transparent)]
    Listen(#[from] ListenError),
    #[error("the model cannot be opened: {0}")]
    Engine(String),
    #[error("no device is left: {0}")]
    Lost(String),
    #[error("cannot start: {0}")]
    Start(#[from] std::io::Error),
}

/// Bound listeners, not yet serving.
pub struct Server {
    app: Arc<App>,
    public: TcpListener,
    unix: Option<UnixListener>,
    tls: Option<Arc<Tls>>,
    admin: TcpListener,
    embedded: Option<Embedded>,
}

impl Server {
    /// Binds both addresses. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// [`ServeError::Listen`] for an address that is in use, or that others can reach without a key, and for
    /// keys that cannot be read.
    pub fn bind(config: Config, embedded: Option<Embedded>) -> Result<Self, ServeError> {
        let policy = guard(&config)?;
        let lexicons = crate::lexicons::Set::load(&config.voices).map_err(ListenError::from)?;
        let buffer = config.stream.send_buffer_bytes;
        let public = bind("server.listen", "--listen", config.server.listen, buffer)?;
        let admin = bind("server.admin", "--admin", config.server.admin, buffer)?;
        let unix = config.server.unix.as_deref().map(bind_unix).transpose()?;
        let tls = Tls::load(&config).map_err(ListenError::from)?.map(Arc::new);
        let app = App::new(config, Clock::start())?;
        app.auth.replace(policy);
        app.lexicons.replace(lexicons);
        Ok(Self { app, public, unix, tls, admin, embedded })
    }

    /// Whether the public address speaks TLS.
    #[must_use]
    pub fn is_secure(&self) -> bool {
        self.tls.is_some()
    }

    /// Applies a configuration to the server while it runs.
    #[must_use]
    pub fn reloader(&self) -> Reloader {
        Reloader::new(Arc::clone(&self.app), self.tls.clone())
    }

    /// The public address, with the port the system chose if 0 was asked for.
    ///
    /// # Errors
    /// When the operating system cannot say.
    pub fn public_address(&self) -> std::io::Result<SocketAddr> {
        self.public.local_addr()
    }

    /// The admin address.
    ///
    /// # Errors
    /// When the operating system cannot say.
    pub fn admin_address(&self) -> std::io::Result<SocketAddr> {
        self.admin.local_addr()
    }

    /// Serves until `stop` resolves, then drains. `ready` is called once, when the model speaks.
    ///
    /// # Errors
    /// [`ServeError::Engine`] when the model cannot be opened or fails while warming up, [`ServeError::Lost`] once
    /// no device is left (unless configured to stay).
    pub async fn run(
        self,
        ready: impl FnOnce() + Send,
        stop: impl Future<Output = ()> + Send,
    ) -> Result<(), ServeError> {
        let app = self.app;
        let handshake_timeout = app.config.server.handshake_timeout;
        // The admin side outlives the drain: it is where an orchestrator sees that we are leaving.
        let end = Drain::new();
        let scrape = Service {
            router: admin::router(Arc::clone(&app)),
            full: http::full(Arc::clone(&app)),
            places: Places::new(ADMIN_CONNECTIONS_MAX),
            bodies: Arc::clone(&app.bodies),
            handshake_timeout,
        };
        let admin = Listener::Tcp(self.admin);
        tokio::spawn(accept(admin, scrape, Front::default(), end.clone(), end.clone()));
        tokio::spawn(crate::auth::keep_fresh(Arc::clone(&app)));
        tokio::spawn(keep_up(app.metrics.clone(), end.clone()));
        let service = Service {
            router: http::router(Arc::clone(&app)),
            full: http::full(Arc::clone(&app)),
            places: app.connections.clone(),
            bodies: Arc::clone(&app.bodies),
            handshake_timeout,
        };
        let (front, leaving) =
            (Front { tls: self.tls, metrics: Some(app.metrics.clone()) }, app.drain.clone());
        if let Some(unix) = self.unix {
            let (service, front) = (service.clone(), front.clone());
            tokio::spawn(accept(Listener::Unix(unix), service, front, leaving.clone(), end.clone()));
        }
        tokio::spawn(accept(Listener::Tcp(self.public), service, front, leaving, end.clone()));

        let mut stop = std::pin::pin!(stop);
        let opened = tokio::select! {
            opened = open(Arc::clone(&app), self.embedded) => opened,
            () = stop.as_mut() => {
                app.drain.start(app.clock.now());
                return Ok(());
            }
        };
        opened.map_err(ServeError::Engine)?;
        ready();
        let ended = tokio::select! {
            () = stop => Ok(()),
            reason = lost(&app), if app.config.server.exit_when_lost => Err(ServeError::Lost(reason)),
        };
        if let Err(error) = &ended {
            tracing::error!(%error, "ending, to be started again");
        }
        drain(&app).await;
        end.start(app.clock.now());
        ended
    }
}

/// The policy of the door; refuses addresses that it would leave open to others.
pub(crate) fn guard(config: &Config) -> Result<Policy, ListenError> {
    let server = &config.server;
    let policy = Policy::load(config, None)?;
    if policy.open && !server.listen.ip().is_loopback() {
        let value = server.listen.to_string();
        return Err(ConfigError::Unguarded { key: "server.listen", value }.into());
    }
    if !server.admin.ip().is_loopback() && !server.admin_remote {
        let value = server.admin.to_string();
        return Err(ConfigError::AdminExposed { key: "server.admin", value }.into());
    }
    if policy.open {
        tracing::warn!(
            listen = %server.listen,
            "OPEN: no keys are set, so every program on this machine may speak; set keys in [auth] before others can reach it"
        );
    }
    Ok(policy)
}

/// Opens the engine away from the async workers and waits until it is ready.
async fn open(app: Arc<App>, embedded: Option<Embedded>) -> Result<(), String> {
    let opening = Arc::clone(&app);
    let opened = tokio::task::spawn_blocking(move || {
        let config = &opening.config;
        let features = config.voices.folder.as_ref().map(|folder| folder.join("features"));
        let outcome = crate::engine::open(&config.engine, features.as_deref(), embedded, opening.clock);
        opening.set_engine(outcome);
    });
    if opened.await.is_err() {
        app.set_engine(Err("a fault of ours while opening the model".to_owned()));
    }
    loop {
        match app.health() {
            Health::Ready => break,
            Health::Failed(reason) => return Err(reason),
            Health::Starting(_) => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    }
    if let Some(engine) = app.handle() {
        tracing::info!(device = engine.info().device, "the engine speaks");
    }
    Ok(())
}

/// Resolves once no device is left, with what the first of them says. An engine that was only held up (the
/// process was stopped and goes on) is well again a moment later.
async fn lost(app: &App) -> String {
    const LOOK: Duration = Duration::from_millis(250);
    const LOOKS: u32 = 4;
    let mut failed = 0;
    loop {
        tokio::time::sleep(LOOK).await;
        match app.health() {
            Health::Failed(reason) if failed + 1 >= LOOKS => return reason,
            Health::Failed(_) => failed += 1,
            Health::Ready | Health::Starting(_) => failed = 0,
        }
    }
}

/// Keeps histograms small, however seldom they are read.
async fn keep_up(metrics: Metrics, end: Drain) {
    const EVERY: Duration = Duration::from_secs(5);
    while tokio::time::timeout(EVERY, end.started()).await.is_err() {
        metrics.upkeep();
    }
}

/// Takes nothing new, tells everyone, and waits for what runs.
async fn drain(app: &App) {
    let grace = app.config.server.drain_grace;
    let span = Span::from_micros(i64::try_from(grace.as_micros()).unwrap_or(i64::MAX));
    app.drain.start(app.clock.now() + span);
    tracing::info!(live = app.drain.live(), grace_ms = grace.as_millis() as u64, "draining");
    // Sessions close themselves when the grace period ends; the last of them need a moment to do so, and
    // their peers to take it.
    let patience = grace + CLOSING;
    if tokio::time::timeout(patience, app.drain.idle()).await.is_err() {
        tracing::warn!(live = app.drain.live(), "drain ended with work left");
    }
}
