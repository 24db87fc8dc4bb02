//! Wire audio: everything between the engine's mono `f32` samples and the bytes a client hears, and back
//! (DESIGN.md sections 1 and 3, steps 9 and 10).
//!
//! | module | what it does |
//! |---|---|
//! | [`splice`] | joins decoded chunks into one sample stream; each sample leaves at most once, in order |
//! | [`loudness`] | brings speech to a loudness, whole or while it streams |
//! | [`resample`] | fixed-ratio rate conversion, delay trimmed, tail flushed |
//! | [`opus`] | 20 ms packets with 48 kHz time stamps, exact pre-skip and end trim; a decoder for clients and tests |
//! | [`stretch`] | faster and slower speech of the same pitch |
//! | [`flac`] | FLAC streamed out |
//! | [`mp3`] | MP3 streamed out, in builds with the feature `mp3` |
//! | [`ogg`] | RFC 7845 Ogg Opus, streamed out; a bounded reader for uploads |
//! | [`wav`] | headers of known and unknown length; a bounded reader for uploads |
//! | [`upload`] | reference clips in WAV, FLAC, MP3, Ogg or WebM: bounded, and judged before they are used |
//! | [`pcm`], [`g711`] | s16le, f32le, mu-law, A-law |
//!
//! Everything here is pure: no clock, no IO, no task. Samples are mono `f32` in [-1, 1] unless a function
//! says otherwise. Bytes from a peer never panic; they end in a [`CodecError`].

pub mod flac;
pub mod g711;
pub mod loudness;
pub mod mp3;
pub mod ogg;
pub mod opus;
pub mod pcm;
pub mod resample;
pub mod splice;
pub mod stretch;
pub mod upload;
pub mod wav;

mod audio;
mod error;

pub use audio::{AudioLimits, MonoAudio, read_audio};
pub use error::CodecError;

/// Samples per second of the Opus, Ogg and wire time base, whatever the encoder's input rate
/// (RFC 7587 section 4.1, RFC 7845 section 4).
pub const OPUS_CLOCK_HZ: u32 = 48_000;
