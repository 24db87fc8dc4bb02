//! The session's settings as `session.update` changes them and `session.updated` shows them.
//!
//! What is shown is always whole, because clients read defaults from it. What this server does not use
//! (tools, tracing, prompts...) is kept and shown as it came.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use codecs::g711;
use serde_json::{Map, Value, json};

use super::words::Mistake;
use crate::wire::{Fields, Json, SamplingFields, Speed, sampling};

/// Bytes of the whole settings as JSON.
const BYTES_MAX: usize = 131_072;

/// Settings that are kept and shown, and mean nothing here.
const KEPT: [&str; 9] = [
    "include",
    "max_output_tokens",
    "parallel_tool_calls",
    "prompt",
    "reasoning",
    "tool_choice",
    "tools",
    "tracing",
    "truncation",
];

/// Characters of a voice's or a language's name.
const NAME_CHARACTERS_MAX: usize = 256;

/// The fastest that the protocol knows.
const SPEED_MAX: f64 = 1.5;
/// How eager `semantic_vad` may be to end a turn.
pub const EAGERNESS: [&str; 4] = ["low", "medium", "high", "auto"];
/// Milliseconds a setting of turn detection may have at most.
pub const TURN_MS_MAX: u32 = 60_000;

/// Name of the object with settings that only this server knows.
pub(super) const OWN: &str = "voxlane";

/// Wire form of audio, either way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    ALaw,
    MuLaw,
    /// Signed 16-bit little-endian mono at 24 kHz.
    Pcm,
}

impl Format {
    pub(super) const fn rate_hz(self) -> u32 {
        match self {
            Self::ALaw | Self::MuLaw => 8_000,
            Self::Pcm => 24_000,
        }
    }

    fn read(value: &Value) -> Option<Self> {
        let name = value.get("type").unwrap_or(value).as_str()?;
        match name {
            "audio/pcm" | "pcm16" | "pcm" => Some(Self::Pcm),
            "audio/pcmu" | "g711_ulaw" => Some(Self::MuLaw),
            "audio/pcma" | "g711_alaw" => Some(Self::ALaw),
            _ => None,
        }
    }

    pub(super) fn shown(self) -> Value {
        match self {
            Self::ALaw => json!({ "type": "audio/pcma" }),
            Self::MuLaw => json!({ "type": "audio/pcmu" }),
            Self::Pcm => json!({ "type": "audio/pcm", "rate": 24_000 }),
        }
    }

    /// Base64 of 16-bit samples in this form.
    pub(super) fn encode(self, pcm: &[u8]) -> String {
        let (pairs, _) = pcm.as_chunks::<2>();
        let coded = |code: fn(i16) -> u8| -> Vec<u8> {
            pairs.iter().map(|pair| code(i16::from_le_bytes(*pair))).collect()
        };
        match self {
            Self::ALaw => STANDARD.encode(coded(g711::a_law_from_i16)),
            Self::MuLaw => STANDARD.encode(coded(g711::mu_law_from_i16)),
            Self::Pcm => STANDARD.encode(pcm),
        }
    }
}

/// What this server alone understands: `voxlane: {seed, language, temperature, top_p, top_k,
/// repetition_penalty}`.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Own {
    pub(super) language: Option<String>,
    pub(super) sampling: SamplingFields,
}

/// A session's settings.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    model: String,
    pub(super) voice: String,
    pub(super) output: Format,
    pub(super) input: Format,
    pub(super) modalities: Vec<String>,
    pub(super) instructions: String,
    /// `None`: no turns are detected.
    pub(super) turns: Option<Map<String, Value>>,
    pub(super) own: Own,
    own_shown: Option<Value>,
    pub(super) speed: Speed,
    transcription: Value,
    noise_reduction: Value,
    kept: Map<String, Value>,
}

impl Settings {
    pub(super) fn new(model: String, voice: String) -> Self {
        Self {
            model,
            voice,
            output: Format::Pcm,
            input: Format::Pcm,
            modalities: vec!["audio".to_owned()],
            instructions: String::new(),
            turns: Some(server_vad()),
            own: Own::default(),
            own_shown: None,
            speed: Speed::default(),
            transcription: Value::Null,
            noise_reduction: Value::Null,
            kept: Map::new(),
        }
    }

    /// The name the client connected with, or the first model's.
    pub(super) fn model(&self) -> &str {
        &self.model
    }

    /// Changes what `session` names; all of it, or nothing.
    pub(super) fn update(&mut self, session: &Map<String, Value>) -> Result<(), Mistake> {
        let mut next = self.clone();
        next.take(session)?;
        if next.shown("").to_string().len() > BYTES_MAX {
            let message = format!("the session's settings must be at most {BYTES_MAX} bytes of JSON");
            return Err(Mistake::new("invalid_value", message).at("session"));
        }
        *self = next;
        Ok(())
    }

    /// The whole settings, as an event shows them.
    pub(super) fn shown(&self, id: &str) -> Value {
        let mut session = json!({
            "type": "realtime",
            "object": "realtime.session",
            "id": id,
            "model": self.model,
            "output_modalities": self.modalities,
            "instructions": self.instructions,
            "tools": [],
            "tool_choice": "auto",
            "max_output_tokens": "inf",
            "tracing": null,
            "truncation": "auto",
            "prompt": null,
            "include": null,
            "audio": {
                "input": {
                    "format": self.input.shown(),
                    "transcription": self.transcription,
                    "noise_reduction": self.noise_reduction,
                    "turn_detection": self.turns,
                },
                "output": { "format": self.output.shown(), "voice": self.voice, "speed": self.speed.get() },
            },
        });
        for (name, value) in &self.kept {
            session[name] = value.clone();
        }
        if let Some(own) = &self.own_shown {
            session[OWN] = own.clone();
        }
        session
    }

    fn take(&mut self, session: &Map<String, Value>) -> Result<(), Mistake> {
        if let Some(kind) = session.get("type").filter(|kind| *kind != "realtime") {
            let message = format!("session.type must be \"realtime\", but is {kind}");
            return Err(Mistake::new("invalid_value", message).at("session.type"));
        }
        for name in KEPT {
            if let Some(value) = session.get(name) {
                self.kept.insert(name.to_owned(), flat(name, value));
            }
        }
        if let Some(value) = session.get("max_response_output_tokens") {
            self.kept.insert("max_output_tokens".to_owned(), value.clone());
        }
        match session.get("instructions") {
            Some(Value::String(text)) => text.clone_into(&mut self.instructions),
            None | Some(Value::Null) => {}
            Some(_) => {
                let message = "instructions must be a string";
                return Err(Mistake::new("invalid_type", message).at("session.instructions"));
            }
        }
        if let Some(value) = session.get("output_modalities").or_else(|| session.get("modalities")) {
            self.modalities = modalities(value)?;
        }
        if let Some(own) = session.get(OWN) {
            self.own = read_own(own)?;
            self.own_shown = Some(own.clone()).filter(|own| !own.is_null());
        }
        let audio = part(session.get("audio"), "session.audio")?;
        let input = part(audio.and_then(|audio| audio.get("input")), "session.audio.input")?;
        let output = part(audio.and_then(|audio| audio.get("output")), "session.audio.output")?;
        // Names of the beta stand flat in the session; those of today lie nested.
        let beta = |name: &str| session.get(name);
        let inner =
            |part: Option<&Map<String, Value>>, name: &str| part.and_then(|part| part.get(name)).cloned();
        if let Some(value) = inner(input, "format").or_else(|| beta("input_audio_format").cloned()) {
            self.input = format(&value, "session.audio.input.format")?;
        }
        if let Some(value) = inner(output, "format").or_else(|| beta("output_audio_format").cloned()) {
            self.output = format(&value, "session.audio.output.format")?;
        }
        if let Some(value) = inner(output, "voice").or_else(|| beta("voice").cloned()) {
            self.voice = voice(&value)?;
        }
        if let Some(value) = inner(output, "speed").or_else(|| beta("speed").cloned()) {
            self.speed = speed(&value)?;
        }
        if let Some(value) =
            inner(input, "transcription").or_else(|| beta("input_audio_transcription").cloned())
        {
            self.transcription = value;
        }
        if let Some(value) = inner(input, "noise_reduction") {
            self.noise_reduction = value;
        }
        if let Some(value) = inner(input, "turn_detection").or_else(|| beta("turn_detection").cloned()) {
            self.turns = turns(&value)?;
        }
        Ok(())
    }
}

/// A part of the settings that holds others.
fn part<'a>(
    value: Option<&'a Value>,
    param: &'static str,
) -> Result<Option<&'a Map<String, Value>>, Mistake> {
    match value {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Object(fields)) => Ok(Some(fields)),
        Some(_) => Err(Mistake::new("invalid_type", format!("{param} must be an object")).at(param)),
    }
}

/// Clients read some settings as strings only.
fn flat(name: &str, value: &Value) -> Value {
    match value.get("name").filter(|_| name == "tool_choice") {
        Some(name) => name.clone(),
        None => value.clone(),
    }
}

pub(super) fn modalities(value: &Value) -> Result<Vec<String>, Mistake> {
    let names: Option<Vec<&str>> =
        value.as_array().and_then(|names| names.iter().map(Value::as_str).collect());
    match names.as_deref() {
        Some(["text"]) => Ok(vec!["text".to_owned()]),
        // The beta asked for both, and meant sound with its transcript.
        Some(["audio"] | ["audio", "text"] | ["text", "audio"]) => Ok(vec!["audio".to_owned()]),
        _ => {
            let message = "output_modalities must be [\"audio\"] or [\"text\"]";
            Err(Mistake::new("invalid_value", message).at("output_modalities"))
        }
    }
}

pub(super) fn format(value: &Value, param: &'static str) -> Result<Format, Mistake> {
    let wrong = |message: &str| Err(Mistake::new("invalid_value", message).at(param));
    match Format::read(value) {
        None => wrong("the format must be audio/pcm, audio/pcmu or audio/pcma"),
        Some(Format::Pcm) if value.get("rate").is_some_and(|rate| rate.as_f64() != Some(24_000.0)) => {
            wrong("audio/pcm has the rate 24000 and no other")
        }
        Some(format) => Ok(format),
    }
}

/// `"name"` or `{id}`.
pub(super) fn voice(value: &Value) -> Result<String, Mistake> {
    let name = value.get("id").unwrap_or(value).as_str();
    let name = name.filter(|name| (1..=NAME_CHARACTERS_MAX).contains(&name.chars().count()));
    name.map(str::to_owned).ok_or_else(|| {
        let message =
            format!("voice must be a string or {{\"id\": string}}, of 1 to {NAME_CHARACTERS_MAX} characters");
        Mistake::new("invalid_value", message).at("session.audio.output.voice")
    })
}

/// As fast as the protocol allows; other doors allow more.
fn speed(value: &Value) -> Result<Speed, Mistake> {
    value.as_f64().filter(|speed| *speed <= SPEED_MAX).and_then(Speed::new).ok_or_else(|| {
        let message = "speed must be a number from 0.25 to 1.5";
        Mistake::new("invalid_value", message).at("session.audio.output.speed")
    })
}

fn turns(value: &Value) -> Result<Option<Map<String, Value>>, Mistake> {
    let Value::Object(given) = value else {
        if value.is_null() {
            return Ok(None);
        }
        let message = "turn_detection must be null or an object";
        return Err(Mistake::new("invalid_type", message).at("session.audio.input.turn_detection"));
    };
    let kind = given.get("type").filter(|kind| !kind.is_null());
    let mut turns = match kind.map(|kind| kind.as_str().unwrap_or_default()) {
        None | Some("server_vad") => server_vad(),
        Some("semantic_vad") => semantic_vad(),
        Some(_) => {
            let message = "turn_detection.type must be server_vad or semantic_vad";
            return Err(Mistake::new("invalid_value", message).at("session.audio.input.turn_detection.type"));
        }
    };
    for (name, held) in &mut turns {
        let given = given.get(name).filter(|given| name != "type" && !given.is_null());
        if let Some(given) = given {
            *held = turn_setting(name, given)?;
        }
    }
    Ok(Some(turns))
}

/// A setting of turn detection as it is kept and shown: clients read it back by its kind and its list.
fn turn_setting(name: &str, given: &Value) -> Result<Value, Mistake> {
    let (kept, bound) = match name {
        "eagerness" => {
            let known = given.as_str().filter(|word| EAGERNESS.contains(word));
            (known.map(Value::from), "low, medium, high or auto".to_owned())
        }
        "threshold" => {
            let known = given.as_f64().filter(|number| (0.0..=1.0).contains(number));
            (known.map(Value::from), "a number from 0 to 1".to_owned())
        }
        "create_response" | "interrupt_response" => {
            (given.as_bool().map(Value::from), "true or false".to_owned())
        }
        _ => {
            // A whole number may be written with a point.
            let known =
                given.as_f64().filter(|ms| ms.fract() == 0.0 && (0.0..=f64::from(TURN_MS_MAX)).contains(ms));
            (known.map(|ms| Value::from(ms as u64)), format!("whole milliseconds from 0 to {TURN_MS_MAX}"))
        }
    };
    kept.ok_or_else(|| {
        let message = format!("turn_detection.{name} must be {bound}");
        Mistake::new("invalid_value", message).at("session.audio.input.turn_detection")
    })
}

fn server_vad() -> Map<String, Value> {
    object(json!({
        "type": "server_vad", "threshold": 0.5, "prefix_padding_ms": 300, "silence_duration_ms": 500,
        "idle_timeout_ms": null, "create_response": true, "interrupt_response": true,
    }))
}

fn semantic_vad() -> Map<String, Value> {
    object(json!({
        "type": "semantic_vad", "eagerness": "auto", "create_response": true, "interrupt_response": true,
    }))
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

/// Reads the `voxlane` object with the bounds that `open` has on the native wire.
pub(super) fn read_own(value: &Value) -> Result<Own, Mistake> {
    const KNOWN: &[&str] = &["language", "repetition_penalty", "seed", "temperature", "top_k", "top_p"];
    if value.is_null() {
        return Ok(Own::default());
    }
    let wrong = |error: crate::wire::WireError| Mistake::new("invalid_value", error.to_string()).at(OWN);
    let Json::Object(entries) = Json::parse(&value.to_string()).map_err(wrong)? else {
        return Err(Mistake::new("invalid_type", "voxlane must be an object").at(OWN));
    };
    let mut fields = Fields::open(entries, "voxlane.", OWN, KNOWN).map_err(wrong)?;
    let language = fields.words("language", NAME_CHARACTERS_MAX).map_err(wrong)?;
    Ok(Own { language, sampling: sampling(&mut fields).map_err(wrong)? })
}
