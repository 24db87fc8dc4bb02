//! Fields of other servers' `POST /v1/audio/speech` (docs/speech.md): what they call what we have too, what
//! changes nothing here, and what is refused with a word of why.

use contract::CloneMode;

use super::SpeechReference;
use crate::catalog::TRANSCRIPT_CHARACTERS_MAX;
use crate::wire::{Fields, Json, WireError};

/// Other names of our fields.
const ALIASES: [(&str, &str); 3] =
    [("instruct", "instructions"), ("lang_code", "language"), ("speaker", "voice")];

/// Fields we have not, and what to do instead.
const REFUSED: [(&str, &str); 11] = [
    ("ambient_sound", "this server mixes nothing; leave it out"),
    ("duration_seconds", "the text and speed decide how long speech is; leave it out"),
    ("duration_tokens", "the text and speed decide how long speech is; leave it out"),
    ("extra_params", "give each parameter as a field of its own"),
    ("max_new_tokens", "speech ends with its text; shorten input, or leave it out"),
    ("max_tokens", "speech ends with its text; shorten input, or leave it out"),
    ("ref_audio_2", "one clip speaks; leave it out"),
    ("speaker_embedding", "give a clip as reference"),
    ("token_count", "the text and speed decide how long speech is; leave it out"),
    ("vq_codes", "give a clip as reference"),
    ("word_timestamps", "ask POST /v1/text-to-speech/{voice}/with-timestamps"),
];

/// Puts aliases under our names.
///
/// # Errors
/// [`WireError::DuplicateField`] where both are given.
pub(super) fn rename(entries: &mut [(String, Json)]) -> Result<(), WireError> {
    for (alias, own) in ALIASES {
        let Some(at) = entries.iter().position(|(name, _)| name == alias) else { continue };
        if entries.iter().any(|(name, value)| name == own && *value != Json::Null) {
            return Err(WireError::DuplicateField { field: alias.to_owned() });
        }
        own.clone_into(&mut entries[at].0);
    }
    Ok(())
}

/// Takes what is left of the other servers' fields: the clip they bring.
///
/// # Errors
/// `unsupported` for what would be missed.
pub(super) fn take(fields: &mut Fields) -> Result<Option<SpeechReference>, WireError> {
    for (name, hint) in REFUSED {
        // What is switched off is not missed.
        if fields.take(name).is_some_and(|value| value != Json::Bool(false)) {
            return Err(WireError::Unsupported { param: name, hint: hint.to_owned() });
        }
    }
    // How sound is cut, and which kind of checkpoint it is meant for: neither is the request's to say.
    fields.number("initial_codec_chunk_frames", 0.0, f64::MAX)?;
    fields.number("streaming_interval", 0.0, f64::MAX)?;
    fields.string("task_type", 64)?;
    let mode = fields.boolean("x_vector_only_mode")?.filter(|only| *only).map(|_| CloneMode::Speaker);
    let transcript = fields.words("ref_text", TRANSCRIPT_CHARACTERS_MAX)?;
    let audio = fields.string("ref_audio", usize::MAX)?;
    match (references(fields)?, audio) {
        (Some(_), Some(_)) => Err(WireError::DuplicateField { field: "ref_audio".to_owned() }),
        (Some(given), None) => {
            Ok(Some(SpeechReference { transcript: given.transcript.or(transcript), mode, ..given }))
        }
        (None, Some(audio)) => {
            Ok(Some(SpeechReference { audio: base64_of("ref_audio", audio)?, transcript, mode }))
        }
        (None, None) => Ok(None),
    }
}

/// A list of clips, of which one can speak.
fn references(fields: &mut Fields) -> Result<Option<SpeechReference>, WireError> {
    const KNOWN: &[&str] = &["audio", "data", "media_type", "ref_audio", "text"];
    let mut items = match fields.take("references") {
        None => return Ok(None),
        Some(Json::Array(items)) => items,
        Some(other) => return Err(fields.wrong("references", "an array", &other)),
    };
    let (Some(Json::Object(entries)), true) = (items.pop(), items.is_empty()) else {
        return Err(fields.out_of_range("references", "one object in an array: one clip speaks".to_owned()));
    };
    let mut item = Fields::open(entries, "references[0].", "references[0]", KNOWN)?;
    let mut audio = None;
    for name in ["audio", "data", "ref_audio"] {
        audio = audio.or(item.string(name, usize::MAX)?);
    }
    let audio = base64_of("references", item.required("audio", audio)?)?;
    let transcript = item.words("text", TRANSCRIPT_CHARACTERS_MAX)?;
    Ok(Some(SpeechReference { audio, transcript, mode: None }))
}

/// A clip comes as bytes: nothing is ever fetched, and no file of ours is opened.
fn base64_of(param: &'static str, given: String) -> Result<String, WireError> {
    if let Some(rest) = given.strip_prefix("data:") {
        return match rest.split_once(";base64,") {
            Some((_, bytes)) => Ok(bytes.to_owned()),
            None => Err(WireError::Unsupported { param, hint: "a data URL must be base64".to_owned() }),
        };
    }
    if given.contains("://") || given.starts_with(['/', '.', '~']) {
        let hint = "give the clip itself as base64: URLs and paths are not read".to_owned();
        return Err(WireError::Unsupported { param, hint });
    }
    Ok(given)
}
