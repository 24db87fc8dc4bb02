//! What an engine says about itself, so that the gateway can validate and describe without knowing a model.

/// Everything loaded in one engine.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineInfo {
    pub models: Vec<ModelInfo>,
    pub limits: Limits,
    /// For people: device, partitions and backend, for instance `cpu: lm on core 0, background on core 1`.
    pub device: String,
}

/// One loaded model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelInfo {
    /// Name on the wire, for instance `tts-tiny`.
    pub name: String,
    pub family: String,
    pub licence: String,
    /// Hertz of the samples in [`crate::Chunk`].
    pub sample_rate: u32,
    pub samples_per_frame: u32,
    pub layouts: Vec<Layout>,
    /// Lower-case language names a request may give.
    pub languages: Vec<String>,
    pub voices: Vec<VoiceInfo>,
    /// Index into `voices` of the voice spoken when none is named; `None` when a request must name one.
    pub default_voice: Option<usize>,
    pub takes_instructions: bool,
    /// Whether a clip can be given as a voice.
    pub takes_reference: bool,
    pub sampling: SamplingDefaults,
    /// Longest text of one segment, in Unicode scalar values, that always fits the model's context
    /// together with the frames it may need.
    pub segment_characters_max: u32,
}

/// A voice the model itself brings.
#[derive(Clone, Debug, PartialEq)]
pub struct VoiceInfo {
    /// Stable id: content hash for a clip, the name for a built-in speaker.
    pub id: String,
    pub name: String,
    pub description: String,
    pub language: Option<String>,
    pub kind: VoiceKind,
    /// Layouts this voice can speak.
    pub layouts: Vec<Layout>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VoiceKind {
    /// A speaker trained into the checkpoint.
    Speaker,
    /// A reference clip shipped with the checkpoint.
    Clip,
}

/// How text reaches the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Layout {
    /// One text id per frame, as text arrives.
    Streamed,
    /// A segment's whole text stands in the prompt.
    Whole,
}

impl Layout {
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Streamed => "streamed",
            Self::Whole => "whole",
        }
    }
}

/// The checkpoint's own sampling settings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplingDefaults {
    pub temperature: f32,
    pub top_k: u32,
    pub top_p: f32,
    pub repetition_penalty: f32,
}

/// Bounds the gateway can tell a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Contexts that may run at once.
    pub contexts_max: u32,
    /// Contexts that may be open, with or without text, at once.
    pub open_max: u32,
    /// Samples an output queue must be able to hold per context: `lm_lead` plus one chunk.
    pub output_samples_max: u64,
}
