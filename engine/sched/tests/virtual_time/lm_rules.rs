//! The lm lane: decode, prefill, pages.

use contract::{CloneMode, FinishReason, Lane, Partition, Playback, Span, Stage, Tick};
use sched::{Command, CostTable, Decision, EncodeKey, PrefillPolicy, SchedConfig, SchedOutput, reason};

use crate::world::{Script, World, at, id, ms, profile};

fn config() -> SchedConfig {
    SchedConfig { lm_load_max_permille: 10_000, first_audio_limit: ms(10_000), ..SchedConfig::default() }
}

fn prefills(world: &World) -> Vec<(Tick, Vec<u64>, &'static str)> {
    let prefills = world.launched(Stage::Prefill).into_iter();
    prefills
        .map(|(at, decision)| match decision {
            Decision::Prefill { rows, why, .. } => {
                (at, rows.iter().map(|row| row.context.0).collect(), why.reason)
            }
            other => panic!("not a prefill: {other:?}"),
        })
        .collect()
}

/// A world whose steps take longer than a frame plays: every listener runs out.
fn too_slow(config: SchedConfig) -> World {
    let slow = CostTable::linear(100_000, 0, 0, 16, 1024);
    let mut world = World::new(config, profile().with_cost(Stage::Decode, Partition::Lm, slow)).watched();
    world.speak(1, 200);
    world.playback(1, Playback::Playing { zero: Tick::from_micros(1) });
    world
}

#[test]
fn every_running_context_gets_a_row_in_every_step() {
    let mut world = World::new(config(), profile()).watched();
    for number in 1..=5 {
        world.speak(number, 40);
    }
    world.run_until(at(200));
    let (_, last) = world.launched(Stage::Decode).pop().expect("decodes");
    let Decision::Decode { rows, bucket, why, .. } = last else { unreachable!("a decode") };
    assert_eq!((rows.len(), bucket, why.reason), (5, 8, reason::DECODE_ALL));
}

#[test]
fn when_more_contexts_run_than_a_batch_holds_the_least_slack_goes_first() {
    let mut profile = profile();
    profile.decode_buckets = vec![1, 2];
    let mut world = World::new(config(), profile).watched();
    for number in 1..=5 {
        world.speak(number, 30);
        world.run_for(ms(5));
    }
    world.playback(5, Playback::Paused { played: Span::ZERO });
    assert!(!world.run_dry(300) || world.finished(1).is_some());
    let reasons = world.launched(Stage::Decode);
    assert!(reasons.iter().any(|(_, decision)| decision.why().reason == reason::DECODE_LEAST_SLACK));
    // The paused one has infinite slack: it gets no row while others want one.
    let starved = reasons.iter().filter(|(_, it)| it.why().reason == reason::DECODE_LEAST_SLACK).all(
        |(_, it)| match it {
            Decision::Decode { rows, .. } => rows.iter().all(|row| row.context != id(5)),
            _ => false,
        },
    );
    assert!(starved);
}

#[test]
fn a_prefill_goes_at_once_when_running_contexts_have_slack() {
    let mut world = World::new(config(), profile()).watched();
    world.speak(1, 100);
    world.playback(1, Playback::Paused { played: Span::ZERO });
    world.run_until(at(100));
    world.speak(2, 20);
    world.run_until(at(110));
    let (launched, rows, why) = prefills(&world).pop().expect("a prefill");
    assert_eq!((rows, why), (vec![2], reason::PREFILL_SLACK));
    assert!(launched.since(at(100)) <= ms(6), "waits only for the step in flight");
}

/// Five contexts that speak, and a sixth that comes with a prompt of thirty positions: that prompt's launch.
fn a_sixth_comes(config: SchedConfig) -> (World, Decision) {
    let mut world = World::new(config, profile()).watched();
    for number in 1..=5 {
        world.speak(number, 60);
    }
    world.run_until(at(200));
    world.speak(6, 20);
    assert!(world.run_dry(20_000), "everybody is spoken to the end");
    let mut launched = world.launched(Stage::Prefill).into_iter().map(|(_, decision)| decision);
    let of_sixth = |decision: &Decision| match decision {
        Decision::Prefill { rows, .. } => rows.iter().any(|row| row.context == id(6)),
        _ => false,
    };
    let found = launched.find(of_sixth).expect("it begins");
    (world, found)
}

fn riders_of(decision: &Decision) -> (Partition, usize) {
    let Decision::Prefill { partition, riders, .. } = decision else { panic!("a prefill: {decision:?}") };
    (*partition, riders.len())
}

#[test]
fn the_step_of_running_contexts_rides_along_with_a_prompt_within_its_bounds() {
    let riding = SchedConfig { ride_rows_max: 6, ride_tokens_max: 30, ..config() };
    let (world, decision) = a_sixth_comes(riding.clone());
    assert_eq!(riders_of(&decision), (Partition::Lm, 5), "all of them, on their own partition");
    let rides = world.sched.snapshot().counters.rides;
    let prefills = world.launched(Stage::Prefill).len() as u64;
    assert!((1..=prefills).contains(&rides), "{rides} of {prefills}");
    // Too long a prompt, or one row too many: as if nobody ever rode.
    let short = SchedConfig { ride_tokens_max: 29, ..riding.clone() };
    let narrow = SchedConfig { ride_rows_max: 5, ..riding };
    for config in [short, narrow, config()] {
        assert_eq!(riders_of(&a_sixth_comes(config).1), (Partition::Whole, 0));
    }
}

#[test]
fn a_prompt_with_riders_waits_for_nobodys_slack() {
    // A prompt by itself takes 400 ms, more than anybody has in hand; in a step it makes that 3 ms longer.
    let step = CostTable::linear(40_000, 0, 0, 16, 1024);
    let ride = CostTable::linear(43_000, 0, 0, 16, 1024);
    let costly = profile()
        .with_cost(Stage::Prefill, Partition::Whole, CostTable::linear(400_000, 0, 0, 16, 1024))
        .with_cost(Stage::Prefill, Partition::Lm, ride)
        .with_cost(Stage::Decode, Partition::Lm, step);
    let begun = |ride_rows_max| {
        let policy = PrefillPolicy::DeadlineAware;
        let config = SchedConfig { ride_rows_max, prefill_policy: policy, ..config() };
        let mut world = World::new(config, costly.clone()).watched();
        for number in 1..=5 {
            world.speak(number, 60);
        }
        world.run_until(at(1_700));
        world.speak(6, 20);
        assert!(world.run_dry(20_000), "everybody is spoken to the end");
        prefills(&world)
            .into_iter()
            .find(|(_, rows, _)| rows == &[6])
            .map(|(at, _, why)| (at.since(self::at(1_700)), why))
    };
    let (waited, why) = begun(16).expect("it begins");
    assert_eq!(why, reason::PREFILL_RIDE);
    assert!(waited <= ms(44), "{waited}: only for the launch in flight");
    assert!(begun(0).is_some_and(|(alone, _)| alone > waited), "by itself it waits longer");
}

#[test]
fn a_prompt_with_riders_does_not_wait_behind_an_encode_that_is_held_back() {
    let policy = PrefillPolicy::DeadlineAware;
    let config =
        SchedConfig { prefill_policy: policy, deferral_cap: ms(2_000), ride_rows_max: 16, ..config() };
    // Steps take half of real time, and the clip more than anybody has in hand.
    let costly = profile()
        .with_cost(Stage::Decode, Partition::Lm, CostTable::linear(40_000, 0, 0, 16, 1024))
        .with_cost(Stage::Prefill, Partition::Lm, CostTable::linear(43_000, 0, 0, 16, 1024))
        .with_cost(Stage::Encode, Partition::Whole, CostTable::linear(3_000_000, 0, 0, 16, 1024));
    let mut world = World::new(config, costly).watched();
    for number in 1..=3 {
        world.speak(number, 100);
    }
    world.run_until(at(1_000));
    world.command(Command::Open {
        context: id(4),
        arrival: world.now,
        tenant: 0,
        exact_frames: None,
        voice_encode: Some(EncodeKey { hash: [9; 16], mode: CloneMode::InContext }),
        encode_samples: 48_000,
    });
    world.whole(4, 0, 10);
    world.run_for(ms(5));
    world.speak(5, 10);
    world.run_until(at(1_200));
    assert!(world.launched(Stage::Encode).is_empty(), "nobody has so much in hand");
    let (_, rows, why) = prefills(&world).pop().expect("a prefill");
    assert_eq!((rows, why), (vec![5], reason::PREFILL_RIDE), "and the prompt goes meanwhile");
    assert!(world.run_dry(30_000), "the clip's turn comes, and everybody is spoken to the end");
}

#[test]
fn a_prefill_is_deferred_for_contexts_short_of_slack_and_at_most_for_the_cap() {
    let config = SchedConfig { prefill_policy: PrefillPolicy::DeadlineAware, ..config() };
    let mut world = too_slow(config);
    world.run_until(at(350));
    world.speak(2, 20);
    world.run_until(at(900));
    let (launched, rows, why) = prefills(&world).pop().expect("a prefill");
    assert_eq!((rows, why), (vec![2], reason::PREFILL_CAP));
    // Asked at 410 ms when the step in flight ended, and put off for one more step.
    assert_eq!(launched, at(510));
    assert_eq!(world.sched.snapshot().counters.deferrals_to_cap, 1);
}

#[test]
fn a_prefill_goes_after_two_steps_where_chunks_cut_short_are_still_in_time() {
    // Whole chunks of ten would take most of what is in hand: their slack alone defers everybody.
    let brisk = CostTable::linear(30_000, 0, 0, 16, 1024);
    let profile = profile().with_cost(Stage::Decode, Partition::Lm, brisk);
    let config = SchedConfig { steps_between_prefills: 2, ..config() };
    let mut world = World::new(config, profile).watched();
    for number in 1..=12 {
        world.speak(number, 60);
        world.run_for(ms(70));
    }
    assert!(world.run_dry(20_000), "everybody is spoken to the end");
    let (alternating, steps) = (prefills(&world), world.launched(Stage::Decode));
    let cut: Vec<_> = alternating.iter().filter(|(.., why)| *why == reason::PREFILL_CUT).collect();
    assert!(!cut.is_empty(), "{alternating:?}");
    for (at, ..) in &cut {
        let before =
            alternating.iter().rev().find(|(other, ..)| other < at).map_or(Tick::ZERO, |(at, ..)| *at);
        let between = steps.iter().filter(|(step, _)| *step > before && step < at).count();
        assert!(between >= 2, "{between} steps before the prefill at {at:?}");
    }
    let counters = world.sched.snapshot().counters;
    assert_eq!((counters.deferrals_to_cap, counters.chunks_late), (0, 0));
}

#[test]
fn prefill_first_never_defers() {
    let config = SchedConfig { prefill_policy: PrefillPolicy::PrefillFirst, ..config() };
    let mut world = too_slow(config);
    world.run_until(at(350));
    world.speak(2, 20);
    world.run_until(at(500));
    let (launched, _, why) = prefills(&world).pop().expect("a prefill");
    assert_eq!((launched, why), (at(410), reason::PREFILL_FIRST));
    assert_eq!(world.sched.snapshot().counters.deferrals, 0);
}

#[test]
fn when_every_running_context_is_short_prefill_goes_first_by_itself_and_comes_back_with_hysteresis() {
    let mut world = too_slow(config());
    // Short from its prefill on, at 10 ms.
    let short_since = at(10);
    let mut switched = None;
    while switched.is_none() {
        let next = world.next_event().expect("it runs");
        world.step_to(next);
        switched = world.sched.snapshot().prefill_first.then_some(world.now);
    }
    let held = switched.expect("it switched").since(short_since);
    assert!(held >= ms(200) && held <= ms(300), "held for {held}");
    // One with slack among two is half of them: back again, but only after the hold.
    world.speak(2, 400);
    world.playback(2, Playback::Paused { played: Span::ZERO });
    let easy_since = world.now;
    while world.sched.snapshot().prefill_first {
        let next = world.next_event().expect("it runs");
        world.step_to(next);
    }
    let held = world.now.since(easy_since);
    assert!(held >= ms(200) && held <= ms(520), "came back after {held}");
    assert_eq!(world.sched.snapshot().counters.policy_switches, 2);
}

#[test]
fn several_prompts_are_packed_into_one_prefill_up_to_the_token_budget() {
    let config = SchedConfig { prefill_tokens_max: 100, ..config() };
    let mut world = World::new(config, profile()).watched();
    for number in 1..=6 {
        world.speak(number, 10);
    }
    world.run_until(at(60));
    let packs: Vec<Vec<u64>> = prefills(&world).into_iter().map(|(_, rows, _)| rows).collect();
    assert_eq!(packs[..2], [vec![1], vec![2, 3, 4]], "30 positions each, 100 a pack");
}

#[test]
fn beside_a_background_batch_prefill_may_use_the_lm_partition() {
    for beside in [false, true] {
        let config = SchedConfig { prefill_beside_background: beside, background_batch: 1, ..config() };
        let slow = CostTable::linear(300_000, 0, 0, 16, 16);
        let mut world =
            World::new(config, profile().with_cost(Stage::Codec, Partition::Background, slow)).watched();
        world.speak(1, 100);
        world.playback(1, Playback::Paused { played: Span::ZERO });
        world.run_until(at(150));
        assert!(world.flying.iter().any(|flight| flight.decision.lane() == Lane::Background));
        world.speak(2, 5);
        world.run_until(at(200));
        let (_, last) = world.launched(Stage::Prefill).pop().expect("a prefill");
        let Decision::Prefill { partition, .. } = last else { unreachable!("a prefill") };
        assert_eq!(partition, if beside { Partition::Lm } else { Partition::Whole });
    }
}

#[test]
fn a_context_far_ahead_leaves_its_turn_to_others_until_its_lead_has_run_down() {
    let mut world = World::new(SchedConfig { lm_lead: ms(1_000), ..config() }, profile()).watched();
    world.speak(1, 300);
    world.run_until(at(30));
    world.plays(1);
    world.run_until(at(1_500));
    let steps = |world: &World| world.launched(Stage::Decode).len();
    assert!(world.sched.snapshot().counters.yields > 0);
    let before = steps(&world);
    assert!(before < 100, "{before} steps in 1.5 s: it never yielded");
    world.run_until(at(6_000));
    assert!(steps(&world) > before, "it never came back");
    assert!(world.chunks(1).iter().all(|chunk| !chunk.late));
}

#[test]
fn a_context_whose_state_grows_never_yields() {
    let mut growing = profile();
    growing.state_grows = true;
    let mut world = World::new(SchedConfig { lm_lead: ms(1_000), ..config() }, growing).watched();
    world.speak(1, 300);
    world.playback(1, Playback::Paused { played: Span::ZERO });
    world.run_until(at(2_500));
    assert_eq!(world.launched(Stage::Decode).len(), 300, "all steps and the one that ended it");
    assert_eq!(world.sched.snapshot().counters.yields, 0);
}

#[test]
fn a_page_is_appended_before_the_launch_that_could_cross_its_border() {
    let mut world = World::new(config(), profile()).watched();
    world.speak(1, 120);
    world.playback(1, Playback::Playing { zero: at(10) });
    assert!(world.run_dry(2_000));
    let grown: Vec<u32> = world
        .launched(Stage::Decode)
        .iter()
        .filter_map(|(_, decision)| match decision {
            Decision::Decode { rows, .. } => {
                rows.iter().find(|row| !row.pages.is_empty()).map(|row| row.step)
            }
            _ => None,
        })
        .collect();
    // 30 prompt positions; step s writes position 29 + s, and pages hold 64.
    assert_eq!(grown, [35, 99]);
}

#[test]
fn without_a_free_page_the_context_with_the_longest_lead_is_capped_and_still_speaks_what_it_has() {
    let config = SchedConfig { pages: 6, page_positions: 16, lm_lead: ms(60_000), ..config() };
    let mut world = World::new(config, profile()).watched();
    for number in [1, 2] {
        world.open(number);
        world.scripts.insert((id(number), 0), Script { eos_at: 200, ..Script::default() });
        world.command(Command::SegmentReady {
            context: id(number),
            segment: 0,
            prompt_tokens: 10,
            ids: 2,
            closed: true,
            streamed: false,
            frames_predicted: 6,
            frames_max: 300,
        });
        world.command(Command::Finish { context: id(number) });
    }
    // Both predicted six frames and were given what that takes; both go on far beyond.
    world.run_until(at(60));
    world.playback(1, Playback::Paused { played: Span::ZERO });
    world.run_until(at(2_000));
    let counters = world.sched.snapshot().counters;
    assert!(counters.page_exhaustions > 0 && counters.page_victims > 0, "{counters:?}");
    assert_eq!(world.finished(1), Some(FinishReason::Capped), "the paused one has the longest lead");
    let spoken: u32 = world.chunks(1).iter().map(|chunk| chunk.frames).sum();
    assert!(spoken > 20, "{spoken} frames");
    assert!(world.run_dry(2_000));
    assert_eq!(world.sched.snapshot().engine.pages_used, 0);
}

#[test]
fn one_step_ahead_two_launches_stand_in_the_lane_and_the_one_after_the_end_changes_nothing() {
    let mut world = World::new(SchedConfig { lm_depth: 2, ..config() }, profile()).watched();
    world.speak(1, 10);
    world.run_until(at(20));
    assert_eq!(world.flying.iter().filter(|flight| flight.decision.lane() == Lane::Lm).count(), 2);
    assert!(world.run_dry(1_000));
    let counters = world.sched.snapshot().counters;
    assert_eq!(counters.stale_rows, 1, "the step launched before the end was known");
    assert_eq!((counters.frames, world.finished(1)), (10, Some(FinishReason::Done)));
}

#[test]
fn a_step_goes_ahead_shortly_before_the_one_before_it_ends_so_that_a_newcomer_waits_for_one_at_most() {
    let ahead = SchedConfig { lm_depth: 2, lm_ahead: ms(1), ..config() };
    let mut world = World::new(ahead, profile()).watched();
    world.speak(1, 30);
    world.run_until(at(100));
    let steps: Vec<_> = world.launched(Stage::Decode);
    assert!(steps.len() > 5);
    // Each a millisecond before the one before it is over: they follow each other without a gap, and as often as if each
    // had been launched at its predecessor's end.
    for pair in steps.windows(2) {
        let expected = pair[0].1.why().expected;
        assert_eq!(pair[1].0.since(pair[0].0), expected, "from launch to launch");
    }
    world.speak(2, 10);
    assert!(world.run_dry(2_000));
}

#[test]
fn a_further_segment_is_prefilled_when_the_decoded_lead_runs_down_and_counts_as_continuation() {
    let mut world = World::new(SchedConfig { lm_lead: ms(60_000), ..config() }, profile()).watched();
    // A second context keeps the lane from being idle.
    world.speak(2, 700);
    world.playback(2, Playback::Paused { played: Span::ZERO });
    world.open(1);
    world.whole(1, 0, 30);
    world.whole(1, 1, 30);
    world.run_until(at(60));
    world.plays(1);
    world.run_until(at(4_500));
    let second = world.launched(Stage::Prefill).into_iter().find(|(_, decision)| match decision {
        Decision::Prefill { rows, .. } => rows.iter().any(|row| (row.context, row.segment) == (id(1), 1)),
        _ => false,
    });
    let (launched, _) = second.expect("the second segment is prefilled");
    // 30 frames play until 2,460 ms: due when what is left covers its first audio and the margin.
    let left = (at(60) + ms(2_400)).since(launched);
    assert!(left > ms(300) && left < ms(500), "prefilled with {left} in hand");
    let first = world.chunks(1).into_iter().find(|chunk| chunk.segment == 1).expect("speaks on");
    assert!(!first.late);
    assert!(first.frames > 2, "a continuation does not start the ladder again");
}

#[test]
fn an_idle_lane_prefills_a_further_segment_at_once() {
    let mut world = World::new(config(), profile()).watched();
    world.open(1);
    world.whole(1, 0, 10);
    world.whole(1, 1, 10);
    world.run_until(at(200));
    let second = world
        .outputs
        .iter()
        .any(|(_, output)| matches!(output, SchedOutput::SegmentFinished { segment: 1, .. }));
    assert!(second, "nothing else wanted the lane");
}

#[test]
fn contexts_of_one_voice_share_the_full_pages_of_their_prompts_prefix() {
    let config = SchedConfig { page_positions: 8, pages: 64, prefix_pages_max: 4, ..config() };
    let mut world = World::new(config, profile());
    let key = EncodeKey { hash: [3; 16], mode: CloneMode::InContext };
    let speak = |world: &mut World, number: u64| {
        world.open(number);
        world.command(Command::SharePrefix { context: id(number), key, positions: 21 });
        world.whole(number, 0, 30);
        world.command(Command::Finish { context: id(number) });
        world.run_for(ms(40));
        let (_, last) = world.launched(Stage::Prefill).pop().expect("a prefill");
        let Decision::Prefill { rows, .. } = last else { unreachable!("a prefill") };
        (rows[0].cached, rows[0].pages.clone())
    };
    let (cached, own) = speak(&mut world, 1);
    assert_eq!((cached, own.len()), (0, 4), "30 positions, the first of its voice");
    let (cached, shared) = speak(&mut world, 2);
    assert_eq!((cached, &shared[..2]), (16, &own[..2]), "21 positions fill two pages of 8");
    assert!(!own.contains(&shared[2]), "the partly filled page is its own");
    assert!(world.run_dry(2_000));
    assert_eq!(world.sched.snapshot().engine.pages_used, 2, "the voice keeps them");
    assert_eq!((world.finished(1), world.finished(2)), (Some(FinishReason::Done), Some(FinishReason::Done)));
}

#[test]
fn kept_prefixes_give_way_before_a_context_waits_or_is_capped() {
    let config = SchedConfig { page_positions: 8, pages: 10, prefix_pages_max: 4, ..config() };
    let mut world = World::new(config, profile());
    for number in 1..=3 {
        world.open(number);
        let key = EncodeKey { hash: [number as u8; 16], mode: CloneMode::InContext };
        world.command(Command::SharePrefix { context: id(number), key, positions: 24 });
        world.whole(number, 0, 40);
        world.command(Command::Finish { context: id(number) });
        assert!(world.run_dry(2_000));
        assert_eq!(world.finished(number), Some(FinishReason::Done), "needs nine of ten pages");
        assert_eq!(world.sched.snapshot().engine.pages_used, 3);
    }
}
