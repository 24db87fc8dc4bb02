//! A listener's ear: a player that starts at the first audio and stops when the next is missing.
//!
//! Pure: every call is given its tick, and ticks never go back. Positions are 48 kHz media samples.

use contract::{Span, Tick};
use proto::wire::ListenerState;

use crate::mood::{Habits, Mood};

/// Pauses that together make a stall (the published definition).
pub const STALL: Span = Span::from_millis(10);

/// What a report says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    pub played: u64,
    pub buffered: u64,
    pub state: ListenerState,
    pub underruns: u32,
}

/// A player without a sound card.
#[derive(Clone, Debug)]
pub struct Ear {
    prebuffer: u64,
    /// The pause still to come.
    pause: Option<(u64, Span)>,
    lying: bool,
    received: u64,
    complete: bool,
    first: Option<Tick>,
    state: State,
    stalled: Span,
    underruns: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waiting,
    /// Position `from` sounded at `since`.
    Playing {
        since: Tick,
        from: u64,
    },
    Dry {
        since: Tick,
    },
    Paused {
        at: u64,
        until: Tick,
    },
    Ended,
}

impl Ear {
    #[must_use]
    pub fn new(habits: &Habits) -> Self {
        Self {
            prebuffer: samples(habits.prebuffer),
            pause: habits.pause,
            lying: habits.mood == Mood::Lying,
            received: 0,
            complete: false,
            first: None,
            state: State::Waiting,
            stalled: Span::ZERO,
            underruns: 0,
        }
    }

    /// Audio reached the player.
    pub fn hear(&mut self, now: Tick, samples: u64) {
        self.advance(now);
        if samples == 0 {
            return;
        }
        let before = self.received;
        self.received += samples;
        self.first.get_or_insert(now);
        match self.state {
            State::Waiting if self.received >= self.prebuffer => {
                self.state = State::Playing { since: now, from: 0 };
            }
            State::Dry { since } => {
                // Sound that comes at the very instant it is needed comes in time.
                self.stalled += now.since(since);
                self.underruns += u32::from(now > since);
                self.state = State::Playing { since: now, from: before };
            }
            _ => {}
        }
        self.advance(now);
    }

    /// Nothing more will come.
    pub fn complete(&mut self, now: Tick) {
        self.advance(now);
        self.complete = true;
        match self.state {
            State::Waiting if self.received > 0 => self.state = State::Playing { since: now, from: 0 },
            State::Waiting | State::Dry { .. } => self.state = State::Ended,
            State::Playing { .. } | State::Paused { .. } | State::Ended => {}
        }
        self.advance(now);
    }

    /// Lets what fell due by `now` happen.
    pub fn advance(&mut self, now: Tick) {
        while let Some(at) = self.next_change().filter(|at| *at <= now) {
            self.state = match self.state {
                State::Playing { .. } => {
                    match self.pause.filter(|(position, _)| *position <= self.received) {
                        // It may fall together with running dry: a listener who stops misses nothing.
                        Some((position, length)) => {
                            self.pause = None;
                            State::Paused { at: position, until: at + length }
                        }
                        None if self.complete => State::Ended,
                        None => State::Dry { since: at },
                    }
                }
                State::Paused { at: position, until } => State::Playing { since: until, from: position },
                other => other,
            };
        }
    }

    /// When the state next changes by itself.
    #[must_use]
    pub fn next_change(&self) -> Option<Tick> {
        match self.state {
            State::Playing { since, from } => {
                let stop = self.pause.map_or(self.received, |(position, _)| position.min(self.received));
                Some(since + playing_time(stop.saturating_sub(from)))
            }
            State::Paused { until, .. } => Some(until),
            State::Waiting | State::Dry { .. } | State::Ended => None,
        }
    }

    #[must_use]
    pub fn is_playing(&self) -> bool {
        matches!(self.state, State::Playing { .. })
    }

    /// When `position` sounds, if nothing stops the player before.
    #[must_use]
    pub fn sounds_at(&self, position: u64) -> Option<Tick> {
        match self.state {
            State::Playing { since, from } if position <= self.received => {
                Some(since + playing_time(position.saturating_sub(from)))
            }
            _ => None,
        }
    }

    /// Media position audible at `now`, which is not before the last call's.
    #[must_use]
    pub fn played(&self, now: Tick) -> u64 {
        match self.state {
            State::Waiting => 0,
            State::Playing { since, from } => (from + samples(now.since(since))).min(self.received),
            State::Paused { at, .. } => at,
            State::Dry { .. } | State::Ended => self.received,
        }
    }

    /// All unwanted pauses together.
    #[must_use]
    pub fn stalled(&self) -> Span {
        self.stalled
    }

    #[must_use]
    pub fn received(&self) -> u64 {
        self.received
    }

    #[must_use]
    pub fn underruns(&self) -> u32 {
        self.underruns
    }

    /// What a report at `now` says; `None` before the first audio.
    #[must_use]
    pub fn position(&self, now: Tick) -> Option<Position> {
        let first = self.first?;
        let mut played = self.played(now);
        let state = match self.state {
            State::Waiting => ListenerState::Prebuffer,
            State::Playing { .. } => ListenerState::Playing,
            State::Dry { .. } => ListenerState::Starved,
            State::Paused { .. } => ListenerState::Paused,
            State::Ended => ListenerState::Ended,
        };
        if self.lying && state == ListenerState::Playing {
            // As far ahead as the server's own test of possibility lets it claim.
            let believed = now.since(first) + Span::from_millis(90);
            played = samples(believed).min(self.received).max(played);
        }
        Some(Position { played, buffered: self.received - played, state, underruns: self.underruns })
    }
}

/// Playing time of 48 kHz samples, rounded up so that a position has sounded when it is reached.
#[must_use]
pub fn playing_time(samples: u64) -> Span {
    Span::from_micros(i64::try_from(samples.saturating_mul(125).div_ceil(6)).unwrap_or(i64::MAX))
}

/// 48 kHz samples of a span; none of a negative one.
#[must_use]
pub fn samples(span: Span) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(0).saturating_mul(6) / 125
}
