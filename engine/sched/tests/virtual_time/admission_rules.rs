//! Overload, the ladder, several devices, and the profile they are all judged by.

use contract::{ContextId, DeviceId, Lane, Partition, Playback, Span, Stage};
use sched::{
    Command, CostTable, Forecast, RefusalCause, Sched, SchedConfig, SchedOutput, SplitCandidate,
    choose_split, place,
};

use crate::world::{World, at, id, ms, profile};

fn refusals(world: &World) -> Vec<(u64, RefusalCause, Span)> {
    let refused = world.outputs.iter().filter_map(|(_, output)| match output {
        SchedOutput::Refused { context, retry_after, cause } => Some((context.0, *cause, *retry_after)),
        _ => None,
    });
    refused.collect()
}

fn first_audio(world: &World, number: u64, arrived: contract::Tick) -> Span {
    world.chunks(number)[0].made.since(arrived)
}

#[test]
fn first_audio_is_predicted_as_it_then_happens() {
    let mut world = World::new(SchedConfig::default(), profile()).watched();
    let predicted = world.sched.predict_first_audio(world.now, 30);
    world.speak(1, 30);
    assert!(world.run_dry(1_000));
    assert_eq!(predicted, first_audio(&world, 1, at(0)), "alone, exactly");

    let mut world = World::new(SchedConfig::default(), profile()).watched();
    for number in 1..=6 {
        world.speak(number, 200);
        world.playback(number, Playback::Paused { played: Span::ZERO });
    }
    world.run_until(at(300));
    let predicted = world.sched.predict_first_audio(world.now, 30);
    world.speak(9, 30);
    world.run_until(at(900));
    let happened = first_audio(&world, 9, at(300));
    let error = (predicted - happened).as_micros().abs();
    assert!(error <= 15_000, "predicted {predicted}, happened {happened}");
}

#[test]
fn a_context_whose_first_audio_would_come_too_late_is_refused_at_arrival_with_a_hint() {
    let config = SchedConfig { slots: 2, first_audio_limit: ms(400), ..SchedConfig::default() };
    let mut world = World::new(config, profile()).watched();
    for number in 1..=2 {
        world.speak(number, 400);
    }
    world.run_until(at(100));
    world.speak(3, 20);
    let refused = refusals(&world);
    assert_eq!((refused[0].0, refused[0].1), (3, RefusalCause::FirstAudio));
    assert!(refused[0].2 >= ms(100) && refused[0].2 <= ms(10_000), "hint {}", refused[0].2);
    assert_eq!(world.now, at(100), "at once");
    assert_eq!(refused[0].1.error(ms(700)), contract::EngineError::Overloaded { retry_after: ms(700) });
}

#[test]
fn an_idle_engine_takes_a_context_however_pessimistic_its_predictions_have_become() {
    let config = SchedConfig { first_audio_limit: ms(400), ..SchedConfig::default() };
    let endless = CostTable::linear(900_000, 0, 0, 16, 1024);
    let mut world =
        World::new(config, profile().with_cost(Stage::Prefill, Partition::Whole, endless)).watched();
    world.speak(1, 20);
    world.run_until(at(60_000));
    assert_eq!(refusals(&world), []);
}

#[test]
fn a_context_that_would_make_the_backbone_fall_behind_real_time_is_refused() {
    let slow = CostTable::linear(5_000, 15_000, 0, 16, 1024);
    let mut world =
        World::new(SchedConfig::default(), profile().with_cost(Stage::Decode, Partition::Lm, slow)).watched();
    for number in 1..=8 {
        world.speak(number, 100);
        world.run_for(ms(60));
    }
    // Steps take 5 + 15 ms a row and a frame lasts 80 ms: four rows are 65 ms, eight 125.
    let refused: Vec<u64> = refusals(&world).iter().map(|refusal| refusal.0).collect();
    assert_eq!(refused, [5, 6, 7, 8]);
    assert!(refusals(&world).iter().all(|refusal| refusal.1 == RefusalCause::Load));
}

#[test]
fn a_burst_of_arrivals_counts_those_that_still_wait_for_their_prefill() {
    let slow = CostTable::linear(5_000, 15_000, 0, 16, 1024);
    let mut world =
        World::new(SchedConfig::default(), profile().with_cost(Stage::Decode, Partition::Lm, slow)).watched();
    for number in 1..=8 {
        world.speak(number, 100);
    }
    let refused: Vec<u64> = refusals(&world).iter().map(|refusal| refusal.0).collect();
    assert_eq!(refused, [5, 6, 7, 8]);
}

#[test]
fn prompts_that_wait_together_are_predicted_as_the_packs_they_will_go_in() {
    let config =
        SchedConfig { slots: 64, prefill_rows_max: 4, lm_load_max_permille: 9_000, ..SchedConfig::default() };
    let costly = CostTable::linear(100_000, 0, 0, 16, 1024);
    let mut world =
        World::new(config, profile().with_cost(Stage::Prefill, Partition::Whole, costly)).watched();
    let mut predictions = Vec::new();
    for number in 1..=9 {
        predictions.push(world.sched.predict_first_audio(world.now, 30));
        world.speak(number, 30);
    }
    // The first goes at once and alone. Each pack of four after it takes the time of one prefill more.
    let more = |a: usize, b: usize| predictions[b] - predictions[a];
    assert!(more(1, 4) < ms(50), "packed with the first: {predictions:?}");
    assert!(more(4, 5) >= ms(100) && more(5, 8) < ms(50), "a pack more: {predictions:?}");
}

#[test]
fn a_newcomer_is_judged_by_the_shortest_first_chunk_however_long_the_ladder_has_grown() {
    let costly = CostTable::linear(20_000, 1_000, 0, 16, 16);
    let slow = CostTable::linear(30_000, 0, 0, 16, 1024);
    let config = SchedConfig {
        ladder_window: ms(1_000),
        lm_load_max_permille: 9_000,
        first_audio_limit: ms(250),
        ..SchedConfig::default()
    };
    let profile = profile().with_cost(Stage::Codec, Partition::Whole, costly).with_cost(
        Stage::Decode,
        Partition::Lm,
        slow,
    );
    let mut world = World::new(config, profile).watched();
    for number in 1..=16 {
        world.speak(number, 12);
        world.run_for(ms(60));
    }
    let whole = world.sched.predict_first_audio(world.now, 30);
    assert!(world.sched.snapshot().rung > 0 && whole > ms(250), "a whole first chunk would be late: {whole}");
    world.speak(20, 12);
    assert!(refusals(&world).iter().all(|refusal| refusal.0 != 20), "{:?}", refusals(&world));
}

#[test]
fn a_context_that_was_promised_a_slot_and_does_not_get_it_is_refused_after_the_limit() {
    let config = SchedConfig { slots: 1, first_audio_limit: ms(1_000), ..SchedConfig::default() };
    let mut world = World::new(config, profile()).watched();
    world.open(1);
    world.streamed(1, 0, 4, false, 40);
    world.run_until(at(50));
    world.speak(2, 20);
    assert!(refusals(&world).is_empty(), "the first looks nearly done: its text says so");
    world.run_until(at(1_050));
    assert_eq!(refusals(&world)[0].1, RefusalCause::Waited);
    assert_eq!(world.sched.snapshot().counters.slot_exhaustions, 1);
}

#[test]
fn one_context_too_many_is_refused_when_it_opens() {
    let mut world = World::new(SchedConfig { open_max: 2, ..SchedConfig::default() }, profile()).watched();
    for number in 1..=3 {
        world.open(number);
    }
    let refused = refusals(&world);
    assert_eq!((refused.len(), refused[0].0, refused[0].1), (1, 3, RefusalCause::TooManyOpen));
    assert!(matches!(refused[0].1.error(ms(100)), contract::EngineError::TooManyContexts { .. }));
    assert!(matches!(world.outputs.last(), Some((_, SchedOutput::Removed { context })) if *context == id(3)));
}

#[test]
fn under_overload_a_tenant_beyond_its_share_is_refused_before_the_others() {
    let config =
        SchedConfig { slots: 4, ttfa_target: ms(20), lm_load_max_permille: 9_000, ..SchedConfig::default() };
    let mut world = World::new(config, profile()).watched();
    let open = |world: &mut World, number, tenant| {
        world.command(Command::Open {
            context: id(number),
            arrival: world.now,
            tenant,
            exact_frames: None,
            voice_encode: None,
            encode_samples: 0,
        });
        world.whole(number, 0, 400);
        world.run_for(ms(40));
    };
    for (number, tenant) in [(1, 7), (2, 7), (3, 8)] {
        open(&mut world, number, tenant);
    }
    open(&mut world, 4, 7);
    open(&mut world, 5, 8);
    let refused: Vec<u64> = refusals(&world).iter().map(|refusal| refusal.0).collect();
    assert_eq!(refused, [4], "tenant 7 holds its half, tenant 8 does not");
}

#[test]
fn a_burst_starts_the_ladder_longer_and_quiet_brings_it_back() {
    let costly = CostTable::linear(20_000, 1_000, 0, 16, 16);
    let config =
        SchedConfig { ladder_window: ms(1_000), lm_load_max_permille: 9_000, ..SchedConfig::default() };
    let mut world = World::new(config, profile().with_cost(Stage::Codec, Partition::Whole, costly)).watched();
    let first_length = |world: &World, number: u64| world.chunks(number)[0].frames;
    world.speak(1, 12);
    world.run_for(ms(1_500));
    assert_eq!(first_length(&world, 1), 2);
    for number in 2..=16 {
        world.speak(number, 12);
        world.run_for(ms(60));
    }
    world.run_for(ms(200));
    assert!(first_length(&world, 16) > 2, "urgent-lane time was over budget");
    world.run_for(ms(3_000));
    world.speak(20, 12);
    world.run_for(ms(1_000));
    assert_eq!(first_length(&world, 20), 2);
    assert!(world.sched.snapshot().counters.ladder_changes >= 2);
}

#[test]
fn of_several_devices_the_one_that_would_be_heard_first_is_chosen() {
    let busy = {
        let mut world = World::new(SchedConfig::default(), profile());
        for number in 1..=6 {
            world.speak(number, 300);
        }
        world.run_until(at(200));
        world.sched
    };
    let idle = Sched::new(SchedConfig::default(), profile()).expect("a sound configuration");
    let slow = profile().with_cost(Stage::Prefill, Partition::Whole, CostTable::linear(90_000, 0, 0, 2, 2));
    let slow = Sched::new(SchedConfig::default(), slow).expect("a sound configuration");
    let forecast = |sched: &Sched| sched.forecast(at(200), 30);
    let chosen = |devices: &[(u16, Forecast)]| {
        place(devices.iter().map(|(id, forecast)| (DeviceId(*id), *forecast))).map(|(DeviceId(id), _)| id)
    };
    let [busy, idle, slow] = [&busy, &idle, &slow].map(forecast);
    assert_eq!(chosen(&[(0, busy), (1, idle), (2, slow)]), Some(1));
    assert_eq!(chosen(&[(4, idle), (3, idle)]), Some(3), "equals: the lower id");
    assert_eq!(chosen(&[(3, Forecast { open: 1, ..idle }), (4, idle)]), Some(4), "equals: the emptier one");
    assert_eq!(chosen(&[]), None);
}

#[test]
fn contexts_that_wait_for_their_first_text_count_where_they_were_placed() {
    let mut sched = Sched::new(SchedConfig::default(), profile()).expect("a sound configuration");
    let idle = sched.forecast(at(0), 30);
    for number in 1..=5 {
        let context = ContextId(number);
        let open = Command::Open {
            context,
            arrival: at(0),
            tenant: 0,
            exact_frames: None,
            voice_encode: None,
            encode_samples: 0,
        };
        sched.handle_command(at(0), open);
    }
    let opened = sched.forecast(at(1), 30);
    assert_eq!((opened.awaited, opened.open), (5, 5));
    assert_eq!(opened.expected(), idle.expected() + idle.each_more.times(5));
    let silent = sched.forecast(at(5_000), 30);
    assert_eq!((silent.awaited, silent.open), (0, 5), "who says nothing for so long keeps nobody away");
}

#[test]
fn costs_are_interpolated_and_follow_what_is_measured() {
    let table = CostTable::new(vec![1, 4], vec![10, 20], vec![100, 200, 400, 800]).expect("a sound table");
    assert_eq!((table.at(1, 10), table.at(1, 15), table.at(4, 20), table.at(2, 10)), (100, 150, 800, 200));
    assert_eq!(
        (table.at(1, 5), table.at(1, 40), table.at(8, 10)),
        (100, 400, 800),
        "flat below, on by slope above"
    );
    let mut profile = profile().with_cost(Stage::Decode, Partition::Lm, table);
    let before = profile.cost(Stage::Decode, Partition::Lm, 4, 20);
    for _ in 0..60 {
        profile.observe(Stage::Decode, Partition::Lm, 1, 10, Span::from_micros(150));
    }
    let after = profile.cost(Stage::Decode, Partition::Lm, 4, 20);
    assert_eq!(before, Span::from_micros(800));
    assert!((after.as_micros() - 1_200).abs() < 20, "half more everywhere, not {after}");
    profile.observe(Stage::Decode, Partition::Lm, 1, 10, Span::ZERO);
    assert_eq!(profile.cost(Stage::Decode, Partition::Lm, 4, 20), after, "not measured is no measurement");
}

#[test]
fn predictions_follow_a_processor_that_is_slower_than_its_profile() {
    let mut world = World::new(SchedConfig::default(), profile()).watched();
    world.pace_permille = 2_000;
    world.speak(1, 100);
    assert!(world.run_dry(2_000));
    let step = world.sched.profile().cost(Stage::Decode, Partition::Lm, 1, 100);
    // The world takes twice what is predicted, and predictions learn from it, up to their bound.
    assert!(step >= ms(11), "still predicts {step}");
}

#[test]
fn the_split_gives_the_backbone_most_while_the_codec_keeps_up() {
    let candidate = |lm_parts, step, codec| SplitCandidate {
        lm_parts,
        profile: profile()
            .with_cost(Stage::Decode, Partition::Lm, CostTable::linear(step, 0, 0, 16, 16))
            .with_cost(Stage::Codec, Partition::Background, CostTable::linear(codec, 0, 0, 16, 16)),
    };
    // 16 contexts a step; 160 frames a codec batch: the codec keeps up while its batch takes at most ten steps.
    let candidates =
        [candidate(100, 2_000, 19_000), candidate(108, 1_900, 19_500), candidate(116, 1_800, 40_000)];
    assert_eq!(choose_split(&candidates, 16, 16), Some(0), "the second's codec falls behind");
    let candidates =
        [candidate(100, 2_000, 19_000), candidate(108, 1_950, 19_000), candidate(116, 1_800, 40_000)];
    assert_eq!(choose_split(&candidates, 16, 16), Some(1));
    assert_eq!(choose_split(&candidates[2..], 16, 16), Some(0), "none keeps up: the fastest codec");
    assert_eq!(choose_split(&[], 16, 16), None);
}

#[test]
fn a_configuration_that_cannot_run_is_refused_by_field() {
    let field =
        |config: SchedConfig| Sched::new(config, profile()).map(|_| ()).expect_err("cannot run").field;
    assert_eq!(field(SchedConfig { slots: 0, ..SchedConfig::default() }), "slots");
    assert_eq!(field(SchedConfig { urgent_batch_max: 9, ..SchedConfig::default() }), "urgent_batch_max");
    assert_eq!(field(SchedConfig { lm_depth: 3, ..SchedConfig::default() }), "lm_depth");
    assert_eq!(field(SchedConfig { deferral_cap: ms(-1), ..SchedConfig::default() }), "deferral_cap");
    let mut lengths = profile();
    lengths.codec_lengths = vec![4, 2];
    let error = Sched::new(SchedConfig::default(), lengths).map(|_| ()).expect_err("cannot run");
    assert_eq!(error.field, "codec_lengths");
    assert!(CostTable::new(vec![1], vec![1, 2], vec![5]).is_err());
}

#[test]
fn urgent_calls_and_background_batches_may_run_at_once() {
    let mut world =
        World::new(SchedConfig { background_batch: 1, ..SchedConfig::default() }, profile()).watched();
    world.speak(1, 60);
    world.playback(1, Playback::Paused { played: Span::ZERO });
    world.run_until(at(40));
    world.speak(2, 60);
    let mut both = false;
    while let Some(next) = world.next_event().filter(|&next| next < at(400)) {
        world.step_to(next);
        let in_lane = |lane: Lane| world.flying.iter().any(|flight| flight.decision.lane() == lane);
        both |= in_lane(Lane::Background) && in_lane(Lane::Urgent) && in_lane(Lane::Lm);
    }
    assert!(both, "all three lanes at once");
}
