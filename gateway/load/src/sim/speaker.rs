//! One utterance of a simulation: what its gateway session knows, and the listener at its end.

use std::collections::VecDeque;

use contract::{Playback, Span, Tick};
use proto::link::Link;
use proto::playback::PlaybackClock;
use proto::wire::{ListenerState, PlaybackReport};

use crate::arrivals::Arrival;
use crate::hearing::Hearing;
use crate::random::Random;

/// Sent lead that bounds the pacer (DESIGN.md section 5).
const LEAD: Span = Span::from_millis(3_000);
/// A change of the playback clock smaller than this is not worth a command, as in the gateway.
const TOLD: Span = Span::from_millis(2);
/// How often a browser reports, and a busy connection is pinged.
const REPORT: Span = Span::from_millis(200);
const PING: Span = Span::from_millis(1_000);
/// 48 kHz samples of a packet.
const PACKET: u64 = 960;

/// A chunk made and not yet sent.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    start: u64,
    end: u64,
    last: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Speaker {
    pub(crate) hearing: Hearing,
    pub(crate) frames: u32,
    pub(crate) prompt_tokens: u32,
    /// Frames the device has made, and whether it has said end-of-speech.
    pub(crate) made: u32,
    pub(crate) done: bool,
    /// The scheduler has finished with it.
    pub(crate) finished: bool,
    pub(crate) last_delivery: Tick,
    /// Tick of the listener's next wake; older ones in the heap are void.
    pub(crate) wake: Tick,
    /// When it is next to send, likewise.
    pub(crate) send_due: Tick,
    clock: PlaybackClock,
    link: Link,
    one_way: Span,
    random: Random,
    told: Playback,
    /// On their way, in order: sound to the listener, reports to the server.
    packets: VecDeque<Sent>,
    reported_away: VecDeque<PlaybackReport>,
    waiting: VecDeque<Waiting>,
    sent: u64,
    received: u64,
    last_ping: Option<Tick>,
    next_report: Option<Tick>,
    reported: Option<(ListenerState, u32)>,
    last_report_arrival: Tick,
    reports: bool,
    /// Media position at which sound begins to be audible.
    onset: u64,
}

/// Who speaks now, by the number of the request.
#[derive(Debug, Default)]
pub(crate) struct Speakers {
    by_index: Vec<Option<Box<Speaker>>>,
    count: usize,
}

impl Speakers {
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(crate) fn get(&self, index: usize) -> Option<&Speaker> {
        self.by_index.get(index)?.as_deref()
    }

    pub(crate) fn get_mut(&mut self, index: usize) -> Option<&mut Speaker> {
        self.by_index.get_mut(index)?.as_deref_mut()
    }

    pub(crate) fn insert(&mut self, index: usize, speaker: Speaker) {
        if index >= self.by_index.len() {
            self.by_index.resize_with(index + 1, || None);
        }
        self.count += usize::from(self.by_index[index].is_none());
        self.by_index[index] = Some(Box::new(speaker));
    }

    pub(crate) fn remove(&mut self, index: usize) -> Option<Box<Speaker>> {
        let speaker = self.by_index.get_mut(index)?.take()?;
        self.count -= 1;
        Some(speaker)
    }
}

/// Sound on its way to the listener.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    pub(crate) samples: u64,
    pub(crate) audible: bool,
}

impl Speaker {
    pub(crate) fn new(arrival: &Arrival, at: Tick, frames: u32, prompt_tokens: u32, onset: u64) -> Self {
        Self {
            hearing: Hearing::new(arrival, at, at),
            frames,
            prompt_tokens,
            made: 0,
            done: false,
            finished: false,
            last_delivery: at,
            packets: VecDeque::new(),
            reported_away: VecDeque::new(),
            wake: Tick::NEVER,
            send_due: Tick::NEVER,
            clock: PlaybackClock::new(Some(arrival.habits.player())),
            link: Link::new(),
            // A round trip of 2 ms: the same machine or the same room.
            one_way: Span::from_millis(1),
            random: Random::new(arrival.seed ^ 0x6c69_6e6b),
            told: Playback::NotStarted,
            waiting: VecDeque::new(),
            sent: 0,
            received: 0,
            last_ping: None,
            next_report: None,
            reported: None,
            last_report_arrival: at,
            reports: arrival.habits.reports,
            onset,
        }
    }

    /// Takes reports away from a listener who would send them.
    pub(crate) fn silence(&mut self) {
        self.reports = false;
    }

    /// A chunk was made: media positions.
    pub(crate) fn chunk(&mut self, start: u64, end: u64, last: bool) {
        self.waiting.push_back(Waiting { start, end, last });
    }

    /// What may be sent now.
    pub(crate) fn send(&mut self, now: Tick) -> Option<Sent> {
        let next = *self.waiting.front()?;
        if now < self.may_send(next) {
            return None;
        }
        self.waiting.pop_front();
        if self.last_ping.is_none_or(|at| now.since(at) >= PING) {
            let there = self.hearing.habits().clone().held_back(&mut self.random);
            self.link.record(self.one_way.times(2) + there);
            self.last_ping = Some(now);
        }
        self.clock.handle_sent(now, next.start, next.end, next.last, &self.link);
        self.sent = next.end;
        let audible = next.end > self.onset;
        let sent = Sent { samples: next.end - next.start, audible };
        self.packets.push_back(sent);
        Some(sent)
    }

    /// When the next chunk may be sent; `None` without one.
    pub(crate) fn next_send(&self) -> Option<Tick> {
        self.waiting.front().map(|next| self.may_send(*next))
    }

    fn may_send(&self, next: Waiting) -> Tick {
        self.clock.sounds_at(next.start, &self.link) - LEAD
    }

    /// The next sound reaches the listener.
    pub(crate) fn deliver(&mut self, now: Tick) {
        let Some(sent) = self.packets.pop_front() else { return };
        self.received += sent.samples;
        if self.hearing.habits().jitter_mean_us > 0.0 {
            // Each packet is held back by itself, in order.
            let mut left = sent.samples;
            while left > 0 {
                let packet = left.min(PACKET);
                self.hearing.sound(now, packet, sent.audible);
                left -= packet;
            }
        } else {
            self.hearing.sound(now, sent.samples, sent.audible);
        }
        if self.reports && self.next_report.is_none() {
            self.next_report = Some(now);
        }
    }

    /// When the listener has something to do.
    pub(crate) fn next_wake(&self) -> Option<Tick> {
        let change = self.hearing.next_change().filter(|_| self.reports && self.reported.is_some());
        let report = self.next_report.filter(|_| self.reports);
        [change, report, self.hearing.interrupts_at()].into_iter().flatten().min()
    }

    /// Sends the report due now; when it reaches the server.
    pub(crate) fn report(&mut self, now: Tick) -> Option<Tick> {
        if !self.reports {
            return None;
        }
        let position = self.hearing.position(now)?;
        let state = (position.state, position.underruns);
        if self.reported == Some(state) && self.next_report.is_none_or(|due| now < due) {
            return None;
        }
        self.reported = Some(state);
        let periodic = matches!(position.state, ListenerState::Playing | ListenerState::Prebuffer);
        self.next_report = periodic.then(|| now + REPORT);
        let received = position.played + position.buffered;
        let report = PlaybackReport {
            context: 1,
            epoch: contract::Epoch(0),
            t: now.since(Tick::ZERO).as_micros() as f64 / 1_000.0,
            played: position.played,
            buffered: position.buffered,
            state: position.state,
            underruns: position.underruns,
            sequence: sequence(received),
        };
        let held_back = self.hearing.habits().clone().held_back(&mut self.random);
        let arrives = (now + self.one_way + held_back).max(self.last_report_arrival);
        self.last_report_arrival = arrives;
        self.reported_away.push_back(report);
        Some(arrives)
    }

    /// The server takes the next report in.
    pub(crate) fn take(&mut self, now: Tick) {
        let Some(report) = self.reported_away.pop_front() else { return };
        // What became of it shows in the clock.
        let _outcome = self.clock.handle_report(now, &report, sequence(self.sent), &self.link);
    }

    /// What the engine is to be told, if that has changed.
    pub(crate) fn tell(&mut self, now: Tick) -> Option<Playback> {
        self.clock.handle_timeout(now, &self.link);
        let playback = self.clock.playback(now, &self.link);
        let same = match (playback, self.told) {
            (Playback::Playing { zero }, Playback::Playing { zero: told }) => {
                let moved = zero.since(told);
                moved < TOLD && -moved < TOLD
            }
            (playback, told) => playback == told,
        };
        if same {
            return None;
        }
        self.told = playback;
        Some(playback)
    }

    /// Everything made has reached the listener.
    pub(crate) fn is_delivered(&self) -> bool {
        self.finished && self.waiting.is_empty() && self.packets.is_empty()
    }

    pub(crate) fn one_way(&self) -> Span {
        self.one_way
    }
}

fn sequence(samples: u64) -> u32 {
    u32::try_from(samples.div_ceil(PACKET)).unwrap_or(u32::MAX)
}
