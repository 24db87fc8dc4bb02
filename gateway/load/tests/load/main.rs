//! The measure's pure parts on given ticks, its adapters against small servers, and the simulator.

mod adapters;
mod arrivals;
mod ear;
mod hostile;
mod rates;
mod report;
mod simulate;
mod transcripts;
mod workloads;
