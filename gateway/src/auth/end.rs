//! When a session's token ends, and who may take the session up.

use contract::Tick;

use super::{Principal, end_tick};
use crate::clock::Clock;

/// What a session keeps of the token it was opened with.
#[derive(Clone, Debug)]
pub(crate) struct TokenEnd {
    owner: String,
    pub(crate) at: Tick,
}

impl TokenEnd {
    pub(crate) fn of(principal: &Principal, leeway_s: u64, clock: Clock) -> Self {
        let at = principal.expires.map_or(Tick::NEVER, |exp| end_tick(clock, exp, leeway_s));
        Self { owner: principal.owner(), at }
    }

    /// A resume token as the registry knows it: only the same subject of the same tenant finds the session.
    pub(crate) fn resume_key(&self, token: &str) -> String {
        format!("{token}\n{}", self.owner)
    }
}
