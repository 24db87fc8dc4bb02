//! How contexts end, what they leave behind, and what each failure touches.

use contract::{CloneMode, EngineError, FinishReason, Lane, Playback, Span, Stage};
use sched::{
    Command, Completion, Decision, EncodeKey, FrameOutcome, FrameResult, GuardConfig, LaunchResult,
    SchedConfig, SchedOutput,
};

use crate::world::{Script, World, at, id, ms, profile};

const KEY: EncodeKey = EncodeKey { hash: [7; 16], mode: CloneMode::InContext };

fn world() -> World {
    World::new(SchedConfig { lm_load_max_permille: 10_000, ..SchedConfig::default() }, profile()).watched()
}

fn cloned(world: &mut World, number: u64) {
    world.command(Command::Open {
        context: id(number),
        arrival: world.now,
        tenant: 0,
        exact_frames: None,
        voice_encode: Some(KEY),
        encode_samples: 48_000,
    });
    world.whole(number, 0, 10);
    world.command(Command::Finish { context: id(number) });
}

fn error_of(world: &World, number: u64) -> Option<EngineError> {
    world.outputs.iter().find_map(|(_, output)| match output {
        SchedOutput::Finished { context, error, .. } if *context == id(number) => error.clone(),
        _ => None,
    })
}

fn frames_of(world: &World, number: u64) -> u32 {
    world.chunks(number).iter().map(|chunk| chunk.frames).sum()
}

/// Runs until a launch in `lane` names context 1.
fn until_in(world: &mut World, lane: Lane) {
    while !world.flying.iter().any(|flight| flight.decision.lane() == lane) {
        let next = world.next_event().expect("it gets there");
        world.step_to(next);
    }
}

#[test]
fn all_spoken_ends_as_done_and_leaves_nothing_behind() {
    let mut world = world();
    world.speak(1, 25);
    assert!(world.run_dry(1_000));
    assert_eq!((world.finished(1), frames_of(&world, 1)), (Some(FinishReason::Done), 25));
    let snapshot = world.sched.snapshot();
    assert_eq!((snapshot.engine.open, snapshot.engine.running, snapshot.engine.pages_used), (0, 0, 0));
    assert!(matches!(world.outputs.last(), Some((_, SchedOutput::Removed { .. }))));
}

#[test]
fn a_context_finished_without_text_is_done_at_once() {
    let mut world = world();
    world.open(1);
    world.command(Command::Finish { context: id(1) });
    assert_eq!(world.finished(1), Some(FinishReason::Done));
}

#[test]
fn a_cancel_ends_at_once_and_drops_what_is_in_flight_in_each_lane() {
    for lane in Lane::ALL {
        let mut world = world();
        world.speak(1, 60);
        world.playback(1, Playback::Paused { played: Span::ZERO });
        until_in(&mut world, lane);
        let before = world.chunks(1).len();
        world.command(Command::Cancel { context: id(1) });
        assert_eq!(world.finished(1), Some(FinishReason::Cancelled), "{lane:?}");
        assert_eq!(world.sched.snapshot().engine.running, 1, "its slot follows the fence");
        assert!(world.run_dry(10), "{lane:?}: no further launch for it");
        assert_eq!(world.chunks(1).len(), before, "{lane:?}: no chunk after the end");
        assert_eq!(world.sched.snapshot().engine.running, 0);
        let dropped =
            world.outputs.iter().any(|(_, output)| matches!(output, SchedOutput::ChunkDropped { .. }));
        assert!(dropped || lane == Lane::Lm);
    }
}

#[test]
fn a_cancel_frees_the_lm_state_within_two_steps() {
    let mut world = World::new(SchedConfig { lm_depth: 2, ..SchedConfig::default() }, profile()).watched();
    world.speak(1, 60);
    world.run_until(at(40));
    assert!(world.sched.snapshot().engine.pages_used > 0);
    world.command(Command::Cancel { context: id(1) });
    world.run_for(Span::from_micros(2 * 5_500));
    assert_eq!(world.sched.snapshot().engine.pages_used, 0);
    let [none, one, two, more] = world.sched.snapshot().engine.cancelled_lm_freed;
    assert_eq!((none + one + two, more), (1, 0));
}

#[test]
fn a_cancel_in_company_frees_the_lm_within_two_steps_and_the_rest_with_its_chunk() {
    for lane in Lane::ALL {
        let mut world = world();
        world.speak(1, 60);
        world.speak(2, 60);
        world.playback(1, Playback::Paused { played: Span::ZERO });
        until_in(&mut world, lane);
        world.command(Command::Cancel { context: id(1) });
        // A second one changes nothing.
        world.command(Command::Cancel { context: id(1) });
        assert!(world.run_dry(1_000), "{lane:?}");
        let stats = world.sched.snapshot().engine;
        let [none, one, two, more] = stats.cancelled_lm_freed;
        assert_eq!((none + one + two, more), (1, 0), "{lane:?}");
        assert_eq!(stats.cancelled_freed.iter().sum::<u64>(), 1, "{lane:?}");
        assert_eq!(world.finished(2), Some(FinishReason::Done), "{lane:?}");
    }
}

#[test]
fn losing_a_lane_ends_the_contexts_in_it_with_a_typed_error_and_nothing_else() {
    for lane in Lane::ALL {
        let mut world = world();
        world.speak(1, 40);
        world.playback(1, Playback::Paused { played: Span::ZERO });
        until_in(&mut world, lane);
        // The second context is not in the launch that is lost.
        world.speak(2, 40);
        world.losing = Some(lane);
        assert!(world.run_dry(1_000) || lane == Lane::Background);
        match error_of(&world, 1) {
            Some(EngineError::LaneLost { lane: named, .. }) => assert_eq!(named, lane.name()),
            other => panic!("{lane:?}: ended with {other:?}"),
        }
        assert_eq!(world.finished(2), Some(FinishReason::Done), "{lane:?}");
        assert_eq!(frames_of(&world, 2), 40);
    }
}

#[test]
fn a_completion_of_a_launch_that_is_not_in_flight_changes_nothing() {
    let mut world = world();
    world.speak(1, 20);
    world.run_until(at(20));
    let landed = world.decisions[0].1.launch();
    let before = world.sched.snapshot();
    let frames = vec![FrameResult { outcome: FrameOutcome::Made, code_hash: 1 }];
    let result = LaunchResult::Frames(frames);
    world
        .sched
        .handle_completion(world.now, Completion { launch: landed, at: world.now, took: ms(5), result });
    world.drain();
    let mut after = world.sched.snapshot();
    assert_eq!(after.counters.stale_completions, 1);
    after.counters.stale_completions = 0;
    assert_eq!(after, before);
}

#[test]
fn a_result_that_does_not_fit_its_launch_ends_its_contexts_and_panics_nowhere() {
    let mut world = World::new(SchedConfig::default(), profile());
    world.speak(1, 20);
    let launch = world.decisions[0].1.launch();
    let result = LaunchResult::Chunks(Vec::new());
    world.sched.handle_completion(world.now, Completion { launch, at: world.now, took: ms(5), result });
    world.drain();
    assert!(matches!(error_of(&world, 1), Some(EngineError::LaneLost { .. })));
}

#[test]
fn a_sample_that_is_not_a_number_never_leaves_and_ends_only_its_context() {
    let mut world = world();
    world.script = Script { not_finite_at: Some(1), ..Script::default() };
    world.speak(1, 40);
    world.script = Script::default();
    world.speak(2, 40);
    assert!(world.run_dry(2_000));
    assert_eq!((error_of(&world, 1), world.chunks(1).len()), (Some(EngineError::NotFinite), 1));
    assert_eq!((world.finished(2), frames_of(&world, 2)), (Some(FinishReason::Done), 40));
}

#[test]
fn a_segment_that_never_ends_is_capped_by_its_frames_and_the_context_goes_on() {
    let mut world = world();
    world.open(1);
    world.scripts.insert((id(1), 0), Script { eos_at: 10_000, ..Script::default() });
    world.command(Command::SegmentReady {
        context: id(1),
        segment: 0,
        prompt_tokens: 30,
        ids: 4,
        closed: true,
        streamed: false,
        frames_predicted: 8,
        frames_max: 17,
    });
    world.whole(1, 1, 6);
    world.command(Command::Finish { context: id(1) });
    assert!(world.run_dry(1_000));
    let segments: Vec<(u32, u64, FinishReason)> = world
        .outputs
        .iter()
        .filter_map(|(_, output)| match output {
            SchedOutput::SegmentFinished { segment, end_frame, reason, .. } => {
                Some((*segment, *end_frame, *reason))
            }
            _ => None,
        })
        .collect();
    assert_eq!(segments, [(0, 17, FinishReason::Capped), (1, 23, FinishReason::Done)]);
    assert_eq!(world.finished(1), Some(FinishReason::Capped), "not everything was spoken");
}

#[test]
fn speech_that_repeats_or_falls_silent_is_cut() {
    let guard = GuardConfig { repeat_frames: 12, silence_limit: ms(2_000), ..GuardConfig::default() };
    let run = |script: Script| {
        let mut world =
            World::new(SchedConfig { guard: guard.clone(), ..SchedConfig::default() }, profile()).watched();
        world.script = script;
        world.speak(1, 300);
        world.playback(1, Playback::Playing { zero: at(30) });
        assert!(world.run_dry(4_000));
        (world.finished(1), frames_of(&world, 1), world.sched.snapshot().counters)
    };
    let (reason, frames, counters) = run(Script { period: 3, ..Script::default() });
    assert_eq!((reason, counters.capped_by_repetition), (Some(FinishReason::Capped), 1));
    assert!(frames < 16, "{frames} frames of the same three");
    let (reason, frames, counters) = run(Script { peak: 0.000_5, ..Script::default() });
    assert_eq!((reason, counters.capped_by_silence), (Some(FinishReason::Capped), 1));
    assert!((25..45).contains(&frames), "{frames} silent frames");
    assert_eq!(run(Script::default()).0, Some(FinishReason::Done));
}

#[test]
fn an_exact_number_of_frames_masks_the_end_and_ends_as_done() {
    let mut world = world();
    world.command(Command::Open {
        context: id(1),
        arrival: world.now,
        tenant: 0,
        exact_frames: Some(33),
        voice_encode: None,
        encode_samples: 0,
    });
    world.whole(1, 0, 5);
    world.command(Command::Finish { context: id(1) });
    assert!(world.run_dry(1_000));
    assert_eq!((world.finished(1), frames_of(&world, 1)), (Some(FinishReason::Done), 33));
}

#[test]
fn a_reference_is_encoded_once_for_all_contexts_that_wait_for_it() {
    let mut world = world();
    cloned(&mut world, 1);
    cloned(&mut world, 2);
    world.run_until(at(40));
    cloned(&mut world, 3);
    assert!(world.run_dry(2_000));
    assert_eq!(world.launched(Stage::Encode).len(), 1);
    let first_prefill = world.launched(Stage::Prefill)[0].0;
    assert_eq!(first_prefill, at(50), "not before the voice is there");
    for number in 1..=3 {
        assert_eq!((world.finished(number), frames_of(&world, number)), (Some(FinishReason::Done), 10));
    }
}

#[test]
fn a_reference_that_cannot_be_used_fails_those_who_wait_for_it_and_nobody_else() {
    let mut world = world();
    world.encode_error = Some(EngineError::BadReference { what: "silent".to_owned() });
    cloned(&mut world, 1);
    cloned(&mut world, 2);
    world.speak(3, 10);
    assert!(world.run_dry(1_000));
    for number in [1, 2] {
        assert!(matches!(error_of(&world, number), Some(EngineError::BadReference { .. })));
    }
    assert_eq!(world.finished(3), Some(FinishReason::Done));
}

#[test]
fn an_encode_nobody_waits_for_any_more_is_not_begun() {
    let mut world = world();
    world.speak(2, 40);
    cloned(&mut world, 1);
    world.command(Command::Cancel { context: id(1) });
    assert!(world.run_dry(1_000));
    assert_eq!(world.launched(Stage::Encode).len(), 0);
}

#[test]
fn an_error_outside_ends_the_context_with_that_error() {
    let mut world = world();
    world.speak(1, 40);
    world.run_until(at(60));
    world.command(Command::Fail { context: id(1), error: EngineError::OutputFull });
    assert!(world.run_dry(10));
    assert_eq!(error_of(&world, 1), Some(EngineError::OutputFull));
}

#[test]
fn a_prompt_larger_than_the_page_pool_is_an_error_of_its_request() {
    let mut world =
        World::new(SchedConfig { pages: 2, page_positions: 8, ..SchedConfig::default() }, profile());
    world.speak(1, 10);
    assert!(matches!(error_of(&world, 1), Some(EngineError::OutOfMemory { .. })));
}

#[test]
fn every_decision_is_recorded_with_its_reason_and_with_what_round_robin_would_have_done() {
    let mut world = world();
    for number in 1..=3 {
        world.speak(number, 40);
    }
    assert!(world.run_dry(2_000));
    let records: Vec<_> = world.sched.records().copied().collect();
    let kept = &world.decisions[world.decisions.len() - records.len()..];
    assert!(records.len() > 40 && records.len() <= 256);
    for (record, (at, decision)) in records.iter().zip(kept) {
        assert_eq!((record.at, record.launch, record.why), (*at, decision.launch(), *decision.why()));
        assert!(!record.why.reason.is_empty() && record.why.counterfactual.rows > 0);
    }
    // Round robin takes any ready chunk before the next step: it would often have done otherwise.
    assert!(
        records.iter().any(|it| it.stage == Stage::Decode && it.why.counterfactual.stage == Stage::Codec)
    );
}

#[test]
fn the_same_events_at_the_same_ticks_give_the_same_decisions() {
    let run = || {
        let mut world = world();
        for number in 1..=4 {
            world.speak(number, 30);
            world.run_for(ms(17));
        }
        world.run_dry(4_000);
        world.decisions
    };
    let (first, second): (Vec<_>, Vec<_>) = (run(), run());
    assert!(first.len() > 30, "{} decisions", first.len());
    assert_eq!(first, second);
    assert!(first.iter().any(|(_, decision)| matches!(decision, Decision::Codec { .. })));
}
