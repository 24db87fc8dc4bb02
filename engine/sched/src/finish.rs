//! How segments and contexts end, and when what they held is free.

use contract::{ContextId, EngineError, FinishReason, Lane, Span};

use crate::context::Context;
use crate::slack::View;
use crate::stats::count_steps;
use crate::{Counters, RefusalCause, Sched, SchedOutput};

/// Follows whether the active segment's text has run dry; the event when that changed.
pub(crate) fn mark_text(
    context: &mut Context,
    view: &View<'_>,
    counters: &mut Counters,
) -> Option<SchedOutput> {
    let id = context.id;
    let active = context.active()?;
    let known = view.step_is_known(context, active);
    let bounded = context.exact_frames.is_some() && active.launched >= context.frame_cap(active).0;
    let dry = !active.closed && !known && !bounded && active.lm_in_flight == 0;
    let segment = context.active_mut()?;
    let index = segment.index;
    match (dry, segment.dry_since) {
        (true, None) => {
            segment.dry_since = Some(view.now);
            counters.text_dry += 1;
            Some(SchedOutput::TextDry { context: id, segment: index })
        }
        (false, Some(since)) => {
            segment.dry_since = None;
            let starved = view.now.since(since);
            context.usage.text_starved += starved;
            Some(SchedOutput::TextResumed { context: id, segment: index, starved })
        }
        _ => None,
    }
}

impl Sched {
    /// The lm lane is done with a segment: it has `total` frames and makes no more. What is in flight
    /// for it is stale from here on.
    pub(crate) fn end_lm(&mut self, id: ContextId, segment: u32, total: u32, reason: FinishReason) {
        let now = self.now;
        let Some(context) = self.contexts.get_mut(&id) else { return };
        let Some(segment) = context.segment_mut(segment) else { return };
        let was_active = segment.is_active();
        segment.total = Some(total);
        segment.reason = reason;
        let promised = std::mem::take(&mut segment.promised);
        // No launch has named these: they need not wait for a fence.
        let told = segment.pages.len() - std::mem::take(&mut segment.fresh_pages) as usize;
        for page in segment.pages.drain(told..) {
            self.pages.release(page);
        }
        let starved = segment.dry_since.take().map_or(Span::ZERO, |since| now.since(since));
        context.usage.text_starved += starved;
        context.capped |= reason == FinishReason::Capped;
        if was_active {
            context.disown(Lane::Lm);
            context.page_stalled = false;
        }
        self.pages.unreserve(promised);
    }

    /// Ends the segment the lm lane works on (or would next) if it has reached its frame bound.
    pub(crate) fn end_at_bound(&mut self, id: ContextId) {
        while let Some((index, cap, reason)) = self.bound_reached(id) {
            self.counters.capped_by_frames += u64::from(reason == FinishReason::Capped);
            self.end_lm(id, index, cap, reason);
        }
    }

    fn bound_reached(&self, id: ContextId) -> Option<(u32, u32, FinishReason)> {
        let context = self.contexts.get(&id).filter(|context| !context.finished)?;
        let segment = context.active().or_else(|| context.waiting())?;
        let (cap, reason) = context.frame_cap(segment);
        let binding = segment.closed || context.exact_frames.is_some();
        (binding && segment.made >= cap).then_some((segment.index, cap, reason))
    }

    /// Gives out the terminal event and makes everything in flight stale. Only fences follow.
    pub(crate) fn finish(&mut self, id: ContextId, reason: FinishReason, error: Option<EngineError>) {
        if self.close(id) {
            let counter = match reason {
                FinishReason::Cancelled => &mut self.counters.finished_cancelled,
                FinishReason::Capped => &mut self.counters.finished_capped,
                FinishReason::Done => &mut self.counters.finished_done,
                FinishReason::Failed => &mut self.counters.finished_failed,
                FinishReason::Idle => &mut self.counters.finished_idle,
            };
            *counter += 1;
            let usage = self.contexts.get(&id).map(|context| context.usage).unwrap_or_default();
            self.outputs.push_back(SchedOutput::Finished { context: id, reason, error, usage });
            self.settle(id);
        }
    }

    pub(crate) fn fail(&mut self, id: ContextId, error: EngineError) {
        self.finish(id, FinishReason::Failed, Some(error));
    }

    pub(crate) fn refuse(&mut self, id: ContextId, cause: RefusalCause, retry_after: Span) {
        if self.close(id) {
            self.counters.refused += 1;
            self.outputs.push_back(SchedOutput::Refused { context: id, retry_after, cause });
            self.settle(id);
        }
    }

    /// Does all that follows once something of a context is over: reports finished segments and the
    /// end, frees what no launch names any more, and forgets the context when that is everything.
    pub(crate) fn settle(&mut self, id: ContextId) {
        self.report_segments(id);
        let ended = self.contexts.get(&id).filter(|context| {
            !context.finished
                && context.no_more
                && context.segments.is_empty()
                && !context.anything_in_flight()
        });
        if let Some(context) = ended {
            let reason = if context.capped { FinishReason::Capped } else { FinishReason::Done };
            // Settles once more, now as finished.
            self.finish(id, reason, None);
            return;
        }
        self.release(id);
    }

    /// Marks a context finished; false when it already was, or is unknown.
    fn close(&mut self, id: ContextId) -> bool {
        let now = self.now;
        let Some(context) = self.contexts.get_mut(&id).filter(|context| !context.finished) else {
            return false;
        };
        context.finished = true;
        for lane in Lane::ALL {
            context.disown(lane);
        }
        let mut promised = 0;
        for segment in &mut context.segments {
            promised += std::mem::take(&mut segment.promised);
            if let Some(since) = segment.dry_since.take() {
                context.usage.text_starved += now.since(since);
            }
        }
        let encode = context.encode.take();
        self.pages.unreserve(promised);
        if let Some(key) = encode {
            self.leave_encode(key, id);
        }
        true
    }

    fn report_segments(&mut self, id: ContextId) {
        let Some(context) = self.contexts.get_mut(&id).filter(|context| !context.finished) else { return };
        while context.segments.front().is_some_and(crate::context::Segment::is_done) {
            let Some(mut segment) = context.segments.pop_front() else { return };
            for page in segment.pages.drain(..) {
                self.pages.release(page);
            }
            context.frames_before += u64::from(segment.committed);
            self.outputs.push_back(SchedOutput::SegmentFinished {
                context: id,
                segment: segment.index,
                end_frame: context.frames_before,
                reason: segment.reason,
            });
        }
    }

    /// Frees pages and slot whose last fence has passed, and the context itself.
    fn release(&mut self, id: ContextId) {
        let Some(context) = self.contexts.get_mut(&id) else { return };
        let finished = context.finished;
        for segment in &mut context.segments {
            if (finished || segment.total.is_some()) && segment.lm_in_flight == 0 {
                for page in segment.pages.drain(..) {
                    self.pages.release(page);
                }
            }
        }
        if let (Some(at), false, 0) = (context.cancelled_at, context.lm_freed, context.in_flight(Lane::Lm)) {
            context.lm_freed = true;
            count_steps(&mut self.counters.cancelled_lm_freed, self.counters.lm_steps - at);
        }
        // A context without text holds nothing.
        let idle = finished || context.segments.is_empty();
        if idle
            && !context.anything_in_flight()
            && let Some(slot) = context.slot.take()
        {
            self.slots.release(slot);
        }
        if context.is_removable() {
            if let Some(at) = context.cancelled_at {
                count_steps(&mut self.counters.cancelled_freed, self.counters.lm_steps - at);
            }
            self.contexts.remove(&id);
            self.outputs.push_back(SchedOutput::Removed { context: id });
        }
    }
}
