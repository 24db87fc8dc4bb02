//! Messages of the client, as types (docs/protocol.md section 4).

use contract::{CloneMode, Epoch, Layout};
use serde::{Serialize, Serializer};
use utoipa::ToSchema;

use super::{Speed, Text, WireCodec, WireError};
use crate::catalog::CLONE_MODES;

/// One control message of the client.
///
/// `Serialize` writes it as a client sends it; [`Incoming::decode`] is the server's strict reader.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[serde(tag = "type")]
pub enum ClientMessage {
    #[serde(rename = "cancel")]
    Cancel(Cancel),
    #[serde(rename = "hello")]
    Hello(Hello),
    #[serde(rename = "open")]
    Open(Box<Open>),
    #[serde(rename = "ping")]
    Ping { t: f64 },
    #[serde(rename = "playback")]
    Playback(PlaybackReport),
    #[serde(rename = "resume")]
    Resume(Resume),
    #[serde(rename = "text.append")]
    TextAppend(TextAppend),
    #[serde(rename = "text.end")]
    TextEnd(ContextRef),
    #[serde(rename = "text.flush")]
    TextFlush(ContextRef),
}

/// A read message with the `id` its sender gave it.
#[derive(Clone, Debug, PartialEq)]
pub struct Incoming {
    pub id: Option<String>,
    pub message: ClientMessage,
}

/// A message that cannot be read, with what of it could.
#[derive(Clone, Debug, PartialEq)]
pub struct Unreadable {
    pub id: Option<String>,
    pub error: WireError,
}

/// Stop speaking now; the epoch grows by one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct Cancel {
    pub context: u16,
    /// The epoch meant; when it is an older one, the cancel is already done.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "epoch")]
    #[schema(value_type = Option<u16>)]
    pub epoch: Option<Epoch>,
    /// Media position audible at the cut, in 48 kHz samples.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub played: Option<u64>,
}

/// Names a context, and the epoch meant when given.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct ContextRef {
    pub context: u16,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "epoch")]
    #[schema(value_type = Option<u16>)]
    pub epoch: Option<Epoch>,
}

/// What the client is and how its player buffers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct Hello {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub playback: Option<Player>,
    pub trace: bool,
}

/// The player's buffer, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, ToSchema)]
pub struct Player {
    /// Audio it waits for before it starts.
    pub prebuffer_ms: f64,
    /// Its jitter buffer's target.
    pub target_ms: f64,
}

/// Opens a context.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct Open {
    pub context: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub audio: Option<AudioChoice>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub voice: Option<String>,
    /// A clip that follows in binary messages, in place of a voice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reference: Option<ReferenceOpen>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub language: Option<String>,
    /// False takes the text exactly as it stands; `None` is true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub normalize: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instructions: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "layout")]
    #[schema(value_type = Option<String>)]
    pub layout: Option<Layout>,
    #[serde(flatten)]
    pub sampling: SamplingFields,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exact_frames: Option<u32>,
}

/// A reference clip as `open` announces it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct ReferenceOpen {
    pub codec: WireCodec,
    /// Hertz of PCM and G.711, 8,000 to 48,000; Opus says its own.
    pub sample_rate: u32,
    /// The exact words of the clip.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transcript: Option<String>,
    /// `None`: in context with a transcript, by speaker without.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "clone_mode")]
    #[schema(value_type = Option<String>)]
    pub mode: Option<CloneMode>,
}

/// Sampling fields of `open` and of `POST /v1/audio/speech`, within the bounds of docs/protocol.md.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct SamplingFields {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_k: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repetition_penalty: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
}

/// How audio comes out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct AudioChoice {
    pub codec: WireCodec,
    /// Hertz; `None` is the model's own rate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sample_rate: Option<u32>,
    /// Leaves silence at the ends out.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub trim: bool,
    /// Loudness to come near to, in LUFS; `None` leaves it as it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loudness: Option<i8>,
    #[serde(skip_serializing_if = "Speed::is_own")]
    #[schema(value_type = f64)]
    pub speed: Speed,
}

/// Where the listener is (docs/protocol.md section 6). Positions count 48 kHz samples.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, ToSchema)]
pub struct PlaybackReport {
    pub context: u16,
    #[serde(serialize_with = "plain_epoch")]
    #[schema(value_type = u16)]
    pub epoch: Epoch,
    /// Client's monotonic clock, milliseconds.
    pub t: f64,
    /// Media position audible.
    pub played: u64,
    /// Received and not yet played.
    pub buffered: u64,
    pub state: ListenerState,
    /// Times it ran dry in this epoch.
    pub underruns: u32,
    /// Last packet sequence received; 0 for none.
    pub sequence: u32,
}

/// What a listener is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ListenerState {
    /// Everything was played.
    Ended,
    Paused,
    Playing,
    /// Waits for its first audio to fill the buffer.
    Prebuffer,
    /// Ran dry.
    Starved,
}

/// Takes a lost session up again.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct Resume {
    pub token: String,
    pub received: Vec<Received>,
}

/// What a client has of one context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct Received {
    pub context: u16,
    #[serde(serialize_with = "plain_epoch")]
    #[schema(value_type = u16)]
    pub epoch: Epoch,
    /// Last packet sequence received; 0 for none.
    pub sequence: u32,
}

/// A piece of text.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct TextAppend {
    pub context: u16,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "epoch")]
    #[schema(value_type = Option<u16>)]
    pub epoch: Option<Epoch>,
    /// 1, 2, 3... within the epoch.
    pub sequence: u32,
    /// Only whole characters are written: a Rust string holds no halves.
    #[serde(serialize_with = "text_body")]
    #[schema(value_type = String)]
    pub text: Text,
}

/// Loudness that can be asked for, in LUFS.
pub const LOUDNESS: std::ops::RangeInclusive<i8> = -40..=-10;

/// Rates audio can come out at.
pub const SAMPLE_RATES: [u32; 4] = [8_000, 16_000, 24_000, 48_000];

/// Bytes of text in one `text.append`.
pub const TEXT_BYTES_MAX: usize = 32_768;

impl ClientMessage {
    /// The message as JSON text.
    #[must_use]
    pub fn to_json(&self) -> String {
        // Numbers of a client's own making may be NaN; serde_json writes those as null.
        serde_json::to_string(self).unwrap_or_default()
    }
}

fn epoch<S: Serializer>(epoch: &Option<Epoch>, serializer: S) -> Result<S::Ok, S::Error> {
    epoch.map(|epoch| epoch.0).serialize(serializer)
}

fn plain_epoch<S: Serializer>(epoch: &Epoch, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u16(epoch.0)
}

fn layout<S: Serializer>(layout: &Option<Layout>, serializer: S) -> Result<S::Ok, S::Error> {
    layout.map(Layout::name).serialize(serializer)
}

fn clone_mode<S: Serializer>(mode: &Option<CloneMode>, serializer: S) -> Result<S::Ok, S::Error> {
    let name = CLONE_MODES.iter().find(|(_, known)| Some(*known) == *mode).map(|(name, _)| *name);
    name.serialize(serializer)
}

fn text_body<S: Serializer>(text: &Text, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&text.body)
}
