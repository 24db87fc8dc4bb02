//! A whole run: every target in turn, every rate its chooser asks for, until all is known or cut short.

use std::sync::Arc;

use contract::Span;
use tokio::sync::watch;

use crate::open_loop::{Settings, offer, probe, turns_true};
use crate::rates::{Chooser, Offer, Rates};
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

/// Who watches a run.
#[derive(Clone)]
pub struct Witness<'a> {
    /// Told in a line what is going on.
    pub progress: &'a (dyn Fn(String) + Sync),
    /// Given the report so far after every rate, so that whatever ends the process loses little.
    pub so_far: &'a (dyn Fn(&Report) + Sync),
    /// Turning true ends the run with what it has.
    pub cut: watch::Receiver<bool>,
}

/// One target under measurement.
struct Measuring {
    target: Arc<Target>,
    chooser: Chooser,
    rates: Vec<Rate>,
    /// Short windows of a search; they stand in the report until it has its answer.
    guides: Vec<Rate>,
    gone: bool,
}

/// What a run has to say beside its figures.
#[derive(Default)]
struct Said {
    notes: Vec<String>,
    errors: Vec<String>,
}

/// Measures `targets`, which take turns rate by rate.
pub async fn run(
    targets: Vec<Target>,
    settings: Settings,
    rates: Rates,
    window: Span,
    mut witness: Witness<'_>,
) -> Run {
    let mut report = Report {
        workload: settings.workload.name.clone(),
        seeds: settings.seeds.len() as u32,
        host: crate::clock::host(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..Report::default()
    };
    let mut said = Said::default();
    said.notes.extend(settings.moods.said());
    if window < FULL_WINDOW {
        let seconds = window.as_micros() as f64 / 1e6;
        let note = format!("windows of {seconds} s, not 60 s: too short to compare with published figures");
        said.notes.push(note);
    }
    let settings = Arc::new(settings);
    let mut measuring = Vec::new();
    let mut over = *witness.cut.borrow();
    let several = targets.len() > 1;
    for target in targets {
        let probed = tokio::select! {
            biased;
            () = turns_true(&mut witness.cut) => {
                over = true;
                Err("the run was ended first".to_owned())
            }
            probed = probe(&target, &settings) => probed,
        };
        let gone = probed.is_err();
        if let Err(what) = probed {
            let what = format!("target {} cannot be measured: {what}", target.name);
            // Said again at the end; who is to mend it need not wait for the others' windows.
            if several {
                (witness.progress)(what.clone());
            }
            said.errors.push(what);
        }
        if !target.adapter.tells_gaps() {
            let what = "its protocol does not tell silence that fills a gap from speech: a gap filled so is no pause here";
            said.notes.push(format!("{}: {what}", target.name));
        }
        let chooser = rates.chooser(window);
        measuring.push(Measuring {
            target: Arc::new(target),
            chooser,
            rates: Vec::new(),
            guides: Vec::new(),
            gone,
        });
    }
    while !over {
        let mut asked = false;
        for at in 0..measuring.len() {
            let one = &mut measuring[at];
            let Some(next) = one.chooser.offer().filter(|_| !one.gone) else { continue };
            asked = true;
            over = one.turn(next, &settings, &witness, report.host.cores, &mut said).await;
            complete(&mut report, &measuring, &said);
            (witness.so_far)(&report);
            if over {
                break;
            }
        }
        over |= !asked;
    }
    for one in &measuring {
        said.notes.extend(one.chooser.open_end().map(|what| format!("{}: {what}", one.target.name)));
    }
    complete(&mut report, &measuring, &said);
    Run { report, error: (!said.errors.is_empty()).then(|| said.errors.join("; ")) }
}

impl Measuring {
    /// Offers one rate and takes in what it gave; whether the run was cut short in it.
    async fn turn(
        &mut self,
        next: Offer,
        settings: &Arc<Settings>,
        witness: &Witness<'_>,
        cores: u32,
        said: &mut Said,
    ) -> bool {
        let (rate, was_cut) = offer(&self.target, settings, next, witness.progress, &witness.cut).await;
        let name = &self.target.name;
        (witness.progress)(line(name, &rate));
        let what = broken(&rate).filter(|_| !was_cut || !rate.frames_wrong.is_empty());
        if let Some(what) = what
            && !self.was_overcome(&rate, settings).await
        {
            said.errors.push(format!("target {name} at {}/s: {what}", rate.rate));
            self.gone = rate.failed == rate.offered || !rate.frames_wrong.is_empty();
        }
        limited(name, &rate, cores, &mut said.notes);
        if was_cut {
            let when = if rate.offered == 0 {
                "before its window had anybody in it".to_owned()
            } else {
                format!("after {} s", rate.window_s)
            };
            said.notes.push(format!("{name} at {}/s was cut short {when}", rate.rate));
        } else if rate.offered == 0 && next.reported {
            said.notes.push(format!("{name} at {}/s: {NOBODY_CAME}", rate.rate));
        }
        // What is not known whole decides nothing.
        if !was_cut {
            self.chooser.taken(&rate);
        }
        let kept = if next.reported || was_cut { &mut self.rates } else { &mut self.guides };
        kept.extend((rate.offered > 0).then_some(rate));
        was_cut
    }

    /// Whether a rate at which every request failed was only too much: a target that has answered a lower one, and does
    /// so again when it is asked alone, is there and has told its answer.
    async fn was_overcome(&self, rate: &Rate, settings: &Arc<Settings>) -> bool {
        let lower = |it: &Rate| it.completed > 0 && it.rate < rate.rate;
        rate.frames_wrong.is_empty()
            && self.rates.iter().chain(&self.guides).any(lower)
            && probe(&self.target, settings).await.is_ok()
    }
}

/// Puts what is known by now into the report.
fn complete(report: &mut Report, measuring: &[Measuring], said: &Said) {
    let target = |one: &Measuring| {
        let rates = with_guides(one.rates.clone(), &one.guides, &one.chooser);
        TargetReport::new(one.target.name.clone(), rates)
    };
    report.targets = measuring.iter().map(target).collect();
    report.notes.clone_from(&said.notes);
    let searched = |one: &Measuring| guided(&one.target.name, &one.guides, &one.chooser);
    report.notes.extend(measuring.iter().filter_map(searched));
    report.notes.extend(report.targets.iter().filter_map(TargetReport::few));
}

/// The rates of a report: of a search without an answer also the short windows that were to lead to it, marked.
pub(crate) fn with_guides(mut rates: Vec<Rate>, guides: &[Rate], chooser: &Chooser) -> Vec<Rate> {
    if chooser.offer().is_some() {
        rates.extend(guides.iter().map(|rate| Rate { cut_short: true, ..rate.clone() }));
    }
    rates
}

/// What is to be said of them.
pub(crate) fn guided(name: &str, guides: &[Rate], chooser: &Chooser) -> Option<String> {
    let first = guides.first().filter(|_| chooser.offer().is_some())?;
    Some(format!(
        "{name}: the search has no answer yet; its windows of {} s tell no capacity",
        first.window_s
    ))
}

/// Said of a window in which no request fell.
pub(crate) const NOBODY_CAME: &str = "nobody came within the window; a longer one is needed";

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
        let whose = if busy < f64::from(cores) / 2.0 { ": others had the cores" } else { "" };
        notes.push(format!(
            "{name} at {}/s: the generator is the limit ({busy:.2} of {cores} cores, {late:.0} ms late at p99{whose})",
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
