//! Speed without pitch, on a voice of the embedded model; and what is spoken, as FLAC.

use codecs::stretch::Stretch;

const RATE: u32 = 24_000;

fn voice() -> Vec<f32> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../config/models/tiny/voices/marcus.wav");
    let mut file = hound::WavReader::open(path).expect("the voice's clip");
    file.samples::<i16>().map(|sample| f32::from(sample.expect("a sample")) / 32_768.0).collect()
}

fn stretched(samples: &[f32], speed: f64, piece: usize) -> Vec<f32> {
    let mut stretch = Stretch::new(RATE, speed).expect("a speed");
    let mut out = Vec::new();
    for piece in samples.chunks(piece) {
        stretch.push(piece, &mut out).expect("finite");
    }
    stretch.finish(&mut out);
    out
}

/// Three seconds of a voice that holds one pitch: ten harmonics, louder and softer four times a second, as syllables
/// are.
fn sung(hertz: f64) -> Vec<f32> {
    let turn = std::f64::consts::TAU / f64::from(RATE);
    let at = |n: u32| {
        let t = f64::from(n) * turn;
        let tone: f64 = (1..=10).map(|k| (t * hertz * f64::from(k)).sin() / f64::from(k)).sum();
        (tone * (0.2 + 0.1 * (t * 4.0).sin())) as f32
    };
    (0..3 * RATE).map(at).collect()
}

/// Hertz of the voice in its loud parts: the median of autocorrelation peaks between 60 and 400 Hz.
fn pitch(samples: &[f32]) -> f64 {
    let mut found: Vec<f64> = Vec::new();
    for window in samples.chunks_exact(1_200) {
        let power: f32 = window.iter().map(|sample| sample * sample).sum();
        if power < 3.0 {
            continue;
        }
        let peak = (60..400).map(|lag| {
            let sum: f32 = window[lag..].iter().zip(window).map(|(a, b)| a * b).sum();
            (lag, sum / power)
        });
        let (lag, likeness) = peak.max_by(|a, b| a.1.total_cmp(&b.1)).expect("lags");
        if likeness > 0.5 {
            found.push(f64::from(RATE) / lag as f64);
        }
    }
    found.sort_by(f64::total_cmp);
    assert!(found.len() > 5, "a voice is heard");
    found[found.len() / 2]
}

#[test]
fn every_speed_has_its_exact_length_and_keeps_the_pitch() {
    let (voice, sung) = (voice(), sung(130.0));
    for speed in [0.25, 0.5, 0.8, 1.0, 1.25, 2.0, 4.0] {
        let out = stretched(&voice, speed, 1_920);
        assert_eq!(out.len(), (voice.len() as f64 / speed).round() as usize);
        let heard = pitch(&stretched(&sung, speed, 1_920));
        assert!((heard / 130.0 - 1.0).abs() < 0.03, "{speed}: {heard} Hz, not 130");
        let loudness = |samples: &[f32]| {
            (samples.iter().map(|s| f64::from(s * s)).sum::<f64>() / samples.len() as f64).sqrt()
        };
        let gain = loudness(&out) / loudness(&voice);
        assert!((0.8..1.2).contains(&gain), "{speed}: {gain}");
    }
}

#[test]
fn how_the_input_is_cut_changes_no_sample() {
    let voice = voice();
    let whole = stretched(&voice, 1.3, voice.len());
    for piece in [1, 77, 1_920] {
        assert!(
            stretched(&voice[..20_000], 1.3, piece) == stretched(&voice[..20_000], 1.3, 20_000),
            "{piece}"
        );
    }
    assert_eq!(whole.len(), (voice.len() as f64 / 1.3).round() as usize);
}

#[test]
fn impossible_speeds_and_samples_are_refused_and_nothing_stays_nothing() {
    for speed in [0.2, 4.1, f64::NAN, -1.0] {
        assert!(Stretch::new(RATE, speed).is_err(), "{speed}");
    }
    assert!(Stretch::new(RATE, 2.0).expect("a speed").push(&[f32::NAN], &mut Vec::new()).is_err());
    assert!(stretched(&[], 2.0, 1).is_empty());
    assert_eq!(stretched(&[0.1; 10], 0.5, 3).len(), 20);
}
