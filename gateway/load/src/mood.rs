//! How listeners behave, and in which shares they come.

use contract::Span;
use proto::wire::Player;

use crate::random::Random;

/// One way to listen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mood {
    /// Starts at the first byte, plays in real time, reports as a browser does.
    #[default]
    Steady,
    /// As steady, but every packet and report is held back by a random time, 150 ms at the 99th percentile.
    Jitter,
    /// Waits for 400 ms of audio before it starts.
    SlowStart,
    /// Stops once for 2 to 6 s after 0.5 to 2 s of sound.
    Paused,
    /// Interrupts after 0.5 to 3 s of sound.
    BargeIn,
    /// As steady, and tells the server nothing.
    NoReports,
    /// Says it has played everything as soon as that can be believed.
    Lying,
}

impl Mood {
    pub const ALL: [Self; 7] = [
        Self::Steady,
        Self::Jitter,
        Self::SlowStart,
        Self::Paused,
        Self::BargeIn,
        Self::NoReports,
        Self::Lying,
    ];

    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Steady => "steady",
            Self::Jitter => "jitter",
            Self::SlowStart => "slow-start",
            Self::Paused => "paused",
            Self::BargeIn => "barge-in",
            Self::NoReports => "no-reports",
            Self::Lying => "lying",
        }
    }
}

/// Shares of moods; what is left over is steady.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Moods(Vec<(Mood, f64)>);

/// A mood that cannot be mixed in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MoodError {
    #[error("{0:?} is no mood; one of {names}", names = Mood::ALL.map(Mood::name).join(", "))]
    Unknown(String),
    #[error("{0:?} must be written NAME=SHARE with a share from 0 to 1, as jitter=0.2")]
    Share(String),
    #[error("the shares of the moods sum to more than 1")]
    Sum,
    #[error("{0} is given two shares")]
    Twice(&'static str),
}

impl Moods {
    /// Reads `NAME=SHARE` items.
    ///
    /// # Errors
    /// [`MoodError`], naming the item.
    pub fn parse<S: AsRef<str>>(items: &[S]) -> Result<Self, MoodError> {
        let mut shares = Vec::new();
        for item in items.iter().map(AsRef::as_ref) {
            let (name, share) = item.split_once('=').unwrap_or((item, "1"));
            let mood = Mood::ALL.into_iter().find(|mood| mood.name() == name);
            let mood = mood.ok_or_else(|| MoodError::Unknown(name.to_owned()))?;
            if shares.iter().any(|(known, _)| *known == mood) {
                return Err(MoodError::Twice(mood.name()));
            }
            let share = share.parse::<f64>().ok().filter(|share| (0.0..=1.0).contains(share));
            shares.push((mood, share.ok_or_else(|| MoodError::Share(item.to_owned()))?));
        }
        let sum: f64 = shares.iter().map(|(_, share)| share).sum();
        if sum > 1.0 + 1e-9 {
            return Err(MoodError::Sum);
        }
        Ok(Self(shares))
    }

    /// Who listens, for a report; nothing where all are steady.
    #[must_use]
    pub fn said(&self) -> Option<String> {
        let given = || self.0.iter().filter(|(_, share)| *share > 0.0);
        let shares: Vec<_> =
            given().map(|(mood, share)| format!("{} {:.0}%", mood.name(), share * 100.0)).collect();
        let steady = given().map(|(_, share)| share).sum::<f64>() < 1.0 - 1e-9;
        let rest = if steady { ", the rest steady" } else { "" };
        (!shares.is_empty()).then(|| format!("listeners: {}{rest}", shares.join(", ")))
    }

    /// The mood at `unit`, a uniform number in `[0, 1)`.
    #[must_use]
    pub fn pick(&self, unit: f64) -> Mood {
        let mut reached = 0.0;
        for (mood, share) in &self.0 {
            reached += share;
            if unit < reached {
                return *mood;
            }
        }
        Mood::Steady
    }
}

/// What one listener will do, drawn once from its request's seed. Positions are 48 kHz media samples.
#[derive(Clone, Debug, PartialEq)]
pub struct Habits {
    pub mood: Mood,
    /// Audio it waits for before it starts.
    pub prebuffer: Span,
    /// Where it pauses, and for how long.
    pub pause: Option<(u64, Span)>,
    /// Where it interrupts.
    pub cut: Option<u64>,
    /// Mean of the exponential time a packet or report is held back.
    pub jitter_mean_us: f64,
    pub reports: bool,
}

/// 48 kHz samples of a second.
const SECOND: f64 = 48_000.0;
/// An exponential's 99th percentile is 4.6 times its mean: 150 ms.
const JITTER_MEAN_US: f64 = 150_000.0 / 4.605;

impl Habits {
    #[must_use]
    pub fn draw(mood: Mood, random: &mut Random) -> Self {
        let mut habits = Self {
            mood,
            prebuffer: Span::ZERO,
            pause: None,
            cut: None,
            jitter_mean_us: 0.0,
            reports: mood != Mood::NoReports,
        };
        match mood {
            Mood::Jitter => habits.jitter_mean_us = JITTER_MEAN_US,
            Mood::SlowStart => habits.prebuffer = Span::from_millis(400),
            Mood::Paused => {
                let at = random.between(0.5, 2.0) * SECOND;
                let length = random.between(2_000.0, 6_000.0);
                habits.pause = Some((at as u64, Span::from_millis(length as i64)));
            }
            Mood::BargeIn => habits.cut = Some((random.between(0.5, 3.0) * SECOND) as u64),
            Mood::Steady | Mood::NoReports | Mood::Lying => {}
        }
        habits
    }

    /// What a client's `hello` says of this listener's player.
    #[must_use]
    pub fn player(&self) -> Player {
        let target_ms = if self.jitter_mean_us > 0.0 { 150.0 } else { 40.0 };
        Player { prebuffer_ms: self.prebuffer.as_millis() as f64, target_ms }
    }

    /// How long the next packet or report is held back by the link.
    #[must_use]
    pub fn held_back(&self, random: &mut Random) -> Span {
        if self.jitter_mean_us <= 0.0 {
            return Span::ZERO;
        }
        Span::from_micros(random.exponential(self.jitter_mean_us) as i64)
    }
}
