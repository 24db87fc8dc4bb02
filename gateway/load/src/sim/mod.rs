//! The capacity simulator: the real scheduler and playback clock on virtual time, with a profile's
//! costs, and the benchmark's own arrivals, listeners and arithmetic.
//!
//! The same seed, profile and variant always give the same report.

mod agenda;
mod device;
pub mod plan;
pub mod profile;
mod speaker;
pub mod split;
pub mod variant;
mod world;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use contract::Span;

use crate::arrivals::arrivals;
use crate::bench::{FULL_WINDOW, NOBODY_CAME, guided, with_guides};
use crate::mood::Moods;
use crate::open_loop::lead_in;
use crate::rates::{Offer, Rates};
use crate::report::{Rate, Report, TargetReport};
use crate::workload::Workload;

pub use profile::{ProfileError, ProfileFile};
pub use variant::{Variant, VariantError};

use world::{Reasons, World};

/// What is simulated, whatever the settings.
#[derive(Clone, Debug)]
pub struct Scene<'a> {
    pub profile: &'a ProfileFile,
    pub workload: &'a Workload,
    pub moods: &'a Moods,
    /// Seeds of the schedules.
    pub seeds: Range<u32>,
}

/// What was decided during one rate.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decided {
    /// Launches by the rule that made them.
    pub reasons: Reasons,
    /// The scheduler's own, a seed each.
    pub counters: Vec<sched::Counters>,
}

impl Decided {
    /// One of the counters over all seeds.
    #[must_use]
    pub fn count(&self, of: fn(&sched::Counters) -> u64) -> u64 {
        self.counters.iter().map(of).sum()
    }
}

/// A whole run.
#[derive(Clone, Debug, Default)]
pub struct Simulated {
    pub report: Report,
    /// By variant, rate by rate.
    pub decided: BTreeMap<String, Vec<(f64, Decided)>>,
}

/// Offers one rate to a simulated server, with every seed, pooled.
///
/// # Errors
/// [`ProfileError`] for a profile or a variant that cannot be run.
pub fn offer(scene: &Scene<'_>, variant: &Variant, offer: Offer) -> Result<(Rate, Decided), ProfileError> {
    offer_until(scene, variant, offer, &AtomicBool::new(false))
}

/// The same, until `cut` turns true: then of the seeds that were over by then.
fn offer_until(
    scene: &Scene<'_>,
    variant: &Variant,
    offer: Offer,
    cut: &AtomicBool,
) -> Result<(Rate, Decided), ProfileError> {
    let Scene { profile, workload, moods, seeds } = scene;
    let profile = &*variant.device(profile);
    let lead = lead_in(offer.window);
    let mut outcomes = Vec::new();
    let mut decided = Decided::default();
    let worlds = side_by_side(seeds.clone(), |seed| {
        let seed = u64::from(seed);
        let schedule = arrivals(offer.rate, lead, offer.window, seed, workload.utterances.len(), moods);
        let config = variant.config(profile);
        World::new(profile, variant, config, workload, &schedule, seed).map(|world| world.run(cut))
    });
    let mut whole = 0;
    for world in worlds {
        let Some((made, sched, reasons)) = world? else { continue };
        whole += 1;
        outcomes.extend(made);
        for (reason, count) in reasons {
            *decided.reasons.entry(reason).or_insert(0) += count;
        }
        decided.counters.push(sched.snapshot().counters);
    }
    let rate = Rate::of(offer.rate, offer.window, whole, &outcomes);
    Ok((Rate { cut_short: whole < count(seeds), ..rate }, decided))
}

/// A whole run: every variant, every rate its chooser asks for, until `cut` turns true; then with what it has.
///
/// # Errors
/// As [`offer`].
pub fn run(
    scene: &Scene<'_>,
    variants: &[Variant],
    rates: Rates,
    window: Span,
    progress: &(dyn Fn(String) + Sync),
    cut: &AtomicBool,
) -> Result<Simulated, ProfileError> {
    let profile = scene.profile;
    let mut report = Report {
        workload: scene.workload.name.clone(),
        seeds: count(&scene.seeds),
        host: crate::report::Host { cores: profile.parts.whole, cpu: profile.device.clone() },
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..Report::default()
    };
    report.notes.push(format!("simulated on virtual time with profile {}", profile.name));
    report.notes.extend(scene.moods.said());
    for guess in &profile.guesses {
        report.notes.push(format!("guessed in the profile: {guess}"));
    }
    if window < FULL_WINDOW {
        report.notes.push(format!("windows of {} s, not 60 s", window.as_micros() as f64 / 1e6));
    }
    let runs = side_by_side(variants.iter(), |variant| {
        let mut chooser = rates.chooser(window);
        let (mut measured, mut guides) = (Vec::new(), Vec::new());
        let mut decisions = Vec::new();
        let mut notes = Vec::new();
        let name = &variant.name;
        while let Some(next) = chooser.offer().filter(|_| !cut.load(Ordering::Relaxed)) {
            let (rate, decided) = offer_until(scene, variant, next, cut)?;
            if rate.cut_short {
                let seeds = decided.counters.len();
                notes.push(format!("{name} at {}/s was cut short after {seeds} seeds", rate.rate));
            } else {
                progress(crate::bench::line(name, &rate));
                chooser.taken(&rate);
            }
            let reported = next.reported || rate.cut_short;
            if reported && rate.offered > 0 {
                decisions.push((rate.rate, decided));
                measured.push(rate);
            } else if rate.offered > 0 {
                guides.push(rate);
            } else if reported && !rate.cut_short {
                notes.push(format!("{name} at {}/s: {NOBODY_CAME}", rate.rate));
            }
        }
        notes.extend(chooser.open_end().map(|what| format!("{name}: {what}")));
        notes.extend(guided(name, &guides, &chooser));
        if measured.is_empty() && guides.is_empty() && chooser.offer().is_some() {
            notes.push(format!("{name}: nothing was whole when the run was cut short"));
        }
        let measured = with_guides(measured, &guides, &chooser);
        Ok((TargetReport::new(name.clone(), measured), decisions, notes))
    });
    let mut log = BTreeMap::new();
    for run in runs {
        let (target, decisions, notes) = run?;
        report.notes.extend(notes);
        log.insert(target.name.clone(), decisions);
        report.notes.extend(target.few());
        report.targets.push(target);
    }
    Ok(Simulated { report, decided: log })
}

/// `work` for every item, as many at a time as there are cores; results in the order of the items.
fn side_by_side<T: Send, R: Send>(
    items: impl ExactSizeIterator<Item = T> + Send,
    work: impl Fn(T) -> R + Sync,
) -> Vec<R> {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let threads = cores.min(items.len());
    if threads <= 1 {
        return items.map(work).collect();
    }
    let waiting = Mutex::new(items.enumerate());
    let done = Mutex::new(Vec::new());
    let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).next();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some((place, item)) = next() {
                    let result = work(item);
                    done.lock().unwrap_or_else(PoisonError::into_inner).push((place, result));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(place, _)| *place);
    done.into_iter().map(|(_, result)| result).collect()
}

fn count(seeds: &Range<u32>) -> u32 {
    u32::try_from(seeds.len()).unwrap_or(u32::MAX)
}
