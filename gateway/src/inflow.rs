//! What has come over a WebSocket and is no whole message yet. The library gathers a message before anyone can look
//! at it, and one may be 16 MiB: so bytes are counted where they are read, beside bodies and within the same room.

use std::io::IoSlice;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use axum::extract::FromRequestParts;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::http::request::Parts;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::bodies::{Bodies, Room};

/// What a message may have brought without taking room: ordinary ones are far smaller.
const FREE_BYTES: usize = 64 * 1_024;

/// One connection's, shared by whoever reads its bytes and whoever takes its messages.
#[derive(Clone, Debug)]
pub(crate) struct Inflow(Arc<Mutex<Unread>>);

#[derive(Debug)]
struct Unread {
    bodies: Arc<Bodies>,
    /// Whether these are messages: what HTTP reads is counted there.
    messages: bool,
    /// Bytes since the last whole message.
    bytes: usize,
    room: Option<Room>,
    refused: bool,
}

/// There was no room for a message.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("too many messages are being sent at once")]
pub(crate) struct NoRoom;

impl Inflow {
    pub(crate) fn new(bodies: &Arc<Bodies>) -> Self {
        let bodies = Arc::clone(bodies);
        Self(Arc::new(Mutex::new(Unread { bodies, messages: false, bytes: 0, room: None, refused: false })))
    }

    /// From now on messages come.
    pub(crate) fn expect_messages(&self) {
        self.with(|unread| unread.messages = true);
    }

    /// # Errors
    /// No room for so many bytes more. There is none from then on: the message cannot be gone on with.
    pub(crate) fn came(&self, bytes: usize) -> Result<(), NoRoom> {
        self.with(|unread| {
            if !unread.messages {
                return Ok(());
            }
            unread.bytes += bytes;
            if unread.bytes > FREE_BYTES && !unread.refused {
                let bodies = &unread.bodies;
                let more = if unread.room.is_some() { bytes } else { unread.bytes };
                unread.refused = unread.room.get_or_insert_with(|| bodies.room()).take(more).is_err();
            }
            if unread.refused { Err(NoRoom) } else { Ok(()) }
        })
    }

    /// A message is whole: the room that it takes until it has been handled.
    pub(crate) fn whole(&self) -> Option<Room> {
        self.with(|unread| {
            unread.bytes = 0;
            unread.room.take()
        })
    }

    /// A ping or pong of so many bytes has passed: it may stand within a message, and is no part of it.
    pub(crate) fn passed(&self, payload: usize) {
        const HEAD: usize = 6;
        self.with(|unread| unread.bytes = unread.bytes.saturating_sub(payload + HEAD));
    }

    /// Whether there was no room.
    pub(crate) fn refused(&self) -> bool {
        self.with(|unread| unread.refused)
    }

    fn with<T>(&self, what: impl FnOnce(&mut Unread) -> T) -> T {
        what(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A connection's bytes, counted as they come: above TLS, where they are what the peer said.
pub(crate) struct Counted<S> {
    bytes: S,
    inflow: Inflow,
}

impl<S> Counted<S> {
    pub(crate) const fn new(bytes: S, inflow: Inflow) -> Self {
        Self { bytes, inflow }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Counted<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = into.filled().len();
        ready!(Pin::new(&mut self.bytes).poll_read(context, into))?;
        let came = self.inflow.came(into.filled().len() - before);
        Poll::Ready(came.map_err(std::io::Error::other))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Counted<S> {
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

/// A request to become a WebSocket, with what its connection brings.
pub(crate) struct Upgrade {
    pub(crate) socket: WebSocketUpgrade,
    /// None where no listener of ours has accepted the connection.
    pub(crate) inflow: Option<Inflow>,
}

impl<S: Send + Sync> FromRequestParts<S> for Upgrade {
    type Rejection = WebSocketUpgradeRejection;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Self::Rejection> {
        let inflow = parts.extensions.get::<Inflow>().cloned();
        Ok(Self { socket: WebSocketUpgrade::from_request_parts(parts, state).await?, inflow })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_message_takes_room_from_its_beginning_to_when_it_was_handled_and_a_short_one_none() {
        let bodies = Arc::new(Bodies::new(200 * 1_024, 1));
        let (first, second) = (Inflow::new(&bodies), Inflow::new(&bodies));
        first.came(1_000_000).expect("this is HTTP's");
        first.expect_messages();
        second.expect_messages();
        for _ in 0..1_000 {
            first.came(FREE_BYTES).expect("room");
            assert!(first.whole().is_none());
        }
        for _ in 0..10_000 {
            first.came(20).expect("room");
            first.passed(14);
        }
        assert_eq!(bodies.bytes(), 0, "an idle session takes none");
        first.came(FREE_BYTES).expect("room");
        first.came(36 * 1_024).expect("room");
        first.came(6).expect("room, for a ping within it");
        first.passed(0);
        assert_eq!(bodies.bytes(), 101 * 1_024, "all of it");
        let handled = first.whole().expect("it takes room");
        first.came(FREE_BYTES).expect("a short one");
        second.came(99 * 1_024).expect("room");
        assert!(second.came(1_024).is_err() && second.refused() && !first.refused());
        drop(handled);
        assert!(second.came(1).is_err(), "it lacks what did not come");
        assert_eq!(bodies.bytes(), 99 * 1_024, "what came is still there");
        drop(second);
        assert_eq!(bodies.bytes(), 0);
    }
}
