//! Bodies and answers that no type of ours is the shape of: what their readers take, with the same bounds.
//!
//! Bodies are plain JSON: the library's schema type holds no rule between fields.

use codecs::stretch::SPEED_MIN;
use proto::catalog::{CLONE_MODES, TRANSCRIPT_CHARACTERS_MAX};
use proto::realtime::{EAGERNESS, TURN_MS_MAX};
use serde_json::{Value, json};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::Schema;

use crate::voices::{CONSENT_CHARACTERS_MAX, LANGUAGE_CHARACTERS_MAX, NAME_CHARACTERS_MAX};

/// A body's name among the document's schemas.
pub(super) const SPEECH: &str = "SpeechBody";
pub(super) const CLIENT_SECRET: &str = "ClientSecretBody";
pub(super) const VOICE_FORM: &str = "VoiceForm";
pub(super) const ELEVENLABS: &str = "ElevenLabsBody";
pub(super) const CARTESIA: &str = "CartesiaBody";

/// What this server takes.
pub(super) struct Known<'a> {
    pub(super) characters_max: usize,
    /// Names of languages; empty while no model is there.
    pub(super) languages: Vec<&'a str>,
    /// A model takes instructions.
    pub(super) instructions: bool,
}

/// The bodies by their names.
pub(super) fn all(known: &Known<'_>) -> [(&'static str, Value); 5] {
    let language = language(&known.languages);
    let characters_max = known.characters_max;
    [
        (SPEECH, speech(known, &language)),
        (CLIENT_SECRET, client_secret()),
        (VOICE_FORM, voice_form()),
        (ELEVENLABS, proto::elevenlabs::body_schema(characters_max)),
        (CARTESIA, cartesia(characters_max, &language)),
    ]
}

/// Media types of sound.
pub(super) fn media_types() -> impl Iterator<Item = &'static str> {
    let always = ["audio/wav", "audio/pcm", "audio/ogg", "audio/flac", "audio/PCMU", "audio/PCMA"];
    always.into_iter().chain(codecs::mp3::AVAILABLE.then_some("audio/mpeg"))
}

/// `POST /v1/audio/speech`, in a language that is known here.
fn speech(known: &Known<'_>, language: &Value) -> Value {
    let mut body = proto::speech::body_schema(known.characters_max, known.instructions);
    body["properties"]["language"] = language.clone();
    body
}

/// `POST /v1/realtime/client_secrets`.
fn client_secret() -> Value {
    json!({
        "type": "object", "additionalProperties": false,
        "properties": {
            "expires_after": { "type": ["object", "null"], "additionalProperties": false, "properties": {
                "anchor": { "type": "string", "enum": ["created_at"] },
                "seconds": { "type": "integer", "minimum": 10, "maximum": 7_200 },
            } },
            "session": session(),
        },
    })
}

/// Settings as `session.update` has them: what of them can be wrong.
fn session() -> Value {
    let coded = |names: &[&str]| json!({ "type": "object", "required": ["type"], "properties": { "type": { "enum": names } } });
    // Names of today, then those of the beta, which stood without an object around them.
    let (pcm_names, ulaw, alaw) =
        (["audio/pcm", "pcm16", "pcm"], ["audio/pcmu", "g711_ulaw"], ["audio/pcma", "g711_alaw"]);
    let mut pcm = coded(&pcm_names);
    pcm["properties"]["rate"] = is(24_000);
    let alone = [&pcm_names[..], &ulaw, &alaw].concat();
    let format = json!({ "oneOf": [pcm, coded(&ulaw), coded(&alaw), { "enum": alone }] });
    let part = |fields: Value| json!({ "type": ["object", "null"], "properties": fields });
    let voice = json!({ "oneOf": [{ "type": "string", "minLength": 1, "maxLength": 256 },
        { "type": "object", "required": ["id"],
            "properties": { "id": { "type": "string", "minLength": 1, "maxLength": 256 } } }] });
    let eager: Vec<Value> = EAGERNESS.into_iter().map(Value::from).chain([Value::Null]).collect();
    let millis = json!({ "type": ["integer", "null"], "minimum": 0, "maximum": TURN_MS_MAX });
    let flag = json!({ "type": ["boolean", "null"] });
    let server = json!({ "type": "object", "properties": {
        "type": { "enum": ["server_vad", null] }, "prefix_padding_ms": millis, "silence_duration_ms": millis,
        "idle_timeout_ms": millis, "threshold": { "type": ["number", "null"], "minimum": 0, "maximum": 1 },
        "create_response": flag, "interrupt_response": flag } });
    let semantic = json!({ "type": "object", "required": ["type"], "properties": {
        "type": is("semantic_vad"), "eagerness": { "enum": eager },
        "create_response": flag, "interrupt_response": flag } });
    let detection = json!({ "oneOf": [{ "type": "null" }, server, semantic] });
    let speed = json!({ "type": "number", "minimum": SPEED_MIN, "maximum": 1.5 });
    let mut own = part(Value::Object(proto::wire::sampling_schema()));
    own["properties"]["language"] = maybe(text_max(256));
    own["additionalProperties"] = json!(false);
    let mut session = part(json!({
        "type": is("realtime"),
        "model": maybe(text_max(64)),
        "instructions": { "type": ["string", "null"] },
        "output_modalities": { "enum": [["audio"], ["text"], ["audio", "text"], ["text", "audio"]] },
        "audio": part(json!({
            "input": part(json!({ "format": format, "turn_detection": detection })),
            "output": part(json!({ "format": format, "voice": voice, "speed": speed })),
        })),
        "voxlane": own,
    }));
    session["description"] = json!("settings as session.update has them; what is not here is kept and shown");
    session
}

/// `POST /v1/audio/voices`: docs/voices.md.
fn voice_form() -> Value {
    // What stands around a text is taken away.
    let space = r"\x09-\x0D\x20\x85\xA0\u1680\u2000-\u200A\u2028\u2029\u202F\u205F\u3000";
    let control = r"\x00-\x1F\x7F-\x9F";
    let name = format!("^[{space}]*[^{space}{control}]([^{control}]*[^{space}{control}])?[{space}]*$");
    let maybe_name =
        format!("^[{space}]*([^{space}{control}]([^{control}]*[^{space}{control}])?[{space}]*)?$");
    // Anchored, because tools that fold a length into a pattern take one that is not for the whole text.
    let some = format!(r"^[{space}]*[^{space}][\s\S]*$");
    let words =
        |pattern: &str, most: usize| json!({ "type": "string", "pattern": pattern, "maxLength": most });
    let one_of = |words: &[&str]| json!({ "type": "string", "enum": words });
    let mut mode = one_of(&CLONE_MODES.iter().map(|(word, _)| *word).collect::<Vec<_>>());
    // In words: tools that make up forms break over a rule between fields where a part is bytes.
    mode["description"] = json!(
        "in_context needs a transcript that is not blank; left out, it is in_context where there is one, else speaker"
    );
    json!({
        "type": "object", "required": ["audio", "consent", "name"], "additionalProperties": false,
        "properties": {
            "name": words(&name, NAME_CHARACTERS_MAX),
            "audio": { "type": "string", "format": "binary" },
            "consent": words(&some, CONSENT_CHARACTERS_MAX),
            "transcript": text_max(TRANSCRIPT_CHARACTERS_MAX),
            "language": words(&maybe_name, LANGUAGE_CHARACTERS_MAX),
            "mode": mode,
            // The third, `everyone`, needs the scope `admin`.
            "sharing": one_of(&["subject", "tenant", "everyone"]),
        },
    })
}

/// Names of ElevenLabs' formats that are made here.
pub(super) fn elevenlabs_format() -> RefOr<Schema> {
    schema(proto::elevenlabs::OutputFormat::schema())
}

/// Cartesia's body, in a language that is known here.
fn cartesia(characters_max: usize, language: &Value) -> Value {
    let mut body = proto::cartesia::body_schema(characters_max);
    for name in ["language", "locale"] {
        body["properties"][name] = language.clone();
    }
    body
}

/// One of the languages by name or by code, which a region may follow; in any case of letters.
fn language(known: &[&str]) -> Value {
    let mut language = maybe(text_max(64));
    if !known.is_empty() {
        let any_case =
            |name: &str| -> String { name.chars().map(|c| format!("[{c}{}]", c.to_uppercase())).collect() };
        let region = |name: &str| if name.len() == 2 { r"([-_][\s\S]*)?" } else { "" };
        let names: Vec<String> = known.iter().map(|name| any_case(name) + region(name)).collect();
        language["pattern"] = json!(format!("^({})$", names.join("|")));
    }
    language
}

fn is(value: impl Into<Value>) -> Value {
    json!({ "const": value.into() })
}

pub(super) fn name() -> RefOr<Schema> {
    schema(json!({ "type": "string", "minLength": 1 }))
}

pub(super) fn object() -> RefOr<Schema> {
    schema(json!({ "type": "object" }))
}

pub(super) fn text() -> RefOr<Schema> {
    schema(json!({ "type": "string" }))
}

pub(super) fn bytes() -> RefOr<Schema> {
    schema(json!({ "type": "string", "format": "binary" }))
}

fn text_max(characters: usize) -> Value {
    json!({ "type": "string", "maxLength": characters })
}

fn maybe(mut schema: Value) -> Value {
    schema["type"] = json!([schema["type"], "null"]);
    schema
}

/// The text of a schema as the library's type. What it cannot hold shows as a schema of anything, which the
/// tests of the document would find.
fn schema(text: Value) -> RefOr<Schema> {
    serde_json::from_value(text).unwrap_or_default()
}
