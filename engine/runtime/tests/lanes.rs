//! The lanes at work, read from the engine's own trace: lm and background overlap on disjoint cores,
//! and a long background executable does not hold the next lm step up.

mod support;

use contract::{EngineStats, FinishReason, Lane, LaunchSpan, Layout, Span, Stage, StageShape};
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

/// Decode steps of eight rows that urgent work left alone: how long the lane stood still before each, and how long
/// it took. First those all beside a background launch, then those beside none.
fn steps(launches: &[LaunchSpan]) -> [Vec<(u64, u64)>; 2] {
    let [lm, background, urgent] = [Lane::Lm, Lane::Background, Lane::Urgent].map(|lane| of(launches, lane));
    let meets =
        |one: &LaunchSpan, other: &LaunchSpan| one.started <= other.finished && one.finished >= other.started;
    let mut found = [Vec::new(), Vec::new()];
    for step in lm.iter().filter(|span| span.stage == Stage::Decode && span.rows == 8) {
        let before =
            lm.iter().filter(|other| other.finished <= step.started).map(|other| other.finished).max();
        let Some(before) = before.filter(|_| !urgent.iter().any(|u| meets(u, step))) else { continue };
        let measured = (step.started.as_micros() - before.as_micros(), length(step));
        if background.iter().any(|b| b.started <= step.started && b.finished >= step.finished) {
            found[0].push(measured);
        } else if !background.iter().any(|b| meets(b, step)) {
            found[1].push(measured);
        }
    }
    found
}

#[test]
fn a_long_background_executable_delays_the_next_lm_step_by_at_most_a_tenth() {
    const ENOUGH: usize = 12;
    let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let [mut beside, mut clear] = [Vec::new(), Vec::new()];
    // How often a step meets no background launch depends on how fast the machine is.
    for _ in 0..8 {
        if beside.len() >= ENOUGH && clear.len() >= ENOUGH {
            break;
        }
        let [more_beside, more_clear] = steps(&load(8));
        beside.extend(more_beside);
        clear.extend(more_clear);
    }
    assert!(
        beside.len() >= ENOUGH && clear.len() >= ENOUGH,
        "{} beside, {} clear",
        beside.len(),
        clear.len()
    );
    let waits = |list: &[(u64, u64)]| median(list.iter().map(|(wait, _)| *wait).collect());
    let takes = |list: &[(u64, u64)]| median(list.iter().map(|(_, took)| *took).collect());
    let (waited, waited_clear) = (waits(&beside), waits(&clear));
    let (took, took_clear) = (takes(&beside), takes(&clear));
    println!(
        "a decode step of 8 rows waits {waited} us and takes {took} us beside a background launch, \
         {waited_clear} and {took_clear} without"
    );
    // What holds a step up is what passes between the end of the lane's last launch and its own start.
    let delay = waited.saturating_sub(waited_clear);
    assert!(10 * delay <= took_clear, "a delay of {delay} us before a step of {took_clear}");
    // Its arithmetic may be slowed by what the processor's cores share (pipelines of one physical core, caches,
    // memory), but lanes on the same cores would take twice as long.
    assert!(2 * took <= 3 * took_clear, "{took} us beside a background launch, {took_clear} us without");
}

#[test]
fn the_times_of_launches_are_kept_by_stage_lane_and_rows() {
    let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    load(2);
    let agree = |stats: &EngineStats| {
        let count = |lane| -> u64 {
            let of_lane = stats.stages.iter().filter(|(shape, _)| shape.lane == lane);
            of_lane.map(|(_, spread)| spread.count()).sum()
        };
        [(Lane::Background, stats.background), (Lane::Lm, stats.lm), (Lane::Urgent, stats.urgent)]
            .into_iter()
            .all(|(lane, totals)| count(lane) == totals.launches)
    };
    // Totals are told when the engine's round ends, times when a launch does.
    let mut stats = engine().stats();
    for _ in 0..100 {
        if agree(&stats) {
            break;
        }
        std::thread::park_timeout(std::time::Duration::from_millis(20));
        stats = engine().stats();
    }
    assert!(agree(&stats), "{stats:?}");
    let decodes = |span: &&LaunchSpan| span.stage == Stage::Decode && span.rows == 2;
    let launches = engine().launches(4_096);
    let traced: Vec<u64> = launches.iter().filter(decodes).map(length).collect();
    let shape = StageShape { stage: Stage::Decode, lane: Lane::Lm, length: 0, rows: 2 };
    let kept = &stats.stages[&shape];
    let middle = kept.quantile(0.5).as_micros().unsigned_abs();
    assert!(kept.count() >= traced.len() as u64 && !traced.is_empty());
    // Those of before the trace begins are kept too: the middle of all is not the middle of these.
    let (shortest, longest) = (traced.iter().min(), traced.iter().max());
    let [shortest, longest] = [shortest, longest].map(|length| *length.expect("not empty"));
    assert!(
        20 * middle >= 19 * shortest && 20 * middle <= 21 * longest,
        "{middle} us of {shortest} to {longest}"
    );
    assert!(stats.rounds.count() > 0 && stats.rounds.quantile(0.5) > Span::ZERO);
    // Of each round, the part spent in calls to the device.
    let (rounds, in_device) = (stats.rounds, stats.rounds_device);
    assert_eq!(in_device.count(), rounds.count());
    assert!(in_device.sum_us() > 0 && in_device.sum_us() < rounds.sum_us(), "{in_device:?} of {rounds:?}");
}

fn length(span: &LaunchSpan) -> u64 {
    span.finished.as_micros() - span.started.as_micros()
}

fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values[values.len() / 2]
}
