//! The scheduler on virtual time: each rule as a sentence, and random schedules under a reference
//! model that judges every event.

mod admission_rules;
mod codec_rules;
mod hostile;
mod judge;
mod lanes;
mod life_rules;
mod lm_rules;
mod model;
mod schedule;
mod schedules;
mod text_rules;
mod world;
