//! One response: its events in the order clients rely on, from `response.created` to `response.done`.

use contract::Tick;
use serde_json::{Value, json};

use super::conversation::Conversation;
use super::settings::Format;
use super::words::{Words, kind_of};
use crate::alignment::TimedCharacter;
use crate::quota::{Counted, Level};
use crate::wire::{CLOCK_HZ, ErrorObject, Heard, UsageFields};

/// Sound gathered for one event: 100 ms of 16-bit samples at most.
const EVENTS_PER_SECOND: usize = 10;

/// A response from its creation to its end.
#[derive(Clone, Debug)]
pub(super) struct Response {
    pub(super) id: String,
    pub(super) item: String,
    /// What it speaks, word for word.
    pub(super) text: String,
    /// The item whose text it is, where the conversation's newest was taken.
    pub(super) source: Option<String>,
    pub(super) asked: Asked,
    /// The conversation's id, unless it is out of band.
    pub(super) conversation: Option<String>,
    /// `event_id` of the `response.create`.
    pub(super) event_id: Option<String>,
    /// Bytes of the text that its transcript has told.
    told: usize,
    /// Bytes of the text whose time is known.
    timed: usize,
    /// Where the word sounds that is not told yet, in 48 kHz samples.
    word_start: Option<u64>,
    /// 16-bit samples that wait for the next event.
    gathered: Vec<u8>,
    /// 48 kHz samples put into events or gathered.
    pub(super) sent: u64,
    /// When its first sound left.
    pub(super) began: Option<Tick>,
    /// Why it is being cancelled.
    pub(super) cause: Cause,
    /// The error that ends it.
    pub(super) failed: Option<ErrorObject>,
}

/// What `response.create` asks, over the session's settings.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) audio: bool,
    pub(super) voice: String,
    pub(super) format: Format,
    pub(super) metadata: Value,
    pub(super) max_output_tokens: Value,
}

/// Who stopped it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Cause {
    #[default]
    Client,
    /// Somebody began to speak.
    Turn,
}

/// How it ended.
#[derive(Clone, Debug)]
pub(super) enum Outcome {
    Cancelled(Option<Heard>),
    Capped(UsageFields),
    Completed(UsageFields),
    Failed,
}

impl Response {
    pub(super) fn new(
        (id, item): (String, String),
        text: String,
        asked: Asked,
        conversation: Option<String>,
        event_id: Option<String>,
    ) -> Self {
        Self {
            id,
            item,
            text,
            source: None,
            asked,
            conversation,
            event_id,
            told: 0,
            timed: 0,
            word_start: None,
            gathered: Vec::new(),
            sent: 0,
            began: None,
            cause: Cause::Client,
            failed: None,
        }
    }

    /// Everything before the first sound.
    pub(super) fn begin(&self, quotas: &[Level], conversation: &mut Conversation, words: &mut Words<'_>) {
        words.say(
            "response.created",
            json!({ "response": self.shown("in_progress", Value::Null, &[], None) }),
        );
        if !quotas.is_empty() {
            words.say("rate_limits.updated", json!({ "rate_limits": rate_limits(quotas) }));
        }
        let item = self.item("in_progress", &[]);
        words.say(
            "response.output_item.added",
            json!({ "response_id": self.id, "output_index": 0, "item": item }),
        );
        if self.conversation.is_some() {
            let before = conversation.append(&item);
            words.say("conversation.item.added", json!({ "previous_item_id": before, "item": item }));
        }
        let part = if self.asked.audio {
            json!({ "type": "audio", "transcript": "" })
        } else {
            json!({ "type": "text", "text": "" })
        };
        words.say("response.content_part.added", self.placed(json!({ "part": part })));
        if !self.asked.audio {
            words.say("response.output_text.delta", self.placed(json!({ "delta": self.text })));
        }
    }

    /// The next characters of the text, and when they sound: words leave when they are whole, each with its
    /// time. Characters may come one at a time.
    pub(super) fn tell(&mut self, characters: &[TimedCharacter], words: &mut Words<'_>) {
        for timed in characters {
            let mut rest = self.text[self.timed..].chars();
            let Some(character) = rest.next() else { return };
            self.word_start.get_or_insert(timed.start);
            self.timed += character.len_utf8();
            let whole = character.is_whitespace() || rest.next().is_none();
            if whole && let Some(start) = self.word_start.take() {
                // Where LiveKit's client finds it, a time makes timed words of a transcript.
                self.transcript(self.timed, Some(start as f64 / f64::from(CLOCK_HZ)), words);
            }
        }
    }

    /// The transcript goes on up to byte `end` of the text.
    fn transcript(&mut self, end: usize, start: Option<f64>, words: &mut Words<'_>) {
        let mut delta = json!({ "delta": self.text[self.told..end] });
        if let Some(start) = start {
            delta["start_time"] = start.into();
        }
        self.told = end;
        words.say("response.output_audio_transcript.delta", self.placed(delta));
    }

    /// One packet of 16-bit samples; `duration` of them at 48 kHz.
    pub(super) fn gather(&mut self, payload: &[u8], duration: u16, words: &mut Words<'_>) {
        self.gathered.extend_from_slice(payload);
        self.sent += u64::from(duration);
        if self.gathered.len() >= self.asked.format.rate_hz() as usize * 2 / EVENTS_PER_SECOND {
            self.settle(words);
        }
    }

    /// What was gathered leaves.
    pub(super) fn settle(&mut self, words: &mut Words<'_>) {
        if !self.gathered.is_empty() {
            let delta = self.asked.format.encode(&self.gathered);
            self.gathered.clear();
            words.say("response.output_audio.delta", self.placed(json!({ "delta": delta })));
        }
    }

    /// Everything after the last sound.
    pub(super) fn finish(mut self, outcome: Outcome, conversation: &mut Conversation, words: &mut Words<'_>) {
        match outcome {
            // Sound of a cancelled response is late by definition.
            Outcome::Cancelled(_) => self.gathered.clear(),
            _ => self.settle(words),
        }
        let whole = matches!(outcome, Outcome::Capped(_) | Outcome::Completed(_));
        if self.asked.audio && whole && self.told < self.text.len() {
            self.transcript(self.text.len(), None, words);
        }
        let (status, details, usage) = match &outcome {
            Outcome::Cancelled(_) => {
                let reason = match self.cause {
                    Cause::Client => "client_cancelled",
                    Cause::Turn => "turn_detected",
                };
                ("cancelled", json!({ "type": "cancelled", "reason": reason }), None)
            }
            Outcome::Capped(usage) => {
                ("incomplete", json!({ "type": "incomplete", "reason": "max_output_tokens" }), Some(usage))
            }
            Outcome::Completed(usage) => ("completed", Value::Null, Some(usage)),
            Outcome::Failed => {
                let error = self.failed.as_ref().map(
                    |error| json!({ "type": kind_of(error), "code": error.code, "message": error.message }),
                );
                ("failed", json!({ "type": "failed", "error": error }), None)
            }
        };
        let item_status = if status == "completed" { "completed" } else { "incomplete" };
        let transcript = match &outcome {
            Outcome::Cancelled(Some(heard)) => heard.text.clone(),
            Outcome::Cancelled(None) | Outcome::Failed => self.told().to_owned(),
            Outcome::Capped(_) | Outcome::Completed(_) => self.text.clone(),
        };
        let (part, content) = self.content(&transcript);
        if self.asked.audio {
            words.say("response.output_audio.done", self.placed(json!({})));
            words.say(
                "response.output_audio_transcript.done",
                self.placed(json!({ "transcript": transcript })),
            );
        } else {
            words.say("response.output_text.done", self.placed(json!({ "text": transcript })));
        }
        words.say("response.content_part.done", self.placed(json!({ "part": part })));
        let item = self.item(item_status, &[content]);
        if self.conversation.is_some() {
            let before = conversation.before(&self.item);
            conversation.replace(&self.item, item.clone());
            conversation.sounded(&self.item, millis(self.sent));
            words.say("conversation.item.done", json!({ "previous_item_id": before, "item": item }));
        }
        words.say(
            "response.output_item.done",
            json!({ "response_id": self.id, "output_index": 0, "item": item }),
        );
        let response = self.shown(status, details, &[item], usage);
        words.say("response.done", json!({ "response": response }));
    }

    /// What the transcript has told so far.
    pub(super) fn told(&self) -> &str {
        &self.text[..self.told]
    }

    fn content(&self, transcript: &str) -> (Value, Value) {
        if self.asked.audio {
            (
                json!({ "type": "audio", "transcript": transcript }),
                json!({ "type": "output_audio", "transcript": transcript }),
            )
        } else {
            (
                json!({ "type": "text", "text": transcript }),
                json!({ "type": "output_text", "text": transcript }),
            )
        }
    }

    fn item(&self, status: &str, content: &[Value]) -> Value {
        json!({
            "id": self.item, "object": "realtime.item", "type": "message", "status": status,
            "role": "assistant", "content": content,
        })
    }

    /// `fields` with the place of this response's only part.
    fn placed(&self, mut fields: Value) -> Value {
        fields["response_id"] = self.id.clone().into();
        fields["item_id"] = self.item.clone().into();
        fields["output_index"] = 0.into();
        fields["content_index"] = 0.into();
        fields
    }

    fn shown(&self, status: &str, details: Value, output: &[Value], usage: Option<&UsageFields>) -> Value {
        let mut response = json!({
            "id": self.id,
            "object": "realtime.response",
            "status": status,
            "status_details": details,
            "output": output,
            "conversation_id": self.conversation,
            "output_modalities": [if self.asked.audio { "audio" } else { "text" }],
            "max_output_tokens": self.asked.max_output_tokens,
            "metadata": self.asked.metadata,
            "audio": { "output": { "format": self.asked.format.shown(), "voice": self.asked.voice } },
        });
        // A parser of a known client takes an absent usage, and no null.
        if let Some(usage) = usage {
            response["usage"] = tokens(usage);
        }
        response
    }
}

/// The protocol knows two names; a character counts as a token.
fn rate_limits(quotas: &[Level]) -> Vec<Value> {
    let shown = quotas.iter().map(|level| {
        let name = match level.counted {
            Counted::Requests => "requests",
            Counted::Characters => "tokens",
        };
        let reset = level.reset.as_micros() as f64 / 1e6;
        json!({ "name": name, "limit": level.limit, "remaining": level.remaining, "reset_seconds": reset })
    });
    shown.collect()
}

/// Text ids in, codec frames out.
fn tokens(usage: &UsageFields) -> Value {
    json!({
        "input_tokens": usage.text_ids,
        "output_tokens": usage.frames,
        "total_tokens": usage.text_ids + usage.frames,
        "input_token_details": { "text_tokens": usage.text_ids, "audio_tokens": 0, "cached_tokens": 0 },
        "output_token_details": { "text_tokens": 0, "audio_tokens": usage.frames },
    })
}

/// 48 kHz samples as whole milliseconds.
pub(super) fn millis(samples: u64) -> u64 {
    samples.saturating_mul(1_000) / u64::from(CLOCK_HZ)
}
