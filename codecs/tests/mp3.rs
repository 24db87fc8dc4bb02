//! MP3 in builds that make it, read back by a decoder that shares nothing with its encoder; refused in others.

use codecs::mp3::{AVAILABLE, Mp3Writer, RATES_HZ};

#[test]
fn a_build_without_the_encoder_says_so() {
    let refused = Mp3Writer::new(24_000, 64, &[]).err().map(|error| error.to_string());
    assert_eq!(refused.is_none(), AVAILABLE, "{refused:?}");
    assert!(refused.is_none_or(|text| text.contains("mp3")));
}

/// Seconds of a tone of `hz`, as the engine's samples leave: 16 bits, little-endian.
#[cfg(feature = "mp3")]
fn tone(rate: u32, hz: f64, seconds: u32) -> Vec<u8> {
    let samples =
        (0..rate * seconds).map(|n| (std::f64::consts::TAU * hz * f64::from(n) / f64::from(rate)).sin());
    samples.flat_map(|sample| ((sample * 12_000.0) as i16).to_le_bytes()).collect()
}

#[cfg(feature = "mp3")]
fn comments() -> Vec<(String, String)> {
    let comment = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    vec![comment("SOURCE", "a machine, é"), comment("COMMENT", &"spoken ".repeat(40))]
}

#[cfg(feature = "mp3")]
fn encoded(rate: u32, kbps: u16, pcm: &[u8], piece: usize) -> Vec<u8> {
    let (mut writer, mut file) = Mp3Writer::new(rate, kbps, &comments()).expect("a rate of MPEG");
    for piece in pcm.chunks(piece) {
        writer.write(piece, &mut file).expect("written");
    }
    writer.finish(&mut file).expect("finished");
    file
}

#[cfg(feature = "mp3")]
#[test]
fn a_tone_comes_back_as_long_and_as_high_at_every_rate() {
    for rate in RATES_HZ {
        let pcm = tone(rate, 440.0, 2);
        let file = encoded(rate, 64, &pcm, 960);
        let limits = codecs::AudioLimits::default();
        let audio = codecs::upload::read(&file, &limits).unwrap_or_else(|error| panic!("{rate}: {error}"));
        assert_eq!(audio.rate_hz, rate);
        // The encoder's delay and the last frame's rest, at both ends; a decoder may leave the first frame out.
        let extra = audio.samples.len() as i64 - i64::from(rate) * 2;
        assert!((-1_200..4_000).contains(&extra), "{rate}: {extra} samples more");
        let middle = &audio.samples[rate as usize / 2..rate as usize * 3 / 2];
        let rises = middle.windows(2).filter(|pair| pair[0] < 0.0 && pair[1] >= 0.0).count();
        assert!(rises.abs_diff(440) <= 2, "{rate}: {rises} Hz");
    }
}

#[cfg(feature = "mp3")]
#[test]
fn how_samples_are_cut_changes_no_byte_and_a_rate_of_no_mpeg_is_refused() {
    let pcm = tone(24_000, 300.0, 1);
    assert_eq!(encoded(24_000, 64, &pcm, 64), encoded(24_000, 64, &pcm, 48_000));
    assert_eq!(encoded(24_000, 64, &[], 960), encoded(24_000, 64, &[], 960));
    assert!(Mp3Writer::new(96_000, 64, &[]).is_err());
}

/// A size of ID3v2.4: seven bits a byte.
#[cfg(feature = "mp3")]
fn size(bytes: &[u8]) -> usize {
    bytes.iter().fold(0, |size, byte| {
        assert!(*byte < 0x80, "no byte of a size looks like a frame's first");
        size << 7 | usize::from(*byte)
    })
}

/// Read as "ID3 tag version 2.4.0 - Main Structure" and "- Native Frames" have it.
#[cfg(feature = "mp3")]
#[test]
fn a_file_begins_with_a_tag_of_its_comments_and_its_sound_follows_at_once() {
    let (mut writer, head) = Mp3Writer::new(24_000, 64, &comments()).expect("a rate of MPEG");
    assert_eq!(head[..6], *b"ID3\x04\x00\x00", "version 4, no flags");
    assert_eq!(size(&head[6..10]), head.len() - 10);
    let (mut rest, mut found) = (&head[10..], Vec::new());
    while let [a, b, c, d, s1, s2, s3, s4, 0, 0, body @ ..] = rest {
        let (frame, after) = body.split_at(size(&[*s1, *s2, *s3, *s4]));
        let text = match (&[*a, *b, *c, *d], frame) {
            (b"TXXX", [3, text @ ..]) | (b"COMM", [3, b'e', b'n', b'g', text @ ..]) => text,
            other => panic!("{other:?}"),
        };
        let (name, value) = std::str::from_utf8(text).expect("UTF-8").split_once('\0').expect("two texts");
        found.push((name.to_owned(), value.to_owned()));
        rest = after;
    }
    assert!(rest.is_empty());
    let mut told = comments();
    told[1].0.clear();
    assert_eq!(found, told);
    // A tenth of a second is enough for a frame, whose header is eleven bits of ones.
    let mut sound = Vec::new();
    writer.write(&tone(24_000, 440.0, 1)[..4_800], &mut sound).expect("written");
    assert!(sound.len() > 100 && sound[0] == 0xFF && sound[1] >= 0xE0, "{:?}", &sound[..2.min(sound.len())]);
}

#[cfg(not(feature = "mp3"))]
#[test]
fn the_rates_are_those_of_mpeg() {
    assert!(RATES_HZ.is_sorted() && RATES_HZ.contains(&24_000));
}
