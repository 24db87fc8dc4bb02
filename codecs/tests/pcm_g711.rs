//! PCM and G.711 against known values and exhaustively over 16 bits.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use codecs::CodecError;
use codecs::g711::{
    a_law_from_i16, a_law_to_i16, decode_a_law, decode_mu_law, encode_a_law, encode_mu_law, mu_law_from_i16,
    mu_law_to_i16,
};
use codecs::pcm::{S16leDecoder, encode_f32le, encode_s16le, from_i16, to_i16};
use proptest::prelude::*;

#[test]
fn every_16_bit_value_survives_the_way_to_float_and_back() {
    for value in i16::MIN..=i16::MAX {
        assert_eq!(to_i16(from_i16(value)), value);
    }
}

#[test]
fn floats_are_rounded_to_the_nearest_step_and_clamped() {
    let step = 1.0 / 32_768.0;
    for (sample, expected) in [
        (0.0, 0),
        (0.49 * step, 0),
        (0.5 * step, 1),
        (-0.49 * step, 0),
        (-0.5 * step, -1),
        (1.49 * step, 1),
        (0.5, 16_384),
        (1.0, 32_767),
        (-1.0, -32_768),
        (7.0, 32_767),
        (-7.0, -32_768),
        (f32::INFINITY, 32_767),
        (f32::NEG_INFINITY, -32_768),
        (f32::NAN, 0),
    ] {
        assert_eq!(to_i16(sample), expected, "{sample}");
    }
}

#[test]
fn bytes_are_little_endian() {
    let mut bytes = vec![9];
    encode_s16le(&[from_i16(0x1234), from_i16(-2)], &mut bytes);
    assert_eq!(bytes, [9, 0x34, 0x12, 0xFE, 0xFF]);
    let mut bytes = Vec::new();
    encode_f32le(&[1.0, -0.5], &mut bytes);
    assert_eq!(bytes, [0, 0, 0x80, 0x3F, 0, 0, 0, 0xBF]);
}

#[test]
fn half_a_sample_at_the_end_is_an_error_and_forgotten() {
    let mut decoder = S16leDecoder::new();
    let mut out = Vec::new();
    decoder.push(&[1, 0, 7], &mut out);
    assert_eq!(out, [from_i16(1)]);
    assert!(matches!(decoder.finish(), Err(CodecError::Truncated { needed: 2, found: 1, .. })));
    assert_eq!(decoder.finish(), Ok(()));
    decoder.push(&[2, 0], &mut out);
    assert_eq!(out, [from_i16(1), from_i16(2)]);
}

/// The 128 intervals of one sign by the recommendation's own recipe at 16 bits: segments of 16 equal steps,
/// as (level, first magnitude past the interval). The level is the middle; the first of mu-law lies at 0.
fn intervals(first_level: i32, steps: [i32; 8]) -> Vec<(i32, i32)> {
    let mut intervals = Vec::new();
    let mut edge = first_level - steps[0] / 2;
    for step in steps {
        for _ in 0..16 {
            intervals.push((edge + step / 2, edge + step));
            edge += step;
        }
    }
    intervals
}

fn mu_intervals() -> Vec<(i32, i32)> {
    intervals(0, [8, 16, 32, 64, 128, 256, 512, 1024])
}

fn a_intervals() -> Vec<(i32, i32)> {
    intervals(8, [16, 16, 32, 64, 128, 256, 512, 1024])
}

#[test]
fn decoders_give_the_recommendations_levels() {
    assert_eq!((mu_intervals()[127].0, a_intervals()[127].0), (32_124, 32_256));
    for index in 0..128u8 {
        let level = mu_intervals()[usize::from(index)].0;
        assert_eq!(i32::from(mu_law_to_i16(!index)), level);
        assert_eq!(i32::from(mu_law_to_i16(!index & 0x7F)), -level);
        let level = a_intervals()[usize::from(index)].0;
        assert_eq!(i32::from(a_law_to_i16((index | 0x80) ^ 0x55)), level);
        assert_eq!(i32::from(a_law_to_i16(index ^ 0x55)), -level);
    }
}

#[test]
fn encoders_pick_the_recommendations_interval_for_every_sample() {
    let (mu, a) = (mu_intervals(), a_intervals());
    let index_of = |intervals: &[(i32, i32)], magnitude: i32| {
        intervals.iter().position(|(_, end)| magnitude < *end).unwrap_or(127) as u8
    };
    for value in i16::MIN..=i16::MAX {
        let magnitude = i32::from(if value < 0 { !value } else { value });
        let sign = if value < 0 { 0x80 } else { 0 };
        assert_eq!(mu_law_from_i16(value), !(index_of(&mu, magnitude) | sign), "mu-law of {value}");
        let index = index_of(&a, magnitude);
        assert_eq!(a_law_from_i16(value), (index | (sign ^ 0x80)) ^ 0x55, "A-law of {value}");
    }
}

#[test]
fn known_codes_of_both_laws() {
    for (sample, mu, a) in [
        (0i16, 0xFF, 0xD5),
        (-1, 0x7F, 0x55),
        (8, 0xFE, 0xD5),
        (100, 0xF2, 0xD3),
        // Magnitude 100 is a decision value of mu-law, and by one's complement -100 lies just below it.
        (-100, 0x73, 0x53),
        (1_000, 0xCE, 0xFA),
        (-1_000, 0x4E, 0x7A),
        (8_000, 0xA0, 0x8A),
        (32_767, 0x80, 0xAA),
        (-32_768, 0x00, 0x2A),
    ] {
        assert_eq!((mu_law_from_i16(sample), a_law_from_i16(sample)), (mu, a), "{sample}");
    }
}

#[test]
fn codes_are_stable_and_ordered() {
    for code in 0..=255u8 {
        // 0x7F is minus zero, and decodes to the sample that 0xFF says.
        if code != 0x7F {
            assert_eq!(mu_law_from_i16(mu_law_to_i16(code)), code);
        }
        assert_eq!(a_law_from_i16(a_law_to_i16(code)), code);
    }
    for value in i16::MIN..i16::MAX {
        assert!(mu_law_to_i16(mu_law_from_i16(value)) <= mu_law_to_i16(mu_law_from_i16(value + 1)));
        assert!(a_law_to_i16(a_law_from_i16(value)) <= a_law_to_i16(a_law_from_i16(value + 1)));
    }
}

proptest! {
    #[test]
    fn pieces_of_any_length_decode_as_one(
        bytes in proptest::collection::vec(any::<u8>(), 0..400),
        cuts in proptest::collection::vec(0usize..9, 0..60),
    ) {
        let mut whole = Vec::new();
        S16leDecoder::new().push(&bytes, &mut whole);
        let mut decoder = S16leDecoder::new();
        let mut pieces = Vec::new();
        let mut rest = bytes.as_slice();
        for cut in cuts {
            let (head, tail) = rest.split_at(cut.min(rest.len()));
            decoder.push(head, &mut pieces);
            rest = tail;
        }
        decoder.push(rest, &mut pieces);
        prop_assert_eq!(&pieces, &whole);
        prop_assert_eq!(decoder.finish().is_err(), bytes.len() % 2 == 1);
        let mut back = Vec::new();
        encode_s16le(&whole, &mut back);
        prop_assert_eq!(back.as_slice(), &bytes[..bytes.len() / 2 * 2]);
    }

    #[test]
    fn g711_slices_keep_one_byte_a_sample(samples in proptest::collection::vec(-1.5f32..1.5, 0..300)) {
        let (mut mu, mut a) = (Vec::new(), Vec::new());
        encode_mu_law(&samples, &mut mu);
        encode_a_law(&samples, &mut a);
        let (mut from_mu, mut from_a) = (Vec::new(), Vec::new());
        decode_mu_law(&mu, &mut from_mu);
        decode_a_law(&a, &mut from_a);
        for (index, sample) in samples.iter().enumerate() {
            let clamped = sample.clamp(-1.0, 1.0);
            // Half the widest step, 1/64 of full scale for mu-law and A-law alike.
            let tolerance = clamped.abs() / 16.0 + 0.001;
            prop_assert!((from_mu[index] - clamped).abs() <= tolerance);
            prop_assert!((from_a[index] - clamped).abs() <= tolerance);
        }
        prop_assert_eq!((from_mu.len(), from_a.len()), (samples.len(), samples.len()));
    }
}
