//! How many times faster than real time the simulator is: `cargo bench -p load`.
//!
//! One rate near each profile's capacity, one thread. What is simulated of a run is its lead-in, its window
//! and the time until the last listener has heard all; only the first two are counted.

#![expect(clippy::disallowed_methods, reason = "a measurement reads the clock")]

use std::time::Instant;

use contract::Span;
use load::mood::Moods;
use load::open_loop::lead_in;
use load::rates::Offer;
use load::sim::{ProfileFile, Scene, Variant, offer};
use load::workload::Workload;

const WINDOW: Span = Span::from_millis(60_000);
/// Unless the command line names another number; a word of it names the profiles that count, by a part of their names.
const RUNS: usize = 5;

fn main() {
    let tiny = concat!(env!("CARGO_MANIFEST_DIR"), "/../../config/profiles/tiny-2-cores.json");
    let card = concat!(env!("CARGO_MANIFEST_DIR"), "/../../config/profiles/h200-1.7b.json");
    let runs = std::env::args().find_map(|word| word.parse().ok()).filter(|runs| *runs > 0).unwrap_or(RUNS);
    println!("times faster than real time: median of {runs} runs of {WINDOW}, one thread");
    let points = [("h100-published", "libritts", 48.0), (card, "libritts", 112.0), (tiny, "seed-tts", 7.0)];
    let named = |name: &str| {
        std::env::args().skip(1).any(|word| word.parse::<usize>().is_err() && name.contains(&word))
    };
    let all = !points.iter().any(|(name, ..)| named(name));
    for (name, workload, rate) in points.into_iter().filter(|(name, ..)| all || named(name)) {
        let profile = ProfileFile::load(name).expect("a profile");
        let workload = Workload::load(workload).expect("a workload");
        let variant = Variant::plain(&profile.name);
        let scene = Scene { profile: &profile, workload: &workload, moods: &Moods::default(), seeds: 0..1 };
        let virtual_s = (lead_in(WINDOW) + WINDOW).as_micros() as f64 / 1e6;
        let mut digest = 0;
        let mut times: Vec<f64> = (0..runs)
            .map(|_| {
                let begun = Instant::now();
                let offered = Offer { rate, window: WINDOW, reported: true };
                let (made, decided) = offer(&scene, &variant, offered).expect("a run");
                assert!(made.offered > 0, "somebody came");
                let took = begun.elapsed().as_secs_f64();
                digest = fnv(format!("{made:?} {decided:?}").as_bytes());
                virtual_s / took
            })
            .collect();
        times.sort_by(f64::total_cmp);
        println!("{:>16} at {rate}/s: {:.0} (report {digest:016x})", profile.name, times[runs / 2]);
    }
}

/// FNV-1a: equal for equal reports, so that what only makes the simulator faster shows that it changed nothing.
fn fnv(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}
