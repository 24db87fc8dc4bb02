//! Round trips of one connection, measured by the server's own WebSocket pings (DESIGN.md section 6).

use contract::Span;

/// Round trips remembered.
const KEPT: usize = 128;

/// Least round trip and jitter of a connection. Zero until the first pong.
#[derive(Clone, Debug, Default)]
pub struct Link {
    /// The latest round trips in microseconds, oldest overwritten first.
    round_trips: Vec<i64>,
    next: usize,
    least: i64,
    jitter_p95: i64,
    jitter_p99: i64,
}

impl Link {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// One ping came back after `round_trip`.
    pub fn record(&mut self, round_trip: Span) {
        let micros = round_trip.as_micros().max(0);
        if self.round_trips.len() < KEPT {
            self.round_trips.push(micros);
        } else {
            self.round_trips[self.next] = micros;
        }
        self.next = (self.next + 1) % KEPT;
        let mut sorted = self.round_trips.clone();
        sorted.sort_unstable();
        self.least = sorted[0];
        // Nearest-rank percentiles: with few values the greatest stands for both.
        let rank = |percent: usize| sorted[(sorted.len() * percent).div_ceil(100) - 1] - sorted[0];
        self.jitter_p95 = rank(95);
        self.jitter_p99 = rank(99);
    }

    /// Half the least round trip.
    #[must_use]
    pub const fn one_way(&self) -> Span {
        Span::from_micros(self.least / 2)
    }

    /// 95th percentile of round trips above the least.
    #[must_use]
    pub const fn jitter_p95(&self) -> Span {
        Span::from_micros(self.jitter_p95)
    }

    /// 99th percentile of round trips above the least.
    #[must_use]
    pub const fn jitter_p99(&self) -> Span {
        Span::from_micros(self.jitter_p99)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_round_trip_and_the_jitter_above_it_are_kept_for_the_latest_pings() {
        let mut link = Link::new();
        assert_eq!(link.one_way(), Span::ZERO);
        for millis in 1..=100 {
            link.record(Span::from_millis(20 + millis));
        }
        assert_eq!(link.one_way(), Span::from_micros(10_500));
        assert_eq!((link.jitter_p95(), link.jitter_p99()), (Span::from_millis(94), Span::from_millis(98)));
        for _ in 0..128 {
            link.record(Span::from_millis(50));
        }
        assert_eq!((link.one_way(), link.jitter_p99()), (Span::from_millis(25), Span::ZERO));
    }
}
