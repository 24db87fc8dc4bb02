//! The measure: an open-loop benchmark with a listener's ears, and a simulator that predicts it.
//!
//! The pure core is given its ticks: [`workload`] and [`arrivals`] say who asks for what and when,
//! [`ear`] and [`hearing`] what a listener makes of the sound that comes, [`report`] what it adds up
//! to, [`rates`] what to offer next. [`bench`] is the shell that sends real requests over real sockets.
//! Definitions are those of the published comparisons, so that figures compare: first audio is the
//! first sample above -50 dBFS, a stall is 10 ms of pauses, capacity is the rate at which 90% or 99%
//! of requests get first audio within 200 ms and no stall. [`sim`] runs the engine's own scheduler and the
//! gateway's playback clock on virtual time, with the same arrivals, listeners and arithmetic.

pub mod arrivals;
pub mod bench;
pub mod clock;
pub mod ear;
pub mod hearing;
pub mod mood;
pub mod open_loop;
pub mod outcome;
pub mod plot;
pub mod random;
pub mod rates;
pub mod report;
pub mod sim;
pub mod table;
pub mod target;
pub mod workload;

mod adapters;
