//! A connection that can be left alone for a while.
//!
//! A socket that a runtime watches wakes it for every packet, also when nobody waits for one. A listener with
//! plenty in hand looks at its socket a few times a second; between looks the socket is not watched at all, so
//! that thousands of streams cost what they are looked at and not what arrives.

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// What arrives wakes whoever waits.
const WATCHED: u8 = 0;
/// What has arrived is taken; nothing wakes anybody.
const LOOKED_AT: u8 = 1;
/// As [`LOOKED_AT`], and all that had arrived has been taken.
const EMPTY: u8 = 2;

/// How its listener attends to a [`GlanceStream`].
#[derive(Clone, Debug, Default)]
pub(super) struct Glance(Arc<AtomicU8>);

impl Glance {
    /// Takes what has arrived. A read that finds nothing more is pending, and nothing wakes it.
    pub(super) fn look(&self) {
        self.0.store(LOOKED_AT, Relaxed);
    }

    /// Waits for what arrives, as any stream does.
    pub(super) fn watch(&self) {
        self.0.store(WATCHED, Relaxed);
    }
}

/// A TCP connection; watched unless its [`Glance`] says otherwise.
#[derive(Debug)]
pub(super) struct GlanceStream {
    socket: Option<Socket>,
    glance: Glance,
}

#[derive(Debug)]
enum Socket {
    /// Known to the runtime.
    Watched(TcpStream),
    Alone(std::net::TcpStream),
}

impl GlanceStream {
    pub(super) const fn new(stream: TcpStream, glance: Glance) -> Self {
        Self { socket: Some(Socket::Watched(stream)), glance }
    }

    fn watched(&mut self) -> Result<&mut TcpStream> {
        let stream = match self.socket.take().ok_or_else(gone)? {
            Socket::Watched(stream) => stream,
            Socket::Alone(stream) => TcpStream::from_std(stream)?,
        };
        match self.socket.insert(Socket::Watched(stream)) {
            Socket::Watched(stream) => Ok(stream),
            Socket::Alone(_) => Err(gone()),
        }
    }

    fn alone(&mut self) -> Result<&mut std::net::TcpStream> {
        let stream = match self.socket.take().ok_or_else(gone)? {
            Socket::Watched(stream) => stream.into_std()?,
            Socket::Alone(stream) => stream,
        };
        match self.socket.insert(Socket::Alone(stream)) {
            Socket::Alone(stream) => Ok(stream),
            Socket::Watched(_) => Err(gone()),
        }
    }
}

/// The runtime would not take a socket, or give it back.
fn gone() -> Error {
    Error::from(ErrorKind::NotConnected)
}

impl AsyncRead for GlanceStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        let this = self.get_mut();
        match this.glance.0.load(Relaxed) {
            WATCHED => return Pin::new(this.watched()?).poll_read(cx, buffer),
            EMPTY => return Poll::Pending,
            _ => {}
        }
        loop {
            let room = buffer.initialize_unfilled();
            match this.alone()?.read(room) {
                Ok(count) => {
                    if count < room.len() {
                        this.glance.0.store(EMPTY, Relaxed);
                    }
                    buffer.advance(count);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    this.glance.0.store(EMPTY, Relaxed);
                    return Poll::Pending;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for GlanceStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        let this = self.get_mut();
        while let Some(Socket::Alone(stream)) = &mut this.socket {
            match stream.write(bytes) {
                // Somebody must tell when there is room again.
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                written => return Poll::Ready(written),
            }
        }
        Pin::new(this.watched()?).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(self.get_mut().watched()?).poll_shutdown(cx)
    }
}
