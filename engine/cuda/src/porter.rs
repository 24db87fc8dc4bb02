//! A thread beside the engine's that takes what is large out of launches that have landed.

use std::io;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;

/// Loads that may wait: more than a lane has launches in flight.
const WAITING_MAX: usize = 16;

/// Takes memory out and says so.
pub(crate) type Load = Box<dyn FnOnce() + Send>;

enum Order {
    Carry(Load),
    End,
}

/// Gives loads to the thread. Clones serve from any thread.
#[derive(Clone)]
pub(crate) struct Hatch(SyncSender<Order>);

pub(crate) struct Porter {
    hatch: Hatch,
    thread: Option<JoinHandle<()>>,
}

impl Hatch {
    /// Does the work here where the porter is behind. One that has ended took its backend's memory along: then there is
    /// nothing to carry, and nobody to tell.
    pub(crate) fn give(&self, load: Load) {
        if let Err(TrySendError::Full(Order::Carry(load))) = self.0.try_send(Order::Carry(load)) {
            load();
        }
    }
}

impl Porter {
    pub(crate) fn start(name: &str) -> io::Result<Self> {
        let (hatch, orders) = sync_channel(WAITING_MAX);
        let body = move || {
            while let Ok(Order::Carry(load)) = orders.recv() {
                load();
            }
        };
        let thread = std::thread::Builder::new().name(format!("voxlane-{name}")).spawn(body)?;
        Ok(Self { hatch: Hatch(hatch), thread: Some(thread) })
    }

    pub(crate) fn hatch(&self) -> Hatch {
        self.hatch.clone()
    }
}

impl Drop for Porter {
    /// What was given is carried; nothing may be given from here on.
    fn drop(&mut self) {
        let _ = self.hatch.0.send(Order::End);
        // One that panicked carries nothing more.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn whatever_is_given_is_carried_before_it_ends_however_much_waits() {
        let carried = Arc::new(AtomicUsize::new(0));
        let porter = Porter::start("porter").expect("a thread");
        let hatch = porter.hatch();
        for _ in 0..10 * WAITING_MAX {
            let carried = Arc::clone(&carried);
            hatch.give(Box::new(move || {
                carried.fetch_add(1, Ordering::SeqCst);
            }));
        }
        drop(porter);
        assert_eq!(carried.load(Ordering::SeqCst), 10 * WAITING_MAX);
    }
}
