//! The tones a scripted voice speaks.

/// Frequency in hertz of the tone that names `id`: 64 tones, 40 Hz apart, from 300 Hz.
#[must_use]
pub fn tone_hz(id: u64) -> f64 {
    300.0 + 40.0 * (id % 64) as f64
}

/// A sine made by rotation, so that a sample costs four multiplications.
#[derive(Clone, Debug)]
pub struct Tone {
    re: f64,
    im: f64,
    step_re: f64,
    step_im: f64,
}

impl Tone {
    /// Peak of every tone: about -10 dBFS.
    pub const PEAK: f64 = 0.3;

    #[must_use]
    pub fn new(hz: f64, sample_rate: u32) -> Self {
        let angle = std::f64::consts::TAU * hz / f64::from(sample_rate);
        Self { re: 1.0, im: 0.0, step_re: angle.cos(), step_im: angle.sin() }
    }

    /// The next `count` samples; the first sample of a tone is 0.
    #[must_use]
    pub fn take(&mut self, count: usize) -> Box<[f32]> {
        let mut samples = Vec::with_capacity(count);
        for _ in 0..count {
            samples.push((self.im * Self::PEAK) as f32);
            let re = self.re * self.step_re - self.im * self.step_im;
            self.im = self.re * self.step_im + self.im * self.step_re;
            self.re = re;
        }
        // Rotation drifts off the unit circle by rounding; once per call is often enough.
        let norm = self.re.hypot(self.im);
        self.re /= norm;
        self.im /= norm;
        samples.into_boxed_slice()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tone_is_the_sine_of_its_frequency_however_it_is_cut() {
        let mut tone = Tone::new(tone_hz(5), 24_000);
        let mut samples = tone.take(700).into_vec();
        samples.extend(tone.take(23_300));
        for (n, &sample) in samples.iter().enumerate() {
            let exact = Tone::PEAK * (std::f64::consts::TAU * 500.0 * n as f64 / 24_000.0).sin();
            assert!((f64::from(sample) - exact).abs() < 1e-5, "sample {n}");
        }
    }
}
