//! Overload is answered at arrival: by predicted first audio, and by whether the backbone would
//! still keep up with real time.

use contract::{ContextId, Lane, Span, Tick};

use crate::context::Context;
use crate::{PrefillPolicy, RefusalCause, Sched};

const RETRY_MIN: Span = Span::from_millis(100);
const RETRY_MAX: Span = Span::from_millis(10_000);

impl Sched {
    /// Predicted time from `now` to the first audio of a context that arrives now with a prompt of
    /// this many positions, whose voice needs no encoding. [`Span::MAX`] when no slot can be foreseen.
    #[must_use]
    pub fn predict_first_audio(&self, now: Tick, prompt_tokens: u32) -> Span {
        let now = now.max(self.now);
        let first = self.view(now).ladder_length(self.ladder.rung(), 0);
        self.predict(now, prompt_tokens, None, first)
    }

    /// Whether a context whose first segment has just become ready is turned away, and with what hint.
    pub(crate) fn refusal(&self, id: ContextId) -> Option<(RefusalCause, Span)> {
        let context = self.contexts.get(&id)?;
        let prompt_tokens = context.waiting()?.prompt_tokens;
        // Under load first chunks grow, and are cut where a whole one would come late: what decides is whether the
        // shortest would still be in time.
        let predicted = self.predict(self.now, prompt_tokens, Some(id), self.profile.shortest_length());
        let running = self.pace.contexts + self.newcomers_beside(Some(id)).count() as u32;
        // Costs are corrected by launches only: an idle engine that refused on a pessimistic prediction
        // would never launch again, and so never learn that it was wrong.
        if running == 0 && predicted != Span::MAX {
            return None;
        }
        if predicted > self.first_audio_bound(context, predicted) {
            let hint = predicted - self.config.first_audio_limit;
            let hint = if predicted == Span::MAX { self.soonest_end() } else { hint };
            return Some((RefusalCause::FirstAudio, clamp_retry(hint)));
        }
        let round = self.round_time(running + 1, self.pace.positions.max(prompt_tokens));
        let real_time =
            self.profile.frame_span.as_micros().saturating_mul(i64::from(self.config.lm_load_max_permille));
        if round.as_micros().saturating_mul(1_000) > real_time {
            return Some((RefusalCause::Load, clamp_retry(self.soonest_end())));
        }
        None
    }

    /// The hint for a context that found as many open as may be.
    pub(crate) fn retry_hint(&self) -> Span {
        clamp_retry(self.soonest_end())
    }

    /// Within its fair share of the slots a tenant is refused at the limit; beyond it, as soon as the
    /// first-audio target would be missed while others are running too.
    fn first_audio_bound(&self, newcomer: &Context, predicted: Span) -> Span {
        let limit = self.config.first_audio_limit;
        if predicted <= self.config.ttfa_target {
            return limit;
        }
        let mut tenants: Vec<u32> = vec![newcomer.tenant];
        let mut own = 0_u32;
        for context in self.contexts.values().filter(|context| context.slot.is_some() && !context.finished) {
            tenants.push(context.tenant);
            own += u32::from(context.tenant == newcomer.tenant);
        }
        tenants.sort_unstable();
        tenants.dedup();
        let share = self.config.slots.div_ceil(tenants.len() as u32);
        if tenants.len() > 1 && own >= share { self.config.ttfa_target } else { limit }
    }

    /// Time to first audio for a first chunk of `first` frames.
    fn predict(&self, now: Tick, prompt_tokens: u32, newcomer: Option<ContextId>, first: u32) -> Span {
        let view = self.view(now);
        let mut lane = self.lane_free_at(Lane::Lm).since(now).max(Span::ZERO);
        let newcomers: Vec<u32> = self.newcomers_beside(newcomer).collect();
        let ahead = newcomers.len() as u32;
        let (packs, before, prefill) = self.packed(&newcomers, prompt_tokens);
        lane += before;
        for encode in self.encodes.values().filter(|encode| encode.launch.is_none()) {
            lane += self.encode_cost(encode);
        }
        // A prompt that takes the step along waits for nobody's slack.
        let deadline_aware = self.config.prefill_policy != PrefillPolicy::PrefillFirst
            && !self.prefill_first()
            && !self.takes_riders(self.pace.contexts, 1, prompt_tokens);
        // A pack is cut to what slack allows, and one prompt always goes: one prompt's time decides.
        let short = deadline_aware && self.slack_for_prefills(&view) < self.prefill_cost(1, prompt_tokens);
        let deferral = if short { self.config.deferral_cap } else { Span::ZERO };
        let contexts = self.pace.contexts + ahead + 1;
        let round = self.round_time(contexts, self.pace.positions.max(prompt_tokens));
        let steps = i64::from(first - 1 + self.profile.look_ahead);
        let urgent_wait = self.lane_free_at(Lane::Urgent).since(now).max(Span::ZERO);
        let codec = view.codec_cost(Lane::Urgent, 1, first);
        // Between two packs running contexts get their steps.
        let between = self.config.steps_between_prefills;
        let owed =
            between.saturating_sub(self.steps_since_prefill).saturating_add(packs.saturating_mul(between));
        let turns = deadline_aware && self.pace.contexts > 0;
        let turns = if turns { round.times(i64::from(owed)) } else { Span::ZERO };
        let generate = lane + deferral.max(turns) + prefill + round.times(steps);
        self.room_wait(ahead, prompt_tokens) + generate.max(urgent_wait) + codec
    }

    /// How many packs go before this prompt's own, their time, and the time of its own: newcomers are packed, not run
    /// one by one.
    fn packed(&self, newcomers: &[u32], prompt_tokens: u32) -> (u32, Span, Span) {
        let mut packs = 0;
        let mut before = Span::ZERO;
        let (mut rows, mut tokens) = (0, 0_u32);
        let running = self.pace.contexts;
        let config = &self.config;
        let tokens_max =
            if self.rides(running, 1) { config.ride_tokens_max } else { config.prefill_tokens_max };
        for &next in newcomers.iter().chain([&prompt_tokens]) {
            let full = rows >= self.config.prefill_rows_max || tokens.saturating_add(next) > tokens_max;
            if full && rows > 0 {
                packs += 1;
                before += self.pack_cost(running, rows, tokens);
                (rows, tokens) = (0, 0);
            }
            rows += 1;
            tokens = tokens.saturating_add(next);
        }
        (packs, before, self.pack_cost(running, rows, tokens))
    }

    /// Prompt positions of the contexts let in, beside this one, whose first prefill still waits.
    fn newcomers_beside(&self, id: Option<ContextId>) -> impl Iterator<Item = u32> {
        self.index.newcomers().filter(move |(other, _)| Some(*other) != id).map(|(_, tokens)| tokens)
    }

    /// Predicted wait for a slot and pages behind `ahead` other newcomers.
    fn room_wait(&self, ahead: u32, prompt_tokens: u32) -> Span {
        let pages = self.pages.pages_for(prompt_tokens.saturating_add(1));
        let behind = (ahead + 1).saturating_sub(self.slots.free());
        let behind = if behind == 0 && pages > self.pages.available() { 1 } else { behind };
        if behind == 0 {
            return Span::ZERO;
        }
        let mut ends = self.predicted_ends();
        ends.sort_unstable();
        ends.get(behind as usize - 1).copied().unwrap_or(Span::MAX)
    }

    /// Predicted time until each running context gives its slot back.
    fn predicted_ends(&self) -> Vec<Span> {
        let view = self.view(self.now);
        let holding = self.contexts.values().filter(|context| context.slot.is_some());
        holding
            .map(|context| {
                let left = context.segments.iter().map(|segment| {
                    let whole =
                        segment.total.unwrap_or_else(|| segment.frames_predicted.max(segment.made + 1));
                    let steps =
                        if segment.total.is_some() { 0 } else { whole.saturating_sub(segment.launched) };
                    (u64::from(whole.saturating_sub(segment.committed)), u64::from(steps))
                });
                let (frames, steps) = left.fold((0, 0), |sum, (f, s)| (sum.0 + f, sum.1 + s));
                let generate = self.pace.round.times(i64::try_from(steps).unwrap_or(i64::MAX));
                // The last chunk is made no earlier than the output queue has room for it.
                let play = view.lead(context) + view.frames(frames) - self.config.lm_lead;
                generate.max(play).max(Span::ZERO)
            })
            .collect()
    }

    fn soonest_end(&self) -> Span {
        self.predicted_ends().into_iter().min().unwrap_or(RETRY_MIN)
    }
}

fn clamp_retry(hint: Span) -> Span {
    hint.clamp(RETRY_MIN, RETRY_MAX)
}
