//! What stands in which lane, and when the lm lane has room for one launch more.

use std::collections::BTreeMap;

use contract::{Lane, LaunchId, Span, Tick};
use sched::SchedConfig;

#[derive(Default)]
pub(crate) struct Lanes(BTreeMap<LaunchId, Aloft>);

struct Aloft {
    lane: Lane,
    /// Launched, or the launch before it landed.
    since: Tick,
    expected: Span,
}

impl Lanes {
    pub(crate) fn take_off(&mut self, launch: LaunchId, lane: Lane, now: Tick, expected: Span) {
        self.0.insert(launch, Aloft { lane, since: now, expected });
    }

    /// Whether it was there.
    pub(crate) fn land(&mut self, launch: LaunchId, at: Tick) -> bool {
        let Some(landed) = self.0.remove(&launch) else { return false };
        for behind in self.0.values_mut().filter(|behind| behind.lane == landed.lane) {
            behind.since = behind.since.max(at);
        }
        true
    }

    pub(crate) fn count(&self, lane: Lane) -> usize {
        self.0.values().filter(|aloft| aloft.lane == lane).count()
    }

    /// A second launch goes shortly before the first is predicted to end, and not sooner.
    pub(crate) fn lm_has_room(&self, config: &SchedConfig, now: Tick) -> bool {
        let mut lm = self.0.values().filter(|aloft| aloft.lane == Lane::Lm);
        match (lm.next(), self.count(Lane::Lm) < config.lm_depth as usize) {
            (None, _) => true,
            (Some(first), true) => first.since + first.expected - config.lm_ahead <= now,
            (Some(_), false) => false,
        }
    }
}
