//! The state machine of one WebSocket: no socket, no clock, no task. What its messages look like is a
//! [`crate::dialect::Dialect`]'s business.
//!
//! The driver calls a `handle_` method for whatever happens (a message, an engine's output, packets from
//! the encoding pool, bytes taken by the socket, a timeout) and after each call drains
//! [`Session::poll_output`] until it is `None`, then waits until [`Session::poll_timeout`] at most.
//! Ids and tokens are given; nothing is drawn here. Discarding a session at any moment is safe, once the
//! engine contexts it opened are cancelled.
//!
//! Gates for what an older epoch made (DESIGN.md section 3, step 12): text waiting here is dropped at the
//! cut; engine outputs and encoded packets are looked up by [`EpochKey`] and dropped when that epoch is
//! not the context's; the pacer is emptied at the cut.

mod attach;
mod config;
mod context;
mod expiry;
mod input;
mod output;
mod reference;
mod replay;
mod timeout;
mod utterance;
mod watch;

use std::collections::BTreeMap;

use contract::{EngineError, Span, TextAccepted, Tick};

pub use config::{Config, Limits};
pub use output::{AudioFormat, EncodeJob, EncodeWork, Encoded, EngineCommand, EpochKey, Output, Said};
pub use reference::{ClipForm, JUDGED_MAX, ReferenceJob};
pub use replay::{REPLAY_AGE_MAX, REPLAY_BYTES_MAX, REPLAY_PACKETS_MAX};
pub use timeout::TimeoutReason;
pub use utterance::TAIL_WAIT;

use crate::dialect::Dialect;
use crate::paces::Paces;
use crate::wire::{CloseCode, Hello, Native, ServerMessage, WireError};
use context::{Context, LettingGo};
use output::Outbox;
use watch::{Pings, Rate};

/// A message of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    Binary(&'a [u8]),
    Text(&'a str),
}

/// What a session has counted since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub messages: u64,
    pub refused: u64,
    /// Messages, outputs and packets of older epochs, dropped.
    pub stale: u64,
    /// `text.append` seen twice.
    pub duplicates: u64,
    pub reports: u64,
    /// Reports with impossible values, or of untrusted listeners.
    pub reports_ignored: u64,
    /// Reports over 20 a second.
    pub reports_dropped: u64,
    /// Underruns that listeners reported.
    pub underruns: u64,
    pub packets: u64,
    /// Packets sent after their listener had run out, as far as is known.
    pub late: u64,
    pub replayed: u64,
}

/// Time an engine has to answer a cancel with `Finished` before the epoch's `end` is sent without it.
const LETTING_GO_MAX: Span = Span::from_millis(10_000);
/// Cancelled epochs that may wait for their engine; further text waits with them.
const LETTING_GO_COUNT_MAX: usize = 32;
/// A peer whose side answers no ping for this long is gone.
const PONG_MAX: Span = Span::from_millis(30_000);
const UNREADABLE_MAX: u32 = 32;
const UNREADABLE_WINDOW: Span = Span::from_millis(10_000);

/// One session.
#[derive(Debug)]
pub struct Session {
    config: Config,
    out: Outbox,
    contexts: BTreeMap<u16, Context>,
    letting_go: BTreeMap<EpochKey, LettingGo>,
    /// Clips given to the driver that it has not judged yet.
    judging: usize,
    /// Greatest context id opened so far.
    highest: Option<u16>,
    hello: Option<Hello>,
    pings: Pings,
    ping_rate: Rate,
    unreadable_rate: Rate,
    /// When the client last said anything.
    heard: Tick,
    /// When the lost connection can no longer be taken up.
    detached_until: Option<Tick>,
    drain_until: Option<Tick>,
    /// Set once the token is over: when what runs must have ended.
    token_until: Option<Tick>,
    /// Whether something is being spoken, and since when a client that reads only then has been reading.
    busy: bool,
    busy_since: Tick,
    paces: Paces,
    counters: Counters,
    now: Tick,
}

impl Session {
    /// A native session on a fresh connection; `ready` is its first output.
    #[must_use]
    pub fn new(now: Tick, config: Config) -> Self {
        Self::with_dialect(now, config, Box::new(Native))
    }

    /// A session on a fresh connection whose client speaks `dialect`; `ready` is its first event.
    #[must_use]
    pub fn with_dialect(now: Tick, config: Config, dialect: Box<dyn Dialect>) -> Self {
        let limits = config.limits;
        let mut session = Self {
            out: Outbox::new(config.session.clone(), dialect),
            contexts: BTreeMap::new(),
            letting_go: BTreeMap::new(),
            judging: 0,
            highest: None,
            hello: None,
            pings: Pings::new(now),
            ping_rate: Rate::new(limits.pings_per_second, Span::from_millis(1_000)),
            unreadable_rate: Rate::new(UNREADABLE_MAX, UNREADABLE_WINDOW),
            heard: now,
            detached_until: None,
            drain_until: None,
            token_until: None,
            busy: false,
            busy_since: Tick::ZERO,
            paces: config.paces.clone(),
            counters: Counters::default(),
            now,
            config,
        };
        let ready = session.ready();
        session.out.send(now, &ready);
        session.advance(now);
        session
    }

    /// A whole message came.
    pub fn handle_message(&mut self, now: Tick, message: Message<'_>) {
        if self.out.is_closed() {
            return;
        }
        self.heard = now;
        self.counters.messages += 1;
        match message {
            Message::Binary(bytes) if bytes.len() > self.config.limits.message_bytes => {
                self.close(CloseCode::TooBig);
            }
            Message::Text(text) if text.len() > self.config.limits.message_bytes => {
                self.close(CloseCode::TooBig);
            }
            Message::Binary(bytes) => {
                self.out.with_dialect(now, |dialect, steps| dialect.handle_binary(now, bytes, steps));
            }
            Message::Text(text) => {
                self.out.with_dialect(now, |dialect, steps| dialect.handle_text(now, text, steps));
            }
        }
        self.take_steps(now);
        self.advance(now);
    }

    /// A WebSocket ping came (the driver's library answers it).
    pub fn handle_ping(&mut self, now: Tick) {
        if self.ping_rate.exceeds(now) {
            self.close(CloseCode::Policy);
        }
        self.advance(now);
    }

    /// A WebSocket pong came.
    pub fn handle_pong(&mut self, now: Tick, payload: &[u8]) {
        let busy = self.is_busy();
        self.pings.handle_pong(now, payload, busy);
        self.advance(now);
    }

    /// The socket took this many payload bytes of what was to be sent.
    pub fn handle_written(&mut self, now: Tick, bytes: usize) {
        self.out.written(bytes as u64);
        self.advance(now);
    }

    /// The engine answered an [`EngineCommand`] other than `Cancel` and `Playback`; `Open` and `Finish`
    /// succeed with [`TextAccepted::default`].
    pub fn handle_reply(&mut self, now: Tick, key: EpochKey, reply: Result<TextAccepted, EngineError>) {
        match self.contexts.get_mut(&key.context) {
            Some(context) if context.utterance.key == key => {
                context.utterance.handle_reply(now, reply, &mut self.out);
            }
            _ => {
                if let Some(letting_go) = self.letting_go.get_mut(&key) {
                    letting_go.utterance.handle_reply(now, reply, &mut self.out);
                }
            }
        }
        self.advance(now);
    }

    /// The engine context of `key` put something out.
    pub fn handle_engine(&mut self, now: Tick, key: EpochKey, output: contract::Output) {
        self.engine_output(now, key, output);
        self.advance(now);
    }

    /// The encoding pool finished a job of `key`.
    pub fn handle_encoded(&mut self, now: Tick, key: EpochKey, encoded: Encoded) {
        match self.contexts.get_mut(&key.context) {
            Some(context) if context.utterance.key == key => {
                context.utterance.handle_encoded(now, encoded, &mut self.out);
            }
            _ => self.counters.stale += encoded.packets.len() as u64,
        }
        self.advance(now);
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Tick) {
        for context in self.contexts.values_mut() {
            context.utterance.handle_timeout(now, &self.pings.link, &mut self.out);
        }
        self.end_idle_contexts(now);
        self.give_up_letting_go(now);
        if self.out.dialect().poll_timeout() <= now {
            self.out.with_dialect(now, |dialect, steps| dialect.handle_timeout(now, steps));
        }
        if let Some((_, code)) = self.deadlines().into_iter().find(|((at, _), _)| *at <= now) {
            self.close(code);
        }
        self.advance(now);
    }

    /// The driver ends the session (a token is over, a quota used up), with the reason if there is one.
    pub fn handle_close(&mut self, now: Tick, code: CloseCode, error: Option<&WireError>) {
        if let Some(error) = error {
            self.out.error(now, error, None, None, None);
        }
        self.close(code);
        self.advance(now);
    }

    /// The server drains: contexts that run may end within `within`, then the session closes.
    pub fn handle_drain(&mut self, now: Tick, reason: &str, within: Span) {
        if self.drain_until.is_none() && !self.out.is_closed() {
            if self.is_busy() {
                let in_ms = u64::try_from(within.as_millis()).unwrap_or(0);
                self.out.send(now, &ServerMessage::Goaway { reason: reason.to_owned(), in_ms });
                self.drain_until = Some(now + within);
            } else {
                self.out.send(now, &ServerMessage::Goaway { reason: reason.to_owned(), in_ms: 0 });
                self.close(CloseCode::Restart);
            }
        }
        self.advance(now);
    }

    /// The next thing to do.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.out.pop()
    }

    /// When to call [`Session::handle_timeout`] at the latest, and why.
    #[must_use]
    pub fn poll_timeout(&self) -> (Tick, TimeoutReason) {
        if self.out.is_closed() {
            return (Tick::NEVER, TimeoutReason::None);
        }
        let mut next = (Tick::NEVER, TimeoutReason::None);
        let mut earlier = |at: Tick, reason: TimeoutReason| {
            if at < next.0 {
                next = (at, reason);
            }
        };
        for context in self.contexts.values() {
            let utterance = &context.utterance;
            earlier(utterance.retry_at(), TimeoutReason::EngineRetry);
            earlier(utterance.dry_at(), TimeoutReason::TailWait);
            earlier(context.idle_at(self.config.limits.context_idle), TimeoutReason::ContextIdle);
            if self.may_send() {
                earlier(context.next_packets(&self.pings.link), TimeoutReason::Pacing);
            }
            if !utterance.ended {
                earlier(utterance.clock.poll_timeout(self.now), TimeoutReason::Reports);
            }
        }
        for letting_go in self.letting_go.values() {
            earlier(letting_go.until, TimeoutReason::LettingGo);
        }
        for ((at, reason), _) in self.deadlines() {
            earlier(at, reason);
        }
        earlier(self.out.dialect().poll_timeout(), TimeoutReason::Dialect);
        if self.out.is_attached() && self.reads() {
            earlier(self.pings.next(), TimeoutReason::Ping);
        }
        next
    }

    /// Whether [`Output::Close`] was given or the peer has left: nothing more will come.
    #[must_use]
    pub const fn is_closed(&self) -> bool {
        self.out.is_closed()
    }

    /// Whether anything is being spoken.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.contexts.values().any(|context| context.utterance.is_live())
    }

    /// How fast the voices of this session speak, as far as is known.
    #[must_use]
    pub const fn paces(&self) -> &Paces {
        &self.paces
    }

    #[must_use]
    pub const fn counters(&self) -> Counters {
        self.counters
    }

    /// Unicode scalar values that the client has sent for an epoch; 0 for one that is gone.
    #[must_use]
    pub fn characters(&self, key: EpochKey) -> u64 {
        let current = self.contexts.get(&key.context).map(|context| &context.utterance);
        let old = self.letting_go.get(&key).map(|letting_go| &letting_go.utterance);
        let utterance = current.filter(|utterance| utterance.key == key).or(old);
        utterance.map_or(0, |utterance| utterance.characters)
    }

    /// 48 kHz samples waiting in the pacers, for the queue-depth metric.
    #[must_use]
    pub fn waiting_samples(&self) -> u64 {
        self.contexts.values().map(|context| context.utterance.pacer.waiting()).sum()
    }

    /// Bytes sent that the socket has not taken.
    #[must_use]
    pub const fn unwritten_bytes(&self) -> u64 {
        self.out.unwritten()
    }

    /// Times at which the session itself ends, and the close code each gives.
    fn deadlines(&self) -> Vec<((Tick, TimeoutReason), CloseCode)> {
        let limits = &self.config.limits;
        let mut deadlines = Vec::with_capacity(4);
        if let Some(at) = self.drain_until {
            deadlines.push(((at, TimeoutReason::Drain), CloseCode::GoingAway));
        }
        if let Some(at) = self.token_until {
            deadlines.push(((at, TimeoutReason::Token), CloseCode::Token));
        }
        if let Some(at) = self.detached_until {
            deadlines.push(((at, TimeoutReason::ResumeWindow), CloseCode::Idle));
            return deadlines;
        }
        if let Some(since) = self.out.oldest_unwritten() {
            deadlines.push(((since + limits.slow_reader, TimeoutReason::SlowReader), CloseCode::SlowReader));
        }
        let reads = self.reads();
        match self.pings.unanswered() {
            Some(_) if !reads => {}
            Some((since, true)) => {
                let at = since.max(self.busy_since) + limits.slow_reader;
                deadlines.push(((at, TimeoutReason::SlowReader), CloseCode::SlowReader));
            }
            Some((since, false)) => {
                let since = since.max(self.busy_since);
                deadlines.push(((since + PONG_MAX, TimeoutReason::Idle), CloseCode::Idle));
            }
            None => {}
        }
        if !self.is_busy() {
            deadlines.push(((self.heard + limits.idle, TimeoutReason::Idle), CloseCode::Idle));
        }
        deadlines
    }

    /// Whether the client can be expected to read, and so to answer pings.
    fn reads(&self) -> bool {
        self.is_busy() || self.out.dialect().reads_when_idle()
    }

    fn may_send(&self) -> bool {
        self.out.is_attached() && self.out.unwritten() < self.config.limits.unwritten_bytes
    }

    /// Does all that can be done now; every `handle_` ends with it.
    fn advance(&mut self, now: Tick) {
        self.now = now;
        loop {
            self.advance_once(now);
            if !self.out.has_steps() {
                return;
            }
            self.take_steps(now);
        }
    }

    fn advance_once(&mut self, now: Tick) {
        if self.out.is_closed() {
            return;
        }
        if self.out.unwritten() > self.config.limits.unwritten_bytes_max {
            self.close(CloseCode::SlowReader);
            return;
        }
        self.send_packets(now);
        let may_open = self.letting_go.len() < LETTING_GO_COUNT_MAX;
        for context in self.contexts.values_mut() {
            let may_open = may_open && context.awaited.is_none();
            context.utterance.pump(&context.target, self.config.tenant, may_open, &mut self.out);
        }
        self.send_spoken(now);
        self.send_ends(now);
        for context in self.contexts.values_mut() {
            context.utterance.tell_playback(now, &self.pings.link, &mut self.out);
        }
        let busy = self.is_busy();
        // A client that did not read until now has its time for answering from here on.
        if busy && !std::mem::replace(&mut self.busy, busy) && !self.out.dialect().reads_when_idle() {
            self.busy_since = now;
        }
        self.busy = busy;
        if busy {
            self.pings.handle_busy(now);
        } else if self.drain_until.is_some() {
            self.close(CloseCode::GoingAway);
            return;
        } else if self.close_without_token() {
            return;
        }
        if self.out.is_attached()
            && self.reads()
            && let Some(number) = self.pings.due(now)
        {
            self.out.send_ping(number);
        }
    }

    /// Lets go of the engine and closes.
    fn close(&mut self, code: CloseCode) {
        if !self.out.is_closed() {
            self.stop_engines();
            self.out.close(code);
        }
    }

    fn stop_engines(&mut self) {
        for context in self.contexts.values_mut() {
            if !context.utterance.ended {
                context.utterance.cut(&mut self.out);
            }
        }
    }
}
