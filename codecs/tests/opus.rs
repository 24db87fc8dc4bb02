//! Opus: exact lengths, time stamps, alignment, and what the encoder refuses.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

mod common;

use codecs::CodecError;
use codecs::opus::{
    OpusApplication, OpusDecoder, OpusEncoder, OpusFrame, OpusSettings, OpusSignal, packet_duration_48k,
};
use common::{Random, best_lag, snr_db, voice};
use proptest::prelude::*;

struct Encoded {
    packets: Vec<(Vec<u8>, u64, u32)>,
    pre_skip_48k: u32,
    end_trim_48k: u32,
    total_48k: u64,
}

fn encode(settings: OpusSettings, pieces: &[&[f32]]) -> Encoded {
    let mut encoder = OpusEncoder::new(settings).unwrap();
    encode_with(&mut encoder, pieces)
}

fn encode_with(encoder: &mut OpusEncoder, pieces: &[&[f32]]) -> Encoded {
    let mut packets = Vec::new();
    for piece in pieces {
        let batch = encoder.push(piece).unwrap();
        packets.extend(batch.iter().map(|p| (p.data.to_vec(), p.timestamp_48k, p.duration_48k)));
    }
    let pre_skip_48k = encoder.pre_skip_48k();
    let tail = encoder.finish().unwrap();
    packets.extend(tail.packets.iter().map(|p| (p.data.to_vec(), p.timestamp_48k, p.duration_48k)));
    Encoded { packets, pre_skip_48k, end_trim_48k: tail.end_trim_48k, total_48k: tail.total_48k }
}

fn decode(encoded: &Encoded, rate_hz: u32) -> Vec<f32> {
    let mut decoder = OpusDecoder::new(rate_hz, encoded.pre_skip_48k).unwrap();
    let last = encoded.packets.len() - 1;
    let mut out = Vec::new();
    for (index, (data, _, _)) in encoded.packets.iter().enumerate() {
        let trim = if index == last { encoded.end_trim_48k } else { 0 };
        out.extend_from_slice(decoder.decode_last(data, trim).unwrap());
    }
    out
}

fn assert_exact(settings: OpusSettings, samples: usize) {
    let input = voice(samples, settings.rate_hz);
    let encoded = encode(settings, &[&input]);
    let ratio = u64::from(48_000 / settings.rate_hz);
    assert_eq!(encoded.total_48k, samples as u64 * ratio);
    let mut position = 0;
    for (data, timestamp, duration) in &encoded.packets {
        assert_eq!(*timestamp, position);
        assert_eq!(*duration, settings.frame.duration_48k());
        assert_eq!(packet_duration_48k(data).unwrap(), *duration);
        position += u64::from(*duration);
    }
    let kept = position - u64::from(encoded.pre_skip_48k) - u64::from(encoded.end_trim_48k);
    assert_eq!(kept, encoded.total_48k);
    assert!(encoded.end_trim_48k < settings.frame.duration_48k());
    assert_eq!(decode(&encoded, settings.rate_hz).len(), samples);
    assert_eq!(decode(&encoded, 48_000).len() as u64, encoded.total_48k);
}

#[test]
fn exactly_the_pushed_samples_come_back_for_every_awkward_length() {
    for samples in [0, 1, 155, 156, 157, 323, 324, 325, 479, 480, 481, 960, 24_000, 24_001] {
        assert_exact(OpusSettings::default(), samples);
    }
}

#[test]
fn exactly_the_pushed_samples_come_back_at_every_rate_frame_and_application() {
    for rate_hz in [8_000, 12_000, 16_000, 24_000, 48_000] {
        for frame in OpusFrame::ALL {
            for application in [OpusApplication::Audio, OpusApplication::LowDelay, OpusApplication::Voip] {
                let settings = OpusSettings { application, frame, rate_hz, ..OpusSettings::default() };
                for samples in [0, 1, settings.frame_samples(), settings.frame_samples() + 1, 3_333] {
                    assert_exact(settings, samples);
                }
            }
        }
    }
}

#[test]
fn the_pre_skip_at_24_khz_is_what_libopus_documents() {
    let encoder = OpusEncoder::new(OpusSettings::default()).unwrap();
    assert_eq!(encoder.pre_skip_48k(), 312);
    let low = OpusSettings { application: OpusApplication::LowDelay, ..OpusSettings::default() };
    assert_eq!(OpusEncoder::new(low).unwrap().pre_skip_48k(), 120);
}

#[test]
fn the_first_packet_leaves_with_its_last_sample() {
    let mut encoder = OpusEncoder::new(OpusSettings::default()).unwrap();
    let input = voice(481, 24_000);
    assert!(encoder.push(&input[..479]).unwrap().is_empty());
    let batch = encoder.push(&input[479..480]).unwrap();
    assert_eq!(batch.len(), 1);
    let first = batch.iter().next().unwrap();
    assert_eq!((first.timestamp_48k, first.duration_48k), (0, 960));
    assert!(encoder.push(&input[480..]).unwrap().is_empty());
}

#[test]
fn decoded_sound_lies_on_the_input_without_shift() {
    let input = voice(24_000, 24_000);
    // The speech modes of `Audio` high-pass their input, whose phase looks like a shift of one sample.
    for (application, floor_db, shift_max) in
        [(OpusApplication::Audio, 8.0, 1), (OpusApplication::LowDelay, 12.0, 0)]
    {
        let settings = OpusSettings { application, bitrate_bps: 64_000, ..OpusSettings::default() };
        let output = decode(&encode(settings, &[&input]), 24_000);
        let (lag, snr) = (best_lag(&input, &output, 40), snr_db(&input, &output));
        assert!(lag.abs() <= shift_max, "{application:?}: {lag} samples");
        assert!(snr > floor_db, "{application:?}: {snr:.1} dB");
    }
}

#[test]
fn the_very_last_samples_survive_the_codec_delay() {
    let mut input = vec![0.0; 2_400];
    input.extend(common::sine(480, 24_000, 700.0, 0.5));
    let settings = OpusSettings { bitrate_bps: 96_000, signal: OpusSignal::Music, ..OpusSettings::default() };
    let output = decode(&encode(settings, &[&input]), 24_000);
    let energy = |part: &[f32]| part.iter().map(|sample| sample * sample).sum::<f32>();
    let (wanted, found) = (energy(&input[2_640..]), energy(&output[2_640..]));
    assert!(found > 0.7 * wanted, "{found} of {wanted}");
}

#[test]
fn a_reset_encoder_makes_the_same_packets_again() {
    let input = voice(5_000, 24_000);
    let mut encoder = OpusEncoder::new(OpusSettings::default()).unwrap();
    let first = encode_with(&mut encoder, &[&input]);
    assert_eq!(encoder.push(&input).unwrap_err(), CodecError::Finished { what: "this Opus encoder" });
    assert!(encoder.finish().is_err());
    encoder.reset().unwrap();
    let again = encode_with(&mut encoder, &[&input]);
    assert_eq!(first.packets, again.packets);
    assert_eq!(first.end_trim_48k, again.end_trim_48k);
}

#[test]
fn a_sample_that_is_not_finite_is_refused_and_changes_nothing() {
    let input = voice(2_000, 24_000);
    let clean = encode(OpusSettings::default(), &[&input]);
    let mut encoder = OpusEncoder::new(OpusSettings::default()).unwrap();
    let mut packets: Vec<Vec<u8>> =
        encoder.push(&input[..700]).unwrap().iter().map(|packet| packet.data.to_vec()).collect();
    for poison in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let refused = encoder.push(&[0.0, poison]).unwrap_err();
        assert_eq!(refused, CodecError::NonFinite { index: 701 });
    }
    packets.extend(encoder.push(&input[700..]).unwrap().iter().map(|packet| packet.data.to_vec()));
    packets.extend(encoder.finish().unwrap().packets.iter().map(|packet| packet.data.to_vec()));
    let clean: Vec<Vec<u8>> = clean.packets.into_iter().map(|(data, _, _)| data).collect();
    assert_eq!(packets, clean);
}

#[test]
fn samples_beyond_full_scale_are_clamped() {
    let loud: Vec<f32> = voice(4_800, 24_000).iter().map(|sample| sample * 1e30).collect();
    let clamped: Vec<f32> = loud.iter().map(|sample| sample.clamp(-1.0, 1.0)).collect();
    let settings = OpusSettings::default();
    assert_eq!(encode(settings, &[&loud]).packets, encode(settings, &[&clamped]).packets);
}

#[test]
fn settings_outside_their_range_are_refused_by_name() {
    let base = OpusSettings::default();
    for (settings, name) in [
        (OpusSettings { rate_hz: 22_050, ..base }, "Opus sample rate in Hz"),
        (OpusSettings { rate_hz: 0, ..base }, "Opus sample rate in Hz"),
        (OpusSettings { bitrate_bps: 5_999, ..base }, "Opus bit rate in bits per second"),
        (OpusSettings { bitrate_bps: u32::MAX, ..base }, "Opus bit rate in bits per second"),
        (OpusSettings { complexity: 11, ..base }, "Opus complexity"),
    ] {
        match OpusEncoder::new(settings) {
            Err(CodecError::InvalidSetting { setting, .. }) => assert_eq!(setting, name),
            _ => panic!("{settings:?} was taken"),
        }
    }
    let mut encoder = OpusEncoder::new(base).unwrap();
    assert!(encoder.set_complexity(11).is_err());
    assert!(encoder.set_bitrate(1).is_err());
    encoder.set_complexity(0).unwrap();
    encoder.set_bitrate(16_000).unwrap();
    assert_eq!((encoder.settings().complexity, encoder.settings().bitrate_bps), (0, 16_000));
}

#[test]
fn one_push_is_bounded() {
    let mut encoder = OpusEncoder::new(OpusSettings::default()).unwrap();
    let too_long = vec![0.0; encoder.push_samples_max() + 1];
    assert!(matches!(encoder.push(&too_long), Err(CodecError::TooLarge { limit: 240_000, .. })));
    assert_eq!(encoder.push(&too_long[1..]).unwrap().len(), 500);
}

#[test]
fn the_bit_rate_setting_rules_the_size() {
    let input = voice(48_000, 24_000);
    let bytes = |bitrate_bps| -> usize {
        let settings = OpusSettings { bitrate_bps, ..OpusSettings::default() };
        encode(settings, &[&input]).packets.iter().map(|(data, _, _)| data.len()).sum()
    };
    let (low, high) = (bytes(16_000), bytes(64_000));
    assert!(low * 2 < high, "{low} and {high} bytes for two seconds");
    // Two seconds at 32 kb/s are 8,000 bytes; VBR may move around that.
    let default = bytes(32_000);
    assert!((5_000..11_000).contains(&default), "{default} bytes");
}

#[test]
fn silence_under_dtx_becomes_marker_packets_of_full_duration() {
    let settings = OpusSettings { dtx: true, ..OpusSettings::default() };
    let mut encoder = OpusEncoder::new(settings).unwrap();
    let batch = encoder.push(&vec![0.0; 48_000]).unwrap();
    let markers = batch.iter().filter(|packet| packet.is_dtx()).count();
    assert!(markers > 60, "{markers} of {} packets", batch.len());
    for packet in batch.iter() {
        assert_eq!(packet_duration_48k(packet.data).unwrap(), 960);
    }
}

#[test]
fn concealment_advances_time_by_the_lost_duration() {
    let encoded = encode(OpusSettings::default(), &[&voice(9_600, 24_000)]);
    let mut decoder = OpusDecoder::new(24_000, 0).unwrap();
    decoder.decode(&encoded.packets[0].0).unwrap();
    assert_eq!(decoder.conceal(960).unwrap().len(), 480);
    assert_eq!(decoder.conceal(120).unwrap().len(), 60);
    for wrong in [0, 100, 5_880, u32::MAX] {
        assert!(decoder.conceal(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn a_decoder_survives_hostile_packets_and_still_decodes_good_ones() {
    let good = encode(OpusSettings::default(), &[&voice(4_800, 24_000)]);
    let mut decoder = OpusDecoder::new(24_000, 0).unwrap();
    let mut random = Random(7);
    let (mut refused, mut taken) = (0, 0);
    for round in 0..3_000 {
        let len = random.below(120);
        let mut bytes = random.bytes(len);
        if round % 3 == 0 {
            bytes = good.packets[random.below(good.packets.len())].0.clone();
            bytes.truncate(random.below(bytes.len() + 1));
        }
        let outcome = decoder.decode(&bytes).map(<[f32]>::len);
        match (&outcome, packet_duration_48k(&bytes)) {
            (Ok(samples), Ok(duration)) => assert_eq!(*samples as u32, duration / 2),
            (Ok(_), Err(error)) => panic!("decoded what has no duration: {error}"),
            (Err(_), _) => {}
        }
        if outcome.is_ok() { taken += 1 } else { refused += 1 }
    }
    assert!(refused > 100 && taken > 100, "{refused} refused, {taken} taken");
    assert!(decoder.decode(&[]).is_err());
    assert!(matches!(decoder.decode(&vec![3; 70_000]), Err(CodecError::TooLarge { .. })));
    decoder.reset(0).unwrap();
    let mut fresh = OpusDecoder::new(24_000, 0).unwrap();
    for (data, _, _) in &good.packets {
        assert_eq!(decoder.decode(data).unwrap(), fresh.decode(data).unwrap());
    }
}

/// A decode of any bytes gives as many samples as its header says, or refuses.
fn decoded_as_stated(decoder: &mut OpusDecoder, bytes: &[u8]) -> bool {
    match (decoder.decode(bytes).map(<[f32]>::len), packet_duration_48k(bytes)) {
        (Ok(samples), Ok(duration)) => {
            assert_eq!(samples as u32, duration / 2, "{bytes:?}");
            assert!(duration <= 5_760);
            true
        }
        (Ok(_), Err(error)) => panic!("decoded what has no duration: {error}: {bytes:?}"),
        (Err(_), _) => false,
    }
}

#[test]
fn every_truncation_and_every_lying_first_byte_of_good_packets_is_decoded_as_stated_or_refused() {
    let good = encode(OpusSettings::default(), &[&voice(2_400, 24_000)]);
    let mut decoder = OpusDecoder::new(24_000, 0).unwrap();
    let mut taken = 0;
    for (packet, _, _) in &good.packets {
        for cut in 0..packet.len() {
            taken += usize::from(decoded_as_stated(&mut decoder, &packet[..cut]));
        }
        let mut lying = packet.clone();
        for first in 0..=255 {
            lying[0] = first;
            taken += usize::from(decoded_as_stated(&mut decoder, &lying));
        }
    }
    assert!(taken > 100, "{taken}");
}

#[test]
fn a_packet_of_120_ms_is_the_longest() {
    let good = encode(OpusSettings::default(), &[&voice(4_800, 24_000)]);
    let frame = &good.packets[3].0;
    // Code 3, constant bit rate: the same frame again and again (RFC 6716 section 3.2.5).
    let of = |frames: u8| [&[frame[0] | 3, frames][..], &frame[1..].repeat(usize::from(frames))].concat();
    let mut decoder = OpusDecoder::new(24_000, 0).unwrap();
    assert_eq!(packet_duration_48k(&of(6)), Ok(5_760));
    assert_eq!(decoder.decode(&of(6)).unwrap().len(), 2_880);
    for frames in [0, 7, 48, 63] {
        assert!(packet_duration_48k(&of(frames)).is_err(), "{frames}");
        assert!(decoder.decode(&of(frames)).is_err(), "{frames}");
    }
}

#[test]
fn a_million_random_packets_are_decoded_as_stated_or_refused() {
    let mut decoder = OpusDecoder::new(24_000, 0).unwrap();
    let mut random = Random(27);
    let mut taken = 0_u32;
    for round in 0..1_000_000_u32 {
        let len = random.below(if round % 64 == 0 { 400 } else { 8 });
        let bytes = random.bytes(len);
        taken += u32::from(decoded_as_stated(&mut decoder, &bytes));
    }
    assert!(taken > 160_000, "{taken}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_length_comes_back_exactly(samples in 0usize..6_000) {
        assert_exact(OpusSettings { complexity: 0, ..OpusSettings::default() }, samples);
    }

    #[test]
    fn any_split_gives_the_same_packets(cuts in proptest::collection::vec(0usize..1_500, 0..12)) {
        let settings = OpusSettings { complexity: 0, ..OpusSettings::default() };
        let input = voice(cuts.iter().sum::<usize>() + 17, 24_000);
        let mut rest = input.as_slice();
        let mut pieces = Vec::new();
        for cut in cuts {
            let (head, tail) = rest.split_at(cut);
            pieces.push(head);
            rest = tail;
        }
        pieces.push(rest);
        let (split, whole) = (encode(settings, &pieces), encode(settings, &[&input]));
        prop_assert_eq!(split.packets, whole.packets);
        prop_assert_eq!(split.end_trim_48k, whole.end_trim_48k);
    }
}
