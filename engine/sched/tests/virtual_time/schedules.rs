//! 100,000 random schedules, and how often each hard case occurred in them.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use sched::Counters;

use crate::schedule::Schedule;

const SCHEDULES: u64 = 100_000;

#[test]
fn a_hundred_thousand_random_schedules_break_no_rule_and_reach_every_hard_case() {
    let workers = std::thread::available_parallelism().map_or(2, std::num::NonZero::get) as u64;
    let next = AtomicU64::new(0);
    let tally = Mutex::new(Vec::<Counters>::new());
    let failed = Mutex::new(None::<u64>);
    let loud = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                let mut seen = Vec::new();
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= SCHEDULES || failed.lock().map_or(true, |failed| failed.is_some()) {
                        break;
                    }
                    match Schedule::from_seed(seed).run() {
                        Ok(counters) => seen.push(counters),
                        Err(_) => *failed.lock().expect("no worker panics with it") = Some(seed),
                    }
                }
                tally.lock().expect("no worker panics with it").extend(seen);
            });
        }
    });
    let failed = failed.into_inner().expect("all workers are done");
    let report = failed.map(|seed| {
        let small = Schedule::from_seed(seed).shrunk();
        (seed, small.run().expect_err("still fails"), small)
    });
    std::panic::set_hook(loud);
    if let Some((seed, why, small)) = report {
        let ops: String = small.ops.iter().map(|op| format!("\n  {op:?}")).collect();
        panic!("seed {seed}: {why}\nshrunk to {:?}\n{:?}{ops}", small.config, small.profile);
    }
    let tally = tally.into_inner().expect("all workers are done");
    assert_eq!(tally.len() as u64, SCHEDULES);
    let mut missing = Vec::new();
    for (case, floor, count) in hard_cases() {
        let total: u64 = tally.iter().map(count).sum();
        println!("{case:<45} {total:>9} (at least {floor})");
        if total < floor {
            missing.push(case);
        }
    }
    assert!(missing.is_empty(), "too rare: {missing:?}");
}

/// Schedules that once failed, and what they showed. The generator's draws must keep their order, or
/// these seeds mean other schedules.
const ONCE_FAILED: [(u64, &str); 4] = [
    (4_439, "a page taken for a context that was capped in the same breath waited for a fence it needed not"),
    (5_338, "a chunk stayed urgent for an inversion that its segment's end had undone"),
    (45_580, "a context that was over already was chosen to give up the pages it no longer had"),
    (
        50_707,
        "a context that fell dry after its idle limit had passed was not ended until something else happened",
    ),
];

#[test]
fn schedules_that_once_failed_pass() {
    for (seed, shown) in ONCE_FAILED {
        if let Err(why) = Schedule::from_seed(seed).run() {
            panic!("seed {seed} ({shown}): {why}");
        }
    }
}

#[test]
fn a_seed_gives_the_same_run_every_time() {
    for seed in 0..50 {
        let run = || Schedule::from_seed(seed).run().expect("passes");
        assert_eq!(run(), run(), "seed {seed}");
    }
}

type Case = (&'static str, u64, fn(&Counters) -> u64);

fn hard_cases() -> Vec<Case> {
    vec![
        ("promotion", 1_000, |c| c.promotions),
        ("promotion with the predecessor in flight", 100, |c| c.promotions_behind_predecessor),
        ("inversion averted", 1_000, |c| c.inversions_averted),
        ("background batch cut", 100, |c| c.batches_cut),
        ("chunk cut short", 1_000, |c| c.chunks_cut),
        ("cancel in the background lane", 100, |c| c.cancelled_in_background),
        ("cancel in the lm lane", 1_000, |c| c.cancelled_in_lm),
        ("cancel in the urgent lane", 100, |c| c.cancelled_in_urgent),
        ("dry text", 1_000, |c| c.text_dry),
        ("page exhaustion", 1_000, |c| c.page_exhaustions),
        ("capped for pages", 1_000, |c| c.page_victims),
        ("slot exhaustion", 1_000, |c| c.slot_exhaustions),
        ("prefill waits for pages", 1_000, |c| c.page_waits),
        ("deferral", 1_000, |c| c.deferrals),
        ("deferral to its cap", 1_000, |c| c.deferrals_to_cap),
        ("prefill by cut chunks", 1_000, |c| c.prefills_by_cut),
        ("step rides along", 1_000, |c| c.rides),
        ("ladder change", 1_000, |c| c.ladder_changes),
        ("policy switch", 1_000, |c| c.policy_switches),
        ("overload refusal", 1_000, |c| c.refused),
        ("lane loss", 1_000, |c| c.lanes_lost),
        ("stale row", 1_000, |c| c.stale_rows),
        ("stale completion", 1_000, |c| c.stale_completions),
        ("yield for lead", 1_000, |c| c.yields),
        ("shared encode", 100, |c| c.encodes_shared),
        ("capped by frames", 1_000, |c| c.capped_by_frames),
        ("capped by repetition", 1_000, |c| c.capped_by_repetition),
        ("capped by silence", 100, |c| c.capped_by_silence),
        ("not finite", 1_000, |c| c.not_finite),
        ("idle", 100, |c| c.finished_idle),
        ("ignored command", 1_000, |c| c.ignored),
    ]
}
