//! Where the listener is: from packets sent and reports received to a deadline for every sample.
//!
//! The clock keeps A, the server time at which an epoch's media sample 0 sounds (DESIGN.md section 6).
//! Open loop it comes from the packets sent; with reports it is the least of the last 8 observations
//! `arrival - one-way - played`, because a delay on the way up can only make an observation too late,
//! and too late a deadline is the unsafe side. A listener is believed at most
//! `J = min(p99 jitter, 200 ms)` below the open loop.
//!
//! Positions count 48 kHz media samples (pre-skip not counted), times are server microseconds.

use contract::{Playback, Span, Tick};

use crate::link::Link;
use crate::wire::{CLOCK_HZ, ListenerState, PlaybackReport, Player};

/// Interval at which listeners are asked to report while playing.
pub const REPORT_INTERVAL: Span = Span::from_millis(200);
/// Most a report can bring a deadline forward.
pub const TRUST_MAX: Span = Span::from_millis(200);

const WINDOW: usize = 8;
const GUARD_MIN_MS: f64 = 40.0;
const GUARD_MAX_MS: f64 = 200.0;
/// Widening of the guard for each report that is missing after the third.
const GUARD_STEP: i64 = 20_000;
/// Silence after which reports count as stale, and after which the loop is open again.
const STALE: i64 = 3 * REPORT_INTERVAL.as_micros();
const SILENT: i64 = 3_000_000;
const REPORTS_PER_SECOND: u32 = 20;
/// Difference between `buffered` and what must be buffered that is still believed: 500 ms.
const MISMATCH_SAMPLES: u64 = 24_000;
const MISMATCHES_MAX: u8 = 3;
/// Samples of a packet, to guess what was received from a sequence number.
const PACKET_SAMPLES: u64 = 960;

/// What became of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportOutcome {
    Accepted,
    /// More than 20 in a second.
    Dropped,
    /// It says what cannot be.
    Impossible(&'static str),
    /// The listener's buffer contradicted what was sent three times running: open loop for good.
    Untrusted,
}

/// The playback clock of one epoch.
#[derive(Clone, Debug)]
pub struct PlaybackClock {
    prebuffer: i64,
    guard: i64,
    /// When the first packet was sent.
    first_sent: Option<i64>,
    /// Open loop: whether enough was sent for the player to start.
    filled: bool,
    /// A by packets sent alone.
    open_loop: i64,
    /// Media samples sent.
    sent: u64,
    observations: [i64; WINDOW],
    observed: usize,
    state: ListenerState,
    played: u64,
    underruns: u32,
    /// Client's clock and arrival of the last accepted report.
    last_t: f64,
    last_report: Option<i64>,
    mismatches: u8,
    untrusted: bool,
    second: i64,
    in_second: u32,
}

impl PlaybackClock {
    #[must_use]
    pub fn new(player: Option<Player>) -> Self {
        let player = player.unwrap_or(Player { prebuffer_ms: 0.0, target_ms: GUARD_MIN_MS });
        Self {
            prebuffer: (player.prebuffer_ms.clamp(0.0, 2_000.0) * 1_000.0) as i64,
            guard: (player.target_ms.clamp(GUARD_MIN_MS, GUARD_MAX_MS) * 1_000.0) as i64,
            first_sent: None,
            filled: false,
            open_loop: 0,
            sent: 0,
            observations: [0; WINDOW],
            observed: 0,
            state: ListenerState::Prebuffer,
            played: 0,
            underruns: 0,
            last_t: 0.0,
            last_report: None,
            mismatches: 0,
            untrusted: false,
            second: 0,
            in_second: 0,
        }
    }

    /// A packet that ends at media position `end` and begins at `start` was sent; `last` when none follows.
    pub fn handle_sent(&mut self, now: Tick, start: u64, end: u64, last: bool, link: &Link) {
        let arrival = micros(now) + link.one_way().as_micros();
        if self.first_sent.is_none() {
            self.first_sent = Some(micros(now));
            self.open_loop = arrival + self.prebuffer;
        }
        self.sent = self.sent.max(end);
        if !self.filled {
            if last || duration(self.sent) >= self.prebuffer {
                self.filled = true;
                self.open_loop = arrival;
            }
            return;
        }
        // Nothing sounds before it arrives: a packet sent too late has moved the whole clock.
        self.open_loop = self.open_loop.max(arrival - duration(start));
    }

    /// Whether a packet that begins at media position `start` and is sent now comes after the listener has
    /// run out: by its reports where there are any, else by what was sent.
    #[must_use]
    pub fn is_late(&self, now: Tick, start: u64, link: &Link) -> bool {
        let arrival = micros(now) + link.one_way().as_micros();
        self.filled && !self.is_paused() && arrival > self.origin(link) + duration(start)
    }

    /// A report of this epoch arrived; `last_sequence` is the context's last packet sent.
    pub fn handle_report(
        &mut self,
        now: Tick,
        report: &PlaybackReport,
        last_sequence: u32,
        link: &Link,
    ) -> ReportOutcome {
        let now = micros(now);
        if now - self.second >= 1_000_000 {
            self.second = now;
            self.in_second = 0;
        }
        self.in_second += 1;
        if self.in_second > REPORTS_PER_SECOND {
            return ReportOutcome::Dropped;
        }
        if let Some(reason) = self.impossible(now, report, last_sequence) {
            return ReportOutcome::Impossible(reason);
        }
        let in_flight = u64::from(last_sequence - report.sequence) * PACKET_SAMPLES;
        let received = self.sent.saturating_sub(in_flight);
        let mismatch = received.saturating_sub(report.played).abs_diff(report.buffered) > MISMATCH_SAMPLES;
        self.mismatches = if mismatch { self.mismatches + 1 } else { 0 };
        if self.untrusted || self.mismatches >= MISMATCHES_MAX {
            self.untrusted = true;
            self.mismatches = 0;
            return ReportOutcome::Untrusted;
        }
        if report.state != self.state || report.underruns != self.underruns {
            self.observed = 0;
        }
        self.state = report.state;
        self.played = report.played;
        self.underruns = report.underruns;
        self.last_t = report.t;
        self.last_report = Some(now);
        match report.state {
            ListenerState::Playing => {
                self.observe(now - link.one_way().as_micros() - duration(report.played))
            }
            ListenerState::Starved => {
                // It would play at once: the newest observation is the only true one.
                self.observed = 0;
                self.observe(now - link.one_way().as_micros() - duration(report.played));
            }
            ListenerState::Ended | ListenerState::Paused | ListenerState::Prebuffer => {}
        }
        ReportOutcome::Accepted
    }

    /// The connection was replaced: observations of the old one say nothing about the new.
    pub fn handle_resume(&mut self, link: &Link) {
        self.open_the_loop(link);
    }

    /// Lets reports that stopped coming lose their weight.
    pub fn handle_timeout(&mut self, now: Tick, link: &Link) {
        let now = micros(now);
        if self.reports_age(now).is_some_and(|age| age >= SILENT) {
            self.open_the_loop(link);
        }
    }

    /// When missing reports next change the deadline.
    #[must_use]
    pub fn poll_timeout(&self, now: Tick) -> Tick {
        let now = micros(now);
        match (self.reports_age(now), self.last_report) {
            (Some(age), Some(last)) => {
                let step = REPORT_INTERVAL.as_micros();
                let next = if age < STALE { STALE } else { (age / step + 1) * step };
                tick(last + next.min(SILENT))
            }
            _ => Tick::NEVER,
        }
    }

    /// What the engine is told.
    #[must_use]
    pub fn playback(&self, now: Tick, link: &Link) -> Playback {
        if self.first_sent.is_none() {
            return Playback::NotStarted;
        }
        if self.is_paused() {
            return Playback::Paused { played: Span::from_micros(duration(self.played)) };
        }
        let now = micros(now);
        let stale = self.reports_age(now).filter(|age| *age >= STALE);
        let missing = stale.map_or(0, |age| (age - STALE) / REPORT_INTERVAL.as_micros() + 1);
        let widened = self.guard + missing * GUARD_STEP;
        let guard = widened.min((GUARD_MAX_MS * 1_000.0) as i64).max(self.guard);
        let down = link.one_way().as_micros() + self.jitter(link.jitter_p95());
        // Even a widened guard gains a listener no more than trust does.
        let zero = (self.origin(link) - guard).max(self.trusted_from(link) - self.guard);
        Playback::Playing { zero: tick(zero - down) }
    }

    /// Media position audible at `now`: what was sent bounds it.
    #[must_use]
    pub fn position(&self, now: Tick, link: &Link) -> u64 {
        if self.first_sent.is_none() {
            return 0;
        }
        if self.is_paused() {
            return self.played;
        }
        let now = micros(now);
        let elapsed = u64::try_from(now - self.origin(link)).unwrap_or(0);
        let samples = u128::from(elapsed) * u128::from(CLOCK_HZ) / 1_000_000;
        u64::try_from(samples).unwrap_or(u64::MAX).min(self.sent)
    }

    /// When media position `sample` sounds; [`Tick::NEVER`] for a paused listener, long ago before the
    /// first packet.
    #[must_use]
    pub fn sounds_at(&self, sample: u64, link: &Link) -> Tick {
        if self.first_sent.is_none() {
            return Tick::ZERO;
        }
        if self.is_paused() {
            return if sample <= self.played { Tick::ZERO } else { Tick::NEVER };
        }
        tick(self.origin(link) + duration(sample))
    }

    /// Media samples sent.
    #[must_use]
    pub const fn sent(&self) -> u64 {
        self.sent
    }

    /// The last position a listener reported.
    #[must_use]
    pub const fn reported(&self) -> u64 {
        self.played
    }

    /// Times the listener ran dry in this epoch, as it says.
    #[must_use]
    pub const fn underruns(&self) -> u32 {
        self.underruns
    }

    #[must_use]
    pub const fn is_paused(&self) -> bool {
        matches!(self.state, ListenerState::Paused) && !self.untrusted
    }

    /// A, within the bounds of trust.
    fn origin(&self, link: &Link) -> i64 {
        if self.observed == 0 || self.untrusted {
            return self.open_loop;
        }
        let kept = &self.observations[..self.observed.min(WINDOW)];
        let reported = kept.iter().copied().min().unwrap_or(self.open_loop);
        reported.max(self.trusted_from(link))
    }

    /// The earliest A a listener can claim.
    fn trusted_from(&self, link: &Link) -> i64 {
        self.open_loop - self.jitter(link.jitter_p99())
    }

    /// Reports have stopped: the loop is open again from the last A. Never earlier than it was, or a
    /// listener could claim its trust again and again.
    fn open_the_loop(&mut self, link: &Link) {
        self.open_loop = self.open_loop.max(self.origin(link));
        self.observed = 0;
        self.last_report = None;
    }

    fn jitter(&self, jitter: Span) -> i64 {
        jitter.as_micros().min(TRUST_MAX.as_micros())
    }

    fn observe(&mut self, origin: i64) {
        self.observations[self.observed % WINDOW] = origin;
        // Wraps within a full window, so that `observed` never grows without bound.
        self.observed = if self.observed + 1 == 2 * WINDOW { WINDOW } else { self.observed + 1 };
    }

    /// Age of the last report, while reports are expected.
    fn reports_age(&self, now: i64) -> Option<i64> {
        let expected = matches!(self.state, ListenerState::Playing | ListenerState::Starved);
        self.last_report.filter(|_| expected && self.observed > 0).map(|last| now - last)
    }

    fn impossible(&self, now: i64, report: &PlaybackReport, last_sequence: u32) -> Option<&'static str> {
        if report.sequence > last_sequence {
            return Some("a sequence that was never sent");
        }
        if report.played > self.sent {
            return Some("more played than was sent");
        }
        if report.played < self.played {
            return Some("a position that goes back");
        }
        if report.t < self.last_t {
            return Some("a clock that goes back");
        }
        if report.underruns < self.underruns {
            return Some("a count that goes back");
        }
        let elapsed = now - self.first_sent.unwrap_or(now);
        if duration(report.played) > elapsed + elapsed / 50 + 100_000 {
            return Some("more played than time has passed");
        }
        None
    }
}

/// Playing time of `samples` at 48 kHz, in microseconds.
fn duration(samples: u64) -> i64 {
    Span::of_samples(samples, CLOCK_HZ).as_micros()
}

fn micros(tick: Tick) -> i64 {
    i64::try_from(tick.as_micros()).unwrap_or(i64::MAX / 4)
}

/// Nothing is told of times before zero, a day before the process began.
fn tick(micros: i64) -> Tick {
    Tick::from_micros(u64::try_from(micros).unwrap_or(0))
}
