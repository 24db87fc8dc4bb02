//! Resampling: exact lengths, alignment, quality, and independence of how the input is cut.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

mod common;

use codecs::CodecError;
use codecs::resample::{Resampler, resample_all};
use common::{sine, snr_db, voice};
use proptest::prelude::*;

const PAIRS: [(u32, u32); 14] = [
    (24_000, 8_000),
    (24_000, 12_000),
    (24_000, 16_000),
    (24_000, 22_050),
    (24_000, 32_000),
    (24_000, 44_100),
    (24_000, 48_000),
    (8_000, 24_000),
    (11_025, 24_000),
    (16_000, 24_000),
    (22_050, 24_000),
    (44_100, 24_000),
    (48_000, 24_000),
    (96_000, 24_000),
];

#[test]
fn the_output_has_the_rounded_length_for_every_pair() {
    for (from, to) in PAIRS {
        for samples in [0usize, 1, 2, 3, 479, 480, 481, 5_000, 24_000] {
            let expected = (samples as f64 * f64::from(to) / f64::from(from) + 0.5).floor() as usize;
            let out = resample_all(&voice(samples, from), from, to).unwrap();
            assert_eq!(out.len(), expected, "{samples} samples from {from} to {to}");
        }
    }
}

#[test]
fn a_sine_in_the_passband_stays_the_same_sine() {
    for (from, to) in PAIRS {
        let samples = from as usize / 2;
        // Up to 0.7 of the lower rate's Nyquist frequency.
        for hertz in [200.0, 1_000.0, 0.35 * f64::from(from.min(to))] {
            let out = resample_all(&sine(samples, from, hertz, 0.5), from, to).unwrap();
            let want = sine(out.len(), to, hertz, 0.5);
            // The ends lean on the silence before and after, so they are left out.
            let edge = to as usize / 20;
            let snr = snr_db(&want[edge..want.len() - edge], &out[edge..out.len() - edge]);
            assert!(snr > 90.0, "{hertz} Hz from {from} to {to}: {snr:.1} dB");
        }
    }
}

#[test]
fn what_the_target_rate_cannot_hold_is_removed() {
    for (from, to) in [(24_000, 8_000), (24_000, 16_000), (48_000, 24_000), (44_100, 24_000)] {
        let hertz = 0.5 * f64::from(to) * 1.15;
        let out = resample_all(&sine(from as usize / 2, from, hertz, 0.5), from, to).unwrap();
        let edge = to as usize / 20;
        let peak = out[edge..out.len() - edge].iter().fold(0f32, |peak, sample| peak.max(sample.abs()));
        assert!(peak < 5e-5, "{hertz} Hz leaks {peak} from {from} to {to}");
    }
}

#[test]
fn an_impulse_stays_within_a_sample_of_its_time() {
    for (from, to) in PAIRS {
        for at in [0usize, 1, 777, 2_999] {
            let mut input = vec![0.0; 3_000];
            input[at] = 1.0;
            let out = resample_all(&input, from, to).unwrap();
            let peak = (0..out.len()).max_by(|a, b| out[*a].abs().total_cmp(&out[*b].abs())).unwrap();
            let expected = at as f64 * f64::from(to) / f64::from(from);
            assert!((peak as f64 - expected).abs() <= 1.0, "{at} from {from} to {to}: {peak}, {expected}");
        }
    }
}

#[test]
fn the_end_of_the_sound_is_not_lost() {
    let mut input = vec![0.0; 10_000];
    input[9_990..].fill(0.5);
    for (from, to) in PAIRS {
        let out = resample_all(&input, from, to).unwrap();
        let late = out[out.len() - 4..].iter().fold(0f32, |peak, sample| peak.max(sample.abs()));
        assert!(late > 0.1, "from {from} to {to}: {late}");
    }
}

#[test]
fn equal_rates_pass_through_bit_for_bit() {
    let input = voice(1_234, 24_000);
    assert_eq!(resample_all(&input, 24_000, 24_000).unwrap(), input);
    assert_eq!(Resampler::new(24_000, 24_000).unwrap().hold_back_samples(), 0);
}

#[test]
fn no_more_than_the_stated_samples_are_held_back() {
    for (from, to) in PAIRS {
        let mut resampler = Resampler::new(from, to).unwrap();
        let mut out = Vec::new();
        for _ in 0..400 {
            resampler.push(&[0.1; 37], &mut out).unwrap();
        }
        let held = 400 * 37 - out.len() * from as usize / to as usize;
        assert!(held <= resampler.hold_back_samples() + 1, "{held} from {from} to {to}");
    }
}

#[test]
fn finish_and_reset_start_a_new_stream() {
    let input = voice(3_000, 24_000);
    let expected = resample_all(&input, 24_000, 16_000).unwrap();
    let mut resampler = Resampler::new(24_000, 16_000).unwrap();
    let mut out = Vec::new();
    for _ in 0..2 {
        out.clear();
        resampler.push(&input, &mut out).unwrap();
        resampler.finish(&mut out).unwrap();
        assert_eq!(out, expected);
    }
    resampler.push(&input[..1_111], &mut out).unwrap();
    resampler.reset();
    out.clear();
    resampler.push(&input, &mut out).unwrap();
    resampler.finish(&mut out).unwrap();
    assert_eq!(out, expected);
}

#[test]
fn a_sample_that_is_not_finite_is_refused_and_changes_nothing() {
    let input = voice(3_000, 24_000);
    let mut resampler = Resampler::new(24_000, 48_000).unwrap();
    let mut out = Vec::new();
    resampler.push(&input[..1_000], &mut out).unwrap();
    let before = out.len();
    let error = resampler.push(&[0.0, f32::NAN], &mut out).unwrap_err();
    assert_eq!((error, out.len()), (CodecError::NonFinite { index: 1_001 }, before));
    resampler.push(&input[1_000..], &mut out).unwrap();
    resampler.finish(&mut out).unwrap();
    assert_eq!(out, resample_all(&input, 24_000, 48_000).unwrap());
}

#[test]
fn rates_outside_the_range_are_refused() {
    for (from, to) in [(0, 24_000), (24_000, 0), (999, 24_000), (24_000, 400_000), (u32::MAX, 1_000)] {
        assert!(matches!(Resampler::new(from, to), Err(CodecError::InvalidSetting { .. })), "{from} {to}");
    }
}

#[test]
fn rates_without_a_common_divisor_still_work() {
    let out = resample_all(&sine(44_101, 44_101, 440.0, 0.5), 44_101, 24_000).unwrap();
    assert_eq!(out.len(), 24_000);
    assert!(snr_db(&sine(24_000, 24_000, 440.0, 0.5)[2_000..22_000], &out[2_000..22_000]) > 90.0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_split_gives_identical_samples(
        pair in 0..PAIRS.len(),
        cuts in proptest::collection::vec(0usize..900, 0..20),
        rest in 0usize..900,
    ) {
        let (from, to) = PAIRS[pair];
        let input = voice(cuts.iter().sum::<usize>() + rest, from);
        let mut resampler = Resampler::new(from, to).unwrap();
        let mut out = Vec::new();
        let mut tail = input.as_slice();
        for cut in cuts {
            let (head, remaining) = tail.split_at(cut);
            resampler.push(head, &mut out).unwrap();
            tail = remaining;
        }
        resampler.push(tail, &mut out).unwrap();
        resampler.finish(&mut out).unwrap();
        prop_assert_eq!(out.len() as u64, resampler.output_len(input.len() as u64));
        prop_assert_eq!(out, resample_all(&input, from, to).unwrap());
    }
}
