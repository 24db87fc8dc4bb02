//! What the runtime hands a model and gets back: prompts, rows of each stage, voices. Plain values;
//! no family's name appears in a type the runtime sees (DESIGN.md section 4).

use std::sync::Arc;

use contract::{Clip, CloneMode, Layout};
use device::{HostTensor, StateId};

/// Device memory the runtime gives a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Contexts that may hold state at once. States get one row more, the scratch slot.
    pub slots: u32,
    /// Key/value pages in all; page 0 is scratch and never given out.
    pub pages: u32,
    /// Positions a page holds.
    pub page_len: u32,
    /// Positions one context may take; clipped to the model's own bound.
    pub positions_max: u32,
}

/// What the scheduler and the runtime must know of a model's stages. Data, never a name.
#[derive(Clone, Debug, PartialEq)]
pub struct StageFacts {
    /// Captured chunk lengths in frames, ascending.
    pub codec_lengths: Vec<u32>,
    /// Frames the codec must see after a frame before it can sound.
    pub look_ahead: u32,
    pub sample_rate: u32,
    pub samples_per_frame: u32,
    /// Codes in one frame.
    pub code_groups: u32,
    /// Prompts one prefill launch may hold.
    pub prompts_max: u32,
    /// Rows one context fills in an lm batch (2 for classifier-free guidance).
    pub rows_per_context: u32,
    /// Whether the codec's state grows with the stream; such a context never yields its turn.
    pub state_grows: bool,
    /// Positions of the model's own bound.
    pub positions_max: u32,
    /// Most frames one segment may take whatever its text.
    pub frames_max: u32,
}

/// What a model will take of the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryNeed {
    /// Weights as uploaded (`f32`).
    pub weights_bytes: u64,
    /// Codec and sampler state of one slot.
    pub slot_bytes: u64,
    /// Key/value bytes of one position.
    pub position_bytes: u64,
}

/// Sampling of one row, resolved against the checkpoint's defaults and checked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowSampling {
    /// Temperature (0 = greedy), top-k (0 = no limit), top-p, repetition penalty of the first head.
    pub head: [f32; 4],
    /// The same for the heads below it.
    pub sub: [f32; 4],
}

/// A request as the model understood it. Made on the caller's thread, kept by the runtime for the
/// context's life, the same for each of its segments.
#[derive(Clone, Debug)]
pub struct SpeechPlan {
    pub layout: Layout,
    /// Reference audio to encode before the first prefill.
    pub clip: Option<PlannedClip>,
    pub sampling: RowSampling,
    /// The request's seed; the runtime draws one for `None`.
    pub seed: Option<u64>,
    /// Codec id of the language position, if one was asked for.
    pub(crate) language: Option<u32>,
    /// Codec id of a trained speaker.
    pub(crate) speaker: Option<u32>,
    /// Ids of the instruction string.
    pub(crate) instructions: Arc<[u32]>,
}

/// Which features of which clip.
#[derive(Clone, Debug)]
pub struct PlannedClip {
    pub clip: Arc<Clip>,
    pub mode: CloneMode,
}

/// What encoding a clip gives; cached by (`clip.hash`, `mode`).
#[derive(Clone, Debug, PartialEq)]
pub struct VoiceFeatures {
    pub(crate) speaker: Option<Arc<[f32]>>,
    pub(crate) reference: Option<Reference>,
}

/// A reference in the prompt and in the codec.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Reference {
    /// `[frames, groups]`.
    pub(crate) codes: Arc<[i32]>,
    pub(crate) frames: u32,
    pub(crate) text_ids: Arc<[u32]>,
    pub(crate) image: Arc<[(StateId, HostTensor)]>,
}

impl VoiceFeatures {
    /// Codec state to write into a slot at admission (`Backend::write_state`), in any order.
    #[must_use]
    pub fn codec_image(&self) -> &[(StateId, HostTensor)] {
        self.reference.as_ref().map_or(&[], |reference| &reference.image)
    }

    /// Frames the codec state already holds: [`CodecRow::start`] of a context's first chunk.
    #[must_use]
    pub fn codec_start(&self) -> u32 {
        self.reference.as_ref().map_or(0, |reference| reference.frames)
    }

    /// Speaker vector, if the mode made one.
    #[must_use]
    pub fn speaker(&self) -> Option<&[f32]> {
        self.speaker.as_deref()
    }

    /// Reference codes `[frames, groups]`, if the mode made them.
    #[must_use]
    pub fn reference_codes(&self) -> Option<&[i32]> {
        self.reference.as_ref().map(|reference| &reference.codes[..])
    }

    /// Host memory, for the cache's budget.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let speaker = self.speaker.as_ref().map_or(0, |vector| size_of_val(&vector[..]));
        let reference = self.reference.as_ref().map_or(0, |reference| {
            let image: usize = reference.image.iter().map(|(_, row)| tensor_bytes(row)).sum();
            image + size_of_val(&reference.codes[..]) + size_of_val(&reference.text_ids[..])
        });
        speaker + reference
    }
}

fn tensor_bytes(tensor: &HostTensor) -> usize {
    match tensor {
        HostTensor::F32(values) => size_of_val(&values[..]),
        HostTensor::I32(values) => size_of_val(&values[..]),
    }
}

/// One segment's prompt, made for one context.
#[derive(Clone, Debug, PartialEq)]
pub struct Prompt {
    /// One per position.
    pub(crate) text_ids: Vec<i32>,
    /// `[positions, groups]`; -1 adds nothing.
    pub(crate) codes: Vec<i32>,
    /// Position that carries the speaker vector.
    pub(crate) speaker_at: Option<usize>,
    pub(crate) speaker: Option<Arc<[f32]>>,
    /// Leading positions that are the same for every text of this plan and voice: pages that hold them
    /// may be shared ([`PrefillRow::from`]).
    pub shared_positions: usize,
    /// Ids to feed, one a step, before the segment's own: a reference's transcript may be longer than
    /// its sound has frames.
    pub text_ids_before: Vec<u32>,
    /// Text ids of the segment that stand in the prompt.
    pub text_ids_used: usize,
    /// Whether the end-of-text id stands in the prompt too.
    pub text_end_used: bool,
}

impl Prompt {
    /// Positions: the first decode step's position.
    #[must_use]
    pub fn positions(&self) -> usize {
        self.text_ids.len()
    }
}

/// One prompt in a prefill launch.
#[derive(Clone, Copy, Debug)]
pub struct PrefillRow<'a> {
    pub slot: u32,
    pub prompt: &'a Prompt,
    /// Pages of the context in order, covering the prompt.
    pub pages: &'a [u32],
    /// Positions before it already stand in the pages (a shared prefix); 0 computes the whole prompt.
    pub from: usize,
    pub sampling: RowSampling,
    pub seed: u64,
    /// Whether frame 0 may be end-of-speech.
    pub allow_end: bool,
}

/// One context in a decode launch.
#[derive(Clone, Copy, Debug)]
pub struct DecodeRow<'a> {
    pub slot: u32,
    /// Position written by this step: prompt positions for frame 1, one more for each frame.
    pub position: u32,
    /// Index of the frame this step makes; prefill made frame 0.
    pub step: u32,
    pub text: NextText,
    /// Pages of the context in order, covering `position`.
    pub pages: &'a [u32],
    pub sampling: RowSampling,
    pub seed: u64,
    /// Whether end-of-speech may be drawn. The model masks it on its own during its least frames.
    pub allow_end: bool,
}

/// Text side of one decode step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextText {
    /// The next id of the segment's text.
    Id(u32),
    /// The segment's text is over; given once, unless it stood in the prompt.
    End,
    /// After the end.
    Padding,
}

/// One chunk in a codec launch.
#[derive(Clone, Copy, Debug)]
pub struct CodecRow<'a> {
    pub slot: u32,
    /// Frames this slot's stream has decoded before: 0 starts fresh.
    pub start: u32,
    /// `[frames, groups]`, at most the captured length.
    pub codes: &'a [i32],
}

/// Inputs of one launch.
#[derive(Clone, Debug, PartialEq)]
pub struct StageInputs {
    pub rows: usize,
    /// Packed tokens, 0 for stages without.
    pub tokens: usize,
    pub inputs: Vec<HostTensor>,
}

/// What one row's step made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameOutcome<'a> {
    /// One frame; meaningless when `end`.
    pub codes: &'a [i32],
    /// End of speech: there is no frame.
    pub end: bool,
}
