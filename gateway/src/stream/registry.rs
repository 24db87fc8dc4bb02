//! Places for sessions, and the way back to one whose socket was lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use dashmap::DashMap;
use proto::wire::Received;
use tokio::sync::mpsc;

use super::socket::Socket;

/// Sessions this process serves.
#[derive(Debug)]
pub(crate) struct Registry {
    live: Arc<AtomicUsize>,
    max: usize,
    /// By resume token and owner. No guard of it is ever held across an await.
    sessions: DashMap<String, mpsc::Sender<Box<Attach>>>,
}

/// A new socket for a session that has lost its own.
#[derive(Debug)]
pub(super) struct Attach {
    pub(super) socket: Socket,
    pub(super) received: Vec<Received>,
    /// When the token of the new socket ends.
    pub(super) token_end: contract::Tick,
}

/// One session's place; dropping it gives the place back.
#[derive(Debug)]
pub(crate) struct Place {
    live: Arc<AtomicUsize>,
}

impl Registry {
    pub(crate) fn new(max: usize) -> Self {
        Self { live: Arc::new(AtomicUsize::new(0)), max, sessions: DashMap::new() }
    }

    /// A place, if one is free.
    pub(crate) fn enter(&self) -> Option<Place> {
        let taken = self.live.fetch_add(1, Ordering::Relaxed);
        let place = Place { live: Arc::clone(&self.live) };
        // Dropping the place gives it back.
        (taken < self.max).then_some(place)
    }

    pub(crate) fn live(&self) -> usize {
        self.live.load(Ordering::Relaxed)
    }

    pub(crate) fn has_room(&self) -> bool {
        self.live() < self.max
    }

    /// Makes a session reachable by its token. Each session has one token at a time, so the map is as
    /// bounded as the places are.
    pub(super) fn announce(&self, token: String, door: mpsc::Sender<Box<Attach>>) {
        self.sessions.insert(token, door);
    }

    pub(super) fn withdraw(&self, token: &str) {
        self.sessions.remove(token);
    }

    /// Hands a socket to the session with this token, whose token is void from then on.
    ///
    /// # Errors
    /// The socket, when there is no such session.
    pub(super) fn attach(&self, token: &str, attach: Attach) -> Result<(), Attach> {
        let Some((_, door)) = self.sessions.remove(token) else { return Err(attach) };
        door.try_send(Box::new(attach)).map_err(|error| match error {
            mpsc::error::TrySendError::Closed(attach) | mpsc::error::TrySendError::Full(attach) => *attach,
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.live.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_bounded_and_come_back() {
        let registry = Registry::new(2);
        let first = registry.enter();
        let second = registry.enter();
        assert!(first.is_some() && second.is_some() && registry.enter().is_none());
        assert!(!registry.has_room());
        drop(first);
        assert!(registry.enter().is_some());
        drop(second);
        assert_eq!(registry.live(), 0);
    }
}
