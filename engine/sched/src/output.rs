//! What the scheduler tells the runtime, beside launches.

use contract::{ContextId, EngineError, FinishReason, Lane, LaunchId, SlotId, Span, Tick};

/// One event. Every context gets exactly one of [`SchedOutput::Refused`] and
/// [`SchedOutput::Finished`], nothing but [`SchedOutput::ChunkDropped`] after it, and at last
/// [`SchedOutput::Removed`].
#[derive(Clone, Debug, PartialEq)]
pub enum SchedOutput {
    /// The context got its slot and its first prefill was launched.
    Admitted { context: ContextId, slot: SlotId },
    /// Row `row` of codec launch `launch` may leave: attach its samples.
    ChunkCommitted(CommittedChunk),
    /// Row `row` of codec launch `launch` belongs to nobody any more: throw its samples away.
    ChunkDropped { context: ContextId, launch: LaunchId, row: u32 },
    /// The context is over. Launches in flight may still name it.
    Finished {
        context: ContextId,
        reason: FinishReason,
        /// Present exactly when `reason` is [`FinishReason::Failed`].
        error: Option<EngineError>,
        usage: SchedUsage,
    },
    /// Turned away at arrival. The error it stands for is [`RefusalCause::error`].
    Refused { context: ContextId, retry_after: Span, cause: RefusalCause },
    /// No launch names the context any more; its tables may go.
    Removed { context: ContextId },
    /// All of a segment's frames have left as chunks.
    SegmentFinished {
        context: ContextId,
        segment: u32,
        /// Frames of the context in all segments up to this one: the position after its last.
        end_frame: u64,
        reason: FinishReason,
    },
    /// The segment's next step needs a text id that has not come.
    TextDry { context: ContextId, segment: u32 },
    /// Text came, or the segment was closed, after `starved`.
    TextResumed { context: ContextId, segment: u32, starved: Span },
}

#[derive(Clone, Debug, PartialEq)]
pub struct CommittedChunk {
    pub context: ContextId,
    pub launch: LaunchId,
    pub row: u32,
    pub segment: u32,
    /// First frame within its segment.
    pub first_frame: u32,
    /// First frame within its context (all segments joined): times the samples of a frame, its
    /// `first_sample`.
    pub position: u64,
    pub frames: u32,
    pub lane: Lane,
    /// Deadline minus launch time; [`Span::MAX`] for a paused listener.
    pub slack: Span,
    /// All its frames existed.
    pub ready: Tick,
    pub launched: Tick,
    pub made: Tick,
    /// It was made after its deadline.
    pub late: bool,
}

/// What the scheduler knows of [`contract::Usage`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchedUsage {
    /// Text ids fed to the model.
    pub text_ids: u64,
    /// Frames handed out as chunks.
    pub frames: u64,
    /// Time of the encode launch this context waited for.
    pub encode: Span,
    pub text_starved: Span,
}

/// Why a context was turned away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RefusalCause {
    /// Its predicted first audio is later than the limit.
    FirstAudio,
    /// With one more context the backbone would fall behind real time.
    Load,
    /// It waited for a slot or pages until the limit had passed.
    Waited,
    /// As many contexts are open as may be.
    TooManyOpen,
}

impl RefusalCause {
    #[must_use]
    pub const fn error(self, retry_after: Span) -> EngineError {
        match self {
            Self::FirstAudio | Self::Load | Self::Waited => EngineError::Overloaded { retry_after },
            Self::TooManyOpen => EngineError::TooManyContexts { retry_after },
        }
    }
}
