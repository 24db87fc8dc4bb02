//! `output_format`: codec, rate and bit rate in one name.

use codecs::pcm::RawEncoding;

use crate::speech::SpeechFormat;
use crate::wire::{AudioChoice, WireCodec, WireError};

/// What is taken when a client names no format, as the service does.
const DEFAULT: &str = "mp3_44100_128";
const PCM_HZ: [u32; 7] = [8_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000];

/// A format this server can make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputFormat {
    ALaw,
    MuLaw,
    /// Opus in Ogg, at the server's own bit rate.
    Opus,
    /// s16le at this many hertz.
    Pcm(u32),
}

impl OutputFormat {
    /// Reads a name such as `pcm_24000`, `ulaw_8000` or `opus_48000_32`. `None` is the service's default,
    /// which is MP3.
    ///
    /// # Errors
    /// [`WireError::Unsupported`], naming what can be made: MP3 is not.
    pub fn read(name: Option<&str>) -> Result<Self, WireError> {
        let name = name.unwrap_or(DEFAULT);
        let pcm = name.strip_prefix("pcm_").and_then(|rate| rate.parse().ok());
        match (name, pcm) {
            ("alaw_8000", _) => Ok(Self::ALaw),
            ("ulaw_8000", _) => Ok(Self::MuLaw),
            (_, Some(rate)) if PCM_HZ.contains(&rate) => Ok(Self::Pcm(rate)),
            _ if name.starts_with("opus_48000_") => Ok(Self::Opus),
            _ => Err(WireError::Unsupported {
                param: "output_format",
                hint: format!(
                    "this server makes no {:?}; use pcm_8000 to pcm_48000, ulaw_8000, alaw_8000 or opus_48000_32",
                    name.chars().take(32).collect::<String>()
                ),
            }),
        }
    }

    #[must_use]
    pub const fn speech_format(self) -> SpeechFormat {
        match self {
            Self::ALaw => SpeechFormat::ALaw,
            Self::MuLaw => SpeechFormat::MuLaw,
            Self::Opus => SpeechFormat::Opus,
            Self::Pcm(_) => SpeechFormat::Pcm,
        }
    }

    /// Hertz of the samples.
    #[must_use]
    pub const fn rate_hz(self) -> u32 {
        match self {
            Self::ALaw | Self::MuLaw => 8_000,
            Self::Opus => 48_000,
            Self::Pcm(rate) => rate,
        }
    }

    /// What a context is opened with, and the encoding that its PCM is put into; `None` for Opus.
    #[must_use]
    pub const fn choice(self) -> (AudioChoice, Option<RawEncoding>) {
        let codec = match self {
            Self::Opus => WireCodec::Opus,
            _ => WireCodec::Pcm,
        };
        let sample_rate = Some(self.rate_hz());
        (AudioChoice { codec, sample_rate, trim: false, loudness: None }, self.speech_format().encoding())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_formats_that_clients_ask_for_are_known_and_mp3_is_refused_by_name() {
        assert_eq!(OutputFormat::read(Some("pcm_22050")), Ok(OutputFormat::Pcm(22_050)));
        assert_eq!(OutputFormat::read(Some("ulaw_8000")), Ok(OutputFormat::MuLaw));
        assert_eq!(OutputFormat::read(Some("opus_48000_32")), Ok(OutputFormat::Opus));
        for wrong in [None, Some("mp3_22050_32"), Some("pcm_11025"), Some("")] {
            let refused = OutputFormat::read(wrong).expect_err("no such format");
            assert_eq!((refused.code(), refused.param()), ("unsupported", Some("output_format")));
            assert!(refused.to_string().contains("pcm_8000"), "{refused}");
        }
    }
}
