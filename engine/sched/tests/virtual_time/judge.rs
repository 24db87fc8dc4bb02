//! The reference model's half that judges decisions: DESIGN.md section 5, rule by rule.

use contract::{ContextId, Lane, PageId, Partition, Playback, Span, Stage, Tick};
use sched::{CodecRow, Decision, DecodeRow, PrefillRow, Sched, SchedConfig, TextInput};

use crate::model::{Ctx, Model, Seg};

/// Deadlines and slack, said once more in their simplest form.
pub(crate) struct Judge<'a> {
    pub(crate) config: &'a SchedConfig,
    pub(crate) sched: &'a Sched,
    pub(crate) now: Tick,
    /// Time in which every context that wants one gets a step.
    pub(crate) round: Span,
}

impl Judge<'_> {
    fn frame(&self) -> Span {
        self.sched.profile().frame_span
    }

    pub(crate) fn deadline(&self, context: &Ctx, position: u64) -> Tick {
        let zero = match (context.playback, context.first_commit) {
            (Playback::Paused { .. }, _) => return Tick::NEVER,
            (Playback::Playing { zero }, _) => zero,
            (Playback::NotStarted, Some(first)) => first,
            (Playback::NotStarted, None) => {
                context.arrival.max(context.first_text.unwrap_or(Tick::ZERO)) + self.config.ttfa_target
            }
        };
        zero + self.frame().times(position as i64)
    }

    pub(crate) fn lead(&self, context: &Ctx) -> Span {
        let made = self.frame().times(context.committed as i64);
        let played = match context.playback {
            Playback::NotStarted => Span::ZERO,
            Playback::Paused { played } => played.min(made).max(Span::ZERO),
            Playback::Playing { zero } => self.now.since(zero).min(made).max(Span::ZERO),
        };
        made - played
    }

    pub(crate) fn codec(&self, lane: Lane, rows: u32, frames: u32) -> Span {
        let profile = self.sched.profile();
        let partition = if lane == Lane::Urgent { Partition::Whole } else { Partition::Background };
        profile.cost(Stage::Codec, partition, profile.codec_bucket(rows), profile.codec_length(frames))
    }

    pub(crate) fn length(&self, context: &Ctx, nth: u32) -> u32 {
        let lengths = &self.sched.profile().codec_lengths;
        let first = context.rung_first.unwrap_or(0) as usize;
        lengths[(first + nth as usize).min(lengths.len() - 1)]
    }

    pub(crate) fn margin(&self, context: &Ctx) -> Span {
        let short = context.rung_first.unwrap_or(0) as usize + 1 < self.sched.profile().codec_lengths.len();
        if short && (context.chunks == 1 || context.chunks == 2) {
            self.config.urgent_margin.min(self.frame().times(context.dispatched as i64).half())
        } else {
            self.config.urgent_margin
        }
    }

    /// Whether the lm lane could give the context a step now, pages aside.
    pub(crate) fn wants_step(&self, context: &Ctx) -> bool {
        let Some(at) = context.active().filter(|_| !context.over) else { return false };
        let ahead = self.lead(context) > self.config.lm_lead && !self.sched.profile().state_grows;
        text(&context.segs[at]).is_some() && context.segs[at].launched < context.cap(at) && !ahead
    }

    pub(crate) fn lm_slack(&self, context: &Ctx) -> Span {
        let at = context.active().expect("asked for running contexts only");
        let seg = &context.segs[at];
        let (mut start, mut nth) = (seg.dispatched, context.chunks);
        while start + self.length(context, nth) <= seg.launched {
            start += self.length(context, nth);
            nth += 1;
        }
        let length = self.length(context, nth);
        let position = context.base(at) + u64::from(start);
        let deadline = self.deadline(context, position);
        if deadline == Tick::NEVER {
            return Span::MAX;
        }
        let missing = (start + length).min(context.cap(at)).saturating_sub(seg.launched);
        let lane = if position == 0 { Lane::Urgent } else { Lane::Background };
        deadline.since(self.now) - self.round.times(i64::from(missing)) - self.codec(lane, 1, length)
    }

    /// The context's next chunk by the plain rules: the ladder's length, or what is left at the end.
    fn full_chunk(&self, context: &Ctx) -> Option<u32> {
        let at = context.segs.iter().position(|seg| seg.total.is_none_or(|total| seg.dispatched < total))?;
        let seg = &context.segs[at];
        let wanted = self.length(context, context.chunks);
        let there = seg.total.map_or(seg.made, |total| total.min(seg.made)) - seg.dispatched;
        let beyond = self.sched.profile().look_ahead;
        let (frames, needed) =
            if seg.total.is_some() { (there.min(wanted), 0) } else { (wanted, wanted + beyond) };
        (frames > 0 && there >= needed).then_some(frames)
    }

    fn may_dispatch(&self, context: &Ctx) -> bool {
        !context.over
            && context.slot.is_some()
            && !context.codec_in_flight()
            && self.lead(context) <= self.config.lm_lead
    }

    fn is_urgent(&self, context: &Ctx) -> bool {
        let slack = self.deadline(context, context.dispatched).since(self.now);
        context.dispatched == 0 || slack < self.margin(context)
    }
}

impl Model {
    pub(crate) fn judge<'a>(&'a self, now: Tick, sched: &'a Sched) -> Judge<'a> {
        let mut judge = Judge { config: &self.config, sched, now, round: Span::ZERO };
        let wanting: Vec<&Ctx> = self.contexts.values().filter(|context| judge.wants_step(context)).collect();
        let longest = wanting.iter().filter_map(|context| context.active().map(|at| &context.segs[at]));
        let longest = longest.map(|seg| seg.prompt + seg.launched).max().unwrap_or(0).max(1);
        let profile = sched.profile();
        let (count, most) = (wanting.len().max(1) as u32, profile.decode_contexts_max());
        let step =
            profile.cost(Stage::Decode, Partition::Lm, profile.decode_bucket(count.min(most)), longest);
        judge.round = step.times(i64::from(count.div_ceil(most)));
        judge
    }

    pub(crate) fn decision(&mut self, now: Tick, sched: &Sched, decision: &Decision) {
        // Judged before room was made for the very step that was launched.
        let passed_over = self.newcomer(now, sched).is_some();
        self.follow_victims(now, sched);
        let lane = decision.lane();
        let room = match lane {
            Lane::Lm => self.lanes.lm_has_room(&self.config, now),
            Lane::Urgent | Lane::Background => self.lanes.count(lane) == 0,
        };
        assert!(room, "{lane:?}: more launches than the lane takes, or too soon");
        match decision {
            Decision::Encode { key, .. } => {
                self.deferred_since = None;
                assert!(
                    self.contexts.values().any(|context| context.encode == Some(*key)),
                    "nobody waits for it"
                );
            }
            Decision::Prefill { rows, riders, partition, .. } => {
                self.deferred_since = None;
                assert!(!rows.is_empty() && rows.len() <= self.config.prefill_rows_max as usize);
                let tokens: u32 = rows.iter().map(|row| row.prompt_tokens).sum();
                assert!(
                    rows.len() == 1 || tokens <= self.config.prefill_tokens_max,
                    "packed over the budget"
                );
                if !riders.is_empty() {
                    self.judge_ride(now, sched, rows.len() + riders.len(), tokens, *partition, riders);
                }
                rows.iter().for_each(|row| self.prefill(sched, decision, row));
                riders.iter().for_each(|row| self.decode(decision, row));
            }
            Decision::Decode { rows, bucket, .. } => {
                assert!(!rows.is_empty() && *bucket >= rows.len() as u32);
                self.judge_deferral(now, sched, passed_over);
                self.judge_order(now, sched, rows);
                self.judge_steps(now, sched, rows);
                rows.iter().for_each(|row| self.decode(decision, row));
            }
            Decision::Codec { lane, bucket, length, rows, .. } => {
                assert!(!rows.is_empty() && *bucket >= rows.len() as u32);
                assert!(rows.iter().all(|row| (1..=*length).contains(&row.frames)), "a row does not fit");
                self.judge_codec(now, sched, *lane, rows);
                rows.iter().for_each(|row| self.codec_row(decision, *lane, row, sched));
            }
        }
        self.lanes.take_off(decision.launch(), lane, now, decision.why().expected);
    }

    /// After every event, when the scheduler has said all it wants.
    pub(crate) fn settled(&mut self, now: Tick, sched: &Sched) {
        self.follow_victims(now, sched);
        self.nothing_owed();
        let snapshot = sched.snapshot();
        assert_eq!(snapshot.engine.pages_used as usize, self.used_pages(), "pages used");
        assert_eq!(snapshot.pages_reserved, self.promised_pages(), "pages promised");
        let slots = self.contexts.values().filter(|context| context.slot.is_some()).count();
        assert_eq!(snapshot.engine.running as usize, slots, "slots held");
        assert_eq!(snapshot.engine.open as usize, self.contexts.len(), "open contexts");
        let judge = self.judge(now, sched);
        let steady = judge.frame().times(i64::from(sched.profile().steady_length()));
        let mut owed = None;
        for (id, context) in self.contexts.iter().filter(|(_, context)| !context.over) {
            let bounded = judge.lead(context) <= self.config.lm_lead + steady;
            assert!(bounded || context.moved, "{id}: more decoded than the queue holds");
            if self.lanes.count(Lane::Urgent) == 0
                && judge.may_dispatch(context)
                && judge.full_chunk(context).is_some()
            {
                assert!(!judge.is_urgent(context), "{id}: an urgent chunk waits for an empty lane");
            }
            if self.lanes.lm_has_room(&self.config, now) && judge.wants_step(context) {
                owed = Some(*id);
            }
        }
        let stalled = snapshot.counters.page_exhaustions > 0;
        assert!(owed.is_none() || stalled, "{owed:?}: could go on and the lm lane has room");
        if self.newcomer(now, sched).is_none() {
            self.deferred_since = None;
        }
    }

    /// Ends, by the rule, as many contexts as the scheduler says it had to end for want of pages.
    fn follow_victims(&mut self, now: Tick, sched: &Sched) {
        let victims = sched.snapshot().counters.page_victims;
        while self.seen.page_victims < victims {
            self.seen.page_victims += 1;
            let judge = self.judge(now, sched);
            let running =
                self.contexts.iter().filter(|(_, context)| context.active().is_some() && !context.over);
            let leads = running.map(|(id, context)| (judge.lead(context), std::cmp::Reverse(*id)));
            let victim = leads.max().expect("a victim that runs").1.0;
            self.cap(victim);
        }
    }

    /// The newcomer that is due first, if its slot and pages are there.
    fn newcomer(&self, now: Tick, sched: &Sched) -> Option<ContextId> {
        let judge = Judge { config: &self.config, sched, now, round: Span::ZERO };
        let waiting = self.contexts.iter().filter(|(_, context)| {
            !context.over && !context.admitted && context.encode.is_none() && context.waiting().is_some()
        });
        let (id, first) = waiting.min_by_key(|(id, context)| (judge.deadline(context, 0), **id))?;
        let wanted = wanted_pages(&self.config, &first.segs[0]);
        let free = self.config.pages - self.used_pages() as u32 - self.promised_pages();
        // A context that runs and waits for pages with its next segment is not overtaken either.
        let blocked =
            self.contexts.values().filter(|context| context.admitted && !context.over).any(|context| {
                context.waiting().is_some_and(|at| wanted_pages(&self.config, &context.segs[at]) > free)
            });
        (!blocked && sched.snapshot().slots_free > 0 && wanted <= free).then_some(*id)
    }

    /// A step was launched: a prefill that could have gone is being deferred.
    fn judge_deferral(&mut self, now: Tick, sched: &Sched, passed_over: bool) {
        if !passed_over {
            self.deferred_since = None;
            return;
        }
        assert!(!sched.snapshot().prefill_first, "a newcomer waits although prefill goes first");
        let since = *self.deferred_since.get_or_insert(now);
        let waited = now.since(since);
        assert!(waited < self.config.deferral_cap || waited == Span::ZERO, "deferred for {waited}");
    }

    /// When more contexts run than one batch holds, nobody left out has less slack than one let in.
    fn judge_order(&self, now: Tick, sched: &Sched, rows: &[DecodeRow]) {
        let judge = self.judge(now, sched);
        let inside = |id: &ContextId| rows.iter().any(|row| row.context == *id);
        let wanting = || self.contexts.iter().filter(|(_, context)| judge.wants_step(context));
        if wanting().count() <= sched.profile().decode_contexts_max() as usize {
            return;
        }
        let most = wanting().filter(|(id, _)| inside(id)).map(|(_, context)| judge.lm_slack(context)).max();
        let least = wanting().filter(|(id, _)| !inside(id)).map(|(_, context)| judge.lm_slack(context)).min();
        let stalled = sched.snapshot().counters.page_exhaustions > 0;
        assert!(stalled || most <= least, "a row with slack {most:?} goes before one with {least:?}");
    }

    fn judge_steps(&self, now: Tick, sched: &Sched, rows: &[DecodeRow]) {
        let judge = self.judge(now, sched);
        let wants = rows.iter().all(|row| judge.wants_step(&self.contexts[&row.context]));
        assert!(wants, "a row that is dry, over its bound or far ahead");
    }

    /// A step that rides along is everybody's, and the launch is within its bounds.
    fn judge_ride(
        &self,
        now: Tick,
        sched: &Sched,
        rows: usize,
        tokens: u32,
        partition: Partition,
        riders: &[DecodeRow],
    ) {
        assert!(rows <= self.config.ride_rows_max as usize, "{rows} rows ride");
        assert!(tokens <= self.config.ride_tokens_max, "{tokens} positions with riders");
        assert_eq!(partition, Partition::Lm, "a step leaves its partition");
        self.judge_steps(now, sched, riders);
        let judge = self.judge(now, sched);
        let wanting = self.contexts.values().filter(|context| judge.wants_step(context)).count();
        let stalled = sched.snapshot().counters.page_exhaustions > 0;
        assert!(stalled || wanting == riders.len(), "{} of {wanting} ride", riders.len());
    }

    fn judge_codec(&self, now: Tick, sched: &Sched, lane: Lane, rows: &[CodecRow]) {
        let judge = self.judge(now, sched);
        let steady = sched.profile().steady_length();
        let urgent_call = judge.codec(Lane::Urgent, 1, steady);
        let frames = rows.iter().map(|row| row.frames).max().expect("not empty");
        let finish = now + judge.codec(Lane::Background, rows.len() as u32, frames);
        let mut last = (Tick::ZERO, ContextId(0));
        for row in rows {
            let context = &self.contexts[&row.context];
            assert!(
                judge.may_dispatch(context),
                "{}: its predecessor is in flight, or it is far ahead",
                row.context
            );
            let deadline = judge.deadline(context, context.dispatched);
            assert_eq!(row.slack, deadline.since(now), "{}: slack", row.context);
            assert!((deadline, row.context) > last, "{}: out of deadline order", row.context);
            last = (deadline, row.context);
            let at = row.segment as usize;
            let ends = context.segs[at].total == Some(row.first_frame + row.frames);
            let more = !ends || at + 1 < context.segs.len();
            let next = judge.deadline(context, context.dispatched + u64::from(row.frames));
            let next = if more { next } else { Tick::NEVER };
            if lane == Lane::Background {
                assert!(!judge.is_urgent(context), "{}: urgent, in the background", row.context);
                assert!(finish <= deadline, "{}: would be late", row.context);
                assert!(finish + urgent_call <= next, "{}: an inversion", row.context);
            } else {
                let alone = now + judge.codec(Lane::Background, 1, row.frames);
                let inverts = alone > deadline || alone + urgent_call > next;
                assert!(judge.is_urgent(context) || inverts, "{}: urgent without need", row.context);
            }
            if !ends && row.frames < judge.length(context, context.chunks) && context.chunks > 0 {
                let pressed = deadline.since(now) - judge.codec(Lane::Urgent, 1, row.frames);
                let slow = pressed - judge.round.times(i64::from(judge.length(context, context.chunks)));
                assert!(
                    pressed < self.config.urgent_margin || slow.is_negative(),
                    "{}: cut without need",
                    row.context
                );
            }
        }
        if lane == Lane::Urgent {
            assert!(rows.len() <= 8.min(self.config.urgent_batch_max as usize), "{} urgent rows", rows.len());
        }
    }

    fn prefill(&mut self, sched: &Sched, decision: &Decision, row: &PrefillRow) {
        self.fresh_pages(row.context, &row.pages);
        let taken: Vec<_> =
            self.contexts.iter().filter(|(id, _)| **id != row.context).filter_map(|(_, c)| c.slot).collect();
        assert!(!taken.contains(&row.slot), "{}: its slot belongs to another", row.context);
        let wanted = wanted_pages(&self.config, &self.contexts[&row.context].segs[row.segment as usize]);
        let config = self.config.clone();
        let context = self.contexts.get_mut(&row.context).expect("known");
        assert!(!context.over && context.encode.is_none(), "{}: not ready for its prefill", row.context);
        assert_eq!(context.waiting(), Some(row.segment as usize), "{}: another segment is next", row.context);
        assert!(context.slot.is_none_or(|slot| slot == row.slot), "{}: changes its slot", row.context);
        if !context.admitted {
            context.rung_first = Some(sched.snapshot().rung);
        }
        context.admitted = true;
        context.slot = Some(row.slot);
        let exact = context.exact.is_some();
        context.in_flight.insert(decision.launch(), Lane::Lm);
        let seg = &mut context.segs[row.segment as usize];
        assert_eq!((row.prompt_tokens, row.eos_allowed), (seg.prompt, !seg.streamed && !exact));
        seg.pages.clone_from(&row.pages);
        seg.promised = wanted - row.pages.len() as u32;
        seg.launched = 1;
        seg.lm_in_flight = 1;
        assert!(
            seg.pages.len() as u32 * config.page_positions >= seg.prompt,
            "{}: prompt without pages",
            row.context
        );
    }

    fn decode(&mut self, decision: &Decision, row: &DecodeRow) {
        self.fresh_pages(row.context, &row.pages);
        let positions = self.config.page_positions;
        let context = self.contexts.get_mut(&row.context).expect("known");
        assert_eq!(context.active(), Some(row.segment as usize), "{}: not the running segment", row.context);
        assert_eq!(context.slot, Some(row.slot), "{}: another's slot", row.context);
        let exact = context.exact.is_some();
        context.in_flight.insert(decision.launch(), Lane::Lm);
        let seg = &mut context.segs[row.segment as usize];
        assert_eq!(row.step, seg.launched, "{}: steps out of order", row.context);
        assert_eq!(Some(row.text), text(seg), "{}: the wrong text", row.context);
        let spoken = !seg.streamed || !matches!(row.text, TextInput::Id(_));
        assert_eq!(row.eos_allowed, spoken && !exact, "{}: end-of-speech", row.context);
        seg.pages.extend_from_slice(&row.pages);
        seg.promised -= seg.promised.min(row.pages.len() as u32);
        seg.launched += 1;
        seg.lm_in_flight += 1;
        assert!(
            seg.pages.len() as u32 * positions >= seg.prompt + row.step,
            "{}: a step without its page",
            row.context
        );
    }

    fn codec_row(&mut self, decision: &Decision, lane: Lane, row: &CodecRow, sched: &Sched) {
        let context = self.contexts.get_mut(&row.context).expect("known");
        assert_eq!(context.slot, Some(row.slot), "{}: another's slot", row.context);
        let before = &context.segs[..row.segment as usize];
        assert!(
            before.iter().all(|seg| seg.total == Some(seg.committed)),
            "{}: segments out of order",
            row.context
        );
        let seg = &mut context.segs[row.segment as usize];
        assert_eq!(row.first_frame, seg.dispatched, "{}: frames out of order, or twice", row.context);
        let there = seg.total.map_or(seg.made, |total| total.min(seg.made));
        let beyond = if seg.total.is_some() { 0 } else { sched.profile().look_ahead };
        assert!(row.first_frame + row.frames + beyond <= there, "{}: frames that do not exist", row.context);
        assert_eq!(row.first_of_segment, row.first_frame == 0);
        assert_eq!(row.last_of_segment, seg.total == Some(row.first_frame + row.frames));
        assert!(row.frames <= sched.profile().steady_length());
        seg.dispatched += row.frames;
        context.dispatched += u64::from(row.frames);
        context.chunks += 1;
        context.in_flight.insert(decision.launch(), lane);
    }

    /// Pages handed out belong to nobody else.
    fn fresh_pages(&self, id: ContextId, pages: &[PageId]) {
        let segs = || self.contexts.values().flat_map(|context| &context.segs);
        let owned = pages.iter().any(|page| segs().any(|seg| seg.pages.contains(page)));
        assert!(!owned, "{id}: is given a page that has an owner");
    }
}

/// Text of the segment's next step.
fn text(seg: &Seg) -> Option<TextInput> {
    match (seg.streamed, seg.launched) {
        (false, _) => Some(TextInput::Pad),
        (true, step) if step < seg.ids => Some(TextInput::Id(step)),
        (true, step) if seg.closed && step == seg.ids => Some(TextInput::End),
        (true, _) if seg.closed => Some(TextInput::Pad),
        (true, _) => None,
    }
}

fn wanted_pages(config: &SchedConfig, seg: &Seg) -> u32 {
    let frames = seg.predicted.min(seg.max).max(1);
    (seg.prompt + frames).div_ceil(config.page_positions).min(config.pages)
}
