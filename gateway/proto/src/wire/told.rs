//! Fields that a reference tells of: a reader takes a value by the same entry that the field's description is made of, so
//! that its name, its kind and its bounds stand in one place.

use codecs::stretch::{SPEED_MAX, SPEED_MIN};
use serde_json::{Value, json};

use super::{Fields, INTEGER_MAX, Json, Speed, Text, WireError};

/// The fields of one object.
pub(crate) type Table = [&'static dyn Told];

/// A field as a reference tells of it.
pub(crate) trait Told: Sync {
    fn name(&self) -> &'static str;
    fn is_required(&self) -> bool;
    /// Its values in JSON Schema; `null` is the same as absent.
    fn schema(&self) -> Value;
}

/// A field as a reader takes it.
pub(crate) struct Field<K> {
    pub(crate) name: &'static str,
    is_required: bool,
    kind: K,
}

/// What stands in a field.
pub(crate) trait Kind: Sync {
    type Value;

    /// Takes the field called `name` away.
    fn take(&self, name: &'static str, fields: &mut Fields) -> Result<Option<Self::Value>, WireError>;

    fn schema(&self) -> Value;
}

impl<K: Kind> Field<K> {
    pub(crate) const fn new(name: &'static str, kind: K) -> Self {
        Self { name, is_required: false, kind }
    }

    /// Of an object that is nothing without it.
    pub(crate) const fn required(name: &'static str, kind: K) -> Self {
        Self { name, is_required: true, kind }
    }

    /// Its values in JSON Schema where it must be there.
    pub(crate) fn present(&self) -> Value {
        self.kind.schema()
    }

    /// # Errors
    /// A value of another kind, or out of its bounds.
    pub(crate) fn take(&self, fields: &mut Fields) -> Result<Option<K::Value>, WireError> {
        self.kind.take(self.name, fields)
    }

    /// # Errors
    /// As [`Field::take`], and where it is absent.
    pub(crate) fn demand(&self, fields: &mut Fields) -> Result<K::Value, WireError> {
        let value = self.take(fields)?;
        fields.required(self.name, value)
    }
}

impl<K: Kind> Told for Field<K> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn is_required(&self) -> bool {
        self.is_required
    }

    fn schema(&self) -> Value {
        let mut schema = self.kind.schema();
        if self.is_required {
            return schema;
        }
        if let Some(kinds) = schema.get_mut("oneOf").and_then(Value::as_array_mut) {
            kinds.push(json!({ "type": "null" }));
            return schema;
        }
        if let Some(words) = schema.get_mut("enum").and_then(Value::as_array_mut) {
            words.push(Value::Null);
        }
        schema["type"] = json!([schema["type"], "null"]);
        schema
    }
}

/// An object of these fields, in JSON Schema. Others change nothing.
pub(crate) fn object(table: &Table) -> Value {
    let fields = table.iter().map(|field| (field.name().to_owned(), field.schema()));
    let fields: serde_json::Map<String, Value> = fields.collect();
    let required: Vec<&str> = table.iter().filter(|field| field.is_required()).map(|f| f.name()).collect();
    let mut schema = json!({ "type": "object", "properties": fields });
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    schema
}

pub(crate) struct Flag;

impl Kind for Flag {
    type Value = bool;

    fn take(&self, name: &'static str, fields: &mut Fields) -> Result<Option<bool>, WireError> {
        fields.boolean(name)
    }

    fn schema(&self) -> Value {
        json!({ "type": "boolean" })
    }
}

/// A string of at most so many characters.
pub(crate) struct Words(pub(crate) usize);

impl Kind for Words {
    type Value = String;

    fn take(&self, name: &'static str, fields: &mut Fields) -> Result<Option<String>, WireError> {
        fields.words(name, self.0)
    }

    fn schema(&self) -> Value {
        match self.0 {
            usize::MAX => json!({ "type": "string" }),
            max => json!({ "type": "string", "maxLength": max }),
        }
    }
}

/// A piece of text, which may begin and end within a character.
pub(crate) struct Piece;

impl Kind for Piece {
    type Value = Text;

    fn take(&self, name: &'static str, fields: &mut Fields) -> Result<Option<Text>, WireError> {
        fields.text(name)
    }

    fn schema(&self) -> Value {
        json!({ "type": "string" })
    }
}

/// One of a few words.
pub(crate) struct Choice<T: 'static>(pub(crate) &'static [(&'static str, T)]);

impl<T: Copy + Sync> Kind for Choice<T> {
    type Value = T;

    fn take(&self, name: &'static str, fields: &mut Fields) -> Result<Option<T>, WireError> {
        fields.choice(name, self.0)
    }

    fn schema(&self) -> Value {
        let words: Vec<&str> = self.0.iter().map(|(word, _)| *word).collect();
        json!({ "type": "string", "enum": words })
    }
}

/// An integer within bounds.
pub(crate) struct Whole {
    pub(crate) min: u32,
    pub(crate) max: u32,
}

impl Kind for Whole {
    type Value = u32;

    fn take(&self, name: &'static str, fields: &mut Fields) -> Result<Option<u32>, WireError> {
        fields.u32(name, self.min, self.max)
    }

    fn schema(&self) -> Value {
        json!({ "type": "integer", "minimum": self.min, "maximum": self.max })
    }
}

/// A number within bounds.
pub(crate) struct Real {
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Kind for Real {
    type Value = f64;

    fn take(&self, name: &'static str, fields: &mut Fields) -> Result<Option<f64>, WireError> {
        fields.number(name, self.min, self.max)
    }

    fn schema(&self) -> Value {
        json!({ "type": "number", "minimum": self.min, "maximum": self.max })
    }
}

/// One of a few integers.
pub(crate) struct Among(pub(crate) &'static [u32]);

impl Kind for Among {
    type Value = u32;

    fn take(&self, name: &'static str, fields: &mut Fields) -> Result<Option<u32>, WireError> {
        let value = fields.u32(name, 0, u32::MAX)?;
        if value.is_some_and(|value| !self.0.contains(&value)) {
            let known: Vec<String> = self.0.iter().map(u32::to_string).collect();
            return Err(fields.out_of_range(name, format!("one of {}", known.join(", "))));
        }
        Ok(value)
    }

    fn schema(&self) -> Value {
        json!({ "type": "integer", "enum": self.0 })
    }
}

/// What a context draws its numbers from.
pub(crate) struct Seed;

impl Kind for Seed {
    type Value = u64;

    fn take(&self, name: &'static str, fields: &mut Fields) -> Result<Option<u64>, WireError> {
        fields.u53(name)
    }

    fn schema(&self) -> Value {
        json!({ "type": "integer", "minimum": 0, "maximum": INTEGER_MAX })
    }
}

/// How fast to speak.
pub(crate) struct Tempo;

impl Kind for Tempo {
    type Value = Speed;

    fn take(&self, name: &'static str, fields: &mut Fields) -> Result<Option<Speed>, WireError> {
        Ok(fields.number(name, SPEED_MIN, SPEED_MAX)?.and_then(Speed::new))
    }

    fn schema(&self) -> Value {
        json!({ "type": "number", "minimum": SPEED_MIN, "maximum": SPEED_MAX })
    }
}

/// An object of which these fields are read, and others ignored.
pub(crate) struct Parts(pub(crate) &'static Table);

impl Kind for Parts {
    type Value = Fields;

    fn take(&self, name: &'static str, fields: &mut Fields) -> Result<Option<Fields>, WireError> {
        match fields.take(name) {
            None => Ok(None),
            Some(Json::Object(entries)) => {
                Ok(Some(Fields::lenient(entries, &format!("{}.", fields.path(name)), self.0)))
            }
            Some(other) => Err(fields.wrong(name, "an object", &other)),
        }
    }

    fn schema(&self) -> Value {
        object(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &Table = &[
        &Field::required("id", Words(64)),
        &Field::new("flag", Flag),
        &Field::new("word", Choice(&[("a", 1_u8), ("b", 2)])),
        &Field::new("parts", Parts(&[&Field::new("speed", Tempo)])),
    ];

    #[test]
    fn an_object_is_described_as_it_is_read() {
        let described = json!({ "type": "object", "required": ["id"], "properties": {
            "id": { "type": "string", "maxLength": 64 },
            "flag": { "type": ["boolean", "null"] },
            "word": { "type": ["string", "null"], "enum": ["a", "b", null] },
            "parts": { "type": ["object", "null"], "properties": {
                "speed": { "type": ["number", "null"], "minimum": SPEED_MIN, "maximum": SPEED_MAX } } },
        } });
        assert_eq!(object(TABLE), described);
    }

    #[test]
    #[should_panic(expected = "no reference tells of it")]
    fn what_is_not_described_is_not_read() {
        let mut fields = Fields::of_message("{}", TABLE).expect("an object");
        let _never = fields.boolean("another");
    }
}
