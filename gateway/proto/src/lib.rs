//! The gateway's protocol core: the native wire, its session state machine, text segmentation, pacing
//! and the playback clock. Pure: no tokio, no socket, no clock; time, ids and randomness are arguments.
//!
//! | module | what it decides |
//! |---|---|
//! | [`wire`] | how messages look, and which bytes of a peer are refused, by which error |
//! | [`session`] | what one connection does next, whatever its protocol |
//! | [`dialect`] | how a protocol's clients speak with a session |
//! | [`reader`] | how text is read for the ear and handed on segment by segment |
//! | [`segmenter`] | where streamed text is cut into segments that fit the model |
//! | [`pacer`] | when a packet may leave |
//! | [`playback`] | where the listener is, and so when each sample is due |
//! | [`alignment`] | which words the listener has heard, and when each character sounds |
//! | [`shape`] | what of an engine's samples goes on, and which pauses stand between |
//! | [`quota`] | what a tenant may ask for in a minute |
//! | [`paces`] | how fast voices speak, for the alignment of their next text |
//! | [`catalog`] | which model, voice and layout a request means |
//! | [`realtime`] | OpenAI Realtime as a dialect |
//! | [`speech`] | what `POST /v1/audio/speech` asks |
//! | [`body`] | how the sound of a whole text stands in an answer |
//! | [`elevenlabs`], [`cartesia`] | what clients of these services ask, and how they are answered |
//!
//! The rule of every state machine here: after each mutation the caller drains `poll_output` until it
//! is empty and then reads `poll_timeout`; only then comes the next mutation.

pub mod alignment;
pub mod body;
pub mod cartesia;
pub mod catalog;
pub mod dialect;
pub mod elevenlabs;
pub mod fuzz;
pub mod link;
mod named;
pub mod pacer;
pub mod paces;
pub mod playback;
pub mod quota;
pub mod reader;
pub mod realtime;
pub mod segmenter;
pub mod session;
pub mod shape;
pub mod speech;
pub mod wire;

/// `samples` at `rate` hertz as a position of the 48 kHz wire clock, rounded down.
#[must_use]
pub fn at_wire_clock(samples: u64, rate: u32) -> u64 {
    let scaled = u128::from(samples) * u128::from(wire::CLOCK_HZ) / u128::from(rate.max(1));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}
