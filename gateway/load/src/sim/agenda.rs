//! What is still to happen, in the order of its time.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use contract::Tick;
use proto::wire::PlaybackReport;

use super::speaker::Sent;

/// Something that happens to a request, which is told by its number.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// A request reaches the scheduler.
    Arrive(usize),
    Deliver(usize, Sent),
    Report(usize, Box<PlaybackReport>),
    /// The listener cuts in at the server.
    Cut(usize),
    Send(usize),
    Wake(usize),
}

/// Events to come.
#[derive(Debug, Default)]
pub(crate) struct Agenda {
    heap: BinaryHeap<Due>,
    numbered: u64,
}

impl Agenda {
    pub(crate) fn at(&mut self, at: Tick, event: Event) {
        self.numbered += 1;
        self.heap.push(Due { at, number: self.numbered, event });
    }

    /// When the next one is.
    pub(crate) fn next(&self) -> Option<Tick> {
        self.heap.peek().map(|due| due.at)
    }

    /// The next one, if it is due by `now`.
    pub(crate) fn take(&mut self, now: Tick) -> Option<Event> {
        self.next().filter(|at| *at <= now)?;
        self.heap.pop().map(|due| due.event)
    }
}

/// An event and its place in time; what comes first is the greatest, for the heap.
#[derive(Debug)]
struct Due {
    at: Tick,
    /// Of two at the same tick, the one that was told first.
    number: u64,
    event: Event,
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
