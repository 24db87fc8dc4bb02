//! The engine thread of one device: loads, warms up, then goes round between mailbox, backend and
//! scheduler.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;

use contract::{ContextId, EngineError, EngineInfo, Limits, Playback, Span, Tick};
use models::{Model, PlacedModel, StageFacts, TextLogic, VoiceFeatures};
use sched::{Command, EncodeKey, Sched, WakeReason};

use crate::clock::Clock;
use crate::context::{Segment, Speaking, plan_key, segment_seed};
use crate::contexts::Contexts;
use crate::encode::Encoding;
use crate::executables::Executables;
use crate::launching::Flights;
use crate::message::{Message, Opening};
use crate::processor::Processor;
use crate::seat::Seat;
use crate::shared::{Forgotten, Shared, lock};
use crate::watch::Watch;
use crate::{OpenError, OpenOptions, Without, warm};

/// The thread goes round at least this often, which is also its heartbeat.
const PARK_MAX: Span = Span::from_millis(500);

pub(crate) struct Started {
    pub(crate) info: EngineInfo,
    pub(crate) open_max: usize,
    pub(crate) thread: JoinHandle<()>,
}

/// Starts the thread and waits until it is ready to speak.
pub(crate) fn start(
    options: OpenOptions,
    model: Box<dyn Model>,
    clock: Clock,
    shared: Arc<Shared>,
    seat: Seat,
) -> Result<Started, OpenError> {
    let (report, ready) = sync_channel(1);
    let body = move || {
        let opening = AssertUnwindSafe(|| warm::open(options, model, clock, &shared, seat));
        // cudarc panics over libraries that lack a symbol.
        let panicked = || OpenError::Thread("it panicked while starting".to_owned());
        match catch_unwind(opening).unwrap_or_else(|_| Err(panicked())) {
            Err(error) => {
                shared.fail(&EngineError::Internal { what: error.to_string() });
                let _ = report.send(Err(error));
            }
            Ok((engine, info, open_max)) => {
                shared.beat(clock.now());
                let _ = report.send(Ok((info, open_max)));
                drop(report);
                // A panic is our bug. It must not leave a client waiting: every open context is told.
                if catch_unwind(AssertUnwindSafe(|| engine.run())).is_err() {
                    shared.fail(&EngineError::Internal { what: "the engine thread panicked".to_owned() });
                }
            }
        }
        shared.end();
    };
    let thread = std::thread::Builder::new()
        .name("voxlane-engine".to_owned())
        .spawn(body)
        .map_err(|error| OpenError::Thread(error.to_string()))?;
    let stopped = || OpenError::Thread("it stopped while starting".to_owned());
    let (info, open_max) = ready.recv().map_err(|_| stopped())??;
    Ok(Started { info, open_max, thread })
}

/// Forgotten clips that contexts opened before may still be on their way with.
const FORGOTTEN_KEPT: usize = 64;

/// Everything one device's engine owns.
pub(crate) struct DeviceEngine {
    pub(crate) clock: Clock,
    pub(crate) shared: Arc<Shared>,
    pub(crate) backend: Processor,
    pub(crate) watch: Watch,
    pub(crate) without: Without,
    pub(crate) model: Box<dyn PlacedModel>,
    pub(crate) text: Arc<dyn TextLogic>,
    pub(crate) facts: StageFacts,
    pub(crate) sched: Sched,
    pub(crate) executables: Executables,
    pub(crate) contexts: Contexts,
    pub(crate) seat: Seat,
    pub(crate) flights: Flights,
    pub(crate) encoding: Option<Encoding>,
    /// A slot no context ever holds: codec priming runs there.
    pub(crate) priming_slot: u32,
    /// Contexts whose voice was answered from the cache.
    pub(crate) encode_hits: u64,
    /// Contexts taken in.
    pub(crate) opened: u64,
    /// When the last forecast was made.
    pub(crate) foreseen: Tick,
    /// The last clips that were forgotten, oldest first.
    pub(crate) forgotten: Vec<Forgotten>,
}

impl DeviceEngine {
    fn run(mut self) {
        loop {
            let (due, reason) = if self.waits_for_landing() {
                // Whatever is due by now is not asked for before a launch has ended.
                (Tick::NEVER, WakeReason::Nothing)
            } else {
                self.sched.poll_timeout()
            };
            let delivery = self.shared.mailbox.collect(self.clock.until(due, PARK_MAX));
            let now = self.clock.now();
            let (woken, launched) = (now, self.flights.launched);
            self.shared.beat(now);
            self.watch.turn(now);
            if due <= now {
                self.shared.woke(reason);
            }
            self.forget_clips();
            for message in delivery.messages {
                self.handle_message(now, message);
            }
            // After the messages, so that a cancel finds the context that was opened just before it.
            for (context, course) in delivery.overrides {
                if let Some(playback) = course.playback {
                    self.handle_playback(now, context, playback);
                }
                if course.cancel {
                    self.sched.handle_command(now, Command::Cancel { context });
                }
            }
            while let Some(completed) = self.backend.poll() {
                // Before its launches' contexts are told of a lost lane each, and new launches fail alike.
                if self.is_lost() {
                    return;
                }
                self.handle_completed(now, completed);
            }
            let now = self.clock.now();
            self.sched.handle_timeout(now);
            self.drain(now);
            self.publish(now);
            let took = self.clock.now().since(woken);
            let in_device = self.backend.take_spent();
            self.shared.round(took, in_device, self.flights.launched > launched, self.flights.landed.take());
            if self.is_lost() || delivery.closing {
                return;
            }
            if let Some(what) = self.watch.verdict() {
                self.shared.fail(&EngineError::DeviceLost { what });
                return self.backend.abandon();
            }
        }
    }

    /// Whether the processor is gone; if so, every context has been told and nothing new is taken.
    fn is_lost(&self) -> bool {
        let Some(what) = self.backend.lost() else { return false };
        self.shared.fail(&EngineError::DeviceLost { what: what.to_owned() });
        true
    }

    /// The scheduler's contract: after every mutation, outputs and decisions are taken until none is left.
    pub(crate) fn drain(&mut self, now: Tick) {
        loop {
            if let Some(output) = self.sched.poll_output() {
                self.handle_output(now, output);
            } else if self.waits_for_landing() {
                return;
            } else if let Some(decision) = self.sched.poll_decision(now) {
                self.launch(now, decision);
            } else {
                return;
            }
        }
    }

    /// Without asynchrony, one launch at a time.
    fn waits_for_landing(&self) -> bool {
        self.without.asynchrony && self.watch.is_busy()
    }

    fn handle_playback(&mut self, now: Tick, context: ContextId, playback: Playback) {
        self.sched.handle_command(now, Command::Playback { context, playback });
    }

    fn handle_message(&mut self, now: Tick, message: Message) {
        match message {
            Message::Finish { context } => {
                let Some(speaking) = self.contexts.get_mut(&context) else { return };
                if speaking.voiced() {
                    self.sched.handle_command(now, Command::Finish { context });
                } else {
                    speaking.finishing = true;
                }
            }
            Message::Open(opening) => self.handle_open(now, *opening),
            Message::Text { context, segment, ids, characters, over } => {
                let Some(speaking) = self.contexts.get_mut(&context) else { return };
                speaking.usage.characters += characters;
                let seed = segment_seed(speaking.seed, segment);
                let entry = speaking
                    .segments
                    .entry(segment)
                    .or_insert_with(|| Segment { seed, ..Segment::default() });
                entry.ids.extend(ids);
                entry.over |= over;
                self.advance_segment(now, context, segment);
            }
        }
        self.drain(now);
    }

    fn handle_open(&mut self, now: Tick, opening: Opening) {
        let Opening { context, plan, features, sink, arrival, tenant, exact_frames, seed } = opening;
        let key = plan_key(&plan);
        self.opened += 1;
        let forgotten = key.is_some_and(|key| self.forgotten.iter().any(|clip| clip.means(context, key)));
        let cached = key.and_then(|key| lock(&self.seat.voices).get(key));
        let voice = cached.or_else(|| {
            let features = features?;
            if !forgotten {
                self.remember(key?, &features);
            }
            Some(features)
        });
        self.encode_hits += u64::from(voice.is_some());
        let voice_encode = if voice.is_some() { None } else { key };
        let samples = plan.clip.as_ref().map_or(0, |planned| planned.clip.samples.len());
        self.contexts.insert(
            context,
            Speaking {
                plan,
                sink,
                seed,
                key,
                voice,
                forgotten,
                segments: BTreeMap::new(),
                usage: contract::Usage::default(),
                finishing: false,
            },
        );
        let encode_samples = u32::try_from(samples).unwrap_or(u32::MAX);
        self.sched.handle_command(
            now,
            Command::Open { context, arrival, tenant, exact_frames, voice_encode, encode_samples },
        );
    }

    /// Keeps features in memory, and says so to those who would read them from the disk.
    pub(crate) fn remember(&mut self, key: EncodeKey, features: &Arc<VoiceFeatures>) {
        lock(&self.seat.voices).put(key, Arc::clone(features));
        self.tell_cached();
    }

    fn forget_clips(&mut self) {
        let clips = self.shared.take_forgotten();
        if clips.is_empty() {
            return;
        }
        let hashes: Vec<[u8; 16]> = clips.iter().map(|clip| clip.hash).collect();
        lock(&self.seat.voices).forget(&hashes);
        self.tell_cached();
        for context in self.contexts.ids() {
            let Some(speaking) = self.contexts.get_mut(&context) else { continue };
            let means = |key: EncodeKey| clips.iter().any(|clip| clip.means(context, key));
            speaking.forgotten |= speaking.key.is_some_and(means);
        }
        // A context that was opened before may still be on its way here.
        self.forgotten.extend(clips);
        let surplus = self.forgotten.len().saturating_sub(FORGOTTEN_KEPT);
        self.forgotten.drain(..surplus);
    }

    fn tell_cached(&self) {
        if let Some(kept) = &self.seat.kept {
            kept.set_cached(lock(&self.seat.voices).keys());
        }
    }

    /// Tells the scheduler what a segment has become after its text, or its voice, grew.
    pub(crate) fn advance_segment(&mut self, now: Tick, context: ContextId, index: u32) {
        let Some(command) = self.segment_command(context, index) else { return };
        self.sched.handle_command(now, command);
    }

    fn segment_command(&mut self, context: ContextId, index: u32) -> Option<Command> {
        let speaking = self.contexts.get_mut(&context)?;
        if !speaking.voiced() {
            return None;
        }
        let voice = speaking.voice.as_deref();
        let segment = speaking.segments.get_mut(&index)?;
        let ready = segment.prompt.is_some();
        if !ready {
            let needed = self.model.text_ids_needed(&speaking.plan, voice).unwrap_or(usize::MAX);
            if segment.ids.is_empty() || (segment.ids.len() < needed && !segment.over) {
                return None;
            }
            match self.model.prompt(&speaking.plan, voice, &segment.ids, segment.over) {
                Ok(prompt) => segment.prompt = Some(prompt),
                Err(error) => return Some(Command::Fail { context, error }),
            }
        }
        let prompt = segment.prompt.as_ref()?;
        let frames_predicted = self.text.frames_predicted(&segment.ids);
        let frames_max = self.text.frames_max(&segment.ids);
        let ids = segment.schedulable_ids();
        let closed = segment.over || prompt.text_end_used;
        Some(if ready {
            Command::Ids { context, segment: index, total: ids, closed, frames_predicted, frames_max }
        } else {
            Command::SegmentReady {
                context,
                segment: index,
                prompt_tokens: u32::try_from(prompt.positions()).unwrap_or(u32::MAX),
                ids,
                closed,
                streamed: !prompt.text_end_used,
                frames_predicted,
                frames_max,
            }
        })
    }
}

/// What the gateway is told of this engine.
pub(crate) fn describe(
    model: &dyn Model,
    device: String,
    contexts_max: u32,
    open_max: u32,
    lm_lead: Span,
) -> EngineInfo {
    let info = model.info().clone();
    let lead = u64::try_from(lm_lead.as_micros()).unwrap_or(0) * u64::from(info.sample_rate) / 1_000_000;
    let chunk = model.facts().codec_lengths.last().copied().unwrap_or(1);
    let output_samples_max = lead + u64::from(chunk) * u64::from(info.samples_per_frame);
    EngineInfo { models: vec![info], limits: Limits { contexts_max, open_max, output_samples_max }, device }
}
