//! What an engine gives back for one context.

use crate::{EngineError, Lane, Span, Tick};

/// Why a context ended. Always reported, exactly once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FinishReason {
    /// The listener or the client asked for it.
    Cancelled,
    /// A bound ended it: frames for its text, a repetition or silence guard, or pages.
    Capped,
    /// Everything was spoken.
    Done,
    /// An error that belongs to this context; see the error beside it.
    Failed,
    /// Nothing came in for longer than the idle limit.
    Idle,
}

impl FinishReason {
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cancelled => "cancelled",
            Self::Capped => "capped",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Idle => "idle",
        }
    }
}

/// Consecutive samples made by one codec call, in order within their context.
#[derive(Clone, Debug, PartialEq)]
pub struct Chunk {
    /// Position of the first sample in the context's sample stream (all segments joined).
    pub first_sample: u64,
    /// Mono samples in [-1, 1] at the model's rate, all finite.
    pub samples: Box<[f32]>,
    /// Which of the context's segments spoke, from 0.
    pub segment: u32,
    /// Frames decoded into this chunk.
    pub frames: u32,
    pub lane: Lane,
    /// Deadline minus launch time when the chunk was launched; [`Span::MAX`] for a paused listener.
    pub slack: Span,
    /// All its frames existed.
    pub ready: Tick,
    /// Its codec call was launched.
    pub launched: Tick,
    /// Its samples were on the host.
    pub made: Tick,
}

/// What was consumed and made for one context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Unicode scalar values of text taken in.
    pub characters: u64,
    /// Text ids fed to the model.
    pub text_ids: u64,
    /// Frames decoded to sound and handed out.
    pub frames: u64,
    /// Samples handed out.
    pub samples: u64,
    /// Time spent in the encode stage for this context (zero when the voice was cached).
    pub encode: Span,
    /// Time during which the context could not go on because its streamed text had run dry.
    pub text_starved: Span,
}

/// One event for one context. After `Finished` nothing follows.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    Chunk(Chunk),
    Finished {
        reason: FinishReason,
        usage: Usage,
        /// Present exactly when `reason` is [`FinishReason::Failed`].
        error: Option<EngineError>,
    },
    /// All of a segment's frames have left as chunks.
    SegmentFinished {
        segment: u32,
        /// Position just after the segment's last sample.
        end_sample: u64,
        /// `Capped` when the segment's frame bound or a guard ended it; the context goes on.
        reason: FinishReason,
    },
}
