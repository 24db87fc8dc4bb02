//! The two codec lanes.

use contract::{Lane, Partition, Playback, Span, Stage, Tick};
use sched::{CostTable, Decision, Profile, SchedConfig, reason};

use crate::world::{World, at, id, ms, profile};

fn config() -> SchedConfig {
    SchedConfig { lm_load_max_permille: 10_000, ..SchedConfig::default() }
}

fn world() -> World {
    World::new(config(), profile()).watched()
}

/// A profile whose background calls take `base` + `row` a row, in milliseconds.
fn slow_background(base: u32, row: u32) -> Profile {
    profile().with_cost(
        Stage::Codec,
        Partition::Background,
        CostTable::linear(base * 1_000, row * 1_000, 0, 16, 1024),
    )
}

fn rows(decision: &Decision) -> &[sched::CodecRow] {
    match decision {
        Decision::Codec { rows, .. } => rows,
        other => panic!("not a codec launch: {other:?}"),
    }
}

/// Runs until the context has handed out `count` chunks.
fn until_chunks(world: &mut World, number: u64, count: usize) {
    while world.chunks(number).len() < count {
        let next = world.next_event().expect("chunks still to come");
        world.step_to(next);
    }
}

#[test]
fn a_first_chunk_is_urgent_as_soon_as_its_frames_exist_and_due_at_arrival_plus_target() {
    let mut world = world();
    world.speak(1, 20);
    assert!(world.run_dry(1_000));
    let (launched, first) =
        world.decisions.iter().find(|(_, it)| it.stage() == Stage::Codec).expect("speaks").clone();
    // A prefill of 10 ms makes frame 0, a step of 5.5 ms frame 1, and the ladder starts with two.
    assert_eq!(launched, Tick::from_micros(15_500));
    assert_eq!((first.lane(), first.why().reason), (Lane::Urgent, reason::URGENT_FIRST));
    assert_eq!((rows(&first)[0].frames, rows(&first)[0].slack), (2, ms(200) - Span::from_micros(15_500)));
}

#[test]
fn the_ladder_grows_through_the_captured_lengths_and_ends_with_what_is_left() {
    let mut world = world();
    world.speak(1, 21);
    assert!(world.run_dry(1_000));
    let lengths: Vec<u32> = world.chunks(1).iter().map(|chunk| chunk.frames).collect();
    assert_eq!(lengths, [2, 4, 10, 5]);
    for (_, decision) in world.launched(Stage::Codec) {
        let Decision::Codec { length, .. } = decision else { unreachable!("a codec launch") };
        assert!([2, 4, 10].contains(&length), "{length} was never captured");
    }
}

/// The lane in which the context's chunk number `nth` goes when it may go with this slack.
fn lane_of(nth: usize, slack: Span) -> Lane {
    lane_with(&profile(), nth, slack)
}

fn lane_with(profile: &Profile, nth: usize, slack: Span) -> Lane {
    let prepare = || {
        let mut world = World::new(config(), profile.clone()).watched();
        world.run_until(at(10_000));
        world.speak(1, 60);
        world.playback(1, Playback::Paused { played: Span::ZERO });
        until_chunks(&mut world, 1, nth - 1);
        while world.codec_in(Lane::Urgent).len() + world.codec_in(Lane::Background).len() < nth {
            let next = world.next_event().expect("chunks still to come");
            world.step_to(next);
        }
        world
    };
    let mut trial = prepare();
    until_chunks(&mut trial, 1, nth + 1);
    let chunk = trial.chunks(1)[nth].clone();
    let mut world = prepare();
    let zero = chunk.launched + slack - ms(80).times(chunk.position as i64);
    world.playback(1, Playback::Playing { zero });
    until_chunks(&mut world, 1, nth + 1);
    assert_eq!(world.chunks(1)[nth].slack, slack);
    world.chunks(1)[nth].lane
}

#[test]
fn a_chunk_is_urgent_when_its_slack_is_below_the_margin_and_only_then() {
    assert_eq!(lane_of(3, ms(99)), Lane::Urgent);
    assert_eq!(lane_of(3, ms(130)), Lane::Background);
}

#[test]
fn the_margin_of_the_second_chunk_of_a_short_ladder_is_half_of_the_audio_in_hand() {
    // Two frames are 160 ms: the margin is 80 ms, not 100.
    assert_eq!(lane_of(1, ms(90)), Lane::Background);
    assert_eq!(lane_of(1, ms(70)), Lane::Urgent);
    assert_eq!(lane_of(3, ms(90)), Lane::Urgent);
}

#[test]
fn all_urgent_chunks_go_in_one_batch_by_deadline_and_at_most_eight() {
    let config = SchedConfig { prefill_tokens_max: 1_000, prefill_rows_max: 16, ..config() };
    let mut world = World::new(config, profile()).watched();
    for number in 1..=11 {
        world.speak(number, 30);
        world.run_for(Span::from_micros(100));
    }
    assert!(world.run_dry(4_000));
    let batches: Vec<usize> =
        world.codec_in(Lane::Urgent).iter().map(|(_, decision)| decision.rows()).collect();
    assert_eq!(batches.iter().max(), Some(&8));
    let (_, full) =
        world.codec_in(Lane::Urgent).into_iter().find(|(_, it)| it.rows() == 8).expect("a full batch");
    let slacks: Vec<Span> = rows(&full).iter().map(|row| row.slack).collect();
    assert!(slacks.is_sorted(), "not in deadline order: {slacks:?}");
}

#[test]
fn background_waits_for_b_chunks_while_others_may_join() {
    let mut world = World::new(SchedConfig { background_batch: 3, ..config() }, profile()).watched();
    for number in 1..=5 {
        world.speak(number, 40);
        world.playback(number, Playback::Paused { played: Span::ZERO });
        world.run_for(ms(13));
    }
    world.run_until(at(400));
    let batches = world.codec_in(Lane::Background);
    let full = batches.iter().filter(|(_, decision)| decision.why().reason == reason::BACKGROUND_FULL);
    assert!(
        full.clone().count() > 0 && full.clone().all(|(_, decision)| decision.rows() >= 3),
        "{batches:?}"
    );
    let early = batches.iter().filter(|(_, decision)| decision.why().reason == reason::BACKGROUND_DEADLINE);
    assert_eq!(early.count(), 0, "a paused listener has no deadline to break");
}

#[test]
fn background_goes_early_when_one_more_step_would_break_a_deadline() {
    let slow = profile().with_cost(Stage::Decode, Partition::Lm, CostTable::linear(40_000, 0, 0, 16, 1024));
    let start = |playback: Playback| {
        let mut world = World::new(config(), slow.clone()).watched();
        world.run_until(at(10_000));
        world.speak(1, 60);
        world.playback(1, playback);
        world.run_until(at(10_520));
        // It has handed out its first chunk and misses frames of the next when the third is ready.
        world.speak(2, 60);
        world.playback(2, Playback::Paused { played: Span::ZERO });
        world
    };
    let mut trial = start(Playback::Paused { played: Span::ZERO });
    until_chunks(&mut trial, 1, 3);
    let third = trial.chunks(1)[2].clone();
    let zero = third.ready + ms(170) - ms(80).times(third.position as i64);
    let mut world = start(Playback::Playing { zero });
    until_chunks(&mut world, 1, 3);
    let is_third = |row: &&sched::CodecRow| row.context == id(1) && row.first_frame == third.first_frame;
    let batches = world.codec_in(Lane::Background);
    let (now, early) =
        batches.iter().find(|(_, it)| rows(it).iter().any(|row| is_third(&row))).expect("goes");
    assert_eq!(early.why().reason, reason::BACKGROUND_DEADLINE);
    assert!(*now > third.ready, "it waited for the other as long as it could");
    let slack = rows(early).iter().find(is_third).expect("just found").slack;
    assert!(slack >= ms(100) && slack < ms(140), "slack {slack} at {now}");
}

#[test]
fn background_goes_at_once_when_the_lm_lane_has_nothing_to_generate() {
    let mut world = world();
    world.speak(1, 12);
    world.playback(1, Playback::Paused { played: Span::ZERO });
    assert!(world.run_dry(1_000));
    let (launched, last) = world.codec_in(Lane::Background).pop().expect("the last chunk");
    assert_eq!(last.why().reason, reason::BACKGROUND_LM_IDLE);
    let spoken_out = world.launched(Stage::Decode).last().expect("decodes").0 + Span::from_micros(5_500);
    assert!(launched >= spoken_out && world.chunks(1).len() == 3);
}

#[test]
fn background_does_not_wait_when_everyone_who_could_join_is_ready() {
    let mut world = world();
    world.open(1);
    world.streamed(1, 0, 30, false, 90);
    world.speak(2, 8);
    for number in [1, 2] {
        world.playback(number, Playback::Paused { played: Span::ZERO });
    }
    world.run_until(at(700));
    let reasons: Vec<&str> = world.codec_in(Lane::Background).iter().map(|(_, it)| it.why().reason).collect();
    assert!(
        reasons.contains(&reason::BACKGROUND_ALL) || reasons.contains(&reason::BACKGROUND_LM_IDLE),
        "{reasons:?}"
    );
}

#[test]
fn a_waiting_chunk_that_turns_urgent_moves_to_the_urgent_lane_at_that_moment() {
    let mut world =
        World::new(SchedConfig { lm_lead: ms(3_000), ..config() }, slow_background(500, 0)).watched();
    world.speak(1, 100);
    world.playback(1, Playback::Paused { played: Span::ZERO });
    world.run_for(ms(60));
    world.speak(2, 100);
    until_chunks(&mut world, 2, 1);
    world.playback(2, Playback::Playing { zero: world.now + ms(200) });
    world.run_until(at(1_000));
    let counters = world.sched.snapshot().counters;
    assert!(counters.promotions > 0);
    let moved =
        world.codec_in(Lane::Urgent).into_iter().find(|(_, it)| it.why().reason == reason::URGENT_SLACK);
    let slack = rows(&moved.expect("a chunk that moved").1)[0].slack;
    // Its margin is half of the 160 ms in hand.
    assert_eq!(slack, ms(80) - Span::from_micros(1));
}

#[test]
fn a_member_whose_next_chunk_would_be_late_goes_urgent_instead_of_into_the_batch() {
    let mut world = World::new(config(), slow_background(900, 0)).watched();
    world.speak(1, 60);
    until_chunks(&mut world, 1, 1);
    world.playback(1, Playback::Playing { zero: world.now + ms(100) });
    world.run_until(at(2_500));
    assert!(world.sched.snapshot().counters.inversions_averted > 0);
    let (_, averted) = world
        .codec_in(Lane::Urgent)
        .into_iter()
        .find(|(_, decision)| decision.why().reason == reason::URGENT_INVERSION)
        .expect("averted");
    let row = rows(&averted)[0];
    assert!(row.slack >= ms(100), "not urgent by itself");
    assert!(world.chunks(1).iter().all(|chunk| !chunk.late));
}

#[test]
fn a_member_goes_urgent_when_one_urgent_call_after_the_batch_could_not_save_its_next_chunk() {
    let urgent = CostTable::linear(200_000, 0, 0, 16, 1024);
    let mut profile = slow_background(390, 0).with_cost(Stage::Codec, Partition::Whole, urgent);
    profile.codec_lengths = vec![2];
    // The batch ends at 390 ms and an urgent call at 590; the next chunk is due 160 ms after this one.
    assert_eq!(lane_with(&profile, 1, ms(429)), Lane::Urgent);
    assert_eq!(lane_with(&profile, 1, ms(430)), Lane::Background);
}

#[test]
fn a_batch_is_cut_to_the_largest_prefix_that_keeps_every_deadline() {
    let mut world =
        World::new(SchedConfig { background_batch: 4, ..config() }, slow_background(10, 120)).watched();
    for number in 1..=4 {
        world.speak(number, 60);
    }
    for number in 1..=4 {
        until_chunks(&mut world, number, 1);
        world.playback(number, Playback::Playing { zero: world.now + ms(200 * number as i64) });
    }
    world.run_until(at(3_000));
    assert!(world.sched.snapshot().counters.batches_cut > 0);
    assert!((1..=4).all(|number| world.chunks(number).iter().all(|chunk| !chunk.late)));
}

#[test]
fn chunks_of_one_context_run_one_after_the_other() {
    let mut world = World::new(config(), slow_background(60, 10)).watched();
    for number in 1..=4 {
        world.speak(number, 50);
    }
    assert!(world.run_dry(8_000) || world.sched.snapshot().engine.open == 0);
    for number in 1..=4 {
        let chunks = world.chunks(number);
        for pair in chunks.windows(2) {
            assert!(pair[1].launched >= pair[0].made, "two chunks of {number} at once");
            assert_eq!(pair[1].position, pair[0].position + u64::from(pair[0].frames));
        }
    }
}

#[test]
fn a_paused_listener_is_never_due_and_gets_no_more_than_the_output_queue_holds() {
    let mut world = World::new(SchedConfig { lm_lead: ms(2_000), ..config() }, profile()).watched();
    world.speak(1, 200);
    world.playback(1, Playback::Paused { played: Span::ZERO });
    world.run_until(at(20_000));
    let chunks = world.chunks(1);
    assert!(chunks.iter().skip(1).all(|chunk| chunk.slack == Span::MAX && chunk.lane == Lane::Background));
    let made: u32 = chunks.iter().map(|chunk| chunk.frames).sum();
    assert!(ms(80).times(i64::from(made)) <= ms(2_000) + ms(800), "{made} frames for a queue of 2.8 s");
    world.plays(1);
    assert!(world.run_dry(4_000));
    assert_eq!(world.chunks(1).iter().map(|chunk| chunk.frames).sum::<u32>(), 200);
}

#[test]
fn a_playback_report_moves_the_deadline_of_every_chunk_still_to_be_made() {
    let slack_after = |ahead: i64| {
        let mut world = world();
        world.speak(1, 40);
        until_chunks(&mut world, 1, 1);
        world.playback(1, Playback::Playing { zero: world.now + ms(ahead) });
        let next = world.chunks(1).len();
        until_chunks(&mut world, 1, next + 1);
        let chunk = world.chunks(1)[next].clone();
        (chunk.launched + chunk.slack).since(chunk.made - chunk.made.since(Tick::ZERO))
    };
    assert_eq!(slack_after(500) - slack_after(300), ms(200));
}

#[test]
fn without_a_report_the_listener_is_taken_to_hear_from_the_first_chunk_on() {
    let mut world = world();
    world.speak(1, 40);
    until_chunks(&mut world, 1, 2);
    let chunks = world.chunks(1);
    assert_eq!(chunks[1].launched + chunks[1].slack, chunks[0].made + ms(160));
}

#[test]
fn what_exists_of_a_chunk_is_handed_out_before_a_listener_runs_dry_for_want_of_text() {
    let mut world = world();
    world.open(1);
    world.streamed(1, 0, 1, false, 40);
    world.run_until(at(190));
    let chunks = world.chunks(1);
    assert_eq!(chunks.len(), 1, "one frame exists and 200 ms are nearly over");
    assert_eq!((chunks[0].frames, chunks[0].lane), (1, Lane::Urgent));
    assert!(!chunks[0].late && chunks[0].launched >= at(90), "not before its slack demands it");
}

#[test]
fn a_chunk_made_after_its_deadline_says_so() {
    let mut world = World::new(config(), profile());
    world.pace_permille = 30_000;
    world.speak(1, 10);
    assert!(world.run_dry(1_000));
    assert!(world.chunks(1)[0].late);
    assert!(world.sched.snapshot().engine.chunks_late > 0);
}

#[test]
fn the_codec_sees_as_far_ahead_as_it_must_before_a_chunk_is_ready() {
    let mut profile = profile();
    profile.look_ahead = 3;
    let mut world = World::new(config(), profile).watched();
    world.speak(1, 20);
    until_chunks(&mut world, 1, 1);
    let (launched, _) = world.codec_in(Lane::Urgent)[0];
    assert_eq!(launched, Tick::from_micros(10_000 + 4 * 5_500), "two frames and three beyond");
    assert!(world.run_dry(1_000));
    assert_eq!(world.chunks(1).iter().map(|chunk| chunk.frames).sum::<u32>(), 20);
}
