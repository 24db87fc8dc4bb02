//! `output_format`: container, encoding and rate.

use codecs::mp3;
use codecs::pcm::RawEncoding;

use serde_json::{Value, json};

use crate::speech::SpeechFormat;
use crate::wire::told::{Among, Choice, Field, Kind, Parts, Table, Told, Whole, Words};
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

/// Where a format is asked for.
pub(super) enum Asked {
    OverHttp,
    /// Which carries raw samples only.
    OnSocket,
}

pub(super) const OVER_HTTP: Field<Asked> = Field::required("output_format", Asked::OverHttp);
pub(super) const ON_SOCKET: Field<Asked> = Field::required("output_format", Asked::OnSocket);

const FIELDS: &Table = &[&CONTAINER, &ENCODING, &SAMPLE_RATE, &BIT_RATE];
const CONTAINER: Field<Words> = Field::required("container", Words(64));
const ENCODING: Field<Choice<RawEncoding>> = Field::new(
    "encoding",
    Choice(&[
        ("pcm_alaw", RawEncoding::ALaw),
        ("pcm_f32le", RawEncoding::F32Le),
        ("pcm_mulaw", RawEncoding::MuLaw),
        ("pcm_s16le", RawEncoding::S16Le),
    ]),
);
const SAMPLE_RATE: Field<Among> =
    Field::required("sample_rate", Among(&[8_000, 16_000, 22_050, 24_000, 44_100, 48_000]));
/// Of MP3, in bits a second.
const BIT_RATE: Field<Whole> = Field::new("bit_rate", Whole { min: 8_000, max: 320_000 });

impl Kind for Asked {
    type Value = OutputFormat;

    /// # Errors
    /// What is wrong with it; `unsupported` for MP3, for G.711 in a WAV, and for files on a socket.
    fn take(&self, name: &'static str, fields: &mut Fields) -> Result<Option<OutputFormat>, WireError> {
        let Some(mut format) = Parts(FIELDS).take(name, fields)? else { return Ok(None) };
        let container = match CONTAINER.demand(&mut format)?.as_str() {
            "raw" => Container::Raw,
            "wav" => Container::Wav,
            "mp3" if mp3::AVAILABLE => {
                let bits = BIT_RATE.take(&mut format)?.unwrap_or(128_000);
                Container::Mp3 { kbps: u16::try_from(bits / 1_000).unwrap_or(u16::MAX) }
            }
            other => {
                let hint = format!("this server makes no {other:?}; use raw or wav");
                return Err(WireError::Unsupported { param: "output_format.container", hint });
            }
        };
        let encoding = match container {
            Container::Raw => ENCODING.demand(&mut format)?,
            Container::Mp3 { .. } | Container::Wav => {
                ENCODING.take(&mut format)?.unwrap_or(RawEncoding::S16Le)
            }
        };
        if container == Container::Wav && matches!(encoding, RawEncoding::ALaw | RawEncoding::MuLaw) {
            let hint = "in a wav use pcm_s16le or pcm_f32le".to_owned();
            return Err(WireError::Unsupported { param: "output_format.encoding", hint });
        }
        let sample_rate = SAMPLE_RATE.demand(&mut format)?;
        if matches!(self, Self::OnSocket) && container != Container::Raw {
            let hint = "a socket carries raw samples; use raw".to_owned();
            return Err(WireError::Unsupported { param: "output_format.container", hint });
        }
        Ok(Some(OutputFormat { container, encoding, sample_rate }))
    }

    fn schema(&self) -> Value {
        let form = |container: &str, name: &str, values: Value, required: &[&str]| {
            json!({ "type": "object", "required": required, "properties": { CONTAINER.name: { "const": container },
                name: values, SAMPLE_RATE.name: SAMPLE_RATE.schema() } })
        };
        let all = [CONTAINER.name, ENCODING.name, SAMPLE_RATE.name];
        let raw = form("raw", ENCODING.name, ENCODING.present(), &all);
        if matches!(self, Self::OnSocket) {
            return raw;
        }
        let optional = [CONTAINER.name, SAMPLE_RATE.name];
        let mut wav = form("wav", ENCODING.name, ENCODING.schema(), &optional);
        wav["properties"][ENCODING.name]["enum"] = json!(["pcm_f32le", "pcm_s16le", null]);
        let mut forms = vec![raw, wav];
        if mp3::AVAILABLE {
            forms.push(form("mp3", BIT_RATE.name, BIT_RATE.schema(), &optional));
        }
        json!({ "oneOf": forms })
    }
}

impl OutputFormat {
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
