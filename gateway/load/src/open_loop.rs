//! One rate offered to one target: requests leave on their schedule, whatever the server does.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use contract::{Span, Tick};
use futures_util::FutureExt;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;

use crate::adapters::{self, Request};
use crate::arrivals::{Arrival, arrivals};
use crate::clock::{Clock, processor_time};
use crate::mood::Moods;
use crate::outcome::{Ending, Outcome};
use crate::rates::Offer;
use crate::report::{Rate, TARGET, rounded, span_s};
use crate::target::Target;
use crate::workload::{Utterance, Workload};

/// What all rates of a run have in common.
#[derive(Clone, Debug)]
pub struct Settings {
    pub workload: Arc<Workload>,
    pub moods: Moods,
    /// Seeds of the schedules.
    pub seeds: std::ops::Range<u32>,
    pub token: Option<String>,
    /// Fixes every request's number of frames, each this many milliseconds long.
    pub exact_frame_ms: Option<f64>,
    /// How long requests are awaited after the last arrival, beyond the longest utterance.
    pub patience: Span,
}

/// The usual patience.
pub const PATIENCE: Span = Span::from_millis(20_000);
/// Between two looks at how late the generator is.
const BEAT: Span = Span::from_millis(50);
/// Between two lines of progress.
const PROGRESS: Duration = Duration::from_secs(5);

/// Arrivals before the window that are sent and not counted, so that the counted ones meet a server as
/// busy as it will be: a third of the window, at most 10 s.
#[must_use]
pub fn lead_in(window: Span) -> Span {
    Span::from_micros((window.as_micros() / 3).min(10_000_000))
}

/// Offers one rate with every seed, pooled. `cut` turning true ends it early: what has ended by then is
/// counted over the time that has passed, and the second value says so.
pub async fn offer(
    target: &Arc<Target>,
    settings: &Arc<Settings>,
    offer: Offer,
    progress: &(dyn Fn(String) + Sync),
    cut: &watch::Receiver<bool>,
) -> (Rate, bool) {
    let mut outcomes = Vec::new();
    let mut late = Vec::new();
    let mut busy = 0.0;
    let mut measured = Span::ZERO;
    let mut was_cut = false;
    let seeds = settings.seeds.len().max(1);
    for seed in settings.seeds.clone() {
        let window = one_window(target, settings, offer, u64::from(seed), progress, cut).await;
        outcomes.extend(window.outcomes);
        late.extend(window.late);
        busy += window.busy_cores / seeds as f64;
        measured += window.measured;
        was_cut = window.cut;
        if was_cut {
            break;
        }
    }
    late.extend(outcomes.iter().map(|outcome| outcome.started.since(outcome.arrival)));
    let mut rate = if was_cut {
        Rate::of(offer.rate, measured.max(Span::from_millis(1)), 1, &outcomes)
    } else {
        Rate::of(offer.rate, offer.window, seeds as u32, &outcomes)
    };
    rate.cut_short = was_cut;
    rate.generator_cpu = Some(rounded(busy, 3));
    rate.generator_late_ms = crate::report::Percentiles::of(late).p99;
    (rate, was_cut)
}

struct Window {
    outcomes: Vec<Outcome>,
    /// How late a task of the generator's own was woken, all through the window.
    late: Vec<Span>,
    busy_cores: f64,
    measured: Span,
    cut: bool,
}

async fn one_window(
    target: &Arc<Target>,
    settings: &Arc<Settings>,
    offer: Offer,
    seed: u64,
    progress: &(dyn Fn(String) + Sync),
    cut: &watch::Receiver<bool>,
) -> Window {
    let lead = lead_in(offer.window);
    let count = settings.workload.utterances.len();
    let schedule = arrivals(offer.rate, lead, offer.window, seed, count, &settings.moods);
    let clock = Clock::start();
    let cpu = processor_time();
    let begin = clock.now() + Span::from_millis(20);
    let counted_from = begin + lead;
    let mut running: JoinSet<Option<Outcome>> = JoinSet::new();
    let mut outcomes = Vec::new();
    let mut cut = cut.clone();
    let mut tick = tokio::time::interval_at(clock.instant(begin) + PROGRESS, PROGRESS);
    let longest = settings.workload.utterances.iter().map(|it| it.spoken_s()).fold(0.0, f64::max);
    let give_up =
        begin + lead + offer.window + settings.patience + Span::from_millis((longest * 1_000.0) as i64);
    let mut sent = 0;
    let mut was_cut = *cut.borrow();
    let mut busy = None;
    let (over, is_over) = oneshot::channel();
    let beats = tokio::spawn(heartbeat(clock, counted_from, is_over));
    while !was_cut && (sent < schedule.len() || !running.is_empty()) {
        let due = schedule.get(sent).map(|arrival| clock.instant(begin + arrival.at));
        tokio::select! {
            biased;
            _ = cut.changed() => was_cut = true,
            () = sleep_until(due) => {
                let arrival = schedule[sent].clone();
                let due = begin + arrival.at;
                let task = one(target.clone(), settings.clone(), arrival, due, clock, give_up, cut.clone());
                running.spawn(task);
                sent += 1;
                if sent == schedule.len() {
                    busy = Some((clock.now(), processor_time()));
                }
            }
            Some(ended) = running.join_next(), if !running.is_empty() => {
                outcomes.extend(ended.ok().flatten());
            }
            _ = tick.tick() => progress(format!(
                "{} at {}/s, {}: {}, {sent} sent, {} running, {} failed or refused",
                target.name,
                offer.rate,
                if offer.reported { "full window" } else { "short window" },
                so_far(clock.now().since(begin), lead + offer.window),
                running.len(),
                outcomes.iter().filter(|outcome| !outcome.completed()).count(),
            )),
        }
    }
    // Of those that run still when the run is cut, whoever has missed the target already has missed it.
    while let Some(ended) = running.join_next().await {
        outcomes.extend(ended.ok().flatten());
    }
    let (until, cpu_then) = busy.unwrap_or_else(|| (clock.now(), processor_time()));
    let measured = clock.now().since(counted_from).clamp(Span::ZERO, offer.window);
    drop(over);
    let late = beats.await.unwrap_or_default();
    Window { outcomes, late, busy_cores: cores(cpu, cpu_then, until.since(begin)), measured, cut: was_cut }
}

/// How far a window of `whole`, its lead-in included, has come: what it waits for once it is over.
fn so_far(passed: Span, whole: Span) -> String {
    if passed < whole {
        format!("{:.0} of {:.0} s", span_s(passed), span_s(whole))
    } else {
        format!("over after {:.0} s, waiting for those that speak still", span_s(whole))
    }
}

/// Wakes every [`BEAT`] and notes how late it was: whoever listens meanwhile was as late. Arrivals alone are too
/// few to tell at low rates.
async fn heartbeat(clock: Clock, from: Tick, mut over: oneshot::Receiver<()>) -> Vec<Span> {
    let mut late = Vec::new();
    let mut due = from;
    loop {
        tokio::select! {
            _ = &mut over => return late,
            () = tokio::time::sleep_until(clock.instant(due)) => {}
        }
        let now = clock.now();
        late.push(now.since(due));
        due = now.max(due + BEAT);
    }
}

/// One request; `None` for one of the lead-in, and for one that was cut short while it might still have been in time.
async fn one(
    target: Arc<Target>,
    settings: Arc<Settings>,
    arrival: Arrival,
    due: Tick,
    clock: Clock,
    give_up: Tick,
    mut cut: watch::Receiver<bool>,
) -> Option<Outcome> {
    let request = Request {
        target: &target,
        token: settings.token.as_deref(),
        utterance: settings.workload.utterances.get(arrival.utterance)?,
        arrival: &arrival,
        due,
        exact_frame_ms: settings.exact_frame_ms,
        clock,
    };
    let mut hearing = adapters::listener(&request);
    let speaking = AssertUnwindSafe(adapters::speak(&request, &mut hearing)).catch_unwind();
    let (ending, was_cut) = tokio::select! {
        biased;
        // Told, never lost: what is not counted would flatter.
        spoken = Box::pin(speaking) => {
            (spoken.unwrap_or_else(|_| Ending::Failed("the generator itself broke".to_owned())), false)
        }
        () = tokio::time::sleep_until(clock.instant(give_up)) => (Ending::Unfinished, false),
        () = turns_true(&mut cut) => (Ending::Unfinished, true),
    };
    let now = clock.now();
    // What was heard until then counts, however it ended.
    let outcome = hearing.finish(now, ending);
    let known = !was_cut || outcome.has_missed(now, TARGET);
    (known && !arrival.discarded).then_some(outcome)
}

/// Waits for a run to be cut short; for ever where nobody is left who could.
pub(crate) async fn turns_true(cut: &mut watch::Receiver<bool>) {
    while !*cut.borrow_and_update() {
        if cut.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// One request by itself: whether a target can be measured at all.
pub async fn probe(target: &Target, settings: &Settings) -> Result<(), String> {
    let clock = Clock::start();
    let arrival = Arrival {
        at: Span::ZERO,
        utterance: 0,
        habits: crate::mood::Habits::draw(crate::mood::Mood::Steady, &mut crate::random::Random::new(0)),
        seed: 0,
        discarded: true,
    };
    let utterance = &Utterance { text: "Testing, one, two, three.".to_owned(), seconds: Some(1.6) };
    let request = Request {
        target,
        token: settings.token.as_deref(),
        utterance,
        arrival: &arrival,
        due: clock.now(),
        exact_frame_ms: settings.exact_frame_ms,
        clock,
    };
    let limit = Duration::from_micros(settings.patience.as_micros().unsigned_abs());
    let mut hearing = adapters::listener(&request);
    let ending = tokio::time::timeout(limit, Box::pin(adapters::speak(&request, &mut hearing)));
    let ending = ending
        .await
        .map_err(|_| format!("it did not answer whole within {} s", span_s(settings.patience)))?;
    let outcome = hearing.finish(clock.now(), ending);
    if let Some(wrong) = outcome.frames_missing() {
        return Err(wrong);
    }
    match outcome.ending {
        Ending::Done | Ending::Interrupted => Ok(()),
        Ending::Refused(code) => Err(format!("it refused a lone request: {code}")),
        Ending::Failed(what) => Err(what),
        Ending::Unfinished => Err("it did not finish a lone request".to_owned()),
    }
}

fn cores(before: Option<Span>, after: Option<Span>, wall: Span) -> f64 {
    let (Some(before), Some(after)) = (before, after) else { return 0.0 };
    span_s(after - before) / span_s(wall).max(1e-3)
}

async fn sleep_until(at: Option<tokio::time::Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
