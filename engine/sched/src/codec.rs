//! The two codec lanes: chunks by deadline, urgent ones on the whole processor, and no inversion.

use contract::{Lane, Partition, Span, Stage, Tick};

use crate::context::Context;
use crate::flight::{Flight, FlightRow};
use crate::slack::{Head, View};
use crate::{CodecRow, Counters, Decision, Sched, reason};

/// Follows the head chunk of one context: since when it is ready, and whether it turned urgent while
/// it waited.
pub(crate) fn mark_head(context: &mut Context, view: &View<'_>, counters: &mut Counters) {
    let Some(urgent) = context.entry.head().map(|head| head.urgent) else {
        context.head_ready = None;
        context.head_waited = false;
        return;
    };
    context.head_ready.get_or_insert(view.now);
    if !urgent {
        context.head_waited = true;
    } else if context.head_waited && !context.head_promoted {
        context.head_promoted = true;
        counters.promotions += 1;
        if context.in_flight(Lane::Background) > 0 {
            counters.promotions_behind_predecessor += 1;
        }
    }
}

impl Sched {
    /// All urgent chunks in one batch, by deadline, whenever the urgent lane is empty.
    pub(crate) fn urgent_decision(&mut self) -> Option<Decision> {
        if self.flights_in(Lane::Urgent) > 0 {
            return None;
        }
        let heads = self.ready_heads(true, self.urgent_rows_max());
        let first = heads.first()?;
        let reason = if heads.iter().any(|head| head.first_of_context) {
            reason::URGENT_FIRST
        } else if first.forced {
            reason::URGENT_INVERSION
        } else {
            reason::URGENT_SLACK
        };
        Some(self.launch_codec(Lane::Urgent, &heads, reason))
    }

    /// A background batch, if the lane is empty and a rule fires.
    pub(crate) fn background_decision(&mut self) -> Option<Decision> {
        if self.flights_in(Lane::Background) > 0 {
            return None;
        }
        loop {
            let heads = self.ready_heads(false, self.profile.codec_rows_max() as usize);
            let reason = self.background_reason(&heads)?;
            let fitting = self.largest_prefix(&heads);
            if fitting > 0 {
                if fitting < heads.len().min(self.profile.codec_rows_max() as usize) {
                    self.counters.batches_cut += 1;
                }
                return Some(self.launch_codec(Lane::Background, &heads[..fitting], reason));
            }
            // Even alone the first would be late, or make its next chunk late: urgent, now.
            let first = heads.first()?.context;
            self.counters.inversions_averted += 1;
            if let Some(context) = self.contexts.get_mut(&first) {
                context.forced_urgent = true;
            }
        }
    }

    /// The first `most` ready chunks that may be dispatched, urgent ones or the others, in deadline order.
    fn ready_heads(&mut self, urgent: bool, most: usize) -> Vec<Head> {
        // A decode step that came to nothing may have capped or stalled contexts.
        self.reindex();
        self.index.dispatchable(urgent).take(most).copied().collect()
    }

    /// As [`Sched::background_deadline`], for the chunks that wait now.
    pub(crate) fn next_background_deadline(&self) -> Tick {
        let most = self.profile.codec_rows_max() as usize;
        self.background_deadline(self.index.dispatchable(false).take(most))
    }

    /// When a member's deadline will have been broken by one more lm step, if nothing is launched.
    fn background_deadline<'a>(&self, heads: impl Iterator<Item = &'a Head>) -> Tick {
        let (mut rows, mut frames) = (0, 1);
        let (mut first, mut next) = (Tick::NEVER, Tick::NEVER);
        for head in heads {
            rows += 1;
            frames = frames.max(head.frames);
            first = first.min(head.deadline);
            next = next.min(head.next_deadline);
        }
        if rows == 0 {
            return Tick::NEVER;
        }
        let view = self.view(self.now);
        let batch = view.codec_cost(Lane::Background, rows, frames);
        // A member that waits until its slack is below the margin turns urgent: that counts as broken.
        let own = batch.max(self.config.urgent_margin);
        let broken = (first - own).min(next - (batch + view.urgent_call()));
        broken - self.pace.round + Span::from_micros(1)
    }

    fn background_reason(&self, heads: &[Head]) -> Option<&'static str> {
        if heads.is_empty() {
            return None;
        }
        if heads.len() >= (self.config.background_batch as usize).min(self.profile.codec_rows_max() as usize)
        {
            return Some(reason::BACKGROUND_FULL);
        }
        if self.background_deadline(heads.iter()) <= self.now {
            return Some(reason::BACKGROUND_DEADLINE);
        }
        // The lm lane was asked first: if it is empty now, it has nothing to generate.
        if self.flights_in(Lane::Lm) == 0 {
            return Some(reason::BACKGROUND_LM_IDLE);
        }
        (self.index.joining == 0).then_some(reason::BACKGROUND_ALL)
    }

    /// The most chunks, in deadline order, that may go in one background batch without inversion.
    fn largest_prefix(&self, heads: &[Head]) -> usize {
        let view = self.view(self.now);
        let most = heads.len().min(self.profile.codec_rows_max() as usize);
        let passes = |count: usize| {
            let members = &heads[..count];
            let frames = members.iter().map(|head| head.frames).max().unwrap_or(1);
            members.iter().all(|head| view.passes(count as u32, frames, head.deadline, head.next_deadline))
        };
        (1..=most).rev().find(|&count| passes(count)).unwrap_or(0)
    }

    fn urgent_rows_max(&self) -> usize {
        self.config.urgent_batch_max.min(self.profile.codec_rows_max()) as usize
    }

    fn launch_codec(&mut self, lane: Lane, heads: &[Head], reason: &'static str) -> Decision {
        let view = self.view(self.now);
        let frames = heads.iter().map(|head| head.frames).max().unwrap_or(1);
        let bucket = self.profile.codec_bucket(heads.len() as u32);
        let length = self.profile.codec_length(frames);
        let expected = view.codec_cost(lane, heads.len() as u32, frames);
        let why = self.why(reason, expected);
        let mut rows = Vec::with_capacity(heads.len());
        let mut flown = Vec::with_capacity(heads.len());
        for head in heads {
            let slack = head.deadline.since(self.now);
            let Some(context) = self.contexts.get_mut(&head.context) else { continue };
            let wanted = self.profile.codec_lengths.get(context.rung + context.chunks as usize);
            let wanted =
                wanted.copied().unwrap_or(self.profile.codec_lengths[self.profile.codec_lengths.len() - 1]);
            self.counters.chunks_cut += u64::from(head.frames < wanted && !head.last_of_segment);
            flown.push(FlightRow {
                context: head.context,
                segment: head.segment,
                version: context.claim(lane),
                first_frame: head.first_frame,
                frames: head.frames,
                position: head.position,
                deadline: head.deadline,
                slack,
                ready: context.head_ready.unwrap_or(self.now),
            });
            context.chunks += 1;
            context.dispatched += u64::from(head.frames);
            context.head_ready = None;
            context.head_waited = false;
            context.head_promoted = false;
            context.forced_urgent = false;
            if let Some(segment) = context.segment_mut(head.segment) {
                segment.dispatched += head.frames;
            }
            rows.push(CodecRow {
                context: head.context,
                slot: head.slot,
                segment: head.segment,
                first_frame: head.first_frame,
                frames: head.frames,
                first_of_segment: head.first_of_segment,
                last_of_segment: head.last_of_segment,
                slack,
            });
        }
        let partition = if lane == Lane::Urgent { Partition::Whole } else { Partition::Background };
        let launch = self.take_off(Flight {
            lane,
            stage: Stage::Codec,
            partition,
            launched: self.now,
            expected,
            bucket,
            length,
            key: None,
            rows: flown,
        });
        Decision::Codec { launch, lane, bucket, length, rows, why }
    }
}
