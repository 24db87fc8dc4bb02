//! What is left standing when a processor fails: rehearsed by scripts, on real CPU engines.

mod support;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use contract::{
    CloneMode, EngineError, EngineHandle, FinishReason, Health, Layout, OpenContext, Span, VoiceChoice,
};
use runtime::{DeviceChoice, OpenOptions};
use support::{Ear, Heard, SENTENCE, begin, options, request, speak};

/// Long enough for a busy machine, short enough to wait for.
const STUCK_AFTER: Span = Span::from_millis(4_000);

fn rehearsal(faults: &str) -> OpenOptions {
    let faults = faults.parse().expect("a script");
    OpenOptions { faults, stuck_after: Some(STUCK_AFTER), ..options() }
}

/// One rehearsal at a time: every engine takes all cores.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn open(faults: &str) -> Arc<dyn EngineHandle> {
    runtime::open(rehearsal(faults)).expect("opens")
}

/// Contexts that run together, one a seed.
fn company(engine: &Arc<dyn EngineHandle>, count: u64) -> Vec<Arc<Ear>> {
    let text = [SENTENCE; 3].join(" ");
    (0..count).map(|seed| begin(engine, request("clara", Layout::Whole, seed), &text).1).collect()
}

/// How they ended, in order. Whom a busy machine refused was in nothing.
fn ends(ears: &[Arc<Ear>]) -> Vec<Option<&'static str>> {
    let ends = ears.iter().map(|ear| code(&ear.to_the_end()));
    let ends: Vec<_> = ends.filter(|end| *end != Some("overloaded")).collect();
    assert!(!ends.is_empty(), "all were refused");
    ends
}

fn code(heard: &Heard) -> Option<&'static str> {
    heard.error.as_ref().map(contract::EngineError::code)
}

fn assert_done(engine: &Arc<dyn EngineHandle>) {
    let speak = || speak(engine, request("clara", Layout::Whole, 9), SENTENCE);
    let mut heard = speak();
    while code(&heard) == Some("overloaded") {
        heard = speak();
    }
    assert_eq!((heard.reason, code(&heard)), (FinishReason::Done, None));
    assert_eq!(engine.health(), Health::Ready);
}

/// Drops the last handle on a thread: a stuck device must not hold up whoever ends the engine.
fn assert_can_be_dropped(engine: Arc<dyn EngineHandle>) {
    let dropping = std::thread::spawn(move || drop(engine));
    wait_until("the engine is dropped", || dropping.is_finished());
}

fn wait_until(what: &str, holds: impl Fn() -> bool) {
    for _ in 0..1_000 {
        if holds() {
            return;
        }
        #[expect(clippy::disallowed_methods, reason = "another thread's work is waited for")]
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("after ten seconds it does not hold that {what}");
}

#[test]
fn a_launch_that_is_refused_or_fails_ends_the_contexts_in_it_and_nobody_else() {
    let _turn = turn();
    let faults = ["error@prefill:1", "fail@decode:1", "error@decode:2", "error@codec:1", "fail@codec:2"];
    let engine = open(&faults.join(","));
    for (seed, fault) in (0..).zip(faults) {
        // Whoever comes next is in the next such launch; who comes once that is over is not.
        let heard = speak(&engine, request("clara", Layout::Whole, seed), SENTENCE);
        assert_eq!((heard.reason, code(&heard)), (FinishReason::Failed, Some("lane_lost")), "{fault}");
        assert_eq!(engine.health(), Health::Ready);
    }
    assert_done(&engine);
    wait_until("nothing is left behind", || {
        let stats = engine.stats();
        (stats.open, stats.running) == (0, 0)
    });
}

#[test]
fn a_stuck_launch_loses_the_device_tells_everyone_and_why() {
    let _turn = turn();
    for (faults, why) in [("stuck@decode:7", "lm lane"), ("stuck@codec:2", "has not come back")] {
        let engine = open(faults);
        let ends = ends(&company(&engine, 2));
        assert!(ends.iter().all(|end| *end == Some("device_lost")), "{faults}: {ends:?}");
        let Health::Failed(reason) = engine.health() else { panic!("{faults}: still ready") };
        assert!(reason.contains(why) && reason.contains("device"), "{reason}");
        let ear = Arc::new(Ear::default());
        let refused = engine.open(request("clara", Layout::Whole, 1), ear).expect_err("refused");
        assert_eq!(refused.code(), "unavailable");
        assert_can_be_dropped(engine);
    }
}

#[test]
fn a_call_that_never_returns_is_noticed_from_outside_the_engine_thread() {
    let _turn = turn();
    let engine = open("hang@decode:5");
    assert!(ends(&company(&engine, 2)).iter().all(|end| *end == Some("device_lost")));
    let Health::Failed(reason) = engine.health() else { panic!("still ready") };
    assert!(reason.contains("does not return"), "{reason}");
    assert_can_be_dropped(engine);
}

#[test]
fn a_lost_device_tells_its_contexts_at_once() {
    let _turn = turn();
    let engine = open("lost@decode:5");
    assert!(ends(&company(&engine, 2)).iter().all(|end| *end == Some("device_lost")));
    assert!(matches!(engine.health(), Health::Failed(_)));
    assert_can_be_dropped(engine);
}

#[test]
fn a_device_that_is_stuck_leaves_the_others_speaking() {
    let _turn = turn();
    let first_of = |device: u16| format!("stuck@decode:5:{device}");
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    assert!(cores >= 2, "two engines need two cores, the machine has {cores}");
    let devices = vec![DeviceChoice::Cpu { cores: None }; 2];
    let engine = runtime::open_fleet(&rehearsal(&first_of(0)), devices).expect("opens");
    // A busy machine may refuse whom the fault would have met.
    let mut told = Vec::new();
    while engine.devices()[0].health == Health::Ready {
        told.extend(ends(&company(&engine, 2)));
        assert!(told.len() < 100, "the fault never came: {told:?}");
    }
    assert!(told.contains(&Some("device_lost")));
    assert!(told.iter().all(|end| matches!(end, None | Some("device_lost"))), "{told:?}");
    let devices = engine.devices();
    assert!(matches!(&devices[0].health, Health::Failed(why) if why.contains("has not come back")));
    assert_eq!(devices[1].health, Health::Ready);
    assert_done(&engine);
    assert_can_be_dropped(engine);
}

#[test]
fn no_sample_that_is_not_a_number_leaves_and_only_its_context_ends() {
    let _turn = turn();
    let engine = open("nan@codec:6");
    let heard: Vec<_> = company(&engine, 3).iter().map(|ear| ear.to_the_end()).collect();
    let spoilt = heard.iter().filter(|heard| code(heard) == Some("not_finite")).count();
    // A busy machine may have refused one.
    let others = heard.iter().filter(|heard| matches!(code(heard), None | Some("overloaded"))).count();
    assert_eq!((spoilt, others), (1, 2));
    assert!(heard.iter().all(|heard| heard.samples().iter().all(|sample| sample.is_finite())));
    assert_done(&engine);
}

#[test]
fn a_processor_that_refuses_every_launch_is_given_up() {
    let _turn = turn();
    let faults: Vec<_> = (1..=64).map(|count| format!("error@prefill:{count}")).collect();
    let engine = open(&faults.join(","));
    let mut failed = 0;
    while engine.health() == Health::Ready && failed < 40 {
        let ear = Arc::new(Ear::default());
        match engine.open(request("clara", Layout::Whole, failed), ear.clone()) {
            Ok(context) => {
                // It may be given up before it has been told all: then the ear hears of that.
                let _ = engine.push_text(context, "Hello.").and_then(|_| engine.finish(context));
                assert_eq!(ear.to_the_end().reason, FinishReason::Failed);
            }
            Err(EngineError::Unavailable { .. }) => {}
            Err(other) => panic!("while it is given up: {other}"),
        }
        failed += 1;
    }
    let Health::Failed(reason) = engine.health() else { panic!("ready after {failed} failures") };
    assert!(reason.contains("in a row"), "{reason}");
}

#[test]
fn memory_that_is_missing_at_start_is_named_with_what_was_asked_what_is_free_and_what_lowers_it() {
    let _turn = turn();
    for (faults, setting) in [
        ("memory@weights:5", "engine.model"),
        ("memory@states:2", "engine.contexts_max"),
        ("memory@pages:1", "engine.contexts_max"),
        ("memory@programs:3", "engine.contexts_max"),
    ] {
        let Err(error) = runtime::open(rehearsal(faults)) else { panic!("{faults}: opened") };
        let text = error.to_string();
        assert!(
            text.contains("bytes are free") && text.contains(" needs ") && text.contains(setting),
            "{text}"
        );
    }
}

#[test]
fn a_clip_whose_encoding_is_not_finite_fails_its_context_and_is_not_kept() {
    let _turn = turn();
    let engine = open("nan@encode:1");
    let voice = VoiceChoice::Reference { clip: support::clip(), mode: CloneMode::Speaker };
    let cloned = || OpenContext { voice: voice.clone(), ..request("clara", Layout::Whole, 3) };
    let heard = speak(&engine, cloned(), SENTENCE);
    assert_eq!((heard.reason, code(&heard)), (FinishReason::Failed, Some("not_finite")));
    let heard = speak(&engine, cloned(), SENTENCE);
    assert_eq!((heard.reason, code(&heard)), (FinishReason::Done, None));
}
