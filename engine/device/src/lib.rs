//! The face of a processor: model programs are recorded as data, a [`Backend`] turns a recording into
//! executables and launches them on lanes (DESIGN.md section 4).
//!
//! A [`Program`] is a list of coarse operations over matrices whose row count is the live batch. It has
//! no read-back and no branch on data: every run-time value (slots, positions, page ids, text ids,
//! valid lengths, seeds) is a launch input or lies in per-slot state. A CPU replays the list with the
//! live row count; a GPU captures it as a graph for a bucket.

mod backend;
mod buckets;
mod catalog;
mod checkpoint;
mod error;
mod file;
pub mod layout;
mod pieces;
pub mod program;
pub mod sampling;

pub use backend::{
    Backend, Completed, Dtype, ExecutableId, HostTensor, Launch, PagedId, PagedSpec, StateId, StateSpec,
    WeightForm, WeightId,
};
pub use buckets::{PROMPTS_MAX, row_bucket, row_buckets};
pub use catalog::{Catalog, WeightInfo};
pub use checkpoint::{Checkpoint, TensorInfo};
pub use error::DeviceError;
pub use file::{open_regular, read_regular};
pub use pieces::Piece;
pub use program::{Op, Program, ValueId};
