//! What the models compute, against what the reference package computed (fixtures of tests/golden, made
//! by tests/parity), on the CPU backend. A fixture that is missing fails its test.

mod chunks;
mod encoders;
mod engine;
mod fixtures;
mod forced;
mod invariance;
mod prompts;
mod speech;
mod taps;
mod tiny;
