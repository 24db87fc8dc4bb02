//! Who comes when: Poisson arrivals on an absolute schedule, from a seed.
//!
//! The schedule is drawn before the run and never moves: a slow server does not lower the offered load
//! (open loop), and every time is measured from the scheduled arrival, not from when the generator got
//! round to it.

use contract::Span;

use crate::mood::{Habits, Moods};
use crate::random::Random;

/// One request of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Arrival {
    /// From the start of the run.
    pub at: Span,
    /// Index into the workload.
    pub utterance: usize,
    pub habits: Habits,
    /// For everything random about this request.
    pub seed: u64,
    /// Within the lead-in: sent, heard, and not counted.
    pub discarded: bool,
}

/// Poisson arrivals at `rate` a second over a lead-in and a window, by utterances in random order.
#[must_use]
pub fn arrivals(
    rate: f64,
    lead_in: Span,
    window: Span,
    seed: u64,
    utterances: usize,
    moods: &Moods,
) -> Vec<Arrival> {
    let mut random = Random::new(seed ^ rate.to_bits().rotate_left(17));
    let mut made = Vec::new();
    if rate.is_nan() || rate <= 0.0 || utterances == 0 {
        return made;
    }
    let end_us = (lead_in + window).as_micros() as f64;
    let mut at_us = 0.0;
    loop {
        at_us += random.exponential(1_000_000.0 / rate);
        if at_us >= end_us {
            return made;
        }
        let at = Span::from_micros(at_us as i64);
        let mood = moods.pick(random.unit());
        let utterance = random.below(utterances);
        let seed = random.next();
        let habits = Habits::draw(mood, &mut Random::new(seed));
        made.push(Arrival { at, utterance, habits, seed, discarded: at < lead_in });
    }
}
