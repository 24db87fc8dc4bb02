//! WAV: what we write, what we read, and sizes that lie.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

mod common;

use codecs::pcm::RawEncoding;
use codecs::wav::{HEADER_BYTES, decode, encode, header, streaming_header};
use codecs::{AudioLimits, CodecError, read_audio};
use common::{Random, voice};
use hound::{SampleFormat, WavReader, WavSpec, WavWriter};
use proptest::prelude::*;
use std::io::Cursor;

/// A file of these chunks, with a right RIFF size.
fn riff(chunks: &[(&[u8; 4], Vec<u8>)]) -> Vec<u8> {
    let mut body = b"WAVE".to_vec();
    for (id, data) in chunks {
        body.extend(*id);
        body.extend((data.len() as u32).to_le_bytes());
        body.extend(data);
        if data.len() % 2 == 1 {
            body.push(0);
        }
    }
    [b"RIFF".as_slice(), &(body.len() as u32).to_le_bytes(), &body].concat()
}

fn fmt(tag: u16, channels: u16, rate_hz: u32, bits: u16) -> Vec<u8> {
    let frame = channels.wrapping_mul(bits / 8);
    let mut chunk = Vec::new();
    chunk.extend(tag.to_le_bytes());
    chunk.extend(channels.to_le_bytes());
    chunk.extend(rate_hz.to_le_bytes());
    chunk.extend(rate_hz.wrapping_mul(u32::from(frame)).to_le_bytes());
    chunk.extend(frame.to_le_bytes());
    chunk.extend(bits.to_le_bytes());
    chunk
}

fn read(file: &[u8]) -> Result<Vec<f32>, CodecError> {
    decode(file, &AudioLimits::default()).map(|audio| audio.samples)
}

#[test]
fn an_independent_reader_agrees_with_our_writer() {
    for samples in [0, 1, 2, 481, 24_000] {
        let input = voice(samples, 24_000);
        let file = encode(&input, 24_000).unwrap();
        let mut reader = WavReader::new(Cursor::new(&file)).unwrap();
        let spec = reader.spec();
        assert_eq!((spec.channels, spec.sample_rate, spec.bits_per_sample), (1, 24_000, 16));
        let theirs: Vec<i16> = reader.samples::<i16>().map(Result::unwrap).collect();
        let ours: Vec<i16> = input.iter().map(|sample| codecs::pcm::to_i16(*sample)).collect();
        assert_eq!(theirs, ours);
        assert_eq!(read(&file).unwrap(), ours.iter().map(|s| codecs::pcm::from_i16(*s)).collect::<Vec<_>>());
    }
}

#[test]
fn our_reader_agrees_with_an_independent_writer_on_every_kind() {
    let values: Vec<i32> = (-120..120).collect();
    for (bits, channels) in [(8u16, 1u16), (16, 1), (16, 2), (24, 1), (24, 2), (32, 1), (32, 3)] {
        let spec = WavSpec {
            channels,
            sample_rate: 16_000,
            bits_per_sample: bits,
            sample_format: SampleFormat::Int,
        };
        let mut bytes = Cursor::new(Vec::new());
        let mut writer = WavWriter::new(&mut bytes, spec).unwrap();
        for value in &values {
            writer.write_sample(*value).unwrap();
        }
        writer.finalize().unwrap();
        let scale = 2f32.powi(i32::from(bits) - 1);
        let expected: Vec<f32> = values
            .chunks(usize::from(channels))
            .map(|frame| frame.iter().map(|v| *v as f32 / scale).sum::<f32>() / f32::from(channels))
            .collect();
        let found = read(bytes.get_ref()).unwrap();
        assert_eq!(found.len(), expected.len());
        for (a, b) in found.iter().zip(&expected) {
            assert!((a - b).abs() <= 1e-6 * b.abs(), "{bits} bits, {channels} channels: {a} {b}");
        }
    }
    let spec =
        WavSpec { channels: 1, sample_rate: 48_000, bits_per_sample: 32, sample_format: SampleFormat::Float };
    let mut bytes = Cursor::new(Vec::new());
    let mut writer = WavWriter::new(&mut bytes, spec).unwrap();
    for sample in [0.25f32, -1.0, 3.0, -7.5] {
        writer.write_sample(sample).unwrap();
    }
    writer.finalize().unwrap();
    assert_eq!(read(bytes.get_ref()).unwrap(), [0.25, -1.0, 1.0, -1.0]);
}

#[test]
fn a_stream_of_unknown_length_reads_to_its_end() {
    let mut file = streaming_header(24_000, RawEncoding::S16Le, &[]).unwrap();
    codecs::pcm::encode_s16le(&voice(1_000, 24_000), &mut file);
    assert_eq!(u32::from_le_bytes(file[4..8].try_into().unwrap()), u32::MAX);
    assert_eq!(u32::from_le_bytes(file[40..44].try_into().unwrap()), u32::MAX);
    let audio = decode(&file, &AudioLimits::default()).unwrap();
    assert_eq!((audio.samples.len(), audio.rate_hz, audio.duration_ms()), (1_000, 24_000, 41));
    assert_eq!(read_audio(&file, &AudioLimits::default()).unwrap(), audio);
    file.pop();
    assert!(matches!(read(&file), Err(CodecError::Truncated { needed: 2, found: 1, .. })));
}

#[test]
fn a_file_says_what_it_is_and_is_read_all_the_same() {
    let info = [(b"ISFT", "Voxlane"), (b"ICMT", "made by a machine")];
    let samples = voice(500, 24_000);
    let mut file = header(24_000, RawEncoding::S16Le, 500, &info).unwrap();
    assert_eq!(file.len(), streaming_header(24_000, RawEncoding::S16Le, &info).unwrap().len());
    assert_eq!((file.len() % 2, &file[36..40], &file[44..48]), (0, &b"LIST"[..], &b"INFO"[..]));
    codecs::pcm::encode_s16le(&samples, &mut file);
    assert_eq!(u32::from_le_bytes(file[4..8].try_into().unwrap()) as usize, file.len() - 8);
    assert_eq!(read(&file).unwrap().len(), 500);
    let mut other = hound::WavReader::new(std::io::Cursor::new(&file)).unwrap();
    assert_eq!(other.samples::<i16>().count(), 500);
    assert!(header(24_000, RawEncoding::S16Le, 0, &[(b"ICMT", &"x".repeat(5_000))]).is_err());
}

#[test]
fn a_stream_says_how_its_samples_are_encoded() {
    let mut s16 = Vec::new();
    codecs::pcm::encode_s16le(&voice(1_000, 8_000), &mut s16);
    for (encoding, floor) in [
        (RawEncoding::S16Le, 1.0 / 32_768.0),
        (RawEncoding::F32Le, 1.0 / 32_768.0),
        (RawEncoding::MuLaw, 0.04),
        (RawEncoding::ALaw, 0.04),
    ] {
        let mut file = streaming_header(8_000, encoding, &[]).unwrap();
        encoding.extend_from_s16le(&s16, &mut file);
        assert_eq!(file.len(), HEADER_BYTES + 1_000 * encoding.bytes_per_sample() as usize);
        let samples = read(&file).unwrap();
        assert_eq!(samples.len(), 1_000, "{encoding:?}");
        for (found, given) in samples.iter().zip(voice(1_000, 8_000)) {
            assert!((found - given).abs() <= floor, "{encoding:?}: {found} for {given}");
        }
    }
}

#[test]
fn a_header_knows_its_own_bound() {
    assert_eq!(header(24_000, RawEncoding::S16Le, 0, &[]).unwrap().len(), HEADER_BYTES);
    let most = u64::from((u32::MAX - 1 - 36) / 2);
    let full = header(24_000, RawEncoding::S16Le, most, &[]).unwrap();
    assert_ne!(u32::from_le_bytes(full[4..8].try_into().unwrap()), u32::MAX);
    assert!(matches!(header(24_000, RawEncoding::S16Le, most + 1, &[]), Err(CodecError::TooLarge { .. })));
    assert!(header(24_000, RawEncoding::S16Le, u64::MAX, &[]).is_err());
}

#[test]
fn float64_g711_and_foreign_chunks_are_read() {
    let doubles: Vec<u8> = [0.5f64, -0.25].iter().flat_map(|sample| sample.to_le_bytes()).collect();
    let file = riff(&[(b"LIST", vec![1, 2, 3]), (b"fmt ", fmt(3, 1, 48_000, 64)), (b"data", doubles)]);
    assert_eq!(read(&file).unwrap(), [0.5, -0.25]);
    let file = riff(&[(b"fmt ", fmt(7, 1, 8_000, 8)), (b"data", vec![0xFF, 0x80, 0x00])]);
    assert_eq!(read(&file).unwrap(), [0.0, 32_124.0 / 32_768.0, -32_124.0 / 32_768.0]);
    let file = riff(&[(b"fmt ", fmt(6, 1, 8_000, 8)), (b"data", vec![0xD5, 0xAA])]);
    assert_eq!(read(&file).unwrap(), [8.0 / 32_768.0, 32_256.0 / 32_768.0]);
}

#[test]
fn extensible_files_are_read_by_their_sub_format() {
    let extensible = |tag: u16, bits: u16, valid: u16, guid_end: u8| {
        let mut chunk = fmt(0xFFFE, 1, 24_000, bits);
        chunk.extend(22u16.to_le_bytes());
        chunk.extend(valid.to_le_bytes());
        chunk.extend(4u32.to_le_bytes());
        chunk.extend(tag.to_le_bytes());
        chunk.extend([0, 0, 0, 0, 0x10, 0, 0x80, 0, 0, 0xAA, 0, 0x38, 0x9B, guid_end]);
        riff(&[(b"fmt ", chunk), (b"data", vec![0, 0x40, 0, 0xC0])])
    };
    assert_eq!(read(&extensible(1, 16, 16, 0x71)).unwrap(), [0.5, -0.5]);
    assert_eq!(read(&extensible(1, 16, 12, 0x71)).unwrap(), [0.5, -0.5]);
    assert!(read(&extensible(1, 16, 17, 0x71)).is_err());
    assert!(read(&extensible(1, 16, 16, 0x72)).is_err());
    assert!(matches!(read(&extensible(2, 16, 16, 0x71)), Err(CodecError::Unsupported { found: 2, .. })));
    let short = riff(&[(b"fmt ", fmt(0xFFFE, 1, 24_000, 16)), (b"data", vec![0, 0])]);
    assert!(matches!(read(&short), Err(CodecError::Truncated { needed: 40, .. })));
}

#[test]
fn lies_and_nonsense_are_refused_by_kind() {
    let data = (b"data", vec![0u8; 8]);
    let good = (b"fmt ", fmt(1, 1, 24_000, 16));
    for (name, file) in [
        ("zero channels", riff(&[(b"fmt ", fmt(1, 0, 24_000, 16)), data.clone()])),
        ("zero rate", riff(&[(b"fmt ", fmt(1, 1, 0, 16)), data.clone()])),
        ("data before fmt", riff(&[data.clone(), good.clone()])),
        ("no data", riff(std::slice::from_ref(&good))),
        ("two fmt", riff(&[good.clone(), good.clone(), data.clone()])),
        ("not RIFF", [b"RIFX", &riff(&[good.clone(), data.clone()])[4..]].concat()),
        ("not WAVE", [b"RIFF\x08\0\0\0AVI ".as_slice(), &[0; 4]].concat()),
    ] {
        assert!(matches!(read(&file), Err(CodecError::Malformed { .. })), "{name}: {:?}", read(&file));
    }
    for (tag, bits) in [(1, 0), (1, 12), (1, 64), (3, 16), (7, 16), (2, 4), (0x55, 0)] {
        let file = riff(&[(b"fmt ", fmt(tag, 1, 24_000, bits)), data.clone()]);
        assert!(matches!(read(&file), Err(CodecError::Unsupported { .. })), "tag {tag}, {bits} bits");
    }
    let mut contradiction = fmt(1, 2, 24_000, 16);
    contradiction[12] = 2;
    assert!(matches!(
        read(&riff(&[(b"fmt ", contradiction), data.clone()])),
        Err(CodecError::Malformed { .. })
    ));
    let file = riff(&[good, data]);
    for size_at in [4, 16, 40] {
        let mut lying = file.clone();
        lying[size_at..size_at + 4].copy_from_slice(&0x7FFF_FFFFu32.to_le_bytes());
        assert!(matches!(read(&lying), Err(CodecError::Truncated { .. })), "size at {size_at}");
    }
}

#[test]
fn a_million_chunks_are_passed_over_and_an_odd_one_without_its_pad_is_no_trap() {
    let mut body = b"WAVEfmt ".to_vec();
    body.extend(16u32.to_le_bytes());
    body.extend(fmt(1, 1, 24_000, 16));
    for _ in 0..1_000_000 {
        body.extend(b"junk\0\0\0\0");
    }
    let head = body.len();
    body.extend(b"data\x04\0\0\0\0\x40\0\xC0");
    let whole = [b"RIFF".as_slice(), &(body.len() as u32).to_le_bytes(), &body].concat();
    assert_eq!(read(&whole).unwrap(), [0.5, -0.5]);
    // Without the data there is nothing at their end.
    let endless = [b"RIFF".as_slice(), &(head as u32).to_le_bytes(), &body[..head]].concat();
    assert!(matches!(read(&endless), Err(CodecError::Malformed { .. })));
    // Three bytes, and the next chunk where their pad should be.
    let mut odd = b"WAVEfmt ".to_vec();
    odd.extend(16u32.to_le_bytes());
    odd.extend(fmt(1, 1, 24_000, 16));
    odd.extend(b"LIST\x03\0\0\0abcdata\x04\0\0\0\0\x40\0\xC0");
    let odd = [b"RIFF".as_slice(), &(odd.len() as u32).to_le_bytes(), &odd].concat();
    assert!(read(&odd).is_err(), "{:?}", read(&odd));
}

#[test]
fn every_truncation_of_an_extensible_header_is_an_error() {
    let mut extensible = fmt(0xFFFE, 1, 24_000, 16);
    extensible.extend(22u16.to_le_bytes());
    extensible.extend(16u16.to_le_bytes());
    extensible.extend(4u32.to_le_bytes());
    extensible.extend(1u16.to_le_bytes());
    extensible.extend(b"\0\0\0\0\x10\0\x80\0\0\xAA\0\x38\x9B\x71");
    let data = vec![0, 0x40, 0, 0xC0];
    let file = riff(&[(b"fmt ", extensible.clone()), (b"data", data.clone())]);
    assert_eq!(read(&file).unwrap(), [0.5, -0.5]);
    for cut in 0..extensible.len() {
        let file = riff(&[(b"fmt ", extensible[..cut].to_vec()), (b"data", data.clone())]);
        assert!(read(&file).is_err(), "{cut} bytes of the format");
    }
    for cut in 0..file.len() {
        assert!(read(&file[..cut]).is_err(), "{cut} bytes of the file");
    }
}

#[test]
fn samples_that_are_not_finite_are_named() {
    for poison in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let data: Vec<u8> = [0.0, poison].iter().flat_map(|sample: &f32| sample.to_le_bytes()).collect();
        let file = riff(&[(b"fmt ", fmt(3, 1, 24_000, 32)), (b"data", data)]);
        assert_eq!(read(&file), Err(CodecError::NonFinite { index: 1 }));
    }
    // Finite as f64, infinite as f32.
    let data = 1e300f64.to_le_bytes().to_vec();
    let file = riff(&[(b"fmt ", fmt(3, 1, 24_000, 64)), (b"data", data)]);
    assert_eq!(read(&file), Err(CodecError::NonFinite { index: 0 }));
}

#[test]
fn limits_are_kept_before_anything_is_decoded() {
    let file = encode(&voice(48_000, 24_000), 24_000).unwrap();
    let limits = AudioLimits::default();
    for tight in [
        AudioLimits { bytes_max: file.len() - 1, ..limits },
        AudioLimits { duration_ms_max: 1_999, ..limits },
        AudioLimits { channels_max: 0, ..limits },
    ] {
        assert!(matches!(decode(&file, &tight), Err(CodecError::TooLarge { .. })), "{tight:?}");
    }
    for tight in
        [AudioLimits { rate_hz_min: 24_001, ..limits }, AudioLimits { rate_hz_max: 23_999, ..limits }]
    {
        assert!(matches!(decode(&file, &tight), Err(CodecError::Unsupported { .. })), "{tight:?}");
    }
    let exact = AudioLimits { bytes_max: file.len(), duration_ms_max: 2_000, channels_max: 1, ..limits };
    assert_eq!(decode(&file, &exact).unwrap().samples.len(), 48_000);
}

#[test]
fn every_truncation_of_a_file_is_an_error() {
    let file = encode(&voice(100, 24_000), 24_000).unwrap();
    for cut in 0..file.len() {
        assert!(read(&file[..cut]).is_err(), "{cut} bytes");
        assert!(read_audio(&file[..cut], &AudioLimits::default()).is_err(), "{cut} bytes");
    }
}

#[test]
fn random_damage_to_the_header_never_panics() {
    let good = encode(&voice(50, 24_000), 24_000).unwrap();
    let mut random = Random(5);
    let mut refused = 0;
    for _ in 0..20_000 {
        let mut file = good.clone();
        for _ in 0..=random.below(4) {
            let at = random.below(HEADER_BYTES);
            file[at] = if random.below(3) == 0 { 0xFF } else { random.next() as u8 };
        }
        refused += usize::from(read(&file).is_err());
    }
    assert!(refused > 10_000, "{refused}");
}

proptest! {
    #[test]
    fn random_bytes_behind_a_riff_header_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let file = [b"RIFF\xFF\xFF\xFF\xFFWAVE".as_slice(), &bytes].concat();
        let _ = read(&file);
        let file = [b"RIFF\xFF\xFF\xFF\xFFWAVEfmt \x10\0\0\0".as_slice(), &bytes].concat();
        let _ = read(&file);
    }

    #[test]
    fn what_we_write_we_read(samples in proptest::collection::vec(-1.2f32..1.2, 0..500), rate in 8_000u32..192_000) {
        let found = decode(&encode(&samples, rate).unwrap(), &AudioLimits::default()).unwrap();
        prop_assert_eq!(found.rate_hz, rate);
        prop_assert_eq!(found.samples.len(), samples.len());
        for (sample, read) in samples.iter().zip(found.samples) {
            prop_assert!((sample.clamp(-1.0, 1.0) - read).abs() <= 1.0 / 32_768.0);
        }
    }
}
