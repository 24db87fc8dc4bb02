//! Ogg Opus: pages as RFC 7845 wants them, early release, exact trims, and hostile files.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

mod common;

use codecs::ogg::{OggOpusReader, OggOpusSettings, OggOpusWriter, decode};
use codecs::opus::{OpusEncoder, OpusPacket, OpusSettings};
use codecs::{AudioLimits, CodecError};
use common::{Random, snr_db, voice};
use proptest::prelude::*;

const SERIAL: u32 = 0xC0DE_C0DE;

fn settings(packets_per_page: u8) -> OggOpusSettings {
    OggOpusSettings {
        comments: vec![("TITLE".to_owned(), "a=b ü".to_owned())],
        input_rate_hz: 24_000,
        packets_per_page,
        pre_skip_48k: 312,
        serial: SERIAL,
    }
}

fn file_of(input: &[f32], packets_per_page: u8, opus: OpusSettings) -> Vec<u8> {
    let mut encoder = OpusEncoder::new(opus).unwrap();
    let mut writer = OggOpusWriter::new(&settings(packets_per_page)).unwrap();
    for packet in encoder.push(input).unwrap().iter() {
        writer.write(packet).unwrap();
    }
    let tail = encoder.finish().unwrap();
    let count = tail.packets.len();
    for (index, packet) in tail.packets.iter().enumerate() {
        if index + 1 == count {
            writer.write_last(packet, tail.end_trim_48k).unwrap();
        } else {
            writer.write(packet).unwrap();
        }
    }
    writer.take_bytes()
}

/// What RFC 3533 puts on a page, read without the library under test.
struct Page {
    flags: u8,
    granule: u64,
    serial: u32,
    sequence: u32,
    packets: usize,
    bytes: usize,
}

fn pages(file: &[u8]) -> Vec<Page> {
    let mut pages = Vec::new();
    let mut rest = file;
    while !rest.is_empty() {
        assert_eq!(&rest[..5], b"OggS\0");
        let segments = usize::from(rest[26]);
        let lacing = &rest[27..27 + segments];
        let bytes = 27 + segments + lacing.iter().map(|len| usize::from(*len)).sum::<usize>();
        pages.push(Page {
            flags: rest[5],
            granule: u64::from_le_bytes(rest[6..14].try_into().unwrap()),
            serial: u32::from_le_bytes(rest[14..18].try_into().unwrap()),
            sequence: u32::from_le_bytes(rest[18..22].try_into().unwrap()),
            packets: lacing.iter().filter(|len| **len < 255).count(),
            bytes,
        });
        assert_eq!(checksum(&rest[..bytes]), u32::from_le_bytes(rest[22..26].try_into().unwrap()));
        rest = &rest[bytes..];
    }
    pages
}

/// The checksum of RFC 3533 over a page whose own checksum field counts as zero.
fn checksum(page: &[u8]) -> u32 {
    page.iter().enumerate().fold(0, |sum: u32, (index, byte)| {
        let byte = if (22..26).contains(&index) { 0 } else { *byte };
        (0..8).fold(sum ^ (u32::from(byte) << 24), |sum, _| {
            if sum >> 31 == 1 { (sum << 1) ^ 0x04C1_1DB7 } else { sum << 1 }
        })
    })
}

fn page(flags: u8, granule: u64, sequence: u32, lacing: &[u8], body: &[u8]) -> Vec<u8> {
    let mut page = b"OggS\0".to_vec();
    page.push(flags);
    page.extend(granule.to_le_bytes());
    page.extend(SERIAL.to_le_bytes());
    page.extend(sequence.to_le_bytes());
    page.extend([0; 4]);
    page.push(lacing.len() as u8);
    page.extend(lacing);
    page.extend(body);
    let sum = checksum(&page).to_le_bytes();
    page[22..26].copy_from_slice(&sum);
    page
}

fn repair_checksums(file: &mut [u8]) {
    let mut at = 0;
    while at + 27 <= file.len() && &file[at..at + 4] == b"OggS" {
        let segments = usize::from(file[at + 26]);
        let Some(lacing) = file.get(at + 27..at + 27 + segments) else { return };
        let end = at + 27 + segments + lacing.iter().map(|len| usize::from(*len)).sum::<usize>();
        let Some(page) = file.get_mut(at..end) else { return };
        let sum = checksum(page).to_le_bytes();
        page[22..26].copy_from_slice(&sum);
        at = end;
    }
}

#[test]
fn pages_carry_what_rfc_7845_asks() {
    for packets_per_page in 1..=5u8 {
        let input = voice(24_000, 24_000);
        let file = file_of(&input, packets_per_page, OpusSettings::default());
        let pages = pages(&file);
        assert_eq!((pages[0].flags, pages[0].packets, pages[0].granule, pages[0].bytes), (2, 1, 0, 47));
        assert_eq!((pages[1].flags, pages[1].packets, pages[1].granule), (0, 1, 0));
        let mut position = 0;
        for (index, page) in pages.iter().enumerate() {
            assert_eq!((page.serial, page.sequence), (SERIAL, index as u32));
            if index < 2 {
                continue;
            }
            position += page.packets as u64 * 960;
            if index + 1 == pages.len() {
                assert_eq!(page.flags, 4);
                assert_eq!(page.granule, 312 + 48_000);
                assert!(page.packets <= usize::from(packets_per_page));
            } else {
                assert_eq!((page.flags, page.granule), (0, position));
                let expected = if index == 2 { 1 } else { usize::from(packets_per_page) };
                assert_eq!(page.packets, expected);
            }
        }
    }
}

#[test]
fn headers_and_the_first_packet_are_out_at_once() {
    let mut encoder = OpusEncoder::new(OpusSettings::default()).unwrap();
    let mut writer = OggOpusWriter::new(&settings(5)).unwrap();
    assert_eq!(pages(&writer.take_bytes()).len(), 2);
    assert!(writer.take_bytes().is_empty());
    let input = voice(480 * 7, 24_000);
    let mut page_counts = Vec::new();
    for frame in input.chunks(480) {
        writer.write(encoder.push(frame).unwrap().iter().next().unwrap()).unwrap();
        page_counts.push(pages(&writer.take_bytes()).len());
    }
    assert_eq!(page_counts, [1, 0, 0, 0, 0, 1, 0]);
}

#[test]
fn exactly_the_encoded_samples_come_back_from_a_file() {
    for samples in [0, 1, 323, 324, 325, 479, 480, 481, 24_000] {
        for packets_per_page in [1, 3, 5] {
            let input = voice(samples, 24_000);
            let file = file_of(&input, packets_per_page, OpusSettings::default());
            let audio = decode(&file, 24_000, &AudioLimits::default()).unwrap();
            assert_eq!((audio.samples.len(), audio.rate_hz), (samples, 24_000));
            let audio = decode(&file, 48_000, &AudioLimits::default()).unwrap();
            assert_eq!(audio.samples.len(), samples * 2);
        }
    }
}

#[test]
fn the_sound_of_a_file_is_the_sound_that_went_in() {
    let input = voice(24_000, 24_000);
    let opus = OpusSettings { bitrate_bps: 128_000, ..OpusSettings::default() };
    let audio = decode(&file_of(&input, 2, opus), 24_000, &AudioLimits::default()).unwrap();
    let snr = snr_db(&input, &audio.samples);
    assert!(snr > 12.0, "{snr:.1} dB");
}

#[test]
fn tags_and_head_read_back() {
    let file = file_of(&[0.0; 480], 1, OpusSettings::default());
    let reader = OggOpusReader::new(&file, &AudioLimits::default()).unwrap();
    assert_eq!(reader.tags().vendor, "voxlane");
    assert_eq!(reader.tags().comments, [("TITLE".to_owned(), "a=b ü".to_owned())]);
    assert_eq!((reader.head().pre_skip_48k, reader.head().input_rate_hz), (312, 24_000));
}

#[test]
fn packets_read_back_as_they_were_written_and_the_end_is_marked() {
    let input = voice(4_000, 24_000);
    let file = file_of(&input, 3, OpusSettings::default());
    let mut encoder = OpusEncoder::new(OpusSettings::default()).unwrap();
    let mut expected: Vec<Vec<u8>> =
        encoder.push(&input).unwrap().iter().map(|packet| packet.data.to_vec()).collect();
    expected.extend(encoder.finish().unwrap().packets.iter().map(|packet| packet.data.to_vec()));
    let mut reader = OggOpusReader::new(&file, &AudioLimits::default()).unwrap();
    let mut found = Vec::new();
    while let Some(packet) = reader.next_packet().unwrap() {
        assert_eq!(packet.duration_48k, 960);
        assert_eq!(packet.last, found.len() + 1 == expected.len());
        found.push(packet.data);
    }
    assert_eq!(found, expected);
    assert!(reader.ended());
}

#[test]
fn nothing_can_follow_the_last_packet() {
    let packet = OpusPacket { data: &[0x48], duration_48k: 960, timestamp_48k: 0 };
    let mut writer = OggOpusWriter::new(&settings(1)).unwrap();
    writer.write_last(packet, 0).unwrap();
    let finished = CodecError::Finished { what: "this Ogg stream" };
    assert_eq!(writer.write(packet).unwrap_err(), finished);
    assert_eq!(writer.write_last(packet, 0).unwrap_err(), finished);
}

#[test]
fn settings_that_cannot_be_written_are_refused() {
    for packets in [0, 6, 255] {
        assert!(OggOpusWriter::new(&settings(packets)).is_err());
    }
    let long = OggOpusSettings { pre_skip_48k: 65_536, ..settings(1) };
    assert!(OggOpusWriter::new(&long).is_err());
    for name in ["", "A=B", "Ä", "A\n"] {
        let comments = vec![(name.to_owned(), String::new())];
        assert!(OggOpusWriter::new(&OggOpusSettings { comments, ..settings(1) }).is_err(), "{name:?}");
    }
    let comments = vec![("A".to_owned(), "x".repeat(40_000))];
    let refused = OggOpusWriter::new(&OggOpusSettings { comments, ..settings(1) });
    assert!(matches!(refused, Err(CodecError::TooLarge { .. })));
}

#[test]
fn limits_are_kept() {
    let file = file_of(&voice(48_000, 24_000), 5, OpusSettings::default());
    let limits = AudioLimits::default();
    let refused = |limits: AudioLimits| decode(&file, 24_000, &limits).unwrap_err();
    assert!(matches!(refused(AudioLimits { bytes_max: 100, ..limits }), CodecError::TooLarge { .. }));
    assert!(matches!(refused(AudioLimits { duration_ms_max: 1_000, ..limits }), CodecError::TooLarge { .. }));
    assert!(decode(&file, 22_050, &limits).is_err());
}

#[test]
fn a_stream_joined_late_keeps_its_own_length() {
    let file = file_of(&voice(9_600, 24_000), 1, OpusSettings::default());
    let mut late = Vec::new();
    let mut at = 0;
    for (index, page) in pages(&file).iter().enumerate() {
        let mut bytes = file[at..at + page.bytes].to_vec();
        at += page.bytes;
        if index >= 2 {
            let moved = (page.granule + 1_000_000).to_le_bytes();
            bytes[6..14].copy_from_slice(&moved);
        }
        late.extend(bytes);
    }
    repair_checksums(&mut late);
    let audio = decode(&late, 24_000, &AudioLimits::default()).unwrap();
    assert_eq!(audio, decode(&file, 24_000, &AudioLimits::default()).unwrap());
}

#[test]
fn a_recording_without_an_end_mark_still_decodes() {
    let file = file_of(&voice(9_600, 24_000), 1, OpusSettings::default());
    let last = pages(&file).last().unwrap().bytes;
    let audio = decode(&file[..file.len() - last], 24_000, &AudioLimits::default()).unwrap();
    // Twenty packets less the pre-skip.
    assert_eq!(audio.samples.len(), 20 * 480 - 156);
}

#[test]
fn files_that_break_the_rules_are_refused_by_reason() {
    let head = |tail: &[u8]| [b"OpusHead".as_slice(), tail].concat();
    let good_head = head(&[1, 1, 0x38, 1, 0xC0, 0x5D, 0, 0, 0, 0, 0]);
    let good_tags = [b"OpusTags".as_slice(), &[0; 8]].concat();
    let file = |first: &[u8], second: &[u8], granule: u64, audio: &[u8]| {
        let mut file = page(2, 0, 0, &[first.len() as u8], first);
        file.extend(page(0, 0, 1, &[second.len() as u8], second));
        file.extend(page(0, granule, 2, &[audio.len() as u8], audio));
        decode(&file, 24_000, &AudioLimits::default())
    };
    // TOC 0x48: SILK, one frame of 20 ms.
    assert_eq!(file(&good_head, &good_tags, 960, &[0x48]).unwrap().samples.len(), 480 - 156);
    for (name, outcome) in [
        ("short head", file(&head(&[1, 1]), &good_tags, 960, &[0x48])),
        ("new version", file(&head(&[16, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]), &good_tags, 960, &[0x48])),
        ("no channels", file(&head(&[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]), &good_tags, 960, &[0x48])),
        ("surround", file(&head(&[1, 6, 0, 0, 0, 0, 0, 0, 0, 0, 1]), &good_tags, 960, &[0x48])),
        ("vorbis", file(b"\x01vorbis", &good_tags, 960, &[0x48])),
        ("no tags", file(&good_head, b"Nonsense", 960, &[0x48])),
        ("lying tags", file(&good_head, b"OpusTags\xFF\xFF\xFF\xFF", 960, &[0x48])),
        ("lying count", file(&good_head, b"OpusTags\0\0\0\0\xFF\xFF\xFF\xFF", 960, &[0x48])),
        ("empty packet", file(&good_head, &good_tags, 960, &[])),
        ("bad packet", file(&good_head, &good_tags, 960, &[0x4B, 0xFF])),
        ("granule too small", file(&good_head, &good_tags, 959, &[0x48])),
        ("no granule", file(&good_head, &good_tags, u64::MAX, &[0x48])),
    ] {
        let error = outcome.expect_err(name);
        assert!(
            matches!(error, CodecError::Malformed { .. } | CodecError::Unsupported { .. }),
            "{name}: {error}"
        );
    }
}

#[test]
fn random_damage_never_panics_even_behind_right_checksums() {
    let good = file_of(&voice(9_600, 24_000), 3, OpusSettings::default());
    let limits = AudioLimits { duration_ms_max: 10_000, ..AudioLimits::default() };
    let mut random = Random(3);
    let mut refused = 0;
    for round in 0..3_000 {
        let mut file = good.clone();
        for _ in 0..=random.below(6) {
            // Half of the damage goes where the structure is.
            let reach = if random.below(2) == 0 { 180 } else { file.len() };
            let at = random.below(reach);
            file[at] = random.next() as u8;
        }
        if round % 4 == 0 {
            file.truncate(random.below(file.len()));
        }
        repair_checksums(&mut file);
        refused += usize::from(decode(&file, 24_000, &limits).is_err());
    }
    assert!(refused > 300, "{refused}");
}

#[test]
fn random_pages_with_right_checksums_never_panic() {
    let mut random = Random(11);
    for _ in 0..3_000 {
        let mut file = Vec::new();
        for sequence in 0..1 + random.below(6) {
            let segments = random.below(6);
            let lacing: Vec<u8> =
                (0..segments).map(|_| if random.below(3) == 0 { 255 } else { random.next() as u8 }).collect();
            let body_len = lacing.iter().map(|len| usize::from(*len)).sum();
            let body = match (sequence, random.below(2)) {
                (0, 0) => [b"OpusHead".as_slice(), &[1, 1], &random.bytes(9_usize.max(body_len))].concat(),
                (1, 0) => [b"OpusTags".as_slice(), &random.bytes(body_len)].concat(),
                _ => random.bytes(body_len),
            };
            let flags = if sequence == 0 { 2 } else { random.below(8) as u8 };
            file.extend(page(
                flags,
                random.next() >> random.below(64),
                sequence as u32,
                &lacing,
                &body[..body_len],
            ));
        }
        let _ = decode(&file, 24_000, &AudioLimits::default());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_length_comes_back_from_a_file(samples in 0usize..9_000, packets_per_page in 1u8..=5) {
        let opus = OpusSettings { complexity: 0, ..OpusSettings::default() };
        let file = file_of(&voice(samples, 24_000), packets_per_page, opus);
        let audio = decode(&file, 24_000, &AudioLimits::default()).unwrap();
        prop_assert_eq!(audio.samples.len(), samples);
    }

    #[test]
    fn every_truncation_ends_in_an_answer(cut in 0usize..2_000) {
        let file = file_of(&voice(9_600, 24_000), 2, OpusSettings::default());
        let _ = decode(&file[..cut.min(file.len())], 24_000, &AudioLimits::default());
    }

    #[test]
    fn random_bytes_are_no_file(bytes in proptest::collection::vec(any::<u8>(), 0..500)) {
        prop_assert!(decode(&bytes, 24_000, &AudioLimits::default()).is_err());
    }
}
