//! Which rates to offer, one after the other: a sweep, or a search for capacity.

use contract::Span;

use crate::open_loop::lead_in;
use crate::report::{Rate, span_s};

/// How rates are chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rates {
    /// `start`, `start + step`... up to `stop`.
    Sweep { start: f64, step: f64, stop: f64 },
    /// Bisect between a rate that should hold and one that should not.
    Search { low: f64, high: f64 },
}

/// Rates that cannot be offered.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RatesError {
    #[error(
        "{0:?} must be START:STEP:STOP or one rate, in requests a second, all above 0 and STOP not below START"
    )]
    Sweep(String),
    #[error("{0:?} must be LOW:HIGH in requests a second, above 0 and LOW below HIGH")]
    Search(String),
    #[error(
        "{rate} requests a second would be {requests:.0} in one window; at most {REQUESTS_MAX} are kept in mind"
    )]
    TooBusy { rate: f64, requests: f64 },
    #[error("a sweep of more than {RATES_MAX} rates; make the steps larger")]
    TooMany,
}

/// A search that finds nothing to hold down to here, in requests a second, ends: there is no capacity.
const RATE_MIN: f64 = 1e-3;
/// Most rates of one sweep.
const RATES_MAX: usize = 1_000;
/// Requests of one window, its lead-in included.
const REQUESTS_MAX: u32 = 1_000_000;
/// A search ends when its bounds are this near, as a part of the upper.
const NEAR: f64 = 0.04;
/// Bisection goes by windows this many times shorter.
const SHORTER: i64 = 4;
/// Full windows a search spends on confirming before it says what it has.
const CONFIRMATIONS_MAX: u32 = 10;

impl Rates {
    /// Reads `START:STEP:STOP`, or one rate.
    ///
    /// # Errors
    /// [`RatesError`].
    pub fn sweep(text: &str) -> Result<Self, RatesError> {
        let wrong = || RatesError::Sweep(text.to_owned());
        let (start, step, stop) = match numbers(text).as_deref() {
            Some([rate]) => (*rate, *rate, *rate),
            Some([start, step, stop]) if start <= stop => (*start, *step, *stop),
            _ => return Err(wrong()),
        };
        if (stop - start) / step >= RATES_MAX as f64 {
            return Err(RatesError::TooMany);
        }
        Ok(Self::Sweep { start, step, stop })
    }

    /// Reads `LOW:HIGH`.
    ///
    /// # Errors
    /// [`RatesError`].
    pub fn search(text: &str) -> Result<Self, RatesError> {
        match numbers(text).as_deref() {
            Some([low, high]) if low < high => Ok(Self::Search { low: *low, high: *high }),
            _ => Err(RatesError::Search(text.to_owned())),
        }
    }

    /// Whether windows of this length hold no more requests than a schedule may.
    ///
    /// # Errors
    /// [`RatesError::TooBusy`].
    pub fn check(self, window: Span) -> Result<Self, RatesError> {
        let (Self::Sweep { stop: rate, .. } | Self::Search { high: rate, .. }) = self;
        let requests = rate * span_s(window + lead_in(window));
        let fits = requests <= f64::from(REQUESTS_MAX);
        if fits { Ok(self) } else { Err(RatesError::TooBusy { rate, requests }) }
    }

    /// Starts choosing; `window` is the full one.
    #[must_use]
    pub fn chooser(self, window: Span) -> Chooser {
        let stage = match self {
            Self::Sweep { start, step, stop } => {
                // Counted, not compared: a step may be too small to change a rate.
                let last = ((stop - start) / step + 1e-6).clamp(0.0, RATES_MAX as f64) as u32;
                Stage::Sweep { start, step, last, next: 0 }
            }
            Self::Search { low, high } => Stage::Bisect { low, high, low_known: false },
        };
        Chooser { window, stage, unbounded: false }
    }
}

/// Numbers above 0 between colons.
fn numbers(text: &str) -> Option<Vec<f64>> {
    text.split(':').map(|part| part.parse::<f64>().ok().filter(|n| n.is_finite() && *n > 0.0)).collect()
}

/// What to offer next, for how long, and whether it belongs in the report.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Offer {
    pub rate: f64,
    pub window: Span,
    /// A full window's figures are reported; a shorter one's only guide the search.
    pub reported: bool,
}

/// A choice of rates under way.
#[derive(Clone, Debug)]
pub struct Chooser {
    window: Span,
    stage: Stage,
    /// A search has ended with full windows that held, and none that did not.
    unbounded: bool,
}

#[derive(Clone, Debug, PartialEq)]
enum Stage {
    Sweep {
        start: f64,
        step: f64,
        last: u32,
        next: u32,
    },
    Bisect {
        low: f64,
        high: f64,
        low_known: bool,
    },
    /// Full windows around what bisection found, until one that holds and one that does not are a step
    /// apart.
    Confirm {
        found: f64,
        step: f64,
        held: Option<f64>,
        failed: Option<f64>,
        taken: u32,
    },
    Over,
}

impl Chooser {
    /// The next offer; `None` when all is known.
    #[must_use]
    pub fn offer(&self) -> Option<Offer> {
        let short = Span::from_micros(self.window.as_micros() / SHORTER);
        match self.stage {
            Stage::Sweep { start, step, last, next } => {
                let rate = start + step * f64::from(next);
                (next <= last).then_some(Offer { rate, window: self.window, reported: true })
            }
            Stage::Bisect { low, high, low_known } => {
                let rate = if low_known { (low + high) / 2.0 } else { low };
                Some(Offer { rate: tidy(rate), window: short, reported: false })
            }
            Stage::Confirm { found, step, held, failed, taken } => {
                let rate = match (held, failed) {
                    (None, None) => found,
                    (Some(held), None) => held + step,
                    // Ever longer steps down: short windows may have flattered much.
                    (None, Some(failed)) => (failed - step * f64::from(1 << taken.min(8))).max(failed / 2.0),
                    (Some(held), Some(failed)) => f64::midpoint(held, failed),
                };
                Some(Offer { rate: tidy(rate), window: self.window, reported: true })
            }
            Stage::Over => None,
        }
    }

    /// What a search that is over has to say of its capacity, where it found no rate that fails.
    #[must_use]
    pub fn open_end(&self) -> Option<&'static str> {
        (self.stage == Stage::Over && self.unbounded)
            .then_some("no rate was found that fails; capacity is at least what is said: search higher")
    }

    /// Takes in what the last offer gave.
    pub fn taken(&mut self, result: &Rate) {
        // Where nobody came, nobody was let down.
        let held = result.offered == 0 || result.attained() >= 0.9;
        self.stage = match self.stage {
            Stage::Sweep { .. } if result.is_hopeless() => Stage::Over,
            Stage::Sweep { start, step, last, next } => Stage::Sweep { start, step, last, next: next + 1 },
            Stage::Bisect { low, high, low_known } => {
                let (low, high) = match (low_known, held) {
                    (false, true) => (low, high),
                    // Not even the lower bound holds: look below it.
                    (false, false) => (low / 2.0, low),
                    (true, true) => (result.rate, high),
                    (true, false) => (low, result.rate),
                };
                let known = low_known || held;
                if low < RATE_MIN {
                    Stage::Over
                } else if low < result.rate / 1_000.0 || (known && high - low <= NEAR * high) {
                    let step = (NEAR * high).max(1e-3);
                    Stage::Confirm { found: low, step, held: None, failed: None, taken: 0 }
                } else {
                    Stage::Bisect { low, high, low_known: known }
                }
            }
            Stage::Confirm { found, step, held: below, failed, taken } => {
                let below = if held { Some(result.rate) } else { below };
                let failed = if held { failed } else { Some(result.rate) };
                let near = below.zip(failed).is_some_and(|(below, failed)| failed - below <= step * 1.01);
                let nothing = failed.is_some_and(|failed| failed < RATE_MIN);
                if near || nothing || taken + 1 >= CONFIRMATIONS_MAX {
                    self.unbounded = failed.is_none();
                    Stage::Over
                } else {
                    Stage::Confirm { found, step, held: below, failed, taken: taken + 1 }
                }
            }
            Stage::Over => Stage::Over,
        };
    }
}

/// Rates are said with four digits.
fn tidy(rate: f64) -> f64 {
    let digits = 3 - rate.abs().max(RATE_MIN / 1e3).log10().floor() as i32;
    crate::report::rounded(rate, digits.clamp(0, 6))
}
