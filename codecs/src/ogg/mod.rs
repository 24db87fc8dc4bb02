//! Ogg Opus (RFC 7845): a streaming writer and a bounded reader.

mod head;
mod reader;
mod writer;

pub use head::{OpusHead, OpusTags};
pub use reader::{OggOpusPacket, OggOpusReader, decode};
pub use writer::{OggOpusSettings, OggOpusWriter};

use crate::CodecError;

/// The media type of what the writer makes.
pub const MEDIA_TYPE: &str = "audio/ogg; codecs=opus";

fn malformed(reason: &'static str) -> CodecError {
    CodecError::Malformed { format: "Ogg Opus", reason }
}
