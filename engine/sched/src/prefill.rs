//! Prefill: which prompts are due, when they may go before decode, and how they are packed.

use contract::{ContextId, Lane, Partition, SlotId, Span, Stage, Tick};

use crate::context::{Context, Segment};
use crate::flight::{Flight, FlightRow};
use crate::slack::View;
use crate::{Decision, PrefillRow, Sched, SchedOutput, reason};

/// A segment whose prefill is due and has its slot and pages.
#[derive(Clone, Copy, Debug)]
struct DuePrefill {
    deadline: Tick,
    context: ContextId,
    tokens: u32,
    /// Pages to promise it, its prompt's included.
    pages: u32,
}

impl Sched {
    /// An encode or a prefill, if one is due and may go now, though `stepping` contexts want a step; which rides
    /// along if it can.
    pub(crate) fn prefill_decision(&mut self, stepping: &[ContextId]) -> Option<Decision> {
        let lm_idle = stepping.is_empty();
        let encode = self.due_encode();
        let mut pack = self.due_prefills(lm_idle);
        let encode =
            encode.filter(|encode| pack.first().is_none_or(|first| encode.deadline <= first.deadline));
        let held_back = encode.is_some();
        if let Some(encode) = encode {
            if let Some(reason) = self.may_prefill(encode.cost, lm_idle, false) {
                self.go(reason);
                return self.launch_encode(encode, reason);
            }
            self.defer();
        }
        let Some(first) = pack.first() else {
            if !held_back {
                self.deferring_since = None;
            }
            return None;
        };
        let pages = pack.iter().map(|prefill| prefill.pages).sum();
        let riders = self.riders(stepping, first.tokens, pages);
        // What holds an encode back holds nobody back who takes the step along; others wait their turn behind it.
        if held_back && riders.is_empty() {
            return None;
        }
        let cost = self.prefill_cost(1, first.tokens);
        let Some(reason) = self.may_prefill(cost, lm_idle, !riders.is_empty()) else {
            self.defer();
            return None;
        };
        if !held_back {
            self.go(reason);
        }
        self.trim(&mut pack, riders.len() as u32, reason);
        self.launch_prefill(&pack, riders, reason)
    }

    /// Something due goes, by this rule.
    fn go(&mut self, reason: &'static str) {
        self.deferring_since = None;
        self.counters.deferrals_to_cap += u64::from(reason == reason::PREFILL_CAP);
        self.counters.prefills_by_cut += u64::from(reason == reason::PREFILL_CUT);
    }

    /// Something due waits for running contexts short of slack.
    fn defer(&mut self) {
        if self.deferring_since.is_none() {
            self.counters.deferrals += 1;
            self.deferring_since = Some(self.now);
        }
    }

    pub(crate) fn prefill_cost(&self, rows: u32, tokens: u32) -> Span {
        self.profile.cost(Stage::Prefill, self.prefill_partition(), rows, tokens.max(1))
    }

    /// Pages to promise a segment: its prompt, less what is shared, and the frames it will probably need.
    fn pages_wanted(&self, context: &Context, segment: &Segment) -> u32 {
        let frames = segment.frames_predicted.min(segment.frames_max).max(1);
        let whole = self.pages.pages_for(segment.positions_after(frames)).min(self.pages.total());
        whole.saturating_sub(self.shared_pages(context, segment).len() as u32)
    }

    /// Positions of the prompt that are still to be prefilled.
    fn tokens_wanted(&self, context: &Context, segment: &Segment) -> u32 {
        let shared = self.shared_pages(context, segment).len() as u32 * self.config.page_positions;
        segment.prompt_tokens.saturating_sub(shared).max(1)
    }

    /// When a further segment's prefill falls due: the decoded lead must cover its own first audio.
    pub(crate) fn continuation_lead(&self, context: &Context, segment: &Segment) -> Span {
        let view = self.view(self.now);
        let first = view.ladder_length(context.rung, context.chunks) + self.profile.look_ahead;
        let frames = self.pace.round.times(i64::from(first.saturating_sub(1)));
        self.pack_cost(self.pace.contexts, 1, segment.prompt_tokens)
            + frames
            + view.codec_cost(Lane::Background, 1, first)
            + self.config.continuation_margin
    }

    /// The rule that lets a prefill of this cost go now, if one does.
    fn may_prefill(&self, cost: Span, lm_idle: bool, riders: bool) -> Option<&'static str> {
        if lm_idle {
            return Some(reason::PREFILL_IDLE);
        }
        // Who is short of slack gets a step all the same, which a prompt makes a tenth longer. Near capacity somebody
        // always is short, and to wait for the cap would only make the same prompts late.
        if riders {
            return Some(reason::PREFILL_RIDE);
        }
        if self.prefill_first() {
            return Some(reason::PREFILL_FIRST);
        }
        let view = self.view(self.now);
        if self.index.least_slack(&view) >= cost {
            return Some(reason::PREFILL_SLACK);
        }
        // A chunk that would come late whole is cut, and then comes in time. Steps in between keep cut chunks
        // from following each other.
        let steps = self.config.steps_between_prefills;
        if steps > 0 && self.steps_since_prefill >= steps && self.index.least_cut_slack(&view) >= cost {
            return Some(reason::PREFILL_CUT);
        }
        let since = self.deferring_since.unwrap_or(self.now);
        (self.now.since(since) >= self.config.deferral_cap).then_some(reason::PREFILL_CAP)
    }

    fn prefill_partition(&self) -> Partition {
        // A grid over the whole processor would wait for the cores a background batch keeps busy.
        if self.config.prefill_beside_background && self.flights_in(Lane::Background) > 0 {
            Partition::Lm
        } else {
            Partition::Whole
        }
    }

    /// The slack that prefills are measured by: of whole chunks, or of cut ones where these may be asked for.
    pub(crate) fn slack_for_prefills(&self, view: &View<'_>) -> Span {
        match self.config.steps_between_prefills {
            0 => self.index.least_slack(view),
            _ => self.index.least_cut_slack(view),
        }
    }

    /// Due segments in deadline order that fit the free slots and pages, up to one pack.
    fn due_prefills(&mut self, lm_idle: bool) -> Vec<DuePrefill> {
        loop {
            let (pack, lacks_pages) = self.fit(self.all_due(lm_idle));
            // Kept prefixes give way to contexts that could not begin otherwise.
            if !(pack.is_empty() && lacks_pages && self.evict_prefix()) {
                return pack;
            }
        }
    }

    fn all_due(&self, lm_idle: bool) -> Vec<DuePrefill> {
        let view = self.view(self.now);
        let waiting = self.index.waiting.iter().filter_map(|id| self.contexts.get(id));
        let waiting = waiting.filter(|context| context.encode.is_none());
        let mut due: Vec<DuePrefill> = waiting
            .filter_map(|context| {
                let segment = context.waiting()?;
                Some(DuePrefill {
                    deadline: self.prefill_due(&view, context, segment, lm_idle)?,
                    context: context.id,
                    tokens: self.tokens_wanted(context, segment),
                    pages: self.pages_wanted(context, segment),
                })
            })
            .collect();
        due.sort_unstable_by_key(|prefill| (prefill.deadline, prefill.context));
        due
    }

    /// The deadline of the segment's first chunk, once its prefill is due.
    fn prefill_due(
        &self,
        view: &View<'_>,
        context: &Context,
        segment: &Segment,
        lm_idle: bool,
    ) -> Option<Tick> {
        let deadline = view.deadline_at(context, context.base_of(segment.index));
        if !context.admitted {
            return Some(deadline);
        }
        // A continuation: with lead in hand it leaves the lane to others, but an idle lane is free.
        let due = lm_idle || view.lead(context) < self.continuation_lead(context, segment);
        (due && !view.is_ahead(context)).then_some(deadline)
    }

    /// What of it goes in one pack, and whether something was left out for want of pages.
    fn fit(&mut self, due: Vec<DuePrefill>) -> (Vec<DuePrefill>, bool) {
        let mut slots = self.slots.free();
        let mut pages = self.pages.available();
        let mut tokens = 0_u32;
        let mut firsts_blocked = false;
        let mut lacks_pages = false;
        let mut pack: Vec<DuePrefill> = Vec::new();
        for prefill in due {
            let Some(context) = self.contexts.get_mut(&prefill.context) else { continue };
            let needs_slot = context.slot.is_none();
            // Nobody overtakes a blocked newcomer but a context that already runs.
            if needs_slot && firsts_blocked {
                continue;
            }
            let no_slot = needs_slot && slots == 0;
            if no_slot || prefill.pages > pages {
                firsts_blocked = true;
                lacks_pages |= !no_slot;
                let first_time = context.waiting().is_some_and(|segment| !segment.blocked);
                let index = context.waiting().map(|segment| segment.index);
                if let Some(segment) = index.and_then(|index| context.segment_mut(index)) {
                    segment.blocked = true;
                }
                self.counters.slot_exhaustions += u64::from(first_time && no_slot);
                self.counters.page_waits += u64::from(first_time && !no_slot);
                continue;
            }
            let full = pack.len() >= self.config.prefill_rows_max as usize
                || tokens.saturating_add(prefill.tokens) > self.config.prefill_tokens_max;
            if full && !pack.is_empty() {
                break;
            }
            slots -= u32::from(needs_slot);
            pages -= prefill.pages;
            tokens = tokens.saturating_add(prefill.tokens);
            pack.push(prefill);
        }
        (pack, lacks_pages)
    }

    /// Cuts the pack to what goes beside its riders and to what the running contexts' slack allows; one prompt always
    /// goes.
    fn trim(&self, pack: &mut Vec<DuePrefill>, riders: u32, reason: &'static str) {
        let by_slack = [reason::PREFILL_SLACK, reason::PREFILL_CUT, reason::PREFILL_CAP].contains(&reason);
        let slack = if by_slack { self.slack_for_prefills(&self.view(self.now)) } else { Span::MAX };
        while pack.len() > 1 {
            let (rows, tokens) = (pack.len() as u32, pack.iter().map(|prefill| prefill.tokens).sum());
            let fits = match riders {
                0 => self.prefill_cost(rows, tokens) <= slack,
                _ => self.takes_riders(riders, rows, tokens),
            };
            if fits {
                return;
            }
            pack.pop();
        }
    }

    fn launch_prefill(
        &mut self,
        pack: &[DuePrefill],
        riders: &[ContextId],
        reason: &'static str,
    ) -> Option<Decision> {
        let length = pack.iter().map(|prefill| prefill.tokens).sum::<u32>().max(1);
        let (beside, prompts) = (riders.len() as u32, pack.len() as u32);
        let partition = if riders.is_empty() { self.prefill_partition() } else { Partition::Lm };
        let expected = self.pack_cost(beside, prompts, length);
        let why = self.why(reason, expected);
        let mut rows = Vec::with_capacity(pack.len());
        let mut flown = Vec::with_capacity(pack.len() + riders.len());
        let is_first =
            |prefill: &&DuePrefill| self.contexts.get(&prefill.context).is_some_and(|it| !it.admitted);
        let firsts = pack.iter().filter(is_first).count();
        let rung = self.climb_ladder(firsts);
        for prefill in pack {
            if let Some((row, flight)) = self.prefill_row(prefill, rung) {
                rows.push(row);
                flown.push(flight);
            }
        }
        if rows.is_empty() {
            return None;
        }
        let bucket = if riders.is_empty() { prompts } else { self.ride_bucket(beside, prompts) };
        let (ready, _) = self.ready_step(riders);
        let riders = self.step_rows(&ready, &mut flown);
        self.steps_since_prefill = u32::from(!riders.is_empty());
        self.counters.rides += u64::from(!riders.is_empty());
        let launch = self.take_off(Flight {
            lane: Lane::Lm,
            stage: Stage::Prefill,
            partition,
            launched: self.now,
            expected,
            bucket,
            length,
            key: None,
            rows: flown,
        });
        Some(Decision::Prefill { launch, partition, rows, riders, why })
    }

    fn prefill_row(&mut self, prefill: &DuePrefill, rung: usize) -> Option<(PrefillRow, FlightRow)> {
        let id = prefill.context;
        let context = self.contexts.get(&id)?;
        let index = context.waiting()?.index;
        let shared = self.shared_pages(context, context.waiting()?).to_vec();
        if let (Some((key, _)), false) = (context.prefix, shared.is_empty()) {
            self.touch_prefix(key);
        }
        let context = self.contexts.get_mut(&id)?;
        let slot: SlotId = match context.slot {
            Some(slot) => slot,
            None => self.slots.take()?,
        };
        context.slot = Some(slot);
        if !context.admitted {
            context.admitted = true;
            context.rung = rung;
            self.counters.admitted += 1;
            self.outputs.push_back(SchedOutput::Admitted { context: id, slot });
        }
        let exact = context.exact_frames.is_some();
        let segment = context.segment_mut(index)?;
        // `fit` has seen to it that this many are available.
        if self.pages.reserve(prefill.pages) {
            segment.promised = prefill.pages;
        }
        for &page in &shared {
            self.pages.retain(page);
        }
        segment.pages.clone_from(&shared);
        for _ in shared.len() as u32..self.pages.pages_for(segment.prompt_tokens) {
            segment.pages.extend(self.pages.take(&mut segment.promised));
        }
        segment.launched = 1;
        segment.lm_in_flight += 1;
        let text_ids = if segment.streamed { 1 } else { u64::from(segment.ids) };
        let row = PrefillRow {
            context: id,
            slot,
            segment: index,
            prompt_tokens: segment.prompt_tokens,
            pages: segment.pages.clone(),
            cached: shared.len() as u32 * self.config.page_positions,
            eos_allowed: !exact && segment.eos_allowed_at(0),
        };
        context.usage.text_ids += text_ids;
        let version = context.claim(Lane::Lm);
        let flight = FlightRow {
            context: id,
            segment: index,
            version,
            first_frame: 0,
            frames: 1,
            position: 0,
            deadline: prefill.deadline,
            slack: Span::MAX,
            ready: self.now,
        };
        Some((row, flight))
    }
}
