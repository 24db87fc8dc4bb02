//! Prompts and a decode step in one launch: the backbone's weights are read once for both, and running contexts do
//! not stand still while others begin.

use contract::{ContextId, Partition, Span, Stage};

use crate::Sched;

impl Sched {
    /// Whether the step of so many running contexts may ride along with so many prompts.
    pub(crate) fn rides(&self, running: u32, prompts: u32) -> bool {
        let rows = running.saturating_add(prompts).saturating_mul(self.profile.rows_per_context);
        let captured = self.profile.decode_buckets.last().copied().unwrap_or(0);
        running > 0 && rows <= captured.min(self.config.ride_rows_max)
    }

    /// Which of a step's contexts ride along with a prompt of so many positions: all who want a step or none, so that
    /// nobody falls behind. None where pages are scarce, `pages` of them being the prompts': a step may have to end
    /// somebody for want of one.
    pub(crate) fn riders<'a>(&self, step: &'a [ContextId], tokens: u32, pages: u32) -> &'a [ContextId] {
        let running = step.len() as u32;
        let all = self.index.stepping.len() == step.len();
        let room = self.pages.available() >= pages.saturating_add(running);
        let fits = all && room && self.takes_riders(running, 1, tokens);
        if fits { step } else { &[] }
    }

    /// Rows of the executable for such a launch.
    pub(crate) fn ride_bucket(&self, running: u32, prompts: u32) -> u32 {
        self.profile.decode_bucket(running.saturating_add(prompts))
    }

    /// Whether the step of so many running contexts may ride along with prompts of so many positions together.
    pub(crate) fn takes_riders(&self, running: u32, prompts: u32, tokens: u32) -> bool {
        tokens <= self.config.ride_tokens_max && self.rides(running, prompts)
    }

    /// Predicted time of a launch of so many prompts, of `tokens` positions together, beside the step of `running`
    /// contexts if that may ride along.
    pub(crate) fn pack_cost(&self, running: u32, prompts: u32, tokens: u32) -> Span {
        if self.takes_riders(running, prompts, tokens) {
            let bucket = self.ride_bucket(running, prompts);
            self.profile.cost(Stage::Prefill, Partition::Lm, bucket, tokens.max(1))
        } else {
            self.prefill_cost(prompts, tokens)
        }
    }

    /// What of it running contexts lose: all but their step, where that rides along.
    pub(crate) fn pack_delay(&self, running: u32, prompts: u32, tokens: u32) -> Span {
        let cost = self.pack_cost(running, prompts, tokens);
        if self.takes_riders(running, prompts, tokens) {
            (cost - self.round_time(running, self.pace.positions)).max(Span::ZERO)
        } else {
            cost
        }
    }
}
