//! What every connection shares.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use contract::{EngineHandle, Health};
use proto::paces::Paces;

use crate::auth::{Auth, Policy};
use crate::bodies::Bodies;
use crate::clock::Clock;
use crate::config::{Config, ConfigError};
use crate::drain::Drain;
use crate::encode::EncodePool;
use crate::error::ApiError;
use crate::lexicons::Lexicons;
use crate::listen::ListenError;
use crate::metrics::Metrics;
use crate::places::Places;
use crate::quotas::{Ledger, Share};
use crate::server::ServeError;
use crate::stream::Registry;
use crate::usage::UsageLog;
use crate::voices::Store;

/// A server's state behind every endpoint.
pub struct App {
    pub(crate) config: Config,
    pub(crate) clock: Clock,
    pub(crate) auth: Auth,
    /// Where clients' voices are kept, if they are.
    pub(crate) voices: Option<Arc<Store>>,
    pub(crate) lexicons: Lexicons,
    pub(crate) quotas: Arc<Ledger>,
    pub(crate) usage: UsageLog,
    pub(crate) drain: Drain,
    pub(crate) encode: EncodePool,
    pub(crate) connections: Places,
    pub(crate) bodies: Arc<Bodies>,
    pub(crate) sessions: Registry,
    /// How fast voices speak, as far as sessions that have ended and whole texts have shown.
    paces: Mutex<Paces>,
    /// When the process started, for listings that ask for a calendar time.
    pub(crate) started_unix: u64,
    pub(crate) metrics: Metrics,
    /// Drawn at start, so that ids of two processes differ.
    prefix: String,
    requests: AtomicU64,
    engine: OnceLock<Result<Arc<dyn EngineHandle>, String>>,
}

impl App {
    /// Whoever serves it replaces the open policy it begins with.
    ///
    /// # Errors
    /// When the operating system gives no thread or no random bytes, or a file or folder that is configured
    /// cannot be used.
    pub(crate) fn new(config: Config, clock: Clock) -> Result<Arc<Self>, ServeError> {
        let metrics = Metrics::default();
        let sessions = config.server.sessions_max as usize;
        let connections = Places::new(config.server.connections_max as usize);
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let bodies = Arc::new(Bodies::new(config.server.bodies_bytes_max, cores));
        // One piece of each live context can wait; a session seldom has more than two.
        let bound = (sessions * 2).max(64);
        let encode = EncodePool::start(config.opus.threads, bound, clock, &metrics)?;
        let unusable = |key, what| ServeError::from(ListenError::from(ConfigError::Unusable { key, what }));
        let usage = UsageLog::open(config.log.usage.as_deref(), &metrics).map_err(|error| {
            let path = config.log.usage.as_deref().unwrap_or(Path::new("")).display();
            unusable(
                "log.usage",
                format!("cannot append to {path}: {error}; name a file that this process may write"),
            )
        })?;
        let registry = Registry::new(sessions);
        let kept = &config.voices;
        let voices = kept.folder.as_deref().map(|folder| Store::open(folder, kept.per_tenant_max));
        let voices = voices
            .transpose()
            .map_err(|error| unusable("voices.folder", format!("{error}; {}", error.advice())))?
            .map(Arc::new);
        let quotas = Ledger::default();
        quotas.set(config.quotas);
        Ok(Arc::new(Self {
            config,
            clock,
            auth: Auth::new(Policy::everybody()?),
            voices,
            lexicons: Lexicons::default(),
            quotas: Arc::new(quotas),
            usage,
            drain: Drain::new(),
            encode,
            connections,
            bodies,
            sessions: registry,
            paces: Mutex::new(Paces::default()),
            started_unix: crate::clock::unix_seconds(),
            metrics,
            prefix: random_hex::<4>()?,
            requests: AtomicU64::new(1),
            engine: OnceLock::new(),
        }))
    }

    /// Tells everyone how opening the engine ended. Later calls change nothing.
    pub(crate) fn set_engine(&self, outcome: Result<Arc<dyn EngineHandle>, String>) {
        // A second outcome cannot occur: one task opens the engine, once.
        drop(self.engine.set(outcome));
    }

    /// What `tenant` may ask for in a minute.
    pub(crate) fn quotas_of(&self, tenant: &Arc<str>) -> Share {
        Share { ledger: Arc::clone(&self.quotas), tenant: Arc::clone(tenant) }
    }

    pub(crate) fn paces(&self) -> MutexGuard<'_, Paces> {
        // Whoever panicked with it left whole entries.
        self.paces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The engine, if it serves.
    pub(crate) fn engine(&self) -> Result<&Arc<dyn EngineHandle>, ApiError> {
        let handle = self.handle().ok_or_else(|| unavailable(&self.health()))?;
        match handle.health() {
            Health::Ready => Ok(handle),
            other => Err(unavailable(&other)),
        }
    }

    /// The engine, ready or not, once it has been opened.
    pub(crate) fn handle(&self) -> Option<&Arc<dyn EngineHandle>> {
        self.engine.get().and_then(|outcome| outcome.as_ref().ok())
    }

    pub(crate) fn health(&self) -> Health {
        match self.engine.get() {
            None => Health::Starting("the model is being opened".to_owned()),
            Some(Err(reason)) => Health::Failed(reason.clone()),
            Some(Ok(handle)) => handle.health(),
        }
    }

    /// A fresh id for a request; `kind` is its first letter.
    pub(crate) fn request_id(&self, kind: char) -> String {
        let count = self.requests.fetch_add(1, Ordering::Relaxed);
        format!("{kind}-{}-{count:x}", self.prefix)
    }
}

/// `N` random bytes in hexadecimal.
pub(crate) fn random_hex<const N: usize>() -> std::io::Result<String> {
    let mut bytes = [0_u8; N];
    getrandom::fill(&mut bytes).map_err(|error| std::io::Error::other(error.to_string()))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn unavailable(health: &Health) -> ApiError {
    let reason = match health {
        Health::Failed(reason) | Health::Starting(reason) => reason.clone(),
        Health::Ready => "it is ready again; retry".to_owned(),
    };
    let error = ApiError::from(contract::EngineError::Unavailable { reason });
    match health {
        Health::Starting(_) => error.retry_after_ms(1_000),
        _ => error,
    }
}
