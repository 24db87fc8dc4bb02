//! Time as a value: [`Tick`] is a point, [`Span`] a signed distance, both in whole microseconds.
//!
//! Only the gateway's drive loop, the engine loop and the watchdog read a clock; everything else is
//! given a `Tick` (DESIGN.md section 8).

use std::fmt;
use std::ops::{Add, AddAssign, Neg, Sub};

/// A point in time: microseconds, [`Tick::START`] being the process's own start. Never goes backwards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tick(u64);

/// A signed distance between two [`Tick`]s, in microseconds. Arithmetic saturates: an infinite slack
/// stays infinite.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(i64);

impl Tick {
    pub const ZERO: Self = Self(0);
    /// The process's own start. A day after zero, so that times before the start can be told: a
    /// listener who takes audio faster than it plays heard sample 0 long before it was made.
    pub const START: Self = Self(86_400_000_000);
    /// Later than everything: the deadline of a listener who has paused.
    pub const NEVER: Self = Self(u64::MAX);

    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000))
    }

    /// The time `elapsed` after the process's start: what every clock of the process tells.
    #[must_use]
    pub fn after_start(elapsed: std::time::Duration) -> Self {
        let micros = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX);
        Self(Self::START.0.saturating_add(micros))
    }

    #[must_use]
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// `self - earlier`, negative when `earlier` is in fact later. [`Tick::NEVER`] is infinitely far.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Span {
        if self.0 == u64::MAX {
            return Span::MAX;
        }
        if earlier.0 == u64::MAX {
            return Span::MIN;
        }
        if self.0 >= earlier.0 {
            let distance = self.0 - earlier.0;
            if distance > i64::MAX as u64 { Span::MAX } else { Span(distance as i64) }
        } else {
            let distance = earlier.0 - self.0;
            if distance > i64::MAX as u64 { Span::MIN } else { Span(-(distance as i64)) }
        }
    }
}

impl Span {
    pub const ZERO: Self = Self(0);
    pub const MAX: Self = Self(i64::MAX);
    pub const MIN: Self = Self(i64::MIN);

    #[must_use]
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    #[must_use]
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis.saturating_mul(1_000))
    }

    /// The playing time of `samples` at `rate` hertz, rounded down.
    #[must_use]
    pub const fn of_samples(samples: u64, rate: u32) -> Self {
        Self((samples as u128 * 1_000_000 / rate as u128) as i64)
    }

    #[must_use]
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// Whole milliseconds, rounded toward zero.
    #[must_use]
    pub const fn as_millis(self) -> i64 {
        self.0 / 1_000
    }

    #[must_use]
    pub const fn times(self, count: i64) -> Self {
        Self(self.0.saturating_mul(count))
    }

    #[must_use]
    pub const fn half(self) -> Self {
        Self(self.0 / 2)
    }

    #[must_use]
    pub const fn is_negative(self) -> bool {
        self.0 < 0
    }
}

impl Add<Span> for Tick {
    type Output = Self;

    fn add(self, span: Span) -> Self {
        if self == Self::NEVER {
            return self;
        }
        Self(self.0.saturating_add_signed(span.0))
    }
}

impl Sub<Span> for Tick {
    type Output = Self;

    fn sub(self, span: Span) -> Self {
        self + (-span)
    }
}

impl AddAssign<Span> for Tick {
    fn add_assign(&mut self, span: Span) {
        *self = *self + span;
    }
}

impl Add for Span {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Span {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for Span {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl Neg for Span {
    type Output = Self;

    fn neg(self) -> Self {
        Self(self.0.saturating_neg())
    }
}

impl fmt::Display for Tick {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::NEVER { write!(f, "never") } else { write!(f, "{}us", self.0) }
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}us", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_paused_listener_is_infinitely_far_away_and_stays_so() {
        let slack = Tick::NEVER.since(Tick::from_millis(5));
        assert_eq!(slack, Span::MAX);
        assert_eq!(slack + Span::from_millis(100), Span::MAX);
        assert_eq!(Tick::NEVER + Span::from_millis(-7), Tick::NEVER);
    }

    #[test]
    fn a_time_an_hour_before_the_process_started_is_an_hour_away() {
        let now = Tick::after_start(std::time::Duration::from_millis(5));
        let hour = Span::from_millis(3_600_000);
        assert_eq!(now.since(now - hour), hour);
    }

    #[test]
    fn a_deadline_in_the_past_gives_negative_slack() {
        let slack = Tick::from_millis(10).since(Tick::from_millis(25));
        assert_eq!(slack, Span::from_millis(-15));
        assert!(slack.is_negative());
    }

    #[test]
    fn samples_become_playing_time_without_overflow() {
        assert_eq!(Span::of_samples(1_920, 24_000), Span::from_millis(80));
        assert_eq!(Span::of_samples(u64::from(u32::MAX) * 1_000, 48_000).as_millis(), 89_478_485_312);
    }
}
