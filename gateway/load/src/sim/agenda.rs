//! What is still to happen, in the order of its time.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use contract::Tick;

/// Something that happens to a request. What a packet or a report holds stands in its speaker's own queues, which
/// are in order, so that little is moved about here.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// A request reaches the scheduler.
    Arrive,
    /// The next packet reaches the listener, or the next report the server.
    Deliver,
    Report,
    /// The listener cuts in at the server.
    Cut,
    Send,
    Wake,
}

/// Events to come, each of a request that is told by its number.
#[derive(Debug)]
pub(crate) struct Agenda {
    /// Ascending, and before all else of the same tick.
    arrivals: Vec<Tick>,
    arrived: usize,
    heap: BinaryHeap<Due>,
    numbered: u64,
}

impl Agenda {
    /// Requests that arrive at these ticks, which ascend.
    pub(crate) fn new(arrivals: Vec<Tick>) -> Self {
        Self { arrivals, arrived: 0, heap: BinaryHeap::new(), numbered: 0 }
    }

    pub(crate) fn at(&mut self, at: Tick, kind: Kind, index: usize) {
        self.numbered += 1;
        self.heap.push(Due { at, number: self.numbered, kind, index: index as u32 });
    }

    /// When the next one is.
    pub(crate) fn next(&self) -> Option<Tick> {
        let event = self.heap.peek().map(|due| due.at);
        [self.arrival(), event].into_iter().flatten().min()
    }

    /// The next one, if it is due by `now`.
    pub(crate) fn take(&mut self, now: Tick) -> Option<(Kind, usize)> {
        let next = self.next().filter(|at| *at <= now)?;
        if self.arrival() == Some(next) {
            self.arrived += 1;
            return Some((Kind::Arrive, self.arrived - 1));
        }
        self.heap.pop().map(|due| (due.kind, due.index as usize))
    }

    fn arrival(&self) -> Option<Tick> {
        self.arrivals.get(self.arrived).copied()
    }
}

/// An event and its place in time; what comes first is the greatest, for the heap.
#[derive(Debug)]
struct Due {
    at: Tick,
    /// Of two at the same tick, the one that was told first.
    number: u64,
    kind: Kind,
    index: u32,
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Due {}
