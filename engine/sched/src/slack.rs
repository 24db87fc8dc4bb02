//! Deadlines, slack, and the next chunk of a context (DESIGN.md section 5).

use contract::{ContextId, Lane, Playback, SlotId, Span, Tick};

use crate::beat::Beat;
use crate::codec_costs::CodecCosts;
use crate::context::{Context, Segment};
use crate::{Profile, SchedConfig};

/// How fast the lm lane goes with the contexts that run now.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pace {
    /// Contexts that want a step.
    pub(crate) contexts: u32,
    /// Positions of the longest of them.
    pub(crate) positions: u32,
    /// Time in which each of them gets one step.
    pub(crate) round: Span,
}

/// The configuration, the profile and a moment: all that slack depends on beside the context.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    pub(crate) config: &'a SchedConfig,
    pub(crate) profile: &'a Profile,
    pub(crate) costs: &'a CodecCosts,
    pub(crate) pace: Pace,
    pub(crate) beat: Beat,
    pub(crate) now: Tick,
}

/// What lm slack follows from beside a deadline, the pace and costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SlackKey {
    /// The step, of all that are launched, that brings the chunk's last frame, and the one that brings the last of
    /// the shortest it could be cut to, which may be past.
    last: i64,
    least: i64,
    lane: Lane,
    length: u32,
}

impl SlackKey {
    /// Steps until the chunk has its frames.
    pub(crate) fn steps_until(self, beat: Beat) -> u32 {
        u32::try_from(self.last - beat.launched).unwrap_or(0)
    }
}

/// What the time to cut a chunk short follows from beside a deadline, the pace and costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum CutKey {
    /// No frame will come for now.
    Stuck { usable: u32 },
    /// Frames come, but not with every step.
    Still { usable: u32, missing: u32 },
    /// Every step brings a frame, the one that lands as number `last` the last of `wanted`; not to be cut before the
    /// shortest length is there.
    BySteps { last: i64, wanted: u32 },
}

/// The next chunk of a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) context: ContextId,
    pub(crate) slot: SlotId,
    pub(crate) segment: u32,
    pub(crate) first_frame: u32,
    pub(crate) frames: u32,
    pub(crate) position: u64,
    pub(crate) first_of_segment: bool,
    pub(crate) last_of_segment: bool,
    pub(crate) first_of_context: bool,
    pub(crate) deadline: Tick,
    /// Deadline of the chunk after it; [`Tick::NEVER`] when none will come.
    pub(crate) next_deadline: Tick,
    pub(crate) urgent: bool,
    /// Cut short of what the ladder asks for.
    pub(crate) cut: bool,
    /// Urgent because a background batch would invert, not because of its own slack.
    pub(crate) forced: bool,
}

impl View<'_> {
    pub(crate) fn frames(&self, count: u64) -> Span {
        self.profile.frame_span.times(i64::try_from(count).unwrap_or(i64::MAX))
    }

    /// When a context's first audio is due.
    pub(crate) fn first_due(&self, context: &Context) -> Tick {
        // A context opened long before its first text cannot owe audio before it.
        let start = context.first_text.map_or(context.arrival, |text| text.max(context.arrival));
        start + self.config.ttfa_target
    }

    /// When the chunk that starts at frame `position` of the context is due.
    pub(crate) fn deadline_at(&self, context: &Context, position: u64) -> Tick {
        let zero = match context.playback {
            Playback::Paused { .. } => Tick::NEVER,
            Playback::Playing { zero } => zero,
            // Until the gateway reports, the listener is taken to have started with the first chunk.
            Playback::NotStarted => context.first_commit.unwrap_or_else(|| self.first_due(context)),
        };
        zero + self.frames(position)
    }

    /// Decoded lead: sound made minus sound played. Frames not yet decoded do not count.
    pub(crate) fn lead(&self, context: &Context) -> Span {
        let made = self.frames(context.committed);
        let played = match context.playback {
            Playback::NotStarted => Span::ZERO,
            Playback::Paused { played } => played,
            Playback::Playing { zero } => self.now.since(zero),
        };
        made - played.clamp(Span::ZERO, made)
    }

    /// Whether the context has so much decoded audio in hand that nothing more need be made for it.
    pub(crate) fn is_ahead(&self, context: &Context) -> bool {
        self.lead(context) > self.config.lm_lead
    }

    /// When [`View::is_ahead`] ends by itself.
    pub(crate) fn ahead_until(&self, context: &Context) -> Option<Tick> {
        match context.playback {
            Playback::Playing { zero } if self.is_ahead(context) => {
                Some(zero + self.frames(context.committed) - self.config.lm_lead)
            }
            _ => None,
        }
    }

    /// Frames of the context's `nth` chunk from its first, by the ladder it was admitted with.
    pub(crate) fn ladder_length(&self, rung: usize, nth: u32) -> u32 {
        let lengths = &self.profile.codec_lengths;
        let at = rung.saturating_add(nth as usize).min(lengths.len().saturating_sub(1));
        lengths.get(at).copied().unwrap_or(1)
    }

    pub(crate) fn codec_cost(&self, lane: Lane, rows: u32, frames: u32) -> Span {
        self.costs.at(lane, rows, frames)
    }

    /// Whether the lm lane may give the context its next step: prefilled, not ended, text known,
    /// below its frame bound, and not so far ahead that others come first.
    pub(crate) fn wants_step(&self, context: &Context) -> bool {
        let Some(segment) = context.active() else { return false };
        !context.finished
            && self.step_is_known(context, segment)
            && (self.profile.state_grows || !self.is_ahead(context))
    }

    /// Whether the segment's next step has its text and stays below the frame bound.
    pub(crate) fn step_is_known(&self, context: &Context, segment: &Segment) -> bool {
        segment.launched < context.frame_cap(segment).0 && segment.text_at(segment.launched).is_some()
    }

    /// What lm slack follows from for the first chunk that misses frames of a context's active segment, and its
    /// deadline.
    pub(crate) fn slack_key(&self, context: &Context, segment: &Segment) -> (SlackKey, Tick) {
        let (cap, _) = context.frame_cap(segment);
        let base = context.base_of(segment.index);
        let mut start = segment.dispatched;
        let mut nth = context.chunks;
        loop {
            let length = self.ladder_length(context.rung, nth);
            let end = start.saturating_add(length);
            if end > segment.launched || length == 0 {
                let step_of =
                    |frame: u32| self.beat.launched + i64::from(frame.min(cap)) - i64::from(segment.launched);
                let shortest = self.profile.shortest_length().min(length);
                let last = step_of(end);
                // Kept apart only where prefills go by it: the fewer keys differ, the fewer are looked at in a step.
                let by_cut = self.config.steps_between_prefills > 0;
                let least = if by_cut { step_of(start.saturating_add(shortest)) } else { last };
                let deadline = self.deadline_at(context, base + u64::from(start));
                let lane = if base + u64::from(start) == 0 { Lane::Urgent } else { Lane::Background };
                return (SlackKey { last, least, lane, length }, deadline);
            }
            // Past the ladder all chunks are alike: jump to the one that misses frames.
            let steady = nth as usize + context.rung >= self.profile.codec_lengths.len();
            let skip = if steady { ((segment.launched - start) / length).max(1) } else { 1 };
            start += skip * length;
            nth = nth.saturating_add(skip);
        }
    }

    /// Deadline minus now minus the time to generate the chunk's missing frames minus its codec time.
    pub(crate) fn slack_at(&self, key: SlackKey, deadline: Tick) -> Span {
        self.slack_for(deadline, key.last, || self.codec_cost(key.lane, 1, key.length))
    }

    /// As [`View::slack_at`] for the chunk cut to the shortest: without that much it comes late.
    pub(crate) fn cut_slack_at(&self, key: SlackKey, deadline: Tick) -> Span {
        let shortest = self.profile.shortest_length().min(key.length);
        self.slack_for(deadline, key.least, || self.codec_cost(Lane::Urgent, 1, shortest))
    }

    fn slack_for(&self, deadline: Tick, step: i64, codec: impl Fn() -> Span) -> Span {
        let slack = deadline.since(self.now);
        let steps = (step - self.beat.launched).max(0) + i64::from(self.profile.look_ahead);
        if slack == Span::MAX { slack } else { slack - self.pace.round.times(steps) - codec() }
    }

    /// The context's next chunk if all its frames exist, whether or not it may be dispatched now; else what
    /// the time follows from at which it is cut short, and its deadline. `known` and `wants`: as
    /// [`View::step_is_known`] and [`View::wants_step`] say of its active segment.
    pub(crate) fn next_chunk(
        &self,
        context: &Context,
        known: bool,
        wants: bool,
    ) -> (Option<Head>, Option<(CutKey, Tick)>) {
        let Some(segment) = codec_segment(context) else { return (None, None) };
        let waiting = segment.waiting_frames();
        let wanted = self.ladder_length(context.rung, context.chunks);
        if segment.total.is_some() {
            return (self.head(context, segment, waiting.min(wanted)), None);
        }
        let usable = waiting.saturating_sub(self.profile.look_ahead);
        if usable >= wanted {
            return (self.head(context, segment, wanted), None);
        }
        match self.cut_key(context, segment, known, wants) {
            Some((key, deadline)) if self.cut_tick(key, deadline) <= self.now => {
                (self.head(context, segment, usable), None)
            }
            cut => (None, cut),
        }
    }

    /// The next chunk made of the first `frames` frames that wait in `segment`.
    fn head(&self, context: &Context, segment: &Segment, frames: u32) -> Option<Head> {
        let slot = context.slot.filter(|_| frames > 0)?;
        let wanted = self.ladder_length(context.rung, context.chunks);
        let last = segment.total == Some(segment.dispatched + frames);
        let more = !last || context.segments.back().is_some_and(|end| end.index != segment.index);
        let position = context.dispatched;
        let next = position + u64::from(frames);
        let deadline = self.deadline_at(context, position);
        let first_of_context = position == 0;
        let slack = deadline.since(self.now);
        let by_slack = first_of_context || slack < self.urgent_margin(context);
        let next_deadline = if more { self.deadline_at(context, next) } else { Tick::NEVER };
        // A report since then may have moved its deadlines, or its end have become known.
        let forced = context.forced_urgent && !by_slack && !self.passes(1, frames, deadline, next_deadline);
        Some(Head {
            context: context.id,
            slot,
            segment: segment.index,
            first_frame: segment.dispatched,
            frames,
            position,
            first_of_segment: segment.dispatched == 0,
            last_of_segment: last,
            first_of_context,
            deadline,
            next_deadline,
            urgent: by_slack || forced,
            cut: segment.total.is_none() && frames < wanted,
            forced,
        })
    }

    /// No inversion: a background batch of this many rows and frames must make the chunk by its
    /// deadline, and early enough that one urgent call can still make the next chunk in time.
    pub(crate) fn passes(&self, rows: u32, frames: u32, deadline: Tick, next_deadline: Tick) -> bool {
        let finish = self.now + self.codec_cost(Lane::Background, rows, frames);
        finish <= deadline && finish + self.urgent_call() <= next_deadline
    }

    /// Predicted time of one urgent call for one steady chunk.
    pub(crate) fn urgent_call(&self) -> Span {
        self.codec_cost(Lane::Urgent, 1, self.profile.steady_length())
    }

    /// Slack below which the next chunk is urgent. The chunks after a short first one would all be
    /// urgent by the plain margin: for the second and third of a short ladder it is half of the audio
    /// in hand (all that has been handed to the listener) if that is less.
    pub(crate) fn urgent_margin(&self, context: &Context) -> Span {
        let margin = self.config.urgent_margin;
        let short_ladder = context.rung + 1 < self.profile.codec_lengths.len();
        if short_ladder && (1..=2).contains(&context.chunks) {
            margin.min(self.frames(context.dispatched).half())
        } else {
            margin
        }
    }

    /// When a head that is not urgent turns so by its slack alone.
    pub(crate) fn turns_urgent(&self, context: &Context, head: &Head) -> Tick {
        just_below(head.deadline - self.urgent_margin(context))
    }

    /// What the time at which the next chunk would be cut short follows from, and its deadline; `None`
    /// when it would not be.
    fn cut_key(
        &self,
        context: &Context,
        segment: &Segment,
        known: bool,
        wants: bool,
    ) -> Option<(CutKey, Tick)> {
        let deadline = self.deadline_at(context, context.dispatched);
        if deadline == Tick::NEVER || context.slot.is_none() {
            return None;
        }
        let wanted = self.ladder_length(context.rung, context.chunks);
        // Frames that the codec has to see beyond it are missing as well.
        let missing = i64::from(wanted + self.profile.look_ahead) - i64::from(segment.waiting_frames());
        let usable = segment.waiting_frames().saturating_sub(self.profile.look_ahead);
        let stuck = context.page_stalled || !known;
        let key = if stuck {
            (usable > 0 && segment.lm_in_flight == 0).then_some(CutKey::Stuck { usable })
        } else if wants {
            Some(CutKey::BySteps { last: self.beat.landed + missing, wanted })
        } else {
            let missing = wanted.saturating_sub(usable);
            (usable >= self.shortest_cut()).then_some(CutKey::Still { usable, missing })
        };
        Some((key?, deadline))
    }

    /// Frames of the active segment from which on one more may change its next chunk, or when it is cut; 0 when each
    /// does.
    pub(crate) fn made_until(&self, context: &Context, head: Option<&Head>) -> u32 {
        let Some(segment) = codec_segment(context) else { return 0 };
        if segment.total.is_some() {
            return u32::MAX;
        }
        if let Some(head) = head {
            return if head.cut { 0 } else { u32::MAX };
        }
        let wanted = self.ladder_length(context.rung, context.chunks);
        segment.dispatched.saturating_add(self.profile.look_ahead).saturating_add(wanted)
    }

    /// Frames of the shortest chunk that is cut while more are made.
    fn shortest_cut(&self) -> u32 {
        self.profile.shortest_length().max(1)
    }

    /// When the next chunk is cut short, if nothing else comes.
    pub(crate) fn cut_tick(&self, key: CutKey, deadline: Tick) -> Tick {
        let (usable, missing) = match key {
            CutKey::Stuck { usable } => (usable, None),
            CutKey::Still { usable, missing } => (usable, Some(i64::from(missing))),
            CutKey::BySteps { last, wanted } => {
                let missing = last - self.beat.landed;
                match u32::try_from(i64::from(wanted) - missing) {
                    Ok(usable) if usable >= self.shortest_cut() => (usable, Some(missing)),
                    _ => return Tick::NEVER,
                }
            }
        };
        let codec = self.codec_cost(Lane::Urgent, 1, usable);
        let early = match missing {
            // Nothing more will be made for now: hand out what there is before the listener runs dry.
            None => self.config.urgent_margin,
            // The missing frames would come too late: a shorter chunk in time is better than a late one.
            Some(missing) => self.pace.round.times(missing),
        };
        just_below(deadline - codec - early)
    }

    /// No chunk is cut short earlier than this before its deadline.
    pub(crate) fn cut_early_max(&self) -> Span {
        let longest = self.profile.codec_lengths.iter().max().copied().unwrap_or(0) + self.profile.look_ahead;
        self.costs.alone_max() + self.pace.round.times(i64::from(longest)).max(self.config.urgent_margin)
    }

    /// When a context that waits for text has waited long enough.
    pub(crate) fn idle_at(&self, context: &Context) -> Option<Tick> {
        let dry = context.segments.back().and_then(|segment| segment.dry_since).unwrap_or(Tick::ZERO);
        context.is_waiting_for_text().then(|| context.last_activity.max(dry) + self.config.idle_limit)
    }

    /// A context that was let in but has not begun is turned away after the limit.
    pub(crate) fn wait_ends_at(&self, context: &Context) -> Option<Tick> {
        if context.finished || context.admitted || context.encode.is_some() {
            return None;
        }
        context.waiting().map(|segment| segment.ready_at + self.config.first_audio_limit)
    }
}

/// The segment the next chunk comes from.
fn codec_segment(context: &Context) -> Option<&Segment> {
    let open = |segment: &&Segment| segment.total.is_none_or(|total| segment.dispatched < total);
    context.find(open).filter(|segment| segment.launched > 0)
}

/// The first tick at which what is strictly below a bound at `at` holds.
pub(crate) fn just_below(at: Tick) -> Tick {
    at + Span::from_micros(1)
}
