//! RIFF WAVE: 16-bit mono out, most uncompressed kinds and G.711 in.

mod reader;
mod writer;

pub use reader::decode;
pub use writer::{HEADER_BYTES, Info, encode, header, streaming_header};
