//! The handle: validation and token logic on the caller's thread, then a post into the mailbox.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use contract::{
    ContextId, EngineError, EngineHandle, EngineInfo, EngineStats, Health, LaunchSpan, OpenContext,
    OutputSink, Playback, Span, TextAccepted,
};
use models::TextLogic;
use sched::Forecast;

use crate::clock::Clock;
use crate::context::plan_key;
use crate::message::{Message, Opening};
use crate::seat::Seat;
use crate::shared::{Entry, Forgotten, Shared, TextState, lock};
use crate::{OpenError, OpenOptions, device_engine, watchdog};

/// The mailbox is full or the engine is stopping: one engine loop later there is room again.
const MAILBOX_RETRY: Span = Span::from_millis(100);

/// A segment that is never ended is refused at this many times the length that surely fits.
const SEGMENT_OVERRUN: u64 = 4;

/// How long a device that was given up may take to end.
const GIVEN_UP_PATIENCE: Span = Span::from_millis(500);

/// What a fleet asks of the engine on one of its devices.
pub(crate) trait Member: EngineHandle {
    /// What the next context would wait for here.
    fn forecast(&self) -> Forecast;
}

/// An engine that speaks one model on one device.
pub(crate) struct Engine {
    info: Arc<EngineInfo>,
    text: Arc<dyn TextLogic>,
    shared: Arc<Shared>,
    clock: Clock,
    next_context: AtomicU64,
    open_max: usize,
    seed: Option<u64>,
    bench: bool,
    seat: Seat,
    stuck_after: Span,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Engine {
    pub(crate) fn open(options: OpenOptions, seat: Seat) -> Result<Self, OpenError> {
        let clock = Clock::since(options.start);
        let (seed, bench, stuck_after) = (options.seed, options.bench, options.stuck_after());
        let model = models::open(options.source.clone(), &options.name)?;
        let text = model.text();
        let shared = Arc::new(Shared::new(stuck_after));
        let options = OpenOptions { faults: options.faults.of(seat.device), ..options };
        let started = device_engine::start(options, model, clock, shared.clone(), seat.clone())?;
        watchdog::start(&shared, stuck_after)?;
        Ok(Self {
            info: Arc::new(started.info),
            text,
            shared,
            clock,
            next_context: AtomicU64::new(1),
            open_max: started.open_max,
            seed,
            bench,
            seat,
            stuck_after,
            thread: Mutex::new(Some(started.thread)),
        })
    }

    /// Ends the engine as the loss of its device does.
    #[cfg(test)]
    pub(crate) fn lose(&self, what: &str) {
        self.shared.fail(&EngineError::DeviceLost { what: what.to_owned() });
    }

    /// Why the mailbox takes nothing: it is full, or it was closed with the device.
    fn takes_nothing(&self) -> EngineError {
        match self.health() {
            Health::Failed(reason) => EngineError::Unavailable { reason },
            _ => EngineError::Overloaded { retry_after: MAILBOX_RETRY },
        }
    }

    /// Runs `feed` on the current segment's stream and posts what it gave. The place in the mailbox is
    /// taken first, so that text is either wholly taken or not at all.
    fn feed(
        &self,
        context: ContextId,
        characters: u64,
        end: bool,
        feed: impl FnOnce(&mut dyn models::SegmentText) -> Result<Vec<u32>, EngineError>,
    ) -> Result<TextAccepted, EngineError> {
        let entry = self.shared.entry(context)?;
        let mut text = lock(&entry.text);
        if text.finished {
            return Err(EngineError::ContextClosed);
        }
        let max = u64::from(self.info.models[0].segment_characters_max) * SEGMENT_OVERRUN;
        if text.segment_characters + characters > max {
            return Err(EngineError::TextTooLong { given: text.segment_characters + characters, max });
        }
        let place = self.shared.mailbox.reserve().map_err(|_| self.takes_nothing())?;
        let stream = text.stream.get_or_insert_with(|| self.text.segment());
        let ids = feed(stream.as_mut())?;
        let held = stream.held_bytes();
        text.ids += ids.len() as u64;
        text.characters += characters;
        text.segment_characters += characters;
        let accepted = TextAccepted { ids: saturate(ids.len()), held_bytes: saturate(held) };
        let spoken = text.ids > 0;
        if !ids.is_empty() || (end && spoken) {
            place.post(Message::Text {
                context,
                segment: text.segment,
                ids,
                characters: text.characters,
                over: end,
            });
            text.characters = 0;
        }
        if end {
            text.stream = None;
            text.ids = 0;
            text.segment_characters = 0;
            // A segment without ids is nothing: its number goes to the next one.
            text.segment += u32::from(spoken);
        }
        Ok(accepted)
    }
}

impl EngineHandle for Engine {
    fn info(&self) -> Arc<EngineInfo> {
        self.info.clone()
    }

    fn health(&self) -> Health {
        self.shared.health(self.clock.now())
    }

    fn open(&self, request: OpenContext, sink: Arc<dyn OutputSink>) -> Result<ContextId, EngineError> {
        if let Health::Failed(reason) = self.health() {
            return Err(EngineError::Unavailable { reason });
        }
        let model = &self.info.models[0];
        if request.model != model.name {
            let known = vec![model.name.clone()];
            return Err(EngineError::UnknownModel { model: request.model, known });
        }
        if request.exact_frames.is_some() && !self.bench {
            let hint = "start the server with --bench".to_owned();
            return Err(EngineError::Unsupported { field: "exact_frames", model: request.model, hint });
        }
        let plan = self.text.plan(&request)?;
        let context = self.seat.context(self.next_context.fetch_add(1, Ordering::Relaxed));
        let seed = plan.seed.or(self.seed).unwrap_or_else(drawn_seed);
        let text = TextState {
            segment: 0,
            stream: None,
            ids: 0,
            characters: 0,
            segment_characters: 0,
            finished: false,
        };
        let entry = Entry {
            sink: sink.clone(),
            closed: AtomicBool::new(false),
            text: Mutex::new(text),
            telling: Mutex::default(),
        };
        let place = self.shared.mailbox.reserve().map_err(|_| self.takes_nothing())?;
        self.shared.register(context, entry, self.open_max)?;
        place.post(Message::Open(Box::new(Opening {
            context,
            features: self.seat.kept.as_ref().zip(plan_key(&plan)).and_then(|(kept, key)| kept.load(key)),
            plan,
            sink,
            arrival: request.arrival,
            tenant: request.tenant,
            exact_frames: request.exact_frames,
            seed,
        })));
        Ok(context)
    }

    fn push_text(&self, context: ContextId, text: &str) -> Result<TextAccepted, EngineError> {
        self.feed(context, text.chars().count() as u64, false, |stream| stream.push(text))
    }

    fn release_tail(&self, context: ContextId) -> Result<TextAccepted, EngineError> {
        self.feed(context, 0, false, |stream| Ok(stream.release()))
    }

    fn end_segment(&self, context: ContextId) -> Result<TextAccepted, EngineError> {
        self.feed(context, 0, true, |stream| Ok(stream.end()))
    }

    fn finish(&self, context: ContextId) -> Result<(), EngineError> {
        self.end_segment(context)?;
        let entry = self.shared.entry(context)?;
        let place = self.shared.mailbox.reserve().map_err(|_| self.takes_nothing())?;
        lock(&entry.text).finished = true;
        place.post(Message::Finish { context });
        Ok(())
    }

    fn playback(&self, context: ContextId, playback: Playback) {
        if self.shared.is_open(context) {
            self.shared.mailbox.playback(context, playback);
        }
    }

    fn cancel(&self, context: ContextId) {
        if self.shared.is_open(context) {
            self.shared.mailbox.cancel(context);
        }
    }

    fn forget_clip(&self, hash: [u8; 16]) {
        if let Some(kept) = &self.seat.kept {
            kept.forget(hash);
        }
        // Contexts opened until now may still be encoding it; later ones start anew.
        let before = ContextId(self.next_context.load(Ordering::Relaxed));
        self.shared.forget_clip(Forgotten { hash, before });
    }

    fn stats(&self) -> EngineStats {
        self.shared.stats()
    }

    fn launches(&self, max: usize) -> Vec<LaunchSpan> {
        self.shared.launches(max)
    }
}

impl Member for Engine {
    fn forecast(&self) -> Forecast {
        self.shared.forecast()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shared.mailbox.close();
        let Some(thread) = lock(&self.thread).take() else { return };
        // A thread that a driver's call or an endless launch holds up is left behind.
        let patience = if self.shared.has_failed() { GIVEN_UP_PATIENCE } else { self.stuck_after };
        let patience = Duration::from_micros(patience.as_micros().unsigned_abs());
        if self.shared.wait_for_end(patience) {
            // Its panics have been turned into failed contexts already.
            let _ = thread.join();
        }
    }
}

/// A seed for a request that names none. The standard library keys every [`RandomState`] afresh from
/// the system's random source, which is all that is wanted here.
fn drawn_seed() -> u64 {
    RandomState::new().hash_one(0_u64)
}

fn saturate(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
