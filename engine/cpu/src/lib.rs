//! [`device::Backend`] on CPU cores (DESIGN.md section 4).
//!
//! A recorded program is replayed with the live row count: no padding rows. The lm and background lanes own
//! disjoint cores where there are two or more; the urgent lane runs on all of them while the others pause
//! between ops. All arithmetic is `f32` with one fixed order of operations for each element, so a result
//! depends neither on the batch around a row, nor on chunk borders, nor on the number of threads.
//!
//! The matrix kernel is our own rather than a library's: with packed weights it needs neither a gathered
//! copy for convolutions nor a thread pool, and is faster at the row counts of a decode step.
//!
//! `unsafe` is confined to this crate: vector instructions, thread affinity, and the memory that members of
//! a team and lanes share by disjoint parts.

mod backend;
mod executable;
mod kernel;
mod lane;
mod memory;
mod pack;
mod plan;
mod room;
mod run;
mod team;
mod thread;
mod topology;

pub use backend::{CpuBackend, CpuOptions};
pub use lane::{Clock, Notify};
pub use thread::allowed_cores;
