//! Turns of voices and in noises that the detector's margin was not chosen on: it was chosen on clara and marcus in
//! white noise (`turns`), and how long a voice sounds on them beside strokes of keys unlike these; here speak nora and
//! june, in noise of other colours, over both telephone codes.

use serde_json::json;

use crate::client::Client;
use crate::turns::{RATE, append, check, pcm, sentence, silence, telephone, times};

/// Uniform, the same in every run, -1 to 1.
struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1_u64 << 52) as f64 - 1.0
    }
}

type Noise = (&'static str, fn(usize) -> Vec<f64>);

/// Of about -40 dBFS each, save the keys, which are louder and short.
const NOISES: [Noise; 6] = [
    ("none", |count| vec![0.0; count]),
    ("pink", pink),
    ("rumble", rumble),
    ("hum", hum),
    ("keys", keys),
    ("typing", typing),
];

/// Brought to -40 dBFS.
fn levelled(samples: Vec<f64>) -> Vec<f64> {
    let power = samples.iter().map(|sample| sample * sample).sum::<f64>() / samples.len() as f64;
    samples.iter().map(|sample| sample * 327.68 / power.sqrt()).collect()
}

/// Sixteen octaves of held random values (Voss).
fn pink(count: usize) -> Vec<f64> {
    let mut random = Random(7);
    let mut rows = [0.0; 16];
    let samples = (1..=count).map(|n| {
        rows[(n.trailing_zeros() as usize).min(15)] = random.next();
        rows.iter().sum::<f64>()
    });
    levelled(samples.collect())
}

/// A road far away: brown noise that leaks.
fn rumble(count: usize) -> Vec<f64> {
    let (mut random, mut level) = (Random(11), 0.0);
    let samples = (0..count).map(|_| {
        level = level * 0.995 + random.next();
        level
    });
    levelled(samples.collect())
}

/// The mains and its harmonics.
fn hum(count: usize) -> Vec<f64> {
    let samples = (0..count).map(|n| {
        let at = n as f64 / RATE as f64 * std::f64::consts::TAU;
        (1..6).map(|harmonic| (at * 50.0 * f64::from(harmonic)).sin() / f64::from(harmonic)).sum::<f64>()
    });
    levelled(samples.collect())
}

/// Six strokes a second: bursts of 15 ms that die away, at -20 dBFS.
fn keys(count: usize) -> Vec<f64> {
    let mut random = Random(13);
    let stroke = RATE / 6;
    (0..count)
        .map(|n| {
            let since = (n % stroke) as f64 / RATE as f64;
            random.next() * 3_276.8 * (-since / 0.005).exp()
        })
        .collect()
}

/// As somebody types: no stroke like another in time, loudness, length and tone, and each key is heard again as it
/// comes up.
fn typing(count: usize) -> Vec<f64> {
    let mut random = Random(33);
    let mut between = |low: f64, high: f64| low + (high - low) * (random.next() + 1.0) / 2.0;
    let (mut samples, mut at) = (vec![0.0; count], 0);
    loop {
        at += (between(0.09, 0.21) * RATE as f64) as usize;
        if at >= count {
            return samples;
        }
        let (peak, decay, hertz) =
            (between(1_500.0, 3_500.0), between(0.003, 0.008), between(600.0, 3_000.0));
        for (from, gain) in [(at, 1.0), (at + RATE * 6 / 100, 0.4)] {
            for (n, sample) in samples.iter_mut().skip(from).take(RATE / 12).enumerate() {
                let since = n as f64 / RATE as f64;
                let tone = (std::f64::consts::TAU * hertz * since).sin();
                *sample += gain * peak * (-since / decay).exp() * (0.6 * between(-1.0, 1.0) + 0.4 * tone);
            }
        }
    }
}

fn mixed(audio: &[i16], noise: fn(usize) -> Vec<f64>) -> Vec<i16> {
    let noise = noise(audio.len());
    audio.iter().zip(noise).map(|(sample, noise)| sample.saturating_add(noise as i16)).collect()
}

/// What a client of this format hears of the audio.
fn heard(format: &str, audio: &[i16]) -> Client {
    let mut client = Client::new();
    client.send(&json!({ "type": "session.update", "session": { "type": "realtime",
        "audio": { "input": { "format": { "type": format } } } } }));
    match format {
        "audio/pcmu" => append(&mut client, audio, |piece| telephone(piece, codecs::g711::mu_law_from_i16)),
        "audio/pcma" => append(&mut client, audio, |piece| telephone(piece, codecs::g711::a_law_from_i16)),
        _ => append(&mut client, audio, pcm),
    }
    client
}

#[test]
fn turns_are_found_of_voices_and_in_noises_that_the_margin_was_not_chosen_on() {
    let (first, second) = (sentence("nora"), sentence("june"));
    let millis = |samples: usize| samples as f64 * 1_000.0 / RATE as f64;
    let one = (1_300.0, 1_300.0 + millis(first.len()));
    let two = (one.1 + 1_100.0, one.1 + 1_100.0 + millis(second.len()));
    let audio = [silence(1.3), first, silence(1.1), second, silence(1.5)].concat();
    for (name, noise) in NOISES {
        for format in ["audio/pcm", "audio/pcmu", "audio/pcma"] {
            println!("{name} over {format}");
            check(&heard(format, &mixed(&audio, noise)), [one, two]);
            let alone = heard(format, &mixed(&silence(6.0), noise));
            assert_eq!(alone.kinds(), ["session.created", "session.updated"], "{name} over {format}, alone");
        }
    }
}

/// Voices of microphones without gain, in noise of theirs: from -32 to -67 dBFS. Telephones have gain of their own.
#[test]
fn turns_of_a_quiet_microphone_are_found_and_none_in_its_noise() {
    let (first, second) = (sentence("nora"), sentence("june"));
    let begins = [1.3, 1.3 + first.len() as f64 / RATE as f64 + 1.1].map(|seconds| seconds * 1_000.0);
    let audio = [silence(1.3), first, silence(1.1), second, silence(1.5)].concat();
    let quieter = |audio: &[i16], db: f64| -> Vec<i16> {
        let gain = 10.0_f64.powf(-db / 20.0);
        audio.iter().map(|sample| (f64::from(*sample) * gain).round() as i16).collect()
    };
    for (name, noise) in NOISES {
        for db in [10.0, 20.0, 30.0, 37.5, 45.0] {
            let client = heard("audio/pcm", &quieter(&mixed(&audio, noise), db));
            let starts = times(&client, "input_audio_buffer.speech_started", "audio_start_ms");
            for begin in begins {
                let near = starts.iter().filter(|at| (begin - 350.0..begin + 400.0).contains(at)).count();
                assert_eq!(near, 1, "{name}, {db} dB down: {starts:?} {begins:?}");
            }
            let alone = heard("audio/pcm", &quieter(&mixed(&silence(8.0), noise), db));
            assert_eq!(alone.kinds(), ["session.created", "session.updated"], "{name}, {db} dB down, alone");
        }
    }
}

#[test]
fn a_pause_within_a_sentence_ends_a_turn_only_when_it_is_long_enough() {
    let spoken = sentence("june");
    // Between two words, found as the quietest tenth of a second in the sentence's middle half.
    let (from, to) = (spoken.len() / 4, spoken.len() * 3 / 4);
    let loudness = |at: usize| spoken[at..at + RATE / 10].iter().map(|s| i64::from(*s).pow(2)).sum::<i64>();
    let cut = (from..to).step_by(RATE / 100).min_by_key(|at| loudness(*at)).expect("a middle") + RATE / 20;
    for (pause, turns) in [(0.2, 1), (1.0, 2)] {
        let (before, after) = spoken.split_at(cut);
        let audio = [&silence(1.0), before, &silence(pause), after, &silence(1.5)].concat();
        for format in ["audio/pcm", "audio/pcmu"] {
            let client = heard(format, &mixed(&audio, pink));
            let started = client.kinds().iter().filter(|kind| kind.ends_with("speech_started")).count();
            assert_eq!(started, turns, "{pause} s over {format}");
        }
    }
}
