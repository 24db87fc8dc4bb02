//! What every step changes alike for all that take part in it, so that a row of a step costs only what it
//! changes by itself.
//!
//! Steps and frames still missing are kept relative to how many steps have been launched and have landed: a
//! context that takes part in every step then keeps its places in [`crate::index::Index`]. Whoever does not take
//! part is indexed anew, and so is a row that changes more than these two counts.

use contract::{ContextId, Lane};

use crate::context::{Context, Segment};
use crate::flight::FlightRow;
use crate::index::{Entry, Index, step_of};
use crate::slack::View;
use crate::{FrameOutcome, FrameResult, GuardConfig, Sched};

/// Decode steps so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Beat {
    pub(crate) launched: i64,
    pub(crate) landed: i64,
}

/// How far rows leave a context's entry as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Steady {
    /// The time to cut its chunk is kept relative to the steps that landed.
    pub(crate) cut: bool,
    /// Steps launched, and frames made, below which its entry stays; 0 where any step changes it.
    pub(crate) launched_below: u32,
    made_below: u32,
}

impl Steady {
    /// What goes with a context's entry.
    pub(crate) fn of(context: &Context, entry: &Entry, view: &View<'_>) -> Self {
        let (Some(segment), Some(end)) = (context.active(), entry.steps_until(view.beat)) else {
            return Self::default();
        };
        if context.page_stalled {
            return Self::default();
        }
        Self {
            cut: entry.is_cut_by_steps(),
            launched_below: launched_below(segment, end),
            made_below: view.made_until(context, entry.head()),
        }
    }
}

/// The step up to which `end` more leave the entry as it is, as far as their text is known.
fn launched_below(segment: &Segment, end: u32) -> u32 {
    let known = if segment.streamed && !segment.closed { segment.ids } else { u32::MAX };
    segment.launched.saturating_add(end).min(known)
}

impl Context {
    /// Takes in that a step has brought it to the next of its chunks; false, and nothing is changed, if it changed more.
    pub(crate) fn step_on(&mut self, index: &mut Index, view: &View<'_>) -> bool {
        if self.page_stalled || self.entry.steps_until(view.beat).is_none() || !view.wants_step(self) {
            return false;
        }
        let Some(segment) = self.active() else { return false };
        let step = step_of(self, segment, view);
        self.steady.launched_below = launched_below(segment, step.1.steps_until(view.beat));
        index.put_step(self.id, &mut self.entry, step);
        true
    }

    /// Takes in a row's frame if that leaves the context's entry as it is and ends nothing by its number. `None` if
    /// not, and nothing is changed then; else whether the guard has seen enough of such frames.
    pub(crate) fn land_steadily(
        &mut self,
        row: &FlightRow,
        frame: &FrameResult,
        guard: &GuardConfig,
    ) -> Option<bool> {
        let counts = frame.outcome == FrameOutcome::Made && self.is_current(Lane::Lm, row.version);
        let made_below = self.steady.made_below;
        let segment = self.active_mut().filter(|_| counts)?;
        if segment.index != row.segment || segment.made == 0 || segment.made + 1 >= made_below {
            return None;
        }
        segment.made += 1;
        segment.lm_in_flight = segment.lm_in_flight.saturating_sub(1);
        let repeats = segment.guard.frame_repeats(guard, frame.code_hash);
        self.fence(Lane::Lm, row.version);
        Some(repeats)
    }
}

impl Sched {
    /// A step of these contexts, in the order in which they were asked for, has been launched.
    pub(crate) fn beat_launched(&mut self, rows: &[ContextId]) {
        self.beat.launched += 1;
        if rows.len() < self.index.stepping.len() {
            let rows = sorted(rows.iter().copied());
            let left_out = self.index.stepping.iter().filter(|id| rows.binary_search(id).is_err());
            left_out.for_each(|id| self.contexts.touch(*id));
        }
    }

    /// A step has landed; `cut` of its rows, prompts beside it left aside, had the time to cut their chunks kept
    /// relative to steps.
    pub(crate) fn beat_landed(&mut self, rows: &[FlightRow], cut: usize) {
        self.beat.landed += 1;
        let others = self.index.cuts_by_steps().map(<[_]>::len).sum::<usize>().saturating_sub(cut);
        if others > 0 {
            // Prompts' rows are indexed anew as it is, and the others stand in order already, nearly always.
            let riders = rows.iter().filter(|row| row.first_frame > 0);
            let rows = sorted(riders.map(|row| row.context));
            let by_steps = self.index.cuts_by_steps().flatten().map(|(_, id)| *id);
            let others = by_steps.filter(|id| rows.binary_search(id).is_err()).take(others);
            others.for_each(|id| self.contexts.touch(id));
        }
    }
}

fn sorted(ids: impl Iterator<Item = ContextId>) -> Vec<ContextId> {
    let mut ids: Vec<ContextId> = ids.collect();
    ids.sort_unstable();
    ids
}
