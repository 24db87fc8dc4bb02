//! What a session is made with, and its bounds.

use std::sync::Arc;

use contract::{EngineInfo, Span};

use crate::catalog::Voices;
use crate::paces::Paces;
use crate::quota::Quotas;

/// Bounds of a session. Every one is told to the client in `ready` or in docs/protocol.md section 11.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of one message; the driver's WebSocket refuses longer ones before they are whole.
    pub message_bytes: usize,
    /// Bytes of one WebSocket frame; enforced by the driver.
    pub frame_bytes: usize,
    /// Characters that may wait in one epoch.
    pub text_characters: u64,
    /// Contexts that may speak at once.
    pub contexts: usize,
    /// Contexts that may be open, speaking or not.
    pub contexts_open: usize,
    /// How far ahead of the playback clock packets are sent.
    pub lead: Span,
    /// Bytes the socket may owe before packets wait.
    pub unwritten_bytes: u64,
    /// Bytes the socket may owe at all: control messages are not held back.
    pub unwritten_bytes_max: u64,
    /// Sent bytes must be taken within this time.
    pub slow_reader: Span,
    pub idle: Span,
    pub context_idle: Span,
    pub resume_window: Span,
    /// Pings, of either kind, in a second.
    pub pings_per_second: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            message_bytes: 262_144,
            frame_bytes: 65_536,
            text_characters: 100_000,
            contexts: 8,
            contexts_open: 64,
            lead: Span::from_millis(3_000),
            unwritten_bytes: 65_536,
            unwritten_bytes_max: 262_144,
            slow_reader: Span::from_millis(10_000),
            idle: Span::from_millis(120_000),
            context_idle: Span::from_millis(60_000),
            resume_window: Span::from_millis(10_000),
            pings_per_second: 10,
        }
    }
}

/// What a session is made with.
#[derive(Clone, Debug)]
pub struct Config {
    /// Unique; shown to the client and in request ids.
    pub session: String,
    /// Secret that takes the session up again.
    pub resume: String,
    pub engine: Arc<EngineInfo>,
    pub tenant: u32,
    /// Kept voices that this session may speak with.
    pub voices: Option<Arc<dyn Voices>>,
    /// What the tenant may ask for in a minute, where that is bounded.
    pub quotas: Option<Arc<dyn Quotas>>,
    /// How the tenant says single words.
    pub lexicon: Arc<ear::Lexicon>,
    /// Whether the server was started for benchmarking.
    pub bench: bool,
    /// Opus encoder's look-ahead in 48 kHz samples (312 for libopus' audio and voip modes).
    pub opus_pre_skip: u16,
    /// What is known of how fast voices speak.
    pub paces: Paces,
    pub limits: Limits,
}
