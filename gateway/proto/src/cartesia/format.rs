//! `output_format`: container, encoding and rate.

use codecs::mp3;
use codecs::pcm::RawEncoding;

use crate::speech::SpeechFormat;
use crate::wire::{Fields, WireError};

/// What the samples lie in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Container {
    /// Only in builds that make it.
    Mp3 {
        kbps: u16,
    },
    Raw,
    Wav,
}

/// A format this server can make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputFormat {
    pub container: Container,
    pub encoding: RawEncoding,
    /// Hertz.
    pub sample_rate: u32,
}

const RATES: [u32; 6] = [8_000, 16_000, 22_050, 24_000, 44_100, 48_000];
const ENCODINGS: &[(&str, RawEncoding)] = &[
    ("pcm_alaw", RawEncoding::ALaw),
    ("pcm_f32le", RawEncoding::F32Le),
    ("pcm_mulaw", RawEncoding::MuLaw),
    ("pcm_s16le", RawEncoding::S16Le),
];

impl OutputFormat {
    /// Takes `output_format` from a request.
    ///
    /// # Errors
    /// What is wrong with it; `unsupported` for MP3 and for G.711 in a WAV.
    pub(super) fn take(fields: &mut Fields) -> Result<Self, WireError> {
        let format = fields.lenient_object("output_format")?;
        let mut format = fields.required("output_format", format)?;
        let container = match format.string("container", 64)?.as_deref() {
            Some("raw") => Container::Raw,
            Some("wav") => Container::Wav,
            Some("mp3") if mp3::AVAILABLE => {
                let bits = format.u32("bit_rate", 8_000, 320_000)?.unwrap_or(128_000);
                Container::Mp3 { kbps: u16::try_from(bits / 1_000).unwrap_or(u16::MAX) }
            }
            Some(other) => {
                let hint = format!("this server makes no {other:?}; use raw or wav");
                return Err(WireError::Unsupported { param: "output_format.container", hint });
            }
            None => return format.required("container", None),
        };
        let encoding = format.choice("encoding", ENCODINGS)?;
        let encoding = match container {
            Container::Raw => format.required("encoding", encoding)?,
            Container::Mp3 { .. } | Container::Wav => encoding.unwrap_or(RawEncoding::S16Le),
        };
        if container == Container::Wav && matches!(encoding, RawEncoding::ALaw | RawEncoding::MuLaw) {
            let hint = "in a wav use pcm_s16le or pcm_f32le".to_owned();
            return Err(WireError::Unsupported { param: "output_format.encoding", hint });
        }
        let sample_rate = format.u32("sample_rate", 0, u32::MAX)?;
        let sample_rate = format.required("sample_rate", sample_rate)?;
        if !RATES.contains(&sample_rate) {
            let known = RATES.map(|rate| rate.to_string()).join(", ");
            return Err(format.out_of_range("sample_rate", format!("one of {known}")));
        }
        Ok(Self { container, encoding, sample_rate })
    }

    #[must_use]
    pub const fn speech_format(self) -> SpeechFormat {
        match (self.container, self.encoding) {
            (Container::Mp3 { kbps }, _) => SpeechFormat::Mp3 { kbps },
            (Container::Wav, RawEncoding::F32Le) => SpeechFormat::WavF32,
            (Container::Wav, _) => SpeechFormat::Wav,
            (Container::Raw, RawEncoding::ALaw) => SpeechFormat::ALaw,
            (Container::Raw, RawEncoding::F32Le) => SpeechFormat::F32,
            (Container::Raw, RawEncoding::MuLaw) => SpeechFormat::MuLaw,
            (Container::Raw, RawEncoding::S16Le) => SpeechFormat::Pcm,
        }
    }
}
