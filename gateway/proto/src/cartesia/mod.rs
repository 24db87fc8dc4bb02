//! What clients of Cartesia's text-to-speech service send and read, so that they speak with this server once
//! their URL is changed (docs/elevenlabs-cartesia.md).
//!
//! Voices and models are this server's own. Names of Cartesia's models (`sonic*`) mean the default model,
//! because clients name one of them unasked. `volume`, `emotion`, normalization, phoneme times and
//! pronunciation dictionaries are taken and have no effect.

mod body;
mod error;
mod event;
mod format;
mod generation;
mod message;
mod request;
mod socket;

pub use body::Events;
pub use error::error;
pub use event::{Event, WordTimestamps};
pub use format::{Container, OutputFormat};
pub use message::message_schema;
pub use request::{SpeechAsk, body_schema, read_request};
pub use socket::Socket;
