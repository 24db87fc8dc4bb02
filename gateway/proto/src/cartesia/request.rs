//! What `POST /tts/bytes` and `POST /tts/sse` are asked.

use serde_json::Value;

use super::format::OVER_HTTP;
use super::generation::{self, GENERATION_CONFIG, LANGUAGE, LOCALE, MODEL_ID, SEED, VOICE};
use crate::speech::{REFERENCE, SpeechRequest, StreamFormat, spoken, spoken_schema};
use crate::wire::told::{self, Field, Flag, Piece, Table, Words};
use crate::wire::{Fields, WireError};

/// All that is read of a body.
const BODY: &Table = &[
    &TRANSCRIPT,
    &OVER_HTTP,
    &MODEL_ID,
    &VOICE,
    &LANGUAGE,
    &LOCALE,
    &SEED,
    &GENERATION_CONFIG,
    &REFERENCE,
    &CONTEXT_ID,
    &ADD_TIMESTAMPS,
];
/// Likewise of a socket's message, where it may be a part of a text.
pub(super) const TRANSCRIPT: Field<Piece> = Field::required("transcript", Piece);
const CONTEXT_ID: Field<Words> = Field::new("context_id", Words(CONTEXT_ID_CHARACTERS_MAX));
pub(super) const ADD_TIMESTAMPS: Field<Flag> = Field::new("add_timestamps", Flag);

/// A body in JSON Schema: made of what is read. Fields that are not in it change nothing.
#[must_use]
pub fn body_schema(characters_max: usize) -> Value {
    let mut schema = told::object(BODY);
    schema["properties"][TRANSCRIPT.name] = spoken_schema(characters_max);
    schema
}

/// A request, and what only `/tts/sse` asks.
#[derive(Clone, Debug, PartialEq)]
pub struct SpeechAsk {
    pub request: SpeechRequest,
    /// Comes back in every event.
    pub context_id: Option<String>,
    pub add_timestamps: bool,
}

/// Characters of a context's id.
pub(super) const CONTEXT_ID_CHARACTERS_MAX: usize = 256;

/// Reads a body. Unknown fields are ignored: clients send more of them with every version.
///
/// # Errors
/// What is wrong, with the field's name.
pub fn read_request(body: &str, input_max: usize) -> Result<SpeechAsk, WireError> {
    let mut fields = Fields::of_message(body, BODY)?;
    let input = spoken(&mut fields, TRANSCRIPT.name, input_max)?;
    let format = OVER_HTTP.demand(&mut fields)?;
    let request = SpeechRequest {
        input,
        ask: generation::take(&mut fields)?,
        format: format.speech_format(),
        sample_rate: Some(format.sample_rate),
        stream: StreamFormat::Audio,
        speed: generation::speed_of(&mut fields)?,
        whole: false,
        loudness: None,
        reference: REFERENCE.take(&mut fields)?,
    };
    Ok(SpeechAsk {
        request,
        context_id: CONTEXT_ID.take(&mut fields)?,
        add_timestamps: ADD_TIMESTAMPS.take(&mut fields)?.unwrap_or(false),
    })
}

#[cfg(test)]
mod tests {
    use codecs::pcm::RawEncoding;

    use super::*;
    use crate::speech::SpeechFormat;

    const BODY: &str = r#"{"model_id":"sonic-3","transcript":"Hi.","language":"en","locale":null,
        "voice":{"mode":"id","id":"june"},"add_timestamps":true,"context_id":"c","generation_config":{"speed":1.25,"emotion":"calm"},
        "output_format":{"container":"raw","encoding":"pcm_f32le","sample_rate":44100},"a_field":{}}"#;

    #[test]
    fn a_body_as_clients_send_it_is_read() {
        let SpeechAsk { request, context_id, add_timestamps } = read_request(BODY, 100).expect("valid");
        assert_eq!((request.format, request.sample_rate), (SpeechFormat::F32, Some(44_100)));
        assert_eq!(request.format.encoding(), Some(RawEncoding::F32Le));
        assert_eq!((request.ask.model, request.ask.voice.as_deref()), (None, Some("june")));
        assert_eq!((request.ask.language.as_deref(), context_id.as_deref()), (Some("en"), Some("c")));
        assert!(add_timestamps && request.speed.get() == 1.25);
        let plain = BODY.replace(r#"{"mode":"id","id":"june"}"#, r#""june""#);
        assert_eq!(read_request(&plain, 100).expect("valid").request.ask.voice.as_deref(), Some("june"));
    }

    #[test]
    fn a_clip_in_the_body_speaks_in_place_of_a_voice() {
        let body =
            BODY.replace(r#""voice":{"mode":"id","id":"june"}"#, r#""reference":{"audio":"UklGRg=="}"#);
        let request = read_request(&body, 100).expect("valid").request;
        assert_eq!(request.reference.map(|clip| clip.audio).as_deref(), Some("UklGRg=="));
        assert_eq!(request.ask.voice, None);
    }

    #[test]
    fn what_this_server_cannot_make_is_refused_by_field() {
        for (from, to, code, param) in [
            ("\"raw\"", "\"aac\"", "unsupported", "output_format.container"),
            ("pcm_f32le", "pcm_s24le", "field_out_of_range", "output_format.encoding"),
            ("44100", "96000", "field_out_of_range", "output_format.sample_rate"),
            ("\"mode\":\"id\"", "\"mode\":\"embedding\"", "unsupported", "voice.mode"),
            ("\"Hi.\"", "\" \"", "field_out_of_range", "transcript"),
            ("\"speed\":1.25", "\"speed\":0", "field_out_of_range", "generation_config.speed"),
        ] {
            let refused = read_request(&BODY.replace(from, to), 100).expect_err(to);
            assert_eq!((refused.code(), refused.param()), (code, Some(param)), "{to}");
        }
    }

    #[test]
    fn mp3_is_made_by_builds_that_can() {
        let format = r#""output_format":{"container":"mp3","bit_rate":64000,"sample_rate":44100}"#;
        let body = format!(r#"{{"transcript":"Hi.","voice":"june",{format}}}"#);
        let made = codecs::mp3::AVAILABLE.then_some(SpeechFormat::Mp3 { kbps: 64 });
        assert_eq!(read_request(&body, 100).ok().map(|asked| asked.request.format), made);
    }
}
