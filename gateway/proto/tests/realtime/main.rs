//! OpenAI Realtime over a session: order of events, echoes, turns, and mistakes that must end nobody's loop.

#[path = "../rig/mod.rs"]
mod rig;

mod client;
mod conversation;
mod held_out;
mod quotas;
mod truncation;
mod turns;
