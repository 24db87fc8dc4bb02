//! Streamed text: one id a frame, dry spells, and the same steps however the text was split.

use contract::{FinishReason, Stage};
use sched::{Command, Decision, SchedConfig, SchedOutput, TextInput};

use crate::world::{World, at, id, ms, profile};

fn world() -> World {
    World::new(SchedConfig::default(), profile()).watched()
}

/// Step, text and whether it may end, of every step of segment 0 of context 1.
fn steps(world: &World) -> Vec<(u32, TextInput, bool)> {
    let rows = world.launched(Stage::Decode).into_iter().flat_map(|(_, decision)| match decision {
        Decision::Decode { rows, .. } => rows,
        other => panic!("not a decode: {other:?}"),
    });
    rows.filter(|row| row.context == id(1)).map(|row| (row.step, row.text, row.eos_allowed)).collect()
}

#[test]
fn a_step_eats_the_id_of_its_number_then_the_end_and_then_padding() {
    let mut world = world();
    world.open(1);
    world.streamed(1, 0, 4, true, 7);
    world.run_until(at(400));
    let expected = [
        (1, TextInput::Id(1), false),
        (2, TextInput::Id(2), false),
        (3, TextInput::Id(3), false),
        (4, TextInput::End, true),
        (5, TextInput::Pad, true),
        (6, TextInput::Pad, true),
        (7, TextInput::Pad, true),
    ];
    assert_eq!(steps(&world), expected);
}

#[test]
fn however_the_text_is_split_the_model_sees_the_same_steps() {
    let known_at_once = {
        let mut world = world();
        world.open(1);
        world.streamed(1, 0, 9, true, 14);
        world.run_until(at(1_000));
        steps(&world)
    };
    for cuts in [vec![1, 2, 3, 4, 5, 6, 7, 8, 9], vec![4, 9], vec![8, 8, 9]] {
        let mut world = world();
        world.open(1);
        world.streamed(1, 0, 1, false, 14);
        for total in cuts {
            world.run_for(ms(23));
            world.ids(1, 0, total, false);
        }
        world.run_for(ms(60));
        world.ids(1, 0, 9, true);
        world.run_until(at(1_500));
        assert_eq!(steps(&world), known_at_once);
    }
}

#[test]
fn a_dry_row_is_left_out_of_the_batch_and_its_waiting_is_counted_apart() {
    let mut world = world();
    world.open(1);
    world.streamed(1, 0, 3, false, 10);
    world.speak(2, 60);
    world.run_until(at(300));
    assert_eq!(steps(&world).len(), 2, "ids 1 and 2 are eaten, id 3 is not there");
    let (_, last) = world.launched(Stage::Decode).pop().expect("the other goes on");
    assert_eq!(last.rows(), 1);
    world.ids(1, 0, 3, true);
    world.command(Command::Finish { context: id(1) });
    world.run_until(at(1_500));
    let starved = world.outputs.iter().find_map(|(_, output)| match output {
        SchedOutput::TextResumed { context, starved, .. } if *context == id(1) => Some(*starved),
        _ => None,
    });
    let starved = starved.expect("it went on");
    assert!(starved > ms(240) && starved < ms(300), "starved for {starved}");
    let usage = world.outputs.iter().find_map(|(_, output)| match output {
        SchedOutput::Finished { context, usage, .. } if *context == id(1) => Some(*usage),
        _ => None,
    });
    let usage = usage.expect("it finished");
    assert_eq!((usage.text_starved, usage.text_ids, usage.frames), (starved, 3, 10));
}

#[test]
fn a_segment_that_is_closed_while_dry_ends_by_the_model_and_not_by_a_guess() {
    let mut world = world();
    world.open(1);
    world.streamed(1, 0, 2, false, 6);
    world.run_until(at(200));
    world.command(Command::Finish { context: id(1) });
    world.run_until(at(600));
    assert_eq!(world.finished(1), Some(FinishReason::Done));
    assert_eq!(world.chunks(1).iter().map(|chunk| chunk.frames).sum::<u32>(), 6);
}

#[test]
fn the_frame_bound_grows_with_the_text_and_only_binds_once_the_text_has_ended() {
    let mut world = world();
    world.open(1);
    world.command(Command::SegmentReady {
        context: id(1),
        segment: 0,
        prompt_tokens: 10,
        ids: 4,
        closed: false,
        streamed: true,
        frames_predicted: 4,
        frames_max: 3,
    });
    world.run_until(at(200));
    assert_eq!(steps(&world).len(), 2, "three frames so far");
    assert_eq!(world.finished(1), None);
    world.command(Command::Ids {
        context: id(1),
        segment: 0,
        total: 4,
        closed: true,
        frames_predicted: 4,
        frames_max: 5,
    });
    world.command(Command::Finish { context: id(1) });
    world.run_until(at(600));
    assert_eq!(world.finished(1), Some(FinishReason::Capped));
    assert_eq!(world.chunks(1).iter().map(|chunk| chunk.frames).sum::<u32>(), 5);
}

#[test]
fn a_context_that_waits_for_text_too_long_ends_as_idle_with_what_it_said() {
    let mut world =
        World::new(SchedConfig { idle_limit: ms(2_000), ..SchedConfig::default() }, profile()).watched();
    world.open(1);
    world.streamed(1, 0, 3, false, 10);
    world.open(2);
    world.run_until(at(1_990));
    assert_eq!((world.finished(1), world.finished(2)), (None, None));
    world.run_until(at(2_000));
    assert_eq!(world.finished(2), Some(FinishReason::Idle));
    world.run_until(at(2_500));
    assert_eq!(world.finished(1), Some(FinishReason::Idle));
    assert!(!world.chunks(1).is_empty());
    assert_eq!(world.sched.snapshot().engine.open, 0);
}

#[test]
fn a_context_without_text_ids_holds_nothing() {
    let mut world = world();
    world.open(1);
    let snapshot = world.sched.snapshot();
    assert_eq!((snapshot.engine.open, snapshot.engine.running, snapshot.engine.pages_used), (1, 0, 0));
    world.whole(1, 0, 10);
    assert_eq!(world.sched.snapshot().engine.running, 1);
    world.run_for(ms(1_000));
    let snapshot = world.sched.snapshot();
    assert_eq!((snapshot.engine.open, snapshot.engine.running, snapshot.engine.pages_used), (1, 0, 0));
    world.whole(1, 1, 10);
    world.command(Command::Finish { context: id(1) });
    world.run_for(ms(2_000));
    assert_eq!(world.finished(1), Some(FinishReason::Done));
    assert_eq!(world.chunks(1).last().map(|chunk| chunk.position + u64::from(chunk.frames)), Some(20));
}

#[test]
fn a_segment_may_follow_one_whose_exact_frames_ended_it_before_its_text() {
    let mut world = world();
    world.command(Command::Open {
        context: id(1),
        arrival: world.now,
        tenant: 0,
        exact_frames: Some(4),
        voice_encode: None,
        encode_samples: 0,
    });
    world.streamed(1, 0, 6, false, 90);
    // All four frames exist, and the second chunk is still being made.
    world.run_until(at(30));
    assert!(world.chunks(1).iter().map(|chunk| chunk.frames).sum::<u32>() < 4);
    world.whole(1, 1, 10);
    world.command(Command::Finish { context: id(1) });
    world.run_until(at(500));
    assert_eq!(world.sched.snapshot().counters.ignored, 0);
    assert_eq!(world.finished(1), Some(FinishReason::Done));
    assert_eq!(world.chunks(1).iter().map(|chunk| chunk.frames).sum::<u32>(), 4);
}
