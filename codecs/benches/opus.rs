//! Cost of wire audio for one 20 ms piece of 24 kHz mono speech-like sound: `cargo bench -p codecs`.

use codecs::opus::{OpusApplication, OpusDecoder, OpusEncoder, OpusSettings};
use codecs::resample::Resampler;

const FRAME: usize = 480;

fn main() {
    divan::main();
}

/// Two seconds of a gliding harmonic voice with a syllable rhythm.
fn voice() -> Vec<f32> {
    let mut phase = 0.0f32;
    (0..100 * FRAME)
        .map(|index| {
            let seconds = index as f32 / 24_000.0;
            phase += (120.0 + 30.0 * (seconds * 2.5).sin()) / 24_000.0;
            let harmonics: f32 =
                (1..24).map(|n| (std::f32::consts::TAU * phase * n as f32).sin() / n as f32).sum();
            0.2 * harmonics * (0.55 + 0.45 * (seconds * 25.0).sin())
        })
        .collect()
}

#[divan::bench(args = [(OpusApplication::Audio, 0), (OpusApplication::Audio, 5), (OpusApplication::Audio, 10),
    (OpusApplication::Voip, 0), (OpusApplication::Voip, 5), (OpusApplication::Voip, 10)])]
fn opus_encode(bencher: divan::Bencher<'_, '_>, (application, complexity): (OpusApplication, u8)) {
    let settings = OpusSettings { application, complexity, ..OpusSettings::default() };
    let mut encoder = OpusEncoder::new(settings).expect("valid settings");
    let voice = voice();
    let mut frames = voice.chunks_exact(FRAME).cycle();
    bencher.bench_local(|| {
        let frame = frames.next().expect("a cycle never ends");
        encoder.push(frame).expect("finite samples").len()
    });
}

#[divan::bench]
fn opus_decode(bencher: divan::Bencher<'_, '_>) {
    let mut encoder = OpusEncoder::new(OpusSettings::default()).expect("valid settings");
    let voice = voice();
    let batch = encoder.push(&voice).expect("finite samples");
    let packets: Vec<Vec<u8>> = batch.iter().map(|packet| packet.data.to_vec()).collect();
    let mut decoder = OpusDecoder::new(24_000, 0).expect("a valid rate");
    let mut packets = packets.iter().cycle();
    bencher.bench_local(|| {
        let packet = packets.next().expect("a cycle never ends");
        decoder.decode(packet).expect("a good packet").len()
    });
}

#[divan::bench(args = [8_000, 16_000, 44_100, 48_000])]
fn resample_from_24k(bencher: divan::Bencher<'_, '_>, to_hz: u32) {
    let voice = voice();
    let mut frames = voice.chunks_exact(FRAME).cycle();
    let mut resampler = Resampler::new(24_000, to_hz).expect("valid rates");
    let mut out = Vec::new();
    bencher.bench_local(|| {
        out.clear();
        let frame = frames.next().expect("a cycle never ends");
        resampler.push(frame, &mut out).expect("finite samples");
        out.len()
    });
}
