//! Places for connections: one bound on all that are open, whatever they have become.
//!
//! A connection holds its place for as long as its bytes can come. HTTP lets go of one that became a WebSocket,
//! so the place goes with the bytes and not with whoever reads them.

use std::io::IoSlice;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::metrics::{Metrics, OpenConnection};

/// Connections that are told, at once, that every place is taken. More wait in the kernel.
const TOLD_AT_ONCE: usize = 64;

/// The places of one server, shared by its public listeners.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    open: Arc<Semaphore>,
    told: Arc<Semaphore>,
}

/// One connection's place.
pub(crate) struct Place {
    _permit: OwnedSemaphorePermit,
    _counted: Option<OpenConnection>,
}

/// A turn to be told that there is no place, or to find that there is one.
pub(crate) struct Turn(OwnedSemaphorePermit);

impl Places {
    pub(crate) fn new(connections_max: usize) -> Self {
        Self { open: Arc::new(Semaphore::new(connections_max)), told: Arc::new(Semaphore::new(TOLD_AT_ONCE)) }
    }

    /// Waits for a turn: taken before the connection is, so that what can be neither served nor told costs no
    /// memory.
    pub(crate) async fn turn(&self) -> Turn {
        let turn = Arc::clone(&self.told).acquire_owned().await;
        Turn(turn.expect("nobody closes it"))
    }

    /// A place for a connection that has come, counted where there are metrics.
    ///
    /// # Errors
    /// The turn, when every place is taken.
    pub(crate) fn take(&self, turn: Turn, metrics: Option<&Metrics>) -> Result<Place, Turn> {
        match Arc::clone(&self.open).try_acquire_owned() {
            Ok(permit) => {
                drop(turn.0);
                Ok(Place { _permit: permit, _counted: metrics.map(Metrics::connected) })
            }
            Err(_) => Err(turn),
        }
    }

    pub(crate) fn has_room(&self) -> bool {
        self.open.available_permits() > 0
    }
}

/// A connection's bytes with its place.
pub(crate) struct Placed<S> {
    bytes: S,
    _place: Option<Place>,
}

impl<S> Placed<S> {
    pub(crate) const fn new(bytes: S, place: Option<Place>) -> Self {
        Self { bytes, _place: place }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Placed<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.bytes).poll_read(context, into)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Placed<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.bytes).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.bytes).poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.bytes.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.bytes).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.bytes).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_place_comes_back_when_the_bytes_are_let_go_of_and_not_before() {
        let places = Places::new(1);
        let place = places.take(places.turn().await, None).ok().expect("a place");
        let placed = Placed::new(tokio::io::empty(), Some(place));
        assert!(!places.has_room());
        let turned_away = places.take(places.turn().await, None).err().expect("no second place");
        let moved: Box<dyn AsyncRead> = Box::new(placed);
        assert!(!places.has_room(), "whoever reads the bytes has the place");
        drop(moved);
        assert!(places.take(turned_away, None).is_ok(), "a turn finds what has become free");
    }

    #[tokio::test]
    async fn no_more_are_told_at_once_than_are_meant_to_be() {
        let places = Places::new(1);
        let mut turns = Vec::new();
        for _ in 0..TOLD_AT_ONCE {
            turns.push(places.turn().await);
        }
        let waits = std::time::Duration::from_millis(20);
        assert!(tokio::time::timeout(waits, places.turn()).await.is_err(), "the next one waits");
        turns.pop();
        assert!(tokio::time::timeout(waits, places.turn()).await.is_ok());
    }
}
