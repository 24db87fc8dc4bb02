//! What `POST /v1/audio/speech` asks, and the events it answers with when asked for `sse`
//! (OpenAI's shape, with fields of our own and of other servers: docs/speech.md).

mod fields;
mod union;

pub use fields::body_schema;

use std::sync::Arc;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use codecs::mp3;
use codecs::pcm::RawEncoding;
use contract::{CloneMode, EngineError, FinishReason, Layout, Span, Usage};
use serde::Serialize;
use serde_json::{Value, json};

use crate::body::{Body, Sound};
use crate::catalog::{Ask, CLONE_MODES, TRANSCRIPT_CHARACTERS_MAX};
use crate::wire::speaking::{LOUDNESS, VOICE, speed};
use crate::wire::told::{self, Choice, Field, Kind, Words};
use crate::wire::{CLOCK_HZ, ErrorObject, Fields, Json, Speed, WireError, sampling};
use fields::{
    EXACT_FRAMES, Format, INPUT, INSTRUCTIONS, LANGUAGE, LAYOUT, MODEL, NORMALIZE, RESPONSE_FORMAT,
    SAMPLE_RATE, STREAM, STREAM_FORMAT, TRIM,
};

/// Characters of `input` when the server is not configured otherwise.
pub const INPUT_CHARACTERS_MAX: usize = 4_096;

/// Characters of `instructions`.
pub const INSTRUCTIONS_CHARACTERS_MAX: usize = 4_096;

const FIELDS: &[&str] = &[
    "ambient_sound",
    "duration_seconds",
    "duration_tokens",
    "exact_frames",
    "extra_params",
    "initial_codec_chunk_frames",
    "input",
    "instruct",
    "instructions",
    "lang_code",
    "language",
    "layout",
    "loudness",
    "max_new_tokens",
    "max_tokens",
    "model",
    "normalize",
    "ref_audio",
    "ref_audio_2",
    "ref_text",
    "reference",
    "references",
    "repetition_penalty",
    "response_format",
    "sample_rate",
    "seed",
    "speaker",
    "speaker_embedding",
    "speed",
    "stream",
    "stream_format",
    "streaming_interval",
    "task_type",
    "temperature",
    "token_count",
    "top_k",
    "top_p",
    "trim",
    "voice",
    "vq_codes",
    "word_timestamps",
    "x_vector_only_mode",
];

/// A valid request. Model, voice and language are names until [`crate::catalog::Target::resolve`].
#[derive(Clone, Debug, PartialEq)]
pub struct SpeechRequest {
    /// Has a letter or a digit.
    pub input: String,
    pub ask: Ask,
    pub format: SpeechFormat,
    /// Hertz; `None` is [`SpeechFormat::rate_hz`].
    pub sample_rate: Option<u32>,
    pub stream: StreamFormat,
    /// How much faster than usual, with the same pitch.
    pub speed: Speed,
    /// The answer leaves only when it is whole, with its length in its head.
    pub whole: bool,
    /// Loudness to come to, in LUFS.
    pub loudness: Option<i8>,
    /// A clip in place of `voice`.
    pub reference: Option<SpeechReference>,
}

/// Bit rate of MP3 where a client names none: speech of one voice loses nothing at it.
const MP3_KBPS: u16 = 64;

/// A clip that came with a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpeechReference {
    /// Base64 of a WAV, FLAC, MP3, Ogg or WebM file.
    pub audio: String,
    /// The exact words of the clip.
    pub transcript: Option<String>,
    /// `None`: in context with a transcript, by speaker without.
    pub mode: Option<CloneMode>,
}

impl SpeechReference {
    /// The file itself.
    ///
    /// # Errors
    /// What is no base64.
    pub fn file(&self) -> Result<Bytes, EngineError> {
        let decoded = BASE64_STANDARD.decode(self.audio.as_bytes());
        let bad = |_| EngineError::BadReference { what: "reference.audio is not base64".to_owned() };
        decoded.map(Bytes::from).map_err(bad)
    }
}

/// Container and codec of the answer's audio.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SpeechFormat {
    /// G.711 A-law, 8 bits a sample, no header; telephony's 8 kHz unless asked otherwise.
    ALaw,
    /// 32-bit little-endian float mono, no header.
    F32,
    Flac,
    /// At about this many kilobits a second; only in builds that make it.
    Mp3 {
        kbps: u16,
    },
    /// G.711 mu-law, likewise.
    MuLaw,
    /// Opus in Ogg.
    Opus,
    /// Signed 16-bit little-endian mono, no header.
    Pcm,
    Wav,
    /// WAV of 32-bit floats.
    WavF32,
}

/// How the answer's body is framed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StreamFormat {
    /// The audio itself.
    Audio,
    /// Server-sent events with base64 audio.
    Sse,
}

impl SpeechFormat {
    /// Hertz when the request names none: telephony has a rate of its own, the others take the model's.
    #[must_use]
    pub const fn rate_hz(self, model_hz: u32) -> u32 {
        match self {
            Self::ALaw | Self::MuLaw => 8_000,
            Self::F32 | Self::Flac | Self::Mp3 { .. } | Self::Opus | Self::Pcm | Self::Wav | Self::WavF32 => {
                model_hz
            }
        }
    }

    /// The samples' encoding; `None` where a library writes them.
    #[must_use]
    pub const fn encoding(self) -> Option<RawEncoding> {
        match self {
            Self::ALaw => Some(RawEncoding::ALaw),
            Self::F32 | Self::WavF32 => Some(RawEncoding::F32Le),
            Self::MuLaw => Some(RawEncoding::MuLaw),
            Self::Flac | Self::Mp3 { .. } | Self::Opus => None,
            Self::Pcm | Self::Wav => Some(RawEncoding::S16Le),
        }
    }

    #[must_use]
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::ALaw => "audio/PCMA",
            Self::MuLaw => "audio/PCMU",
            Self::Flac => "audio/flac",
            Self::Mp3 { .. } => "audio/mpeg",
            Self::Opus => "audio/ogg; codecs=opus",
            Self::F32 | Self::Pcm => "audio/pcm",
            Self::Wav | Self::WavF32 => "audio/wav",
        }
    }
}

impl SpeechRequest {
    /// Reads a JSON body strictly; `input_max` bounds the characters of `input`. The caller bounds the
    /// body's length.
    ///
    /// # Errors
    /// What is wrong, with the field's name; `unsupported` for formats and speeds this server has not.
    pub fn decode(body: &str, input_max: usize) -> Result<Self, WireError> {
        let Json::Object(mut entries) = Json::parse(body)? else {
            return Err(WireError::InvalidJson { at: 0, what: "it is no object" });
        };
        union::rename(&mut entries)?;
        let mut fields = Fields::open(entries, "", "the request", FIELDS)?;
        let input = spoken(&mut fields, INPUT.name, input_max)?;
        let stream = STREAM_FORMAT.take(&mut fields)?.unwrap_or(StreamFormat::Audio);
        let format = made(RESPONSE_FORMAT.take(&mut fields)?.unwrap_or(SpeechFormat::Wav), stream)?;
        let ask = Ask {
            model: MODEL.take(&mut fields)?,
            voice: VOICE.take(&mut fields)?,
            reference: None,
            language: LANGUAGE.take(&mut fields)?,
            instructions: INSTRUCTIONS.take(&mut fields)?,
            layout: LAYOUT.take(&mut fields)?,
            sampling: sampling(&mut fields)?,
            exact_frames: EXACT_FRAMES.take(&mut fields)?,
            normalize: NORMALIZE.take(&mut fields)?,
            lexicon: Arc::default(),
            trim: TRIM.take(&mut fields)?.unwrap_or(false),
        };
        let sample_rate = SAMPLE_RATE.take(&mut fields)?;
        let (speed, loudness) = (speed(&mut fields)?, LOUDNESS.take(&mut fields)?);
        let whole = STREAM.take(&mut fields)? == Some(false);
        if whole && stream == StreamFormat::Sse {
            let hint = "events are a stream; leave one of stream and stream_format out".to_owned();
            return Err(WireError::Unsupported { param: "stream", hint });
        }
        let (own, foreign) = (REFERENCE.take(&mut fields)?, union::take(&mut fields)?);
        if own.is_some() && foreign.is_some() {
            return Err(WireError::DuplicateField { field: "reference".to_owned() });
        }
        let reference = own.or(foreign);
        if reference.is_some() && ask.voice.is_some() {
            let hint = "give voice or reference, not both".to_owned();
            return Err(WireError::Unsupported { param: "reference", hint });
        }
        Ok(Self { input, ask, format, sample_rate, stream, speed, whole, loudness, reference })
    }

    /// Layouts in the order HTTP prefers them: all the text is there.
    pub const LAYOUTS: [Layout; 2] = [Layout::Whole, Layout::Streamed];
}

/// A whole text that can be spoken, of at most `characters_max` characters.
pub(crate) fn spoken(fields: &mut Fields, name: &str, characters_max: usize) -> Result<String, WireError> {
    let text = fields.string(name, usize::MAX)?;
    let text = fields.required(name, text)?;
    let characters = text.chars().count();
    if characters > characters_max {
        let bound = format!("at most {characters_max} characters, but has {characters}");
        return Err(fields.out_of_range(name, bound));
    }
    if !text.chars().any(char::is_alphanumeric) {
        return Err(fields.out_of_range(name, "text with a letter or a digit".to_owned()));
    }
    Ok(text)
}

/// Such a text in JSON Schema, which has no word for it.
#[must_use]
pub fn spoken_schema(characters_max: usize) -> Value {
    json!({ "type": "string", "format": "spoken", "minLength": 1, "maxLength": characters_max,
        "description": "text with a letter or a digit" })
}

/// A clip that speaks in this request alone: `reference`, the same on every endpoint.
pub(crate) const REFERENCE: Field<Clip> = Field::new("reference", Clip);

/// What stands in [`REFERENCE`].
pub(crate) struct Clip;

const AUDIO: Field<Words> = Field::required("audio", Words(usize::MAX));
const TRANSCRIPT: Field<Words> = Field::new("transcript", Words(TRANSCRIPT_CHARACTERS_MAX));
const MODE: Field<Choice<CloneMode>> = Field::new("mode", Choice(CLONE_MODES));

impl Kind for Clip {
    type Value = SpeechReference;

    fn take(&self, name: &'static str, fields: &mut Fields) -> Result<Option<SpeechReference>, WireError> {
        const KNOWN: &[&str] = &[AUDIO.name, MODE.name, TRANSCRIPT.name];
        let Some(mut fields) = fields.object(name, KNOWN)? else { return Ok(None) };
        let audio = AUDIO.demand(&mut fields)?;
        let transcript = TRANSCRIPT.take(&mut fields)?;
        let mode = MODE.take(&mut fields)?;
        Ok(Some(SpeechReference { audio, transcript, mode }))
    }

    fn schema(&self) -> Value {
        let mut schema = told::object(&[&AUDIO, &TRANSCRIPT, &MODE]);
        schema["additionalProperties"] = Value::Bool(false);
        let audio = &mut schema["properties"][AUDIO.name];
        audio["format"] = "sound".into();
        audio["description"] = "base64 of a WAV, FLAC, MP3, Ogg or WebM file".into();
        schema
    }
}

/// What is made where `asked` is.
fn made(asked: SpeechFormat, stream: StreamFormat) -> Result<SpeechFormat, WireError> {
    match (asked, stream) {
        (SpeechFormat::Mp3 { .. }, _) if mp3::AVAILABLE => Ok(asked),
        // The default of clients that read the answer's type before they decode it. Events name no type.
        (SpeechFormat::Mp3 { .. }, StreamFormat::Audio) => Ok(SpeechFormat::Opus),
        (SpeechFormat::Mp3 { .. }, StreamFormat::Sse) => Err(Format::unknown("mp3")),
        _ => Ok(asked),
    }
}

/// One server-sent event of a `stream_format: "sse"` answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "type")]
pub enum SpeechEvent {
    #[serde(rename = "speech.audio.delta")]
    Delta {
        /// Base64 of the next bytes of the audio.
        audio: String,
    },
    #[serde(rename = "speech.audio.done")]
    Done {
        usage: SpeechUsage,
        /// `stop`, or `length` where the model was cut off.
        finish_reason: &'static str,
    },
    /// The audio broke off after its first byte.
    #[serde(rename = "error")]
    Error { error: ErrorObject },
}

/// What an answer cost: tokens as OpenAI counts them (text ids in, codec frames out), and our own counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct SpeechUsage {
    pub input_tokens: u64,
    pub output_tokens: u64,
    pub total_tokens: u64,
    pub characters: u64,
    pub audio_ms: u64,
    /// Time spent on reference audio; 0 when its features were kept.
    pub encode_ms: f64,
}

/// The body of a `stream_format: "sse"` answer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Events {
    capped: bool,
}

impl Events {
    fn delta(sound: &Sound) -> String {
        if sound.audio.is_empty() {
            return String::new();
        }
        SpeechEvent::Delta { audio: BASE64_STANDARD.encode(&sound.audio) }.to_event()
    }
}

impl Body for Events {
    fn media_type(&self) -> &'static str {
        "text/event-stream"
    }

    fn sound(&mut self, sound: Sound, _after: Span) -> Bytes {
        Self::delta(&sound).into()
    }

    fn finished(&mut self, reason: FinishReason) {
        self.capped = reason == FinishReason::Capped;
    }

    fn end(&mut self, rest: Sound, usage: &Usage, _after: Span) -> Bytes {
        let usage = SpeechUsage::new(usage);
        let finish_reason = if self.capped { "length" } else { "stop" };
        (Self::delta(&rest) + &SpeechEvent::Done { usage, finish_reason }.to_event()).into()
    }

    fn broken(&mut self, error: ErrorObject) -> Option<Bytes> {
        Some(SpeechEvent::Error { error }.to_event().into())
    }
}

impl SpeechEvent {
    /// The event as it stands in the body.
    #[must_use]
    pub fn to_event(&self) -> String {
        // Only maps with keys that are no strings can fail, and there are none.
        format!("data: {}\n\n", serde_json::to_string(self).unwrap_or_default())
    }
}

impl SpeechUsage {
    /// `usage` counts samples at 48 kHz.
    #[must_use]
    pub fn new(usage: &Usage) -> Self {
        Self {
            input_tokens: usage.text_ids,
            output_tokens: usage.frames,
            total_tokens: usage.text_ids.saturating_add(usage.frames),
            characters: usage.characters,
            audio_ms: usage.samples.saturating_mul(1_000) / u64::from(CLOCK_HZ),
            encode_ms: usage.encode.as_micros() as f64 / 1_000.0,
        }
    }
}
