//! The thread and the clock around [`Core`].

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use contract::{
    ContextId, EngineError, EngineHandle, EngineInfo, EngineStats, Health, LaunchSpan, Layout, Limits,
    ModelInfo, OpenContext, Output, OutputSink, Playback, SamplingDefaults, TextAccepted, Tick, VoiceInfo,
    VoiceKind,
};

use crate::{Core, Script};

/// A scripted engine behind [`EngineHandle`]. Its thread ends when the last handle is dropped.
#[derive(Debug)]
pub struct Scripted {
    shared: Arc<Shared>,
    info: Arc<EngineInfo>,
    ready_at: Tick,
}

struct Shared {
    state: Mutex<State>,
    wake: Condvar,
    /// Where [`Tick::START`] lies; the same for everyone in the process.
    origin: Instant,
}

struct State {
    core: Core,
    sinks: BTreeMap<ContextId, Arc<dyn OutputSink>>,
    /// Until when the thread sleeps, if it does.
    asleep_until: Tick,
    closed: bool,
}

impl Scripted {
    /// Starts the engine's thread. `origin` is where the process's [`Tick::START`] lies.
    ///
    /// # Errors
    /// When the operating system gives no thread.
    pub fn start(script: Script, origin: Instant) -> std::io::Result<Arc<Self>> {
        let info = Arc::new(describe(&script));
        let core = Core::new(script.clone());
        let state = State { core, sinks: BTreeMap::new(), asleep_until: Tick::ZERO, closed: false };
        let shared = Arc::new(Shared { state: Mutex::new(state), wake: Condvar::new(), origin });
        let ready_at = shared.now() + contract::Span::from_millis(script.warm_up_ms as i64);
        let weak = Arc::downgrade(&shared);
        std::thread::Builder::new().name("scripted".to_owned()).spawn(move || drive(&weak))?;
        Ok(Arc::new(Self { shared, info, ready_at }))
    }

    fn with<T>(&self, act: impl FnOnce(&mut State, Tick) -> T) -> T {
        let mut state = self.shared.lock();
        let answer = act(&mut state, self.shared.now());
        // Most of what is said, reports above all, gives the thread nothing to do before it wakes anyway.
        let wake = state.core.has_output() || state.core.poll_timeout() < state.asleep_until;
        drop(state);
        if wake {
            self.shared.wake.notify_one();
        }
        answer
    }
}

impl EngineHandle for Scripted {
    fn info(&self) -> Arc<EngineInfo> {
        Arc::clone(&self.info)
    }

    fn health(&self) -> Health {
        if self.shared.now() < self.ready_at {
            return Health::Starting("the script warms up".to_owned());
        }
        Health::Ready
    }

    fn open(&self, request: OpenContext, sink: Arc<dyn OutputSink>) -> Result<ContextId, EngineError> {
        if let Health::Starting(reason) = self.health() {
            return Err(EngineError::Unavailable { reason });
        }
        self.with(|state, _| {
            let id = state.core.open(&request)?;
            state.sinks.insert(id, sink);
            Ok(id)
        })
    }

    fn push_text(&self, context: ContextId, text: &str) -> Result<TextAccepted, EngineError> {
        self.with(|state, now| state.core.push_text(now, context, text))
    }

    fn release_tail(&self, context: ContextId) -> Result<TextAccepted, EngineError> {
        // Every character is an id of its own: nothing is ever held back.
        self.with(|state, _| state.core.check_open(context).map(|()| TextAccepted::default()))
    }

    fn end_segment(&self, context: ContextId) -> Result<TextAccepted, EngineError> {
        self.with(|state, now| state.core.end_segment(now, context))
    }

    fn finish(&self, context: ContextId) -> Result<(), EngineError> {
        self.with(|state, now| state.core.finish(now, context))
    }

    fn playback(&self, context: ContextId, playback: Playback) {
        self.with(|state, now| state.core.playback(now, context, playback));
    }

    fn cancel(&self, context: ContextId) {
        self.with(|state, _| state.core.cancel(context));
    }

    fn forget_clip(&self, hash: [u8; 16]) {
        self.with(|state, _| state.core.forget_clip(hash));
    }

    fn stats(&self) -> EngineStats {
        self.shared.lock().core.stats()
    }

    fn launches(&self, max: usize) -> Vec<LaunchSpan> {
        self.shared.lock().core.launches(max)
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.wake.notify_one();
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

impl Shared {
    fn now(&self) -> Tick {
        Tick::after_start(self.origin.elapsed())
    }

    /// A panic while the lock was held leaves the core as it was: still usable.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The engine thread. Only here does output leave, so a context's outputs stay in order.
fn drive(shared: &Weak<Shared>) {
    while let Some(shared) = shared.upgrade() {
        let mut state = shared.lock();
        if state.closed {
            return;
        }
        state.core.handle_timeout(shared.now());
        let mut batch = Vec::new();
        while let Some((id, output)) = state.core.poll_output() {
            let sink = match &output {
                Output::Finished { .. } => state.sinks.remove(&id),
                _ => state.sinks.get(&id).cloned(),
            };
            batch.extend(sink.map(|sink| (id, sink, output)));
        }
        if batch.is_empty() {
            let until = state.core.poll_timeout();
            let due = until.since(shared.now()).as_micros();
            if due > 0 {
                state.asleep_until = until;
                // The wait has an upper bound so that a forgotten handle cannot keep the thread.
                let wait = Duration::from_micros(due.unsigned_abs()).min(Duration::from_secs(1));
                drop(shared.wake.wait_timeout(state, wait));
            }
            continue;
        }
        drop(state);
        for (id, sink, output) in batch {
            if sink.push(output).is_err() {
                shared.lock().core.output_full(id);
            }
        }
    }
}

fn describe(script: &Script) -> EngineInfo {
    let layouts = vec![Layout::Streamed, Layout::Whole];
    let voice = |v: &crate::VoiceScript| VoiceInfo {
        id: v.name.clone(),
        name: v.name.clone(),
        description: "a tone".to_owned(),
        language: None,
        kind: VoiceKind::Speaker,
        layouts: layouts.clone(),
    };
    EngineInfo {
        models: vec![ModelInfo {
            name: script.model.clone(),
            family: "scripted".to_owned(),
            licence: "Apache-2.0".to_owned(),
            sample_rate: script.sample_rate,
            samples_per_frame: script.samples_per_frame,
            layouts: layouts.clone(),
            languages: vec!["english".to_owned()],
            voices: script.voices.iter().map(voice).collect(),
            default_voice: Some(0),
            takes_instructions: false,
            takes_reference: true,
            sampling: SamplingDefaults { temperature: 0.0, top_k: 0, top_p: 1.0, repetition_penalty: 1.0 },
            segment_characters_max: 400,
        }],
        limits: Limits {
            contexts_max: script.open_max,
            open_max: script.open_max,
            output_samples_max: u64::from(script.sample_rate) * (script.lead_max_ms + 2_000) / 1_000
                + 10 * u64::from(script.samples_per_frame),
        },
        device: "a script".to_owned(),
    }
}
