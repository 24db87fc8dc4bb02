//! The sample stream a listener gets, made of an engine's: silence at its ends left out where that was asked
//! for, pauses put between its segments.
//!
//! From here on positions count the listener's stream. An engine knows only its own; [`Shape::ahead`] is the
//! difference.

mod trim;

use std::collections::VecDeque;

use contract::Span;

pub use trim::{HELD_MS_MAX, Trim};

/// Shapes the samples of one epoch. All samples are mono, at the model's rate.
#[derive(Clone, Debug)]
pub struct Shape {
    rate: u32,
    trim: Option<Trim>,
    /// The segment that text goes into.
    segment: u32,
    /// Segments before which there is a pause, and its samples.
    pauses: VecDeque<(u32, u64)>,
    /// Samples the engine has made, and samples of the listener's stream.
    made: u64,
    given: u64,
    /// Segments whose sound is complete.
    ended: u32,
}

impl Shape {
    /// For samples at `rate` hertz; `trim` leaves silence at the ends out.
    #[must_use]
    pub fn new(rate: u32, trim: bool) -> Self {
        let trim = trim.then(|| Trim::new(rate));
        Self { rate, trim, segment: 0, pauses: VecDeque::new(), made: 0, given: 0, ended: 0 }
    }

    /// The text goes on with another segment.
    pub fn handle_cut(&mut self) {
        self.segment += 1;
    }

    /// A pause of `ms` before the text's next segment; gives the silence if it is due at once.
    pub fn handle_pause(&mut self, ms: u32) -> Box<[f32]> {
        let samples = u64::from(ms) * u64::from(self.rate) / 1_000;
        if samples > 0 {
            self.pauses.push_back((self.segment, samples));
        }
        self.silence()
    }

    /// Samples of a segment, in order; gives what goes on to the listener.
    pub fn handle_samples(&mut self, segment: u32, samples: Box<[f32]>) -> Box<[f32]> {
        self.made += samples.len() as u64;
        let first = segment == 0 && self.pauses.front().is_some_and(|(before, _)| *before == 0);
        if self.trim.is_none() && !first {
            self.given += samples.len() as u64;
            return samples;
        }
        let mut out = Vec::new();
        self.pauses_until(segment, &mut out);
        match &mut self.trim {
            Some(trim) => trim.push(&samples, &mut out),
            None => out.extend_from_slice(&samples),
        }
        self.give(out)
    }

    /// A segment's sound is complete; gives the pause that follows it.
    pub fn handle_segment_end(&mut self, segment: u32) -> Box<[f32]> {
        self.ended = self.ended.max(segment.saturating_add(1));
        self.silence()
    }

    /// The epoch's sound is complete; gives what is left.
    pub fn finish(&mut self) -> Box<[f32]> {
        let mut out = Vec::new();
        // A pause at the end was asked for; silence before it is the model's.
        self.pauses_until(u32::MAX, &mut out);
        if let Some(trim) = &mut self.trim {
            trim.finish(&mut out);
        }
        self.give(out)
    }

    /// Position of the engine's next sample in its own stream.
    #[must_use]
    pub const fn made(&self) -> u64 {
        self.made
    }

    /// Samples of the listener's stream so far.
    #[must_use]
    pub const fn given(&self) -> u64 {
        self.given
    }

    /// By how much the listener's stream, heard at `heard_rate` hertz, is longer than the engine's: what the
    /// engine makes next is due later by that; sooner, where it is heard faster than it is made.
    #[must_use]
    pub fn ahead(&self, heard_rate: u32) -> Span {
        let (given, made) =
            (Span::of_samples(self.given, heard_rate), Span::of_samples(self.made, self.rate));
        given - made
    }

    /// Pauses after segments that have ended.
    fn silence(&mut self) -> Box<[f32]> {
        let mut out = Vec::new();
        if self.ended > 0 {
            self.pauses_until(self.ended, &mut out);
        }
        self.give(out)
    }

    fn pauses_until(&mut self, segment: u32, out: &mut Vec<f32>) {
        while let Some((_, samples)) = self.pauses.pop_front_if(|(before, _)| *before <= segment) {
            if let Some(trim) = &mut self.trim {
                trim.release(out);
            }
            let samples = usize::try_from(samples).unwrap_or(0);
            out.resize(out.len() + samples, 0.0);
        }
    }

    fn give(&mut self, samples: Vec<f32>) -> Box<[f32]> {
        self.given += samples.len() as u64;
        samples.into_boxed_slice()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: u32 = 24_000;

    #[test]
    fn pauses_stand_before_between_and_after_segments_and_shift_what_follows() {
        let mut shape = Shape::new(RATE, false);
        assert!(shape.handle_pause(100).is_empty());
        shape.handle_cut();
        assert!(shape.handle_pause(500).is_empty());
        shape.handle_cut();
        assert_eq!(shape.handle_samples(0, vec![0.5; 240].into()).len(), 2_400 + 240);
        assert_eq!(shape.ahead(RATE), Span::from_millis(100));
        assert_eq!(shape.handle_segment_end(0).len(), 12_000);
        assert_eq!(shape.handle_samples(1, vec![0.5; 240].into()).len(), 240);
        assert_eq!((shape.made(), shape.given()), (480, 480 + 14_400));
        assert!(shape.handle_segment_end(1).is_empty());
        // Asked for after the sound before it was made: due at once.
        assert_eq!(shape.handle_pause(10).len(), 240);
        assert!(shape.finish().is_empty());
        assert_eq!(shape.ahead(RATE), Span::from_millis(610));
    }

    #[test]
    fn trimming_leaves_asked_pauses_and_the_silence_before_them_alone() {
        let mut shape = Shape::new(RATE, true);
        let mut total = shape.handle_samples(0, vec![0.0; 12_000].into()).len();
        total += shape.handle_samples(0, vec![0.5; 2_400].into()).len();
        total += shape.handle_samples(0, vec![0.0; 2_400].into()).len();
        shape.handle_cut();
        total += shape.handle_pause(100).len();
        total += shape.handle_segment_end(0).len();
        assert_eq!(total, 480 + 2_400 + 2_400 + 2_400);
        total += shape.handle_samples(1, vec![0.5; 2_400].into()).len();
        total += shape.handle_samples(1, vec![0.0; 7_200].into()).len();
        total += shape.finish().len();
        assert_eq!(total, 7_680 + 2_400 + 1_440);
        assert_eq!(shape.given(), total as u64);
    }
}
