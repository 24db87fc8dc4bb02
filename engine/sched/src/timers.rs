//! When the scheduler wants to be woken, and what falls due by the passing of time alone.

use contract::{FinishReason, Playback, Tick};

use crate::context::Context;
use crate::slack::{View, just_below};
use crate::{RefusalCause, Sched};

/// What falls due first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WakeReason {
    /// Nothing: the tick is [`Tick::NEVER`].
    Nothing,
    /// One more lm step would break a waiting chunk's deadline.
    BackgroundDeadline,
    /// A waiting chunk turns urgent.
    ChunkTurnsUrgent,
    /// A chunk is to be cut short.
    ChunkCut,
    /// A further segment's prefill falls due.
    ContinuationDue,
    /// A prefill has been deferred as long as allowed.
    DeferralCap,
    /// A context has waited for text as long as allowed.
    IdleLimit,
    /// A context's lead has run down to where it takes part again.
    LeadRunsDown,
    /// A context has waited for a slot or pages as long as allowed.
    WaitLimit,
    /// The lm lane may be given the launch after the one it has.
    StepAhead,
}

impl WakeReason {
    pub const ALL: [Self; 10] = [
        Self::Nothing,
        Self::BackgroundDeadline,
        Self::ChunkTurnsUrgent,
        Self::ChunkCut,
        Self::ContinuationDue,
        Self::DeferralCap,
        Self::IdleLimit,
        Self::LeadRunsDown,
        Self::WaitLimit,
        Self::StepAhead,
    ];

    /// For metrics and traces.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::BackgroundDeadline => "background_deadline",
            Self::ChunkTurnsUrgent => "chunk_turns_urgent",
            Self::ChunkCut => "chunk_cut",
            Self::ContinuationDue => "continuation_due",
            Self::DeferralCap => "deferral_cap",
            Self::IdleLimit => "idle_limit",
            Self::LeadRunsDown => "lead_runs_down",
            Self::WaitLimit => "wait_limit",
            Self::StepAhead => "step_ahead",
        }
    }
}

/// The earliest of what is still to come.
#[derive(Clone, Copy, Debug)]
struct Earliest {
    after: Tick,
    at: Tick,
    reason: WakeReason,
}

impl Sched {
    /// When to call [`Sched::handle_timeout`] if nothing else happens before, and why. Always later
    /// than the last tick handed in; [`Tick::NEVER`] if nothing is due.
    #[must_use]
    pub fn poll_timeout(&self) -> (Tick, WakeReason) {
        let view = self.view(self.now);
        let mut earliest = Earliest { after: self.now, at: Tick::NEVER, reason: WakeReason::Nothing };
        for (agenda, reason) in [
            (&self.index.idles, WakeReason::IdleLimit),
            (&self.index.waits, WakeReason::WaitLimit),
            (&self.index.leads, WakeReason::LeadRunsDown),
            (&self.index.turns, WakeReason::ChunkTurnsUrgent),
        ] {
            if let Some((at, _)) = agenda.front() {
                earliest.offer(*at, reason);
            }
        }
        if let Some(at) = self.index.next_cut(&view) {
            earliest.offer(at, WakeReason::ChunkCut);
        }
        for context in self.index.waiting.iter().filter_map(|id| self.contexts.get(id)) {
            if let Some(at) = self.continuation_due(&view, context) {
                earliest.offer(at, WakeReason::ContinuationDue);
            }
        }
        if let Some(since) = self.deferring_since {
            earliest.offer(since + self.config.deferral_cap, WakeReason::DeferralCap);
        }
        earliest.offer(self.next_background_deadline(), WakeReason::BackgroundDeadline);
        if let Some(at) = self.step_ahead_at() {
            earliest.offer(at, WakeReason::StepAhead);
        }
        (earliest.at, earliest.reason)
    }

    /// Ends what has waited too long.
    pub(crate) fn expire(&mut self) {
        let now = self.now;
        for id in self.index.expired(now) {
            let view = self.view(now);
            let waited = self.contexts.get(&id).and_then(|context| view.wait_ends_at(context));
            if waited.is_some_and(|at| at <= now) {
                let retry_after = self.retry_hint();
                self.refuse(id, RefusalCause::Waited, retry_after);
            } else {
                self.finish(id, FinishReason::Idle, None);
            }
        }
    }

    /// When a further segment's prefill falls due as its listener plays.
    fn continuation_due(&self, view: &View<'_>, context: &Context) -> Option<Tick> {
        let Playback::Playing { zero } = context.playback else { return None };
        let segment = context.waiting().filter(|_| context.admitted)?;
        let lead = self.continuation_lead(context, segment);
        Some(just_below(zero + view.frames(context.committed) - lead))
    }
}

impl Earliest {
    fn offer(&mut self, at: Tick, reason: WakeReason) {
        if at > self.after && at < self.at {
            self.at = at;
            self.reason = reason;
        }
    }
}
