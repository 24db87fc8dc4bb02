//! The fields that say who speaks and how, the same in every request.

use serde_json::{Value, json};

use crate::catalog::Ask;
use crate::wire::told::{self, Field, Kind, Parts, Seed, Table, Tempo, Words};
use crate::wire::{Fields, Json, SamplingFields, Speed, WireError};

const NAME_CHARACTERS_MAX: usize = 256;

pub(super) const MODEL_ID: Field<Words> = Field::new("model_id", Words(NAME_CHARACTERS_MAX));
pub(super) const LANGUAGE: Field<Words> = Field::new("language", Words(64));
/// What older clients call it.
pub(super) const LOCALE: Field<Words> = Field::new("locale", Words(64));
pub(super) const SEED: Field<Seed> = Field::new("seed", Seed);
pub(super) const VOICE: Field<Voice> = Field::new("voice", Voice);
pub(super) const GENERATION_CONFIG: Field<Parts> = Field::new("generation_config", Parts(&[&SPEED]));
const SPEED: Field<Tempo> = Field::new("speed", Tempo);

/// Takes model, voice and language from a request.
///
/// # Errors
/// What is wrong, with the field's name.
pub(super) fn take(fields: &mut Fields) -> Result<Ask, WireError> {
    let language = match LANGUAGE.take(fields)? {
        Some(language) => Some(language),
        None => LOCALE.take(fields)?,
    };
    Ok(Ask {
        model: MODEL_ID.take(fields)?.filter(|name| !name.starts_with("sonic")),
        voice: VOICE.take(fields)?,
        language,
        sampling: SamplingFields { seed: SEED.take(fields)?, ..SamplingFields::default() },
        ..Ask::default()
    })
}

/// The one part of `generation_config` that is kept.
///
/// # Errors
/// A speed out of bounds.
pub(super) fn speed_of(fields: &mut Fields) -> Result<Speed, WireError> {
    let Some(mut config) = GENERATION_CONFIG.take(fields)? else { return Ok(Speed::default()) };
    Ok(SPEED.take(&mut config)?.unwrap_or_default())
}

/// A name, or `{id}`; an embedding is none of this server's voices.
pub(super) struct Voice;

const VOICE_FIELDS: &Table = &[&ID, &MODE];
const ID: Field<Words> = Field::required("id", Words(NAME_CHARACTERS_MAX));
const MODE: Field<Words> = Field::new("mode", Words(64));

impl Kind for Voice {
    type Value = String;

    fn take(&self, name: &'static str, fields: &mut Fields) -> Result<Option<String>, WireError> {
        match fields.take(name) {
            None => Ok(None),
            Some(Json::String(text)) => {
                let param = fields.path(name);
                let voice = text.whole().ok_or(WireError::LoneSurrogate { param, sequence: None })?;
                if voice.chars().count() > NAME_CHARACTERS_MAX {
                    let bound = format!("at most {NAME_CHARACTERS_MAX} characters long");
                    return Err(fields.out_of_range(name, bound));
                }
                Ok(Some(voice))
            }
            Some(Json::Object(entries)) => {
                let prefix = format!("{}.", fields.path(name));
                let mut voice = Fields::lenient(entries, &prefix, VOICE_FIELDS);
                if MODE.take(&mut voice)?.is_some_and(|mode| mode != "id") {
                    let hint = "embeddings are not known here; name a voice by its id".to_owned();
                    return Err(WireError::Unsupported { param: "voice.mode", hint });
                }
                ID.demand(&mut voice).map(Some)
            }
            Some(other) => Err(fields.wrong(name, "a string or {\"id\": string}", &other)),
        }
    }

    fn schema(&self) -> Value {
        let mut named = told::object(VOICE_FIELDS);
        named["properties"][MODE.name]["enum"] = json!(["id", null]);
        json!({ "oneOf": [Words(NAME_CHARACTERS_MAX).schema(), named] })
    }
}
