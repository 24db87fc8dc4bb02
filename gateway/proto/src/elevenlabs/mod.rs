//! What clients of ElevenLabs' text-to-speech service send and read, so that they speak with this server
//! once their URL is changed (docs/elevenlabs-cartesia.md).
//!
//! Voices and models are this server's own. Names of ElevenLabs' models (`eleven_*`) mean the default model,
//! because clients name one of them unasked. Settings of the voice that no model here has (`stability`,
//! `similarity_boost`, `style`, `use_speaker_boost`), logging and pronunciation dictionaries
//! are taken and have no effect.

mod alignment;
mod body;
mod error;
mod format;
mod message;
mod options;
mod request;
mod socket;
mod voices;

pub use alignment::Alignment;
pub use body::{TimedDocument, TimedLines};
pub use error::{ErrorDetail, error};
pub use format::OutputFormat;
pub use message::{ServerMessage, message_schema};
pub use options::{Contexts, Options};
pub use request::{Query, body_schema, read_request};
pub use socket::Socket;
pub use voices::{Voices, voices};

/// Theirs says auto, on or off; only the last changes anything here.
fn normalize(how: &str) -> Option<bool> {
    (how == "off").then_some(false)
}

/// Whether `name` is one of ElevenLabs' own models, which stands for the default one here.
pub(crate) fn is_their_model(name: &str) -> bool {
    name.starts_with("eleven_")
}
