//! `output_format`: codec, rate and bit rate in one name.

use codecs::mp3;
use serde_json::{Value, json};

use crate::speech::SpeechFormat;
use crate::wire::{AudioChoice, Speed, WireCodec, WireError};

/// What is taken when a client names no format, as the service does.
const DEFAULT: &str = "mp3_44100_128";
const PCM_HZ: [u32; 7] = [8_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000];

/// A format this server can make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputFormat {
    ALaw,
    MuLaw,
    /// At this many hertz and kilobits a second; only in builds that make it, and not on a socket.
    Mp3 {
        rate: u32,
        kbps: u16,
    },
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
    /// [`WireError::Unsupported`], naming what can be made: MP3 only in builds that make it.
    pub fn read(name: Option<&str>) -> Result<Self, WireError> {
        let name = name.unwrap_or(DEFAULT);
        match name {
            "alaw_8000" => Ok(Self::ALaw),
            "ulaw_8000" => Ok(Self::MuLaw),
            _ if name.starts_with("opus_48000_") => Ok(Self::Opus),
            _ => read_pcm(name).or_else(|| read_mp3(name)).ok_or_else(|| unsupported(name)),
        }
    }

    /// The names that are read over HTTP, in JSON Schema.
    #[must_use]
    pub fn schema() -> Value {
        let either = |rates: &[u32]| rates.iter().map(u32::to_string).collect::<Vec<_>>().join("|");
        let mp3 = if mp3::AVAILABLE {
            format!("|mp3_({})_[0-9]{{1,3}}", either(&mp3::RATES_HZ))
        } else {
            String::new()
        };
        let pcm = either(&PCM_HZ);
        json!({ "type": "string", "pattern": format!(r"^(pcm_({pcm})|[au]law_8000|opus_48000_[\s\S]*{mp3})$") })
    }

    /// A name on a socket: each of its messages is decoded by itself, as no MP3 can be.
    ///
    /// # Errors
    /// As [`OutputFormat::read`].
    pub(super) fn read_for_socket(name: Option<&str>) -> Result<Self, WireError> {
        match Self::read(name)? {
            Self::Mp3 { .. } => Err(unsupported(name.unwrap_or(DEFAULT))),
            format => Ok(format),
        }
    }

    #[must_use]
    pub const fn speech_format(self) -> SpeechFormat {
        match self {
            Self::ALaw => SpeechFormat::ALaw,
            Self::Mp3 { kbps, .. } => SpeechFormat::Mp3 { kbps },
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
            Self::Mp3 { rate, .. } | Self::Pcm(rate) => rate,
        }
    }

    /// What a context that speaks at `speed` is opened with.
    #[must_use]
    pub fn choice(self, speed: Speed) -> AudioChoice {
        let codec = match self {
            Self::Opus => WireCodec::Opus,
            _ => WireCodec::Pcm,
        };
        let sample_rate = Some(self.rate_hz());
        AudioChoice { codec, sample_rate, speed, ..AudioChoice::default() }
    }
}

fn read_pcm(name: &str) -> Option<OutputFormat> {
    let rate = name.strip_prefix("pcm_")?.parse().ok()?;
    PCM_HZ.contains(&rate).then_some(OutputFormat::Pcm(rate))
}

fn read_mp3(name: &str) -> Option<OutputFormat> {
    let (rate, kbps) = name.strip_prefix("mp3_")?.split_once('_')?;
    let (rate, kbps) = (rate.parse().ok()?, kbps.parse().ok()?);
    (mp3::AVAILABLE && mp3::RATES_HZ.contains(&rate)).then_some(OutputFormat::Mp3 { rate, kbps })
}

fn unsupported(name: &str) -> WireError {
    let shown: String = name.chars().take(32).collect();
    let hint = format!(
        "this server makes no {shown:?} here; use pcm_8000 to pcm_48000, ulaw_8000, alaw_8000 or opus_48000_32"
    );
    WireError::Unsupported { param: "output_format", hint }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_formats_that_clients_ask_for_are_known_and_others_are_refused_by_name() {
        assert_eq!(OutputFormat::read(Some("pcm_22050")), Ok(OutputFormat::Pcm(22_050)));
        assert_eq!(OutputFormat::read(Some("ulaw_8000")), Ok(OutputFormat::MuLaw));
        assert_eq!(OutputFormat::read(Some("opus_48000_32")), Ok(OutputFormat::Opus));
        for wrong in ["pcm_11025", "", "mp3_", "mp3_44100", "mp3_44100_x", "mp3_96000_128"] {
            let refused = OutputFormat::read(Some(wrong)).expect_err("no such format");
            assert_eq!((refused.code(), refused.param()), ("unsupported", Some("output_format")));
            assert!(refused.to_string().contains("pcm_8000"), "{refused}");
        }
    }

    #[test]
    fn mp3_is_made_by_builds_that_can_and_never_on_a_socket() {
        for (name, rate, kbps) in [(None, 44_100, 128), (Some("mp3_22050_32"), 22_050, 32)] {
            let made = mp3::AVAILABLE.then_some(OutputFormat::Mp3 { rate, kbps });
            assert_eq!(OutputFormat::read(name).ok(), made);
            let refused = OutputFormat::read_for_socket(name).expect_err("no MP3");
            assert_eq!((refused.code(), refused.param()), ("unsupported", Some("output_format")));
        }
    }
}
