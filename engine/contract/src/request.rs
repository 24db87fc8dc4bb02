//! What the gateway asks of an engine for one context.

use std::sync::Arc;

use crate::{Layout, Span, Tick};

/// Opens a context. Text follows through the handle.
#[derive(Clone, Debug)]
pub struct OpenContext {
    /// Name of a loaded model, as in [`crate::ModelInfo::name`].
    pub model: String,
    pub voice: VoiceChoice,
    /// A name from [`crate::ModelInfo::languages`]; `None` lets the model decide.
    pub language: Option<String>,
    /// Style instruction, for models that take one.
    pub instructions: Option<String>,
    pub layout: Layout,
    pub sampling: Sampling,
    /// When the request arrived at the gateway: the first-audio target counts from here.
    pub arrival: Tick,
    /// Fairness group. Contexts of one tenant share that tenant's part under overload.
    pub tenant: u32,
    /// Exact number of frames to make, end-of-speech masked until then. Only engines started for
    /// benchmarking accept it.
    pub exact_frames: Option<u32>,
}

/// Sampling fields a request may set; `None` takes the checkpoint's default.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sampling {
    /// 0 means greedy.
    pub temperature: Option<f32>,
    /// 0 means no limit.
    pub top_k: Option<u32>,
    /// In (0, 1].
    pub top_p: Option<f32>,
    /// At least 1 means less repetition; 1 means off.
    pub repetition_penalty: Option<f32>,
    /// The same seed, text, voice and parameters give the same codes. `None` draws one.
    pub seed: Option<u64>,
    /// Temperature of the heads below the first codebook, where a model has them.
    pub sub_temperature: Option<f32>,
    pub sub_top_k: Option<u32>,
    pub sub_top_p: Option<f32>,
}

/// Who speaks.
#[derive(Clone, Debug)]
pub enum VoiceChoice {
    /// The model's default voice.
    Default,
    /// A name or id from [`crate::ModelInfo::voices`].
    Named(String),
    /// A reference clip given with the request.
    Reference { clip: Arc<Clip>, mode: CloneMode },
}

/// Reference audio, already decoded and bounded by the gateway.
#[derive(Clone, Debug, PartialEq)]
pub struct Clip {
    /// Mono samples at `sample_rate`.
    pub samples: Vec<f32>,
    pub sample_rate: u32,
    /// Exact words spoken in the clip; needed for in-context cloning.
    pub transcript: Option<String>,
    /// Content hash of samples, rate and transcript: the key under which features are cached.
    pub hash: [u8; 16],
}

/// How a reference clip conditions the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CloneMode {
    /// The clip's codes and transcript stand in the prompt.
    InContext,
    /// Only a speaker vector.
    Speaker,
}

/// What the handle says about a piece of text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TextAccepted {
    /// Text ids released to the model by this call.
    pub ids: u32,
    /// Bytes held back because a later delta could change how they are tokenized.
    pub held_bytes: u32,
}

/// Where the listener is, as far as the gateway knows. Moves the deadlines of all later chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Playback {
    /// Nothing has been sent: the first chunk is due at arrival + first-audio target.
    NotStarted,
    /// The listener has paused after `played`: nothing is due.
    Paused { played: Span },
    /// A sample at offset `t` must leave the engine by `zero + t`. One-way delay and guard are
    /// already taken off.
    Playing { zero: Tick },
}
