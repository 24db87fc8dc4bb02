//! The simulator: deterministic, honest about its profile, and the guard of scheduling quality.

use std::sync::atomic::{AtomicBool, Ordering};

use contract::Span;
use load::mood::Moods;
use load::rates::{Offer, Rates};
use load::report::Rate;
use load::sim::split::{SplitCost, judge};
use load::sim::{ProfileError, ProfileFile, Scene, Variant, VariantError, offer, plan};
use load::workload::Workload;

/// A small processor: a step of 4 ms and 2 ms a row, as a CPU has.
const SMALL: &str = r#"{
    "name": "small", "device": "test", "frame_ms": 80,
    "decode_buckets": [1, 2, 4, 8, 16, 32], "codec_buckets": [1, 2, 4, 8], "codec_lengths": [2, 4, 10],
    "live_rows": true,
    "stages": [
        {"stage": "decode", "partition": "lm", "rows": [1, 16], "lengths": [1], "micros": [5000, 35000]},
        {"stage": "prefill", "partition": "whole", "rows": [1], "lengths": [1, 100], "micros": [8000, 20000]},
        {"stage": "codec", "partition": "background", "rows": [1, 8], "lengths": [2, 10], "micros": [6000, 24000, 48000, 192000]},
        {"stage": "codec", "partition": "whole", "rows": [1, 8], "lengths": [2, 10], "micros": [3500, 13000, 28000, 104000]}
    ],
    "limits": {"background_batch": 1, "slots": 64, "pages": 2048}
}"#;

fn small() -> ProfileFile {
    ProfileFile::parse("small", SMALL).expect("valid")
}

fn simulated(profile: &ProfileFile, variant: &str, rate: f64, moods: &[&str], seeds: u32) -> Rate {
    let workload = Workload::load("libritts").expect("built in");
    let variant = Variant::parse(variant).expect("valid");
    let moods = Moods::parse(moods).expect("valid");
    let window = Offer { rate, window: Span::from_millis(30_000), reported: true };
    let scene = Scene { profile, workload: &workload, moods: &moods, seeds: 0..seeds };
    offer(&scene, &variant, window).expect("it runs").0
}

#[test]
fn the_same_seed_gives_the_same_report() {
    let moods = ["jitter=0.3", "paused=0.2", "barge-in=0.1", "lying=0.1", "slow-start=0.1", "no-reports=0.1"];
    let once = simulated(&small(), "a", 1.0, &moods, 2);
    assert_eq!(once, simulated(&small(), "a", 1.0, &moods, 2));
    assert_eq!(once.offered, once.completed, "{once:?}");
    assert!(once.frames_wrong.is_empty() && once.frames_made == Some(once.frames_sent), "{once:?}");
}

#[test]
fn a_profile_of_numbers_no_device_has_is_refused_before_memory_is_taken_for_them() {
    for (good, bad, field) in [
        ("[1, 2, 4, 8], \"codec_lengths\"", "[1, 4294967295], \"codec_lengths\"", "codec_buckets"),
        ("[2, 4, 10],\n", "[2, 4294967295],\n", "codec_lengths"),
        ("[1, 2, 4, 8, 16, 32]", "[1, 4294967295]", "decode_buckets"),
        ("\"slots\": 64", "\"slots\": 4294967295", "limits.slots"),
        ("\"pages\": 2048", "\"pages\": 4294967295", "limits.pages"),
        (
            "\"partition\": \"whole\", \"rows\": [1, 8]",
            "\"partition\": \"background\", \"rows\": [1, 8]",
            "twice",
        ),
    ] {
        let text = SMALL.replace(good, bad);
        assert_ne!(text, SMALL, "{good}");
        // A stage that is there twice must not be missed elsewhere.
        let text = text.replace(
            "\"stages\": [",
            "\"stages\": [{\"stage\": \"codec\", \"partition\": \"whole\", \"rows\": [2], \"lengths\": [2], \"micros\": [1]},",
        );
        let text = if field == "twice" { text } else { SMALL.replace(good, bad) };
        let error = ProfileFile::parse("f.json", &text).expect_err(field).to_string();
        assert!(error.contains(field) && error.contains("f.json"), "{error}");
    }
    let endless = ProfileFile::load("/dev/zero").expect_err("no end");
    assert!(matches!(endless, ProfileError::Large(_)), "{endless}");
}

#[test]
fn a_profile_without_a_stage_says_which() {
    let text = SMALL.replace("\"prefill\"", "\"encode\"");
    let error = ProfileFile::parse("f.json", &text).expect_err("no prefill");
    assert!(matches!(error, ProfileError::Missing { .. }));
    assert!(error.to_string().contains("prefill on whole"), "{error}");
    let error = ProfileFile::parse("f.json", &SMALL.replace("[5000, 35000]", "[5000]")).expect_err("too few");
    assert!(error.to_string().contains("f.json"), "{error}");
    let error =
        ProfileFile::parse("f.json", &SMALL.replace("\"decode\"", "\"dance\"")).expect_err("no stage");
    assert!(error.to_string().contains("decode on lm"), "{error}");
    assert!(
        ProfileFile::load("no-such-profile").expect_err("neither").to_string().contains("h100-published")
    );
}

#[test]
fn a_variant_that_cannot_be_read_names_its_setting() {
    assert!(matches!(Variant::parse("a:colour=red"), Err(VariantError::Key(key)) if key == "colour"));
    assert!(matches!(Variant::parse("a:reports=maybe"), Err(VariantError::Value { .. })));
    assert!(matches!(Variant::parse("a:policy=random"), Err(VariantError::Value { .. })));
    assert!(matches!(Variant::parse(":x=1"), Err(VariantError::Shape(_))));
    let variant = Variant::parse("a:urgent_margin_ms=50,background_batch=3").expect("valid");
    let config = variant.config(&small());
    assert_eq!((config.urgent_margin, config.background_batch), (Span::from_millis(50), 3));
    let steps = |text| Variant::parse(text).expect("valid").config(&small()).steps_between_prefills;
    assert_eq!((steps("a:steps_between_prefills=2"), steps("a:steps_between_prefills=0")), (2, 0));
}

#[test]
fn a_lightly_loaded_server_keeps_every_promise() {
    let rate = simulated(&small(), "a", 0.5, &[], 2);
    assert_eq!(rate.attained(), 1.0, "{rate:?}");
    assert!(rate.ttfa_ms.p99.is_some_and(|p99| p99 < 100.0), "{rate:?}");
}

#[test]
fn overload_is_shed_rather_than_stalled() {
    let rate = simulated(&small(), "a:first_audio_limit_ms=200", 6.0, &[], 2);
    assert!(rate.refused() > 0.1, "{rate:?}");
    assert!(rate.no_stall > 0.99, "{rate:?}");
    assert!(rate.goodput > 2.4, "as much as at capacity: {rate:?}");
}

/// The published engine falls to a third of its goodput past capacity. With an early limit ours does not:
/// what docs/performance.md says of it is held here.
#[test]
fn with_an_early_limit_goodput_stays_and_those_let_in_are_heard_in_time() {
    let early = "a:first_audio_limit_ms=150";
    // Capacity of the small processor is 3.3 requests a second.
    let below = simulated(&small(), early, 0.9 * 3.3, &[], 3);
    let at = simulated(&small(), early, 3.3, &[], 3);
    let past = simulated(&small(), early, 1.3 * 3.3, &[], 3);
    // Each prediction counts the whole of a deferral that seldom lasts: a few are refused too early.
    assert!(below.refused() <= 0.04 && below.attained() >= 0.96, "{below:?}");
    assert!(past.goodput >= 0.95 * at.goodput, "{} after {}", past.goodput, at.goodput);
    assert!(past.ttfa_ms.p99.is_some_and(|p99| p99 <= 200.0), "{past:?}");
    let collapsed = simulated(&small(), "a:first_audio_limit_ms=2000", 1.3 * 3.3, &[], 3);
    assert!(collapsed.goodput < past.goodput, "{} against {}", collapsed.goodput, past.goodput);
}

/// Where short chunks are cheap, prompts that may cut them carry more, and past capacity nobody stalls.
#[test]
fn prompts_that_may_cut_chunks_short_carry_more_on_a_gpu_and_stall_nobody() {
    let profile = ProfileFile::load("h100-published").expect("built in");
    let alternating = "a:first_audio_limit_ms=130,steps_between_prefills=2";
    let with = simulated(&profile, alternating, 60.0, &[], 1);
    let without = simulated(&profile, "a:first_audio_limit_ms=130,steps_between_prefills=0", 60.0, &[], 1);
    assert!(with.attained() >= without.attained() + 0.02, "{with:?} against {without:?}");
    let past = simulated(&profile, alternating, 90.0, &[], 1);
    assert!(past.goodput >= 0.95 * with.goodput, "{} after {}", past.goodput, with.goodput);
    assert!(past.ttfa_ms.p99.is_some_and(|p99| p99 <= 200.0), "{past:?}");
    assert!(with.no_stall == 1.0 && past.no_stall >= 0.999, "{past:?}");
}

#[test]
fn an_urgent_lane_brings_first_audio_forward() {
    let with = simulated(&small(), "a", 1.2, &[], 2);
    let without = simulated(&small(), "a:urgent=off", 1.2, &[], 2);
    let p99 = |rate: &Rate| rate.ttfa_ms.p99.expect("measured");
    assert!(p99(&with) < p99(&without), "{} against {}", p99(&with), p99(&without));
}

#[test]
fn a_search_finds_the_same_capacity_as_a_sweep() {
    let workload = Workload::load("seed-tts").expect("built in");
    let capacity = |rates: &str, search: bool| {
        let rates = if search { Rates::search(rates) } else { Rates::sweep(rates) }.expect("valid");
        let variants = [Variant::plain("a")];
        let window = Span::from_millis(60_000);
        let (profile, moods) = (small(), Moods::default());
        let scene = Scene { profile: &profile, workload: &workload, moods: &moods, seeds: 0..4 };
        let run = load::sim::run(&scene, &variants, rates, window, &|_| {}, &AtomicBool::new(false));
        run.expect("it runs").report.targets[0].capacity["90"]
    };
    let found = |rates, search| capacity(rates, search).expect("a rate that attains");
    let (searched, swept) = (found("0.5:12", true), found("3:0.5:12", false));
    assert!((searched - swept).abs() <= 0.2 * swept, "{searched} against {swept}");
}

#[test]
fn a_window_in_which_nobody_came_is_said_and_tells_no_capacity() {
    let (profile, workload, moods) =
        (small(), Workload::load("seed-tts").expect("built in"), Moods::default());
    let scene = Scene { profile: &profile, workload: &workload, moods: &moods, seeds: 0..1 };
    let rates = Rates::sweep("0.01:1.99:2").expect("valid");
    let run = load::sim::run(
        &scene,
        &[Variant::plain("a")],
        rates,
        Span::from_millis(3_000),
        &|_| {},
        &AtomicBool::new(false),
    );
    let report = run.expect("it runs").report;
    let offered: Vec<f64> = report.targets[0].rates.iter().map(|rate| rate.rate).collect();
    assert_eq!((offered, report.targets[0].capacity["90"]), (vec![2.0], Some(2.0)));
    assert!(report.notes.iter().any(|note| note.contains("nobody came")), "{:?}", report.notes);
}

#[test]
fn the_published_profile_carries_what_was_published() {
    let profile = ProfileFile::load("h100-published").expect("built in");
    assert!(!profile.guesses.is_empty(), "what was not published is marked");
    let workload = Workload::load("libritts").expect("built in");
    let window = Offer { rate: 46.0, window: Span::from_millis(6_000), reported: true };
    let moods = Moods::default();
    let scene = Scene { profile: &profile, workload: &workload, moods: &moods, seeds: 0..1 };
    let run = offer(&scene, &Variant::plain("a"), window);
    let near = run.expect("it runs").0;
    assert!(near.attained() >= 0.9, "{near:?}");
}

#[test]
fn a_plan_ranks_layouts_and_counts_every_device_once() {
    let workload = Workload::load("libritts").expect("built in");
    let published = ProfileFile::load("h100-published").expect("built in");
    // One device carries about what is published and simulated, 48 requests/s; of the card it promises a fifth less at
    // most than was measured, 288 to 304.
    let alone = plan::rank(&published, 1, &workload).expect("valid")[0].requests_per_s;
    assert!((41.0..56.0).contains(&alone), "{alone}");
    let card = concat!(env!("CARGO_MANIFEST_DIR"), "/../../config/profiles/h200-1.7b.json");
    let card = plan::rank(&ProfileFile::load(card).expect("a profile"), 1, &workload).expect("valid");
    assert!((236.0..304.0).contains(&card[0].requests_per_s), "{card:?}");
    let layouts = plan::rank(&published, 4, &workload).expect("valid");
    assert!(layouts.windows(2).all(|pair| pair[0].contexts >= pair[1].contexts));
    assert!(layouts.iter().all(|it| it.combined + it.backbone + it.codec == 4));
    let one = plan::rank(&small(), 1, &workload).expect("valid");
    assert_eq!(one.len(), 1, "one device can only speak alone");
    let two = plan::rank(&small(), 2, &workload).expect("valid");
    let alone = two.iter().find(|it| it.combined == 2).expect("both alone");
    assert!((alone.contexts - 2.0 * one[0].contexts).abs() < 0.2);
}

#[test]
fn what_is_left_out_costs_something_and_unknown_parts_are_refused() {
    let published = ProfileFile::load("h100-published").expect("built in");
    let attained = |variant: &str| simulated(&published, variant, 44.0, &[], 1).attained();
    let plain = attained("plain");
    for variant in ["alone:async=off", "whole:partition=off", "late:urgent=off"] {
        let without = attained(variant);
        assert!(without < plain, "{variant}: {without} of the requests, {plain} with all parts");
    }
    assert!(matches!(Variant::parse("x:lanes=off"), Err(VariantError::Key(_))));
}

/// The published device under splits whose lm lane and codec are slower or quicker by these factors.
fn splits(factors: &[(u32, u32, f64, f64)]) -> ProfileFile {
    let mut profile = ProfileFile::load("h100-published").expect("built in");
    for (lm, background, step, codec) in factors {
        let mut stages = profile.stages.clone();
        stages.retain(|cost| cost.partition != "whole");
        for cost in &mut stages {
            let factor = if cost.partition == "lm" { step } else { codec };
            cost.micros.iter_mut().for_each(|micros| *micros = (f64::from(*micros) * factor) as u32);
        }
        let (lm, background, sharing) = (*lm, *background, profile.sharing.clone());
        profile.splits.push(SplitCost { lm, background, stages, sharing });
    }
    profile
}

#[test]
fn the_split_that_carries_most_is_chosen_and_the_reason_names_the_others() {
    let workload = Workload::load("libritts").expect("built in");
    let profile = splits(&[(124, 8, 0.9, 3.0), (108, 24, 1.0, 1.0), (60, 72, 2.5, 0.5)]);
    let judged = judge(&profile, &workload).expect("it runs");
    assert_eq!(judged.chosen, 1, "{judged:?}");
    for part in ["108/24 carries", "124/8 carries", "60/72 carries", "frames/s"] {
        assert!(judged.reason.contains(part), "{}", judged.reason);
    }
    let chosen = profile.under(&profile.splits[1]);
    assert_eq!((chosen.parts.lm, chosen.parts.background), (108, 24));
    let svg = judged.chart().svg();
    assert!(svg.contains("108/24") && svg.contains("chosen") && svg.contains("codec frames a second"));
    // What is written is read again.
    let with = ProfileFile { choice: Some(judged.choice()), ..profile };
    let text = serde_json::to_string(&with).expect("JSON");
    assert_eq!(ProfileFile::parse("again", &text).expect("valid"), with);
}

#[test]
fn splits_that_carry_alike_are_told_apart_by_the_quicker_step() {
    let workload = Workload::load("libritts").expect("built in");
    let judged = judge(&splits(&[(100, 32, 1.0, 1.0), (108, 24, 0.99, 1.0)]), &workload).expect("it runs");
    assert_eq!(judged.chosen, 1, "{judged:?}");
    assert!(judge(&splits(&[]), &workload).is_err_and(|error| error.to_string().contains("splits")));
}

#[test]
fn a_simulation_that_is_cut_short_keeps_what_was_whole_and_says_of_what_it_tells_no_capacity() {
    let (profile, moods) = (small(), Moods::default());
    let workload = Workload::load("libritts").expect("built in");
    let scene = Scene { profile: &profile, workload: &workload, moods: &moods, seeds: 0..1 };
    let variants = [Variant::plain("a")];
    let cut_after = |rates: &str, windows: usize| {
        let rates = rates.strip_prefix("search ").map_or_else(|| Rates::sweep(rates), Rates::search);
        let (cut, told) = (AtomicBool::new(false), std::sync::Mutex::new(0));
        let progress = |_: String| {
            let mut told = told.lock().expect("nobody panics");
            *told += 1;
            cut.store(*told == windows, Ordering::Relaxed);
        };
        let window = Span::from_millis(20_000);
        load::sim::run(&scene, &variants, rates.expect("valid"), window, &progress, &cut).expect("it runs")
    };
    let sweep = cut_after("0.5:0.5:3", 2);
    let rates = &sweep.report.targets[0].rates;
    assert_eq!(
        rates.iter().map(|rate| (rate.rate, rate.cut_short)).collect::<Vec<_>>(),
        [(0.5, false), (1.0, false)]
    );
    assert_eq!(sweep.decided["a"].len(), 2);
    assert_eq!(sweep.report.targets[0].capacity["90"], Some(1.0));

    let search = cut_after("search 0.5:8", 3);
    let target = &search.report.targets[0];
    assert_eq!(target.rates.len(), 3, "{target:?}");
    assert!(target.rates.iter().all(|rate| rate.cut_short && rate.window_s == 5.0), "{target:?}");
    assert_eq!(target.capacity["90"], None);
    assert!(search.report.notes.iter().any(|note| note.contains("windows of 5 s tell no capacity")));

    let whole = cut_after("search 0.5:8", usize::MAX);
    let target = &whole.report.targets[0];
    assert!(target.rates.iter().all(|rate| !rate.cut_short && rate.window_s == 20.0), "{target:?}");
    assert!(target.capacity["90"].is_some());

    let nothing = load::sim::run(
        &scene,
        &variants,
        Rates::sweep("1").expect("valid"),
        Span::from_millis(20_000),
        &|_| {},
        &AtomicBool::new(true),
    )
    .expect("it runs");
    assert!(nothing.report.targets[0].rates.is_empty());
    assert!(nothing.report.notes.iter().any(|note| note.contains("nothing was whole")));
}
