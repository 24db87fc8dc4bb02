//! The lanes at work, read from the engine's own trace: lm and background overlap on disjoint cores,
//! and a long background executable does not hold the next lm step up.

mod support;

use contract::{FinishReason, Lane, LaunchSpan, Layout, Stage};
use support::{SENTENCE, begin, engine, request};

/// One after the other: the engine of this file is shared.
static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());

fn load(contexts: u64) -> Vec<LaunchSpan> {
    let text = [SENTENCE; 3].join(" ");
    let from = engine().launches(1).last().map_or(0, |span| span.finished.as_micros());
    let ears: Vec<_> =
        (0..contexts).map(|seed| begin(engine(), request("clara", Layout::Whole, seed), &text).1).collect();
    for ear in ears {
        let heard = ear.to_the_end();
        assert_eq!(heard.reason, FinishReason::Done, "{:?}", heard.error);
    }
    engine().launches(4_096).into_iter().filter(|span| span.started.as_micros() >= from).collect()
}

fn of(launches: &[LaunchSpan], lane: Lane) -> Vec<&LaunchSpan> {
    launches.iter().filter(|span| span.lane == lane).collect()
}

#[test]
fn lm_and_background_overlap_on_disjoint_cores_for_half_of_a_loaded_run() {
    let _turn = TURN.lock().expect("whole");
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    assert!(cores >= 2, "this test needs two cores, the machine has {cores}");
    let launches = load(8);
    let (lm, background) = (of(&launches, Lane::Lm), of(&launches, Lane::Background));
    let busy: u64 =
        lm.iter().map(|span| length(span)).sum::<u64>().min(background.iter().map(|s| length(s)).sum());
    let mut both = 0;
    for one in lm.iter().filter(|span| span.stage == Stage::Decode) {
        for other in &background {
            assert!(
                one.cores.iter().all(|core| !other.cores.contains(core)),
                "{one:?} and {other:?} share a core"
            );
            let from = one.started.max(other.started).as_micros();
            let to = one.finished.min(other.finished).as_micros();
            both += to.saturating_sub(from);
        }
    }
    println!("lm and background at once for {both} us of {busy} us in which the less busy of them ran");
    assert!(2 * both >= busy, "they overlap for {both} us only, of {busy} us possible");
}

#[test]
fn a_long_background_executable_delays_the_next_lm_step_by_at_most_a_tenth() {
    let _turn = TURN.lock().expect("whole");
    let launches = load(8);
    let background = of(&launches, Lane::Background);
    let decode: Vec<_> = of(&launches, Lane::Lm)
        .into_iter()
        .filter(|span| span.stage == Stage::Decode && span.rows == 8)
        .collect();
    let beside = |span: &LaunchSpan| {
        background.iter().any(|b| b.started <= span.started && b.finished >= span.finished)
    };
    let urgent = of(&launches, Lane::Urgent);
    let free =
        |span: &LaunchSpan| !urgent.iter().any(|u| u.started <= span.finished && u.finished >= span.started);
    let clear = |span: &LaunchSpan| {
        !background.iter().any(|b| b.started <= span.finished && b.finished >= span.started) && free(span)
    };
    let with: Vec<u64> = decode.iter().filter(|s| beside(s) && free(s)).map(|s| length(s)).collect();
    let without: Vec<u64> = decode.iter().filter(|s| clear(s)).map(|s| length(s)).collect();
    assert!(with.len() >= 10 && without.len() >= 10, "{} beside, {} clear", with.len(), without.len());
    let (with, without) = (median(with), median(without));
    println!("a decode step of 8 rows takes {with} us beside a background launch, {without} us without");
    assert!(10 * with <= 11 * without, "{with} us beside a background launch, {without} us without");
}

fn length(span: &LaunchSpan) -> u64 {
    span.finished.as_micros() - span.started.as_micros()
}

fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values[values.len() / 2]
}
