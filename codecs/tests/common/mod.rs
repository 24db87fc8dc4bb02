//! Signals shared by the tests of this crate.
#![allow(dead_code, unreachable_pub)] // Each test file uses its own part.

/// Speech-like: gliding harmonics with a syllable rhythm, peak about 0.6.
pub fn voice(samples: usize, rate_hz: u32) -> Vec<f32> {
    let rate = rate_hz as f32;
    let mut phase = 0.0f32;
    (0..samples)
        .map(|index| {
            let seconds = index as f32 / rate;
            phase = (phase + (120.0 + 30.0 * (seconds * 2.5).sin()) / rate).fract();
            let harmonics: f32 =
                (1..20).map(|n| (std::f32::consts::TAU * phase * n as f32).sin() / n as f32).sum();
            0.2 * harmonics * (0.55 + 0.45 * (seconds * 25.0).sin())
        })
        .collect()
}

pub fn sine(samples: usize, rate_hz: u32, hertz: f64, amplitude: f64) -> Vec<f32> {
    let step = std::f64::consts::TAU * hertz / f64::from(rate_hz);
    (0..samples).map(|index| (amplitude * (step * index as f64).sin()) as f32).collect()
}

/// Signal to noise of `got` against `want`, in dB.
pub fn snr_db(want: &[f32], got: &[f32]) -> f64 {
    assert_eq!(want.len(), got.len());
    let energy: f64 = want.iter().map(|sample| f64::from(*sample).powi(2)).sum();
    let noise: f64 = want.iter().zip(got).map(|(a, b)| f64::from(a - b).powi(2)).sum();
    10.0 * (energy / noise.max(1e-30)).log10()
}

/// Shift of `got` against `want` (positive: late) with the highest correlation, within `reach` samples.
pub fn best_lag(want: &[f32], got: &[f32], reach: i64) -> i64 {
    let at = |signal: &[f32], index: i64| {
        usize::try_from(index).ok().and_then(|index| signal.get(index)).copied().unwrap_or(0.0)
    };
    let score = |lag: i64| -> f64 {
        (0..want.len() as i64).map(|index| f64::from(at(want, index)) * f64::from(at(got, index + lag))).sum()
    };
    (-reach..=reach).max_by(|a, b| score(*a).total_cmp(&score(*b))).unwrap_or(0)
}

/// Small generator for tests that want many cheap random numbers from one seed (splitmix64).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}
