//! What callers' threads and the engine thread both see: the mailbox, open contexts, counters, the
//! trace of launches, health.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use contract::{
    ContextId, EngineError, EngineStats, FinishReason, Health, LaunchSpan, Output, OutputSink, SinkFull,
    Span, Spread, Stage, StageShape, Tick, Usage,
};
use device::row_bucket;
use models::SegmentText;
use sched::{EncodeKey, Forecast, WakeReason};

use crate::mailbox::Mailbox;
use crate::message::Message;

/// Messages that may wait for the engine thread.
const MAILBOX_BOUND: usize = 4_096;
/// Finished launches kept for traces.
const LAUNCHES_KEPT: usize = 4_096;

pub(crate) struct Shared {
    pub(crate) mailbox: Mailbox<Message>,
    contexts: Mutex<BTreeMap<ContextId, Arc<Entry>>>,
    stats: Mutex<EngineStats>,
    outlook: Mutex<Outlook>,
    /// Contexts registered since start.
    registered: AtomicU64,
    launches: Mutex<VecDeque<LaunchSpan>>,
    times: Mutex<Times>,
    failure: Mutex<Option<EngineError>>,
    heartbeat: AtomicU64,
    /// An engine thread that has not gone round for this long is dead: it wakes at least ten times as often.
    silence_max: Span,
    /// The engine thread is over.
    ended: Mutex<bool>,
    ending: Condvar,
    /// By [`WakeReason`]: times it was what the engine woke for.
    wakes: [AtomicU64; WakeReason::ALL.len()],
    /// Clips the engine has yet to forget.
    forgotten: Mutex<Vec<Forgotten>>,
}

/// How long launches, and the thread's own rounds, took.
#[derive(Default)]
struct Times {
    stages: BTreeMap<StageShape, Spread>,
    rounds: Spread,
    rounds_device: Spread,
    landings: BTreeMap<Stage, Spread>,
}

/// What the engine thread foresees for the next context, as of when it last looked.
#[derive(Clone, Copy, Default)]
pub(crate) struct Outlook {
    pub(crate) forecast: Forecast,
    /// Contexts whose opening the thread had taken in by then.
    pub(crate) opened: u64,
}

/// Clips that may wait to be forgotten; what is beyond is dropped from the cache by its age.
const FORGOTTEN_MAX: usize = 4_096;

/// A clip to forget, for contexts whose ids are smaller than `before`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Forgotten {
    pub(crate) hash: [u8; 16],
    pub(crate) before: ContextId,
}

impl Forgotten {
    /// Whether a context with this voice is one of those.
    pub(crate) fn means(&self, context: ContextId, key: EncodeKey) -> bool {
        key.hash == self.hash && context < self.before
    }
}

/// One open context as callers' threads see it.
pub(crate) struct Entry {
    pub(crate) sink: Arc<dyn OutputSink>,
    pub(crate) closed: AtomicBool,
    pub(crate) text: Mutex<TextState>,
    /// Held while the sink is given something: nothing follows the end, whoever tells it.
    pub(crate) telling: Mutex<()>,
}

/// Text on its way to ids.
pub(crate) struct TextState {
    pub(crate) segment: u32,
    pub(crate) stream: Option<Box<dyn SegmentText>>,
    /// Ids given to the engine in the current segment.
    pub(crate) ids: u64,
    /// Characters taken since the last message.
    pub(crate) characters: u64,
    /// Characters of the current segment.
    pub(crate) segment_characters: u64,
    pub(crate) finished: bool,
}

impl Shared {
    /// `silence_max`: how long the engine thread may be silent.
    pub(crate) fn new(silence_max: Span) -> Self {
        Self {
            mailbox: Mailbox::new(MAILBOX_BOUND),
            contexts: Mutex::new(BTreeMap::new()),
            stats: Mutex::new(EngineStats::default()),
            outlook: Mutex::default(),
            registered: AtomicU64::new(0),
            launches: Mutex::new(VecDeque::new()),
            times: Mutex::default(),
            failure: Mutex::new(None),
            heartbeat: AtomicU64::new(0),
            silence_max,
            ended: Mutex::new(false),
            ending: Condvar::new(),
            wakes: Default::default(),
            forgotten: Mutex::new(Vec::new()),
        }
    }

    /// The engine forgets what it made of this clip when it next goes round.
    pub(crate) fn forget_clip(&self, clip: Forgotten) {
        let mut forgotten = lock(&self.forgotten);
        if forgotten.len() < FORGOTTEN_MAX {
            forgotten.push(clip);
        }
    }

    pub(crate) fn take_forgotten(&self) -> Vec<Forgotten> {
        std::mem::take(&mut *lock(&self.forgotten))
    }

    /// # Errors
    /// Too many contexts are open.
    pub(crate) fn register(&self, context: ContextId, entry: Entry, bound: usize) -> Result<(), EngineError> {
        let mut contexts = lock(&self.contexts);
        if contexts.len() >= bound {
            return Err(EngineError::TooManyContexts { retry_after: Span::from_millis(1_000) });
        }
        contexts.insert(context, Arc::new(entry));
        self.registered.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// # Errors
    /// The context is unknown or over.
    pub(crate) fn entry(&self, context: ContextId) -> Result<Arc<Entry>, EngineError> {
        let entry = lock(&self.contexts).get(&context).cloned().ok_or(EngineError::ContextClosed)?;
        if entry.closed.load(Ordering::Acquire) { Err(EngineError::ContextClosed) } else { Ok(entry) }
    }

    /// The context is over; says whether it was not before. Who ended it tells its sink.
    pub(crate) fn forget(&self, context: ContextId) -> bool {
        let Some(entry) = lock(&self.contexts).remove(&context) else { return false };
        entry.closed.store(true, Ordering::Release);
        true
    }

    /// Gives an open context's sink something. One that is over gets nothing more.
    ///
    /// # Errors
    /// The sink takes nothing.
    pub(crate) fn push(&self, context: ContextId, output: Output) -> Result<(), SinkFull> {
        let Some(entry) = lock(&self.contexts).get(&context).cloned() else { return Ok(()) };
        let _telling = lock(&entry.telling);
        if entry.closed.load(Ordering::Acquire) { Ok(()) } else { entry.sink.push(output) }
    }

    pub(crate) fn is_open(&self, context: ContextId) -> bool {
        lock(&self.contexts).contains_key(&context)
    }

    pub(crate) fn beat(&self, now: Tick) {
        self.heartbeat.store(now.as_micros(), Ordering::Relaxed);
    }

    pub(crate) fn last_beat(&self) -> u64 {
        self.heartbeat.load(Ordering::Relaxed)
    }

    /// The engine thread is over.
    pub(crate) fn end(&self) {
        *lock(&self.ended) = true;
        self.ending.notify_all();
    }

    pub(crate) fn has_failed(&self) -> bool {
        lock(&self.failure).is_some()
    }

    /// Whether the engine thread is over within `longest`.
    pub(crate) fn wait_for_end(&self, longest: Duration) -> bool {
        match self.ending.wait_timeout_while(lock(&self.ended), longest, |ended| !*ended) {
            Ok((ended, _)) => *ended,
            Err(poisoned) => *poisoned.into_inner().0,
        }
    }

    /// The engine thread woke because this fell due.
    pub(crate) fn woke(&self, reason: WakeReason) {
        self.wakes[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn health(&self, now: Tick) -> Health {
        if let Some(error) = &*lock(&self.failure) {
            return Health::Failed(error.to_string());
        }
        let age = now.since(Tick::from_micros(self.last_beat()));
        if age > self.silence_max {
            return Health::Failed(format!("the engine thread has been silent for {} ms", age.as_millis()));
        }
        Health::Ready
    }

    /// The engine thread is gone: every open context is told, and nothing new is taken.
    pub(crate) fn fail(&self, error: &EngineError) {
        lock(&self.failure).get_or_insert_with(|| error.clone());
        self.mailbox.close();
        let open = std::mem::take(&mut *lock(&self.contexts));
        for (_, entry) in open {
            let _telling = lock(&entry.telling);
            entry.closed.store(true, Ordering::Release);
            let error = Some(error.clone());
            let finished = Output::Finished { reason: FinishReason::Failed, usage: Usage::default(), error };
            // A sink that takes nothing has lost its reader: there is nobody left to tell.
            let _ = entry.sink.push(finished);
        }
    }

    /// A launch has ended; `length` are its captured frames, if it was a codec's.
    pub(crate) fn trace(&self, span: LaunchSpan, length: u32) {
        let LaunchSpan { stage, lane, .. } = span;
        let shape = StageShape { stage, lane, length, rows: row_bucket(span.rows) };
        lock(&self.times).stages.entry(shape).or_default().record(span.finished.since(span.started));
        let mut launches = lock(&self.launches);
        if launches.len() == LAUNCHES_KEPT {
            launches.pop_front();
        }
        launches.push_back(span);
    }

    /// A round of the engine's thread took this long, in which something was launched, or landed; in calls to the
    /// device, so much of it.
    pub(crate) fn round(&self, took: Span, in_device: Span, launched: bool, landed: Option<Stage>) {
        if !launched && landed.is_none() {
            return;
        }
        let mut times = lock(&self.times);
        if launched {
            times.rounds.record(took);
            times.rounds_device.record(in_device);
        }
        if let Some(stage) = landed {
            times.landings.entry(stage).or_default().record(took);
        }
    }

    pub(crate) fn launches(&self, max: usize) -> Vec<LaunchSpan> {
        let launches = lock(&self.launches);
        launches.iter().skip(launches.len().saturating_sub(max)).cloned().collect()
    }

    pub(crate) fn publish(&self, stats: EngineStats) {
        *lock(&self.stats) = stats;
    }

    pub(crate) fn foresee(&self, outlook: Outlook) {
        *lock(&self.outlook) = outlook;
    }

    /// The latest outlook, brought up to date by what has been opened since.
    pub(crate) fn forecast(&self) -> Forecast {
        let Outlook { mut forecast, opened } = *lock(&self.outlook);
        let unseen = self.registered.load(Ordering::Relaxed).saturating_sub(opened);
        let unseen = u32::try_from(unseen).unwrap_or(u32::MAX);
        forecast.awaited = forecast.awaited.saturating_add(unseen);
        forecast.open = forecast.open.saturating_add(unseen);
        forecast
    }

    pub(crate) fn stats(&self) -> EngineStats {
        let mut stats = lock(&self.stats).clone();
        let count = |reason: WakeReason| self.wakes[reason as usize].load(Ordering::Relaxed);
        stats.wakes = WakeReason::ALL.map(|reason| (reason.name(), count(reason))).to_vec();
        let times = lock(&self.times);
        stats.stages.clone_from(&times.stages);
        stats.rounds.clone_from(&times.rounds);
        stats.rounds_device.clone_from(&times.rounds_device);
        stats.landings.clone_from(&times.landings);
        drop(times);
        stats.mailbox_depth = u32::try_from(self.mailbox.depth()).unwrap_or(u32::MAX);
        stats
    }
}

/// Every critical section here leaves its data whole, so a poisoned lock is taken all the same.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
