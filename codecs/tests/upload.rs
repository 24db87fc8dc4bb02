//! Reference clips as uploads bring them: every kind is read, every lie is refused, and nothing panics.

use codecs::upload::{REFERENCE, REFERENCE_MS, Refusal, judge, read};
use codecs::{AudioLimits, CodecError, MonoAudio};
use proptest::prelude::*;

/// The first 1.6 s of the embedded voice `clara`, written by FFmpeg in every kind.
const FILES: &[(&str, u32, &[u8])] = &[
    ("flac", 16_000, include_bytes!("../../tests/golden/uploads/clara.flac")),
    ("mp3", 24_000, include_bytes!("../../tests/golden/uploads/clara.mp3")),
    ("stereo mp3", 44_100, include_bytes!("../../tests/golden/uploads/clara-stereo.mp3")),
    ("vorbis", 24_000, include_bytes!("../../tests/golden/uploads/clara-vorbis.ogg")),
    ("opus in ogg", 48_000, include_bytes!("../../tests/golden/uploads/clara-opus.ogg")),
    ("opus in webm", 48_000, include_bytes!("../../tests/golden/uploads/clara.webm")),
];
const CLARA: &[u8] = include_bytes!("../../config/models/tiny/voices/clara.wav");

fn wav(rate: u32, channels: u16, samples: impl Iterator<Item = f32>) -> Vec<u8> {
    let spec = hound::WavSpec {
        channels,
        sample_rate: rate,
        bits_per_sample: 16,
        sample_format: hound::SampleFormat::Int,
    };
    let mut bytes = std::io::Cursor::new(Vec::new());
    let mut writer = hound::WavWriter::new(&mut bytes, spec).expect("a writer");
    for sample in samples {
        writer.write_sample((sample.clamp(-1.0, 1.0) * 32_767.0) as i16).expect("written");
    }
    writer.finalize().expect("finished");
    bytes.into_inner()
}

fn tone(hz: f32, level: f32, seconds: f32) -> impl Iterator<Item = f32> {
    let count = (24_000.0 * seconds) as usize;
    (0..count).map(move |n| (std::f32::consts::TAU * hz * n as f32 / 24_000.0).sin() * level)
}

/// The likeness of two clips by their loudness over time, -1 to 1: what survives every codec.
fn likeness(a: &MonoAudio, b: &MonoAudio) -> f64 {
    let envelope = |audio: &MonoAudio| -> Vec<f64> {
        let piece = audio.rate_hz as usize / 50;
        audio
            .samples
            .chunks(piece)
            .take(70)
            .map(|p| p.iter().map(|s| f64::from(s * s)).sum::<f64>() / p.len() as f64)
            .map(f64::sqrt)
            .collect()
    };
    let (a, b) = (envelope(a), envelope(b));
    let mean = |v: &[f64]| v.iter().sum::<f64>() / v.len() as f64;
    let (ma, mb) = (mean(&a), mean(&b));
    let sum = |f: &dyn Fn(f64, f64) -> f64| a.iter().zip(&b).map(|(x, y)| f(x - ma, y - mb)).sum::<f64>();
    sum(&|x, y| x * y) / (sum(&|x, _| x * x) * sum(&|_, y| y * y)).sqrt()
}

#[test]
fn every_kind_of_file_gives_the_clip_that_went_into_it() {
    let whole = read(CLARA, &REFERENCE).expect("the embedded voice");
    for (kind, rate, bytes) in FILES {
        let clip = read(bytes, &REFERENCE).unwrap_or_else(|error| panic!("{kind}: {error}"));
        assert_eq!(clip.rate_hz, *rate, "{kind}");
        assert!((1_500..1_800).contains(&clip.duration_ms()), "{kind}: {} ms", clip.duration_ms());
        let likeness = likeness(&whole, &clip);
        assert!(likeness > 0.9, "{kind}: {likeness}");
        assert!(judge(&clip, REFERENCE_MS).is_ok(), "{kind}");
    }
}

/// Its size in bytes of seven bits; a footer is raised in the flags.
fn tag(holds: &[u8], footer: bool) -> Vec<u8> {
    let size = [21, 14, 7, 0].map(|shift| (holds.len() >> shift & 0x7F) as u8);
    let flags = if footer { 0x10 } else { 0 };
    let head = |mark: &[u8]| [mark, &[4, 0, flags], &size].concat();
    let end = if footer { head(b"3DI") } else { Vec::new() };
    [head(b"ID3"), holds.to_vec(), end].concat()
}

#[test]
fn tags_ahead_of_the_sound_change_nothing_even_where_they_hold_sound() {
    let (.., picture) = FILES[2];
    for (kind, _, bytes) in &FILES[..3] {
        let plain = read(bytes, &REFERENCE).expect("a clip");
        for footer in [false, true] {
            let tagged = [tag(picture, footer), tag(&[0; 70_000], footer), bytes.to_vec()].concat();
            assert_eq!(read(&tagged, &REFERENCE).as_ref(), Ok(&plain), "{kind}");
        }
    }
    for cut in
        [tag(picture, false), tag(picture, true)[..5_000].to_vec(), b"ID3\x04\0\0\x7F\x7F\x7F".to_vec()]
    {
        assert!(matches!(read(&cut, &REFERENCE), Err(CodecError::Malformed { .. })));
    }
}

#[test]
fn bounds_hold_before_and_while_a_file_is_decoded() {
    let refused = |bytes: &[u8], limits: &AudioLimits| read(bytes, limits).expect_err("refused");
    for (kind, rate, bytes) in FILES {
        let small = AudioLimits { bytes_max: bytes.len() - 1, ..REFERENCE };
        assert!(matches!(refused(bytes, &small), CodecError::TooLarge { .. }), "{kind}: bytes");
        let short = AudioLimits { duration_ms_max: 1_000, ..REFERENCE };
        assert!(matches!(refused(bytes, &short), CodecError::TooLarge { .. }), "{kind}: length");
        if !kind.starts_with("opus") {
            let slow = AudioLimits { rate_hz_max: rate - 1, ..REFERENCE };
            assert!(matches!(refused(bytes, &slow), CodecError::Unsupported { .. }), "{kind}: rate");
        }
    }
    let long = wav(8_000, 1, (0..8_000 * 31).map(|_| 0.1));
    assert!(matches!(refused(&long, &REFERENCE), CodecError::TooLarge { .. }));
    let wide = wav(24_000, 3, tone(200.0, 0.3, 2.0));
    assert!(matches!(refused(&wide, &REFERENCE), CodecError::TooLarge { .. }));
    for rate in [7_999, 48_001, 96_000] {
        let odd = wav(rate, 1, tone(200.0, 0.3, 2.0));
        assert!(matches!(refused(&odd, &REFERENCE), CodecError::Unsupported { .. }), "{rate}");
    }
    for junk in [&b""[..], b"RIFF", b"OggS", b"fLaC", b"ID3", b"MZ\0\0", b"<html>", &[0xFF; 64], &[0; 64]] {
        refused(junk, &REFERENCE);
    }
}

#[test]
fn a_clip_that_cannot_be_a_reference_is_refused_and_says_why() {
    let verdict = |samples: Vec<f32>| judge(&MonoAudio { rate_hz: 24_000, samples }, REFERENCE_MS);
    let seconds = |count: usize, value: f32| vec![value; 24_000 * count];
    assert!(matches!(
        verdict(tone(200.0, 0.3, 0.99).collect()),
        Err(Refusal::TooShort { found_ms: 990, .. })
    ));
    assert!(matches!(
        verdict(tone(200.0, 0.3, 30.001).collect()),
        Err(Refusal::TooLong { found_ms: 30_001, .. })
    ));
    assert!(verdict(tone(200.0, 0.3, 30.0).collect()).is_ok());
    assert!(matches!(verdict(seconds(3, 0.0)), Err(Refusal::Silent { sound_ms: 0 })));
    assert!(matches!(verdict(Vec::new()), Err(Refusal::TooShort { found_ms: 0, .. })));
    assert!(matches!(verdict(seconds(3, 0.4)), Err(Refusal::Offset { .. })));
    assert!(matches!(verdict(tone(200.0, 0.003, 3.0).collect()), Err(Refusal::TooQuiet { .. })));
    let square = (0..72_000).map(|n| if n / 60 % 2 == 0 { 1.0 } else { -1.0 });
    assert!(matches!(verdict(square.collect()), Err(Refusal::Clipped { .. })));
    // A tenth of a second in a loop of silence.
    let mut blip = seconds(3, 0.0);
    blip.splice(..2_400, tone(200.0, 0.3, 0.1));
    assert!(matches!(verdict(blip), Err(Refusal::Silent { .. })));
    // What nobody can hear is gone once it is resampled to a speech model's rate.
    let inaudible = codecs::resample::resample_all(
        &(0..144_000)
            .map(|n| (std::f32::consts::TAU * 20_000.0 * n as f32 / 48_000.0).sin() * 0.5)
            .collect::<Vec<_>>(),
        48_000,
        24_000,
    );
    assert!(matches!(
        verdict(inaudible.expect("resampled")),
        Err(Refusal::Silent { .. } | Refusal::TooQuiet { .. })
    ));
    // A voice, its pauses counted out.
    let clip = read(CLARA, &REFERENCE).expect("the embedded voice");
    let verdict = judge(&clip, REFERENCE_MS).expect("a voice");
    assert!(verdict.sound_ms < verdict.duration_ms && verdict.level_db > -40.0, "{verdict:?}");
}

#[test]
fn every_truncation_of_every_kind_is_read_or_refused() {
    for (kind, _, bytes) in FILES {
        for end in (0..bytes.len()).step_by(1 + bytes.len() / 400) {
            if let Ok(clip) = read(&bytes[..end], &REFERENCE) {
                assert!(clip.samples.iter().all(|sample| sample.abs() <= 1.0), "{kind} cut at {end}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn damaged_files_never_panic_and_never_exceed_their_bounds(
        which in 0..FILES.len(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..24),
    ) {
        let mut bytes = FILES[which].2.to_vec();
        for (at, value) in damage {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Ok(clip) = read(&bytes, &REFERENCE) {
            prop_assert!(clip.duration_ms() <= 30_000 && clip.rate_hz <= 48_000);
            prop_assert!(clip.samples.iter().all(|sample| sample.is_finite() && sample.abs() <= 1.0));
        }
    }
}

/// Eight bytes and fewer that say "more than there is", or "none", in the sizes of every container.
const LIES: [&[u8]; 6] = [
    &[0xFF; 8],
    &[0x7F, 0xFF, 0xFF, 0xFF],
    &[0x01, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFE],
    &[0x08, 0, 0, 0, 0],
    &[0; 4],
    &[0xFE, 0xFF, 0xFF, 0x7F],
];

/// Sizes that files state of themselves, made absurd: element and chunk lengths, counts, block sizes. Whoever
/// believed one would ask for memory or time that no clip of these bytes can need. The heads are lied to at
/// every byte, what follows here and there.
#[test]
#[expect(clippy::disallowed_methods, reason = "a test measures what reading takes")]
fn no_size_that_a_file_states_of_itself_is_believed() {
    let mut slowest = (std::time::Duration::ZERO, "", 0);
    for (kind, _, bytes) in FILES {
        for at in (0..96).chain((96..bytes.len().min(700)).step_by(29)) {
            let lie = LIES[at % LIES.len()];
            let mut lying = bytes.to_vec();
            let end = (at + lie.len()).min(lying.len());
            lying[at..end].copy_from_slice(&lie[..end - at]);
            let begun = std::time::Instant::now();
            if let Ok(clip) = read(&lying, &REFERENCE) {
                assert!(clip.duration_ms() <= 30_000, "{kind} at {at}");
            }
            slowest = slowest.max((begun.elapsed(), kind, at));
        }
    }
    assert!(slowest.0 < std::time::Duration::from_secs(10), "{slowest:?}");
}
