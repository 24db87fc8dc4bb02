//! The ladder: with which captured length a context's chunks start.
//!
//! Short first chunks sound sooner but cost more urgent-lane time for the same audio. The rung is
//! the lowest whose cost, at the rate at which contexts are being admitted, stays within a budget of
//! that lane's time.

use std::collections::VecDeque;

use contract::{Lane, Span, Tick};

use crate::Sched;

/// Admissions counted at most; more than this within one window is far beyond any budget.
const ADMISSIONS_MAX: usize = 1_024;

#[derive(Clone, Debug, Default)]
pub(crate) struct Ladder {
    rung: usize,
    admissions: VecDeque<Tick>,
}

impl Ladder {
    /// Index into the captured lengths of a new context's first chunk.
    pub(crate) fn rung(&self) -> usize {
        self.rung
    }
}

impl Sched {
    /// Counts admissions that are being made together and chooses their rung.
    pub(crate) fn climb_ladder(&mut self, newcomers: usize) -> usize {
        if newcomers == 0 {
            return self.ladder.rung;
        }
        let start = self.now - self.config.ladder_window;
        let admissions = &mut self.ladder.admissions;
        admissions.extend(std::iter::repeat_n(self.now, newcomers));
        while admissions.front().is_some_and(|&at| at < start || admissions.len() > ADMISSIONS_MAX) {
            admissions.pop_front();
        }
        let count = admissions.len() as i64;
        let rung = self.choose_rung(count);
        if rung != self.ladder.rung {
            self.counters.ladder_changes += 1;
            self.ladder.rung = rung;
        }
        rung
    }

    /// Urgent-lane time that one context's first chunks take when they start at `rung`.
    pub(crate) fn ladder_cost(&self, rung: usize) -> Span {
        let view = self.view(self.now);
        let mut cost = Span::ZERO;
        let mut handed = 0_u64;
        let mut in_hand = Span::ZERO;
        for nth in 0..3 {
            let length = view.ladder_length(rung, nth);
            // When this chunk is ready, the listener has eaten what its frames took to generate.
            in_hand = in_hand - self.pace.round.times(i64::from(length));
            let short = rung + 1 < self.profile.codec_lengths.len();
            let margin = self.config.urgent_margin;
            let margin = if short { margin.min(view.frames(handed).half()) } else { margin };
            if nth == 0 || in_hand < margin {
                cost += view.codec_cost(Lane::Urgent, 1, length);
            }
            handed += u64::from(length);
            in_hand = if nth == 0 { view.frames(handed) } else { in_hand + view.frames(u64::from(length)) };
        }
        cost
    }

    /// The lowest rung within budget. Coming down again needs a quarter of the budget to spare, so
    /// that a load at the border does not make it swing.
    fn choose_rung(&self, admissions: i64) -> usize {
        let window = self.config.ladder_window.as_micros();
        let budget = window.saturating_mul(i64::from(self.config.ladder_budget_permille)) / 1_000;
        let last = self.profile.codec_lengths.len() - 1;
        let fits = |&rung: &usize| {
            let spent = self.ladder_cost(rung).as_micros().saturating_mul(admissions);
            let budget = if rung < self.ladder.rung { budget / 4 * 3 } else { budget };
            spent <= budget
        };
        (0..=last).find(fits).unwrap_or(last)
    }
}
