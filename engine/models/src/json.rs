//! Checked reading of a checkpoint's JSON: every failure names file and key.

use serde_json::{Map, Value};

use crate::{ModelError, ModelSource};

/// Greatest value a norm may add to a mean square: real ones are a thousandth of this or less.
const EPSILON_MAX: f32 = 0.1;
/// Rates at which anybody keeps speech.
const SAMPLE_RATES: std::ops::RangeInclusive<usize> = 8_000..=192_000;

/// One parsed file.
#[derive(Debug)]
pub(crate) struct Document {
    file: String,
    root: Map<String, Value>,
}

/// An object inside a document, with the path that led to it.
#[derive(Clone, Debug)]
pub(crate) struct Object<'a> {
    file: &'a str,
    path: String,
    map: &'a Map<String, Value>,
    /// Values of keys that the file leaves out, as the checkpoint's own classes have them.
    absent: Option<&'a Map<String, Value>>,
}

impl Document {
    pub(crate) fn read(source: &ModelSource, name: &str) -> Result<Self, ModelError> {
        let bytes = source.file(name)?;
        let file = source.label(name);
        match serde_json::from_slice(&bytes) {
            Ok(Value::Object(root)) => Ok(Self { file, root }),
            Ok(_) => Err(ModelError::BadJson { file, what: "the top level is not an object".to_owned() }),
            Err(error) => Err(ModelError::BadJson { file, what: error.to_string() }),
        }
    }

    pub(crate) fn root(&self) -> Object<'_> {
        Object { file: &self.file, path: String::new(), map: &self.root, absent: None }
    }
}

impl<'a> Object<'a> {
    pub(crate) fn object(&self, key: &str) -> Result<Self, ModelError> {
        let path = self.key(key);
        match self.value(key)? {
            Value::Object(map) => Ok(Self { file: self.file, path, map, absent: None }),
            _ => Err(self.wrong(key, "an object")),
        }
    }

    /// The same object, a key that it leaves out (or holds null for) read from `absent` instead.
    pub(crate) fn or(self, absent: &'a Map<String, Value>) -> Self {
        Self { absent: Some(absent), ..self }
    }

    /// The object under `key`, or `None` where the key is absent or null.
    pub(crate) fn object_if_any(&self, key: &str) -> Result<Option<Self>, ModelError> {
        if self.is_absent(key) { Ok(None) } else { self.object(key).map(Some) }
    }

    pub(crate) fn text(&self, key: &str) -> Result<&'a str, ModelError> {
        self.value(key)?.as_str().ok_or_else(|| self.wrong(key, "a string"))
    }

    pub(crate) fn flag_or(&self, key: &str, absent: bool) -> Result<bool, ModelError> {
        if self.is_absent(key) {
            return Ok(absent);
        }
        self.value(key)?.as_bool().ok_or_else(|| self.wrong(key, "true or false"))
    }

    /// A count of at least 1 that fits 31 bits, so that products of a few stay in `u64`.
    pub(crate) fn count(&self, key: &str) -> Result<usize, ModelError> {
        let value = self.value(key)?.as_u64().ok_or_else(|| self.wrong(key, "a whole number"))?;
        self.bounded_count(key, value)
    }

    /// A list of counts, not empty.
    pub(crate) fn counts(&self, key: &str) -> Result<Vec<usize>, ModelError> {
        let list = self.value(key)?.as_array().ok_or_else(|| self.wrong(key, "a list of whole numbers"))?;
        if list.is_empty() {
            return Err(self.out_of_range(key, "empty", "a list with at least one entry"));
        }
        list.iter()
            .map(|entry| {
                let value = entry.as_u64().ok_or_else(|| self.wrong(key, "a list of whole numbers"))?;
                self.bounded_count(key, value)
            })
            .collect()
    }

    /// A non-negative id.
    pub(crate) fn id(&self, key: &str) -> Result<u32, ModelError> {
        let value = self.value(key)?.as_u64().ok_or_else(|| self.wrong(key, "a whole number"))?;
        i32::try_from(value)
            .map(i32::unsigned_abs)
            .map_err(|_| self.out_of_range(key, value, "an id below 2^31"))
    }

    pub(crate) fn number(&self, key: &str) -> Result<f32, ModelError> {
        let value = self.value(key)?.as_f64().ok_or_else(|| self.wrong(key, "a number"))?;
        let value = value as f32;
        if value.is_finite() { Ok(value) } else { Err(self.out_of_range(key, value, "finite")) }
    }

    /// A number above 0, such as a temperature.
    pub(crate) fn positive(&self, key: &str) -> Result<f32, ModelError> {
        let value = self.number(key)?;
        if value > 0.0 { Ok(value) } else { Err(self.out_of_range(key, value, "above 0")) }
    }

    /// What a norm adds before it divides: above 0, so that a row of zeros stays finite.
    pub(crate) fn epsilon(&self, key: &str) -> Result<f32, ModelError> {
        let value = self.number(key)?;
        let holds = value > 0.0 && value <= EPSILON_MAX;
        let bound = || format!("above 0 and at most {EPSILON_MAX}");
        if holds { Ok(value) } else { Err(self.out_of_range(key, value, bound())) }
    }

    /// Base of a rotary embedding: above 1, or no position turns slower than another.
    pub(crate) fn rope_base(&self, key: &str) -> Result<f32, ModelError> {
        let value = self.number(key)?;
        if value > 1.0 { Ok(value) } else { Err(self.out_of_range(key, value, "above 1")) }
    }

    /// Hertz of sound.
    pub(crate) fn sample_rate(&self, key: &str) -> Result<usize, ModelError> {
        let value = self.count(key)?;
        if SAMPLE_RATES.contains(&value) {
            return Ok(value);
        }
        let bound = format!("a sample rate of {} to {} Hz", SAMPLE_RATES.start(), SAMPLE_RATES.end());
        Err(self.out_of_range(key, value, bound))
    }

    pub(crate) fn number_or(&self, key: &str, absent: f32) -> Result<f32, ModelError> {
        if self.is_absent(key) { Ok(absent) } else { self.number(key) }
    }

    /// All entries, ordered by name.
    pub(crate) fn entries(&self) -> Vec<(&'a str, &'a Value)> {
        let mut entries: Vec<_> = self.map.iter().map(|(key, value)| (key.as_str(), value)).collect();
        entries.sort_by_key(|(key, _)| *key);
        entries
    }

    pub(crate) fn is_absent(&self, key: &str) -> bool {
        self.found(key).is_none_or(Value::is_null)
    }

    pub(crate) fn wrong(&self, key: &str, expected: &'static str) -> ModelError {
        ModelError::WrongType { file: self.file.to_owned(), key: self.key(key), expected }
    }

    pub(crate) fn out_of_range(
        &self,
        key: &str,
        value: impl std::fmt::Display,
        bound: impl Into<String>,
    ) -> ModelError {
        ModelError::OutOfRange {
            file: self.file.to_owned(),
            key: self.key(key),
            value: value.to_string(),
            bound: bound.into(),
        }
    }

    fn bounded_count(&self, key: &str, value: u64) -> Result<usize, ModelError> {
        match i32::try_from(value) {
            Ok(count) if count > 0 => Ok(count.unsigned_abs() as usize),
            _ => Err(self.out_of_range(key, value, "from 1 to 2^31 - 1")),
        }
    }

    fn value(&self, key: &str) -> Result<&'a Value, ModelError> {
        self.found(key)
            .ok_or_else(|| ModelError::MissingKey { file: self.file.to_owned(), key: self.key(key) })
    }

    fn found(&self, key: &str) -> Option<&'a Value> {
        let own = self.map.get(key);
        if own.is_none_or(Value::is_null) {
            self.absent.and_then(|absent| absent.get(key)).or(own)
        } else {
            own
        }
    }

    fn key(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }
}
