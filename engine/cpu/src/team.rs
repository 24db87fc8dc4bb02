//! The threads of one launch and where they wait for each other.
//!
//! All members run the same op list, each on its share, and meet between ops. Waiting spins for a bounded
//! while (ops are microseconds long), then parks; nobody spins between launches.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::sync::{Condvar, Mutex, PoisonError};

/// Turns of the spin before a member parks: some 20 microseconds.
const SPINS: u32 = 2_000;
/// Multiply-adds below which sharing costs more than it saves.
const WORK_MIN: usize = 20_000;

/// Thrown through a member whose neighbour panicked.
pub(crate) struct Abandoned;

/// A barrier for a fixed number of members.
#[derive(Debug)]
pub(crate) struct Barrier {
    members: u32,
    arrived: AtomicU32,
    turn: AtomicU32,
    sleepers: AtomicU32,
    broken: AtomicBool,
    lock: Mutex<()>,
    wake: Condvar,
}

/// One member's view of its team.
#[derive(Clone, Copy)]
pub(crate) struct Member<'a> {
    pub(crate) index: usize,
    pub(crate) count: usize,
    pub(crate) barrier: &'a Barrier,
}

impl Barrier {
    pub(crate) fn new(members: usize) -> Self {
        Self {
            members: members as u32,
            arrived: AtomicU32::new(0),
            turn: AtomicU32::new(0),
            sleepers: AtomicU32::new(0),
            broken: AtomicBool::new(false),
            lock: Mutex::new(()),
            wake: Condvar::new(),
        }
    }

    /// Waits for all members. Unwinds with [`Abandoned`] when one of them panicked.
    pub(crate) fn wait(&self) {
        if self.members == 1 {
            return;
        }
        let turn = self.turn.load(SeqCst);
        if self.arrived.fetch_add(1, SeqCst) + 1 == self.members {
            self.arrived.store(0, SeqCst);
            self.turn.store(turn.wrapping_add(1), SeqCst);
            self.rouse();
        } else {
            self.wait_turn(turn);
        }
        if self.broken.load(SeqCst) {
            std::panic::resume_unwind(Box::new(Abandoned));
        }
    }

    /// Lets all members go, for ever: one of them panicked.
    pub(crate) fn abandon(&self) {
        self.broken.store(true, SeqCst);
        self.rouse();
    }

    fn passed(&self, turn: u32) -> bool {
        self.turn.load(SeqCst) != turn || self.broken.load(SeqCst)
    }

    fn wait_turn(&self, turn: u32) {
        for _ in 0..SPINS {
            if self.passed(turn) {
                return;
            }
            std::hint::spin_loop();
        }
        self.sleepers.fetch_add(1, SeqCst);
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        while !self.passed(turn) {
            guard = self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        drop(guard);
        self.sleepers.fetch_sub(1, SeqCst);
    }

    fn rouse(&self) {
        if self.sleepers.load(SeqCst) > 0 {
            // A sleeper that has checked the turn under the lock is waiting once the lock is free.
            drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
            self.wake.notify_all();
        }
    }
}

impl Member<'_> {
    pub(crate) fn barrier(&self) {
        self.barrier.wait();
    }

    /// This member's part of `items`, each worth `work` multiply-adds. Small jobs go to the first member.
    pub(crate) fn share(&self, items: usize, work: usize) -> Range<usize> {
        self.share_by(items, work, 1)
    }

    /// As [`Member::share`], in multiples of `grain` items.
    pub(crate) fn share_by(&self, items: usize, work: usize, grain: usize) -> Range<usize> {
        if self.count == 1 || items.saturating_mul(work) < WORK_MIN {
            return if self.index == 0 { 0..items } else { 0..0 };
        }
        let grains = items.div_ceil(grain);
        let edge = |index: usize| (grains * index / self.count * grain).min(items);
        edge(self.index)..edge(self.index + 1)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn shares_cover_every_item_once() {
        let barrier = Barrier::new(3);
        for (items, grain) in [(0, 1), (1, 1), (7, 1), (100, 6), (13, 16)] {
            let mut next = 0;
            for index in 0..3 {
                let share = Member { index, count: 3, barrier: &barrier }.share_by(items, 1_000_000, grain);
                assert!(share.is_empty() || share.start == next, "{items} by {grain}");
                next = next.max(share.end);
            }
            assert_eq!(next, items);
        }
    }

    #[test]
    fn members_meet_at_every_turn_whether_they_spin_or_sleep() {
        let barrier = Barrier::new(2);
        let counter = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for index in 0..2 {
                let (barrier, counter) = (&barrier, &counter);
                scope.spawn(move || {
                    for turn in 0..200 {
                        while index == 0 && turn % 50 == 0 && barrier.sleepers.load(SeqCst) == 0 {
                            std::thread::yield_now();
                        }
                        counter.fetch_add(1, SeqCst);
                        barrier.wait();
                        assert_eq!(counter.load(SeqCst), 2 * (turn + 1));
                        barrier.wait();
                    }
                });
            }
        });
    }

    #[test]
    fn a_member_that_panicked_releases_the_others() {
        let barrier = Barrier::new(2);
        std::thread::scope(|scope| {
            let waiter = scope
                .spawn(|| std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| barrier.wait())).is_err());
            while barrier.sleepers.load(SeqCst) == 0 {
                std::thread::yield_now();
            }
            barrier.abandon();
            assert!(waiter.join().unwrap_or(false));
        });
    }
}
