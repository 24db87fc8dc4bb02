//! The engine loop's clock: the only place in the engine that reads one.

use std::time::{Duration, Instant};

use contract::{Span, Tick};

/// Monotonic time since the engine was opened. Copies tell the same time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start: Instant,
}

impl Clock {
    /// A clock that starts at `start`, so that gateway and engine ticks can be compared.
    #[must_use]
    pub(crate) const fn since(start: Instant) -> Self {
        Self { start }
    }

    #[must_use]
    pub(crate) fn now(self) -> Tick {
        Tick::after_start(self.elapsed())
    }

    /// As [`Clock::now`], for sums of times shorter than a tick.
    #[must_use]
    #[expect(
        clippy::disallowed_methods,
        reason = "the engine loop reads time here and hands it on as a Tick"
    )]
    pub(crate) fn elapsed(self) -> Duration {
        Instant::now().saturating_duration_since(self.start)
    }

    /// How long a thread may park so as to wake at `tick`, at most `longest`.
    #[must_use]
    pub(crate) fn until(self, tick: Tick, longest: Span) -> Duration {
        let span = tick.since(self.now()).min(longest).as_micros().max(0);
        Duration::from_micros(u64::try_from(span).unwrap_or(0))
    }
}
