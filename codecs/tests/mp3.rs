//! MP3 in builds that make it, read back by a decoder that shares nothing with its encoder; refused in others.

use codecs::mp3::{AVAILABLE, Mp3Writer, RATES_HZ};

#[test]
fn a_build_without_the_encoder_says_so() {
    let refused = Mp3Writer::new(24_000, 64).err().map(|error| error.to_string());
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
fn encoded(rate: u32, kbps: u16, pcm: &[u8], piece: usize) -> Vec<u8> {
    let mut writer = Mp3Writer::new(rate, kbps).expect("a rate of MPEG");
    let mut file = Vec::new();
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
    assert!(encoded(24_000, 64, &[], 960).is_empty());
    assert!(Mp3Writer::new(96_000, 64).is_err());
}

#[cfg(not(feature = "mp3"))]
#[test]
fn the_rates_are_those_of_mpeg() {
    assert!(RATES_HZ.is_sorted() && RATES_HZ.contains(&24_000));
}
