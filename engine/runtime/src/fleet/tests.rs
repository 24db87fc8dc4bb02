//! Placing and losing, on members that obey, and on two engines with a core each.

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use contract::{FinishReason, Layout, Limits, Output, Sampling, SinkFull, Span, Tick, VoiceChoice};
use sched::Forecast;

use super::*;
use crate::ModelSource;
use crate::shared::lock;

/// A member that does as it is told.
struct Obedient {
    seat: (u16, u16),
    health: Mutex<Health>,
    forecast: Mutex<Forecast>,
    refusal: Mutex<Option<EngineError>>,
    opened: Mutex<u64>,
}

impl Obedient {
    fn new(device: u16, of: u16, first_audio_ms: i64) -> Self {
        let forecast = Forecast {
            first_audio: Span::from_millis(first_audio_ms),
            each_more: Span::from_millis(5),
            ..Forecast::default()
        };
        Self {
            seat: (device, of),
            health: Mutex::new(Health::Ready),
            forecast: Mutex::new(forecast),
            refusal: Mutex::default(),
            opened: Mutex::default(),
        }
    }
}

impl Member for Obedient {
    fn forecast(&self) -> Forecast {
        *lock(&self.forecast)
    }
}

impl EngineHandle for Obedient {
    fn info(&self) -> Arc<EngineInfo> {
        let limits = Limits { contexts_max: 4, open_max: 32, output_samples_max: 100 };
        Arc::new(EngineInfo { models: Vec::new(), limits, device: format!("obedient {}", self.seat.0) })
    }

    fn health(&self) -> Health {
        lock(&self.health).clone()
    }

    fn open(&self, _: OpenContext, _: Arc<dyn OutputSink>) -> Result<ContextId, EngineError> {
        if let Some(error) = lock(&self.refusal).clone() {
            return Err(error);
        }
        let mut opened = lock(&self.opened);
        *opened += 1;
        let mut forecast = lock(&self.forecast);
        forecast.awaited += 1;
        forecast.open += 1;
        Ok(ContextId(*opened * u64::from(self.seat.1) + u64::from(self.seat.0)))
    }

    fn push_text(&self, _: ContextId, _: &str) -> Result<TextAccepted, EngineError> {
        Ok(TextAccepted { ids: u32::from(self.seat.0), held_bytes: 0 })
    }

    fn release_tail(&self, _: ContextId) -> Result<TextAccepted, EngineError> {
        Ok(TextAccepted::default())
    }

    fn end_segment(&self, _: ContextId) -> Result<TextAccepted, EngineError> {
        Ok(TextAccepted::default())
    }

    fn finish(&self, _: ContextId) -> Result<(), EngineError> {
        Ok(())
    }

    fn playback(&self, _: ContextId, _: Playback) {}

    fn cancel(&self, _: ContextId) {}

    fn stats(&self) -> EngineStats {
        EngineStats { frames: 10, wakes: vec![("due", 2)], ..EngineStats::default() }
    }

    fn launches(&self, _: usize) -> Vec<LaunchSpan> {
        Vec::new()
    }
}

/// Hears outputs; what does not fit is dropped, which no test here looks at.
struct Ear(SyncSender<Output>);

impl OutputSink for Ear {
    fn push(&self, output: Output) -> Result<(), SinkFull> {
        self.0.try_send(output).map_err(|_| SinkFull)
    }
}

fn ear() -> (Arc<Ear>, Receiver<Output>) {
    let (sender, outputs) = sync_channel(1_024);
    (Arc::new(Ear(sender)), outputs)
}

fn request() -> OpenContext {
    OpenContext {
        model: "tts-tiny".to_owned(),
        voice: VoiceChoice::Default,
        language: None,
        instructions: None,
        layout: Layout::Whole,
        sampling: Sampling { seed: Some(7), ..Sampling::default() },
        arrival: Tick::START,
        tenant: 0,
        exact_frames: None,
    }
}

fn three(first_audio_ms: [i64; 3]) -> Fleet<Obedient> {
    let members = (0..).zip(first_audio_ms).map(|(device, ms)| Obedient::new(device, 3, ms));
    Fleet::new(members.collect()).expect("three members")
}

fn device_of_new(fleet: &Fleet<Obedient>) -> Result<u32, EngineError> {
    let context = fleet.open(request(), ear().0)?;
    Ok(fleet.push_text(context, "Hello").expect("its own member answers").ids)
}

#[test]
fn a_context_goes_where_it_is_heard_first_and_stays_there() {
    let fleet = three([80, 20, 120]);
    assert_eq!(device_of_new(&fleet), Ok(1));
    // Each that is on its way costs the next one 5 ms, until the first device is as good.
    let placed: Vec<_> = (0..24).map(|_| device_of_new(&fleet).expect("placed")).collect();
    let count = |device| placed.iter().filter(|placed| **placed == device).count();
    assert!(count(1) >= 12 && count(0) >= 4 && count(2) <= 2, "{placed:?}");
}

#[test]
fn a_device_that_fails_gets_nothing_new_and_the_fleet_serves_while_one_does() {
    let fleet = three([20, 30, 200]);
    *lock(&fleet.members[0].health) = Health::Failed("the device was lost".to_owned());
    assert_eq!(device_of_new(&fleet), Ok(1));
    assert_eq!(fleet.health(), Health::Ready);
    let healthy: Vec<_> = fleet.devices().iter().map(|device| device.health == Health::Ready).collect();
    assert_eq!(healthy, [false, true, true]);
    for member in &fleet.members {
        *lock(&member.health) = Health::Failed("the device was lost".to_owned());
    }
    assert_eq!(fleet.health(), Health::Failed("the device was lost".to_owned()));
    assert_eq!(device_of_new(&fleet).map_err(|error| error.code()), Err("unavailable"));
}

#[test]
fn a_full_device_passes_a_context_on_and_a_bad_request_is_answered_once() {
    let fleet = three([20, 30, 200]);
    let full = EngineError::TooManyContexts { retry_after: Span::from_millis(1_000) };
    *lock(&fleet.members[0].refusal) = Some(full.clone());
    assert_eq!(device_of_new(&fleet), Ok(1));
    for member in &fleet.members {
        *lock(&member.refusal) = Some(full.clone());
    }
    assert_eq!(device_of_new(&fleet), Err(full));
    *lock(&fleet.members[0].refusal) = Some(EngineError::ControlToken { token: "<|x|>".to_owned() });
    assert_eq!(device_of_new(&fleet).map_err(|error| error.code()), Err("control_token"));
}

#[test]
fn limits_counters_and_names_of_the_devices_are_told_together() {
    let fleet = three([20, 30, 40]);
    let info = fleet.info();
    assert_eq!(info.limits, Limits { contexts_max: 12, open_max: 96, output_samples_max: 100 });
    assert_eq!(info.device, "obedient 0; obedient 1; obedient 2");
    assert_eq!((fleet.stats().frames, fleet.stats().wakes), (30, vec![("due", 6)]));
    assert_eq!(fleet.devices().iter().map(|device| device.device.0).collect::<Vec<_>>(), [0, 1, 2]);
}

/// Every sample of a context, and how it ended.
fn hear(outputs: &Receiver<Output>) -> (Vec<f32>, FinishReason, Option<EngineError>) {
    let mut samples = Vec::new();
    loop {
        match outputs.recv_timeout(Duration::from_secs(60)).expect("the engine goes on") {
            Output::Chunk(chunk) => samples.extend_from_slice(&chunk.samples),
            Output::SegmentFinished { .. } => {}
            Output::Finished { reason, error, .. } => return (samples, reason, error),
        }
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a test gives the engines their zero")]
fn two_engines_of_one_process_speak_alike_and_the_loss_of_one_ends_only_its_own_contexts() {
    let checkpoint = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../config/models/tiny");
    let options = OpenOptions::new(ModelSource::Dir(checkpoint), "tts-tiny".to_owned(), Instant::now());
    let options = OpenOptions { first_audio_limit: Some(Span::from_millis(60_000)), ..options };
    let device = DeviceChoice::Cpu { cores: None };
    let fleet = open(&options, vec![device.clone(), device]).expect("two cores, an engine each");
    let cores: Vec<_> = fleet.devices().iter().map(|device| device.about.clone()).collect();
    assert_ne!(cores[0], cores[1], "disjoint cores");

    let say = |context: ContextId, text: &str| {
        // A listener this far on is never ahead: nothing waits for it.
        fleet.playback(context, Playback::Playing { zero: Tick::START - Span::from_millis(600_000) });
        fleet.push_text(context, text).expect("taken");
        fleet.finish(context).expect("finishes");
        Seat::device_of(context, 2).0
    };
    // One on each: which of them the fleet would choose, and how many each would take at once, depends on how fast each
    // was measured to be.
    let speak_on_both = |text: &str| -> Vec<_> {
        let begin = |member: &Engine| {
            let (sink, outputs) = ear();
            let context = member.open(request(), sink).expect("opens");
            (say(context, text), outputs)
        };
        fleet.members.iter().map(begin).collect()
    };
    let begun = speak_on_both("The morning train was late again.");
    let heard: Vec<_> = begun.iter().map(|(device, outputs)| (*device, hear(outputs))).collect();
    assert_eq!(heard.iter().map(|(device, _)| *device).collect::<Vec<_>>(), [0, 1]);
    for (device, (samples, reason, error)) in &heard {
        assert_eq!((*reason, error), (FinishReason::Done, &None));
        assert!(*samples == heard[0].1.0, "device {device} sounds like the first");
    }
    let launches = fleet.launches(4_096);
    assert!([0, 1].iter().all(|device| launches.iter().any(|span| span.device.0 == *device)));

    let long = "We walked along the river until the lamps were lit. ".repeat(6);
    let begun = speak_on_both(&long);
    fleet.members[0].lose("pulled out by a test");
    for (device, outputs) in &begun {
        let (_, reason, error) = hear(outputs);
        let code = error.map(|error| error.code());
        let expected = if *device == 0 {
            (FinishReason::Failed, Some("device_lost"))
        } else {
            (FinishReason::Done, None)
        };
        assert_eq!((reason, code), expected, "device {device}");
    }
    assert_eq!(fleet.health(), Health::Ready);
    assert!(matches!(&fleet.devices()[0].health, Health::Failed(why) if why.contains("pulled out")));
    for _ in 0..3 {
        let (sink, outputs) = ear();
        let device = say(fleet.open(request(), sink).expect("opens"), "Good evening.");
        assert_eq!((device, hear(&outputs).1), (1, FinishReason::Done), "what is new goes to the living");
    }
}
