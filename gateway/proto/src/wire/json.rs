//! A strict JSON reader for bytes from a peer: bounded depth and size, no key twice, finite numbers,
//! and lone surrogate escapes kept apart where a string was cut between the halves of a pair.
//!
//! `serde_json` refuses every lone surrogate, keeps the last of two equal keys, and recurses to 128
//! levels, so the rules of docs/protocol.md section 2 cannot be had from it. RFC 8259 is the grammar.

use super::WireError;

/// Deepest nesting of arrays and objects.
pub const DEPTH_MAX: usize = 16;
/// Most keys of one object. No message has nearly as many.
const KEYS_MAX: usize = 64;
/// Most values in one message.
const VALUES_MAX: usize = 8_192;

/// One JSON value.
#[derive(Clone, Debug, PartialEq)]
pub enum Json {
    Array(Vec<Json>),
    Bool(bool),
    /// A number without fraction or exponent that fits.
    Integer(i64),
    Null,
    /// Any other number; finite.
    Number(f64),
    /// In the order written; keys differ.
    Object(Vec<(String, Json)>),
    String(Text),
}

/// A string that may begin with the second half of a surrogate pair and end with a first half.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Text {
    /// A low surrogate (`DC00..=DFFF`) before `body`.
    pub lead: Option<u16>,
    pub body: String,
    /// A high surrogate (`D800..=DBFF`) after `body`.
    pub trail: Option<u16>,
}

impl Text {
    /// The string, when no half hangs over either end.
    #[must_use]
    pub fn whole(self) -> Option<String> {
        (self.lead.is_none() && self.trail.is_none()).then_some(self.body)
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lead.is_none() && self.trail.is_none() && self.body.is_empty()
    }
}

impl From<&str> for Text {
    fn from(body: &str) -> Self {
        Self { lead: None, body: body.to_owned(), trail: None }
    }
}

impl Json {
    /// Reads one value and nothing after it. The caller bounds the length of `input`.
    ///
    /// # Errors
    /// [`WireError::InvalidJson`], [`WireError::JsonTooDeep`], [`WireError::DuplicateField`],
    /// [`WireError::LoneSurrogate`].
    pub fn parse(input: &str) -> Result<Self, WireError> {
        let mut reader = Reader { bytes: input.as_bytes(), text: input, at: 0, values: 0 };
        reader.skip_space();
        let value = reader.value(0)?;
        reader.skip_space();
        if reader.at < reader.bytes.len() {
            return Err(reader.invalid("something follows the object"));
        }
        Ok(value)
    }

    /// What the value is, for error texts.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Array(_) => "an array",
            Self::Bool(_) => "a boolean",
            Self::Integer(_) | Self::Number(_) => "a number",
            Self::Null => "null",
            Self::Object(_) => "an object",
            Self::String(_) => "a string",
        }
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    text: &'a str,
    at: usize,
    values: usize,
}

impl Reader<'_> {
    fn invalid(&self, what: &'static str) -> WireError {
        WireError::InvalidJson { at: self.at, what }
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn expect(&mut self, byte: u8, what: &'static str) -> Result<(), WireError> {
        if self.peek() != Some(byte) {
            return Err(self.invalid(what));
        }
        self.at += 1;
        Ok(())
    }

    fn value(&mut self, depth: usize) -> Result<Json, WireError> {
        self.values += 1;
        if self.values > VALUES_MAX {
            return Err(self.invalid("more values than any message has"));
        }
        match self.peek() {
            Some(b'{') => self.object(depth + 1),
            Some(b'[') => self.array(depth + 1),
            Some(b'"') => Ok(Json::String(self.string()?)),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(b't') => self.literal("true", Json::Bool(true)),
            Some(b'f') => self.literal("false", Json::Bool(false)),
            Some(b'n') => self.literal("null", Json::Null),
            Some(_) => Err(self.invalid("a value was expected")),
            None => Err(self.invalid("the message ends too early")),
        }
    }

    fn literal(&mut self, word: &'static str, value: Json) -> Result<Json, WireError> {
        if !self.bytes[self.at..].starts_with(word.as_bytes()) {
            return Err(self.invalid("a value was expected"));
        }
        self.at += word.len();
        Ok(value)
    }

    fn object(&mut self, depth: usize) -> Result<Json, WireError> {
        if depth > DEPTH_MAX {
            return Err(WireError::JsonTooDeep);
        }
        self.at += 1;
        let mut entries: Vec<(String, Json)> = Vec::new();
        self.skip_space();
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(Json::Object(entries));
        }
        loop {
            self.skip_space();
            if self.peek() != Some(b'"') {
                return Err(self.invalid("a field name in quotes was expected"));
            }
            let key = self
                .string()?
                .whole()
                .ok_or(WireError::LoneSurrogate { param: "a field name".to_owned(), sequence: None })?;
            if entries.iter().any(|(known, _)| *known == key) {
                return Err(WireError::DuplicateField { field: super::error::shown(&key) });
            }
            if entries.len() == KEYS_MAX {
                return Err(self.invalid("more fields than any message has"));
            }
            self.skip_space();
            self.expect(b':', "a colon was expected after the field name")?;
            self.skip_space();
            let value = self.value(depth)?;
            entries.push((key, value));
            self.skip_space();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b'}') => {
                    self.at += 1;
                    return Ok(Json::Object(entries));
                }
                _ => return Err(self.invalid("a comma or } was expected")),
            }
        }
    }

    fn array(&mut self, depth: usize) -> Result<Json, WireError> {
        if depth > DEPTH_MAX {
            return Err(WireError::JsonTooDeep);
        }
        self.at += 1;
        let mut items = Vec::new();
        self.skip_space();
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(Json::Array(items));
        }
        loop {
            self.skip_space();
            items.push(self.value(depth)?);
            self.skip_space();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b']') => {
                    self.at += 1;
                    return Ok(Json::Array(items));
                }
                _ => return Err(self.invalid("a comma or ] was expected")),
            }
        }
    }

    fn digits(&mut self) -> Result<(), WireError> {
        if !matches!(self.peek(), Some(b'0'..=b'9')) {
            return Err(self.invalid("a digit was expected"));
        }
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        Ok(())
    }

    fn number(&mut self) -> Result<Json, WireError> {
        let start = self.at;
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        if self.peek() == Some(b'0') {
            self.at += 1;
        } else {
            self.digits()?;
        }
        let mut integer = true;
        if self.peek() == Some(b'.') {
            integer = false;
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            integer = false;
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        let written = &self.text[start..self.at];
        if integer && let Ok(value) = written.parse::<i64>() {
            return Ok(Json::Integer(value));
        }
        match written.parse::<f64>() {
            Ok(value) if value.is_finite() => Ok(Json::Number(value)),
            _ => Err(self.invalid("a number is too large")),
        }
    }

    fn string(&mut self) -> Result<Text, WireError> {
        self.at += 1;
        let mut text = Text::default();
        loop {
            let start = self.at;
            while !matches!(self.peek(), None | Some(b'"' | b'\\' | 0..=0x1F)) {
                self.at += 1;
            }
            if self.at > start {
                self.whole_so_far(&text)?;
                // Both ends stand beside ASCII bytes or the input's ends, so they are char borders.
                text.body.push_str(&self.text[start..self.at]);
            }
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(text);
                }
                Some(b'\\') => {
                    self.at += 1;
                    self.escape(&mut text)?;
                }
                Some(_) => return Err(self.invalid("control characters in a string must be escaped")),
                None => return Err(self.invalid("a string does not end")),
            }
        }
    }

    /// A first half that something else than its second half follows stands alone.
    fn whole_so_far(&self, text: &Text) -> Result<(), WireError> {
        match text.trail {
            None => Ok(()),
            Some(_) => Err(WireError::LoneSurrogate { param: "a string".to_owned(), sequence: None }),
        }
    }

    fn escape(&mut self, text: &mut Text) -> Result<(), WireError> {
        let plain = match self.peek() {
            Some(b'"') => '"',
            Some(b'\\') => '\\',
            Some(b'/') => '/',
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => {
                self.at += 1;
                let unit = self.hex()?;
                return self.unit(unit, text);
            }
            _ => return Err(self.invalid("an unknown escape")),
        };
        self.at += 1;
        self.whole_so_far(text)?;
        text.body.push(plain);
        Ok(())
    }

    fn hex(&mut self) -> Result<u16, WireError> {
        let mut unit = 0_u16;
        for _ in 0..4 {
            let digit = match self.peek() {
                Some(byte @ b'0'..=b'9') => byte - b'0',
                Some(byte @ b'a'..=b'f') => byte - b'a' + 10,
                Some(byte @ b'A'..=b'F') => byte - b'A' + 10,
                _ => return Err(self.invalid("four hexadecimal digits were expected")),
            };
            unit = unit << 4 | u16::from(digit);
            self.at += 1;
        }
        Ok(unit)
    }

    fn unit(&self, unit: u16, text: &mut Text) -> Result<(), WireError> {
        if let Some(high) = text.trail {
            let joined = join(high, unit)
                .ok_or(WireError::LoneSurrogate { param: "a string".to_owned(), sequence: None })?;
            text.trail = None;
            text.body.push(joined);
            return Ok(());
        }
        match unit {
            0xD800..=0xDBFF => text.trail = Some(unit),
            0xDC00..=0xDFFF if text.is_empty() => text.lead = Some(unit),
            _ => text.body.push(
                char::from_u32(u32::from(unit))
                    .ok_or(WireError::LoneSurrogate { param: "a string".to_owned(), sequence: None })?,
            ),
        }
        Ok(())
    }
}

/// The character two surrogate halves make, if they are a pair.
#[must_use]
pub fn join(high: u16, low: u16) -> Option<char> {
    match (high, low) {
        (0xD800..=0xDBFF, 0xDC00..=0xDFFF) => {
            char::from_u32(0x1_0000 + (u32::from(high - 0xD800) << 10 | u32::from(low - 0xDC00)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(input: &str) -> Text {
        match Json::parse(input).unwrap() {
            Json::String(text) => text,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_pair_of_escapes_becomes_one_character() {
        assert_eq!(text(r#""a\ud83d\ude00b""#).whole().unwrap(), "a\u{1F600}b");
    }

    #[test]
    fn halves_are_kept_only_at_the_ends() {
        let cut = text(r#""\ude00 then \ud83d""#);
        assert_eq!((cut.lead, cut.trail), (Some(0xDE00), Some(0xD83D)));
        assert_eq!(cut.body, " then ");
        for bad in [r#""a\ude00""#, r#""\ud83da""#, r#""\ud83d\ud83d""#, r#""\ud83d\n""#, r#""\ude00\ude00""#]
        {
            assert!(matches!(Json::parse(bad), Err(WireError::LoneSurrogate { .. })), "{bad}");
        }
    }

    #[test]
    fn nesting_is_refused_at_seventeen_levels_and_taken_at_sixteen() {
        let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        assert!(Json::parse(&nested(16)).is_ok());
        assert_eq!(Json::parse(&nested(17)), Err(WireError::JsonTooDeep));
        assert_eq!(Json::parse(&"[".repeat(200_000)), Err(WireError::JsonTooDeep));
    }

    #[test]
    fn a_key_given_twice_is_refused_even_when_spelt_with_escapes() {
        assert!(matches!(Json::parse(r#"{"a":1,"\u0061":2}"#), Err(WireError::DuplicateField { .. })));
    }

    #[test]
    fn numbers_that_are_not_finite_cannot_be_written() {
        for bad in ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", "01", "1.", ".5", "+1", "0x10", "1e"] {
            assert!(matches!(Json::parse(bad), Err(WireError::InvalidJson { .. })), "{bad}");
        }
        assert_eq!(Json::parse("-0.5e1"), Ok(Json::Number(-5.0)));
        assert_eq!(Json::parse("9007199254740991"), Ok(Json::Integer(9_007_199_254_740_991)));
    }
}
