//! Packets already sent, kept for a short while so that a lost connection can be taken up again.

use std::collections::VecDeque;

use bytes::Bytes;
use contract::{Epoch, Span, Tick};

use crate::wire::{HEADER_BYTES, Header};

/// Bounds of the window, each on its own.
pub const REPLAY_PACKETS_MAX: usize = 256;
pub const REPLAY_BYTES_MAX: usize = 65_536;
pub const REPLAY_AGE_MAX: Span = Span::from_millis(10_000);

/// One packet as it went out.
#[derive(Clone, Debug)]
struct Sent {
    when: Tick,
    header: Header,
    payload: Bytes,
}

impl Sent {
    /// Bytes of the packet as the native wire has it.
    fn bytes(&self) -> usize {
        HEADER_BYTES + self.payload.len()
    }
}

/// The window of one context.
#[derive(Clone, Debug, Default)]
pub(super) struct Replay {
    sent: VecDeque<Sent>,
    bytes: usize,
}

impl Replay {
    pub(super) fn push(&mut self, now: Tick, header: Header, payload: Bytes) {
        let sent = Sent { when: now, header, payload };
        self.bytes += sent.bytes();
        self.sent.push_back(sent);
        while self.sent.len() > REPLAY_PACKETS_MAX || self.bytes > REPLAY_BYTES_MAX {
            self.drop_oldest();
        }
        self.forget(now);
    }

    /// Drops what is too old.
    pub(super) fn forget(&mut self, now: Tick) {
        while self.sent.front().is_some_and(|sent| now.since(sent.when) > REPLAY_AGE_MAX) {
            self.drop_oldest();
        }
    }

    /// Packets of `epoch` after `sequence`.
    pub(super) fn after(&self, epoch: Epoch, sequence: u32) -> Vec<(Header, Bytes)> {
        let wanted =
            self.sent.iter().filter(|sent| sent.header.epoch == epoch && sent.header.sequence > sequence);
        wanted.map(|sent| (sent.header, sent.payload.clone())).collect()
    }

    fn drop_oldest(&mut self) {
        if let Some(sent) = self.sent.pop_front() {
            self.bytes -= sent.bytes();
        }
    }
}
