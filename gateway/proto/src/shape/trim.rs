//! Silence at the ends of speech, left out while it streams.

use std::collections::VecDeque;

/// What decides whether 10 ms are silent: -50 dBFS.
const SILENT_MEAN_SQUARE: f32 = 1e-5;
/// Kept before the first sound: a consonant begins softly.
const BEFORE_MS: usize = 20;
/// Kept after the last sound: rooms and vowels end slowly.
const AFTER_MS: usize = 60;
/// Most silence held back, because it may be the last. What is longer was a pause, and goes on.
pub const HELD_MS_MAX: usize = 400;

/// Leaves out the silence before the first sound, and up to [`HELD_MS_MAX`] of it after the last. How the
/// samples are cut into pieces changes nothing.
#[derive(Clone, Debug)]
pub struct Trim {
    /// Samples of a millisecond.
    millisecond: usize,
    /// Less than one window.
    window: Vec<f32>,
    /// Silence that goes on once a sound follows it.
    held: VecDeque<f32>,
    began: bool,
}

impl Trim {
    /// For mono samples at `rate_hz`.
    #[must_use]
    pub fn new(rate_hz: u32) -> Self {
        let millisecond = (rate_hz as usize / 1_000).max(1);
        Self { millisecond, window: Vec::new(), held: VecDeque::new(), began: false }
    }

    /// Takes samples in and appends what is not left out to `out`.
    pub fn push(&mut self, samples: &[f32], out: &mut Vec<f32>) {
        let window = self.millisecond * 10;
        let mut rest = samples;
        while !rest.is_empty() {
            let (part, after) = rest.split_at(rest.len().min(window - self.window.len()));
            self.window.extend_from_slice(part);
            rest = after;
            if self.window.len() == window {
                self.end_window(out);
            }
        }
    }

    /// Lets go of what is held: a pause that was asked for follows.
    pub fn release(&mut self, out: &mut Vec<f32>) {
        if self.began {
            out.extend(self.held.drain(..));
            out.append(&mut self.window);
        }
    }

    /// The end: what is held is left out, but for the decay of the last sound.
    pub fn finish(&mut self, out: &mut Vec<f32>) {
        self.end_window(out);
        if self.began {
            let kept = self.held.len().min(self.millisecond * AFTER_MS);
            out.extend(self.held.drain(..kept));
        }
        self.held.clear();
    }

    fn end_window(&mut self, out: &mut Vec<f32>) {
        let energy: f32 = self.window.iter().map(|sample| sample * sample).sum();
        // Anything but a number counts as sound: who follows refuses it.
        let silent = energy <= SILENT_MEAN_SQUARE * self.window.len() as f32;
        self.held.extend(self.window.drain(..));
        if !silent {
            self.began = true;
            out.extend(self.held.drain(..));
            return;
        }
        let max = self.millisecond * if self.began { HELD_MS_MAX } else { BEFORE_MS };
        let surplus = self.held.len().saturating_sub(max);
        if self.began {
            out.extend(self.held.drain(..surplus));
        } else {
            self.held.drain(..surplus);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: u32 = 24_000;

    fn trimmed(samples: &[f32], piece: usize) -> Vec<f32> {
        let mut trim = Trim::new(RATE);
        let mut out = Vec::new();
        for piece in samples.chunks(piece) {
            trim.push(piece, &mut out);
        }
        trim.finish(&mut out);
        out
    }

    /// Seconds of silence or of a tone in turn, beginning with silence.
    fn turns(seconds: &[f64]) -> Vec<f32> {
        let mut samples = Vec::new();
        for (turn, seconds) in seconds.iter().enumerate() {
            let level = if turn % 2 == 1 { 0.2 } else { 0.0 };
            samples.resize(samples.len() + (seconds * f64::from(RATE)) as usize, level);
        }
        samples
    }

    #[test]
    fn silence_at_the_ends_goes_and_silence_within_stays() {
        let samples = turns(&[0.5, 1.0, 0.7, 1.0, 0.3]);
        let out = trimmed(&samples, samples.len());
        let milliseconds = out.len() * 1_000 / RATE as usize;
        assert_eq!(milliseconds, BEFORE_MS + 1_000 + 700 + 1_000 + AFTER_MS);
    }

    #[test]
    fn a_long_silence_at_the_end_goes_only_as_far_as_it_is_held() {
        let out = trimmed(&turns(&[0.0, 1.0, 2.0]), 1_920);
        assert_eq!(out.len() * 1_000 / RATE as usize, 1_000 + 2_000 - HELD_MS_MAX + AFTER_MS);
    }

    #[test]
    fn pieces_of_any_size_give_the_same_samples() {
        let samples = turns(&[0.123, 0.5, 0.31, 0.002, 0.2, 0.7, 0.45]);
        let whole = trimmed(&samples, samples.len());
        for piece in [1, 7, 239, 240, 241, 1_920] {
            assert_eq!(trimmed(&samples, piece), whole, "{piece}");
        }
    }

    #[test]
    fn nothing_but_silence_gives_nothing() {
        assert!(trimmed(&turns(&[3.0]), 1_920).is_empty());
    }
}
