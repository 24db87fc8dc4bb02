//! Loudness: measured by an ear of its own in these tests, so that the target is the true one.

use codecs::loudness::{Leveller, level};
use ebur128::{EbuR128, Mode};

const RATE: u32 = 24_000;

fn lufs(samples: &[f32]) -> f64 {
    let mut meter = EbuR128::new(1, RATE, Mode::I).expect("a meter");
    meter.add_frames_f32(samples).expect("samples");
    meter.loudness_global().expect("measured")
}

/// Bursts of a 300 Hz tone with pauses between, as words have.
fn speech(seconds: usize, level: f32) -> Vec<f32> {
    let tone = |n: usize| (n as f32 * 300.0 * std::f32::consts::TAU / RATE as f32).sin() * level;
    (0..seconds * RATE as usize).map(|n| if n / 6_000 % 4 == 3 { 0.0 } else { tone(n) }).collect()
}

#[test]
fn a_whole_recording_comes_to_its_target() {
    for (quiet, target) in [(0.04, -16.0), (0.3, -23.0), (0.1, -18.0)] {
        let mut samples = speech(5, quiet);
        level(&mut samples, RATE, target).expect("levelled");
        assert!((lufs(&samples) - target).abs() < 0.1, "{} for {target}", lufs(&samples));
    }
}

#[test]
fn a_peak_is_never_raised_above_its_bound() {
    let mut clicks = speech(5, 0.02);
    clicks[30_000] = 0.9;
    let mut streamed = clicks.clone();
    level(&mut clicks, RATE, -16.0).expect("levelled");
    Leveller::new(RATE, -16.0).expect("a leveller").push(&mut streamed).expect("levelled");
    for samples in [clicks, streamed] {
        assert!(samples.iter().all(|sample| sample.abs() <= 0.892));
    }
}

#[test]
fn a_stream_begins_as_it_is_and_comes_near_its_target_without_a_jump() {
    let before = speech(12, 0.03);
    let mut after = before.clone();
    Leveller::new(RATE, -18.0).expect("a leveller").push(&mut after).expect("levelled");
    assert_eq!(before[..9_600], after[..9_600], "the first 0.4 s are as they were");
    let end = &after[8 * RATE as usize..];
    assert!((lufs(end) + 18.0).abs() < 0.7, "{}", lufs(end));
    for at in 1..before.len() {
        if before[at - 1].abs() > 0.01 && before[at].abs() > 0.01 {
            let (earlier, later) = (after[at - 1] / before[at - 1], after[at] / before[at]);
            assert!((later / earlier - 1.0).abs() < 0.001, "{earlier} and {later} at {at}");
        }
    }
}

#[test]
fn pieces_of_any_size_are_levelled_the_same() {
    let samples = speech(3, 0.05);
    let levelled = |piece: usize| {
        let mut leveller = Leveller::new(RATE, -16.0).expect("a leveller");
        let mut all = samples.clone();
        for piece in all.chunks_mut(piece) {
            leveller.push(piece).expect("levelled");
        }
        all
    };
    let whole = levelled(samples.len());
    for piece in [1, 7, 960, 1_920, 2_400, 2_401] {
        assert_eq!(levelled(piece), whole, "{piece}");
    }
}

#[test]
fn silence_and_what_is_no_number_are_left_alone() {
    let mut silence = vec![0.0; 48_000];
    level(&mut silence, RATE, -16.0).expect("nothing to do");
    assert!(silence.iter().all(|sample| *sample == 0.0));
    let mut bad = vec![0.1, f32::NAN];
    assert!(level(&mut bad, RATE, -16.0).is_err());
    assert!(Leveller::new(RATE, -16.0).expect("a leveller").push(&mut bad).is_err());
    assert_eq!(bad[0], 0.1);
}
