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
    let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
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
    let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
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
    let (with, without): (Vec<_>, Vec<_>) = (
        decode.iter().filter(|s| beside(s) && free(s)).copied().collect(),
        decode.iter().filter(|s| clear(s)).copied().collect(),
    );
    assert!(with.len() >= 10 && without.len() >= 10, "{} beside, {} clear", with.len(), without.len());
    // What holds a step up is what passes between the end of the lane's last launch and its own start.
    let lm = of(&launches, Lane::Lm);
    let wait = |span: &&LaunchSpan| {
        let before =
            lm.iter().filter(|other| other.finished <= span.started).map(|other| other.finished).max();
        before.map(|finished| span.started.as_micros() - finished.as_micros())
    };
    let waits = |spans: &[&LaunchSpan]| median(spans.iter().filter_map(wait).collect());
    let steps = |spans: &[&LaunchSpan]| median(spans.iter().map(|span| length(span)).collect());
    let (waited, waited_clear) = (waits(&with), waits(&without));
    let (step, step_clear) = (steps(&with), steps(&without));
    println!(
        "a decode step of 8 rows waits {waited} us and takes {step} us beside a background launch, {waited_clear} and {step_clear} without"
    );
    assert!(
        10 * waited.saturating_sub(waited_clear) <= step_clear,
        "{waited} us against {waited_clear} of {step_clear}"
    );
    // Its arithmetic may be slowed by what the processor's cores share (pipelines of one physical core, caches,
    // memory), but lanes on the same cores would take twice as long.
    assert!(2 * step <= 3 * step_clear, "{step} us beside a background launch, {step_clear} us without");
}

fn length(span: &LaunchSpan) -> u64 {
    span.finished.as_micros() - span.started.as_micros()
}

fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values[values.len() / 2]
}
