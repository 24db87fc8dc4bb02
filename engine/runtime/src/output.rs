//! From the scheduler's outputs to the contexts' sinks, and its counters to the handle.

use contract::{Chunk, ContextId, EngineError, EngineStats, FinishReason, Output, Span, Tick, Usage};
use sched::{Command, CommittedChunk, SchedOutput, SchedUsage};

use crate::device_engine::DeviceEngine;
use crate::shared::Outlook;
use crate::warm::MEASURED_POSITION;

/// How old the forecast of a busy device may be.
const FORECAST_AGE_MAX: Span = Span::from_millis(5);

impl DeviceEngine {
    pub(crate) fn handle_output(&mut self, now: Tick, output: SchedOutput) {
        match output {
            SchedOutput::Admitted { .. } | SchedOutput::TextDry { .. } | SchedOutput::TextResumed { .. } => {}
            SchedOutput::ChunkCommitted(chunk) => self.hand_out(now, chunk),
            SchedOutput::ChunkDropped { launch, row, .. } => {
                self.flights.samples.remove(&(launch, row));
            }
            SchedOutput::Finished { context, reason, error, usage } => {
                self.tell_end(context, reason, error, usage)
            }
            SchedOutput::Refused { context, retry_after, cause } => {
                let error = Some(cause.error(retry_after));
                self.tell_end(context, FinishReason::Failed, error, SchedUsage::default());
            }
            SchedOutput::Removed { context } => {
                self.contexts.remove(&context);
            }
            SchedOutput::SegmentFinished { context, segment, end_frame, reason } => {
                let Some(speaking) = self.contexts.get_mut(&context) else { return };
                speaking.segments.remove(&segment);
                let end_sample = end_frame * u64::from(self.facts.samples_per_frame);
                self.push(now, context, Output::SegmentFinished { segment, end_sample, reason });
            }
        }
    }

    fn hand_out(&mut self, now: Tick, chunk: CommittedChunk) {
        let Some(samples) = self.flights.samples.remove(&(chunk.launch, chunk.row)) else { return };
        if let Some(speaking) = self.contexts.get_mut(&chunk.context) {
            speaking.usage.samples += samples.len() as u64;
        }
        let output = Output::Chunk(Chunk {
            first_sample: chunk.position * u64::from(self.facts.samples_per_frame),
            samples,
            segment: chunk.segment,
            frames: chunk.frames,
            lane: chunk.lane,
            slack: chunk.slack,
            ready: chunk.ready,
            launched: chunk.launched,
            made: chunk.made,
        });
        self.push(now, chunk.context, output);
    }

    /// A sink that takes nothing ends its context.
    fn push(&mut self, now: Tick, context: ContextId, output: Output) {
        if self.shared.push(context, output).is_err() {
            self.sched.handle_command(now, Command::Fail { context, error: EngineError::OutputFull });
        }
    }

    fn tell_end(
        &mut self,
        context: ContextId,
        reason: FinishReason,
        error: Option<EngineError>,
        known: SchedUsage,
    ) {
        // Told before, by whoever gave the device up if not from here.
        if !self.shared.forget(context) {
            return;
        }
        let Some(speaking) = self.contexts.get(&context) else { return };
        let usage = Usage {
            text_ids: known.text_ids,
            frames: known.frames,
            encode: known.encode,
            text_starved: known.text_starved,
            ..speaking.usage
        };
        // A reader that is gone has nobody to tell.
        let _ = speaking.sink.push(Output::Finished { reason, usage, error });
    }

    pub(crate) fn publish(&mut self, now: Tick) {
        let stats = self.sched.snapshot().engine;
        self.shared.publish(EngineStats { encode_hits: self.encode_hits, ..stats });
        // Only a fleet asks for it, and it looks at every context: while launches land all the time, not each tells it.
        let stale = now.since(self.foreseen) >= FORECAST_AGE_MAX || !self.watch.is_busy();
        if self.seat.of > 1 && stale {
            self.foreseen = now;
            let forecast = self.sched.forecast(now, MEASURED_POSITION);
            self.shared.foresee(Outlook { forecast, opened: self.opened });
        }
    }
}
