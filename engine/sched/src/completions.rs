//! What each completion changes. A row of a stale version changes nothing but its fence.

use contract::{ContextId, EngineError, FinishReason, Lane, LaunchId, Span, Stage, Tick};

use crate::context::Context;
use crate::flight::{Flight, FlightRow};
use crate::{
    ChunkResult, CommittedChunk, Completion, FrameOutcome, FrameResult, LaunchResult, Sched, SchedOutput,
};

impl Sched {
    pub(crate) fn apply_completion(&mut self, completion: Completion) {
        let Completion { launch, at, took, result } = completion;
        let Some(flight) = self.flights.remove(&launch) else {
            self.counters.stale_completions += 1;
            return;
        };
        let at = at.min(self.now);
        self.begin_next(flight.lane, at);
        self.counters.lm_steps += u64::from(flight.stage != Stage::Encode && flight.stage != Stage::Codec);
        let busy = if took > Span::ZERO { took } else { at.since(flight.launched) };
        self.counters.lane_mut(flight.lane).busy_us += u64::try_from(busy.as_micros()).unwrap_or(0);
        if !matches!(result, LaunchResult::Lost { .. }) {
            self.repriced = true;
            self.profile.observe(flight.stage, flight.partition, flight.bucket, flight.length, took);
            if flight.stage == Stage::Codec {
                self.costs.renew(&self.profile);
            }
        }
        match (flight.stage, result) {
            (Stage::Codec, LaunchResult::Chunks(chunks)) if chunks.len() == flight.rows.len() => {
                for (row, (flown, chunk)) in flight.rows.iter().zip(chunks).enumerate() {
                    self.land_chunk(launch, row as u32, &flight, flown, chunk, at);
                }
            }
            (Stage::Decode | Stage::Prefill, LaunchResult::Frames(frames))
                if frames.len() == flight.rows.len() =>
            {
                let mut cut = 0;
                for (flown, frame) in flight.rows.iter().zip(frames) {
                    cut += usize::from(self.land_frame(flown, frame) && flown.first_frame > 0);
                }
                // Prompts make frame 0 and stand before a step that rides along.
                if flight.rows.last().is_some_and(|row| row.first_frame > 0) {
                    self.beat_landed(&flight.rows, cut);
                }
            }
            (Stage::Encode, LaunchResult::Encoded) => self.land_encode(&flight, took, None),
            (Stage::Encode, LaunchResult::EncodeFailed { error }) => {
                self.land_encode(&flight, took, Some(error))
            }
            (_, LaunchResult::Lost { what }) => self.lose(launch, &flight, what),
            _ => self.lose(launch, &flight, "its result does not fit what was launched".to_owned()),
        }
    }

    /// Whether the time to cut its chunk was kept relative to steps.
    fn land_frame(&mut self, flown: &FlightRow, frame: FrameResult) -> bool {
        let id = flown.context;
        let Some(context) = self.contexts.mark(&id) else { return false };
        let cut = context.steady.cut;
        match context.land_steadily(flown, &frame, &self.config.guard) {
            Some(false) => return cut,
            Some(true) => {
                self.cut_repetition(id, flown.segment);
                self.settle(id);
                return cut;
            }
            None => {}
        }
        let Some(context) = self.contexts.get_mut(&id) else { return cut };
        let live = context.fence(Lane::Lm, flown.version);
        let Some(segment) = context.segment_mut(flown.segment) else { return cut };
        segment.lm_in_flight = segment.lm_in_flight.saturating_sub(1);
        let (index, made) = (segment.index, segment.made);
        if !live {
            self.counters.stale_rows += 1;
        } else {
            match frame.outcome {
                FrameOutcome::EndOfSpeech => self.end_lm(id, index, made, FinishReason::Done),
                // The device had ended a row that was not over here: a bound of its own.
                FrameOutcome::NoOp => self.end_lm(id, index, made, FinishReason::Capped),
                FrameOutcome::Made => {
                    let prefilled = segment.made == 0;
                    segment.made += 1;
                    let config = &self.config.guard;
                    if segment.guard.frame_repeats(config, frame.code_hash) {
                        self.cut_repetition(id, index);
                    }
                    if prefilled {
                        self.keep_prefix(id, index);
                    }
                    self.end_at_bound(id);
                    // A segment that goes on leaves nothing to settle.
                    if self.contexts.get(&id).and_then(Context::active).is_some_and(|it| it.index == index) {
                        return cut;
                    }
                }
            }
        }
        self.settle(id);
        cut
    }

    /// Ends a segment before what only repeated, which is not worth speaking.
    fn cut_repetition(&mut self, id: ContextId, index: u32) {
        let segment = self.contexts.mark(&id).and_then(|context| context.segment_mut(index));
        let Some(segment) = segment else { return };
        let total = segment.made.saturating_sub(self.config.guard.repeat_frames).max(segment.dispatched);
        self.counters.capped_by_repetition += 1;
        self.end_lm(id, index, total, FinishReason::Capped);
    }

    fn land_chunk(
        &mut self,
        launch: LaunchId,
        row: u32,
        flight: &Flight,
        flown: &FlightRow,
        chunk: ChunkResult,
        at: Tick,
    ) {
        let id = flown.context;
        let Some(context) = self.contexts.get_mut(&id) else { return };
        if !context.fence(flight.lane, flown.version) {
            self.counters.stale_rows += 1;
            self.outputs.push_back(SchedOutput::ChunkDropped { context: id, launch, row });
            self.settle(id);
            return;
        }
        let ChunkResult::Made { peak } = chunk else {
            self.counters.not_finite += 1;
            self.outputs.push_back(SchedOutput::ChunkDropped { context: id, launch, row });
            self.fail(id, EngineError::NotFinite);
            return;
        };
        let late = at > flown.deadline;
        let duration = self.profile.frame_span.times(i64::from(flown.frames));
        self.counters.frames += u64::from(flown.frames);
        self.counters.chunks += 1;
        self.counters.chunks_late += u64::from(late);
        context.committed += u64::from(flown.frames);
        context.usage.frames += u64::from(flown.frames);
        context.first_commit.get_or_insert(at);
        context.last_activity = self.now;
        self.outputs.push_back(SchedOutput::ChunkCommitted(CommittedChunk {
            context: id,
            launch,
            row,
            segment: flown.segment,
            first_frame: flown.first_frame,
            position: flown.position,
            frames: flown.frames,
            lane: flight.lane,
            slack: flown.slack,
            ready: flown.ready,
            launched: flight.launched,
            made: at,
            late,
        }));
        if let Some(segment) = context.segment_mut(flown.segment) {
            segment.committed += flown.frames;
            let (index, total) = (segment.index, segment.committed);
            let more = segment.total.is_none_or(|all| all > total);
            if segment.guard.chunk_silent(&self.config.guard, peak, duration) && more {
                self.counters.capped_by_silence += 1;
                self.end_lm(id, index, total, FinishReason::Capped);
            } else if segment.total.is_none() {
                // A segment that goes on leaves nothing to settle.
                return;
            }
        }
        self.settle(id);
    }

    fn land_encode(&mut self, flight: &Flight, took: Span, error: Option<EngineError>) {
        let now = self.now;
        for id in self.leave_with_encode(flight) {
            match (&error, self.contexts.get_mut(&id)) {
                (Some(error), _) => self.fail(id, error.clone()),
                (None, Some(context)) => {
                    context.encode = None;
                    // The wait for slot and pages begins here.
                    if let Some(first) = context.segments.front_mut() {
                        first.ready_at = now;
                    }
                    context.usage.encode = took.max(Span::ZERO);
                }
                (None, None) => {}
            }
        }
    }

    /// Losing a launch ends the contexts in it and nothing else.
    fn lose(&mut self, launch: LaunchId, flight: &Flight, what: String) {
        self.counters.lanes_lost += 1;
        let error = EngineError::LaneLost { lane: flight.lane.name(), what };
        for (row, flown) in flight.rows.iter().enumerate() {
            let id = flown.context;
            let Some(context) = self.contexts.get_mut(&id) else { continue };
            let live = context.fence(flight.lane, flown.version);
            if flight.lane == Lane::Lm {
                if let Some(segment) = context.segment_mut(flown.segment) {
                    segment.lm_in_flight = segment.lm_in_flight.saturating_sub(1);
                }
            } else {
                self.outputs.push_back(SchedOutput::ChunkDropped { context: id, launch, row: row as u32 });
            }
            if live {
                self.fail(id, error.clone());
            } else {
                self.counters.stale_rows += 1;
                self.settle(id);
            }
        }
        for id in self.leave_with_encode(flight) {
            self.fail(id, error.clone());
        }
    }

    /// Takes the encode a launch ran off the list; gives the contexts that waited for it.
    fn leave_with_encode(&mut self, flight: &Flight) -> Vec<ContextId> {
        let encode = flight.key.and_then(|key| self.encodes.remove(&key));
        encode.map(|encode| encode.waiters).unwrap_or_default()
    }
}
