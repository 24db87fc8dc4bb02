//! What the sound of an answer is: rates, telephony, and the mark that a machine spoke.

use codecs::ogg::OggOpusReader;
use codecs::{AudioLimits, g711};
use serde_json::json;

use crate::support::{post, start};

async fn spoken(server: &crate::support::Running, more: serde_json::Value) -> crate::support::Answer {
    let mut body = json!({ "input": "One tone, many boxes.", "voice": "instant", "seed": 5 });
    body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    let answer = post(server.public, "/v1/audio/speech", &body.to_string()).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer
}

/// The share of the seed's tone in samples at `rate` (Goertzel).
fn share(samples: &[f32], rate: f64) -> f64 {
    let w = std::f64::consts::TAU * (300.0 + 40.0 * 5.0) / rate;
    let (mut re, mut im, mut power) = (0.0, 0.0, 0.0);
    for (n, &sample) in samples.iter().enumerate() {
        let x = f64::from(sample);
        re += x * (w * n as f64).cos();
        im += x * (w * n as f64).sin();
        power += x * x;
    }
    2.0 * (re * re + im * im) / (samples.len() as f64 * power.max(1e-12))
}

#[tokio::test(flavor = "multi_thread")]
async fn every_rate_of_every_form_holds_the_same_sound_for_the_same_time() {
    let server = start("").await;
    let whole = spoken(&server, json!({ "response_format": "pcm" })).await.body.len() as f64 / 48_000.0;
    for rate in [8_000_u32, 16_000, 24_000, 48_000] {
        let pcm = spoken(&server, json!({ "response_format": "pcm", "sample_rate": rate })).await.body;
        let (pairs, _) = pcm.as_chunks::<2>();
        let linear: Vec<f32> =
            pairs.iter().map(|pair| f32::from(i16::from_le_bytes(*pair)) / 32_768.0).collect();
        let mut telephony = Vec::new();
        for (form, media, decode) in [
            ("mulaw", "audio/PCMU", g711::decode_mu_law as fn(&[u8], &mut Vec<f32>)),
            ("alaw", "audio/PCMA", g711::decode_a_law),
        ] {
            let answer = spoken(&server, json!({ "response_format": form, "sample_rate": rate })).await;
            assert_eq!(answer.header("content-type"), Some(media));
            let mut samples = Vec::new();
            decode(&answer.body, &mut samples);
            telephony.push(samples);
        }
        for samples in [&linear, &telephony[0], &telephony[1]] {
            let seconds = samples.len() as f64 / f64::from(rate);
            assert!((seconds - whole).abs() < 0.001, "{rate}: {seconds} of {whole}");
            assert!(share(samples, f64::from(rate)) > 0.95, "{rate}: {}", share(samples, f64::from(rate)));
        }
    }
    // Telephony has a rate of its own.
    let answer = spoken(&server, json!({ "response_format": "mulaw" })).await;
    assert!((answer.body.len() as f64 / 8_000.0 - whole).abs() < 0.001);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ogg_file_says_that_a_machine_spoke() {
    let server = start("").await;
    let file = spoken(&server, json!({ "response_format": "opus" })).await.body;
    let reader = OggOpusReader::new(&file, &AudioLimits::default()).expect("readable");
    let comments = &reader.tags().comments;
    let said = |name: &str| comments.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str());
    assert!(
        said("DIGITALSOURCETYPE").is_some_and(|kind| kind.ends_with("trainedAlgorithmicMedia")),
        "{comments:?}"
    );
    assert!(said("COMMENT").is_some_and(|words| words.contains("AI-generated")), "{comments:?}");
}
