//! The body of `POST /tts/sse`.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use contract::{Span, Usage};

use super::error::event;
use super::event::{Event, WordTimestamps};
use crate::alignment::Words;
use crate::body::{Body, Sound};
use crate::wire::ErrorObject;

/// Server-sent events, each with the context's id where the request gave one.
#[derive(Clone, Debug, Default)]
pub struct Events {
    context_id: Option<String>,
    /// Words under way, where times were asked for.
    words: Option<Words>,
}

impl Events {
    #[must_use]
    pub fn new(context_id: Option<String>, timestamps: bool) -> Self {
        Self { context_id, words: timestamps.then(Words::default) }
    }

    fn piece(&mut self, sound: &Sound, after: Span, last: bool) -> String {
        let mut out = String::new();
        let context_id = self.context_id.clone();
        if !sound.audio.is_empty() {
            let event = Event::Chunk {
                context_id: context_id.clone(),
                data: BASE64_STANDARD.encode(&sound.audio),
                done: false,
                status_code: 206,
                step_time: after.as_micros() as f64 / 1_000.0,
                flush_id: None,
            };
            out.push_str(&event.to_event());
        }
        let mut words = Vec::new();
        if let Some(open) = &mut self.words {
            open.push(&sound.times, &mut words);
            if last {
                open.finish(&mut words);
            }
        }
        if !words.is_empty() {
            let word_timestamps = WordTimestamps::new(words);
            let event = Event::Timestamps {
                context_id,
                done: false,
                status_code: 206,
                word_timestamps,
                flush_id: None,
            };
            out.push_str(&event.to_event());
        }
        out
    }
}

impl Body for Events {
    fn media_type(&self) -> &'static str {
        "text/event-stream"
    }

    fn takes_times(&self) -> bool {
        self.words.is_some()
    }

    fn sound(&mut self, sound: Sound, after: Span) -> Bytes {
        self.piece(&sound, after, false).into()
    }

    fn end(&mut self, rest: Sound, _usage: &Usage, after: Span) -> Bytes {
        let mut out = self.piece(&rest, after, true);
        let done = Event::Done { context_id: self.context_id.clone(), done: true, status_code: 200 };
        out.push_str(&done.to_event());
        out.into()
    }

    fn broken(&mut self, error: ErrorObject) -> Option<Bytes> {
        Some(event(self.context_id.clone(), 500, &error).to_event().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alignment::TimedCharacter;

    #[test]
    fn events_carry_sound_words_and_the_end() {
        let mut body = Events::new(Some("c".to_owned()), true);
        let times = "Hi yo".chars().zip(0..).map(|(character, at)| TimedCharacter {
            character,
            start: at * 4_800,
            end: (at + 1) * 4_800,
        });
        let sound = Sound { audio: Bytes::from_static(b"abc"), times: times.collect() };
        let said = body.sound(sound, Span::from_millis(2));
        let said = std::str::from_utf8(&said).expect("UTF-8");
        assert!(said.starts_with("event: chunk\ndata: {"), "{said}");
        let data: Vec<serde_json::Value> = said
            .lines()
            .filter_map(|line| line.strip_prefix("data: "))
            .map(|line| serde_json::from_str(line).expect("JSON"))
            .collect();
        assert_eq!((&data[0]["data"], &data[0]["step_time"]), (&"YWJj".into(), &2.0.into()));
        assert_eq!(data[1]["word_timestamps"]["words"], serde_json::json!(["Hi"]));
        let end = body.end(Sound::default(), &Usage::default(), Span::ZERO);
        let end = std::str::from_utf8(&end).expect("UTF-8");
        assert!(end.contains("\"words\":[\"yo\"],\"start\":[0.3],\"end\":[0.5]"), "{end}");
        assert!(end.ends_with(
            "data: {\"type\":\"done\",\"context_id\":\"c\",\"done\":true,\"status_code\":200}\n\n"
        ));
    }
}
