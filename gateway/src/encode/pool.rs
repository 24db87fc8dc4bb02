//! The threads that encode. A stream's first packet never waits behind other streams' stock.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use codecs::CodecError;
use tokio::sync::mpsc;

use super::{EncodedPacket, StreamEncoder};
use crate::clock::Clock;
use crate::metrics::Metrics;

/// Samples encoded between two looks for a stream that waits for its first packet: 60 ms at 24 kHz, some
/// 0.3 ms of work.
const SLICE_SAMPLES: usize = 1_440;

/// Work for the pool. The encoder travels with it, so that a stream's pieces can never overtake each
/// other: the next piece can only be given once the encoder has come back.
pub(crate) struct Job {
    /// Handed back unchanged.
    pub(crate) key: u64,
    pub(crate) encoder: Box<StreamEncoder>,
    pub(crate) samples: Vec<f32>,
    pub(crate) finish: bool,
    pub(crate) reply: mpsc::Sender<Box<Encoded>>,
}

/// What came of a job. A stream's very first packet comes ahead of the rest, without the encoder.
pub(crate) struct Encoded {
    pub(crate) key: u64,
    pub(crate) encoder: Option<Box<StreamEncoder>>,
    pub(crate) packets: Vec<EncodedPacket>,
    pub(crate) finished: bool,
    pub(crate) failed: Option<CodecError>,
}

/// Replies one job can make: what a reply queue must have room for, for each stream.
pub(crate) const REPLIES_PER_JOB: usize = 2;

/// Threads that encode.
#[derive(Debug)]
pub(crate) struct EncodePool {
    queue: Arc<Queue>,
    bound: usize,
}

struct Queue {
    jobs: Mutex<Jobs>,
    arrived: Condvar,
}

#[derive(Default)]
struct Jobs {
    /// Streams that have not made a packet yet.
    first: VecDeque<Job>,
    rest: VecDeque<Job>,
    closed: bool,
}

impl EncodePool {
    /// Starts `threads` threads with a queue of `bound` jobs.
    ///
    /// # Errors
    /// When the operating system gives no thread.
    pub(crate) fn start(
        threads: usize,
        bound: usize,
        clock: Clock,
        metrics: &Metrics,
    ) -> std::io::Result<Self> {
        let queue = Arc::new(Queue { jobs: Mutex::new(Jobs::default()), arrived: Condvar::new() });
        for index in 0..threads {
            let queue = Arc::clone(&queue);
            let metrics = metrics.clone();
            let name = format!("opus-{index}");
            std::thread::Builder::new().name(name).spawn(move || work(&queue, clock, &metrics))?;
        }
        Ok(Self { queue, bound })
    }

    /// Queues a job.
    ///
    /// # Errors
    /// The job itself when the queue is full; try again later.
    pub(crate) fn submit(&self, job: Job) -> Result<(), Box<Job>> {
        let mut jobs = self.queue.lock();
        if jobs.depth() >= self.bound {
            return Err(Box::new(job));
        }
        if job.encoder.started {
            jobs.rest.push_back(job)
        } else {
            jobs.first.push_back(job)
        }
        drop(jobs);
        self.queue.arrived.notify_one();
        Ok(())
    }
}

impl Drop for EncodePool {
    fn drop(&mut self) {
        self.queue.lock().closed = true;
        self.queue.arrived.notify_all();
    }
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue").finish_non_exhaustive()
    }
}

impl Jobs {
    fn depth(&self) -> usize {
        self.first.len() + self.rest.len()
    }
}

impl Queue {
    /// Every critical section leaves the queue whole, so a poisoned lock is as good as any.
    fn lock(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next job and the number left behind it; `None` when the pool is gone.
    fn take(&self) -> Option<(Job, usize)> {
        let mut jobs = self.lock();
        loop {
            if let Some(job) = jobs.first.pop_front().or_else(|| jobs.rest.pop_front()) {
                return Some((job, jobs.depth()));
            }
            if jobs.closed {
                return None;
            }
            jobs = self.arrived.wait(jobs).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn take_first(&self) -> Option<Job> {
        self.lock().first.pop_front()
    }
}

fn work(queue: &Queue, clock: Clock, metrics: &Metrics) {
    while let Some((job, left)) = queue.take() {
        let begun = clock.now();
        let packets = run(queue, job);
        let took = clock.now().since(begun).as_micros().max(0);
        metrics.encoded(packets, Duration::from_micros(took.unsigned_abs()), left);
    }
}

/// Runs one job, and in between the first pieces of streams that came meanwhile. Counts the packets.
fn run(queue: &Queue, job: Job) -> usize {
    let mut made = 0;
    let mut waiting = VecDeque::from([job]);
    while let Some(mut job) = waiting.pop_front() {
        if !job.encoder.started {
            made += first_packet(&mut job);
        }
        let mut packets = Vec::new();
        let mut failed = None;
        let mut rest = job.samples.as_slice();
        while !rest.is_empty() && failed.is_none() {
            while let Some(mut other) = queue.take_first() {
                made += first_packet(&mut other);
                waiting.push_back(other);
            }
            let (slice, tail) = rest.split_at(rest.len().min(SLICE_SAMPLES));
            failed = job.encoder.push(slice, &mut packets).err();
            rest = tail;
        }
        if job.finish && failed.is_none() {
            failed = job.encoder.finish(&mut packets).err();
        }
        made += packets.len();
        let Job { key, encoder, finish, reply, .. } = job;
        // A reply that finds no reader is dropped: the session is gone.
        drop(reply.try_send(Box::new(Encoded {
            key,
            encoder: Some(encoder),
            packets,
            finished: finish,
            failed,
        })));
    }
    made
}

/// Encodes and sends a stream's first packet; the rest of its samples stay in the job.
fn first_packet(job: &mut Job) -> usize {
    let piece = job.encoder.first_piece();
    if job.samples.len() <= piece {
        return 0;
    }
    let rest = job.samples.split_off(piece);
    let samples = std::mem::replace(&mut job.samples, rest);
    let mut packets = Vec::new();
    match job.encoder.push(&samples, &mut packets) {
        Ok(()) if !packets.is_empty() => {
            let made = packets.len();
            let key = job.key;
            let first = Encoded { key, encoder: None, packets, finished: false, failed: None };
            drop(job.reply.try_send(Box::new(first)));
            made
        }
        Ok(()) => 0,
        // The encoder took nothing: given whole, the samples fail again where the job's answer says so.
        Err(_) => {
            let rest = std::mem::replace(&mut job.samples, samples);
            job.samples.extend(rest);
            0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::OpusConfig;
    use crate::encode::Form;

    const OPUS: OpusConfig = OpusConfig { threads: 1, bitrate_bps: 32_000, complexity: 5 };

    fn job(key: u64, samples: usize, reply: &mpsc::Sender<Box<Encoded>>) -> Job {
        let encoder = Box::new(StreamEncoder::new(Form::Opus, 24_000, 24_000, OPUS).expect("valid"));
        Job { key, encoder, samples: vec![0.1; samples], finish: false, reply: reply.clone() }
    }

    #[tokio::test]
    async fn the_first_packet_comes_ahead_of_the_rest() {
        let pool = EncodePool::start(1, 4, Clock::start(), &Metrics::default()).expect("a thread");
        let (reply, mut replies) = mpsc::channel(REPLIES_PER_JOB);
        assert!(pool.submit(job(9, 3_840, &reply)).is_ok());
        let first = replies.recv().await.expect("a reply");
        assert_eq!((first.key, first.packets.len(), first.encoder.is_none()), (9, 1, true));
        let rest = replies.recv().await.expect("a reply");
        assert_eq!((rest.packets.len(), rest.encoder.is_some()), (7, true));
    }

    #[tokio::test]
    async fn a_stock_of_audio_does_not_delay_another_streams_first_packet() {
        let pool = EncodePool::start(1, 8, Clock::start(), &Metrics::default()).expect("a thread");
        let (reply, mut replies) = mpsc::channel(8 * REPLIES_PER_JOB);
        // Ten seconds of one stream, then the beginnings of three.
        assert!(pool.submit(job(1, 240_000, &reply)).is_ok());
        for key in 2..=4 {
            assert!(pool.submit(job(key, 3_840, &reply)).is_ok());
        }
        let mut order = Vec::new();
        while order.len() < 8 {
            let reply = replies.recv().await.expect("a reply");
            order.push((reply.key, reply.encoder.is_none()));
        }
        let at = |wanted| order.iter().position(|found| *found == wanted).expect("every reply comes");
        for key in 2..=4 {
            assert!(at((key, true)) < at((1, false)), "{order:?}");
        }
    }

    #[tokio::test]
    async fn a_full_pool_gives_the_job_back() {
        let pool =
            EncodePool::start(0, 1, Clock::start(), &Metrics::default()).expect("no thread is asked for");
        let (reply, _replies) = mpsc::channel(4);
        assert!(pool.submit(job(1, 960, &reply)).is_ok());
        let back = pool.submit(job(2, 960, &reply)).expect_err("no room");
        assert_eq!((back.key, back.samples.len()), (2, 960));
    }

    #[tokio::test]
    async fn samples_that_are_no_numbers_fail_their_stream_only() {
        let pool = EncodePool::start(1, 4, Clock::start(), &Metrics::default()).expect("a thread");
        let (reply, mut replies) = mpsc::channel(8);
        let mut bad = job(1, 960, &reply);
        bad.samples[500] = f32::NAN;
        assert!(pool.submit(bad).is_ok());
        let mut failed = false;
        while let Some(reply) = replies.recv().await {
            if reply.encoder.is_some() {
                failed = reply.failed.is_some();
                break;
            }
        }
        assert!(failed);
        assert!(pool.submit(job(2, 960, &reply)).is_ok());
        assert_eq!(replies.recv().await.map(|reply| (reply.key, reply.packets.len())), Some((2, 1)));
    }
}
