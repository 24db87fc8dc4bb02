//! What the runtime tells the scheduler.

use contract::{CloneMode, ContextId, EngineError, Playback, Tick};

/// Names one result of the encode stage: the clip's content hash and how it conditions the model.
/// The runtime caches results under it; the scheduler only keeps the keys still to be run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EncodeKey {
    pub hash: [u8; 16],
    pub mode: CloneMode,
}

/// One thing that happened outside. A command that names an unknown or ended context, or that
/// contradicts an earlier one, changes nothing and is counted in [`crate::Counters::ignored`].
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// A context exists. It holds nothing until its first segment is ready.
    Open {
        context: ContextId,
        /// When the request arrived at the gateway.
        arrival: Tick,
        /// Fairness group.
        tenant: u32,
        /// Exact number of frames to make in all, end-of-speech masked until then.
        exact_frames: Option<u32>,
        /// The reference that must be encoded before the first prefill; `None` when the voice needs
        /// none or its result is cached.
        voice_encode: Option<EncodeKey>,
        /// Samples of that reference: the length its cost is looked up by.
        encode_samples: u32,
    },
    /// A segment can be prefilled. Segments of one context come in order: 0, 1, 2, ...
    SegmentReady {
        context: ContextId,
        segment: u32,
        /// Positions the prompt takes.
        prompt_tokens: u32,
        /// Text ids known so far (streamed layout: at least 1).
        ids: u32,
        /// No further id will come for this segment.
        closed: bool,
        /// One text id a frame; otherwise the whole text stands in the prompt.
        streamed: bool,
        /// Frames the text known so far will probably need.
        frames_predicted: u32,
        /// Frames after which the segment is cut as `capped`.
        frames_max: u32,
    },
    /// More text ids of a streamed segment are known. Totals, never differences.
    Ids {
        context: ContextId,
        segment: u32,
        total: u32,
        closed: bool,
        /// As in [`Command::SegmentReady`], for the text known now; never shrinks the earlier value.
        frames_predicted: u32,
        frames_max: u32,
    },
    /// No segment will follow: after the last one the context finishes as done.
    Finish { context: ContextId },
    /// The first `positions` positions of the context's prompts are the same for every context that
    /// says so with this key. Comes before its first segment.
    SharePrefix { context: ContextId, key: EncodeKey, positions: u32 },
    /// Where the listener is.
    Playback { context: ContextId, playback: Playback },
    /// Ends the context at once.
    Cancel { context: ContextId },
    /// Ends the context at once because of an error outside the scheduler (its output queue is full,
    /// its samples could not be encoded, ...).
    Fail { context: ContextId, error: EngineError },
}

impl Command {
    #[must_use]
    pub const fn context(&self) -> ContextId {
        match self {
            Self::Open { context, .. }
            | Self::SegmentReady { context, .. }
            | Self::Ids { context, .. }
            | Self::Finish { context }
            | Self::SharePrefix { context, .. }
            | Self::Playback { context, .. }
            | Self::Cancel { context }
            | Self::Fail { context, .. } => *context,
        }
    }
}
