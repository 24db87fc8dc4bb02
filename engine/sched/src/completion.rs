//! What the runtime reports when a launch's fence has passed.

use contract::{EngineError, LaunchId, Span, Tick};

/// One launch is over: nothing it named is touched by it any more.
#[derive(Clone, Debug, PartialEq)]
pub struct Completion {
    pub launch: LaunchId,
    /// When it finished; not later than the `now` it is handed in with.
    pub at: Tick,
    /// Time the executable itself ran, without the time it stood in its lane's queue. Corrects the
    /// profile; zero or less means not measured.
    pub took: Span,
    pub result: LaunchResult,
}

/// Results row by row, in the order of the decision's rows.
#[derive(Clone, Debug, PartialEq)]
pub enum LaunchResult {
    /// Of a codec launch.
    Chunks(Vec<ChunkResult>),
    /// Of an encode launch.
    Encoded,
    /// Of an encode launch: the clip cannot be used. Every context waiting for it fails with this.
    EncodeFailed { error: EngineError },
    /// Of a prefill or decode launch.
    Frames(Vec<FrameResult>),
    /// The launch came to nothing. Ends the contexts in it.
    Lost { what: String },
}

/// What one row of a prefill or decode launch did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameResult {
    pub outcome: FrameOutcome,
    /// Hash of the frame's codes, for the repetition guard. Ignored unless a frame was made.
    pub code_hash: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameOutcome {
    /// The model ended the segment; this step made no frame.
    EndOfSpeech,
    /// One frame exists.
    Made,
    /// The device had set the row's done flag earlier and did nothing.
    NoOp,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ChunkResult {
    Made {
        /// Largest absolute sample value, for the silence guard.
        peak: f32,
    },
    /// At least one sample was not a number: nothing of the chunk may leave.
    NotFinite,
}
