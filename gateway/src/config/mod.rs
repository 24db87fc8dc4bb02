//! Configuration: one table of keys, three layers (file, environment, flags), one typed result.

mod auth;
mod error;
mod keys;
mod layers;
mod value;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use proto::quota::Rates;

pub use auth::{AuthConfig, Secret};
pub use error::ConfigError;
pub use keys::{KEYS, Key, Kind};
pub use layers::{Layers, Resolved, Source};
pub use value::Value;

/// Everything the process can be told, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub server: ServerConfig,
    pub engine: EngineConfig,
    pub auth: AuthConfig,
    /// What one tenant may ask for in a minute.
    pub quotas: Rates,
    pub stream: StreamConfig,
    pub voices: VoicesConfig,
    pub opus: OpusConfig,
    pub log: LogConfig,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerConfig {
    pub listen: SocketAddr,
    pub admin: SocketAddr,
    /// The admin address may be reachable from elsewhere.
    pub admin_remote: bool,
    pub unix: Option<PathBuf>,
    pub tls: TlsConfig,
    pub trusted_proxies: Vec<String>,
    /// Host names that requests may be made to, in lower case; empty for any.
    pub hosts: Vec<String>,
    pub sessions_max: u32,
    pub connections_max: u32,
    pub handshake_timeout: Duration,
    pub body_bytes_max: usize,
    /// Of all requests together.
    pub bodies_bytes_max: usize,
    pub input_characters_max: usize,
    /// Longest audio of an answer that is not streamed.
    pub whole_answer: Duration,
    pub body_stall: Duration,
    pub drain_grace: Duration,
    /// The process ends once no device is left.
    pub exit_when_lost: bool,
    pub threads: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineConfig {
    pub kind: EngineKind,
    /// Folder of the checkpoint; `None` takes the embedded model.
    pub model: Option<PathBuf>,
    pub device: String,
    /// `bf16` or `f32`, on a GPU.
    pub precision: String,
    pub background_sms: u32,
    /// A published shape to fill with random weights.
    pub random_weights: Option<String>,
    pub contexts_max: u32,
    /// A request whose first audio is predicted later than this is refused; zero leaves it to the device.
    pub first_audio_limit: Duration,
    /// Prompts may cut running speech's chunks short, with so many steps between two; 0 lets them not, `None` leaves it to the
    /// device.
    pub steps_between_prefills: Option<u32>,
    /// A launch that stays away for longer has lost its device; zero leaves it to the device.
    pub stuck_after: Duration,
    /// How lanes share the device.
    pub split: String,
    /// Parts to go without.
    pub without: String,
    /// Faults to rehearse.
    pub faults: String,
    /// Of requests that give none; `None` draws one for each.
    pub seed: Option<u64>,
    /// Requests may set the exact number of frames.
    pub bench: bool,
}

/// Which engine answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EngineKind {
    Native,
    /// A script; `None` is the built-in one.
    Scripted(Option<PathBuf>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamConfig {
    pub contexts_max: u32,
    pub frame_bytes_max: usize,
    pub message_bytes_max: usize,
    pub lead: Duration,
    /// Of clients that report no playback.
    pub unreported_lead: Duration,
    pub resume_window: Duration,
    pub idle: Duration,
    pub context_idle: Duration,
    pub send_buffer_bytes: u32,
    pub write_buffer_bytes: usize,
    pub slow_reader: Duration,
}

/// Encryption of the public side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TlsConfig {
    Off,
    Files { cert: PathBuf, key: PathBuf },
    SelfSigned,
}

/// Voices that clients bring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VoicesConfig {
    /// Where they are kept; `None` keeps none.
    pub folder: Option<PathBuf>,
    pub per_tenant_max: usize,
    /// Folder of the tenants' lexicons.
    pub lexicons: Option<PathBuf>,
    pub upload_bytes_max: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpusConfig {
    pub threads: usize,
    pub bitrate_bps: u32,
    pub complexity: u8,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogConfig {
    pub filter: String,
    pub json: bool,
    /// Where usage is appended.
    pub usage: Option<PathBuf>,
}

impl Config {
    /// What runs when nothing is said.
    ///
    /// # Errors
    /// Never in a released build: a test reads every default.
    pub fn defaults() -> Result<Self, ConfigError> {
        Layers::default().resolve()?.config()
    }
}
