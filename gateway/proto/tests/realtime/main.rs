//! OpenAI Realtime over a session: order of events, echoes, turns, and mistakes that must end nobody's loop.

#[path = "../rig/mod.rs"]
mod rig;

mod client;
mod conversation;
mod quotas;
mod turns;
