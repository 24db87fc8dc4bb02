//! Bodies with times: one JSON document, or one a line.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use contract::{Span, Usage};
use serde::Serialize;

use super::alignment::Seconds;
use crate::body::{Body, Sound};
use crate::wire::ErrorObject;

/// `.../stream/with-timestamps`: a line for each piece of the sound, with the characters that begin in it.
/// Times count from the beginning of the sound.
#[derive(Clone, Copy, Debug)]
pub struct TimedLines;

/// `.../with-timestamps`: one document. The sound leaves as it is made; its times wait for its end.
#[derive(Clone, Debug, Default)]
pub struct TimedDocument {
    begun: bool,
    /// Bytes that are no whole base64 group yet.
    rest: Vec<u8>,
    times: Seconds,
}

#[derive(Serialize)]
struct Line<'a> {
    audio_base64: String,
    alignment: &'a Option<Seconds>,
    normalized_alignment: &'a Option<Seconds>,
}

impl TimedLines {
    fn line(sound: &Sound) -> Bytes {
        if sound.audio.is_empty() && sound.times.is_empty() {
            return Bytes::new();
        }
        // Text is spoken as it is written, so both alignments are the same.
        let times = &Seconds::new(&sound.times);
        let audio_base64 = BASE64_STANDARD.encode(&sound.audio);
        (json(&Line { audio_base64, alignment: times, normalized_alignment: times }) + "\n").into()
    }
}

impl Body for TimedLines {
    fn media_type(&self) -> &'static str {
        "application/x-ndjson"
    }

    fn takes_times(&self) -> bool {
        true
    }

    fn sound(&mut self, sound: Sound, _after: Span) -> Bytes {
        Self::line(&sound)
    }

    fn end(&mut self, rest: Sound, _usage: &Usage, _after: Span) -> Bytes {
        Self::line(&rest)
    }

    fn broken(&mut self, _error: ErrorObject) -> Option<Bytes> {
        None
    }
}

impl TimedDocument {
    fn push(&mut self, sound: &Sound, last: bool) -> String {
        self.times.extend(&sound.times);
        self.rest.extend_from_slice(&sound.audio);
        let mut out = String::new();
        if !self.begun {
            self.begun = true;
            out.push_str("{\"audio_base64\":\"");
        }
        // Groups of three bytes join without padding between them.
        let whole = if last { self.rest.len() } else { self.rest.len() / 3 * 3 };
        BASE64_STANDARD.encode_string(&self.rest[..whole], &mut out);
        self.rest.drain(..whole);
        out
    }
}

impl Body for TimedDocument {
    fn media_type(&self) -> &'static str {
        "application/json"
    }

    fn takes_times(&self) -> bool {
        true
    }

    fn sound(&mut self, sound: Sound, _after: Span) -> Bytes {
        self.push(&sound, false).into()
    }

    fn end(&mut self, rest: Sound, _usage: &Usage, _after: Span) -> Bytes {
        let times = |times: &Seconds| json(times);
        let sound = self.push(&rest, true);
        let times = times(&self.times);
        format!("{sound}\",\"alignment\":{times},\"normalized_alignment\":{times}}}").into()
    }

    fn broken(&mut self, _error: ErrorObject) -> Option<Bytes> {
        None
    }
}

fn json<T: Serialize>(value: &T) -> String {
    // Only maps with keys that are no strings can fail, and there are none.
    serde_json::to_string(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::alignment::TimedCharacter;

    fn sound(audio: &'static [u8], characters: &str, at: u64) -> Sound {
        let times = characters.chars().zip(at..).map(|(character, at)| TimedCharacter {
            character,
            start: at * 4_800,
            end: at * 4_800 + 2_400,
        });
        Sound { audio: Bytes::from_static(audio), times: times.collect() }
    }

    #[test]
    fn a_document_is_one_json_object_however_the_sound_comes() {
        let mut body = TimedDocument::default();
        let mut whole = Vec::new();
        for part in [sound(b"abcd", "H", 0), sound(b"", "", 0), sound(b"efg", "i\"", 1)] {
            whole.extend_from_slice(&body.sound(part, Span::ZERO));
        }
        whole.extend_from_slice(&body.end(sound(b"h", "", 0), &Usage::default(), Span::ZERO));
        let json: Value = serde_json::from_slice(&whole).expect("one object");
        assert_eq!(json["audio_base64"], "YWJjZGVmZ2g=");
        assert_eq!(json["alignment"]["characters"], serde_json::json!(["H", "i", "\""]));
        assert_eq!(json["alignment"]["character_start_times_seconds"][1], 0.1);
        assert_eq!(json["alignment"]["character_end_times_seconds"][2], 0.25);
        assert_eq!(json["alignment"], json["normalized_alignment"]);
    }

    #[test]
    fn a_line_is_one_object_and_nothing_is_no_line() {
        let line = TimedLines.sound(sound(b"abc", "", 0), Span::ZERO);
        let json: Value = serde_json::from_slice(line.strip_suffix(b"\n").expect("a line")).expect("JSON");
        assert_eq!((&json["audio_base64"], &json["alignment"]), (&"YWJj".into(), &Value::Null));
        assert!(TimedLines.sound(Sound::default(), Span::ZERO).is_empty());
    }
}
