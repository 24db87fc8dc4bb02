//! The gateway's clock: the only place in it that reads one (DESIGN.md section 8).

use std::time::{Duration, Instant, UNIX_EPOCH};

use contract::Tick;

/// Monotonic time since the process started. Copies tell the same time; the engine is given the same
/// origin, so that its ticks compare with ours.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: Instant,
}

impl Clock {
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "the process's zero is taken here, once")]
    pub fn start() -> Self {
        Self { origin: Instant::now() }
    }

    #[must_use]
    pub fn origin(self) -> Instant {
        self.origin
    }

    #[must_use]
    pub fn now(self) -> Tick {
        Tick::after_start(self.origin.elapsed())
    }

    /// The tokio instant at which `tick` is reached, at most an hour ahead.
    #[must_use]
    pub fn deadline(self, tick: Tick) -> tokio::time::Instant {
        let ahead = tick.since(self.now()).as_micros().clamp(0, 3_600_000_000);
        tokio::time::Instant::now() + Duration::from_micros(ahead.unsigned_abs())
    }
}

/// Seconds since 1970, for fields that name a calendar time. Never used for deadlines.
#[must_use]
#[expect(clippy::disallowed_types, reason = "a calendar time is asked for, and nothing is timed by it")]
pub fn unix_seconds() -> u64 {
    std::time::SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
