//! Encoding one clip: a short list of launches the runtime makes for the model.

use contract::EngineError;
use device::{HostTensor, StateId};

use crate::VoiceFeatures;

/// Names an encode program: which part, at which clip length. Executables may be kept by this key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EncodeProgram {
    /// The model's own numbering.
    pub part: u32,
    /// Samples of the clip.
    pub length: u32,
}

/// What to do next for a clip.
#[derive(Clone, Debug, PartialEq)]
pub enum EncodeWork {
    /// Launch an encode program with one row, then [`EncodeJob::outputs`].
    Launch { program: EncodeProgram, inputs: Vec<HostTensor> },
    /// Launch the codec at captured `length` with one row (a slot the runtime keeps free for this,
    /// this start, these codes). Its samples are not needed: then [`EncodeJob::outputs`] with nothing.
    Codec { length: u32, start: u32, codes: Vec<i32> },
    /// Read these states at that same slot and hand their rows, in order, to [`EncodeJob::outputs`].
    ReadStates { states: Vec<StateId> },
    /// Nothing: the features are ready.
    Done(VoiceFeatures),
}

/// One clip's encoding, driven by the runtime: `next`, do it, `outputs`, until `Done`.
pub trait EncodeJob: Send {
    fn next(&mut self) -> EncodeWork;

    /// # Errors
    /// Outputs that are not those of the work asked for, or features that are not finite.
    fn outputs(&mut self, outputs: Vec<HostTensor>) -> Result<(), EngineError>;
}
