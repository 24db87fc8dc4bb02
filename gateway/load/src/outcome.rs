//! What became of one request, as its listener knows it.

use contract::{Span, Tick};

use crate::ear::STALL;
use crate::mood::Mood;

/// One request, from its scheduled arrival to its end.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    pub mood: Mood,
    /// When it was due to be sent, by the schedule.
    pub arrival: Tick,
    /// When the generator got round to it.
    pub started: Tick,
    pub first_byte: Option<Tick>,
    /// The first sample above -50 dBFS.
    pub first_audio: Option<Tick>,
    /// The listener's pauses, added up; waiting for the client's own text is not among them.
    pub stalled: Span,
    pub text_starved: Span,
    /// Sound received.
    pub audio: Span,
    /// Sound of the first chunk.
    pub first_chunk: Option<Span>,
    /// Frames whose sound arrived, and frames that the server says it decoded.
    pub frames_sent: u64,
    pub frames_made: Option<u64>,
    /// Samples at 48 kHz that the server says it made, and those that arrived, where they differ.
    pub samples_wrong: Option<(u64, u64)>,
    /// Frames asked for.
    pub frames_exact: Option<u32>,
    pub ending: Ending,
}

/// How a request ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    Done,
    /// The listener interrupted, and the server stopped.
    Interrupted,
    /// Turned away before any audio, with the server's code.
    Refused(String),
    Failed(String),
    /// Still running when the run gave up waiting.
    Unfinished,
}

impl Outcome {
    /// A request of which nothing has come back yet.
    #[must_use]
    pub const fn waiting(mood: Mood, arrival: Tick) -> Self {
        Self {
            mood,
            arrival,
            started: arrival,
            first_byte: None,
            first_audio: None,
            stalled: Span::ZERO,
            text_starved: Span::ZERO,
            audio: Span::ZERO,
            first_chunk: None,
            frames_sent: 0,
            frames_made: None,
            samples_wrong: None,
            frames_exact: None,
            ending: Ending::Unfinished,
        }
    }

    /// Arrival to first audible sample.
    #[must_use]
    pub fn ttfa(&self) -> Option<Span> {
        self.first_audio.map(|at| at.since(self.arrival))
    }

    #[must_use]
    pub fn completed(&self) -> bool {
        matches!(self.ending, Ending::Done | Ending::Interrupted)
    }

    /// Completed, and the pauses stayed below [`STALL`].
    #[must_use]
    pub fn without_stall(&self) -> bool {
        self.completed() && self.stalled < STALL
    }

    /// First audio within `limit`, no stall, and spoken to its end.
    #[must_use]
    pub fn attained(&self, limit: Span) -> bool {
        self.without_stall() && self.ttfa().is_some_and(|ttfa| ttfa <= limit)
    }

    /// Whether, cut short at `now`, it had missed first audio within `limit` or stalled, whatever would have followed.
    #[must_use]
    pub fn has_missed(&self, now: Tick, limit: Span) -> bool {
        self.first_audio.unwrap_or(now).since(self.arrival) > limit || self.stalled >= STALL
    }

    /// Why the frames do not add up: every frame asked for was decoded, and every frame decoded was sent. Where a protocol
    /// does not tell what was decoded, sound of every frame asked for must have arrived.
    #[must_use]
    pub fn frames_missing(&self) -> Option<String> {
        if self.ending != Ending::Done {
            return None;
        }
        let asked = self.frames_exact.map(u64::from);
        let Some(made) = self.frames_made else {
            let short = asked.filter(|asked| *asked != self.frames_sent)?;
            return Some(format!("{short} frames were asked for, but sound of {} arrived", self.frames_sent));
        };
        if made != self.frames_sent {
            return Some(format!("{made} frames were decoded, but sound of {} arrived", self.frames_sent));
        }
        // Silence shorter than a frame would not be seen among whole frames.
        if let Some((made, arrived)) = self.samples_wrong {
            return Some(format!("{made} samples were made, but {arrived} arrived"));
        }
        let asked = asked?;
        (asked != made).then(|| format!("{asked} frames were asked for, but {made} were decoded"))
    }
}
