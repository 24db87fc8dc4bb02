//! A whole run: every target in turn, every rate its chooser asks for, until all is known or cut short.

use std::sync::Arc;

use contract::Span;
use tokio::sync::watch;

use crate::open_loop::{Settings, offer, probe};
use crate::rates::{Chooser, Rates};
use crate::report::{Rate, Report, TargetReport};
use crate::target::Target;

/// A run's report, and what went wrong on the way. What was measured before stands in the report.
#[derive(Clone, Debug)]
pub struct Run {
    pub report: Report,
    pub error: Option<String>,
}

/// The published window.
pub const FULL_WINDOW: Span = Span::from_millis(60_000);
/// Above this part of all cores, or this lateness, the generator is the limit.
const BUSY: f64 = 0.8;
const LATE_MS: f64 = 10.0;

struct Measuring {
    target: Arc<Target>,
    chooser: Chooser,
    rates: Vec<Rate>,
    gone: bool,
}

/// Measures `targets`, which take turns rate by rate. `cut` turning true ends the run with what it has.
pub async fn run(
    targets: Vec<Target>,
    settings: Settings,
    rates: Rates,
    window: Span,
    progress: &(dyn Fn(String) + Sync),
    cut: watch::Receiver<bool>,
) -> Run {
    let mut report = Report {
        workload: settings.workload.name.clone(),
        seeds: settings.seeds.len() as u32,
        host: crate::clock::host(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..Report::default()
    };
    let mut notes = Vec::new();
    if window < FULL_WINDOW {
        let seconds = window.as_micros() as f64 / 1e6;
        notes.push(format!("windows of {seconds} s, not 60 s: too short to compare with published figures"));
    }
    let settings = Arc::new(settings);
    let mut errors = Vec::new();
    let mut measuring = Vec::new();
    for target in targets {
        let target = Arc::new(target);
        let gone = match probe(&target, &settings).await {
            Ok(()) => false,
            Err(what) => {
                errors.push(format!("target {} cannot be measured: {what}", target.name));
                true
            }
        };
        measuring.push(Measuring { target, chooser: rates.chooser(window), rates: Vec::new(), gone });
    }
    let mut over = *cut.borrow();
    while !over {
        let mut asked = false;
        for one in &mut measuring {
            let Some(next) = one.chooser.offer().filter(|_| !one.gone) else { continue };
            asked = true;
            let (rate, was_cut) = offer(&one.target, &settings, next, progress, &cut).await;
            progress(line(&one.target.name, &rate));
            over = was_cut;
            if let Some(what) = broken(&rate) {
                errors.push(format!("target {} at {}/s: {what}", one.target.name, rate.rate));
                one.gone = rate.failed == rate.offered;
            }
            if !rate.frames_wrong.is_empty() {
                one.gone = true;
            }
            limited(&one.target.name, &rate, report.host.cores, &mut notes);
            one.chooser.taken(&rate);
            if was_cut {
                notes.push(format!(
                    "{} at {}/s was cut short after {} s",
                    one.target.name, rate.rate, rate.window_s
                ));
            }
            if (next.reported || was_cut) && rate.offered > 0 {
                one.rates.push(rate);
            }
            if over {
                break;
            }
        }
        over |= !asked;
    }
    report.targets =
        measuring.into_iter().map(|it| TargetReport::new(it.target.name.clone(), it.rates)).collect();
    report.notes = notes;
    Run { report, error: (!errors.is_empty()).then(|| errors.join("; ")) }
}

/// What makes a rate's figures worthless.
fn broken(rate: &Rate) -> Option<String> {
    if let Some((wrong, count)) = rate.frames_wrong.iter().next() {
        return Some(format!("{count} requests lost frames: {wrong}"));
    }
    let (what, _) = rate.failures.iter().max_by_key(|(_, count)| **count)?;
    (rate.offered > 0 && rate.failed == rate.offered).then(|| format!("every request failed: {what}"))
}

/// Says when the figures are the generator's own.
fn limited(name: &str, rate: &Rate, cores: u32, notes: &mut Vec<String>) {
    let busy = rate.generator_cpu.unwrap_or(0.0);
    let late = rate.generator_late_ms.unwrap_or(0.0);
    if busy > BUSY * f64::from(cores.max(1)) || late > LATE_MS {
        notes.push(format!(
            "{name} at {}/s: the generator is the limit ({busy:.2} of {cores} cores, {late:.0} ms late at p99)",
            rate.rate
        ));
    }
}

/// One rate in one line.
#[must_use]
pub fn line(name: &str, rate: &Rate) -> String {
    let ms = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.0}"));
    format!(
        "{name} at {}/s: attained {:.1}%, TTFA p50 {} p99 {} ms, no stall {:.1}%, goodput {:.2}/s, {} refused, {} failed",
        rate.rate,
        rate.attained() * 100.0,
        ms(rate.ttfa_ms.p50),
        ms(rate.ttfa_ms.p99),
        rate.no_stall * 100.0,
        rate.goodput,
        rate.refused_by.values().sum::<u64>(),
        rate.failed,
    )
}
