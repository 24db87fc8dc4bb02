//! When the scheduler wants to be woken, and what falls due by the passing of time alone.

use contract::{ContextId, FinishReason, Playback, Span, Tick};

use crate::context::Context;
use crate::slack::{View, codec_segment};
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
}

impl WakeReason {
    pub const ALL: [Self; 9] = [
        Self::Nothing,
        Self::BackgroundDeadline,
        Self::ChunkTurnsUrgent,
        Self::ChunkCut,
        Self::ContinuationDue,
        Self::DeferralCap,
        Self::IdleLimit,
        Self::LeadRunsDown,
        Self::WaitLimit,
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
        for context in self.contexts.values().filter(|context| !context.finished) {
            self.context_timers(&view, context, &mut earliest);
        }
        if let Some(since) = self.deferring_since {
            earliest.offer(since + self.config.deferral_cap, WakeReason::DeferralCap);
        }
        let heads = self.ready_heads(false);
        earliest.offer(self.background_deadline(&heads), WakeReason::BackgroundDeadline);
        (earliest.at, earliest.reason)
    }

    /// Ends what has waited too long.
    pub(crate) fn expire(&mut self) {
        let now = self.now;
        let due = |context: &&Context| {
            self.idle_at(context).is_some_and(|at| at <= now)
                || self.wait_ends_at(context).is_some_and(|at| at <= now)
        };
        let due: Vec<ContextId> = self.contexts.values().filter(due).map(|context| context.id).collect();
        for id in due {
            let waited = self.contexts.get(&id).and_then(|context| self.wait_ends_at(context));
            if waited.is_some_and(|at| at <= now) {
                let retry_after = self.retry_hint();
                self.refuse(id, RefusalCause::Waited, retry_after);
            } else {
                self.finish(id, FinishReason::Idle, None);
            }
        }
    }

    fn idle_at(&self, context: &Context) -> Option<Tick> {
        let dry = context.segments.back().and_then(|segment| segment.dry_since).unwrap_or(Tick::ZERO);
        context.is_waiting_for_text().then(|| context.last_activity.max(dry) + self.config.idle_limit)
    }

    /// A context that was let in but has not begun is turned away after the limit.
    fn wait_ends_at(&self, context: &Context) -> Option<Tick> {
        if context.finished || context.admitted || context.encode.is_some() {
            return None;
        }
        context.waiting().map(|segment| segment.ready_at + self.config.first_audio_limit)
    }

    fn context_timers(&self, view: &View<'_>, context: &Context, earliest: &mut Earliest) {
        if let Some(at) = self.idle_at(context) {
            earliest.offer(at, WakeReason::IdleLimit);
        }
        if let Some(at) = self.wait_ends_at(context) {
            earliest.offer(at, WakeReason::WaitLimit);
        }
        if let Some(at) = view.ahead_until(context) {
            earliest.offer(at, WakeReason::LeadRunsDown);
        }
        match view.head(context) {
            Some(head) if !head.urgent => {
                let margin = view.urgent_margin(context);
                earliest.offer(just_below(head.deadline - margin), WakeReason::ChunkTurnsUrgent);
            }
            Some(_) => {}
            None => {
                if let Some(segment) = codec_segment(context).filter(|segment| segment.total.is_none()) {
                    let usable = segment.waiting_frames().saturating_sub(self.profile.look_ahead);
                    if let Some(at) = view.cut_at(context, segment, usable) {
                        earliest.offer(at, WakeReason::ChunkCut);
                    }
                }
            }
        }
        if let (Some(segment), Playback::Playing { zero }, true) =
            (context.waiting(), context.playback, context.admitted)
        {
            let lead = self.continuation_lead(context, segment);
            let at = zero + view.frames(context.committed) - lead;
            earliest.offer(just_below(at), WakeReason::ContinuationDue);
        }
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

/// The first tick at which what is strictly below a bound at `at` holds.
fn just_below(at: Tick) -> Tick {
    at + Span::from_micros(1)
}
