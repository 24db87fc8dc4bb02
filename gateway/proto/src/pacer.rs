//! Holds an epoch's packets until they may leave: at most a lead ahead of the playback clock.

use std::collections::VecDeque;

use bytes::Bytes;
use contract::{Span, Tick};

use crate::link::Link;
use crate::playback::PlaybackClock;
use crate::wire::PacketKind;

/// Packets that leave together once the lead is reached, at most an eighth of it: who is seconds ahead loses nothing,
/// and a wake, a hand-over and a system call a packet cost the server more than all else it does for a listener.
const GROUP: Span = Span::from_millis(200);

/// One encoded packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    pub kind: PacketKind,
    /// 48 kHz samples of it that are to be kept.
    pub duration: u16,
    /// An encoder's mark for silence.
    pub silence: bool,
    pub payload: Bytes,
}

/// A packet with its place in the epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    pub packet: Packet,
    /// Decoder position of its first sample, 48 kHz.
    pub timestamp: u64,
    pub last: bool,
}

/// The queue had no room; nothing was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacerFull;

/// The bounded queue between encoder and wire.
#[derive(Clone, Debug)]
pub struct Pacer {
    lead: Span,
    pre_skip: u64,
    samples_max: u64,
    queue: VecDeque<Placed>,
    bytes: usize,
    /// Decoder position after the last packet taken in.
    end: u64,
}

impl Pacer {
    /// A pacer that sends at most `lead` ahead and holds at most `samples_max` 48 kHz samples.
    #[must_use]
    pub fn new(lead: Span, pre_skip: u16, samples_max: u64) -> Self {
        Self { lead, pre_skip: u64::from(pre_skip), samples_max, queue: VecDeque::new(), bytes: 0, end: 0 }
    }

    /// A pacer that lets everything go at once: for HTTP bodies, tests and profiles.
    #[must_use]
    pub fn unpaced(pre_skip: u16, samples_max: u64) -> Self {
        Self::new(Span::MAX, pre_skip, samples_max)
    }

    /// Takes a packet in.
    ///
    /// # Errors
    /// [`PacerFull`] when more than the bound would wait.
    pub fn push(&mut self, packet: Packet, last: bool) -> Result<(), PacerFull> {
        if self.waiting() + u64::from(packet.duration) > self.samples_max {
            return Err(PacerFull);
        }
        let timestamp = self.end;
        self.end += u64::from(packet.duration);
        self.bytes += packet.payload.len();
        self.queue.push_back(Placed { packet, timestamp, last });
        Ok(())
    }

    /// The next packet, if it may leave at `now`.
    pub fn pop(&mut self, now: Tick, clock: &PlaybackClock, link: &Link) -> Option<Placed> {
        if self.next_release(clock, link) > now {
            return None;
        }
        let placed = self.queue.pop_front()?;
        self.bytes -= placed.packet.payload.len();
        Some(placed)
    }

    /// When the next packet may leave.
    #[must_use]
    pub fn next_release(&self, clock: &PlaybackClock, link: &Link) -> Tick {
        let Some(next) = self.queue.front() else { return Tick::NEVER };
        if self.lead == Span::MAX {
            return Tick::ZERO;
        }
        let start = self.media(next.timestamp);
        if clock.is_paused() {
            // Up to the lead is still worth sending: the listener may go on at any moment.
            let ahead = Span::of_samples(start.saturating_sub(clock.reported()), crate::wire::CLOCK_HZ);
            return if ahead <= self.lead { Tick::ZERO } else { Tick::NEVER };
        }
        clock.sounds_at(start, link) - self.lead
    }

    /// When to look again: once a whole group may leave, or all that waits.
    #[must_use]
    pub fn next_wake(&self, clock: &PlaybackClock, link: &Link) -> Tick {
        let release = self.next_release(clock, link);
        let (Some(first), Some(last)) = (self.queue.front(), self.queue.back()) else { return release };
        if release == Tick::ZERO || release == Tick::NEVER {
            return release;
        }
        let queued = Span::of_samples(last.timestamp - first.timestamp, crate::wire::CLOCK_HZ);
        release + queued.min(GROUP).min(Span::from_micros(self.lead.as_micros() / 8))
    }

    /// Media position of a decoder position.
    #[must_use]
    pub const fn media(&self, timestamp: u64) -> u64 {
        timestamp.saturating_sub(self.pre_skip)
    }

    /// 48 kHz samples waiting.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        self.queue.front().map_or(0, |first| self.end - first.timestamp)
    }

    /// Payload bytes waiting.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Decoder position after the last packet taken in.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.end
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Drops what waits; gives the number of packets dropped.
    pub fn clear(&mut self) -> usize {
        let dropped = self.queue.len();
        self.queue.clear();
        self.bytes = 0;
        dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet() -> Packet {
        Packet {
            kind: PacketKind::Opus,
            duration: 960,
            silence: false,
            payload: Bytes::from_static(&[0; 60]),
        }
    }

    fn pacer(packets: usize) -> Pacer {
        let mut pacer = Pacer::new(Span::from_millis(3_000), 312, 960 * 1_000);
        for _ in 0..packets {
            pacer.push(packet(), false).unwrap();
        }
        pacer
    }

    fn drain(pacer: &mut Pacer, now: Tick, clock: &mut PlaybackClock, link: &Link) -> usize {
        let mut sent = 0;
        while let Some(placed) = pacer.pop(now, clock, link) {
            let start = pacer.media(placed.timestamp);
            clock.handle_sent(now, start, pacer.media(placed.timestamp + 960), placed.last, link);
            sent += 1;
        }
        sent
    }

    #[test]
    fn three_seconds_leave_at_once_and_then_a_fifth_of_one_at_a_time() {
        let (mut pacer, mut clock, link) = (pacer(400), PlaybackClock::new(None), Link::new());
        let start = Tick::from_millis(50);
        assert_eq!(drain(&mut pacer, start, &mut clock, &link), 151);
        let mut now = start;
        for _ in 0..20 {
            let next = pacer.next_wake(&clock, &link);
            assert!(next.since(now) <= Span::from_millis(220));
            now = next;
            assert!((10..=11).contains(&drain(&mut pacer, now, &mut clock, &link)));
            let lead = clock.sounds_at(pacer.media(pacer.queue[0].timestamp), &link).since(now);
            assert!(lead > Span::from_millis(3_000) && lead <= Span::from_millis(3_020), "{lead:?}");
        }
        // The last few do not wait for a group that will never be whole.
        let next = pacer.next_wake(&clock, &link);
        while !pacer.is_empty() {
            now = pacer.next_wake(&clock, &link);
            assert!(drain(&mut pacer, now, &mut clock, &link) > 0);
        }
        assert!(now >= next && pacer.next_wake(&clock, &link) == Tick::NEVER);
    }

    #[test]
    fn a_group_is_small_beside_a_small_lead() {
        let (mut pacer, mut clock, link) = (pacer(0), PlaybackClock::new(None), Link::new());
        pacer.lead = Span::from_millis(400);
        for _ in 0..100 {
            pacer.push(packet(), false).unwrap();
        }
        drain(&mut pacer, Tick::from_millis(50), &mut clock, &link);
        for _ in 0..20 {
            let now = pacer.next_wake(&clock, &link);
            assert!((1..=4).contains(&drain(&mut pacer, now, &mut clock, &link)));
        }
    }

    #[test]
    fn nothing_over_the_bound_is_taken() {
        let mut pacer = Pacer::unpaced(0, 960 * 2);
        assert_eq!(pacer.push(packet(), false), Ok(()));
        assert_eq!(pacer.push(packet(), false), Ok(()));
        assert_eq!(pacer.push(packet(), false), Err(PacerFull));
        assert_eq!(pacer.waiting(), 1_920);
        assert_eq!(pacer.clear(), 2);
        assert_eq!(pacer.push(packet(), true), Ok(()));
    }

    #[test]
    fn after_a_silence_of_the_server_the_lead_is_counted_from_the_moved_clock() {
        let (mut pacer, mut clock, link) = (pacer(10), PlaybackClock::new(None), Link::new());
        assert_eq!(drain(&mut pacer, Tick::from_millis(0), &mut clock, &link), 10);
        for _ in 0..400 {
            pacer.push(packet(), false).unwrap();
        }
        // The listener ran dry at 200 ms; at 60 s no burst of a minute's packets may follow.
        assert!(drain(&mut pacer, Tick::from_millis(60_000), &mut clock, &link) <= 152);
    }
}
