//! The request's own fields: the table that they are read by and described from.

use codecs::mp3;
use contract::Layout;
use serde_json::{Value, json};

use super::{INSTRUCTIONS_CHARACTERS_MAX, MP3_KBPS, REFERENCE, SpeechFormat, StreamFormat, spoken_schema};
use crate::wire::speaking::{LOUDNESS, NAME_CHARACTERS_MAX, SPEED, VOICE, sampling_schema};
use crate::wire::told::{self, Among, Choice, Field, Flag, Kind, Piece, Table, Whole, Words};
use crate::wire::{Fields, SAMPLE_RATES, WireError};

/// All of them but how the model draws.
const BODY: &Table = &[
    &INPUT,
    &MODEL,
    &VOICE,
    &INSTRUCTIONS,
    &LANGUAGE,
    &RESPONSE_FORMAT,
    &SAMPLE_RATE,
    &SPEED,
    &STREAM_FORMAT,
    &STREAM,
    &NORMALIZE,
    &TRIM,
    &LOUDNESS,
    &LAYOUT,
    &REFERENCE,
];
pub(super) const INPUT: Field<Piece> = Field::required("input", Piece);
pub(super) const MODEL: Field<Words> = Field::new("model", Words(NAME_CHARACTERS_MAX));
pub(super) const INSTRUCTIONS: Field<Words> = Field::new("instructions", Words(INSTRUCTIONS_CHARACTERS_MAX));
pub(super) const LANGUAGE: Field<Words> = Field::new("language", Words(64));
pub(super) const RESPONSE_FORMAT: Field<Format> = Field::new("response_format", Format);
pub(super) const SAMPLE_RATE: Field<Among> = Field::new("sample_rate", Among(&SAMPLE_RATES));
pub(super) const STREAM_FORMAT: Field<Choice<StreamFormat>> =
    Field::new("stream_format", Choice(&[("audio", StreamFormat::Audio), ("sse", StreamFormat::Sse)]));
pub(super) const STREAM: Field<Flag> = Field::new("stream", Flag);
pub(super) const NORMALIZE: Field<Flag> = Field::new("normalize", Flag);
pub(super) const TRIM: Field<Flag> = Field::new("trim", Flag);
pub(super) const LAYOUT: Field<Choice<Layout>> =
    Field::new("layout", Choice(&[("streamed", Layout::Streamed), ("whole", Layout::Whole)]));
/// Of servers started for benchmarking alone, so that no table tells of it.
pub(super) const EXACT_FRAMES: Field<Whole> = Field::new("exact_frames", Whole { min: 1, max: 100_000 });

/// A body in JSON Schema: made of what is read, and of what contradicts itself. What other servers call these fields is in
/// docs/speech.md alone.
#[must_use]
pub fn body_schema(characters_max: usize, takes_instructions: bool) -> Value {
    let mut body = told::object(BODY);
    body["additionalProperties"] = Value::Bool(false);
    let properties = &mut body["properties"];
    for (name, field) in sampling_schema() {
        properties[name] = field;
    }
    properties[INPUT.name] = spoken_schema(characters_max);
    if !takes_instructions {
        properties[INSTRUCTIONS.name]["maxLength"] = json!(0);
    }
    let given = || json!({ "not": { "type": "null" } });
    let sse = json!({ "const": "sse" });
    let mut rules = vec![
        json!({ "not": both([(VOICE.name, given()), (REFERENCE.name, given())]) }),
        // Events are a stream.
        json!({ "not": both([(STREAM_FORMAT.name, sse.clone()), (STREAM.name, json!({ "const": false }))]) }),
    ];
    if !mp3::AVAILABLE {
        // Nor do they name a media type, so that nothing else can be sent there in place of MP3.
        let mp3 = json!({ "const": "mp3" });
        rules.push(json!({ "not": both([(STREAM_FORMAT.name, sse), (RESPONSE_FORMAT.name, mp3)]) }));
    }
    body["allOf"] = Value::Array(rules);
    body
}

/// An object with both fields, each of this kind.
fn both(fields: [(&str, Value); 2]) -> Value {
    let names = [fields[0].0, fields[1].0];
    let properties: serde_json::Map<String, Value> =
        fields.into_iter().map(|(name, kind)| (name.to_owned(), kind)).collect();
    json!({ "type": "object", "required": names, "properties": properties })
}

/// A format by name. MP3 is read in every build; what becomes of it where it is not made is the request's to say.
pub(super) struct Format;

const FORMATS: &[(&str, SpeechFormat)] = &[
    ("wav", SpeechFormat::Wav),
    ("pcm", SpeechFormat::Pcm),
    ("opus", SpeechFormat::Opus),
    ("flac", SpeechFormat::Flac),
    ("mulaw", SpeechFormat::MuLaw),
    ("ulaw", SpeechFormat::MuLaw),
    ("alaw", SpeechFormat::ALaw),
    ("mp3", SpeechFormat::Mp3 { kbps: MP3_KBPS }),
];

impl Format {
    pub(super) fn unknown(asked: &str) -> WireError {
        let mp3 = if mp3::AVAILABLE { ", mp3" } else { "" };
        let hint = format!("{asked:?} is none of wav, pcm, opus, flac, mulaw, alaw{mp3}");
        WireError::Unsupported { param: "response_format", hint }
    }
}

impl Kind for Format {
    type Value = SpeechFormat;

    fn take(&self, name: &'static str, fields: &mut Fields) -> Result<Option<SpeechFormat>, WireError> {
        let Some(asked) = fields.string(name, 64)? else { return Ok(None) };
        let known = FORMATS.iter().find(|(word, _)| *word == asked);
        known.map(|(_, format)| Some(*format)).ok_or_else(|| Self::unknown(&asked))
    }

    fn schema(&self) -> Value {
        json!({ "type": "string", "enum": FORMATS.iter().map(|(word, _)| *word).collect::<Vec<_>>() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::speech::SpeechRequest;
    use crate::wire::INTEGER_MAX;

    /// Values at and beyond each bound that the description names.
    fn probes(schema: &Value) -> Vec<(Value, bool)> {
        if let Some(words) = schema["enum"].as_array() {
            let known = words.iter().map(|word| (word.clone(), true));
            return known.chain([(json!("unheard"), false), (json!(7), false)]).collect();
        }
        let mut out = vec![(Value::Null, true), (json!([]), false)];
        if let Some(most) = schema["maxLength"].as_u64() {
            let text = |long: u64| json!("\u{e9}".repeat(usize::try_from(long).expect("short")));
            out.extend([(text(most), true), (text(most + 1), false)]);
        }
        let step = if schema["type"][0] == "integer" { 1.0 } else { 0.001 };
        for (bound, away) in [("minimum", -step), ("maximum", step)] {
            if let Some(edge) = schema[bound].as_f64() {
                out.extend([(json!(edge), true), (json!(edge + away), false)]);
            }
        }
        if let Some(edge) = schema["exclusiveMinimum"].as_f64() {
            out.extend([(json!(edge), false), (json!(edge + 1e-300), true)]);
        }
        out
    }

    #[test]
    fn a_body_is_read_within_the_bounds_that_it_is_described_with_and_not_beyond() {
        let schema = body_schema(40, true);
        let mut asked = 0;
        for (name, field) in schema["properties"].as_object().expect("fields") {
            // Neither a rule of two fields nor a field within a field is of this kind.
            if ["input", "reference", "voice"].contains(&name.as_str()) {
                continue;
            }
            for (value, is_right) in probes(field) {
                let body = json!({ "input": "Hi.", name: value }).to_string();
                let read = SpeechRequest::decode(&body, 40);
                assert_eq!(read.is_ok(), is_right, "{body}: {read:?}");
                asked += 1;
            }
        }
        assert!(asked > 60, "{asked}");
        assert_eq!(schema["properties"]["seed"]["maximum"], json!(INTEGER_MAX));
        for (length, is_right) in [(40, true), (41, false)] {
            let body = json!({ "input": "\u{e9}".repeat(length) }).to_string();
            assert_eq!(SpeechRequest::decode(&body, 40).is_ok(), is_right);
        }
        let voices = &schema["properties"]["voice"]["oneOf"];
        assert_eq!((&voices[0]["maxLength"], &voices[2]["type"]), (&json!(256), &json!("null")));
        for (length, is_right) in [(256, true), (257, false)] {
            for voice in [json!("\u{e9}".repeat(length)), json!({ "id": "\u{e9}".repeat(length) })] {
                let body = json!({ "input": "Hi.", "voice": voice }).to_string();
                assert_eq!(SpeechRequest::decode(&body, 40).is_ok(), is_right, "{length}");
            }
        }
    }

    #[test]
    fn what_contradicts_itself_is_described_and_refused() {
        let schema = body_schema(40, false);
        assert_eq!(schema["properties"]["instructions"]["maxLength"], 0);
        let clip = json!({ "audio": "UklGRg==" });
        for body in [
            json!({ "input": "Hi.", "voice": "a", "reference": clip }),
            json!({ "input": "Hi.", "stream": false, "stream_format": "sse" }),
            json!({ "input": "Hi.", "response_format": "mp3", "stream_format": "sse" }),
        ] {
            let fields = body.as_object().expect("fields");
            let told = schema["allOf"].as_array().expect("rules").iter().any(|rule| {
                let names = rule["not"]["required"].as_array().expect("names");
                names.iter().all(|name| fields.contains_key(name.as_str().expect("a name")))
            });
            assert_eq!(SpeechRequest::decode(&body.to_string(), 40).is_err(), told, "{body}");
        }
    }
}
