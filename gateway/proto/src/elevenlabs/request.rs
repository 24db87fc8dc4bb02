//! What the REST endpoints are asked: the query and the JSON body.

use serde_json::Value;

use super::{OutputFormat, is_their_model, normalize};
use crate::catalog::Ask;
use crate::speech::{REFERENCE, SpeechRequest, StreamFormat, spoken, spoken_schema};
use crate::wire::told::{self, Field, Parts, Piece, Seed, Table, Tempo, Words};
use crate::wire::{Fields, SamplingFields, Speed, WireError};

/// All that is read of a body.
const BODY: &Table =
    &[&TEXT, &VOICE_SETTINGS, &REFERENCE, &MODEL_ID, &LANGUAGE_CODE, &TEXT_NORMALIZATION, &SEED];
const TEXT: Field<Piece> = Field::required("text", Piece);
const MODEL_ID: Field<Words> = Field::new("model_id", Words(256));
const LANGUAGE_CODE: Field<Words> = Field::new("language_code", Words(64));
const TEXT_NORMALIZATION: Field<Words> = Field::new("apply_text_normalization", Words(64));
const SEED: Field<Seed> = Field::new("seed", Seed);
/// Likewise of a socket's message.
pub(super) const VOICE_SETTINGS: Field<Parts> = Field::new("voice_settings", Parts(&[&SPEED]));
const SPEED: Field<Tempo> = Field::new("speed", Tempo);

/// A body in JSON Schema: made of what is read. Fields that are not in it change nothing.
#[must_use]
pub fn body_schema(characters_max: usize) -> Value {
    let mut schema = told::object(BODY);
    schema["properties"][TEXT.name] = spoken_schema(characters_max);
    schema
}

/// What the URL of a REST call says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    pub voice: String,
    pub format: OutputFormat,
}

/// Reads a body. Unknown fields are ignored: clients send more of them with every version.
///
/// # Errors
/// What is wrong, with the field's name.
pub fn read_request(body: &str, query: Query, input_max: usize) -> Result<SpeechRequest, WireError> {
    let mut fields = Fields::of_message(body, BODY)?;
    let input = spoken(&mut fields, TEXT.name, input_max)?;
    let speed = speed_of(&mut fields)?;
    // A path always names a voice; a clip in the body goes before it.
    let reference = REFERENCE.take(&mut fields)?;
    let ask = Ask {
        model: MODEL_ID.take(&mut fields)?.filter(|name| !is_their_model(name)),
        voice: Some(query.voice).filter(|_| reference.is_none()),
        language: LANGUAGE_CODE.take(&mut fields)?,
        normalize: TEXT_NORMALIZATION.take(&mut fields)?.and_then(|how| normalize(&how)),
        sampling: SamplingFields { seed: SEED.take(&mut fields)?, ..SamplingFields::default() },
        ..Ask::default()
    };
    Ok(SpeechRequest {
        input,
        ask,
        format: query.format.speech_format(),
        sample_rate: Some(query.format.rate_hz()),
        stream: StreamFormat::Audio,
        speed,
        whole: false,
        loudness: None,
        reference,
    })
}

/// The one of a voice's settings that is kept.
///
/// # Errors
/// A speed out of bounds.
pub(super) fn speed_of(fields: &mut Fields) -> Result<Speed, WireError> {
    let Some(mut settings) = VOICE_SETTINGS.take(fields)? else { return Ok(Speed::default()) };
    Ok(SPEED.take(&mut settings)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str) -> Result<SpeechRequest, WireError> {
        read_request(body, Query { voice: "june".to_owned(), format: OutputFormat::MuLaw }, 100)
    }

    #[test]
    fn a_body_as_clients_send_it_is_read() {
        let body = r#"{"text":"Hi.","model_id":"eleven_turbo_v2_5","language_code":"en","seed":7,
            "voice_settings":{"stability":0.5,"speed":1.1},"previous_text":null,"a_field_of_tomorrow":[1]}"#;
        let request = read(body).expect("valid");
        assert_eq!((request.input.as_str(), request.sample_rate), ("Hi.", Some(8_000)));
        assert_eq!(request.speed.get(), 1.1);
        assert_eq!((request.ask.model, request.ask.voice.as_deref()), (None, Some("june")));
        assert_eq!((request.ask.language.as_deref(), request.ask.sampling.seed), (Some("en"), Some(7)));
    }

    #[test]
    fn a_clip_in_the_body_speaks_in_place_of_the_voice_in_the_path() {
        let request =
            read(r#"{"text":"Hi.","reference":{"audio":"UklGRg==","transcript":"Words."}}"#).expect("valid");
        let clip = request.reference.expect("a clip");
        assert_eq!((clip.audio.as_str(), clip.transcript.as_deref()), ("UklGRg==", Some("Words.")));
        assert_eq!(request.ask.voice, None);
        let refused =
            read(r#"{"text":"Hi.","reference":{"url":"https://example.com/a.wav"}}"#).expect_err("a URL");
        assert_eq!(refused.code(), "unknown_field");
    }

    #[test]
    fn what_cannot_be_spoken_is_refused_by_field() {
        for (body, code, param) in [
            ("[]", "invalid_json", None),
            ("{}", "missing_field", Some("text")),
            (r#"{"text":"..."}"#, "field_out_of_range", Some("text")),
            (r#"{"text":7}"#, "wrong_type", Some("text")),
            (
                r#"{"text":"a","voice_settings":{"speed":9}}"#,
                "field_out_of_range",
                Some("voice_settings.speed"),
            ),
        ] {
            let refused = read(body).expect_err(body);
            assert_eq!((refused.code(), refused.param()), (code, param), "{body}");
        }
    }
}
