//! Watches over one connection: pings, floods, a peer that goes silent or does not read.

use contract::{Span, Tick};

use crate::link::Link;

/// Interval of the server's own pings while something is spoken, and while nothing is.
const PING_BUSY: Span = Span::from_millis(1_000);
const PING_QUIET: Span = Span::from_millis(15_000);

/// Counts events in windows of fixed length.
#[derive(Clone, Debug)]
pub(super) struct Rate {
    max: u32,
    window: Span,
    began: Tick,
    count: u32,
}

impl Rate {
    pub(super) const fn new(max: u32, window: Span) -> Self {
        Self { max, window, began: Tick::ZERO, count: 0 }
    }

    /// Counts one; whether that is too many.
    pub(super) fn exceeds(&mut self, now: Tick) -> bool {
        if now.since(self.began) >= self.window {
            self.began = now;
            self.count = 0;
        }
        self.count = self.count.saturating_add(1);
        self.count > self.max
    }
}

/// The server's own pings. At most one is under way.
#[derive(Clone, Debug)]
pub(super) struct Pings {
    pub(super) link: Link,
    next: Tick,
    number: u64,
    under_way: Option<(u64, Tick)>,
    /// Packets were sent since the ping under way, or just before it.
    audio: bool,
}

impl Pings {
    pub(super) fn new(now: Tick) -> Self {
        Self { link: Link::new(), next: now, number: 0, under_way: None, audio: false }
    }

    /// A connection begins or is replaced; measurements stay.
    pub(super) fn restart(&mut self, now: Tick) {
        self.next = now;
        self.under_way = None;
        self.audio = false;
    }

    /// The number of a ping to send, if one is due.
    pub(super) fn due(&mut self, now: Tick) -> Option<u64> {
        if self.under_way.is_some() || now < self.next {
            return None;
        }
        self.number += 1;
        self.under_way = Some((self.number, now));
        self.audio = false;
        Some(self.number)
    }

    /// A pong came; unsolicited ones say nothing.
    pub(super) fn handle_pong(&mut self, now: Tick, payload: &[u8], busy: bool) {
        let Some((number, sent)) = self.under_way else { return };
        if payload == number.to_be_bytes() {
            self.under_way = None;
            self.link.record(now.since(sent));
            self.next = sent + if busy { PING_BUSY } else { PING_QUIET };
            self.next = self.next.max(now);
        }
    }

    /// Something begins to be spoken: the quiet interval is over.
    pub(super) fn handle_busy(&mut self, now: Tick) {
        self.next = self.next.min(now + PING_BUSY);
    }

    pub(super) fn handle_audio_sent(&mut self) {
        self.audio = true;
    }

    /// When the next ping is due; never while one is under way.
    pub(super) fn next(&self) -> Tick {
        if self.under_way.is_some() { Tick::NEVER } else { self.next }
    }

    /// Since when a ping waits for its pong, and whether audio went out meanwhile.
    pub(super) fn unanswered(&self) -> Option<(Tick, bool)> {
        self.under_way.map(|(_, sent)| (sent, self.audio))
    }
}
