//! One signal that tells every session the server is going, and counts those still there.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use contract::Tick;
use tokio::sync::watch;

/// Where the process stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Serving,
    /// Nothing new is taken; what runs may end until this time.
    Draining {
        until: Tick,
    },
}

/// Shared by listeners, sessions and requests. Copies see the same phase.
#[derive(Clone, Debug)]
pub(crate) struct Drain {
    phase: Arc<watch::Sender<Phase>>,
    live: Arc<Live>,
}

#[derive(Debug)]
struct Live {
    count: AtomicUsize,
    changed: tokio::sync::Notify,
}

/// One piece of work that drain waits for; dropping it ends the wait.
#[derive(Debug)]
pub(crate) struct Guard {
    live: Arc<Live>,
}

impl Drain {
    #[must_use]
    pub(crate) fn new() -> Self {
        let live = Live { count: AtomicUsize::new(0), changed: tokio::sync::Notify::new() };
        Self { phase: Arc::new(watch::Sender::new(Phase::Serving)), live: Arc::new(live) }
    }

    /// Starts the drain; later calls change nothing.
    pub(crate) fn start(&self, until: Tick) {
        self.phase.send_if_modified(|phase| {
            let first = *phase == Phase::Serving;
            if first {
                *phase = Phase::Draining { until };
            }
            first
        });
    }

    #[must_use]
    pub(crate) fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    #[must_use]
    pub(crate) fn draining(&self) -> bool {
        self.phase() != Phase::Serving
    }

    /// Resolves once the drain has started, with its end.
    pub(crate) async fn started(&self) -> Tick {
        let mut phase = self.phase.subscribe();
        loop {
            if let Phase::Draining { until } = *phase.borrow_and_update() {
                return until;
            }
            if phase.changed().await.is_err() {
                // The sender lives as long as `self`; if it were gone there would be nothing to drain.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Counts one session or request in.
    #[must_use]
    pub(crate) fn enter(&self) -> Guard {
        self.live.count.fetch_add(1, Ordering::Relaxed);
        Guard { live: Arc::clone(&self.live) }
    }

    #[must_use]
    pub(crate) fn live(&self) -> usize {
        self.live.count.load(Ordering::Relaxed)
    }

    /// Resolves when nothing is counted in.
    pub(crate) async fn idle(&self) {
        loop {
            let changed = self.live.changed.notified();
            if self.live() == 0 {
                return;
            }
            changed.await;
        }
    }
}

impl Default for Drain {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.live.count.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.live.changed.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn idle_waits_for_the_last_guard() {
        let drain = Drain::new();
        let (first, second) = (drain.enter(), drain.enter());
        let waiting = tokio::spawn({
            let drain = drain.clone();
            async move { drain.idle().await }
        });
        drop(first);
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(second);
        waiting.await.expect("no panic");
    }

    #[tokio::test]
    async fn a_second_start_does_not_move_the_end() {
        let drain = Drain::new();
        drain.start(Tick::from_millis(5));
        drain.start(Tick::from_millis(50));
        assert_eq!(drain.started().await, Tick::from_millis(5));
    }
}
