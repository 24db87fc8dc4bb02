//! An engine that obeys a script: for the gateway's tests, load figures and demos.
//!
//! It speaks tones instead of words. Every tone is a sine whose frequency names its context (or the
//! request's seed, when one is given), so that a listener can tell whose audio it hears. Latency,
//! pace, chunk lengths and failures come from a [`Script`].
//!
//! [`Core`] is pure: time is an argument and nothing in it blocks. [`Scripted`] adds the one thread
//! and the clock that the [`contract::EngineHandle`] trait needs.

mod core;
mod engine;
mod script;
mod speech;
mod tone;

pub use core::Core;
pub use engine::Scripted;
pub use script::{Refusal, Script, ScriptError, VoiceScript};
pub use tone::{Tone, tone_hz};
