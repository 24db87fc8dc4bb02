//! From what an adapter receives to an [`Outcome`]: the same for every protocol.
//!
//! Sound passes the listener's link (which may hold packets back, in order) before it reaches the ear.

use std::collections::VecDeque;

use contract::{Span, Tick};

use crate::arrivals::Arrival;
use crate::ear::{Ear, Position, playing_time};
use crate::mood::Habits;
use crate::outcome::{Ending, Outcome};
use crate::random::Random;

/// -50 dBFS: quieter than this is not yet sound.
pub const AUDIBLE: f32 = 0.003_162_278;

/// Longest time in which nothing is looked at, and sound that stays in hand meanwhile.
const LOOK_AWAY: Span = Span::from_millis(200);
const KEPT_IN_HAND: Span = Span::from_millis(250);

/// One request under way.
#[derive(Clone, Debug)]
pub struct Hearing {
    outcome: Outcome,
    habits: Habits,
    random: Random,
    ear: Ear,
    /// Sound on its way over the listener's link: when it reaches the player, and how much.
    link: VecDeque<(Tick, u64)>,
    last_delivery: Tick,
    /// 48 kHz samples of one frame, once known.
    frame_samples: Option<u64>,
    /// What the server says it made, at 48 kHz.
    samples_made: Option<u64>,
}

impl Hearing {
    /// A request whose schedule says `arrival_at`, begun at `now`.
    #[must_use]
    pub fn new(arrival: &Arrival, arrival_at: Tick, now: Tick) -> Self {
        let mut outcome = Outcome::waiting(arrival.habits.mood, arrival_at);
        outcome.started = now;
        Self {
            outcome,
            habits: arrival.habits.clone(),
            random: Random::new(arrival.seed.rotate_left(32)),
            ear: Ear::new(&arrival.habits),
            link: VecDeque::new(),
            last_delivery: Tick::ZERO,
            frame_samples: None,
            samples_made: None,
        }
    }

    #[must_use]
    pub fn habits(&self) -> &Habits {
        &self.habits
    }

    /// How many frames of `frame_samples` (at 48 kHz) were asked for.
    pub fn asked(&mut self, frames: u32, frame_samples: u64) {
        self.outcome.frames_exact = Some(frames);
        self.frame_samples = Some(frame_samples);
    }

    /// Some answer came: a header, a packet, anything of the audio's own stream.
    pub fn byte(&mut self, now: Tick) {
        self.outcome.first_byte.get_or_insert(now);
    }

    /// Whether samples still have to be looked at for the first audible one.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        self.outcome.first_audio.is_none()
    }

    /// Whether nothing was heard of a server that says nothing of having made any sound.
    #[must_use]
    pub fn is_mute(&self) -> bool {
        self.received() == 0 && self.outcome.frames_made.unwrap_or(0) == 0
    }

    /// Sound arrived: `samples` at 48 kHz. `audible` when one of them is above [`AUDIBLE`].
    pub fn sound(&mut self, now: Tick, samples: u64, audible: bool) {
        self.byte(now);
        if audible {
            self.outcome.first_audio.get_or_insert(now);
        }
        self.outcome.audio += sound_time(samples);
        let delivery = (now + self.habits.held_back(&mut self.random)).max(self.last_delivery);
        self.last_delivery = delivery;
        self.link.push_back((delivery, samples));
        self.advance(now);
    }

    /// The first chunk's sound, as the server or the stream tells it.
    pub fn first_chunk(&mut self, samples: u64, frames: Option<u32>) {
        self.outcome.first_chunk.get_or_insert(sound_time(samples));
        if let Some(frames) = frames.filter(|frames| *frames > 0) {
            self.frame_samples.get_or_insert(samples / u64::from(frames));
        }
    }

    /// What the server says it made.
    pub fn made(&mut self, frames: u64, samples: u64, starved: Span) {
        self.outcome.frames_made = Some(frames);
        self.outcome.text_starved = starved;
        self.frame_samples = samples.checked_div(frames).or(self.frame_samples);
        self.samples_made = Some(samples);
    }

    /// Lets the link and the player go on until `now`.
    pub fn advance(&mut self, now: Tick) {
        while let Some((at, samples)) = self.link.front().copied().filter(|(at, _)| *at <= now) {
            self.link.pop_front();
            self.ear.hear(at, samples);
        }
        self.ear.advance(now);
    }

    /// What a report would say at `now`.
    pub fn position(&mut self, now: Tick) -> Option<Position> {
        self.advance(now);
        self.ear.position(now)
    }

    /// When something next happens to the player that a browser would report at once.
    #[must_use]
    pub fn next_change(&self) -> Option<Tick> {
        let delivery = self.link.front().map(|(at, _)| *at);
        [delivery, self.ear.next_change()].into_iter().flatten().min()
    }

    /// Until when nothing that arrives can change what the listener hears: first audio has come, and more
    /// than enough is in hand. A generator of thousands of streams then takes packets several at a time.
    #[must_use]
    pub fn may_look_away(&mut self, now: Tick) -> Option<Tick> {
        // A link that holds packets back begins to do so when they are taken.
        if self.is_silent() || self.habits.jitter_mean_us > 0.0 {
            return None;
        }
        self.advance(now);
        let dry = self.ear.next_change().filter(|_| self.ear.is_playing())?;
        let back = (dry - KEPT_IN_HAND).min(now + LOOK_AWAY);
        (back > now).then_some(back)
    }

    /// When the listener interrupts, if that is already certain.
    #[must_use]
    pub fn interrupts_at(&self) -> Option<Tick> {
        self.ear.sounds_at(self.habits.cut?)
    }

    /// The listener interrupted at `now`: what comes later is not heard.
    pub fn interrupted(&mut self, now: Tick) -> u64 {
        self.advance(now);
        self.link.clear();
        self.ear.played(now)
    }

    #[must_use]
    pub fn received(&self) -> u64 {
        self.ear.received() + self.link.iter().map(|(_, samples)| samples).sum::<u64>()
    }

    /// The end. What has arrived is heard out without waiting for it.
    #[must_use]
    pub fn finish(mut self, now: Tick, ending: Ending) -> Outcome {
        let received = self.received();
        if ending == Ending::Interrupted {
            self.advance(now);
        } else {
            let end = now.max(self.last_delivery);
            self.advance(end);
            self.ear.complete(end);
            self.ear.advance(end + playing_time(received) + Span::from_millis(60_000));
        }
        let stalled = self.ear.stalled() - self.outcome.text_starved;
        self.outcome.stalled = stalled.max(Span::ZERO);
        if let Some(frame) = self.frame_samples.filter(|frame| *frame > 0) {
            // A frame of which a part is missing did not arrive.
            self.outcome.frames_sent = received / frame;
        }
        self.outcome.samples_wrong =
            self.samples_made.filter(|made| *made != received).map(|made| (made, received));
        self.outcome.ending = ending;
        self.outcome
    }
}

/// Whole microseconds of 48 kHz samples; whatever number a server tells has some.
fn sound_time(samples: u64) -> Span {
    Span::from_micros(i64::try_from(samples.saturating_mul(125) / 6).unwrap_or(i64::MAX))
}
