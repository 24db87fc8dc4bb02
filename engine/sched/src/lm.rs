//! The lm lane: continuous batching, and pages before the launch that needs them.

use contract::{ContextId, FinishReason, Lane, Partition, Span, Stage, Tick};

use crate::flight::{Flight, FlightRow};
use crate::{Decision, DecodeRow, Sched, Why, reason};

impl Sched {
    /// What the lm lane should run next, if it has room.
    pub(crate) fn lm_decision(&mut self) -> Option<Decision> {
        if self.flights_in(Lane::Lm) >= self.config.lm_depth || self.step_ahead_at() > Some(self.now) {
            return None;
        }
        let (contexts, reason) = self.decode_batch();
        if let Some(decision) = self.prefill_decision(&contexts) {
            return Some(decision);
        }
        self.decode(&contexts, reason)
    }

    /// When the lm lane may be given its second launch, if it has its first and takes two.
    pub(crate) fn step_ahead_at(&self) -> Option<Tick> {
        let taken = self.flights_in(Lane::Lm);
        let waits = taken > 0 && taken < self.config.lm_depth;
        waits.then(|| self.lane_free_at(Lane::Lm) - self.config.lm_ahead)
    }

    /// Contexts that want a step; least lm slack first when they are more than one batch holds.
    pub(crate) fn decode_batch(&self) -> (Vec<ContextId>, &'static str) {
        let most = self.profile.decode_contexts_max() as usize;
        if self.index.stepping.len() <= most {
            return (self.index.stepping.iter().copied().collect(), reason::DECODE_ALL);
        }
        (self.index.by_slack(&self.view(self.now), most), reason::DECODE_LEAST_SLACK)
    }

    pub(crate) fn why(&self, reason: &'static str, expected: Span) -> Why {
        Why { reason, counterfactual: self.round_robin(), expected }
    }

    /// Takes the pages of a step of `contexts`: those that have them, and the most positions one of them covers then.
    pub(crate) fn ready_step(&mut self, contexts: &[ContextId]) -> (Vec<ContextId>, u32) {
        let mut length = 1;
        let mut short = false;
        for &id in contexts {
            match self.take_pages(id) {
                Some(positions) => length = length.max(positions),
                None => short = true,
            }
        }
        // Making room may have capped a context of this very batch.
        if short { self.with_pages(contexts) } else { (contexts.to_vec(), length) }
    }

    fn decode(&mut self, contexts: &[ContextId], reason: &'static str) -> Option<Decision> {
        let (ready, length) = self.ready_step(contexts);
        if ready.is_empty() {
            return None;
        }
        let bucket = self.profile.decode_bucket(ready.len() as u32);
        let expected = self.profile.cost(Stage::Decode, Partition::Lm, bucket, length);
        let why = self.why(reason, expected);
        let mut flown = Vec::new();
        let rows = self.step_rows(&ready, &mut flown);
        self.steps_since_prefill = self.steps_since_prefill.saturating_add(1);
        let launch = self.take_off(Flight {
            lane: Lane::Lm,
            stage: Stage::Decode,
            partition: Partition::Lm,
            launched: self.now,
            expected,
            bucket,
            length,
            key: None,
            rows: flown,
        });
        Some(Decision::Decode { launch, bucket, rows, why })
    }

    /// The rows of a step of these contexts, launched now; what is in flight then joins `flown`.
    pub(crate) fn step_rows(&mut self, contexts: &[ContextId], flown: &mut Vec<FlightRow>) -> Vec<DecodeRow> {
        if !contexts.is_empty() {
            self.beat_launched(contexts);
        }
        let mut rows = Vec::with_capacity(contexts.len());
        flown.reserve(contexts.len());
        for id in contexts {
            self.decode_row(*id, &mut rows, flown);
        }
        rows
    }

    /// A context that has no step after all gets no row.
    fn decode_row(&mut self, id: ContextId, rows: &mut Vec<DecodeRow>, flown: &mut Vec<FlightRow>) {
        let Some(context) = self.contexts.mark(&id) else { return };
        let Some(slot) = context.slot else { return };
        let exact = context.exact_frames.is_some();
        let Some(segment) = context.active_mut() else { return };
        let step = segment.launched;
        let Some(text) = segment.text_at(step) else { return };
        let told = segment.pages.len() - std::mem::take(&mut segment.fresh_pages) as usize;
        let index = segment.index;
        rows.push(DecodeRow {
            context: id,
            slot,
            segment: index,
            step,
            text,
            pages: segment.pages[told..].to_vec(),
            eos_allowed: !exact && segment.eos_allowed_at(step),
        });
        segment.launched += 1;
        segment.lm_in_flight += 1;
        let steady = segment.launched < context.steady.launched_below;
        context.usage.text_ids += u64::from(matches!(text, crate::TextInput::Id(_)));
        flown.push(FlightRow {
            context: id,
            segment: index,
            version: context.claim(Lane::Lm),
            first_frame: step,
            frames: 1,
            position: 0,
            deadline: Tick::NEVER,
            slack: Span::MAX,
            ready: self.now,
        });
        if !steady {
            self.contexts.step(id);
        }
    }

    /// Those of a batch that have their pages and want their step still, and the positions of the longest.
    fn with_pages(&self, contexts: &[ContextId]) -> (Vec<ContextId>, u32) {
        let view = self.view(self.now);
        let mut length = 1;
        let mut ready = Vec::with_capacity(contexts.len());
        for context in contexts.iter().filter_map(|id| self.contexts.get(id)) {
            if let Some(segment) =
                context.active().filter(|_| !context.page_stalled && view.wants_step(context))
            {
                length = length.max(segment.positions_after(segment.launched));
                ready.push(context.id);
            }
        }
        (ready, length)
    }

    /// Takes the pages the context's next step could touch; the positions these hold at least. A context that finds
    /// none is marked stalled and left out, while room is made.
    fn take_pages(&mut self, id: ContextId) -> Option<u32> {
        loop {
            let pages = &mut self.pages;
            let context = self.contexts.mark(&id)?;
            let segment = context.active_mut()?;
            let positions = segment.positions_after(segment.launched);
            if segment.pages.len() as u32 >= pages.pages_for(positions) {
                if std::mem::take(&mut context.page_stalled) {
                    self.contexts.touch(id);
                }
                return Some(positions);
            }
            if let Some(page) = pages.take(&mut segment.promised) {
                segment.pages.push(page);
                segment.fresh_pages += 1;
                continue;
            }
            self.counters.page_exhaustions += u64::from(!context.page_stalled);
            context.page_stalled = true;
            self.contexts.touch(id);
            if !self.make_room() {
                return None;
            }
        }
    }

    /// Gives up kept prefixes; else ends the context with the longest lead as capped, unless pages are
    /// on their way already.
    /// True when a page is available now.
    fn make_room(&mut self) -> bool {
        while self.evict_prefix() {
            if self.pages.available() > 0 {
                return true;
            }
        }
        let on_their_way = self.contexts.values().any(|context| {
            let over = |segment: &&crate::context::Segment| context.finished || segment.total.is_some();
            context.segments.iter().filter(over).any(|segment| !segment.pages.is_empty())
        });
        if on_their_way {
            return false;
        }
        let view = self.view(self.now);
        let owning = self.contexts.values().filter(|context| !context.finished && context.active().is_some());
        let longest = owning.max_by_key(|context| (view.lead(context), std::cmp::Reverse(context.id)));
        let Some(victim) = longest.map(|context| context.id) else { return false };
        self.counters.page_victims += 1;
        self.cap_context(victim);
        self.pages.available() > 0
    }

    /// Ends a context's generation here: what was made is still spoken, nothing further is made.
    fn cap_context(&mut self, id: ContextId) {
        let Some(context) = self.contexts.get_mut(&id) else { return };
        let active = context.active().map(|segment| (segment.index, segment.made));
        context.segments.retain(|segment| segment.launched > 0);
        context.no_more = true;
        context.capped = true;
        if let Some((segment, made)) = active {
            self.end_lm(id, segment, made, FinishReason::Capped);
        }
        self.settle(id);
    }
}
