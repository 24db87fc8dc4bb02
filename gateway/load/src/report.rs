//! The report: what a run prints and writes as JSON. All of it is arithmetic on [`Outcome`]s.

use std::collections::BTreeMap;

use contract::Span;
use serde::{Deserialize, Serialize};

use crate::outcome::{Ending, Outcome};

/// Limits of first audio that attainment is given for, in milliseconds.
pub const LIMITS_MS: [u32; 4] = [200, 250, 500, 1_000];
/// The limit that capacity and goodput go by.
pub const TARGET: Span = Span::from_millis(200);
/// Parts of requests, in percent, that capacity is given for.
pub const CAPACITIES: [u32; 2] = [90, 99];
/// Of fewer requests each is a point of attainment or more.
const FEW: u64 = 100;
/// A sweep stops after a rate at which fewer than half of the requests get audio within this.
pub const HOPELESS: Span = Span::from_millis(1_000);

/// Everything that one run found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    pub targets: Vec<TargetReport>,
    pub workload: String,
    pub seeds: u32,
    pub host: Host,
    pub version: String,
    /// Whatever keeps the figures from meaning what they seem to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// Where the generator, or the simulator, ran.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    pub cores: u32,
    pub cpu: String,
}

/// One system.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TargetReport {
    pub name: String,
    pub rates: Vec<Rate>,
    /// Requests a second at which this part of them, in percent, still gets first audio within 200 ms
    /// and no stall; `null` where that is less than the lowest rate measured, or none was.
    pub capacity: BTreeMap<String, Option<f64>>,
}

/// What one offered rate gave.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rate {
    /// Requests a second.
    pub rate: f64,
    pub window_s: f64,
    pub offered: u64,
    pub completed: u64,
    pub refused_by: BTreeMap<String, u64>,
    pub failed: u64,
    pub ttfb_ms: Percentiles,
    pub ttfa_ms: Percentiles,
    /// Part of the completed requests whose listener was not kept waiting.
    pub no_stall: f64,
    /// Part of the offered requests with first audio within the limit (its key, ms) and no stall.
    pub attainment: BTreeMap<String, f64>,
    /// Part of the offered requests that heard something within 1 s, where that is more than attained so: what came after
    /// stalled or broke off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heard_in_1s: Option<f64>,
    /// The run was ended in it: what had ended by then, and what had missed its target. So are the short windows marked
    /// that guided a search which found no answer: neither tells a capacity.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cut_short: bool,
    /// Requests a second with first audio within 200 ms and no stall.
    pub goodput: f64,
    pub stall_s: f64,
    pub text_starved_s: f64,
    /// Seconds of sound received in a second.
    pub audio_s_per_s: f64,
    /// Median sound of the first chunk.
    pub first_chunk_ms: Option<f64>,
    pub frames_sent: u64,
    /// `null` where the protocol does not say.
    pub frames_made: Option<u64>,
    /// Cores the generator kept busy; `null` in a simulation.
    pub generator_cpu: Option<f64>,
    /// How late the generator itself was, 99th percentile; part of every time above.
    pub generator_late_ms: Option<f64>,
    /// Requests whose frames did not add up, by what was wrong.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub frames_wrong: BTreeMap<String, u64>,
    /// Why requests failed.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub failures: BTreeMap<String, u64>,
}

/// Nearest-rank percentiles in milliseconds; `null` when nothing was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
    pub p50: Option<f64>,
    pub p90: Option<f64>,
    pub p95: Option<f64>,
    pub p99: Option<f64>,
    pub p999: Option<f64>,
}

impl Percentiles {
    #[must_use]
    pub fn of(mut spans: Vec<Span>) -> Self {
        spans.sort_unstable();
        let at = |permille: usize| {
            let rank = (spans.len() * permille).div_ceil(1_000).max(1) - 1;
            spans.get(rank).map(|span| millis(*span))
        };
        Self { p50: at(500), p90: at(900), p95: at(950), p99: at(990), p999: at(999) }
    }
}

impl Rate {
    /// The figures of `outcomes`, pooled over `seeds` windows of `window`.
    #[must_use]
    pub fn of(rate: f64, window: Span, seeds: u32, outcomes: &[Outcome]) -> Self {
        let seconds = span_s(window) * f64::from(seeds.max(1));
        let offered = outcomes.len();
        let completed: Vec<&Outcome> = outcomes.iter().filter(|outcome| outcome.completed()).collect();
        let part = |count: usize, of: usize| if of == 0 { 0.0 } else { rounded(count as f64 / of as f64, 5) };
        let attained = |limit: Span| outcomes.iter().filter(|outcome| outcome.attained(limit)).count();
        let sum = |of: fn(&Outcome) -> Span| rounded(outcomes.iter().map(|it| span_s(of(it))).sum(), 3);
        let mut report = Self {
            rate,
            window_s: span_s(window),
            offered: offered as u64,
            completed: completed.len() as u64,
            ttfb_ms: Percentiles::of(
                outcomes.iter().filter_map(|it| Some(it.first_byte?.since(it.arrival))).collect(),
            ),
            ttfa_ms: Percentiles::of(outcomes.iter().filter_map(Outcome::ttfa).collect()),
            no_stall: part(completed.iter().filter(|it| it.without_stall()).count(), completed.len()),
            heard_in_1s: Some(part(outcomes.iter().filter(|it| heard_in(it, HOPELESS)).count(), offered)),
            goodput: rounded(attained(TARGET) as f64 / seconds.max(1e-9), 4),
            stall_s: sum(|it| it.stalled),
            text_starved_s: sum(|it| it.text_starved),
            audio_s_per_s: rounded(
                outcomes.iter().map(|it| span_s(it.audio)).sum::<f64>() / seconds.max(1e-9),
                3,
            ),
            first_chunk_ms: Percentiles::of(outcomes.iter().filter_map(|it| it.first_chunk).collect()).p50,
            frames_sent: frames_sent(outcomes),
            ..Self::default()
        };
        for limit in LIMITS_MS {
            let attained = attained(Span::from_millis(i64::from(limit)));
            report.attainment.insert(limit.to_string(), part(attained, offered));
        }
        let attained = report.attainment.values().copied().fold(0.0, f64::max);
        report.heard_in_1s = report.heard_in_1s.filter(|heard| *heard > attained);
        for outcome in outcomes {
            if let Some(made) = outcome.frames_made {
                let all = report.frames_made.get_or_insert(0);
                *all = all.saturating_add(made);
            }
            if let Some(wrong) = outcome.frames_missing() {
                count(&mut report.frames_wrong, &wrong);
            }
            match &outcome.ending {
                Ending::Done | Ending::Interrupted => {}
                Ending::Refused(code) => count(&mut report.refused_by, code),
                Ending::Failed(what) => {
                    report.failed += 1;
                    count(&mut report.failures, what);
                }
                Ending::Unfinished => {
                    report.failed += 1;
                    count(&mut report.failures, "it had not ended when the run gave up waiting");
                }
            }
        }
        report
    }

    /// Part of the requests with first audio within the target and no stall.
    #[must_use]
    pub fn attained(&self) -> f64 {
        self.attainment.get(&LIMITS_MS[0].to_string()).copied().unwrap_or(0.0)
    }

    /// Fewer than half of the requests got audio within a second: nothing is learnt beyond this rate.
    #[must_use]
    pub fn is_hopeless(&self) -> bool {
        let heard = self.heard_in_1s.or_else(|| self.attainment.get("1000").copied());
        self.offered > 0 && heard.is_none_or(|part| part < 0.5)
    }

    /// Part of the offered requests that were turned away.
    #[must_use]
    pub fn refused(&self) -> f64 {
        let refused: u64 = self.refused_by.values().sum();
        if self.offered == 0 { 0.0 } else { refused as f64 / self.offered as f64 }
    }
}

impl TargetReport {
    /// Capacity from the measured rates: the highest rate that attains, all lower ones attaining too. A rate that was cut
    /// short tells none.
    #[must_use]
    pub fn new(name: String, mut rates: Vec<Rate>) -> Self {
        rates.sort_by(|a, b| a.rate.total_cmp(&b.rate));
        let mut capacity = BTreeMap::new();
        for percent in CAPACITIES {
            let enough = f64::from(percent) / 100.0;
            let whole = rates.iter().filter(|rate| !rate.cut_short);
            let attaining = whole.take_while(|rate| rate.attained() >= enough);
            capacity.insert(percent.to_string(), attaining.last().map(|rate| rate.rate));
        }
        Self { name, rates, capacity }
    }

    /// What is to be said where some window had so few requests that one of them is a point of attainment or more.
    #[must_use]
    pub fn few(&self) -> Option<String> {
        let counts = self.rates.iter().filter(|rate| !rate.cut_short && rate.offered > 0);
        let fewest = counts.map(|rate| rate.offered).min().filter(|fewest| *fewest < FEW)?;
        let points = 100.0 / fewest as f64;
        Some(format!(
            "{}: as few as {fewest} requests at a rate, of which each is {points:.1} points of attainment; a longer --window or \
             more --seeds tell more",
            self.name
        ))
    }
}

fn heard_in(outcome: &Outcome, limit: Span) -> bool {
    outcome.ttfa().is_some_and(|ttfa| ttfa <= limit)
}

/// Frames of the requests that were heard to their end, where a server says what it made of each.
fn frames_sent(outcomes: &[Outcome]) -> u64 {
    let told = outcomes.iter().any(|it| it.frames_made.is_some());
    outcomes.iter().filter(|it| it.frames_made.is_some() || !told).map(|it| it.frames_sent).sum()
}

/// Most kinds of failure told apart in one report.
const KINDS_MAX: usize = 16;

fn count(of: &mut BTreeMap<String, u64>, key: &str) {
    let known = of.contains_key(key) || of.len() < KINDS_MAX;
    *of.entry(if known { key } else { "other" }.to_owned()).or_insert(0) += 1;
}

/// A span in seconds.
#[must_use]
pub fn span_s(span: Span) -> f64 {
    span.as_micros() as f64 / 1_000_000.0
}

fn millis(span: Span) -> f64 {
    rounded(span.as_micros() as f64 / 1_000.0, 2)
}

/// `value` with this many digits after the point.
#[must_use]
pub fn rounded(value: f64, digits: i32) -> f64 {
    let scale = 10_f64.powi(digits);
    (value * scale).round() / scale
}
