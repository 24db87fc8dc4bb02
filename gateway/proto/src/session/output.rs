//! What a session tells its driver to do, and the queue that keeps it.

use std::collections::VecDeque;

use bytes::Bytes;
use contract::{Epoch, OpenContext, Playback, Span, Tick};

use crate::alignment::TimedCharacter;
use crate::dialect::{Dialect, Event, Step};
use crate::pacer::Packet;
use crate::quota::Level;
use crate::wire::{
    CloseCode, ErrorMessage, Flags, HEADER_BYTES, Header, Received, ServerMessage, Speed, WireCodec,
    WireError,
};

/// Names one epoch of one context on the wire. Each has an engine context and an encoder of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EpochKey {
    pub context: u16,
    pub epoch: Epoch,
}

/// One thing to do. The driver does them in order.
#[derive(Clone, Debug)]
pub enum Output {
    /// Close the WebSocket (when there is one) and drop the session: nothing follows. Engine contexts
    /// that are open were cancelled before; one whose `Open` is not answered yet is the driver's to cancel.
    Close { code: CloseCode },
    /// Hand to the encoding pool; jobs of one epoch run in order, each answered by
    /// [`crate::session::Session::handle_encoded`] except [`EncodeWork::Forget`].
    Encode(EncodeJob),
    /// Call the engine.
    Engine(EngineCommand),
    /// Count what the session has said, whatever its words on the wire were.
    Said(Said),
    /// Decode and judge a clip, then [`super::Session::handle_reference`].
    Reference(Box<super::ReferenceJob>),
    /// Look for the lost session with this token and attach this connection to it
    /// ([`crate::session::Session::handle_attach`] on the found one, dropping this session), else call
    /// [`crate::session::Session::handle_resume_refused`].
    Resume { token: String, received: Vec<Received> },
    /// Write a binary message.
    SendBinary(Bytes),
    /// Write a WebSocket ping with these eight bytes.
    SendPing([u8; 8]),
    /// Write a text message.
    SendText(String),
}

/// Something said that is worth counting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    Error {
        code: String,
    },
    /// A packet left; `last` of its epoch. `bytes` is its size on the native wire.
    Packet {
        key: EpochKey,
        last: bool,
        bytes: usize,
    },
}

/// A call of [`contract::EngineHandle`]. All but `Cancel` and `Playback` are answered by
/// [`crate::session::Session::handle_reply`] before anything else is asked of the same epoch.
#[derive(Clone, Debug)]
pub enum EngineCommand {
    Cancel {
        key: EpochKey,
    },
    EndSegment {
        key: EpochKey,
    },
    Finish {
        key: EpochKey,
    },
    /// Open a fresh engine context and keep it under `key`; its sink leads to
    /// [`crate::session::Session::handle_engine`] with the same key.
    Open {
        key: EpochKey,
        request: Box<OpenContext>,
    },
    Playback {
        key: EpochKey,
        playback: Playback,
    },
    PushText {
        key: EpochKey,
        text: String,
    },
    ReleaseTail {
        key: EpochKey,
    },
}

/// Work for the encoding pool.
#[derive(Clone, Debug, PartialEq)]
pub struct EncodeJob {
    pub key: EpochKey,
    pub format: AudioFormat,
    pub work: EncodeWork,
}

/// What to do with an epoch's encoder, which the first job makes.
#[derive(Clone, Debug, PartialEq)]
pub enum EncodeWork {
    /// Flush, answer with what is left and `last`, drop the encoder.
    Finish,
    /// Drop the encoder; no answer.
    Forget,
    /// Encode; answer with the packets that are whole.
    Samples(Box<[f32]>),
}

/// From what to what an encoder goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AudioFormat {
    pub codec: WireCodec,
    /// Hertz of the samples given.
    pub model_rate: u32,
    /// Hertz of samples on the wire, or Opus' input rate.
    pub wire_rate: u32,
    /// Loudness to come near to, in LUFS.
    pub loudness: Option<i8>,
    pub speed: Speed,
}

impl AudioFormat {
    /// Hertz at which the samples given are heard: positions of the listener's stream follow from it.
    #[must_use]
    pub fn heard_rate(self) -> u32 {
        self.speed.heard_rate(self.model_rate)
    }
}

/// An answer of the encoding pool. The durations of an epoch's packets sum to its samples at 48 kHz
/// plus the encoder's pre-skip.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Encoded {
    pub packets: Vec<Packet>,
    /// The answer to [`EncodeWork::Finish`].
    pub last: bool,
}

/// Marks of sent bytes are merged within this time, so that their number stays small.
const MARK_INTERVAL: Span = Span::from_millis(100);

/// Outputs that wait for `poll_output`, and bytes that wait for the socket.
#[derive(Debug)]
pub(super) struct Outbox {
    session: String,
    dialect: Box<dyn Dialect>,
    /// Steps of the dialect that act on the session, and are due when it has done what it is at.
    steps: VecDeque<Step>,
    queue: VecDeque<Output>,
    /// Whether there is a socket.
    attached: bool,
    closed: bool,
    /// Bytes ever sent, and ever taken by the socket.
    sent: u64,
    written: u64,
    /// `(sent, when)` for what was not taken, oldest first.
    marks: VecDeque<(u64, Tick)>,
    requests: u64,
}

impl Outbox {
    pub(super) fn new(session: String, dialect: Box<dyn Dialect>) -> Self {
        Self {
            session,
            dialect,
            steps: VecDeque::new(),
            queue: VecDeque::new(),
            attached: true,
            closed: false,
            sent: 0,
            written: 0,
            marks: VecDeque::new(),
            requests: 0,
        }
    }

    pub(super) fn pop(&mut self) -> Option<Output> {
        self.queue.pop_front()
    }

    pub(super) fn session(&self) -> &str {
        &self.session
    }

    pub(super) const fn is_attached(&self) -> bool {
        self.attached
    }

    pub(super) const fn is_closed(&self) -> bool {
        self.closed
    }

    /// Bytes sent and not taken by the socket.
    pub(super) const fn unwritten(&self) -> u64 {
        self.sent - self.written
    }

    /// When the oldest byte that was not taken was sent.
    pub(super) fn oldest_unwritten(&self) -> Option<Tick> {
        self.marks.front().map(|(_, when)| *when)
    }

    /// Forgets the socket and what was to be written to it.
    pub(super) fn detach(&mut self) {
        self.attached = false;
        self.written = self.sent;
        self.marks.clear();
        self.queue.retain(|output| {
            !matches!(output, Output::SendBinary(_) | Output::SendPing(_) | Output::SendText(_))
        });
    }

    pub(super) fn attach(&mut self) {
        self.attached = true;
    }

    pub(super) fn close(&mut self, code: CloseCode) {
        self.closed = true;
        self.queue.push_back(Output::Close { code });
    }

    /// Ends without a Close: the peer is gone.
    pub(super) fn end(&mut self) {
        self.detach();
        self.closed = true;
    }

    pub(super) fn written(&mut self, bytes: u64) {
        self.written = (self.written + bytes).min(self.sent);
        while self.marks.front().is_some_and(|(sent, _)| *sent <= self.written) {
            self.marks.pop_front();
        }
    }

    pub(super) fn push(&mut self, output: Output) {
        if !self.closed {
            self.queue.push_back(output);
        }
    }

    pub(super) fn engine(&mut self, command: EngineCommand) {
        self.push(Output::Engine(command));
    }

    pub(super) fn send(&mut self, now: Tick, message: &ServerMessage) {
        if let ServerMessage::Error(error) = message
            && self.is_open()
        {
            self.push(Output::Said(Said::Error { code: error.error.code.clone() }));
        }
        self.tell(now, &Event::Message(message));
    }

    pub(super) fn send_packet(&mut self, now: Tick, header: &Header, payload: &Bytes) {
        if self.is_open() {
            let key = EpochKey { context: header.context, epoch: header.epoch };
            let (last, bytes) = (header.flags.contains(Flags::END), HEADER_BYTES + payload.len());
            self.push(Output::Said(Said::Packet { key, last, bytes }));
        }
        self.tell(now, &Event::Packet { header, payload });
    }

    pub(super) fn send_times(&mut self, now: Tick, context: u16, characters: &[TimedCharacter]) {
        if !characters.is_empty() {
            self.tell(now, &Event::Times { context, characters });
        }
    }

    pub(super) fn send_quotas(&mut self, now: Tick, levels: &[Level]) {
        if !levels.is_empty() {
            self.tell(now, &Event::Quotas(levels));
        }
    }

    pub(super) fn send_flush_spoken(&mut self, now: Tick, context: u16) {
        self.tell(now, &Event::FlushSpoken { context });
    }

    /// Every packet that may leave now has left.
    pub(super) fn settle(&mut self, now: Tick) {
        self.tell(now, &Event::Settled);
    }

    pub(super) fn dialect(&self) -> &dyn Dialect {
        &*self.dialect
    }

    /// Lets the dialect speak; what it writes goes out, what it wants of the session waits.
    pub(super) fn with_dialect(&mut self, now: Tick, speak: impl FnOnce(&mut dyn Dialect, &mut Vec<Step>)) {
        let mut steps = Vec::new();
        speak(&mut *self.dialect, &mut steps);
        for step in steps {
            match step {
                Step::Binary(bytes) if self.is_open() => {
                    self.count(now, bytes.len());
                    self.push(Output::SendBinary(bytes));
                }
                Step::Text(text) if self.is_open() => {
                    self.count(now, text.len());
                    self.push(Output::SendText(text));
                }
                Step::Binary(_) | Step::Text(_) => {}
                step => self.steps.push_back(step),
            }
        }
    }

    pub(super) fn has_steps(&self) -> bool {
        !self.steps.is_empty()
    }

    /// The next step of the dialect that acts on the session.
    pub(super) fn next_step(&mut self) -> Option<Step> {
        self.steps.pop_front()
    }

    fn tell(&mut self, now: Tick, event: &Event<'_>) {
        if self.is_open() {
            self.with_dialect(now, |dialect, steps| dialect.handle_event(now, event, steps));
        }
    }

    /// Whether anybody hears.
    const fn is_open(&self) -> bool {
        self.attached && !self.closed
    }

    pub(super) fn send_ping(&mut self, payload: u64) {
        if self.attached {
            self.push(Output::SendPing(payload.to_be_bytes()));
        }
    }

    /// Sends an `error`; gives it a request id.
    pub(super) fn error(
        &mut self,
        now: Tick,
        error: &WireError,
        key: Option<EpochKey>,
        context: Option<u16>,
        id: Option<String>,
    ) {
        self.requests += 1;
        let request_id = format!("{}-{}", self.session, self.requests);
        let message = ServerMessage::Error(ErrorMessage {
            error: error.object(request_id),
            context: key.map(|key| key.context).or(context),
            epoch: key.map(|key| key.epoch.0),
            id,
        });
        self.send(now, &message);
    }

    fn count(&mut self, now: Tick, bytes: usize) {
        self.sent += bytes as u64;
        match self.marks.back_mut() {
            Some((sent, when)) if now.since(*when) < MARK_INTERVAL => *sent = self.sent,
            _ => self.marks.push_back((self.sent, now)),
        }
    }
}
