//! What a checkpoint holds and needs, for people and for planning.

use contract::ModelInfo;

use crate::MemoryNeed;

/// A checkpoint described without loading it.
#[derive(Clone, Debug, PartialEq)]
pub struct Inspection {
    pub info: ModelInfo,
    /// The checkpoint's variant, for instance `base`.
    pub variant: String,
    pub parts: Vec<Part>,
    pub memory: MemoryNeed,
    pub positions_max: u32,
}

/// Weights of one part of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    pub name: String,
    pub tensors: u64,
    pub parameters: u64,
}
