//! One context's speech: how many frames its text has earned, and when they exist.

use contract::{Playback, Span, Tick, Usage};

use crate::{Tone, VoiceScript};

/// A piece of text between two `end_segment` calls.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Segment {
    pub(crate) characters: u64,
    pub(crate) ended: bool,
}

/// State of one open context.
#[derive(Debug)]
pub(crate) struct Speech {
    pub(crate) voice: VoiceScript,
    pub(crate) tone: Tone,
    pub(crate) watch: contract::ControlWatch,
    /// Segments not yet spoken to their end; the first is being spoken.
    pub(crate) segments: std::collections::VecDeque<Segment>,
    /// Index of the first of `segments` in the context.
    pub(crate) segment: u32,
    /// Frames of the first segment that have left.
    pub(crate) segment_frames: u64,
    pub(crate) finishing: bool,
    pub(crate) exact_frames: Option<u32>,
    pub(crate) chunk: usize,
    pub(crate) arrival: Tick,
    pub(crate) playback: Playback,
    /// When the next frame starts to be made; `None` before any text.
    pub(crate) free_at: Option<Tick>,
    pub(crate) stalled: bool,
    pub(crate) usage: Usage,
    /// When it stands among what is due; `NEVER` while it does not.
    pub(crate) due: Tick,
}

/// What a context can do at a given time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// A chunk of this many frames exists at this time.
    Chunk {
        frames: u32,
        at: Tick,
    },
    /// The current segment has been spoken.
    SegmentEnd,
    Finish,
    /// Only a command can move it on.
    Wait,
    /// The listener has enough; look again then.
    Rest {
        until: Tick,
    },
}

impl Speech {
    pub(crate) fn frames_total(&self) -> u64 {
        self.usage.frames
    }

    /// Frames the current segment will have, as far as its text is known.
    fn earned(&self, per_character: f64) -> u64 {
        let Some(segment) = self.segments.front() else { return 0 };
        if let Some(exact) = self.exact_frames {
            return u64::from(exact);
        }
        let frames = segment.characters as f64 * per_character;
        if segment.ended { frames.ceil() as u64 } else { frames.floor() as u64 }
    }

    /// What comes next, given the script's pace. `chunk` is the length of the next full chunk.
    pub(crate) fn next(&self, now: Tick, chunk: u32, per_character: f64, limits: &Limits) -> Next {
        let Some(segment) = self.segments.front() else {
            return if self.finishing { Next::Finish } else { Next::Wait };
        };
        let missing = self.earned(per_character).saturating_sub(self.segment_frames);
        if missing == 0 {
            return if segment.ended { Next::SegmentEnd } else { Next::Wait };
        }
        if missing < u64::from(chunk) && !segment.ended {
            return Next::Wait;
        }
        if let Some(until) = self.rests_until(now, limits) {
            return Next::Rest { until };
        }
        let frames = missing.min(u64::from(chunk)) as u32;
        let start = self.free_at.unwrap_or(now);
        let making = (self.voice.frame_ms * f64::from(frames) * 1_000.0) as i64;
        let at = if self.chunk == 0 { start } else { start + Span::from_micros(making) };
        Next::Chunk { frames, at }
    }

    fn rests_until(&self, now: Tick, limits: &Limits) -> Option<Tick> {
        let made = Span::of_samples(self.usage.samples, limits.sample_rate);
        match self.playback {
            Playback::NotStarted if made > limits.lead_max => Some(Tick::NEVER),
            Playback::Paused { played } if made + -played > limits.lead_max => Some(Tick::NEVER),
            Playback::Playing { zero } => {
                let resume = zero + made + -limits.lead_max;
                (resume > now).then_some(resume)
            }
            _ => None,
        }
    }
}

/// The bounds all contexts share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) sample_rate: u32,
    pub(crate) lead_max: Span,
}
