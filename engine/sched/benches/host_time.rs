//! Host time of one scheduling step: `cargo bench -p sched`.
//!
//! A step is what the engine loop does at one event: hand it in, take every output and decision, ask for
//! the next timeout. Contexts speak without end on a device of fixed costs, on virtual time, and listeners
//! report five times a second, as browsers do. The goal is a median of 20 us.

#![expect(clippy::disallowed_methods, reason = "a measurement reads the clock")]

use std::collections::BTreeMap;
use std::time::Instant;

use contract::{ContextId, Partition, Playback, Span, Stage, Tick};
use sched::{
    ChunkResult, Command, Completion, CostTable, Decision, FrameOutcome, FrameResult, LaunchResult, Profile,
    Sched, SchedConfig,
};

const REPORT: Span = Span::from_millis(200);
const WARM: Tick = Tick::from_millis(1_500);
const END: Tick = Tick::from_millis(4_000);

/// Wall times of steps, in nanoseconds, by what the step was for.
#[derive(Default)]
struct Times {
    of: BTreeMap<&'static str, Vec<u64>>,
}

impl Times {
    fn row(&mut self, contexts: u32) -> String {
        let mut all: Vec<u64> = self.of.values().flatten().copied().collect();
        all.sort_unstable();
        let micros = |sorted: &[u64], part: f64| {
            let at = ((sorted.len() as f64 * part) as usize).min(sorted.len().saturating_sub(1));
            sorted.get(at).copied().unwrap_or(0) as f64 / 1_000.0
        };
        let mut row = format!("{contexts:>5} {:>7.1} {:>7.1}", micros(&all, 0.5), micros(&all, 0.99));
        for kind in ["report", "frames", "chunks", "timeout"] {
            let times = self.of.entry(kind).or_default();
            times.sort_unstable();
            row += &format!(" {:>9.1}", micros(times, 0.5));
        }
        row
    }
}

fn profile(contexts: u32) -> Profile {
    let cost = |base, row| CostTable::linear(base, row, 0, 256, 4_096);
    let buckets = |most: u32| (0..32).map(|shift| 1 << shift).take_while(|power| *power <= most).collect();
    Profile::new(Span::from_millis(80), buckets(contexts.min(256)), buckets(64), vec![2, 4, 10])
        .with_cost(Stage::Decode, Partition::Lm, cost(3_000, 30))
        .with_cost(Stage::Prefill, Partition::Whole, cost(1_000, 50))
        .with_cost(Stage::Codec, Partition::Background, cost(1_000, 100))
        .with_cost(Stage::Codec, Partition::Whole, cost(500, 50))
}

fn result(decision: &Decision) -> LaunchResult {
    let frame = |step: u32| FrameResult { outcome: FrameOutcome::Made, code_hash: u64::from(step) | 1 << 40 };
    match decision {
        Decision::Codec { rows, .. } => {
            LaunchResult::Chunks(rows.iter().map(|_| ChunkResult::Made { peak: 0.5 }).collect())
        }
        Decision::Decode { rows, .. } => {
            LaunchResult::Frames(rows.iter().map(|row| frame(row.step)).collect())
        }
        Decision::Prefill { rows, .. } => LaunchResult::Frames(rows.iter().map(|_| frame(0)).collect()),
        Decision::Encode { .. } => LaunchResult::Encoded,
    }
}

fn run(contexts: u32) -> Times {
    let config = SchedConfig {
        slots: contexts,
        open_max: contexts,
        pages: contexts * 8,
        first_audio_limit: Span::from_millis(60_000),
        lm_load_max_permille: 1_000_000,
        records_max: 1,
        ..SchedConfig::default()
    };
    let mut sched = Sched::new(config, profile(contexts)).expect("a sound configuration");
    let mut flying: Vec<(Tick, Decision)> = Vec::new();
    // Reports are spread over their interval, as listeners are.
    let mut reports: Vec<(Tick, ContextId)> = Vec::new();
    let mut heard: BTreeMap<ContextId, Tick> = BTreeMap::new();
    for number in 0..contexts {
        let (context, arrival) = (ContextId(u64::from(number) + 1), Tick::ZERO);
        let open = Command::Open {
            context,
            arrival,
            tenant: 0,
            exact_frames: Some(100_000),
            voice_encode: None,
            encode_samples: 0,
        };
        sched.handle_command(arrival, open);
        let ready = Command::SegmentReady {
            context,
            segment: 0,
            prompt_tokens: 20,
            ids: 20,
            closed: true,
            streamed: false,
            frames_predicted: 100,
            frames_max: 200_000,
        };
        sched.handle_command(arrival, ready);
        reports.push((
            Tick::ZERO + Span::from_micros(i64::from(number) * 200_000 / i64::from(contexts)),
            context,
        ));
    }
    let mut times = Times::default();
    let (mut now, mut due) = (Tick::ZERO, Tick::ZERO);
    let mut next_report = 0;
    while now < END {
        let landing =
            flying.iter().enumerate().min_by_key(|(_, (at, _))| *at).map(|(at, flight)| (flight.0, at));
        let (report_at, context) = reports[next_report];
        let first = landing.map_or(Tick::NEVER, |(at, _)| at);
        now = now.max(first.min(report_at).min(due));
        let begun;
        let kind;
        if first <= now {
            let (at, decision) = flying.swap_remove(landing.map_or(0, |(_, index)| index));
            kind = if matches!(decision, Decision::Codec { .. }) { "chunks" } else { "frames" };
            let took = decision.why().expected;
            let result = result(&decision);
            let completion = Completion { launch: decision.launch(), at, took, result };
            begun = Instant::now();
            sched.handle_completion(now, completion);
        } else if report_at <= now {
            kind = "report";
            reports[next_report].0 = report_at + REPORT;
            next_report = (next_report + 1) % reports.len();
            // Its clock is a little further on than was thought, or a little less.
            let Some(zero) = heard.get(&context).copied() else { continue };
            let wobble = i64::try_from(context.0 * 7_919 % 5_000).unwrap_or(0) - 2_500;
            let playback = Playback::Playing { zero: zero + Span::from_micros(wobble) };
            begun = Instant::now();
            sched.handle_command(now, Command::Playback { context, playback });
        } else {
            kind = "timeout";
            begun = Instant::now();
            sched.handle_timeout(now);
        }
        loop {
            if let Some(output) = sched.poll_output() {
                if let sched::SchedOutput::ChunkCommitted(chunk) = output {
                    heard.entry(chunk.context).or_insert(chunk.made);
                }
            } else if let Some(decision) = sched.poll_decision(now) {
                let lane = decision.lane();
                let free = flying.iter().filter(|(_, other)| other.lane() == lane).map(|(at, _)| *at).max();
                let start = free.unwrap_or(now).max(now);
                flying.push((start + decision.why().expected, decision));
            } else {
                break;
            }
        }
        due = sched.poll_timeout().0;
        if now > WARM {
            let took = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
            times.of.entry(kind).or_default().push(took);
        }
    }
    times
}

fn main() {
    println!("us a step: contexts, median and p99 of all, medians by event");
    println!(
        "{:>5} {:>7} {:>7} {:>9} {:>9} {:>9} {:>9}",
        "", "p50", "p99", "report", "frames", "chunks", "timeout"
    );
    for contexts in [16, 64, 256, 1_024] {
        println!("{}", run(contexts).row(contexts));
    }
}
