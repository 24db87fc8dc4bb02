//! The native wire, `voxlane.v1`: types of docs/protocol.md and how they are read and written.
//!
//! What a client sends is read strictly ([`Incoming::decode`], [`Header::decode`]); what a server sends
//! is read loosely ([`ServerMessage::from_json`]), so that servers may add fields and types.

mod client;
mod close;
mod codec;
mod decode;
mod error;
mod fields;
mod header;
mod json;
mod native;
mod server;
pub(crate) mod speaking;
mod speed;
pub(crate) mod told;

pub use client::{
    AudioChoice, Cancel, ClientMessage, ContextRef, Hello, Incoming, LOUDNESS, ListenerState, Open,
    PlaybackReport, Player, Received, ReferenceOpen, Resume, SAMPLE_RATES, SamplingFields, TEXT_BYTES_MAX,
    TextAppend, Unreadable,
};
pub use close::CloseCode;
pub use codec::WireCodec;
pub use error::{ErrorBody, ErrorKind, ErrorObject, WireError};
pub use header::{DURATION_MAX, Flags, HEADER_BYTES, Header, PacketKind};
pub use json::{DEPTH_MAX, Json, Text, join};
pub use native::Native;
pub use server::{
    ChunkTrace, End, ErrorMessage, Heard, Opened, OpenedAudio, Ready, ReadyAudio, ReadyLimits, ReadyModel,
    ReadyVoice, ResumedContext, ServerMessage, TextSpoken, UsageFields,
};
pub use speaking::sampling_schema;
pub use speed::Speed;

pub(crate) use fields::Fields;
pub use fields::INTEGER_MAX;
pub(crate) use speaking::sampling;

/// The WebSocket subprotocol of this wire.
pub const SUBPROTOCOL: &str = "voxlane.v1";
/// Hertz of every position on the wire, whatever rate a model makes (RFC 7587 section 4.1).
pub const CLOCK_HZ: u32 = 48_000;
