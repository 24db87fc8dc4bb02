//! The threads that encode. A stream's first packet is made by whoever brings its samples: two hand-overs
//! fewer before a listener hears something, and some 70 us of work.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use codecs::CodecError;
use contract::{EngineError, Span, Tick};
use tokio::sync::mpsc;

use super::{EncodedPacket, StreamEncoder};
use crate::clock::Clock;
use crate::metrics::Metrics;

/// Samples encoded before a thread offers its core to others: 60 ms at 24 kHz, some 0.2 ms of Opus.
const SLICE_SAMPLES: usize = 1_440;

/// When pieces wait longer than this for a thread, nobody new is let in: those who speak already are to be heard without
/// a pause.
const BEHIND: Span = Span::from_millis(200);
/// When whoever was refused for that may try again.
const BEHIND_RETRY: Span = Span::from_millis(1_000);

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
    clock: Clock,
    metrics: Metrics,
}

struct Queue {
    jobs: Mutex<Jobs>,
    arrived: Condvar,
}

#[derive(Default)]
struct Jobs {
    /// What follows a stream's first packet: due at once, while others are ahead of their listeners. With when it came.
    begun: VecDeque<(Tick, Job)>,
    stock: VecDeque<(Tick, Job)>,
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
        Ok(Self { queue, bound, clock, metrics: metrics.clone() })
    }

    /// Encodes a stream's first packet, if this is its first job, and queues the rest.
    ///
    /// # Errors
    /// The job itself, less the first packet, when the queue is full; try again later.
    pub(crate) fn submit(&self, mut job: Job) -> Result<(), Box<Job>> {
        let begins = !job.encoder.started;
        if begins {
            let begun = self.clock.now();
            let made = first_packet(&mut job);
            let waiting = self.queue.lock().depth();
            self.metrics.encoded(made, since(self.clock, begun), waiting);
        }
        let mut jobs = self.queue.lock();
        if jobs.depth() >= self.bound {
            return Err(Box::new(job));
        }
        let queue = if begins { &mut jobs.begun } else { &mut jobs.stock };
        queue.push_back((self.clock.now(), job));
        drop(jobs);
        self.queue.arrived.notify_one();
        Ok(())
    }

    /// Why nobody new is to be let in, if the threads are behind with those who speak.
    pub(crate) fn refusal(&self) -> Option<EngineError> {
        let jobs = self.queue.lock();
        let oldest = jobs.begun.front().into_iter().chain(jobs.stock.front()).map(|(came, _)| *came).min()?;
        let behind = self.clock.now().since(oldest) > BEHIND;
        behind.then_some(EngineError::Overloaded { retry_after: BEHIND_RETRY })
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
        self.begun.len() + self.stock.len()
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
            if let Some((_, job)) = jobs.begun.pop_front().or_else(|| jobs.stock.pop_front()) {
                return Some((job, jobs.depth()));
            }
            if jobs.closed {
                return None;
            }
            jobs = self.arrived.wait(jobs).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

fn work(queue: &Queue, clock: Clock, metrics: &Metrics) {
    while let Some((job, left)) = queue.take() {
        let begun = clock.now();
        let packets = run(job, std::thread::yield_now);
        metrics.encoded(packets, since(clock, begun), left);
    }
}

fn since(clock: Clock, begun: Tick) -> Duration {
    Duration::from_micros(clock.now().since(begun).as_micros().max(0).unsigned_abs())
}

/// Runs one job, with `pause` between its slices. Counts the packets.
fn run(job: Job, pause: impl Fn()) -> usize {
    let Job { key, mut encoder, samples, finish, reply } = job;
    // What is hardly any work is done in one go: on a busy machine a thread that steps aside after every 10 us of it
    // waits for its core far longer than it has it, and everybody's sound waits with it.
    let slice = if encoder.only_rewrites() { samples.len().max(1) } else { SLICE_SAMPLES };
    let mut packets = Vec::new();
    let mut failed = None;
    for (index, slice) in samples.chunks(slice).enumerate() {
        if index > 0 {
            // Stock has time: a task that waits for this core with somebody's first audio goes before.
            pause();
        }
        failed = encoder.push(slice, &mut packets).err();
        if failed.is_some() {
            break;
        }
    }
    if finish && failed.is_none() {
        failed = encoder.finish(&mut packets).err();
    }
    let made = packets.len();
    // A reply that finds no reader is dropped: the session is gone.
    drop(reply.try_send(Box::new(Encoded {
        key,
        encoder: Some(encoder),
        packets,
        finished: finish,
        failed,
    })));
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
    async fn a_first_packet_waits_for_no_other_stream() {
        // No thread takes anything from the queue.
        let pool =
            EncodePool::start(0, 8, Clock::start(), &Metrics::default()).expect("no thread is asked for");
        let (reply, mut replies) = mpsc::channel(8 * REPLIES_PER_JOB);
        for key in 1..=4 {
            assert!(pool.submit(job(key, 3_840, &reply)).is_ok());
            let first = replies.try_recv().expect("at once");
            assert_eq!((first.key, first.packets.len(), first.encoder.is_none()), (key, 1, true));
        }
    }

    #[tokio::test]
    async fn nobody_new_is_let_in_while_pieces_have_waited_too_long_and_somebody_is_once_they_have_not() {
        // No thread takes anything from the queue.
        let pool =
            EncodePool::start(0, 8, Clock::start(), &Metrics::default()).expect("no thread is asked for");
        let (reply, _replies) = mpsc::channel(8 * REPLIES_PER_JOB);
        assert!(pool.submit(job(1, 3_840, &reply)).is_ok());
        assert_eq!(pool.refusal(), None, "a piece may wait");
        tokio::time::sleep(Duration::from_millis(BEHIND.as_millis().unsigned_abs() + 20)).await;
        assert!(matches!(pool.refusal(), Some(EngineError::Overloaded { .. })));
        pool.queue.take().expect("the piece");
        assert_eq!(pool.refusal(), None);
    }

    #[tokio::test]
    async fn what_follows_a_first_packet_goes_before_other_streams_stock() {
        let pool = EncodePool::start(1, 8, Clock::start(), &Metrics::default()).expect("a thread");
        let (reply, mut replies) = mpsc::channel(8 * REPLIES_PER_JOB);
        for key in 1..=3 {
            // Ten seconds of each, begun before.
            let mut begun = job(key, 240_000, &reply);
            begun.encoder.started = true;
            assert!(pool.submit(begun).is_ok());
        }
        assert!(pool.submit(job(4, 3_840, &reply)).is_ok());
        let mut order = Vec::new();
        while order.len() < 5 {
            let reply = replies.recv().await.expect("a reply");
            order.push((reply.key, reply.encoder.is_some()));
        }
        let at = |wanted| order.iter().position(|found| *found == wanted).expect("every reply comes");
        // The thread may have begun one stock before it came.
        assert!(at((4, true)) < at((2, true)) && at((4, true)) < at((3, true)), "{order:?}");
    }

    #[test]
    fn the_threads_step_aside_between_slices_of_work_and_not_for_what_is_hardly_any() {
        let (reply, _replies) = mpsc::channel(8);
        let pauses = |form, wire_hz| {
            let encoder = Box::new(StreamEncoder::new(form, 24_000, wire_hz, OPUS).expect("valid"));
            let samples = vec![0.1; 10 * SLICE_SAMPLES];
            let stepped_aside = std::cell::Cell::new(0);
            let job = Job { key: 1, encoder, samples, finish: false, reply: reply.clone() };
            assert!(run(job, || stepped_aside.set(stepped_aside.get() + 1)) > 0);
            stepped_aside.get()
        };
        let pcm = Form::Raw(codecs::pcm::RawEncoding::S16Le);
        assert_eq!((pauses(Form::Opus, 24_000), pauses(pcm, 16_000), pauses(pcm, 24_000)), (9, 9, 0));
    }

    #[tokio::test]
    async fn a_job_that_found_no_room_has_sent_its_first_packet_and_keeps_the_rest() {
        let pool =
            EncodePool::start(0, 0, Clock::start(), &Metrics::default()).expect("no thread is asked for");
        let (reply, mut replies) = mpsc::channel(REPLIES_PER_JOB);
        let back = pool.submit(job(1, 3_840, &reply)).expect_err("no room");
        assert_eq!(replies.try_recv().map(|first| first.packets.len()), Ok(1));
        assert_eq!((back.samples.len(), back.encoder.started), (3_360, true));
        let back = pool.submit(*back).expect_err("still none");
        assert!(replies.try_recv().is_err());
        assert_eq!(back.samples.len(), 3_360);
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
