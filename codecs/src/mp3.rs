//! MP3 streamed out, by LAME (crate `mp3lame-encoder`, LGPL): 16-bit mono at a constant bit rate. Only in builds
//! with the feature `mp3`.

use crate::CodecError;

/// Whether this build makes MP3.
pub const AVAILABLE: bool = cfg!(feature = "mp3");

/// Hertz that MPEG-1, 2 and 2.5 have.
pub const RATES_HZ: [u32; 9] = [8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000];

/// Writes one stream. Its sound begins with a frame of the encoder's delay, as every MP3's does, and it says nothing of
/// its length: that is not known before its end.
pub struct Mp3Writer {
    #[cfg(feature = "mp3")]
    encoder: mp3lame_encoder::Encoder,
    /// The encoder has a sample: one without has nothing to flush.
    #[cfg(feature = "mp3")]
    begun: bool,
    #[cfg(not(feature = "mp3"))]
    never: std::convert::Infallible,
}

#[cfg(feature = "mp3")]
impl Mp3Writer {
    /// Of samples at `rate_hz`, at the bit rate nearest to `kbps` that MPEG has for that rate. Gives the writer, and the
    /// tag of these comments, which stands first.
    ///
    /// # Errors
    /// [`CodecError::Library`] for a rate that MPEG has not.
    pub fn new(
        rate_hz: u32,
        kbps: u16,
        comments: &[(String, String)],
    ) -> Result<(Self, Vec<u8>), CodecError> {
        if !RATES_HZ.contains(&rate_hz) {
            return Err(refused(&format_args!("MPEG has no {rate_hz} Hz")));
        }
        let mut builder = mp3lame_encoder::Builder::new().ok_or_else(|| refused(&"no memory"))?;
        builder.set_num_channels(1).map_err(|error| refused(&error))?;
        builder.set_sample_rate(rate_hz).map_err(|error| refused(&error))?;
        // Else a low bit rate would bring a lower rate with it.
        let rate = std::num::NonZeroU32::new(rate_hz);
        builder.set_output_sample_rate(rate).map_err(|error| refused(&error))?;
        builder.set_brate(bitrate(rate_hz, kbps)).map_err(|error| refused(&error))?;
        builder.set_quality(mp3lame_encoder::Quality::Good).map_err(|error| refused(&error))?;
        // A tag of the length would have to be written last and stand first.
        builder.set_to_write_vbr_tag(false).map_err(|error| refused(&error))?;
        let encoder = builder.build().map_err(|error| refused(&error))?;
        Ok((Self { encoder, begun: false }, tag(comments)))
    }

    /// Takes 16-bit little-endian samples and appends every frame that is whole.
    ///
    /// # Errors
    /// [`CodecError::Library`]; the stream is then of no use.
    pub fn write(&mut self, s16le: &[u8], out: &mut Vec<u8>) -> Result<(), CodecError> {
        let (pairs, _) = s16le.as_chunks::<2>();
        let samples: Vec<i16> = pairs.iter().map(|pair| i16::from_le_bytes(*pair)).collect();
        self.begun |= !samples.is_empty();
        out.reserve(mp3lame_encoder::max_required_buffer_size(samples.len()));
        let pcm = mp3lame_encoder::MonoPcm(&samples);
        self.encoder.encode_to_vec(pcm, out).map_err(|error| refused(&error))?;
        Ok(())
    }

    /// The last frames.
    ///
    /// # Errors
    /// As [`Mp3Writer::write`].
    pub fn finish(&mut self, out: &mut Vec<u8>) -> Result<(), CodecError> {
        if !self.begun {
            return Ok(());
        }
        out.reserve(mp3lame_encoder::max_required_buffer_size(0));
        self.encoder.flush_to_vec::<mp3lame_encoder::FlushNoGap>(out).map_err(|error| refused(&error))?;
        Ok(())
    }
}

#[cfg(not(feature = "mp3"))]
impl Mp3Writer {
    /// # Errors
    /// Always: this build has no encoder.
    pub fn new(
        _rate_hz: u32,
        _kbps: u16,
        _comments: &[(String, String)],
    ) -> Result<(Self, Vec<u8>), CodecError> {
        let reason = "this build is without the feature mp3".to_owned();
        Err(CodecError::Library { operation: "writing MP3", reason })
    }

    /// # Errors
    /// None: there is no such writer.
    pub fn write(&mut self, _s16le: &[u8], _out: &mut Vec<u8>) -> Result<(), CodecError> {
        match self.never {}
    }

    /// # Errors
    /// None: there is no such writer.
    pub fn finish(&mut self, _out: &mut Vec<u8>) -> Result<(), CodecError> {
        match self.never {}
    }
}

/// An ID3v2.4 tag (id3.org, "ID3 tag version 2.4.0"), in UTF-8: `COMMENT` as the comment it has a frame for, others as
/// text of their name.
#[cfg(feature = "mp3")]
fn tag(comments: &[(String, String)]) -> Vec<u8> {
    const UTF_8: u8 = 3;
    let mut frames = Vec::new();
    for (name, value) in comments {
        // A comment names its language, and has a description of its own, which is empty.
        let (id, language, description) = match name.as_str() {
            "COMMENT" => (b"COMM", "eng", ""),
            name => (b"TXXX", "", name),
        };
        let body = [&[UTF_8], language.as_bytes(), description.as_bytes(), &[0], value.as_bytes()].concat();
        // Behind the size come flags, of which none is raised.
        frames.extend([&id[..], &synchsafe(body.len()), &[0, 0], &body].concat());
    }
    // Version 4, revision 0, no flags.
    [b"ID3\x04\x00\x00", &synchsafe(frames.len())[..], &frames].concat()
}

/// A size in four bytes of seven bits (section 6.2), so that none looks like the beginning of a frame of sound. Larger ones
/// do not exist: comments are a few words of our own.
#[cfg(feature = "mp3")]
fn synchsafe(size: usize) -> [u8; 4] {
    [21, 14, 7, 0].map(|shift| (size >> shift & 0x7F) as u8)
}

#[cfg(feature = "mp3")]
fn bitrate(rate_hz: u32, kbps: u16) -> mp3lame_encoder::Bitrate {
    use mp3lame_encoder::Bitrate;
    const ALL: [(u16, Bitrate); 16] = [
        (8, Bitrate::Kbps8),
        (16, Bitrate::Kbps16),
        (24, Bitrate::Kbps24),
        (32, Bitrate::Kbps32),
        (40, Bitrate::Kbps40),
        (48, Bitrate::Kbps48),
        (64, Bitrate::Kbps64),
        (80, Bitrate::Kbps80),
        (96, Bitrate::Kbps96),
        (112, Bitrate::Kbps112),
        (128, Bitrate::Kbps128),
        (160, Bitrate::Kbps160),
        (192, Bitrate::Kbps192),
        (224, Bitrate::Kbps224),
        (256, Bitrate::Kbps256),
        (320, Bitrate::Kbps320),
    ];
    // MPEG-2.5 ends at 64 kbit/s, MPEG-2 at 160; MPEG-1 begins at 32.
    let (least, most) = match rate_hz {
        0..16_000 => (8, 64),
        16_000..32_000 => (8, 160),
        _ => (32, 320),
    };
    let known = ALL.into_iter().filter(|(rate, _)| (least..=most).contains(rate));
    known.min_by_key(|(rate, _)| rate.abs_diff(kbps)).map_or(Bitrate::Kbps64, |(_, bitrate)| bitrate)
}

#[cfg(feature = "mp3")]
fn refused(error: &dyn std::fmt::Debug) -> CodecError {
    CodecError::Library { operation: "writing MP3", reason: format!("{error:?}") }
}
