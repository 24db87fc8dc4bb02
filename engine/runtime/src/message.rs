//! What callers' threads post to the engine thread.

use std::sync::Arc;

use contract::{ContextId, OutputSink, Tick};
use models::{SpeechPlan, VoiceFeatures};

pub(crate) enum Message {
    Finish {
        context: ContextId,
    },
    Open(Box<Opening>),
    /// Ids of the context's segment `segment`, in order.
    Text {
        context: ContextId,
        segment: u32,
        ids: Vec<u32>,
        /// Unicode scalar values this call took in.
        characters: u64,
        /// The segment's text is over.
        over: bool,
    },
}

/// A checked request.
pub(crate) struct Opening {
    pub(crate) context: ContextId,
    pub(crate) plan: SpeechPlan,
    /// What an earlier process made of the plan's clip.
    pub(crate) features: Option<Arc<VoiceFeatures>>,
    pub(crate) sink: Arc<dyn OutputSink>,
    pub(crate) arrival: Tick,
    pub(crate) tenant: u32,
    pub(crate) exact_frames: Option<u32>,
    pub(crate) seed: u64,
}
