//! The card's side: time that launches take, and what they leave behind.

use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use contract::{Lane, LaunchId, Partition, ShapeKey, Span, Stage, Tick};

use crate::lower::Shape;
use crate::{Clock, Notify};

/// Launches on their way to the card.
const QUEUED_MAX: usize = 64;
/// Codes are drawn below this: in every codebook, and no control id.
const CODES: u64 = 2_000;

/// What a launch of this form takes: an H200's times of Qwen3-TTS 1.7B, roughly (docs/performance.md, "On a card").
pub(super) fn takes(key: ShapeKey, shape: Shape) -> Span {
    let rows = shape.batch as i64;
    Span::from_micros(match (key.stage, key.partition) {
        (Stage::Decode, _) => 3_900 + 22 * rows,
        (Stage::Prefill, _) => 4_000 + 22 * rows + 8 * (shape.tokens as i64 - rows),
        (Stage::Codec, Partition::Whole) => 900 + 18 * rows * i64::from(key.length),
        (Stage::Codec, _) => 900 + 46 * rows * i64::from(key.length),
        (Stage::Encode, _) => 5_000,
    })
}

/// Samples of a quiet saw.
pub(super) fn sound(words: usize) -> Vec<u32> {
    (0..words).map(|at| ((at % 100) as f32 / 400.0 - 0.125).to_bits()).collect()
}

/// A launch given to the card.
pub(super) struct Work {
    pub(super) launch: LaunchId,
    pub(super) lane: Lane,
    pub(super) takes: Span,
    /// Its outputs are codes.
    pub(super) frames: bool,
    pub(super) outputs: Vec<u32>,
}

/// A launch the card is done with.
pub(super) struct Ended {
    pub(super) launch: LaunchId,
    pub(super) started: Tick,
    pub(super) finished: Tick,
    pub(super) outputs: Vec<u32>,
}

/// The thread that stands for the card.
pub(super) struct Card {
    ended: Arc<Mutex<Vec<Ended>>>,
    queue: Option<SyncSender<Work>>,
    thread: Option<JoinHandle<()>>,
}

impl Card {
    pub(super) fn start(clock: Clock, notify: Notify) -> io::Result<Self> {
        let (queue, waiting) = sync_channel(QUEUED_MAX);
        let ended: Arc<Mutex<Vec<Ended>>> = Arc::default();
        let out = Arc::clone(&ended);
        let body = move || serve(&waiting, &clock, &notify, &out);
        let thread = std::thread::Builder::new().name("voxlane-idle-card".to_owned()).spawn(body)?;
        Ok(Self { ended, queue: Some(queue), thread: Some(thread) })
    }

    pub(super) fn run(&self, work: Work) {
        // It serves for as long as this sender lives, and launches in flight are fewer than it has room for.
        let _ = self.queue.as_ref().map(|queue| queue.send(work));
    }

    pub(super) fn ended(&self) -> Vec<Ended> {
        std::mem::take(&mut *self.ended.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Card {
    fn drop(&mut self) {
        self.queue = None;
        // A card that panicked has nothing left to give back.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn serve(waiting: &Receiver<Work>, clock: &Clock, notify: &Notify, out: &Mutex<Vec<Ended>>) {
    // By when they end, and in the order they came.
    let mut running: BTreeMap<(Tick, LaunchId), (Tick, Work)> = BTreeMap::new();
    let mut free = [Tick::ZERO; 3];
    loop {
        let now = clock();
        let first = running.first_key_value().map_or(Tick::NEVER, |((end, _), _)| *end);
        if first <= now {
            if let Some(((finished, launch), (started, mut work))) = running.pop_first() {
                if work.frames {
                    draw(launch, &mut work.outputs);
                }
                let ended = Ended { launch, started, finished, outputs: work.outputs };
                out.lock().unwrap_or_else(PoisonError::into_inner).push(ended);
                notify();
            }
            continue;
        }
        let patience = first.since(now).min(Span::from_millis(1_000)).as_micros();
        match waiting.recv_timeout(Duration::from_micros(patience.unsigned_abs())) {
            Ok(work) => {
                let lane = &mut free[work.lane as usize];
                let started = clock().max(*lane);
                *lane = started + work.takes;
                running.insert((*lane, work.launch), (started, work));
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Codes that repeat no frame.
fn draw(launch: LaunchId, outputs: &mut [u32]) {
    for (at, word) in outputs.iter_mut().enumerate() {
        let mixed = (launch.0 << 20 | at as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 33;
        *word = (mixed % CODES) as u32;
    }
}
