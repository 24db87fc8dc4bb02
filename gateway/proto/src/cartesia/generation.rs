//! The fields that say who speaks and how, the same in every request.

use serde_json::{Value, json};

use crate::catalog::Ask;
use crate::wire::speaking::{NAME_CHARACTERS_MAX, named};
use crate::wire::told::{self, Field, Kind, Parts, Seed, Table, Tempo, Words};
use crate::wire::{Fields, SamplingFields, Speed, WireError};

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
        named(name, fields, |entries, path| {
            let mut voice = Fields::lenient(entries, &format!("{path}."), VOICE_FIELDS);
            if MODE.take(&mut voice)?.is_some_and(|mode| mode != "id") {
                let hint = "embeddings are not known here; name a voice by its id".to_owned();
                return Err(WireError::Unsupported { param: "voice.mode", hint });
            }
            ID.demand(&mut voice)
        })
    }

    fn schema(&self) -> Value {
        let mut named = told::object(VOICE_FIELDS);
        named["properties"][MODE.name]["enum"] = json!(["id", null]);
        json!({ "oneOf": [Words(NAME_CHARACTERS_MAX).schema(), named] })
    }
}
