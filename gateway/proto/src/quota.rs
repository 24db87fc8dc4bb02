//! What a tenant may ask for in a minute, and how much of it is left: a leaky bucket for requests and one for
//! characters (the generic cell rate algorithm, ITU-T I.371).
//!
//! A request that has begun is spoken to its end: characters beyond the quota are a debt, and the next request
//! waits until it is paid.

use std::fmt;

use contract::{Span, Tick};

use crate::wire::WireError;

const MINUTE: Span = Span::from_millis(60_000);

/// Quotas of one tenant, which all of its sessions share. The driver keeps them.
pub trait Quotas: fmt::Debug + Send + Sync {
    /// A request begins: a context, or an answer over HTTP.
    ///
    /// # Errors
    /// [`WireError::QuotaUsed`], and when to come again. Nothing was counted then.
    fn begin(&self, now: Tick) -> Result<(), WireError>;

    /// It brought so many characters of text.
    fn take_characters(&self, now: Tick, characters: u64);

    /// Where each quota stands; empty where there is none.
    fn levels(&self, now: Tick) -> Vec<Level>;
}

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    Requests,
    Characters,
}

/// Where one quota stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    pub counted: Counted,
    /// In a minute.
    pub limit: u32,
    pub remaining: u32,
    /// Until all of it is there again.
    pub reset: Span,
}

/// How much a minute allows; 0 is no bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    pub requests: u32,
    pub characters: u32,
}

/// What one tenant has used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meter {
    /// When what was used will have leaked away.
    requests: Tick,
    characters: Tick,
}

impl Counted {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::Characters => "characters",
        }
    }
}

impl Meter {
    /// As [`Quotas::begin`].
    ///
    /// # Errors
    /// [`WireError::QuotaUsed`].
    pub fn begin(&mut self, now: Tick, rates: Rates) -> Result<(), WireError> {
        let requests = after(self.requests, now, rates.requests, 1);
        let characters = after(self.characters, now, rates.characters, 1);
        let asked = [
            (Counted::Requests, rates.requests, requests),
            (Counted::Characters, rates.characters, characters),
        ];
        for (counted, limit, used) in asked {
            let retry_after = used.since(now + MINUTE);
            if limit > 0 && retry_after > Span::ZERO {
                return Err(WireError::QuotaUsed { what: counted.name(), limit, retry_after });
            }
        }
        self.requests = requests;
        Ok(())
    }

    /// As [`Quotas::take_characters`].
    pub fn take_characters(&mut self, now: Tick, rates: Rates, characters: u64) {
        self.characters = after(self.characters, now, rates.characters, characters);
    }

    /// As [`Quotas::levels`].
    #[must_use]
    pub fn levels(&self, now: Tick, rates: Rates) -> Vec<Level> {
        let known = [
            (Counted::Requests, rates.requests, self.requests),
            (Counted::Characters, rates.characters, self.characters),
        ];
        let bounded = known.into_iter().filter(|(_, limit, _)| *limit > 0);
        let levels = bounded.map(|(counted, limit, used)| {
            let reset = used.max(now).since(now);
            let left = (MINUTE - reset).max(Span::ZERO);
            let remaining =
                left.as_micros().unsigned_abs() * u64::from(limit) / MINUTE.as_micros().unsigned_abs();
            Level { counted, limit, remaining: u32::try_from(remaining).unwrap_or(limit), reset }
        });
        levels.collect()
    }

    /// It would be the same had it never been used.
    #[must_use]
    pub fn is_full(&self, now: Tick) -> bool {
        self.requests <= now && self.characters <= now
    }
}

/// When what was used until `used`, and `count` more, will have leaked away at `limit` a minute.
fn after(used: Tick, now: Tick, limit: u32, count: u64) -> Tick {
    if limit == 0 {
        return used;
    }
    let micros = (u128::from(count) * MINUTE.as_micros().unsigned_abs() as u128).div_ceil(u128::from(limit));
    used.max(now) + Span::from_micros(i64::try_from(micros).unwrap_or(i64::MAX / 4).min(i64::MAX / 4))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATES: Rates = Rates { requests: 3, characters: 600 };

    fn at(millis: i64) -> Tick {
        Tick::ZERO + Span::from_millis(millis)
    }

    #[test]
    fn a_minute_allows_its_quota_at_once_and_then_one_more_each_time_one_has_leaked_away() {
        let mut meter = Meter::default();
        for _ in 0..3 {
            meter.begin(at(0), RATES).expect("within the quota");
        }
        let refused = meter.begin(at(0), RATES).expect_err("a fourth");
        assert_eq!(
            (refused.code(), refused.retry_after()),
            ("rate_limit_exceeded", Some(Span::from_millis(20_000)))
        );
        assert!(meter.begin(at(19_999), RATES).is_err());
        meter.begin(at(20_000), RATES).expect("a third of a minute later");
        assert!(meter.begin(at(20_000), RATES).is_err());
    }

    #[test]
    fn characters_beyond_the_quota_are_a_debt_of_the_next_request() {
        let mut meter = Meter::default();
        meter.begin(at(0), RATES).expect("fresh");
        meter.take_characters(at(0), RATES, 900);
        let refused = meter.begin(at(0), RATES).expect_err("in debt");
        assert_eq!(refused.retry_after(), Some(Span::from_millis(30_100)));
        assert!(refused.to_string().contains("600 characters"), "{refused}");
        meter.begin(at(30_100), RATES).expect("paid");
    }

    #[test]
    fn levels_say_what_is_left_and_when_all_of_it_is_back() {
        let mut meter = Meter::default();
        assert!(meter.levels(at(0), Rates::default()).is_empty(), "no quota, no level");
        meter.begin(at(0), RATES).expect("fresh");
        meter.take_characters(at(0), RATES, 60);
        let [requests, characters] = meter.levels(at(0), RATES)[..] else { panic!("two quotas") };
        assert_eq!((requests.limit, requests.remaining, requests.reset), (3, 2, Span::from_millis(20_000)));
        assert_eq!((characters.limit, characters.remaining), (600, 540));
        assert!(!meter.is_full(at(19_999)) && meter.is_full(at(20_000)));
        assert_eq!(meter.levels(at(20_000), RATES)[0].remaining, 3);
    }

    #[test]
    fn no_amount_of_text_overflows() {
        let mut meter = Meter::default();
        for _ in 0..4 {
            meter.take_characters(at(0), Rates { requests: 1, characters: 1 }, u64::MAX);
        }
        assert!(meter.begin(at(0), RATES).is_err());
    }
}
