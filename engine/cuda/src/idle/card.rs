//! The card's side: time that launches take, and what they leave behind.

use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use contract::{Lane, LaunchId, Partition, ShapeKey, Span, Stage, Tick};

use device::Piece;

use crate::lower::Shape;
use crate::porter::Porter;
use crate::{Clock, Notify};

/// Launches on their way to the card.
const QUEUED_MAX: usize = 64;
/// Codes are drawn below this: in every codebook, and no control id.
const CODES: u64 = 2_000;

/// What a launch of this form takes: an H200's times of Qwen3-TTS 1.7B, roughly (docs/h200.md).
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
    /// Words of the first output, and what is wanted of each of its rows.
    pub(super) values: usize,
    pub(super) wanted: Vec<usize>,
}

/// A launch the card is done with.
pub(super) struct Ended {
    pub(super) launch: LaunchId,
    pub(super) started: Tick,
    pub(super) finished: Tick,
    pub(super) outputs: Vec<u32>,
    pub(super) pieces: Vec<Piece>,
}

/// Where the engine thread finds what has ended.
struct Bell {
    ended: Mutex<Vec<Ended>>,
    notify: Notify,
}

impl Bell {
    fn ring(&self, ended: Ended) {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).push(ended);
        (self.notify)();
    }
}

/// The thread that stands for the card.
pub(super) struct Card {
    bell: Arc<Bell>,
    queue: Option<SyncSender<Work>>,
    thread: Option<JoinHandle<()>>,
}

impl Card {
    pub(super) fn start(clock: Clock, notify: Notify) -> io::Result<Self> {
        let (queue, waiting) = sync_channel(QUEUED_MAX);
        let bell = Arc::new(Bell { ended: Mutex::default(), notify });
        let porters = [Porter::start("samples")?, Porter::start("urgent-samples")?];
        let rings = Arc::clone(&bell);
        let body = move || serve(&waiting, &clock, &rings, &porters);
        let thread = std::thread::Builder::new().name("voxlane-idle-card".to_owned()).spawn(body)?;
        Ok(Self { bell, queue: Some(queue), thread: Some(thread) })
    }

    pub(super) fn run(&self, work: Work) {
        // It serves for as long as this sender lives, and launches in flight are fewer than it has room for.
        let _ = self.queue.as_ref().map(|queue| queue.send(work));
    }

    pub(super) fn ended(&self) -> Vec<Ended> {
        std::mem::take(&mut *self.bell.ended.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Card {
    fn drop(&mut self) {
        self.queue = None;
        // A card that panicked has nothing left to give back.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn serve(waiting: &Receiver<Work>, clock: &Clock, bell: &Arc<Bell>, porters: &[Porter; 2]) {
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
                let Work { lane, outputs, values, wanted, .. } = work;
                if wanted.is_empty() {
                    bell.ring(Ended { launch, started, finished, outputs, pieces: Vec::new() });
                } else {
                    let bell = Arc::clone(bell);
                    porters[usize::from(lane == Lane::Urgent)].hatch().give(Box::new(move || {
                        let pieces = Piece::of_rows(floats(&outputs[..values]), &wanted);
                        bell.ring(Ended { launch, started, finished, outputs, pieces });
                    }));
                }
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

fn floats(words: &[u32]) -> &[f32] {
    // SAFETY: of the same size and alignment; any bits are a float.
    unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), words.len()) }
}

/// Codes that repeat no frame.
fn draw(launch: LaunchId, outputs: &mut [u32]) {
    for (at, word) in outputs.iter_mut().enumerate() {
        let mixed = (launch.0 << 20 | at as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 33;
        *word = (mixed % CODES) as u32;
    }
}
