//! One engine thread per device: joins the scheduler, a model and a backend behind
//! [`contract::EngineHandle`].
//!
//! [`open`] loads a checkpoint, puts it on a device, measures it and returns a handle that is ready to
//! speak. Callers' threads validate and tokenize; the engine thread owns the scheduler, the backend
//! and every table, so nothing on the frame path is shared or locked (DESIGN.md section 3).

mod clock;
mod context;
mod device_engine;
mod encode;
mod executables;
mod handle;
mod kept;
mod launching;
mod mailbox;
mod message;
mod output;
mod shared;
mod voices;
mod warm;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use contract::{EngineHandle, Span};

pub use models::{Inspection, ModelSource, Part};
pub use sched::SchedConfig;

/// What to open, and how.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    pub source: ModelSource,
    /// The model's name on the wire.
    pub name: String,
    /// Contexts that may hold device state at once.
    pub contexts_max: u32,
    /// Cores the engine may use; `None` takes all this process may run on.
    pub cores: Option<Vec<usize>>,
    /// Accept [`contract::OpenContext::exact_frames`].
    pub bench: bool,
    /// [`contract::Tick::START`], so that the gateway's ticks and the engine's agree.
    pub start: Instant,
    /// Bytes of voice features kept.
    pub voice_cache_bytes: usize,
    /// Folder where features of clips outlive the process; several processes may share it.
    pub features: Option<PathBuf>,
    /// First audio is due this long after arrival.
    pub ttfa_target: Span,
}

impl OpenOptions {
    /// Defaults for `source`, spoken under `name`.
    #[must_use]
    pub const fn new(source: ModelSource, name: String, start: Instant) -> Self {
        Self {
            source,
            name,
            contexts_max: 32,
            cores: None,
            bench: false,
            start,
            voice_cache_bytes: 64 << 20,
            features: None,
            ttfa_target: Span::from_millis(200),
        }
    }
}

/// Why an engine could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    #[error(transparent)]
    Config(#[from] sched::ConfigError),
    #[error(transparent)]
    Device(#[from] device::DeviceError),
    #[error(transparent)]
    Model(#[from] models::ModelError),
    #[error("warming up failed: {0}")]
    Warming(contract::EngineError),
    #[error("the folder for voice features cannot be used: {0}")]
    Features(std::io::Error),
    #[error("the engine thread could not be started: {0}")]
    Thread(String),
}

/// Loads, places, measures and starts. Blocks until the engine can speak.
///
/// # Errors
/// [`OpenError`], naming the file, tensor, key or setting at fault.
pub fn open(options: OpenOptions) -> Result<Arc<dyn EngineHandle>, OpenError> {
    Ok(Arc::new(handle::Engine::open(options)?))
}

/// Reads what a checkpoint holds and needs, without loading its weights.
///
/// # Errors
/// As [`open`].
pub fn inspect(source: ModelSource, name: &str) -> Result<Inspection, OpenError> {
    Ok(models::inspect(source, name)?)
}
