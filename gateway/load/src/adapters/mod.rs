//! One request over one protocol. An adapter only moves bytes: what a listener makes of them is
//! [`Hearing`]'s.

mod body;
mod glance;
mod nari;
mod native;
mod realtime;
mod socket;
mod speech;

use std::time::Duration;

use contract::Tick;

use crate::arrivals::Arrival;
use crate::clock::Clock;
use crate::hearing::{AUDIBLE, Hearing};
use crate::outcome::Ending;
use crate::target::{Adapter, Target};
use crate::workload::Utterance;

/// One request to be made now.
#[derive(Debug)]
pub(crate) struct Request<'a> {
    pub(crate) target: &'a Target,
    pub(crate) token: Option<&'a str>,
    pub(crate) utterance: &'a Utterance,
    pub(crate) arrival: &'a Arrival,
    /// When it was due.
    pub(crate) due: Tick,
    /// Length of a frame in milliseconds, when requests fix their number of frames.
    pub(crate) exact_frame_ms: Option<f64>,
    pub(crate) clock: Clock,
}

/// How long a server may take to say that it stopped.
pub(crate) const STOP_LIMIT: Duration = Duration::from_secs(2);
/// Sounds are counted at this rate.
pub(crate) const CLOCK_HZ: u64 = 48_000;

/// The listener of a request made now.
pub(crate) fn listener(request: &Request<'_>) -> Hearing {
    let mut hearing = Hearing::new(request.arrival, request.due, request.clock.now());
    if let (Some(frames), Some(frame_ms)) = (request.exact_frames(), request.exact_frame_ms) {
        hearing.asked(frames, (frame_ms * CLOCK_HZ as f64 / 1_000.0).round() as u64);
    }
    hearing
}

/// Makes one request and listens to its end.
pub(crate) async fn speak(request: &Request<'_>, hearing: &mut Hearing) -> Ending {
    let ending = match request.target.adapter {
        Adapter::Native { pcm, ids_per_s } => native::speak(request, hearing, pcm, ids_per_s).await,
        Adapter::Speech { dialect, wav } => speech::speak(request, hearing, dialect, wav).await,
        Adapter::Nari { ids_per_s } => nari::speak(request, hearing, ids_per_s).await,
        Adapter::Realtime => realtime::speak(request, hearing).await,
    };
    match ending.unwrap_or_else(Ending::Failed) {
        Ending::Done if hearing.is_mute() => Ending::Failed("the answer holds no sound".to_owned()),
        // A server's words end up in one line of a terminal.
        Ending::Refused(code) => Ending::Refused(failure(code)),
        Ending::Failed(what) => Ending::Failed(failure(what)),
        ending => ending,
    }
}

impl Request<'_> {
    pub(crate) fn exact_frames(&self) -> Option<u32> {
        self.exact_frame_ms.map(|frame_ms| self.utterance.frames(frame_ms / 1_000.0))
    }

    /// The text and when each piece of it is sent, from the start of the request.
    pub(crate) fn pieces(&self, ids_per_s: Option<f64>) -> Vec<(Duration, String)> {
        match ids_per_s {
            None => vec![(Duration::ZERO, self.utterance.text.clone())],
            Some(rate) => {
                let pieces = self.utterance.pieces().into_iter().enumerate();
                pieces.map(|(n, piece)| (Duration::from_secs_f64(n as f64 / rate), piece)).collect()
            }
        }
    }
}

/// Whether any sample is loud enough to be sound.
pub(crate) fn is_audible(samples: &[f32]) -> bool {
    samples.iter().any(|sample| sample.abs() > AUDIBLE)
}

/// Signed 16-bit little-endian samples whose bytes come in any pieces.
#[derive(Debug, Default)]
pub(crate) struct PcmPieces {
    odd: Option<u8>,
}

impl PcmPieces {
    /// Whole samples of the stream so far that `bytes` completes: how many, and whether one is sound.
    pub(crate) fn take(&mut self, bytes: &[u8]) -> (u64, bool) {
        let threshold = (AUDIBLE * 32_768.0) as u16;
        let (mut count, mut audible) = (0, false);
        for byte in bytes {
            match self.odd.take() {
                None => self.odd = Some(*byte),
                Some(low) => {
                    count += 1;
                    audible |= i16::from_le_bytes([low, *byte]).unsigned_abs() > threshold;
                }
            }
        }
        (count, audible)
    }
}

/// A field of the target's URL as JSON: numbers and truth values as such, for servers that take nothing
/// else for them; all else is text.
pub(crate) fn field_value(text: &str) -> serde_json::Value {
    let plain = |value: &serde_json::Value| value.is_number() || value.is_boolean();
    serde_json::from_str(text).ok().filter(plain).unwrap_or_else(|| text.into())
}

/// A server's failure in one line: what it said, cut to a length that reports can hold and without what would steer
/// a terminal.
pub(crate) fn failure(what: impl std::fmt::Display) -> String {
    what.to_string().chars().take(160).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Sleeps until a tick, or for ever.
pub(crate) async fn until(clock: Clock, tick: Option<Tick>) {
    match tick {
        Some(tick) => tokio::time::sleep_until(clock.instant(tick)).await,
        None => std::future::pending().await,
    }
}
