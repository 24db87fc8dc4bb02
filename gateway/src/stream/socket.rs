//! The two tasks at a WebSocket's ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use axum::extract::ws::{CloseFrame, Message, WebSocket};
use bytes::Bytes;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use proto::wire::CloseCode;
use tokio::sync::{Notify, mpsc};
use tokio_tungstenite::tungstenite;

use crate::bodies::Room;
use crate::drain::Guard;
use crate::inflow::Inflow;

/// Messages read and not yet handled: a message can be 256 KiB, so few are enough to bound memory.
pub(super) const EVENTS: usize = 8;

/// Messages that wait for the socket. Their bytes are bounded by the session's own limits.
const OUTGOING: usize = 8_192;

/// Messages put onto a socket at once, at most.
const BATCH: usize = 32;

/// Time a peer gets to take a Close frame and answer it.
const CLOSE_LINGER: Duration = Duration::from_secs(2);

/// Time a slow reader gets for the same, as what waits before the Close must go first.
const SLOW_READER_LINGER: Duration = Duration::from_secs(10);

/// What came off a socket.
#[derive(Debug)]
pub(super) enum Event {
    Binary(Bytes),
    /// The peer sent a Close frame.
    Closed,
    /// The socket ended without one.
    Lost,
    /// A message for which there was no room.
    NoRoom,
    Ping,
    Pong(Bytes),
    Text(axum::extract::ws::Utf8Bytes),
    /// A message or frame over the limit.
    TooBig,
    /// Bytes that are no WebSocket.
    Violation,
}

/// An event, and the room that its message takes until it has been handled.
#[derive(Debug)]
pub(super) struct Came {
    pub(super) event: Event,
    pub(super) room: Option<Room>,
}

/// What goes onto it.
#[derive(Debug)]
pub(super) enum Outgoing {
    Binary(Bytes),
    /// Nothing follows.
    Close(CloseCode),
    Ping([u8; 8]),
    Text(String),
}

/// One connection, as the drive holds it. It can move from one session to another. Messages travel in boxes:
/// a channel takes room for 32 of them when it is made, and an idle session should be small.
#[derive(Debug)]
pub(super) struct Socket {
    events: mpsc::Receiver<Box<Came>>,
    outgoing: mpsc::Sender<Box<Outgoing>>,
    shared: Arc<Shared>,
    seen: u64,
}

/// What writer and drive tell each other besides messages.
#[derive(Debug, Default)]
struct Shared {
    /// Payload bytes the socket has taken.
    written: AtomicU64,
    changed: Notify,
    /// Give up what waits, and close as a slow reader.
    cut: Notify,
    /// Whether that was asked for.
    slow: AtomicBool,
}

/// What happens at a socket.
#[derive(Debug)]
pub(super) enum Activity {
    Event(Came),
    /// So many more payload bytes were taken.
    Written(u64),
}

/// The queue onto the socket is full, or its writer has ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct NotTaken;

/// Splits a WebSocket and starts both tasks, which hold `guard` until the socket is done with. At most
/// `events` messages are read ahead.
pub(super) fn start(
    websocket: WebSocket,
    inflow: Option<Inflow>,
    events: usize,
    guard: &Arc<Guard>,
) -> Socket {
    if let Some(inflow) = &inflow {
        inflow.expect_messages();
    }
    let (mut sink, mut stream) = websocket.split();
    let (event_sender, events) = mpsc::channel(events.max(1));
    let (outgoing, mut messages) = mpsc::channel(OUTGOING);
    let shared = Arc::new(Shared::default());
    let (reading, writing) = (Arc::clone(guard), Arc::clone(guard));
    // An idle session is mostly these two. They use what they capture where it is: an `async fn` keeps room for
    // its arguments twice. And what comes only at the end has a box of its own.
    let (at_reader, at_writer) = (Arc::clone(&shared), Arc::clone(&shared));
    tokio::spawn(async move {
        let unreadable = take_messages(&mut stream, inflow.as_ref(), &event_sender).await;
        Box::pin(linger(&mut stream, &at_reader, unreadable)).await;
        drop(reading);
    });
    tokio::spawn(async move {
        if let Some(code) = put_messages(&mut sink, &mut messages, &at_writer).await {
            Box::pin(close(&mut sink, code)).await;
        }
        drop(writing);
    });
    Socket { events, outgoing, shared, seen: 0 }
}

impl Socket {
    /// Queues a message; never waits.
    pub(super) fn send(&self, message: Outgoing) -> Result<(), NotTaken> {
        self.outgoing.try_send(Box::new(message)).map_err(|_| NotTaken)
    }

    /// Closes after everything queued, except for a slow reader, who gets nothing more.
    pub(super) fn close(&self, code: CloseCode) {
        if code == CloseCode::SlowReader || self.send(Outgoing::Close(code)).is_err() {
            self.shared.slow.store(true, Ordering::Release);
            self.shared.cut.notify_one();
        }
    }

    /// The next thing that happens at the socket. Nothing is lost when the future is dropped.
    pub(super) async fn next(&mut self) -> Activity {
        loop {
            let changed = self.shared.changed.notified();
            let total = self.shared.written.load(Ordering::Acquire);
            if total > self.seen {
                return Activity::Written(total - std::mem::replace(&mut self.seen, total));
            }
            tokio::select! {
                biased;
                event = self.events.recv() => {
                    return Activity::Event(event.map_or(Came { event: Event::Lost, room: None }, |came| *came));
                }
                () = changed => {}
            }
        }
    }

    /// Whether the writer is gone: nothing sent arrives any more.
    pub(super) fn ended(&self) -> bool {
        self.outgoing.is_closed()
    }

    /// Messages waiting for the socket.
    pub(super) fn depth(&self) -> usize {
        OUTGOING - self.outgoing.capacity()
    }
}

/// Takes messages until the socket ends, or the drive; whether something came that cannot be read.
async fn take_messages(
    stream: &mut SplitStream<WebSocket>,
    inflow: Option<&Inflow>,
    events: &mpsc::Sender<Box<Came>>,
) -> bool {
    loop {
        let item = tokio::select! {
            item = stream.next() => item,
            () = events.closed() => return false,
        };
        let event = match item {
            Some(Ok(Message::Text(text))) => Event::Text(text),
            Some(Ok(Message::Binary(bytes))) => Event::Binary(bytes),
            Some(Ok(Message::Ping(payload))) => {
                inflow.inspect(|inflow| inflow.passed(payload.len()));
                Event::Ping
            }
            Some(Ok(Message::Pong(payload))) => {
                inflow.inspect(|inflow| inflow.passed(payload.len()));
                Event::Pong(payload)
            }
            Some(Ok(Message::Close(_))) => Event::Closed,
            Some(Err(_)) if inflow.is_some_and(Inflow::refused) => Event::NoRoom,
            Some(Err(error)) => judge(error),
            None => Event::Lost,
        };
        let unreadable = matches!(event, Event::NoRoom | Event::TooBig | Event::Violation);
        let last = unreadable || matches!(event, Event::Closed | Event::Lost);
        // What could not be read whole is there until the socket has gone.
        let room = match (inflow, &event) {
            (Some(inflow), Event::Text(_) | Event::Binary(_)) => inflow.whole(),
            _ => None,
        };
        // A drive that has ended wants no more.
        if events.send(Box::new(Came { event, room })).await.is_err() || last {
            return unreadable;
        }
    }
}

/// Keeps the socket open until the peer can have seen its Close. After one of the peer's it polls on, so that
/// the library answers it.
async fn linger(stream: &mut SplitStream<WebSocket>, shared: &Shared, unreadable: bool) {
    if unreadable {
        // The rest of what came stays unread, and closing over it would reset the connection before the
        // peer has seen the Close: the socket stays open for a while.
        return tokio::time::sleep(CLOSE_LINGER).await;
    }
    let rest = async { while stream.next().await.is_some_and(|item| item.is_ok()) {} };
    // A peer that goes on talking is left to the writer's end of the socket. Until then what it says is
    // read: closing over unread bytes would reset the connection before the peer has seen the Close.
    let slow = shared.slow.load(Ordering::Acquire);
    let linger = if slow { SLOW_READER_LINGER } else { CLOSE_LINGER };
    let _ended = tokio::time::timeout(linger, rest).await;
}

fn judge(error: axum::Error) -> Event {
    let inner = error.into_inner();
    match inner.downcast_ref::<tungstenite::Error>() {
        Some(tungstenite::Error::Capacity(_)) => Event::TooBig,
        Some(tungstenite::Error::Protocol(
            tungstenite::error::ProtocolError::ResetWithoutClosingHandshake,
        )) => Event::Lost,
        Some(tungstenite::Error::Protocol(_) | tungstenite::Error::Utf8(_)) => Event::Violation,
        _ => Event::Lost,
    }
}

/// Puts messages onto the socket until one is a Close, with which it is to be closed, or nobody takes any.
async fn put_messages(
    sink: &mut SplitSink<WebSocket, Message>,
    messages: &mut mpsc::Receiver<Box<Outgoing>>,
    shared: &Shared,
) -> Option<CloseCode> {
    // Grows with the first burst: a session that never speaks needs no room for one.
    let mut batch = Vec::new();
    loop {
        tokio::select! {
            biased;
            () = shared.cut.notified() => return Some(CloseCode::SlowReader),
            _ = messages.recv_many(&mut batch, BATCH) => {}
        }
        if batch.is_empty() {
            // Without a Close: the session moved away, or the peer is gone.
            return None;
        }
        let mut bytes = 0;
        let mut closing = None;
        let putting = async {
            // What waits together leaves together: a burst of packets is not a system call each.
            for message in batch.drain(..) {
                let message = match *message {
                    Outgoing::Binary(payload) => {
                        bytes += payload.len();
                        Message::Binary(payload)
                    }
                    Outgoing::Text(text) => {
                        bytes += text.len();
                        Message::Text(text.into())
                    }
                    Outgoing::Ping(payload) => Message::Ping(Bytes::copy_from_slice(&payload)),
                    Outgoing::Close(code) => {
                        closing = Some(code);
                        break;
                    }
                };
                sink.feed(message).await?;
            }
            sink.flush().await
        };
        tokio::select! {
            put = putting => {
                if put.is_err() {
                    return None;
                }
            }
            // What waits behind a socket that takes nothing is given up.
            () = shared.cut.notified() => return Some(CloseCode::SlowReader),
            () = orphaned(messages) => return None,
        }
        shared.written.fetch_add(bytes as u64, Ordering::Release);
        shared.changed.notify_one();
        if closing.is_some() {
            return closing;
        }
    }
}

/// Resolves some time after the drive has let go of the queue: a peer that is gone takes nothing.
async fn orphaned(messages: &mpsc::Receiver<Box<Outgoing>>) {
    while !messages.is_closed() {
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    tokio::time::sleep(CLOSE_LINGER).await;
}

async fn close(sink: &mut SplitSink<WebSocket, Message>, code: CloseCode) {
    let linger = if code == CloseCode::SlowReader { SLOW_READER_LINGER } else { CLOSE_LINGER };
    let frame = CloseFrame { code: code.code(), reason: code.name().into() };
    let closing = async {
        // A peer that is gone needs no Close.
        if sink.send(Message::Close(Some(frame))).await.is_ok() {
            drop(sink.close().await);
        }
    };
    let _ended = tokio::time::timeout(linger, closing).await;
}
