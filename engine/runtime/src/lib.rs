//! One engine thread per device: joins the scheduler, a model and a backend behind
//! [`contract::EngineHandle`].
//!
//! [`open`] loads a checkpoint, puts it on a device, measures it and returns a handle that is ready to
//! speak; [`open_fleet`] does so on several devices at once. Callers' threads validate and tokenize; the engine thread owns the scheduler, the backend
//! and every table, so nothing on the frame path is shared or locked (DESIGN.md section 3).

mod clock;
mod context;
mod contexts;
mod costs;
mod device_engine;
mod devices;
mod encode;
mod executables;
mod fault;
mod fleet;
mod handle;
mod kept;
mod launching;
mod mailbox;
mod message;
mod output;
mod processor;
mod profile;
mod ride;
mod seat;
mod shared;
mod split;
mod voices;

mod warm;
mod watch;
mod watchdog;
mod without;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use contract::{EngineHandle, Span};

pub use cuda::{Precision, is_present as has_cuda_driver};
pub use fault::{FaultError, FaultScript};
pub use models::{Inspection, ModelSource, Part};
pub use profile::{Measured, MeasuredSharing, MeasuredStage, ProfileScope};
pub use sched::SchedConfig;
pub use split::{Split, SplitError};
pub use without::{Without, WithoutError};

/// The processor an engine runs on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceChoice {
    /// `cores` the engine may use; `None` takes all this process may run on.
    Cpu { cores: Option<Vec<usize>> },
    /// One CUDA device. `kernels` is a folder for compiled kernels.
    Cuda { ordinal: u32, precision: Precision, background_sms: u32, kernels: Option<PathBuf> },
}

/// What to open, and how.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    pub source: ModelSource,
    /// The model's name on the wire.
    pub name: String,
    /// Contexts that may hold device state at once.
    pub contexts_max: u32,
    pub device: DeviceChoice,
    /// Of contexts that give none; `None` draws one for each.
    pub seed: Option<u64>,
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
    /// A context whose first audio is predicted later than this is refused; `None` leaves it to the device.
    pub first_audio_limit: Option<Span>,
    /// Prefills may cut running contexts' chunks short, with so many steps between two; 0 lets them not, `None` leaves
    /// it to the device.
    pub steps_between_prefills: Option<u32>,
    /// How long before an lm launch is predicted to end the next one is launched; zero waits for its result, `None` leaves
    /// it to the device.
    pub ahead: Option<Span>,
    /// A launch that stays away for longer than this (and for longer than twenty times its prediction) will not
    /// come back, and its device is lost; `None` leaves it to the device.
    pub stuck_after: Option<Span>,
    /// How the lanes share the device; `None` leaves it to `device`, or to the CPU: half each.
    pub split: Option<Split>,
    /// Parts to go without, to measure what each is worth.
    pub without: Without,
    /// Faults to play, for rehearsals and tests.
    pub faults: FaultScript,
}

impl OpenOptions {
    /// Defaults for `source`, spoken under `name`.
    #[must_use]
    pub fn new(source: ModelSource, name: String, start: Instant) -> Self {
        Self {
            source,
            name,
            contexts_max: 32,
            device: DeviceChoice::Cpu { cores: None },
            seed: None,
            bench: false,
            start,
            voice_cache_bytes: 64 << 20,
            features: None,
            ttfa_target: Span::from_millis(200),
            first_audio_limit: None,
            steps_between_prefills: None,
            ahead: None,
            stuck_after: None,
            split: None,
            without: Without::default(),
            faults: FaultScript::default(),
        }
    }
}

/// How long a launch, or the engine thread, may stay away when nobody says. On a CPU whatever else the machine
/// does holds it up as well.
const STUCK_AFTER_CPU: Span = Span::from_millis(20_000);
const STUCK_AFTER_CUDA: Span = Span::from_millis(5_000);

impl OpenOptions {
    fn stuck_after(&self) -> Span {
        self.stuck_after.unwrap_or(match self.device {
            DeviceChoice::Cpu { .. } => STUCK_AFTER_CPU,
            DeviceChoice::Cuda { .. } => STUCK_AFTER_CUDA,
        })
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
    #[error("the devices cannot be had: {0}")]
    Devices(String),
    #[error("{device}: {error}")]
    OnDevice { device: String, error: Box<Self> },
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
    let seat = seat::Seat::first(&options, 1)?;
    Ok(Arc::new(handle::Engine::open(options, seat)?))
}

/// Gives each engine of a list a processor of its own: CPU engines that name no cores share out, evenly
/// and in order, those that no other names.
///
/// # Errors
/// [`OpenError::Devices`], naming the entry that cannot be had.
pub fn share_out(devices: Vec<DeviceChoice>) -> Result<Vec<DeviceChoice>, OpenError> {
    devices::share_out(devices, &cpu::allowed_cores()).map_err(OpenError::Devices)
}

/// Opens an engine on each of `devices`, in parallel, behind one handle: every new context goes where it
/// would be heard first. Cores are shared out as by [`share_out`]; bounds of `options` hold for each
/// device, the budget of voice features for all. `options.device` is not used.
///
/// # Errors
/// As [`open`], naming the device; [`OpenError::Devices`] for a list that cannot be had.
pub fn open_fleet(
    options: &OpenOptions,
    devices: Vec<DeviceChoice>,
) -> Result<Arc<dyn EngineHandle>, OpenError> {
    Ok(Arc::new(fleet::open(options, devices)?))
}

/// Loads and places as [`open`] does, then measures every stage in the executables that would serve, by
/// rows, length and partition as far as `scope` goes, and what lanes cost each other. Blocks for some ten seconds.
///
/// # Errors
/// As [`open`].
pub fn profile(options: OpenOptions, scope: ProfileScope) -> Result<Measured, OpenError> {
    profile::measure(options, scope)
}

/// Reads what a checkpoint holds and needs, without loading its weights.
///
/// # Errors
/// As [`open`].
pub fn inspect(source: ModelSource, name: &str) -> Result<Inspection, OpenError> {
    Ok(models::inspect(source, name)?)
}
