//! A program recorded as graphs, one for each number of rows it may be launched with.

use crate::driver::{Graph, Pinned};
use crate::exchange::Exchange;
use crate::lower::Lowered;

/// One recording of one form.
pub(crate) struct Variant {
    pub(crate) lowered: Lowered,
    /// `None` until recorded, and again once the arena has moved.
    pub(crate) graph: Option<Graph>,
}

/// A program, its graphs, and the memory its launches pass inputs and outputs through.
pub(crate) struct Executable {
    pub(crate) exchange: Exchange,
    /// One a form.
    pub(crate) variants: Vec<Variant>,
    /// Device address of the input block.
    pub(crate) inputs_at: u64,
    /// Host memory of launches that are not in flight: inputs, outputs.
    pub(crate) idle: Vec<(Pinned, Pinned)>,
}
