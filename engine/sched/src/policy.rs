//! Deadline-aware or prefill-first, and the automatic change between them.
//!
//! Past capacity every running context is short of slack, so a deadline-aware lane would hold every
//! newcomer back for the full cap and serve nobody well. Then prefill goes first; deadline-aware
//! comes back once at least half of the running contexts have slack again. Either condition must
//! hold for `policy_hold`.

use contract::Tick;

use crate::{PrefillPolicy, Sched};

#[derive(Clone, Debug, Default)]
pub(crate) struct Policy {
    prefill_first: bool,
    /// Since when the other policy's condition has held.
    since: Option<Tick>,
}

impl Sched {
    pub(crate) fn prefill_first(&self) -> bool {
        match self.config.prefill_policy {
            PrefillPolicy::Automatic => self.policy.prefill_first,
            PrefillPolicy::DeadlineAware => false,
            PrefillPolicy::PrefillFirst => true,
        }
    }

    /// Whether it has changed.
    pub(crate) fn follow_policy(&mut self) -> bool {
        if self.config.prefill_policy != PrefillPolicy::Automatic {
            return false;
        }
        let view = self.view(self.now);
        let running = self.index.stepping.len();
        let margin = self.config.urgent_margin;
        let change = if self.policy.prefill_first {
            // No more than half are short.
            self.index.short_of(&view, margin, running / 2 + 1) * 2 <= running
        } else {
            running > 0 && !self.index.any_with_slack(&view, margin)
        };
        if !change {
            self.policy.since = None;
            return false;
        }
        let since = *self.policy.since.get_or_insert(self.now);
        let changes = self.now.since(since) >= self.config.policy_hold;
        if changes {
            self.policy.prefill_first = !self.policy.prefill_first;
            self.policy.since = None;
            self.counters.policy_switches += 1;
        }
        changes
    }
}
