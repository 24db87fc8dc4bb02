//! A player without a sound card. Times are given in microseconds of the caller's own clock.

use proto::wire::{Flags, Header, ListenerState, PlaybackReport};

const CLOCK_HZ: u64 = 48_000;

/// Plays one epoch of one context in real time, from its first packet on.
#[derive(Clone, Debug)]
pub struct Listener {
    context: u16,
    prebuffer_us: u64,
    pre_skip: u64,
    epoch: Option<Header>,
    /// 48 kHz samples received, pre-skip included.
    received: u64,
    sequence: u32,
    started_us: Option<u64>,
    paused_us: u64,
    underruns: u32,
    longest_pause_us: u64,
    ended: bool,
}

impl Listener {
    /// A listener of `context` that waits for `prebuffer_us` of audio before it starts. `pre_skip` is
    /// the 48 kHz samples that [`proto::wire::OpenedAudio`] says are to be dropped.
    #[must_use]
    pub fn new(context: u16, prebuffer_us: u64, pre_skip: u16) -> Self {
        Self {
            context,
            prebuffer_us,
            pre_skip: u64::from(pre_skip),
            epoch: None,
            received: 0,
            sequence: 0,
            started_us: None,
            paused_us: 0,
            underruns: 0,
            longest_pause_us: 0,
            ended: false,
        }
    }

    /// Takes a packet that arrived now. Packets of an older epoch change nothing; a new epoch starts over.
    pub fn packet(&mut self, now_us: u64, header: &Header) {
        match self.epoch {
            Some(current) if current.epoch != header.epoch => {
                let ahead = header.epoch.0.wrapping_sub(current.epoch.0);
                if ahead >= 0x8000 {
                    return;
                }
                *self = Self::new(self.context, self.prebuffer_us, self.pre_skip as u16);
            }
            _ => {}
        }
        self.epoch = Some(*header);
        self.sequence = header.sequence;
        if let Some(dry_us) = self.dry_at() {
            let pause = now_us.saturating_sub(dry_us);
            if pause > 0 {
                self.underruns += 1;
                self.paused_us += pause;
                self.longest_pause_us = self.longest_pause_us.max(pause);
            }
        }
        self.received += u64::from(header.duration);
        self.ended |= header.flags.contains(Flags::END);
        if self.started_us.is_none() && (self.ended || self.media_us() >= self.prebuffer_us) {
            self.started_us = Some(now_us);
        }
    }

    /// Media samples audible now.
    #[must_use]
    pub fn played(&self, now_us: u64) -> u64 {
        let Some(started) = self.started_us else { return 0 };
        let us = now_us.saturating_sub(started).saturating_sub(self.paused_us);
        (us * CLOCK_HZ / 1_000_000).min(self.media())
    }

    /// Times the listener ran dry before the end, so far.
    #[must_use]
    pub fn underruns(&self) -> u32 {
        self.underruns
    }

    /// All pauses together.
    #[must_use]
    pub fn paused_us(&self) -> u64 {
        self.paused_us
    }

    #[must_use]
    pub fn longest_pause_us(&self) -> u64 {
        self.longest_pause_us
    }

    /// Media samples received.
    #[must_use]
    pub fn media(&self) -> u64 {
        self.received.saturating_sub(self.pre_skip)
    }

    /// The report to send now; `None` before the first packet, when there is nothing to say.
    #[must_use]
    pub fn report(&self, now_us: u64) -> Option<PlaybackReport> {
        let header = self.epoch?;
        let played = self.played(now_us);
        let buffered = self.media() - played;
        let state = match (self.started_us, buffered) {
            (None, _) => ListenerState::Prebuffer,
            (Some(_), 0) if self.ended => ListenerState::Ended,
            (Some(_), 0) => ListenerState::Starved,
            (Some(_), _) => ListenerState::Playing,
        };
        Some(PlaybackReport {
            context: self.context,
            epoch: header.epoch,
            t: now_us as f64 / 1_000.0,
            played,
            buffered,
            state,
            underruns: self.underruns,
            sequence: self.sequence,
        })
    }

    fn media_us(&self) -> u64 {
        self.media() * 1_000_000 / CLOCK_HZ
    }

    /// When what was received runs out.
    fn dry_at(&self) -> Option<u64> {
        self.started_us.map(|started| started + self.paused_us + self.media_us())
    }
}

#[cfg(test)]
mod tests {
    use proto::wire::PacketKind;

    use super::*;

    fn packet(sequence: u32, flags: Flags) -> Header {
        let mut first = [0; 16];
        first[0] = 0x10;
        let epoch = Header::decode(&first).map(|(header, _)| header.epoch).expect("a valid header");
        let kind = PacketKind::Opus;
        Header { kind, flags, context: 1, sequence, timestamp: 0, duration: 960, epoch }
    }

    #[test]
    fn packets_in_time_make_no_pause() {
        let mut listener = Listener::new(1, 0, 0);
        for n in 0..50 {
            listener.packet(1_000 + u64::from(n) * 20_000, &packet(n + 1, Flags::NONE));
        }
        assert_eq!((listener.underruns(), listener.paused_us()), (0, 0));
        assert_eq!(listener.played(1_000 + 500_000), 24_000);
    }

    #[test]
    fn a_late_packet_is_a_pause_of_its_lateness() {
        let mut listener = Listener::new(1, 0, 0);
        listener.packet(0, &packet(1, Flags::NONE));
        listener.packet(32_000, &packet(2, Flags::END));
        assert_eq!((listener.underruns(), listener.paused_us()), (1, 12_000));
        assert_eq!(listener.report(60_000).map(|r| r.state), Some(ListenerState::Ended));
    }

    #[test]
    fn a_prebuffer_delays_the_start() {
        let mut listener = Listener::new(1, 40_000, 0);
        listener.packet(0, &packet(1, Flags::NONE));
        assert_eq!(listener.report(10_000).map(|r| r.state), Some(ListenerState::Prebuffer));
        listener.packet(30_000, &packet(2, Flags::NONE));
        assert_eq!(listener.played(50_000), 960);
    }
}
