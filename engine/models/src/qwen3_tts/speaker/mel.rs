//! The log-mel front end of the speaker encoder.

use std::f64::consts::PI;

/// Settings the reference package fixes in its code; no checkpoint config names them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Mel {
    /// Points of a transform, and of its window.
    pub(super) n_fft: usize,
    /// Samples from one frame to the next.
    pub(super) hop: usize,
    /// Top of the highest filter, Hz; the lowest begins at 0.
    pub(super) top_hz: f64,
    /// Added under the square root of a magnitude.
    pub(super) magnitude_eps: f32,
    /// Least value a logarithm is taken of.
    pub(super) floor: f32,
}

pub(super) const MEL: Mel = Mel { n_fft: 1024, hop: 256, top_hz: 12_000.0, magnitude_eps: 1e-9, floor: 1e-5 };

impl Mel {
    /// Samples mirrored at either end.
    pub(super) const fn pad(&self) -> usize {
        (self.n_fft - self.hop) / 2
    }

    pub(super) const fn frames(&self, samples: usize) -> usize {
        (samples + 2 * self.pad()).saturating_sub(self.n_fft) / self.hop + 1
    }

    /// Fewest samples that can be mirrored and give so many frames.
    pub(super) const fn samples_min(&self, frames: usize) -> usize {
        let spanned = (frames - 1).saturating_mul(self.hop).saturating_add(self.n_fft);
        let filled = spanned.saturating_sub(2 * self.pad());
        if filled > self.pad() { filled } else { self.pad() + 1 }
    }

    pub(super) const fn bins(&self) -> usize {
        self.n_fft / 2 + 1
    }

    /// Periodic Hann window of `n_fft` points.
    pub(super) fn window(&self) -> Vec<f32> {
        let step = 2.0 * PI / self.n_fft as f64;
        (0..self.n_fft).map(|point| (0.5 - 0.5 * (step * point as f64).cos()) as f32).collect()
    }

    /// `[bands, bins]`: triangles evenly spaced on Slaney's mel scale (Auditory Toolbox, 1998: linear up
    /// to 1 kHz, then logarithmic), each of area 1 over Hz.
    pub(super) fn filters(&self, bands: usize, sample_rate: usize) -> Vec<f32> {
        let top = mel_of(self.top_hz);
        let corners: Vec<f64> = (0..bands + 2).map(|i| hz_of(top * i as f64 / (bands + 1) as f64)).collect();
        let bin_hz = sample_rate as f64 / self.n_fft as f64;
        let triangle = |corners: &[f64], hz: f64| {
            let rising = (hz - corners[0]) / (corners[1] - corners[0]);
            let falling = (corners[2] - hz) / (corners[2] - corners[1]);
            rising.min(falling).max(0.0) * 2.0 / (corners[2] - corners[0])
        };
        corners
            .windows(3)
            .flat_map(|corners| {
                (0..self.bins()).map(move |bin| triangle(corners, bin as f64 * bin_hz) as f32)
            })
            .collect()
    }
}

/// Hz per mel below [`KNEE_HZ`].
const LINEAR_HZ: f64 = 200.0 / 3.0;
const KNEE_HZ: f64 = 1000.0;
/// Above the knee 27 mels span a factor of this.
const LOG_SPAN: f64 = 6.4;
const LOG_SPAN_MELS: f64 = 27.0;

fn mel_of(hz: f64) -> f64 {
    if hz < KNEE_HZ {
        hz / LINEAR_HZ
    } else {
        KNEE_HZ / LINEAR_HZ + (hz / KNEE_HZ).ln() * LOG_SPAN_MELS / LOG_SPAN.ln()
    }
}

fn hz_of(mel: f64) -> f64 {
    let knee = KNEE_HZ / LINEAR_HZ;
    if mel < knee { mel * LINEAR_HZ } else { KNEE_HZ * ((mel - knee) * LOG_SPAN.ln() / LOG_SPAN_MELS).exp() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mel_scale_and_its_inverse_agree_and_meet_at_the_knee() {
        for hz in [0.0, 50.0, 999.9, 1000.0, 1000.1, 4321.0, 12_000.0] {
            assert!((hz_of(mel_of(hz)) - hz).abs() < 1e-8 * (1.0 + hz));
        }
        assert!((mel_of(1000.0) - 15.0).abs() < 1e-12);
        assert!((mel_of(6400.0) - 42.0).abs() < 1e-12);
    }

    #[test]
    fn wide_filters_have_area_one_over_hz() {
        let filters = MEL.filters(128, 24_000);
        for band in [100, 110, 127] {
            let row = &filters[band * MEL.bins()..(band + 1) * MEL.bins()];
            let area: f64 =
                row.iter().map(|&value| f64::from(value)).sum::<f64>() * 24_000.0 / MEL.n_fft as f64;
            assert!((area - 1.0).abs() < 0.02, "band {band}: {area}");
        }
    }

    #[test]
    fn the_window_is_periodic() {
        let window = MEL.window();
        assert_eq!(window[0], 0.0);
        assert_eq!(window[MEL.n_fft / 2], 1.0);
        assert!((window[1] - window[MEL.n_fft - 1]).abs() < 1e-9);
    }
}
