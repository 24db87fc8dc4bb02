//! Loudness of speech brought to a target in LUFS (EBU R 128, measured by `ebur128`).
//!
//! While sound streams, its loudness is not known yet: the gain follows what was measured so far
//! ([`Leveller`]). A whole recording gets one gain ([`level`]).

use ebur128::{EbuR128, Mode};

use crate::CodecError;

/// Bounds of the gain, in dB: what needs more is no speech.
const GAIN_DB_MAX: f64 = 20.0;
/// How fast the gain moves, in dB a second.
const GAIN_DB_PER_SECOND: f64 = 6.0;
/// No sample leaves above -1 dBFS.
const PEAK_MAX: f32 = 0.891;
/// The gain is chosen anew for each of these.
const BLOCKS_PER_SECOND: u32 = 10;

/// Levels a stream of mono samples. Where it is cut into pieces changes nothing, and nothing is held back.
#[derive(Debug)]
pub struct Leveller {
    meter: EbuR128,
    target_lufs: f64,
    /// Samples of a block, and those of the current one that have passed.
    block: usize,
    passed: usize,
    gain_db: f64,
    /// What the gain moves by with each sample of the block.
    step_db: f64,
}

impl Leveller {
    /// For samples at `rate_hz`.
    ///
    /// # Errors
    /// A rate that cannot be measured.
    pub fn new(rate_hz: u32, target_lufs: f64) -> Result<Self, CodecError> {
        let block = (rate_hz / BLOCKS_PER_SECOND).max(1) as usize;
        Ok(Self { meter: meter(rate_hz)?, target_lufs, block, passed: 0, gain_db: 0.0, step_db: 0.0 })
    }

    /// Levels `samples` in place.
    ///
    /// # Errors
    /// [`CodecError::NonFinite`] for samples that are no numbers; nothing was changed.
    pub fn push(&mut self, samples: &mut [f32]) -> Result<(), CodecError> {
        crate::error::check_finite(samples, 0)?;
        let mut rest = samples;
        while !rest.is_empty() {
            if self.passed == self.block {
                self.passed = 0;
                self.next_block();
            }
            let (part, after) = rest.split_at_mut(rest.len().min(self.block - self.passed));
            self.meter.add_frames_f32(part).map_err(unmeasured)?;
            for sample in part.iter_mut() {
                self.gain_db += self.step_db;
                *sample = self.amplified(*sample);
            }
            self.passed += part.len();
            rest = after;
        }
        Ok(())
    }

    fn next_block(&mut self) {
        let goal = goal_db(&self.meter, self.target_lufs).unwrap_or(self.gain_db);
        let furthest = GAIN_DB_PER_SECOND / f64::from(BLOCKS_PER_SECOND);
        self.step_db = (goal - self.gain_db).clamp(-furthest, furthest) / self.block as f64;
    }

    fn amplified(&mut self, sample: f32) -> f32 {
        let louder = sample * linear(self.gain_db);
        if louder.abs() <= PEAK_MAX {
            return louder;
        }
        // The gain gives way at once, and comes back as slowly as it always moves.
        self.gain_db = 20.0 * f64::from(PEAK_MAX / sample.abs()).log10();
        PEAK_MAX.copysign(sample)
    }
}

/// Levels a whole recording of mono samples with one gain, lower where its peak would be too high.
///
/// # Errors
/// A rate that cannot be measured, or samples that are no numbers.
pub fn level(samples: &mut [f32], rate_hz: u32, target_lufs: f64) -> Result<(), CodecError> {
    crate::error::check_finite(samples, 0)?;
    let mut meter = meter(rate_hz)?;
    meter.add_frames_f32(samples).map_err(unmeasured)?;
    let Some(goal) = goal_db(&meter, target_lufs) else { return Ok(()) };
    let peak = samples.iter().fold(0.0_f32, |peak, sample| peak.max(sample.abs()));
    let gain = linear(goal).min(PEAK_MAX / peak.max(f32::MIN_POSITIVE));
    for sample in samples {
        *sample *= gain;
    }
    Ok(())
}

fn meter(rate_hz: u32) -> Result<EbuR128, CodecError> {
    EbuR128::new(1, rate_hz, Mode::I | Mode::HISTOGRAM).map_err(unmeasured)
}

/// The gain that what was measured needs; none before there is anything to measure.
fn goal_db(meter: &EbuR128, target_lufs: f64) -> Option<f64> {
    let lufs = meter.loudness_global().ok().filter(|lufs| lufs.is_finite())?;
    Some((target_lufs - lufs).clamp(-GAIN_DB_MAX, GAIN_DB_MAX))
}

fn linear(db: f64) -> f32 {
    10.0_f64.powf(db / 20.0) as f32
}

fn unmeasured(error: ebur128::Error) -> CodecError {
    CodecError::Library { operation: "measuring loudness", reason: error.to_string() }
}
