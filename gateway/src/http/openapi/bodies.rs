//! Bodies and answers that no type of ours is the shape of: what their readers take, with the same bounds.

use codecs::stretch::{SPEED_MAX, SPEED_MIN};
use proto::catalog::{CLONE_MODES, TRANSCRIPT_CHARACTERS_MAX};
use proto::wire::{LOUDNESS, SAMPLE_RATES};
use serde_json::{Value, json};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::Schema;

/// Media types of sound.
pub(super) fn media_types() -> impl Iterator<Item = &'static str> {
    ["audio/wav", "audio/pcm", "audio/ogg", "audio/flac", "audio/PCMU", "audio/PCMA"].into_iter()
}

/// `POST /v1/audio/speech`: docs/speech.md.
pub(super) fn speech(characters_max: usize) -> RefOr<Schema> {
    let mode: Vec<&str> = CLONE_MODES.iter().map(|(name, _)| *name).collect();
    let clip = json!({ "type": "string", "description": "base64 of a WAV, FLAC, MP3, Ogg or WebM file" });
    let transcript = json!({ "type": ["string", "null"], "maxLength": TRANSCRIPT_CHARACTERS_MAX / 4 });
    let voice = json!({ "oneOf": [text_max(64), { "type": "null" }, { "type": "object", "required": ["id"],
        "properties": { "id": text_max(64) }, "additionalProperties": false }] });
    let clip_of = json!({ "type": ["object", "null"], "required": ["audio"], "additionalProperties": false,
        "properties": { "audio": clip, "transcript": transcript,
            "mode": { "type": ["string", "null"], "enum": with_null(&mode) } } });
    schema(json!({
        "type": "object", "required": ["input"], "additionalProperties": false,
        "properties": {
            "input": { "type": "string", "minLength": 1, "maxLength": characters_max,
                "description": "text with a letter or a digit" },
            "model": maybe(text_max(64)),
            "voice": voice,
            "instructions": maybe(text_max(4_096)),
            "language": maybe(text_max(64)),
            "response_format": { "type": ["string", "null"],
                "enum": with_null(&["wav", "pcm", "opus", "flac", "mulaw", "ulaw", "alaw", "mp3"]) },
            "sample_rate": { "type": ["integer", "null"], "enum": rates() },
            "speed": { "type": ["number", "null"], "minimum": SPEED_MIN, "maximum": SPEED_MAX },
            "stream_format": { "type": ["string", "null"], "enum": with_null(&["audio", "sse"]) },
            "stream": { "type": ["boolean", "null"] },
            "seed": { "type": ["integer", "null"], "minimum": 0, "maximum": 9_007_199_254_740_991_i64 },
            "temperature": { "type": ["number", "null"], "minimum": 0, "maximum": 2 },
            "top_p": { "type": ["number", "null"], "exclusiveMinimum": 0, "maximum": 1 },
            "top_k": { "type": ["integer", "null"], "minimum": 0, "maximum": 65_536 },
            "repetition_penalty": { "type": ["number", "null"], "minimum": 1, "maximum": 2 },
            "normalize": { "type": ["boolean", "null"] },
            "trim": { "type": ["boolean", "null"] },
            "loudness": { "type": ["integer", "null"], "minimum": LOUDNESS.start(), "maximum": LOUDNESS.end() },
            "layout": { "type": ["string", "null"], "enum": with_null(&["whole", "streamed"]) },
            "reference": clip_of,
        },
    }))
}

/// `POST /v1/realtime/client_secrets`.
pub(super) fn client_secret() -> RefOr<Schema> {
    schema(json!({
        "type": "object", "additionalProperties": false,
        "properties": {
            "expires_after": { "type": ["object", "null"], "additionalProperties": false, "properties": {
                "anchor": { "type": "string", "enum": ["created_at"] },
                "seconds": { "type": "integer", "minimum": 10, "maximum": 7_200 },
            } },
            "session": { "type": ["object", "null"], "description": "settings as session.update has them" },
        },
    }))
}

/// `POST /v1/audio/voices`: docs/voices.md.
pub(super) fn voice_form() -> RefOr<Schema> {
    schema(json!({
        "type": "object", "required": ["audio", "consent", "name"],
        "properties": {
            "name": { "type": "string", "minLength": 1, "maxLength": 128 },
            "audio": { "type": "string", "format": "binary" },
            "consent": { "type": "string", "minLength": 1 },
            "transcript": { "type": "string" },
            "language": { "type": "string" },
            "mode": { "type": "string", "enum": CLONE_MODES.iter().map(|(name, _)| *name).collect::<Vec<_>>() },
            "sharing": { "type": "string", "enum": ["subject", "tenant", "everyone"] },
        },
    }))
}

/// ElevenLabs' body. Fields that are not here change nothing.
pub(super) fn elevenlabs(characters_max: usize) -> RefOr<Schema> {
    schema(json!({
        "type": "object", "required": ["text"],
        "properties": {
            "text": { "type": "string", "minLength": 1, "maxLength": characters_max },
            "model_id": maybe(text_max(64)),
            "language_code": maybe(text_max(16)),
            "seed": { "type": ["integer", "null"], "minimum": 0, "maximum": 4_294_967_295_i64 },
        },
    }))
}

/// Names of ElevenLabs' formats that are made here.
pub(super) fn elevenlabs_format() -> RefOr<Schema> {
    schema(json!({ "type": "string", "enum": ["pcm_8000", "pcm_16000", "pcm_22050", "pcm_24000", "pcm_44100",
        "pcm_48000", "ulaw_8000", "alaw_8000", "opus_48000_32"] }))
}

/// Cartesia's body. Fields that are not here change nothing.
pub(super) fn cartesia(characters_max: usize) -> RefOr<Schema> {
    schema(json!({
        "type": "object", "required": ["output_format", "transcript"],
        "properties": {
            "transcript": { "type": "string", "minLength": 1, "maxLength": characters_max },
            "model_id": maybe(text_max(64)),
            "language": maybe(text_max(16)),
            "output_format": { "type": "object", "required": ["container", "encoding", "sample_rate"],
                "properties": {
                    "container": { "type": "string", "enum": ["raw", "wav"] },
                    "encoding": { "type": "string", "enum": ["pcm_s16le", "pcm_f32le", "pcm_mulaw", "pcm_alaw"] },
                    "sample_rate": { "type": "integer", "enum": [8_000, 16_000, 22_050, 24_000, 44_100, 48_000] },
                } },
        },
    }))
}

pub(super) fn name() -> RefOr<Schema> {
    schema(json!({ "type": "string", "minLength": 1, "maxLength": 64 }))
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

fn with_null(words: &[&str]) -> Vec<Value> {
    words.iter().map(|word| json!(word)).chain([Value::Null]).collect()
}

fn rates() -> Vec<Value> {
    SAMPLE_RATES.iter().map(|rate| json!(rate)).chain([Value::Null]).collect()
}

/// The text of a schema as the library's type. What it cannot hold shows as a schema of anything, which the
/// tests of the document would find.
fn schema(text: Value) -> RefOr<Schema> {
    serde_json::from_value(text).unwrap_or_default()
}
