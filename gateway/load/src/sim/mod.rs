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
use std::sync::{Mutex, PoisonError};

use contract::Span;

use crate::arrivals::arrivals;
use crate::bench::{FULL_WINDOW, NOBODY_CAME};
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
    let Scene { profile, workload, moods, seeds } = scene;
    let profile = &*variant.device(profile);
    let lead = lead_in(offer.window);
    let mut outcomes = Vec::new();
    let mut decided = Decided::default();
    let worlds = side_by_side(seeds.clone(), |seed| {
        let seed = u64::from(seed);
        let schedule = arrivals(offer.rate, lead, offer.window, seed, workload.utterances.len(), moods);
        let config = variant.config(profile);
        World::new(profile, variant, config, workload, &schedule, seed).map(World::run)
    });
    for world in worlds {
        let (made, sched, reasons) = world?;
        outcomes.extend(made);
        for (reason, count) in reasons {
            *decided.reasons.entry(reason).or_insert(0) += count;
        }
        decided.counters.push(sched.snapshot().counters);
    }
    Ok((Rate::of(offer.rate, offer.window, count(seeds), &outcomes), decided))
}

/// A whole run: every variant, every rate its chooser asks for.
///
/// # Errors
/// As [`offer`].
pub fn run(
    scene: &Scene<'_>,
    variants: &[Variant],
    rates: Rates,
    window: Span,
    progress: &(dyn Fn(String) + Sync),
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
    for guess in &profile.guesses {
        report.notes.push(format!("guessed in the profile: {guess}"));
    }
    if window < FULL_WINDOW {
        report.notes.push(format!("windows of {} s, not 60 s", window.as_micros() as f64 / 1e6));
    }
    let runs = side_by_side(variants.iter(), |variant| {
        let mut chooser = rates.chooser(window);
        let mut measured = Vec::new();
        let mut decisions = Vec::new();
        let mut notes = Vec::new();
        while let Some(next) = chooser.offer() {
            let (rate, decided) = offer(scene, variant, next)?;
            progress(crate::bench::line(&variant.name, &rate));
            chooser.taken(&rate);
            if next.reported && rate.offered > 0 {
                decisions.push((rate.rate, decided));
                measured.push(rate);
            } else if next.reported {
                notes.push(format!("{} at {}/s: {NOBODY_CAME}", variant.name, rate.rate));
            }
        }
        notes.extend(chooser.open_end().map(|what| format!("{}: {what}", variant.name)));
        Ok((TargetReport::new(variant.name.clone(), measured), decisions, notes))
    });
    let mut log = BTreeMap::new();
    for run in runs {
        let (target, decisions, notes) = run?;
        report.notes.extend(notes);
        log.insert(target.name.clone(), decisions);
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
