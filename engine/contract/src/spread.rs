//! Many durations in little memory.

use crate::Span;

/// Steps to a doubling: a quantile is within 4.5% of the truth.
const STEPS: usize = 16;
/// Doublings from 1 us: beyond 17 minutes all is one.
const DOUBLINGS: usize = 30;

/// How often durations occurred, on a logarithmic scale. It grows by what it is given, to some 2 KiB.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spread {
    /// By step; as long as the longest duration needs.
    counts: Vec<u64>,
    count: u64,
    sum_us: u64,
}

impl Spread {
    /// Takes a duration in. A negative one counts as none.
    pub fn record(&mut self, span: Span) {
        let us = u64::try_from(span.as_micros()).unwrap_or(0);
        let step = step(us);
        if self.counts.len() <= step {
            self.counts.resize(step + 1, 0);
        }
        self.counts[step] += 1;
        self.count += 1;
        self.sum_us = self.sum_us.saturating_add(us);
    }

    /// Adds what another holds.
    pub fn add(&mut self, other: &Self) {
        if self.counts.len() < other.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        for (sum, count) in self.counts.iter_mut().zip(&other.counts) {
            *sum += count;
        }
        self.count += other.count;
        self.sum_us = self.sum_us.saturating_add(other.sum_us);
    }

    /// What was taken in since it was as `earlier` is.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut later = self.clone();
        for (count, before) in later.counts.iter_mut().zip(&earlier.counts) {
            *count = count.saturating_sub(*before);
        }
        later.count = later.count.saturating_sub(earlier.count);
        later.sum_us = later.sum_us.saturating_sub(earlier.sum_us);
        later
    }

    /// Durations taken in.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// All of them together, in microseconds.
    #[must_use]
    pub const fn sum_us(&self) -> u64 {
        self.sum_us
    }

    /// The duration that a share `quantile`, from 0 to 1, do not exceed; zero when there is none.
    #[must_use]
    pub fn quantile(&self, quantile: f64) -> Span {
        let rank = (quantile.clamp(0.0, 1.0) * self.count as f64).ceil().max(1.0);
        let mut seen = 0_u64;
        for (step, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen as f64 >= rank {
                // The middle of the step: half of its durations lie on either side.
                return Span::from_micros(2_f64.powf((step as f64 + 0.5) / STEPS as f64) as i64);
            }
        }
        Span::ZERO
    }
}

/// The step that `us` lies in.
fn step(us: u64) -> usize {
    let steps = (us.max(1) as f64).log2() * STEPS as f64;
    (steps as usize).min(STEPS * DOUBLINGS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(micros: impl IntoIterator<Item = i64>) -> Spread {
        let mut spread = Spread::default();
        for us in micros {
            spread.record(Span::from_micros(us));
        }
        spread
    }

    #[test]
    fn quantiles_are_within_a_step_of_the_truth() {
        let spread = of(1..=100_000);
        for (quantile, truth) in [(0.01, 1_000.0), (0.5, 50_000.0), (0.99, 99_000.0), (1.0, 100_000.0)] {
            let found = spread.quantile(quantile).as_micros() as f64;
            assert!((found / truth - 1.0).abs() < 0.045, "{quantile}: {found}");
        }
        assert_eq!((spread.count(), spread.sum_us()), (100_000, 5_000_050_000));
    }

    #[test]
    fn two_together_are_as_one_that_took_both() {
        let mut sum = of([3, 70_000]);
        sum.add(&of([900]));
        assert_eq!(sum, of([3, 70_000, 900]));
        let mut other = of([900]);
        other.add(&of([3, 70_000]));
        assert_eq!(sum, other);
    }

    #[test]
    fn nothing_and_nonsense_have_a_quantile_too() {
        assert_eq!(Spread::default().quantile(0.5), Span::ZERO);
        assert_eq!(of([-5]).quantile(0.5), Span::from_micros(1));
        assert!(of([i64::MAX]).quantile(0.5).as_micros() > 900_000_000);
    }
}
