//! What is left out is left out, and speech stays the same to the sample.

mod support;

use std::sync::Arc;

use contract::{EngineHandle, Lane, LaunchSpan, Layout, Span};
use runtime::{OpenOptions, Without};
use support::{Heard, SENTENCE, begin, options, request};

/// Two contexts together: their samples, and the launches. A machine that is busy with other things refuses some
/// of them; then both begin again.
fn spoken(without: Without) -> (Vec<Vec<f32>>, Vec<LaunchSpan>) {
    let engine = runtime::open(OpenOptions { without, ..options() }).expect("opens");
    let samples = two_of(&engine);
    (samples, engine.launches(4_096))
}

fn two_of(engine: &Arc<dyn EngineHandle>) -> Vec<Vec<f32>> {
    const ROUNDS_MAX: usize = 50;
    for _ in 0..ROUNDS_MAX {
        let begun = |seed| begin(engine, request("clara", Layout::Whole, seed), SENTENCE).1;
        let ears = [begun(0), begun(1)];
        let heard = ears.map(|ear| ear.to_the_end());
        if heard.iter().all(|heard| heard.error.is_none()) {
            return heard.iter().map(Heard::samples).collect();
        }
    }
    panic!("refused {ROUNDS_MAX} times");
}

/// Pairs of launches that ran at the same time.
fn overlaps(launches: &[LaunchSpan]) -> usize {
    let mut spans: Vec<_> = launches.iter().map(|span| (span.started, span.finished)).collect();
    spans.sort_unstable();
    spans.windows(2).filter(|pair| pair[1].0 < pair[0].1).count()
}

#[test]
fn without_an_urgent_lane_or_without_asynchrony_the_same_samples_are_made() {
    let (plain, launches) = spoken(Without::default());
    assert!(launches.iter().any(|span| span.lane == Lane::Urgent));
    let (samples, launches) = spoken("urgent".parse().expect("known"));
    assert!(launches.iter().all(|span| span.lane != Lane::Urgent));
    assert!(samples == plain, "without an urgent lane");
    let (samples, launches) = spoken("async,deadlines".parse().expect("known"));
    assert_eq!(overlaps(&launches), 0, "one launch at a time");
    assert!(samples == plain, "one launch at a time");
}

#[test]
fn a_step_launched_before_the_last_one_has_ended_makes_the_same_samples() {
    let ahead = |micros| {
        let ahead = Some(Span::from_micros(micros));
        let engine = runtime::open(OpenOptions { ahead, ..options() }).expect("opens");
        let samples = two_of(&engine);
        let wakes = engine.stats().wakes.into_iter().find(|(name, _)| *name == "step_ahead");
        (samples, wakes.expect("a reason to wake").1)
    };
    let (plain, wakes) = ahead(0);
    assert_eq!(wakes, 0);
    let (samples, wakes) = ahead(500);
    assert!(wakes > 0, "the engine wakes for it");
    assert!(samples == plain, "shortly before");
    // At once: two stand in the lane all the time.
    assert!(ahead(1_000_000).0 == plain, "long before");
}

#[test]
fn a_cpu_has_no_unsplit_form() {
    let refused = runtime::open(OpenOptions { without: "partition".parse().expect("known"), ..options() });
    let Err(error) = refused else { panic!("opened") };
    assert!(error.to_string().contains("only a GPU"), "{error}");
}
