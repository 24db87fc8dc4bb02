//! Model programs, written once against `device`, and the token logic beside them.
//!
//! The runtime loads a checkpoint with [`open`], learns what it is from [`Model::info`] and
//! [`Model::facts`], puts its weights on a processor with [`Model::place`] and from then on turns rows
//! into launch inputs and outputs into frames through [`PlacedModel`]. No code outside this crate
//! knows a model (DESIGN.md section 8).

pub mod blocks;
mod clips;
mod encode;
mod error;
mod features_file;
mod fingerprint;
mod guard;
mod inspect;
mod json;
mod licence;
mod program;
pub mod qwen3_tts;
mod source;
mod text_stream;
mod tokenizer;
mod weights;

use std::sync::Arc;

use contract::{Clip, EngineError, ModelInfo, OpenContext, Stage};
use device::{Backend, HostTensor, Program};

pub use encode::{EncodeJob, EncodeProgram, EncodeWork};
pub use error::ModelError;
pub use inspect::{Inspection, Part};
pub use program::{
    Capacity, CodecRow, DecodeRow, FrameOutcome, MemoryNeed, NextText, PlannedClip, PrefillRow, Prompt,
    RowSampling, SpeechPlan, StageFacts, StageInputs, VoiceFeatures,
};
pub use source::ModelSource;
pub use text_stream::TextStream;
pub use tokenizer::{ControlToken, PIECE_CHARS_MAX, Tokenizer, TokenizerError};

/// Loads a checkpoint's configuration, tokenizer and voices, finding its family from `config.json`.
/// Weights are read by [`Model::place`]. `name` is the model's name on the wire.
///
/// # Errors
/// [`ModelError`] naming the file, key or tensor at fault.
pub fn open(source: ModelSource, name: &str) -> Result<Box<dyn Model>, ModelError> {
    let config = json::Document::read(&source, "config.json")?;
    match config.root().text("model_type")? {
        qwen3_tts::MODEL_TYPE => Ok(Box::new(qwen3_tts::Qwen3Tts::open(source, &config, name)?)),
        other => {
            Err(ModelError::UnknownFamily { found: other.to_owned(), known: vec![qwen3_tts::MODEL_TYPE] })
        }
    }
}

/// Reads what a checkpoint holds and needs, without loading its weights.
///
/// # Errors
/// As [`open`]; also a truncated or foreign weight file.
pub fn inspect(source: ModelSource, name: &str) -> Result<Inspection, ModelError> {
    open(source, name)?.inspect()
}

/// A checkpoint that was opened and understood, not yet on a device.
pub trait Model: Send {
    fn info(&self) -> &ModelInfo;

    fn facts(&self) -> &StageFacts;

    /// Token logic, shared with the callers' threads.
    fn text(&self) -> Arc<dyn TextLogic>;

    /// What the checkpoint holds, from the headers of its weight files.
    ///
    /// # Errors
    /// A truncated or foreign weight file, naming the tensor.
    fn inspect(&self) -> Result<Inspection, ModelError>;

    /// Memory per weight set, slot and position.
    fn memory(&self) -> MemoryNeed;

    /// Uploads the weights and takes state and pages.
    ///
    /// # Errors
    /// [`ModelError`] naming the tensor that is missing or has the wrong shape, or the memory wanted.
    fn place(
        self: Box<Self>,
        backend: &mut dyn Backend,
        capacity: Capacity,
    ) -> Result<Box<dyn PlacedModel>, ModelError>;
}

/// What a model does with text and requests: no device, any thread.
pub trait TextLogic: Send + Sync {
    /// Checks a request and resolves names, languages and sampling.
    ///
    /// # Errors
    /// Unknown voice or language, a field out of range or unsupported, a clip without the transcript
    /// its mode needs.
    fn plan(&self, request: &OpenContext) -> Result<SpeechPlan, EngineError>;

    /// Starts a segment's text.
    fn segment(&self) -> Box<dyn SegmentText>;

    /// Most frames a segment of this text may take: the runaway guard.
    fn frames_max(&self, text_ids: &[u32]) -> u32;

    /// Frames a segment of this text will probably take: for admission.
    fn frames_predicted(&self, text_ids: &[u32]) -> u32;
}

/// One segment's text on its way to ids. How text is split over pushes never changes the ids.
pub trait SegmentText: Send {
    /// Appends text; gives the ids no later text can change.
    ///
    /// # Errors
    /// [`EngineError::ControlToken`]; nothing of `text` was taken.
    fn push(&mut self, text: &str) -> Result<Vec<u32>, EngineError>;

    /// Gives what is held back, as if the text ended here; later text starts afresh. Blanks at the end
    /// stay: they belong to the word that follows.
    fn release(&mut self) -> Vec<u32>;

    /// Gives all that is left; the segment's text is over.
    fn end(&mut self) -> Vec<u32>;

    /// Bytes held back because later text could change how they are tokenized.
    fn held_bytes(&self) -> usize;
}

/// A model on a device. Owned by the engine thread; makes programs, inputs and outcomes, launches
/// nothing.
pub trait PlacedModel: Send {
    /// The program of a stage at a captured length (frames for `Codec`, where any other length works too;
    /// ignored by `Prefill` and `Decode`). Encode programs come from [`PlacedModel::encode_program`].
    ///
    /// # Errors
    /// No frames, or stage `Encode`.
    fn program(&self, stage: Stage, length: u32) -> Result<Program, ModelError>;

    /// Text ids that must be known, or the text over, before [`PlacedModel::prompt`]: the prompt then
    /// does not depend on how many more are known. `None` means the whole segment.
    fn text_ids_needed(&self, plan: &SpeechPlan, voice: Option<&VoiceFeatures>) -> Option<usize>;

    /// A segment's prompt. `text_ids` are those known; `over` says that no more will come. The whole
    /// layout takes all of them; the streamed layout takes exactly what
    /// [`PlacedModel::text_ids_needed`] names.
    ///
    /// # Errors
    /// No text, features that the plan's clip needs and `voice` lacks, or more positions than fit.
    fn prompt(
        &self,
        plan: &SpeechPlan,
        voice: Option<&VoiceFeatures>,
        text_ids: &[u32],
        over: bool,
    ) -> Result<Prompt, EngineError>;

    /// At most [`StageFacts::prompts_max`] prompts, then the steps of running contexts that ride along.
    fn prefill_inputs(&self, prompts: &[PrefillRow<'_>], riders: &[DecodeRow<'_>]) -> StageInputs;

    fn decode_inputs(&self, rows: &[DecodeRow<'_>]) -> StageInputs;

    /// `length` is the captured length of the executable, at least each row's frames.
    fn codec_inputs(&self, rows: &[CodecRow<'_>], length: u32) -> StageInputs;

    /// Frames made by a prefill or decode launch, one per row in the order given; prompts before riders.
    ///
    /// # Errors
    /// Outputs that are not those of such a launch.
    fn frames<'a>(&self, outputs: &'a [HostTensor]) -> Result<Vec<FrameOutcome<'a>>, EngineError>;

    /// How many of the first values of a codec row's output are the samples, in [-1, 1], of so many valid frames.
    fn samples(&self, frames: u32) -> usize;

    /// Starts encoding a clip for a plan.
    ///
    /// # Errors
    /// [`EngineError::BadReference`]: too short, too long, or at another rate than the model's.
    fn encode(&self, clip: &PlannedClip) -> Result<Box<dyn EncodeJob>, EngineError>;

    /// The program of one part of encoding, at one clip length.
    ///
    /// # Errors
    /// A length that the part cannot take.
    fn encode_program(&self, program: EncodeProgram) -> Result<Program, ModelError>;

    /// Positions one context may take here.
    fn positions_max(&self) -> u32;
}

/// Seconds of a clip.
#[must_use]
pub fn clip_seconds(clip: &Clip) -> f64 {
    clip.samples.len() as f64 / f64::from(clip.sample_rate.max(1))
}
