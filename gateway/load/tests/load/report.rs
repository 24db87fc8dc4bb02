use contract::{Span, Tick};
use load::mood::{Mood, Moods};
use load::outcome::{Ending, Outcome};
use load::plot;
use load::report::{Host, Percentiles, Rate, Report, TargetReport};
use proptest::prelude::*;

const WINDOW: Span = Span::from_millis(10_000);

fn spoken(ttfa_ms: u64, stalled_ms: i64) -> Outcome {
    let arrival = Tick::from_millis(5_000);
    let mut outcome = Outcome::waiting(Mood::Steady, arrival);
    outcome.first_byte = Some(Tick::from_millis(5_000 + ttfa_ms));
    outcome.first_audio = outcome.first_byte;
    outcome.stalled = Span::from_millis(stalled_ms);
    outcome.audio = Span::from_millis(2_000);
    outcome.ending = Ending::Done;
    outcome
}

fn ended(ending: Ending) -> Outcome {
    Outcome { ending, ..Outcome::waiting(Mood::Steady, Tick::from_millis(5_000)) }
}

#[test]
fn attainment_is_a_part_of_all_that_was_offered() {
    let outcomes = [
        spoken(100, 0),
        spoken(199, 9),
        spoken(240, 0),
        spoken(100, 10),
        ended(Ending::Refused("overloaded".to_owned())),
        ended(Ending::Failed("closed".to_owned())),
        ended(Ending::Unfinished),
        spoken(900, 0),
    ];
    let rate = Rate::of(0.8, WINDOW, 1, &outcomes);
    assert_eq!((rate.offered, rate.completed, rate.failed), (8, 5, 2));
    assert_eq!(rate.refused_by["overloaded"], 1);
    let attained: Vec<f64> = ["200", "250", "500", "1000"].iter().map(|key| rate.attainment[*key]).collect();
    assert_eq!(attained, [0.25, 0.375, 0.375, 0.5]);
    assert_eq!(rate.goodput, 0.2);
    assert_eq!(rate.no_stall, 0.8);
    assert_eq!(rate.stall_s, 0.019);
    assert_eq!(rate.audio_s_per_s, 1.0);
    assert!(!rate.is_hopeless());
}

#[test]
fn several_seeds_are_pooled_over_their_time_together() {
    let rate = Rate::of(1.0, WINDOW, 2, &[spoken(100, 0), spoken(100, 0)]);
    assert_eq!((rate.goodput, rate.audio_s_per_s), (0.1, 0.2));
}

#[test]
fn capacity_is_the_highest_rate_below_which_all_attain() {
    let rate = |rate, attained: f64| {
        let mut result = Rate { rate, offered: 100, ..Rate::default() };
        result.attainment.insert("200".to_owned(), attained);
        result
    };
    let rates = vec![rate(4.0, 0.95), rate(1.0, 1.0), rate(3.0, 0.89), rate(2.0, 0.99)];
    let target = TargetReport::new("a".to_owned(), rates);
    assert_eq!((target.capacity["90"], target.capacity["99"]), (Some(2.0), Some(2.0)));
    assert!(target.rates.windows(2).all(|pair| pair[0].rate < pair[1].rate));
    let below = TargetReport::new("b".to_owned(), vec![rate(1.0, 0.5)]);
    assert_eq!(below.capacity["90"], None, "less than the lowest rate, and nobody knows how much");
    let cut = Rate { cut_short: true, ..rate(3.0, 1.0) };
    let cut = TargetReport::new("c".to_owned(), vec![rate(2.0, 1.0), cut]);
    assert_eq!(cut.capacity["90"], Some(2.0), "a window that was cut short tells none");
    let report = Report { targets: vec![below], ..Report::default() };
    assert!(load::table::text(&report).contains("below 1 at 90%"));
}

#[test]
fn a_capacity_that_is_the_highest_rate_measured_is_printed_as_a_lower_bound() {
    let target = |name: &str, attained: [f64; 2]| {
        let rate = |(rate, attained)| Rate {
            rate,
            attainment: [("200".to_owned(), attained)].into(),
            ..Rate::default()
        };
        TargetReport::new(name.to_owned(), [2.0, 4.0].into_iter().zip(attained).map(rate).collect())
    };
    let text = |first, second| {
        let targets = vec![target("a", first), target("b", second)];
        load::table::text(&Report { targets, ..Report::default() })
    };
    let (all, half, both) = ([1.0, 1.0], [1.0, 0.0], [1.0, 0.95]);
    assert!(text(all, all).contains("at least 4 at 90%"));
    assert!(
        text(all, all).contains("1.00 times what b does, as far as was measured: neither reached its limit")
    );
    assert!(text(all, half).contains("a carries at least 2.00 times what b does"));
    assert!(text(half, all).contains("a carries at most 0.50 times what b does"));
    assert!(text(half, half).contains("a carries 1.00 times what b does"));
    assert!(text(half, half).contains(": 2 at 90%, 2 at 99%"));
    assert!(text(both, half).contains("at least 4 at 90%, 2 at 99%"), "each part by itself");
}

#[test]
fn a_report_says_when_one_request_is_a_point_of_attainment_or_more() {
    let target = |counts: &[u64]| {
        let rate = |offered: &u64| Rate { rate: *offered as f64, offered: *offered, ..Rate::default() };
        TargetReport::new("a".to_owned(), counts.iter().map(rate).collect())
    };
    assert!(
        target(&[8, 300])
            .few()
            .is_some_and(|said| said.contains("8 requests") && said.contains("12.5 points"))
    );
    assert_eq!(target(&[100, 300]).few(), None);
    assert_eq!(target(&[]).few(), None, "nothing was measured");
}

#[test]
fn a_sweep_goes_on_while_half_hear_something_within_a_second_though_all_of_them_stall() {
    let stalled = vec![spoken(100, 5_000); 10];
    let rate = Rate::of(1.0, WINDOW, 1, &stalled);
    assert_eq!((rate.attained(), rate.is_hopeless()), (0.0, false));
    assert!(Rate::of(1.0, WINDOW, 1, &vec![spoken(1_500, 0); 10]).is_hopeless());
}

#[test]
fn frames_must_add_up() {
    let mut outcome = spoken(100, 0);
    (outcome.frames_made, outcome.frames_sent, outcome.frames_exact) = (Some(25), 25, Some(25));
    assert_eq!(outcome.frames_missing(), None);
    outcome.frames_sent = 24;
    assert!(outcome.frames_missing().is_some_and(|what| what.contains("24")));
    (outcome.frames_made, outcome.frames_sent) = (Some(20), 20);
    assert!(outcome.frames_missing().is_some_and(|what| what.contains("asked")));
    // A protocol that does not say what was decoded.
    (outcome.frames_made, outcome.frames_sent) = (None, 25);
    assert_eq!(outcome.frames_missing(), None);
    outcome.frames_sent = 24;
    assert!(outcome.frames_missing().is_some_and(|what| what.contains("25 frames were asked for")));
    let rate = Rate::of(1.0, WINDOW, 1, &[outcome]);
    assert_eq!(rate.frames_wrong.values().sum::<u64>(), 1);
}

#[test]
fn the_json_has_the_fields_that_others_read() {
    let mut report = Report { workload: "libritts".to_owned(), seeds: 1, ..Report::default() };
    report.host = Host { cores: 2, cpu: "x".to_owned() };
    let rate = Rate::of(1.0, WINDOW, 1, &[spoken(100, 0)]);
    report.targets.push(TargetReport::new("voxlane".to_owned(), vec![rate]));
    let json = serde_json::to_value(&report).expect("serializes");
    for key in ["targets", "workload", "seeds", "host", "version"] {
        assert!(json.get(key).is_some(), "{key}");
    }
    let rate = &json["targets"][0]["rates"][0];
    for key in [
        "rate",
        "window_s",
        "offered",
        "completed",
        "refused_by",
        "failed",
        "ttfb_ms",
        "ttfa_ms",
        "no_stall",
        "attainment",
        "goodput",
        "stall_s",
        "text_starved_s",
        "audio_s_per_s",
        "first_chunk_ms",
        "frames_sent",
        "frames_made",
        "generator_cpu",
    ] {
        assert!(rate.get(key).is_some(), "{key}");
    }
    for key in ["p50", "p90", "p95", "p99", "p999"] {
        assert_eq!(rate["ttfa_ms"][key], 100.0);
    }
    assert_eq!(json["targets"][0]["capacity"], serde_json::json!({ "90": 1.0, "99": 1.0 }));
    let back: Report = serde_json::from_value(json).expect("reads back");
    assert_eq!(back, report);
}

#[test]
fn a_target_that_was_not_measured_is_said_to_be_none() {
    let mut report = Report { seeds: 1, ..Report::default() };
    report.targets.push(TargetReport::new("gone".to_owned(), Vec::new()));
    let text = load::table::text(&report);
    assert!(text.contains("1 seed, ") && text.contains("nothing was measured"), "{text}");
}

#[test]
fn who_listens_is_said_unless_all_are_steady() {
    let said = |items: &[&str]| Moods::parse(items).expect("valid").said();
    assert_eq!(said(&[]), None);
    assert_eq!(said(&["lying=0"]), None);
    let mixed = said(&["jitter=0.25", "paused=0.5"]);
    assert_eq!(mixed.as_deref(), Some("listeners: jitter 25%, paused 50%, the rest steady"));
    assert_eq!(said(&["jitter"]).as_deref(), Some("listeners: jitter 100%"), "nobody is left");
}

#[test]
fn pictures_hold_every_system_and_survive_odd_names() {
    let rate = Rate::of(2.0, WINDOW, 1, &[spoken(100, 0)]);
    let target = |name: &str| TargetReport::new(name.to_owned(), vec![rate.clone()]);
    let report = Report { targets: vec![target("a<b\u{1b}[1m"), target("c&d")], ..Report::default() };
    let charts = plot::charts(&report);
    assert_eq!(
        charts.iter().map(|(name, _)| *name).collect::<Vec<_>>(),
        ["attainment.svg", "ttfa.svg", "goodput.svg"]
    );
    for (_, chart) in charts {
        let svg = chart.svg();
        assert!(svg.contains("a&lt;b") && svg.contains("c&amp;d") && svg.ends_with("</svg>\n"));
        assert!(!svg.replace('\n', "").contains(char::is_control), "XML has no place for them: {svg:?}");
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }
    let empty = plot::charts(&Report::default());
    assert!(empty.iter().all(|(_, chart)| !chart.svg().contains("NaN")));
}

proptest! {
    #[test]
    fn percentiles_are_measured_values_in_order(values in prop::collection::vec(0..10_000_i64, 1..300)) {
        let of = Percentiles::of(values.iter().map(|ms| Span::from_millis(*ms)).collect());
        let got = [of.p50, of.p90, of.p95, of.p99, of.p999].map(|value| value.expect("measured"));
        prop_assert!(got.windows(2).all(|pair| pair[0] <= pair[1]));
        for value in got {
            prop_assert!(values.contains(&(value as i64)));
        }
        let below = values.iter().filter(|ms| **ms as f64 <= got[0]).count();
        prop_assert!(below * 2 >= values.len());
    }

    #[test]
    fn attainment_grows_with_its_limit_and_never_passes_what_completed(
        requests in prop::collection::vec((0..2_000_u64, 0..30_i64, 0..4_u8), 1..100),
    ) {
        let outcomes: Vec<Outcome> = requests.iter().map(|(ttfa, stall, kind)| match kind {
            0 => ended(Ending::Refused("overloaded".to_owned())),
            1 => Outcome { ending: Ending::Failed("x".to_owned()), ..spoken(*ttfa, *stall) },
            _ => spoken(*ttfa, *stall),
        }).collect();
        let rate = Rate::of(5.0, WINDOW, 1, &outcomes);
        let parts: Vec<f64> = ["200", "250", "500", "1000"].iter().map(|key| rate.attainment[*key]).collect();
        prop_assert!(parts.windows(2).all(|pair| pair[0] <= pair[1]));
        prop_assert!(parts[3] <= rate.completed as f64 / rate.offered as f64 + 1e-4);
        let refused: u64 = rate.refused_by.values().sum();
        prop_assert_eq!(rate.offered, rate.completed + rate.failed + refused);
    }
}
