//! The fields that say who speaks and how, the same in every request.

use crate::catalog::Ask;
use crate::wire::{Fields, Json, SamplingFields, Speed, WireError, speed};

const NAME_BYTES_MAX: usize = 256;

/// Takes model, voice and language from a request.
///
/// # Errors
/// What is wrong, with the field's name.
pub(super) fn take(fields: &mut Fields) -> Result<Ask, WireError> {
    let language = match fields.string("language", 64)? {
        Some(language) => Some(language),
        None => fields.string("locale", 64)?,
    };
    Ok(Ask {
        model: fields.string("model_id", NAME_BYTES_MAX)?.filter(|name| !name.starts_with("sonic")),
        voice: voice(fields)?,
        language,
        sampling: SamplingFields { seed: fields.u53("seed")?, ..SamplingFields::default() },
        ..Ask::default()
    })
}

/// The one part of `generation_config` that is kept.
///
/// # Errors
/// A speed out of bounds.
pub(super) fn speed_of(fields: &mut Fields) -> Result<Speed, WireError> {
    let config = fields.lenient_object("generation_config")?;
    config.map_or(Ok(Speed::default()), |mut config| speed(&mut config))
}

/// A name, or `{id}`; an embedding is none of this server's voices.
fn voice(fields: &mut Fields) -> Result<Option<String>, WireError> {
    match fields.take("voice") {
        None => Ok(None),
        Some(Json::String(text)) => {
            let param = fields.path("voice");
            let name = text.whole().ok_or(WireError::LoneSurrogate { param, sequence: None })?;
            if name.len() > NAME_BYTES_MAX {
                return Err(fields.out_of_range("voice", format!("at most {NAME_BYTES_MAX} bytes long")));
            }
            Ok(Some(name))
        }
        Some(Json::Object(entries)) => {
            let mut voice = Fields::lenient(entries, "voice.");
            let mode = voice.string("mode", 64)?;
            if mode.is_some_and(|mode| mode != "id") {
                let hint = "embeddings are not known here; name a voice by its id".to_owned();
                return Err(WireError::Unsupported { param: "voice.mode", hint });
            }
            let id = voice.string("id", NAME_BYTES_MAX)?;
            voice.required("id", id).map(Some)
        }
        Some(other) => Err(fields.wrong("voice", "a string or {\"id\": string}", &other)),
    }
}
