//! The way into the engine thread: a bounded queue for work, and a way of their own for cancels and
//! playback reports, which are never refused (DESIGN.md section 3, step 4).

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use contract::{ContextId, Playback};

/// What overrides a context's course. At most one entry a context: the latest report wins, a cancel
/// stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Override {
    pub(crate) cancel: bool,
    pub(crate) playback: Option<Playback>,
}

/// Everything that waited since the last look.
#[derive(Debug)]
pub(crate) struct Delivery<M> {
    pub(crate) overrides: BTreeMap<ContextId, Override>,
    pub(crate) messages: VecDeque<M>,
    pub(crate) closing: bool,
}

/// The engine's mailbox. `M` is a message that takes its turn.
#[derive(Debug)]
pub(crate) struct Mailbox<M> {
    inner: Mutex<Inner<M>>,
    arrived: Condvar,
    bound: usize,
}

#[derive(Debug)]
struct Inner<M> {
    messages: VecDeque<M>,
    overrides: BTreeMap<ContextId, Override>,
    /// Places promised and not yet filled.
    reserved: usize,
    /// Set by anything that the engine thread should look at, cleared when it looks.
    knocked: bool,
    closing: bool,
}

/// The mailbox holds `bound` messages already, or the engine has stopped.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refused;

/// A promised place; given back when dropped unfilled.
pub(crate) struct Place<'a, M> {
    mailbox: &'a Mailbox<M>,
}

impl<M> Place<'_, M> {
    pub(crate) fn post(self, message: M) {
        let mut inner = self.mailbox.lock();
        inner.messages.push_back(message);
        self.mailbox.wake(inner);
        // Dropping `self` gives the reservation back: the message itself holds the place from here on.
    }
}

impl<M> Drop for Place<'_, M> {
    fn drop(&mut self) {
        self.mailbox.lock().reserved -= 1;
    }
}

impl<M> Mailbox<M> {
    pub(crate) fn new(bound: usize) -> Self {
        let inner = Inner {
            messages: VecDeque::with_capacity(bound.min(1_024)),
            overrides: BTreeMap::new(),
            reserved: 0,
            knocked: false,
            closing: false,
        };
        Self { inner: Mutex::new(inner), arrived: Condvar::new(), bound }
    }

    /// Takes one place in the queue before the message is made, so that a caller who changes state
    /// to make it (tokenizing text) knows that it will be taken.
    ///
    /// # Errors
    /// [`Refused`] when full or closing.
    pub(crate) fn reserve(&self) -> Result<Place<'_, M>, Refused> {
        let mut inner = self.lock();
        if inner.closing || inner.messages.len() + inner.reserved >= self.bound {
            return Err(Refused);
        }
        inner.reserved += 1;
        Ok(Place { mailbox: self })
    }

    /// Overrides are keyed by open contexts, whose number is bounded where they are opened.
    pub(crate) fn cancel(&self, context: ContextId) {
        let mut inner = self.lock();
        inner.overrides.entry(context).or_default().cancel = true;
        self.wake(inner);
    }

    pub(crate) fn playback(&self, context: ContextId, playback: Playback) {
        let mut inner = self.lock();
        inner.overrides.entry(context).or_default().playback = Some(playback);
        self.wake(inner);
    }

    /// Something outside (a finished launch) wants the engine thread to look.
    pub(crate) fn knock(&self) {
        let inner = self.lock();
        self.wake(inner);
    }

    /// No message is taken from here on; the engine thread is told.
    pub(crate) fn close(&self) {
        let mut inner = self.lock();
        inner.closing = true;
        self.wake(inner);
    }

    pub(crate) fn depth(&self) -> usize {
        self.lock().messages.len()
    }

    /// Parks until something arrives or `longest` has passed, then takes all there is.
    pub(crate) fn collect(&self, longest: Duration) -> Delivery<M> {
        let mut inner = self.lock();
        if !inner.knocked && !longest.is_zero() {
            inner = match self.arrived.wait_timeout_while(inner, longest, |inner| !inner.knocked) {
                Ok((guard, _)) => guard,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
        inner.knocked = false;
        Delivery {
            overrides: std::mem::take(&mut inner.overrides),
            messages: std::mem::take(&mut inner.messages),
            closing: inner.closing,
        }
    }

    fn wake(&self, mut inner: MutexGuard<'_, Inner<M>>) {
        inner.knocked = true;
        drop(inner);
        self.arrived.notify_one();
    }

    /// A poisoned lock is taken all the same: every critical section here leaves the queue whole.
    fn lock(&self) -> MutexGuard<'_, Inner<M>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use contract::Tick;

    use super::*;

    #[test]
    fn a_full_mailbox_refuses_messages_but_hears_cancels_and_reports() {
        let mailbox = Mailbox::new(2);
        mailbox.reserve().expect("room").post(1);
        let promised = mailbox.reserve().expect("room");
        assert!(mailbox.reserve().is_err(), "a promise counts");
        promised.post(2);
        assert!(mailbox.reserve().is_err());
        mailbox.cancel(ContextId(7));
        mailbox.playback(ContextId(7), Playback::Playing { zero: Tick::ZERO });
        let delivery = mailbox.collect(Duration::ZERO);
        assert_eq!(delivery.messages, [1, 2]);
        let override_ = delivery.overrides[&ContextId(7)];
        assert!(override_.cancel && override_.playback.is_some());
    }

    #[test]
    fn a_promise_that_is_not_kept_gives_its_place_back() {
        let mailbox = Mailbox::<u8>::new(1);
        drop(mailbox.reserve().expect("room"));
        assert!(mailbox.reserve().is_ok());
    }

    #[test]
    fn a_knock_wakes_a_parked_thread_and_is_heard_once() {
        let mailbox = std::sync::Arc::new(Mailbox::<u8>::new(1));
        let other = mailbox.clone();
        let parked = std::thread::spawn(move || other.collect(Duration::from_secs(20)).messages.len());
        mailbox.knock();
        assert_eq!(parked.join().expect("no panic"), 0);
        assert!(mailbox.collect(Duration::ZERO).messages.is_empty());
    }

    #[test]
    fn a_closing_mailbox_takes_nothing_more() {
        let mailbox = Mailbox::<u8>::new(4);
        mailbox.close();
        assert!(mailbox.reserve().is_err());
        assert!(mailbox.collect(Duration::ZERO).closing);
    }
}
