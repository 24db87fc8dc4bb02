//! Typed access to one JSON object of a peer: unknown fields refused by name, wrong types by path.

use super::error::{nearest, shown};
use super::told::Table;
use super::{Json, Text, WireError};

/// The largest integer that every reader of JSON holds exactly: seeds and positions go up to it.
pub const INTEGER_MAX: u64 = (1 << 53) - 1;

/// The fields of one object. Every getter names the field's full path when it refuses.
pub(crate) struct Fields {
    /// Path of the object, with a trailing dot; empty for the message itself.
    prefix: String,
    entries: Vec<(String, Json)>,
    /// What a reference tells of the object, where one is made of it.
    told: Option<&'static Table>,
}

impl Fields {
    /// Opens `entries`, all of whose names must be in `known`. `place` says for people what the object is.
    pub(crate) fn open(
        entries: Vec<(String, Json)>,
        prefix: &str,
        place: &str,
        known: &'static [&'static str],
    ) -> Result<Self, WireError> {
        if let Some((name, _)) = entries.iter().find(|(name, _)| !known.contains(&name.as_str())) {
            return Err(WireError::UnknownField {
                param: format!("{prefix}{}", shown(name)),
                place: place.to_owned(),
                nearest: nearest(name, known),
                known,
            });
        }
        Ok(Self { prefix: prefix.to_owned(), entries, told: None })
    }

    /// Opens `entries` of a protocol whose clients send fields that are not known here: they are ignored. Nothing is
    /// read that is not in `told`.
    pub(crate) fn lenient(entries: Vec<(String, Json)>, prefix: &str, told: &'static Table) -> Self {
        Self { prefix: prefix.to_owned(), entries, told: Some(told) }
    }

    /// Opens a whole message of such a protocol.
    pub(crate) fn of_message(text: &str, told: &'static Table) -> Result<Self, WireError> {
        match Json::parse(text)? {
            Json::Object(entries) => Ok(Self::lenient(entries, "", told)),
            _ => Err(WireError::InvalidJson { at: 0, what: "it is no object" }),
        }
    }

    pub(crate) fn path(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// Takes a field away; `null` is the same as absent.
    pub(crate) fn take(&mut self, name: &str) -> Option<Json> {
        let told = self.told.is_none_or(|told| told.iter().any(|field| field.name() == name));
        debug_assert!(told, "{name} is read, and no reference tells of it");
        let at = self.entries.iter().position(|(known, _)| known == name)?;
        match self.entries.swap_remove(at).1 {
            Json::Null => None,
            value => Some(value),
        }
    }

    pub(crate) fn required<T>(&self, name: &str, value: Option<T>) -> Result<T, WireError> {
        value.ok_or_else(|| WireError::MissingField { param: self.path(name), hint: None })
    }

    pub(crate) fn text(&mut self, name: &str) -> Result<Option<Text>, WireError> {
        match self.take(name) {
            None => Ok(None),
            Some(Json::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.wrong(name, "a string", &other)),
        }
    }

    /// A string of whole characters, at most `max` bytes of UTF-8.
    pub(crate) fn string(&mut self, name: &str, max: usize) -> Result<Option<String>, WireError> {
        let Some(whole) = self.whole(name)? else { return Ok(None) };
        if whole.len() > max {
            return Err(self.out_of_range(name, format!("at most {max} bytes long")));
        }
        Ok(Some(whole))
    }

    /// A string of at most `max` characters, as schemas count.
    pub(crate) fn words(&mut self, name: &str, max: usize) -> Result<Option<String>, WireError> {
        let Some(whole) = self.whole(name)? else { return Ok(None) };
        if whole.len() > max && whole.chars().count() > max {
            return Err(self.out_of_range(name, format!("at most {max} characters long")));
        }
        Ok(Some(whole))
    }

    fn whole(&mut self, name: &str) -> Result<Option<String>, WireError> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        let lone = || WireError::LoneSurrogate { param: self.path(name), sequence: None };
        text.whole().ok_or_else(lone).map(Some)
    }

    pub(crate) fn boolean(&mut self, name: &str) -> Result<Option<bool>, WireError> {
        match self.take(name) {
            None => Ok(None),
            Some(Json::Bool(value)) => Ok(Some(value)),
            Some(other) => Err(self.wrong(name, "true or false", &other)),
        }
    }

    pub(crate) fn integer(&mut self, name: &str, min: i64, max: i64) -> Result<Option<i64>, WireError> {
        let value = match self.take(name) {
            None => return Ok(None),
            Some(Json::Integer(value)) => value,
            // 3.0 and 3e2 are integers as JSON knows them.
            Some(Json::Number(value)) if value.fract() == 0.0 && value.abs() <= INTEGER_MAX as f64 => {
                value as i64
            }
            Some(other) => return Err(self.wrong(name, "an integer", &other)),
        };
        if value < min || value > max {
            return Err(self.out_of_range(name, format!("an integer from {min} to {max}")));
        }
        Ok(Some(value))
    }

    pub(crate) fn u16(&mut self, name: &str) -> Result<Option<u16>, WireError> {
        Ok(self.integer(name, 0, i64::from(u16::MAX))?.and_then(|value| u16::try_from(value).ok()))
    }

    pub(crate) fn u32(&mut self, name: &str, min: u32, max: u32) -> Result<Option<u32>, WireError> {
        Ok(self.integer(name, i64::from(min), i64::from(max))?.and_then(|value| u32::try_from(value).ok()))
    }

    /// A non-negative integer up to 2^53 - 1, which every JSON library carries exactly.
    pub(crate) fn u53(&mut self, name: &str) -> Result<Option<u64>, WireError> {
        Ok(self.integer(name, 0, INTEGER_MAX as i64)?.and_then(|value| u64::try_from(value).ok()))
    }

    pub(crate) fn number(&mut self, name: &str, min: f64, max: f64) -> Result<Option<f64>, WireError> {
        let value = match self.take(name) {
            None => return Ok(None),
            Some(Json::Integer(value)) => value as f64,
            Some(Json::Number(value)) => value,
            Some(other) => return Err(self.wrong(name, "a number", &other)),
        };
        if value < min || value > max {
            // The greatest double is no bound that anybody would want to read.
            let bound = match (min > f64::MIN, max < f64::MAX) {
                (true, false) => format!("a number of at least {min}"),
                _ => format!("a number from {min} to {max}"),
            };
            return Err(self.out_of_range(name, bound));
        }
        Ok(Some(value))
    }

    /// One of a few words.
    pub(crate) fn choice<T: Copy>(
        &mut self,
        name: &str,
        choices: &[(&'static str, T)],
    ) -> Result<Option<T>, WireError> {
        let Some(given) = self.string(name, 256)? else { return Ok(None) };
        match choices.iter().find(|(word, _)| *word == given) {
            Some((_, value)) => Ok(Some(*value)),
            None => {
                let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
                Err(self.out_of_range(name, format!("one of {}", words.join(", "))))
            }
        }
    }

    /// A nested object.
    pub(crate) fn object(
        &mut self,
        name: &str,
        known: &'static [&'static str],
    ) -> Result<Option<Self>, WireError> {
        match self.take(name) {
            None => Ok(None),
            Some(Json::Object(entries)) => {
                let path = self.path(name);
                Self::open(entries, &format!("{path}."), &path, known).map(Some)
            }
            Some(other) => Err(self.wrong(name, "an object", &other)),
        }
    }

    pub(crate) fn wrong(&self, name: &str, expected: &'static str, found: &Json) -> WireError {
        WireError::WrongType { param: self.path(name), expected, found: found.kind() }
    }

    pub(crate) fn out_of_range(&self, name: &str, bound: String) -> WireError {
        WireError::FieldOutOfRange { param: self.path(name), bound }
    }
}
