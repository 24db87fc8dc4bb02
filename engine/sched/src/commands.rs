//! What each command changes.

use contract::{ContextId, EngineError, FinishReason, Lane};

use crate::context::{Context, Segment};
use crate::guard::Guard;
use crate::{Command, RefusalCause, Sched, SchedOutput};

impl Sched {
    pub(crate) fn apply_command(&mut self, command: Command) {
        let id = command.context();
        let known = self.contexts.get(&id).is_some_and(|context| !context.finished);
        let opens = matches!(command, Command::Open { .. });
        if known == opens || (opens && self.contexts.contains_key(&id)) {
            self.counters.ignored += 1;
            return;
        }
        match command {
            Command::Open { .. } => self.open(command),
            Command::SegmentReady { .. } => self.segment_ready(command),
            Command::Ids { segment, total, closed, frames_predicted, frames_max, .. } => {
                self.ids(id, segment, total, closed, (frames_predicted, frames_max));
            }
            Command::Finish { .. } => self.no_more(id),
            Command::SharePrefix { key, positions, .. } => {
                if let Some(context) = self.contexts.get_mut(&id).filter(|context| context.next_segment == 0)
                {
                    context.prefix = Some((key, positions));
                } else {
                    self.counters.ignored += 1;
                }
            }
            Command::Playback { playback, .. } => {
                if let Some(context) = self.contexts.get_mut(&id) {
                    context.playback = playback;
                }
            }
            Command::Cancel { .. } => self.cancel(id),
            Command::Fail { error, .. } => self.fail(id, error),
        }
    }

    fn open(&mut self, command: Command) {
        let Command::Open { context: id, arrival, tenant, exact_frames, voice_encode, encode_samples } =
            command
        else {
            return;
        };
        if self.contexts.len() >= self.config.open_max as usize {
            self.counters.refused += 1;
            let retry_after = self.retry_hint();
            let cause = RefusalCause::TooManyOpen;
            self.outputs.push_back(SchedOutput::Refused { context: id, retry_after, cause });
            self.outputs.push_back(SchedOutput::Removed { context: id });
            return;
        }
        let context = Context::new(id, arrival, tenant, exact_frames, voice_encode, self.now);
        self.contexts.insert(id, context);
        if let Some(key) = voice_encode {
            self.wait_for_encode(key, encode_samples, id);
        }
    }

    fn segment_ready(&mut self, command: Command) {
        let Command::SegmentReady {
            context: id,
            segment,
            prompt_tokens,
            ids,
            closed,
            streamed,
            frames_predicted,
            frames_max,
        } = command
        else {
            return;
        };
        let Some(context) = self.contexts.get_mut(&id) else { return };
        let previous_open = context.segments.back().is_some_and(|last| !last.closed && last.total.is_none());
        let lacks_text = streamed && ids == 0;
        if context.no_more || segment != context.next_segment || previous_open || lacks_text {
            self.counters.ignored += 1;
            return;
        }
        if context.segments.len() >= self.config.segments_max as usize {
            let retry_after = self.retry_hint();
            self.fail(id, EngineError::Overloaded { retry_after });
            return;
        }
        let prompt_tokens = prompt_tokens.max(1);
        if self.pages.pages_for(prompt_tokens.saturating_add(1)) > self.pages.total() {
            self.fail(id, EngineError::OutOfMemory { what: "key/value pages for the prompt" });
            return;
        }
        let first = context.first_text.is_none();
        context.first_text.get_or_insert(self.now);
        context.next_segment += 1;
        context.last_activity = self.now;
        context.segments.push_back(Segment {
            index: segment,
            prompt_tokens,
            ids,
            closed: closed || !streamed,
            streamed,
            frames_predicted,
            frames_max: frames_max.max(1),
            ready_at: self.now,
            launched: 0,
            made: 0,
            dispatched: 0,
            committed: 0,
            total: None,
            reason: FinishReason::Done,
            lm_in_flight: 0,
            pages: Vec::new(),
            fresh_pages: 0,
            promised: 0,
            dry_since: None,
            blocked: false,
            guard: Guard::default(),
        });
        self.end_at_bound(id);
        self.settle(id);
        if first && let Some((cause, retry_after)) = self.refusal(id) {
            self.refuse(id, cause, retry_after);
        }
    }

    fn ids(&mut self, id: ContextId, index: u32, total: u32, closed: bool, frames: (u32, u32)) {
        let now = self.now;
        let Some(context) = self.contexts.get_mut(&id) else { return };
        let accepts =
            |segment: &&mut Segment| !segment.closed && total >= segment.ids && segment.total.is_none();
        let Some(segment) = context.segment_mut(index).filter(accepts) else {
            self.counters.ignored += 1;
            return;
        };
        segment.ids = total;
        segment.closed = closed;
        segment.frames_predicted = segment.frames_predicted.max(frames.0);
        segment.frames_max = segment.frames_max.max(frames.1);
        context.last_activity = now;
        self.end_at_bound(id);
        self.settle(id);
    }

    fn no_more(&mut self, id: ContextId) {
        let Some(context) = self.contexts.get_mut(&id) else { return };
        context.no_more = true;
        context.last_activity = self.now;
        if let Some(last) = context.segments.back_mut() {
            last.closed = true;
        }
        self.end_at_bound(id);
        self.settle(id);
    }

    fn cancel(&mut self, id: ContextId) {
        let steps = self.counters.lm_steps;
        if let Some(context) = self.contexts.get_mut(&id).filter(|context| !context.finished) {
            context.cancelled_at = Some(steps);
            let in_lane = |lane| u64::from(context.in_flight(lane) > 0);
            self.counters.cancelled_in_background += in_lane(Lane::Background);
            self.counters.cancelled_in_lm += in_lane(Lane::Lm);
            self.counters.cancelled_in_urgent += in_lane(Lane::Urgent);
        }
        self.finish(id, FinishReason::Cancelled, None);
    }
}
