//! Places for sessions, and the way back to one whose socket was lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};

use dashmap::DashMap;
use proto::wire::Received;
use tokio::sync::oneshot;

use super::socket::Socket;

/// Sessions this process serves.
#[derive(Debug)]
pub(crate) struct Registry {
    live: Arc<AtomicUsize>,
    max: usize,
    /// By resume token and owner. No guard of it is ever held across an await.
    sessions: DashMap<String, Known>,
    /// Counts losses, so that the oldest is known.
    losses: AtomicU64,
}

/// A session as others reach it.
#[derive(Debug)]
struct Known {
    /// One visit a token: who attaches makes it void, who leaves needs none.
    door: oneshot::Sender<Visit>,
    held: Arc<Held>,
    /// Which loss it was, for a session without a socket.
    lost: Option<u64>,
}

/// Who comes to a session's door.
#[derive(Debug)]
pub(super) enum Visit {
    Attach(Box<Attach>),
    /// The session has lost its socket, and its place is needed: it ends.
    Leave,
}

/// A new socket for a session.
#[derive(Debug)]
pub(super) struct Attach {
    pub(super) socket: Socket,
    pub(super) received: Vec<Received>,
    /// When the token of the new socket ends.
    pub(super) token_end: contract::Tick,
}

/// One session's place; dropping it gives the place back, unless another has taken it over.
#[derive(Debug)]
pub(crate) struct Place {
    held: Arc<Held>,
}

/// Whose a place is. It changes hands at most once.
#[derive(Debug)]
struct Held {
    live: Arc<AtomicUsize>,
    state: AtomicU8,
}

const TAKEN: u8 = 0;
const HANDED_OVER: u8 = 1;
const GIVEN_BACK: u8 = 2;

impl Registry {
    pub(crate) fn new(max: usize) -> Self {
        let live = Arc::new(AtomicUsize::new(0));
        Self { live, max, sessions: DashMap::new(), losses: AtomicU64::new(0) }
    }

    /// A place. When all are taken, the session that lost its socket longest ago makes room; `None` when
    /// every session has its socket.
    pub(crate) fn enter(&self) -> Option<Place> {
        loop {
            let taken = self.live.fetch_update(Ordering::AcqRel, Ordering::Acquire, |live| {
                (live < self.max).then_some(live + 1)
            });
            if taken.is_ok() {
                return Some(self.place());
            }
            let evicted = self.evict()?;
            if evicted.held.change(HANDED_OVER) {
                // The count stays: the place has only changed hands. A door that takes nothing is that of
                // a session which is ending anyway.
                drop(evicted.door.send(Visit::Leave));
                return Some(self.place());
            }
            // It has just ended by itself, and its place is free: look again.
        }
    }

    pub(crate) fn live(&self) -> usize {
        self.live.load(Ordering::Acquire)
    }

    pub(crate) fn has_room(&self) -> bool {
        self.live() < self.max || self.sessions.iter().any(|known| known.lost.is_some())
    }

    /// Makes a session reachable by its token, for one visit. Each session has one token at a time, so the map
    /// is as bounded as the places are.
    pub(super) fn announce(&self, token: String, place: &Place) -> oneshot::Receiver<Visit> {
        let (door, visit) = oneshot::channel();
        self.sessions.insert(token, Known { door, held: Arc::clone(&place.held), lost: None });
        visit
    }

    pub(super) fn withdraw(&self, token: &str) {
        self.sessions.remove(token);
    }

    /// Notes that the session with this token has no socket: until it has one again it may be evicted.
    pub(super) fn lose(&self, token: &str) {
        if let Some(mut known) = self.sessions.get_mut(token) {
            known.lost = Some(self.losses.fetch_add(1, Ordering::Relaxed));
        }
    }

    /// Hands a socket to the session with this token, which is void from then on.
    ///
    /// # Errors
    /// The socket, when there is no such session.
    pub(super) fn attach(&self, token: &str, attach: Attach) -> Result<(), Attach> {
        let Some((_, known)) = self.sessions.remove(token) else { return Err(attach) };
        known.door.send(Visit::Attach(Box::new(attach))).map_err(|visit| match visit {
            Visit::Attach(attach) => *attach,
            // What comes back is what was sent.
            Visit::Leave => unreachable!("an attachment was sent"),
        })
    }

    /// Takes the oldest lost session out of the map.
    fn evict(&self) -> Option<Known> {
        loop {
            let lost = self.sessions.iter().filter_map(|known| Some((known.lost?, known.key().clone())));
            let (loss, token) = lost.min()?;
            // It may have found a socket meanwhile; then the next oldest is looked for.
            if let Some((_, known)) = self.sessions.remove_if(&token, |_, known| known.lost == Some(loss)) {
                return Some(known);
            }
        }
    }

    fn place(&self) -> Place {
        let held = Held { live: Arc::clone(&self.live), state: AtomicU8::new(TAKEN) };
        Place { held: Arc::new(held) }
    }
}

impl Held {
    /// Whether the place was taken until now.
    fn change(&self, state: u8) -> bool {
        self.state.compare_exchange(TAKEN, state, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.held.change(GIVEN_BACK) {
            self.held.live.fetch_sub(1, Ordering::AcqRel);
        }
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

    #[test]
    fn a_full_house_evicts_the_session_that_was_lost_longest_ago_and_nobody_else() {
        let registry = Registry::new(3);
        let mut doors = Vec::new();
        let places: Vec<Place> = ["a", "b", "c"]
            .iter()
            .map(|token| {
                let place = registry.enter().expect("room");
                doors.push(registry.announce((*token).to_owned(), &place));
                place
            })
            .collect();
        assert!(registry.enter().is_none());
        registry.lose("b");
        registry.lose("a");
        assert!(registry.has_room());
        let fourth = registry.enter().expect("b makes room");
        assert!(matches!(doors[1].try_recv(), Ok(Visit::Leave)));
        let fifth = registry.enter().expect("a makes room");
        assert!(matches!(doors[0].try_recv(), Ok(Visit::Leave)));
        assert!(doors[2].try_recv().is_err());
        assert!(registry.enter().is_none(), "c has its socket");
        assert_eq!(registry.live(), 3);
        // Whatever the order in which the five end, the count comes to nothing.
        drop(fourth);
        drop(places);
        drop(fifth);
        assert_eq!(registry.live(), 0);
    }

    #[test]
    fn a_lost_session_that_ends_by_itself_is_not_counted_twice() {
        let registry = Registry::new(1);
        let place = registry.enter().expect("room");
        let _visit = registry.announce("a".to_owned(), &place);
        registry.lose("a");
        // Its task has let go of the place, and has not yet withdrawn its token.
        drop(place);
        let next = registry.enter().expect("room");
        assert_eq!(registry.live(), 1);
        drop(next);
        assert_eq!(registry.live(), 0);
    }
}
