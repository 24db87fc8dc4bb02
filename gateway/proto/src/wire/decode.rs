//! The strict way to read a message of the client (docs/protocol.md section 2).

use contract::{Epoch, Layout};

use super::client::{
    AudioChoice, Cancel, ClientMessage, ContextRef, Hello, Incoming, ListenerState, Open, PlaybackReport,
    Player, Received, Resume, SAMPLE_RATES, TEXT_BYTES_MAX, TextAppend, Unreadable,
};
use super::error::{nearest, shown};
use super::fields::Fields;
use super::speaking::{LOUDNESS, VOICE, sampling, speed};
use super::{Json, ReferenceOpen, WireCodec, WireError};
use crate::catalog::{CLONE_MODES, TRANSCRIPT_CHARACTERS_MAX};

const ID_BYTES_MAX: usize = 256;
const NAME_BYTES_MAX: usize = 256;
const INSTRUCTIONS_BYTES_MAX: usize = 16_384;
const RECEIVED_MAX: usize = 64;
const TYPES: &[&str] =
    &["cancel", "hello", "open", "ping", "playback", "resume", "text.append", "text.end", "text.flush"];

impl Incoming {
    /// Reads one text message strictly. The caller bounds its length.
    ///
    /// # Errors
    /// What is wrong with it, and its `id` where that could be read.
    pub fn decode(input: &str) -> Result<Self, Box<Unreadable>> {
        let mut entries = match Json::parse(input) {
            Ok(Json::Object(entries)) => entries,
            Ok(_) => return Err(unreadable(None, WireError::InvalidJson { at: 0, what: "it is no object" })),
            Err(error) => return Err(unreadable(None, error)),
        };
        let mut id = None;
        if let Some(at) = entries.iter().position(|(name, _)| name == "id") {
            let (_, value) = entries.remove(at);
            let mut fields = Fields::open(vec![("id".to_owned(), value)], "", "the message", &["id"])
                .map_err(|error| unreadable(None, error))?;
            let given = fields.string("id", ID_BYTES_MAX).map_err(|error| unreadable(None, error))?;
            if given.as_ref().is_some_and(|id| id.chars().count() > 64) {
                return Err(unreadable(None, fields.out_of_range("id", "at most 64 characters".to_owned())));
            }
            id = given;
        }
        match decode(entries) {
            Ok(message) => Ok(Self { id, message }),
            Err(error) => Err(unreadable(id, error)),
        }
    }
}

fn unreadable(id: Option<String>, error: WireError) -> Box<Unreadable> {
    Box::new(Unreadable { id, error })
}

fn decode(mut entries: Vec<(String, Json)>) -> Result<ClientMessage, WireError> {
    let Some(at) = entries.iter().position(|(name, _)| name == "type") else {
        return Err(WireError::MissingField {
            param: "type".to_owned(),
            hint: Some("every message has one, for instance text.append"),
        });
    };
    let kind = match entries.remove(at).1 {
        Json::String(text) => text.whole().unwrap_or_default(),
        other => {
            return Err(WireError::WrongType {
                param: "type".to_owned(),
                expected: "a string",
                found: other.kind(),
            });
        }
    };
    let fields = |known| Fields::open(entries, "", &kind, known);
    match kind.as_str() {
        "cancel" => cancel(fields(&["context", "epoch", "played"])?),
        "hello" => hello(fields(&["client", "playback", "trace"])?),
        "open" => open(fields(&[
            "audio",
            "context",
            "exact_frames",
            "instructions",
            "language",
            "layout",
            "model",
            "normalize",
            "reference",
            "repetition_penalty",
            "seed",
            "temperature",
            "top_k",
            "top_p",
            "voice",
        ])?),
        "ping" => {
            let mut fields = fields(&["t"])?;
            let t = fields.number("t", f64::MIN, f64::MAX)?;
            Ok(ClientMessage::Ping { t: fields.required("t", t)? })
        }
        "playback" => playback(fields(&[
            "buffered",
            "context",
            "epoch",
            "played",
            "sequence",
            "state",
            "t",
            "underruns",
        ])?),
        "resume" => resume(fields(&["received", "token"])?),
        "text.append" => text_append(fields(&["context", "epoch", "sequence", "text"])?),
        "text.end" => Ok(ClientMessage::TextEnd(context_ref(fields(&["context", "epoch"])?)?)),
        "text.flush" => Ok(ClientMessage::TextFlush(context_ref(fields(&["context", "epoch"])?)?)),
        _ => {
            Err(WireError::UnknownType { nearest: nearest(&kind, TYPES), given: shown(&kind), known: TYPES })
        }
    }
}

fn context(fields: &mut Fields) -> Result<u16, WireError> {
    let context = fields.u16("context")?;
    fields.required("context", context)
}

fn epoch_of(fields: &mut Fields) -> Result<Option<Epoch>, WireError> {
    Ok(fields.u16("epoch")?.map(Epoch))
}

fn cancel(mut fields: Fields) -> Result<ClientMessage, WireError> {
    Ok(ClientMessage::Cancel(Cancel {
        context: context(&mut fields)?,
        epoch: epoch_of(&mut fields)?,
        played: fields.u53("played")?,
    }))
}

fn context_ref(mut fields: Fields) -> Result<ContextRef, WireError> {
    Ok(ContextRef { context: context(&mut fields)?, epoch: epoch_of(&mut fields)? })
}

fn hello(mut fields: Fields) -> Result<ClientMessage, WireError> {
    let playback = match fields.object("playback", &["prebuffer_ms", "target_ms"])? {
        None => None,
        Some(mut player) => Some(Player {
            prebuffer_ms: player.number("prebuffer_ms", 0.0, 2_000.0)?.unwrap_or(0.0),
            target_ms: player.number("target_ms", 0.0, 2_000.0)?.unwrap_or(40.0),
        }),
    };
    Ok(ClientMessage::Hello(Hello {
        client: fields.string("client", NAME_BYTES_MAX)?,
        playback,
        trace: fields.boolean("trace")?.unwrap_or(false),
    }))
}

fn open(mut fields: Fields) -> Result<ClientMessage, WireError> {
    let context = context(&mut fields)?;
    let audio = match fields.object("audio", &["codec", "loudness", "sample_rate", "speed", "trim"])? {
        None => None,
        Some(mut audio) => {
            let codec = audio.choice("codec", WireCodec::NAMES)?;
            let sample_rate = audio.u32("sample_rate", 0, u32::MAX)?;
            if sample_rate.is_some_and(|rate| !SAMPLE_RATES.contains(&rate)) {
                return Err(audio.out_of_range("sample_rate", "one of 8000, 16000, 24000, 48000".to_owned()));
            }
            Some(AudioChoice {
                codec: codec.unwrap_or_default(),
                sample_rate,
                trim: audio.boolean("trim")?.unwrap_or(false),
                loudness: LOUDNESS.take(&mut audio)?,
                speed: speed(&mut audio)?,
            })
        }
    };
    Ok(ClientMessage::Open(Box::new(Open {
        context,
        audio,
        model: fields.string("model", NAME_BYTES_MAX)?,
        voice: VOICE.take(&mut fields)?,
        reference: reference(&mut fields)?,
        language: fields.string("language", NAME_BYTES_MAX)?,
        normalize: fields.boolean("normalize")?,
        instructions: fields.string("instructions", INSTRUCTIONS_BYTES_MAX)?,
        layout: fields.choice("layout", &[("streamed", Layout::Streamed), ("whole", Layout::Whole)])?,
        sampling: sampling(&mut fields)?,
        exact_frames: fields.u32("exact_frames", 1, 100_000)?,
    })))
}

fn reference(fields: &mut Fields) -> Result<Option<ReferenceOpen>, WireError> {
    const KNOWN: &[&str] = &["codec", "mode", "sample_rate", "transcript"];
    let Some(mut about) = fields.object("reference", KNOWN)? else { return Ok(None) };
    let codec = about.choice("codec", WireCodec::NAMES)?.unwrap_or_default();
    let sample_rate = about.u32("sample_rate", 8_000, 48_000)?.or(codec.clip_rate_hz());
    let sample_rate = about.required("sample_rate", sample_rate)?;
    Ok(Some(ReferenceOpen {
        codec,
        sample_rate,
        transcript: about.string("transcript", TRANSCRIPT_CHARACTERS_MAX)?,
        mode: about.choice("mode", CLONE_MODES)?,
    }))
}

fn playback(mut fields: Fields) -> Result<ClientMessage, WireError> {
    let context = context(&mut fields)?;
    let epoch = epoch_of(&mut fields)?;
    let t = fields.number("t", 0.0, f64::MAX)?;
    let played = fields.u53("played")?;
    let buffered = fields.u53("buffered")?;
    let state = fields.choice(
        "state",
        &[
            ("prebuffer", ListenerState::Prebuffer),
            ("playing", ListenerState::Playing),
            ("starved", ListenerState::Starved),
            ("paused", ListenerState::Paused),
            ("ended", ListenerState::Ended),
        ],
    )?;
    Ok(ClientMessage::Playback(PlaybackReport {
        context,
        epoch: fields.required("epoch", epoch)?,
        t: fields.required("t", t)?,
        played: fields.required("played", played)?,
        buffered: fields.required("buffered", buffered)?,
        state: fields.required("state", state)?,
        underruns: fields.u32("underruns", 0, u32::MAX)?.unwrap_or(0),
        sequence: fields.u32("sequence", 0, u32::MAX)?.unwrap_or(0),
    }))
}

fn resume(mut fields: Fields) -> Result<ClientMessage, WireError> {
    let token = fields.string("token", NAME_BYTES_MAX)?;
    let token = fields.required("token", token)?;
    let items = match fields.take("received") {
        None => Vec::new(),
        Some(Json::Array(items)) => items,
        Some(other) => return Err(fields.wrong("received", "an array", &other)),
    };
    if items.len() > RECEIVED_MAX {
        return Err(fields.out_of_range("received", format!("at most {RECEIVED_MAX} entries")));
    }
    let mut received = Vec::with_capacity(items.len());
    for (index, item) in items.into_iter().enumerate() {
        let path = format!("received[{index}]");
        let Json::Object(entries) = item else {
            return Err(WireError::WrongType { param: path, expected: "an object", found: item.kind() });
        };
        let mut item = Fields::open(entries, &format!("{path}."), &path, &["context", "epoch", "sequence"])?;
        let epoch = epoch_of(&mut item)?;
        let sequence = item.u32("sequence", 0, u32::MAX)?;
        let context = context(&mut item)?;
        if received.iter().any(|earlier: &Received| earlier.context == context) {
            let bound = format!("a context that no earlier entry names, but {context} is named twice");
            return Err(WireError::FieldOutOfRange { param: format!("{path}.context"), bound });
        }
        received.push(Received {
            context,
            epoch: item.required("epoch", epoch)?,
            sequence: item.required("sequence", sequence)?,
        });
    }
    Ok(ClientMessage::Resume(Resume { token, received }))
}

fn text_append(mut fields: Fields) -> Result<ClientMessage, WireError> {
    let context = context(&mut fields)?;
    let epoch = epoch_of(&mut fields)?;
    let sequence = fields.u32("sequence", 1, u32::MAX)?;
    let text = fields.text("text")?;
    let text = fields.required("text", text)?;
    if text.body.len() > TEXT_BYTES_MAX {
        return Err(fields.out_of_range("text", format!("at most {TEXT_BYTES_MAX} bytes; send it in pieces")));
    }
    Ok(ClientMessage::TextAppend(TextAppend {
        context,
        epoch,
        sequence: fields.required("sequence", sequence)?,
        text,
    }))
}
