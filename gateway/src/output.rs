//! The bounded queue between the engine's thread and a task of ours.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use contract::{Output, OutputSink, SinkFull};
use tokio::sync::mpsc;

/// Outputs one context may have waiting besides its samples: a segment end or a finish each.
const EVENTS_MAX: u64 = 256;

/// What came out of an engine, with the key its sink was made with. It travels in a box: a channel takes
/// room for 32 messages when it is made, and an idle session should be small.
#[derive(Debug)]
pub(crate) struct Tagged {
    pub(crate) key: u64,
    pub(crate) output: Output,
}

/// The engine's end of the queue, one for each context.
#[derive(Debug)]
pub(crate) struct QueueSink {
    key: u64,
    queue: mpsc::Sender<Box<Tagged>>,
    level: Arc<Level>,
    samples_max: u64,
}

/// How much of a context waits in the queue.
#[derive(Debug, Default)]
pub(crate) struct Level {
    samples: AtomicU64,
    events: AtomicU64,
}

impl QueueSink {
    /// A sink that holds at most `samples_max` samples, and the level to lower as they are taken.
    pub(crate) fn new(
        key: u64,
        queue: mpsc::Sender<Box<Tagged>>,
        samples_max: u64,
    ) -> (Arc<Self>, Arc<Level>) {
        let level = Arc::new(Level::default());
        (Arc::new(Self { key, queue, level: Arc::clone(&level), samples_max }), level)
    }
}

/// Room a queue shared by `contexts` needs, so that no context can fill another's part. A channel's
/// memory is taken as it fills, not before.
pub(crate) const fn queue_bound(contexts: usize) -> usize {
    contexts * (EVENTS_MAX as usize + 8)
}

impl OutputSink for QueueSink {
    fn push(&self, output: Output) -> Result<(), SinkFull> {
        let samples = count(&output);
        let held = self.level.samples.fetch_add(samples, Ordering::Relaxed) + samples;
        let events = self.level.events.fetch_add(1, Ordering::Relaxed) + 1;
        let last = matches!(output, Output::Finished { .. });
        let fits = last || (held <= self.samples_max && events <= EVENTS_MAX);
        if fits && self.queue.try_send(Box::new(Tagged { key: self.key, output })).is_ok() {
            return Ok(());
        }
        self.level.samples.fetch_sub(samples, Ordering::Relaxed);
        self.level.events.fetch_sub(1, Ordering::Relaxed);
        Err(SinkFull)
    }
}

impl Level {
    /// Notes that `output` has been taken out of the queue.
    pub(crate) fn taken(&self, output: &Output) {
        self.samples.fetch_sub(count(output), Ordering::Relaxed);
        self.events.fetch_sub(1, Ordering::Relaxed);
    }
}

fn count(output: &Output) -> u64 {
    match output {
        Output::Chunk(chunk) => chunk.samples.len() as u64,
        Output::Finished { .. } | Output::SegmentFinished { .. } => 0,
    }
}

#[cfg(test)]
mod tests {
    use contract::{Chunk, FinishReason, Lane, Span, Tick, Usage};

    use super::*;

    fn chunk(samples: usize) -> Output {
        Output::Chunk(Chunk {
            first_sample: 0,
            samples: vec![0.0; samples].into(),
            segment: 0,
            frames: 1,
            lane: Lane::Urgent,
            slack: Span::ZERO,
            ready: Tick::ZERO,
            launched: Tick::ZERO,
            made: Tick::ZERO,
        })
    }

    #[test]
    fn a_full_queue_refuses_chunks_but_always_takes_the_end() {
        let (queue, mut taken) = mpsc::channel(queue_bound(1));
        let (sink, level) = QueueSink::new(4, queue, 100);
        assert_eq!(sink.push(chunk(60)), Ok(()));
        assert_eq!(sink.push(chunk(60)), Err(SinkFull));
        let end = Output::Finished { reason: FinishReason::Done, usage: Usage::default(), error: None };
        assert_eq!(sink.push(end), Ok(()));
        let first = taken.try_recv().expect("the first chunk");
        assert_eq!((first.key, level.samples.load(Ordering::Relaxed)), (4, 60));
        level.taken(&first.output);
        assert_eq!(sink.push(chunk(100)), Ok(()));
    }

    #[test]
    fn a_sink_whose_reader_is_gone_refuses() {
        let (queue, taken) = mpsc::channel(queue_bound(1));
        let (sink, _) = QueueSink::new(1, queue, 100);
        drop(taken);
        assert_eq!(sink.push(chunk(1)), Err(SinkFull));
    }
}
