//! Fields that say who speaks and how, the same wherever they stand.

use serde_json::{Value, json};

use super::client::{LOUDNESS as LUFS, SamplingFields};
use super::told::{self, Field, Kind, Real, Seed, Table, Tempo, Whole, Words};
use super::{Fields, Json, Speed, WireError};

/// Characters of a name.
pub(crate) const NAME_CHARACTERS_MAX: usize = 256;

pub(crate) const VOICE: Field<Voice> = Field::new("voice", Voice);
pub(crate) const SPEED: Field<Tempo> = Field::new("speed", Tempo);
pub(crate) const LOUDNESS: Field<Loudness> = Field::new("loudness", Loudness);

/// How the model draws.
pub(crate) const SAMPLING: &Table = &[&SEED, &TEMPERATURE, &TOP_P, &TOP_K, &REPETITION_PENALTY];
const SEED: Field<Seed> = Field::new("seed", Seed);
const TEMPERATURE: Field<Real> = Field::new("temperature", Real { min: 0.0, max: 2.0 });
const TOP_P: Field<Share> = Field::new("top_p", Share);
const TOP_K: Field<Whole> = Field::new("top_k", Whole { min: 0, max: 65_536 });
const REPETITION_PENALTY: Field<Real> = Field::new("repetition_penalty", Real { min: 1.0, max: 2.0 });

/// Fields of [`SAMPLING`] by name, in JSON Schema.
#[must_use]
pub fn sampling_schema() -> serde_json::Map<String, Value> {
    SAMPLING.iter().map(|field| (field.name().to_owned(), field.schema())).collect()
}

pub(crate) fn sampling(fields: &mut Fields) -> Result<SamplingFields, WireError> {
    Ok(SamplingFields {
        temperature: TEMPERATURE.take(fields)?.map(|value| value as f32),
        // A positive double may round to 0 as a float; the smallest float keeps its meaning.
        top_p: TOP_P.take(fields)?.map(|value| (value as f32).max(f32::MIN_POSITIVE)),
        top_k: TOP_K.take(fields)?,
        repetition_penalty: REPETITION_PENALTY.take(fields)?.map(|value| value as f32),
        seed: SEED.take(fields)?,
    })
}

/// How fast to speak; as the model does where nothing is said.
pub(crate) fn speed(fields: &mut Fields) -> Result<Speed, WireError> {
    Ok(SPEED.take(fields)?.unwrap_or_default())
}

/// What is called by a name, or by an object that holds one: its entries, and the path they stand at.
pub(crate) fn named(
    name: &'static str,
    fields: &mut Fields,
    inside: impl FnOnce(Vec<(String, Json)>, &str) -> Result<String, WireError>,
) -> Result<Option<String>, WireError> {
    match fields.take(name) {
        None => Ok(None),
        Some(Json::String(text)) => {
            let param = fields.path(name);
            let called = text.whole().ok_or(WireError::LoneSurrogate { param, sequence: None })?;
            if called.chars().count() > NAME_CHARACTERS_MAX {
                let bound = format!("at most {NAME_CHARACTERS_MAX} characters long");
                return Err(fields.out_of_range(name, bound));
            }
            Ok(Some(called))
        }
        Some(Json::Object(entries)) => inside(entries, &fields.path(name)).map(Some),
        Some(other) => Err(fields.wrong(name, "a string or {\"id\": string}", &other)),
    }
}

/// A name, or `{id}`.
pub(crate) struct Voice;

const ID: Field<Words> = Field::required("id", Words(NAME_CHARACTERS_MAX));

impl Kind for Voice {
    type Value = String;

    fn take(&self, name: &'static str, fields: &mut Fields) -> Result<Option<String>, WireError> {
        named(name, fields, |entries, path| {
            ID.demand(&mut Fields::open(entries, &format!("{path}."), path, &[ID.name])?)
        })
    }

    fn schema(&self) -> Value {
        let mut named = told::object(&[&ID]);
        named["additionalProperties"] = Value::Bool(false);
        json!({ "oneOf": [Words(NAME_CHARACTERS_MAX).schema(), named] })
    }
}

/// A whole number of LUFS.
pub(crate) struct Loudness;

impl Kind for Loudness {
    type Value = i8;

    fn take(&self, name: &'static str, fields: &mut Fields) -> Result<Option<i8>, WireError> {
        let lufs = fields.integer(name, i64::from(*LUFS.start()), i64::from(*LUFS.end()))?;
        Ok(lufs.and_then(|lufs| i8::try_from(lufs).ok()))
    }

    fn schema(&self) -> Value {
        json!({ "type": "integer", "minimum": LUFS.start(), "maximum": LUFS.end() })
    }
}

/// A part of one that is not nothing.
pub(crate) struct Share;

impl Kind for Share {
    type Value = f64;

    fn take(&self, name: &'static str, fields: &mut Fields) -> Result<Option<f64>, WireError> {
        let share = fields.number(name, 0.0, 1.0)?;
        if share == Some(0.0) {
            return Err(fields.out_of_range(name, "above 0 and at most 1".to_owned()));
        }
        Ok(share)
    }

    fn schema(&self) -> Value {
        json!({ "type": "number", "exclusiveMinimum": 0, "maximum": 1 })
    }
}
