//! Faster and slower speech of the same pitch, by waveform similarity overlap-add (crate `wsola`).
//!
//! The library answers in whole hops and ends on one. [`Stretch`] hides that: pieces of any length go in,
//! and `n` samples make exactly `round(n / speed)`. How the input is cut never changes a bit of the output.

use std::num::{NonZeroU16, NonZeroU32};

use wsola::TimeStretch;

use crate::CodecError;
use crate::error::check_finite;

/// Bounds of a speed: 2 is twice as fast.
pub const SPEED_MIN: f64 = wsola::MIN_TEMPO as f64;
pub const SPEED_MAX: f64 = wsola::MAX_TEMPO as f64;

/// Hops taken from the library at once.
const HOPS: usize = 8;
/// Seconds of input one hop may wait for: a frame of 30 ms and the search of 12 ms on either side of it.
const HOLD_BACK_MS: u32 = 60;

/// Changes the speed of one stream of mono samples.
pub struct Stretch {
    inner: TimeStretch,
    rate_hz: u32,
    speed: f64,
    samples_in: u64,
    samples_out: u64,
    hops: Vec<f32>,
}

impl Stretch {
    /// # Errors
    /// [`CodecError::InvalidSetting`] for a speed outside [`SPEED_MIN`] to [`SPEED_MAX`], or a rate of 0.
    pub fn new(rate_hz: u32, speed: f64) -> Result<Self, CodecError> {
        if !(SPEED_MIN..=SPEED_MAX).contains(&speed) {
            let value = (speed * 1_000.0) as i64;
            return Err(CodecError::InvalidSetting {
                setting: "speed in thousandths",
                value,
                allowed: "250 to 4000",
            });
        }
        let invalid = |value: u32| CodecError::InvalidSetting {
            setting: "rate in Hz",
            value: i64::from(value),
            allowed: "1 and more",
        };
        let rate = NonZeroU32::new(rate_hz).ok_or(invalid(rate_hz))?;
        let mut inner = TimeStretch::new(rate, NonZeroU16::MIN).map_err(|error| CodecError::Library {
            operation: "making a stretch",
            reason: error.to_string(),
        })?;
        inner.set_tempo(speed as f32);
        let hops = vec![0.0; inner.min_output_buff_size() * HOPS];
        Ok(Self { inner, rate_hz, speed, samples_in: 0, samples_out: 0, hops })
    }

    /// How many samples `samples_in` become.
    #[must_use]
    pub fn output_len(&self, samples_in: u64) -> u64 {
        (samples_in as f64 / self.speed).round() as u64
    }

    /// Most input samples that can be held back before `samples_out` more come out.
    #[must_use]
    pub fn needed_for(&self, samples_out: usize) -> usize {
        (samples_out as f64 * self.speed).ceil() as usize + (HOLD_BACK_MS * self.rate_hz / 1_000) as usize
    }

    /// Takes a piece of any length and appends what is ready to `out`.
    ///
    /// # Errors
    /// [`CodecError::NonFinite`] before anything is taken.
    pub fn push(&mut self, samples: &[f32], out: &mut Vec<f32>) -> Result<(), CodecError> {
        check_finite(samples, self.samples_in)?;
        self.samples_in += samples.len() as u64;
        self.inner.push(samples);
        self.pull(out);
        Ok(())
    }

    /// Ends the stream: the output has the length it promised.
    pub fn finish(&mut self, out: &mut Vec<f32>) {
        let begin = out.len();
        let before = self.samples_out;
        self.inner.set_draining();
        self.pull(out);
        // The library ends on a hop: what is beyond is its window's tail, what lacks is silence.
        let due = self.output_len(self.samples_in).saturating_sub(before);
        out.resize(begin + usize::try_from(due).unwrap_or(usize::MAX), 0.0);
    }

    fn pull(&mut self, out: &mut Vec<f32>) {
        // An error says that there is not enough input for another hop.
        while let Ok(written) = self.inner.pull(&mut self.hops) {
            if written == 0 {
                return;
            }
            out.extend_from_slice(&self.hops[..written]);
            self.samples_out += written as u64;
        }
    }
}
