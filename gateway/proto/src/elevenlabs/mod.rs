//! What clients of ElevenLabs' text-to-speech service send and read, so that they speak with this server
//! once their URL is changed (docs/elevenlabs-cartesia.md).
//!
//! Voices and models are this server's own. Names of ElevenLabs' models (`eleven_*`) mean the default model,
//! because clients name one of them unasked. Settings of the voice that no model here has (`stability`,
//! `similarity_boost`, `style`, `use_speaker_boost`), normalization, logging and pronunciation dictionaries
//! are taken and have no effect.

mod alignment;
mod body;
mod error;
mod format;
mod request;
mod voices;

pub use alignment::Alignment;
pub use body::{TimedDocument, TimedLines};
pub use error::{ErrorDetail, error};
pub use format::OutputFormat;
pub use request::{Query, read_request};
pub use voices::{Voices, voices};

/// Whether `name` is one of ElevenLabs' own models, which stands for the default one here.
pub(crate) fn is_their_model(name: &str) -> bool {
    name.starts_with("eleven_")
}
