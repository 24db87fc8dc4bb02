//! Stages, lanes, partitions, and the key under which an executable is kept.

use crate::ModelId;

/// A piece of a model with fixed inputs and outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// Neural codec: frames of codes to samples.
    Codec,
    /// One step of the backbone for a batch of running contexts: one frame each.
    Decode,
    /// Reference audio to the features a voice needs.
    Encode,
    /// A prompt through the backbone, ending in the same head as a decode step: frame 0.
    Prefill,
}

/// An in-order queue of executables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// Codec chunks with slack.
    Background,
    /// Encode, prefill and decode.
    Lm,
    /// Codec chunks that are first or nearly due: the whole processor, high priority.
    Urgent,
}

/// A fixed share of the processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Partition {
    Background,
    Lm,
    Whole,
}

/// Names one executable: a stage recorded for one bucket on one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShapeKey {
    pub model: ModelId,
    pub stage: Stage,
    /// Rows the executable can hold (contexts; for CFG models two rows a context).
    pub bucket: u32,
    /// Captured length of a row: prompt tokens in all for `Prefill`, frames for `Codec`, samples for
    /// `Encode`, 1 for `Decode`.
    pub length: u32,
    pub partition: Partition,
}

impl Lane {
    pub const ALL: [Self; 3] = [Self::Background, Self::Lm, Self::Urgent];

    /// The lane's name on the wire, in metrics and in traces.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Background => "background",
            Self::Lm => "lm",
            Self::Urgent => "urgent",
        }
    }
}

impl Stage {
    /// The stage's name in metrics and traces.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Codec => "codec",
            Self::Decode => "decode",
            Self::Encode => "encode",
            Self::Prefill => "prefill",
        }
    }
}
