//! Messages of the server, as types (docs/protocol.md section 8).
//!
//! Both `Serialize` (the server) and `Deserialize` (a Rust client): a client ignores fields and types
//! it does not know, so unknown types read as [`ServerMessage::Unknown`].

use contract::{Usage, VoiceInfo};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::ErrorObject;

/// One control message of the server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type")]
pub enum ServerMessage {
    #[serde(rename = "cancelled")]
    Cancelled { context: u16, epoch: u16, heard: Heard },
    #[serde(rename = "chunk")]
    Chunk(ChunkTrace),
    #[serde(rename = "end")]
    End(End),
    #[serde(rename = "error")]
    Error(ErrorMessage),
    #[serde(rename = "goaway")]
    Goaway { reason: String, in_ms: u64 },
    #[serde(rename = "opened")]
    Opened(Opened),
    #[serde(rename = "pong")]
    Pong { t: f64, server_ms: f64 },
    #[serde(rename = "ready")]
    Ready(Box<Ready>),
    #[serde(rename = "resumed")]
    Resumed { session: String, resume: String, contexts: Vec<ResumedContext> },
    #[serde(rename = "text.ack")]
    TextAck { context: u16, epoch: u16, sequence: u32, characters: u64 },
    #[serde(rename = "text.flushed")]
    TextFlushed { context: u16, epoch: u16, sequence: u32, characters: u64 },
    /// Text is said otherwise than it was written; for sessions that ask for a trace.
    #[serde(rename = "text.spoken")]
    TextSpoken(TextSpoken),
    #[serde(rename = "text.released")]
    TextReleased { context: u16, epoch: u16, held_bytes: u32 },
    /// A type of a later server.
    #[serde(other)]
    Unknown,
}

/// What the listener heard before a cancel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Heard {
    /// The last 16,384 characters of it at most, ending at a word's border.
    pub text: String,
    /// Unicode scalar values heard in the epoch.
    pub characters: u64,
    /// 48 kHz media samples audible.
    pub samples: u64,
    /// Characters were spread over the sound, not aligned by the model.
    pub estimated: bool,
}

/// How and when one chunk was made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChunkTrace {
    pub context: u16,
    pub epoch: u16,
    /// First packet that holds some of it.
    pub sequence: u32,
    /// 48 kHz samples.
    pub samples: u64,
    pub frames: u32,
    pub segment: u32,
    pub lane: String,
    /// Deadline minus launch; `None` when nothing was due.
    pub slack_ms: Option<f64>,
    /// From the epoch's first text to samples on the host.
    pub made_ms: f64,
}

/// How a part of the text is said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TextSpoken {
    pub context: u16,
    pub epoch: u16,
    /// Unicode scalar values of the epoch's text before it.
    pub at: u64,
    pub original: String,
    pub spoken: String,
}

/// The one end of an epoch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct End {
    pub context: u16,
    pub epoch: u16,
    /// A name of [`contract::FinishReason`].
    pub reason: String,
    /// 48 kHz media samples sent.
    pub samples: u64,
    /// Last packet sequence of the context.
    pub sequence: u32,
    pub usage: UsageFields,
}

/// What an epoch cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct UsageFields {
    pub characters: u64,
    pub text_ids: u64,
    pub frames: u64,
    /// 48 kHz samples made.
    pub samples: u64,
    pub encode_ms: f64,
    pub text_starved_ms: f64,
}

/// An error that answers a message, or ends an epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorMessage {
    pub error: ErrorObject,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<u16>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u16>,
    /// The `id` of the message it answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
}

/// A context is open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Opened {
    pub context: u16,
    pub epoch: u16,
    pub model: String,
    pub voice: Option<String>,
    pub language: Option<String>,
    /// Whose rules read the text for the ear (`en-US`); none: it is said as it stands.
    #[serde(default)]
    pub reading: Option<String>,
    pub layout: String,
    pub audio: OpenedAudio,
}

/// The audio a context sends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OpenedAudio {
    pub codec: String,
    pub sample_rate: u32,
    pub channels: u8,
    pub packet_ms: u32,
    /// 48 kHz samples to drop after a decoder reset at timestamp 0.
    pub pre_skip: u16,
}

/// The first message of every connection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Ready {
    pub protocol: String,
    pub session: String,
    pub resume: String,
    pub resume_window_ms: u64,
    pub report_interval_ms: u64,
    pub default_model: Option<String>,
    pub limits: ReadyLimits,
    pub audio: ReadyAudio,
    pub models: Vec<ReadyModel>,
}

/// Bounds a client can rely on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReadyLimits {
    pub message_bytes: usize,
    pub frame_bytes: usize,
    pub text_bytes: usize,
    pub text_characters: u64,
    pub contexts: usize,
    pub lead_ms: u64,
    pub idle_ms: u64,
    pub context_idle_ms: u64,
    pub pings_per_second: u32,
}

/// Audio every context can ask for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReadyAudio {
    pub codecs: Vec<String>,
    pub clock: u32,
    pub packet_ms: u32,
    pub sample_rates: Vec<u32>,
}

/// One model a context can name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReadyModel {
    pub name: String,
    pub sample_rate: u32,
    pub layouts: Vec<String>,
    pub languages: Vec<String>,
    pub default_voice: Option<String>,
    pub takes_instructions: bool,
    pub takes_reference: bool,
    pub voices: Vec<ReadyVoice>,
}

/// One voice of a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReadyVoice {
    pub id: String,
    pub name: String,
    pub language: Option<String>,
    pub layouts: Vec<String>,
}

/// Where a context stands after a resume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ResumedContext {
    pub context: u16,
    pub epoch: u16,
    /// Last `text.append` taken in the epoch.
    pub text_sequence: u32,
    /// Packets follow from this sequence on.
    pub sequence: u32,
    /// Packets between what the client has and `sequence`.
    pub lost: u32,
    pub ended: bool,
}

impl ServerMessage {
    /// The message as JSON text.
    #[must_use]
    pub fn to_json(&self) -> String {
        // Only maps with keys that are no strings can fail, and there are none.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads a server's message, as a client does.
    ///
    /// # Errors
    /// serde_json's, when it is not JSON or a known type lacks a field.
    pub fn from_json(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text)
    }
}

impl UsageFields {
    /// `usage` with samples counted at 48 kHz; `rate` is the model's.
    #[must_use]
    pub fn new(usage: &Usage, rate: u32) -> Self {
        Self {
            characters: usage.characters,
            text_ids: usage.text_ids,
            frames: usage.frames,
            samples: crate::at_wire_clock(usage.samples, rate),
            encode_ms: usage.encode.as_micros() as f64 / 1_000.0,
            text_starved_ms: usage.text_starved.as_micros() as f64 / 1_000.0,
        }
    }
}

impl From<&VoiceInfo> for ReadyVoice {
    fn from(voice: &VoiceInfo) -> Self {
        Self {
            id: voice.id.clone(),
            name: voice.name.clone(),
            language: voice.language.clone(),
            layouts: voice.layouts.iter().map(|layout| layout.name().to_owned()).collect(),
        }
    }
}
