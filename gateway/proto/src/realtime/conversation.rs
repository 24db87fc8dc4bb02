//! The conversation's items: kept, shown, deleted. Bounded: the oldest make room, as they do where a
//! model's context is full.

use std::collections::VecDeque;

use serde_json::{Map, Value, json};

use super::words::Mistake;
use crate::wire::Heard;

const ITEMS_MAX: usize = 1_000;
/// Bytes of all items as JSON.
const BYTES_MAX: usize = 4 * 1_024 * 1_024;
const ID_BYTES_MAX: usize = 256;

/// The items, in their order.
#[derive(Clone, Debug, Default)]
pub(super) struct Conversation {
    items: VecDeque<Item>,
    bytes: usize,
}

#[derive(Clone, Debug)]
struct Item {
    id: String,
    shown: Value,
    bytes: usize,
    /// A response has spoken it.
    spoken: bool,
    /// Milliseconds of its sound, where it is a response's.
    sound_ms: Option<u64>,
}

impl Conversation {
    /// Puts an item in its place. `fresh` is its id when the client gave none. Answers with the id of the
    /// item before it, and the item as it is shown.
    pub(super) fn create(
        &mut self,
        given: &Value,
        previous: Option<&str>,
        fresh: String,
    ) -> Result<(Option<String>, Value), Mistake> {
        let item = normal(given, fresh)?;
        let id = item["id"].as_str().unwrap_or_default().to_owned();
        if self.find(&id).is_some() {
            let message = format!("the conversation already has an item with the id {id:?}");
            return Err(Mistake::new("item_create_duplicate_item_id", message).at("item.id"));
        }
        let at = match previous {
            None => self.items.len(),
            Some("root") => 0,
            Some(previous) => match self.find(previous) {
                Some(at) => at + 1,
                None => {
                    let message = format!("the conversation has no item with the id {previous:?}");
                    return Err(
                        Mistake::new("item_create_invalid_previous_item_id", message).at("previous_item_id")
                    );
                }
            },
        };
        let before = at.checked_sub(1).and_then(|at| self.items.get(at)).map(|item| item.id.clone());
        self.insert(at, id, item.clone());
        Ok((before, item))
    }

    /// Appends an item of the server's own; answers with the id of the item before it.
    pub(super) fn append(&mut self, item: &Value) -> Option<String> {
        let before = self.last();
        let id = item["id"].as_str().unwrap_or_default().to_owned();
        self.insert(self.items.len(), id, item.clone());
        before
    }

    pub(super) fn last(&self) -> Option<String> {
        self.items.back().map(|item| item.id.clone())
    }

    /// Id of the item before this one.
    pub(super) fn before(&self, id: &str) -> Option<String> {
        let at = self.find(id)?.checked_sub(1)?;
        self.items.get(at).map(|item| item.id.clone())
    }

    pub(super) fn get(&self, id: &str) -> Option<&Value> {
        self.find(id).and_then(|at| self.items.get(at)).map(|item| &item.shown)
    }

    /// Shows an item anew, if it is still there.
    pub(super) fn replace(&mut self, id: &str, shown: Value) {
        if let Some(item) = self.find(id).and_then(|at| self.items.get_mut(at)) {
            let bytes = shown.to_string().len();
            self.bytes = self.bytes - item.bytes + bytes;
            item.bytes = bytes;
            item.shown = shown;
        }
    }

    /// An item has sounded for this long.
    pub(super) fn sounded(&mut self, id: &str, millis: u64) {
        if let Some(item) = self.find(id).and_then(|at| self.items.get_mut(at)) {
            item.sound_ms = Some(millis);
        }
    }

    /// An item was heard up to `millis` of its sound, and keeps the text up to there; what was cut before stays cut.
    /// `heard` is what its response knows of it, while it is kept. Gives the milliseconds that the item keeps; `None`
    /// without the item.
    pub(super) fn truncate(&mut self, id: &str, heard: Option<&Heard>, millis: u64) -> Option<u64> {
        let item = self.find(id).and_then(|at| self.items.get_mut(at))?;
        let Some(all) = item.sound_ms else { return Some(0) };
        let kept = millis.min(all);
        item.sound_ms = Some(kept);
        let mut shown = item.shown.clone();
        for part in shown["content"].as_array_mut().into_iter().flatten() {
            if let (true, Some(transcript)) = (part["type"] == "output_audio", part["transcript"].as_str()) {
                let (text, all) = heard.map_or((transcript, all), |heard| {
                    (heard.text.as_str(), super::response::millis(heard.samples))
                });
                part["transcript"] = heard_by(text, all, kept).into();
            }
        }
        self.replace(id, shown);
        Some(kept)
    }

    /// Whether it was there.
    pub(super) fn delete(&mut self, id: &str) -> bool {
        let found = self.find(id).and_then(|at| self.items.remove(at));
        self.bytes -= found.as_ref().map_or(0, |item| item.bytes);
        found.is_some()
    }

    /// Id and text of the newest user's text, if no response has spoken it; it counts as spoken from now on.
    pub(super) fn take_text(&mut self) -> Option<(String, String)> {
        let newest = self
            .items
            .iter_mut()
            .rev()
            .find(|item| item.shown["role"] == "user" && text_of(&item.shown).is_some())?;
        if std::mem::replace(&mut newest.spoken, true) {
            return None;
        }
        text_of(&newest.shown).map(|text| (newest.id.clone(), text))
    }

    /// The response that took a text has not spoken it, and another may.
    pub(super) fn give_back(&mut self, id: &str) {
        if let Some(item) = self.find(id).and_then(|at| self.items.get_mut(at)) {
            item.spoken = false;
        }
    }

    fn find(&self, id: &str) -> Option<usize> {
        self.items.iter().position(|item| item.id == id)
    }

    fn insert(&mut self, at: usize, id: String, shown: Value) {
        let bytes = shown.to_string().len();
        self.bytes += bytes;
        self.items.insert(at, Item { id, shown, bytes, spoken: false, sound_ms: None });
        while self.items.len() > ITEMS_MAX || (self.bytes > BYTES_MAX && self.items.len() > 1) {
            let oldest = self.items.pop_front();
            self.bytes -= oldest.map_or(0, |item| item.bytes);
        }
    }
}

/// What of a text that sounds for `all` milliseconds had sounded by then, cut at a word's end: the listener knows
/// better than an estimate.
fn heard_by(text: &str, all: u64, millis: u64) -> &str {
    let all = all.max(1);
    if millis >= all {
        return text;
    }
    let characters = text.chars().count() as u64 * millis / all;
    let at = text.char_indices().nth(usize::try_from(characters).unwrap_or(usize::MAX));
    let cut = &text[..at.map_or(text.len(), |(at, _)| at)];
    cut.rfind(char::is_whitespace).map_or("", |end| &cut[..end])
}

/// What an item says in text: its parts, joined.
pub(super) fn text_of(item: &Value) -> Option<String> {
    let parts = item["content"].as_array()?;
    let texts: Vec<&str> = parts.iter().filter_map(|part| part["text"].as_str()).collect();
    (!texts.is_empty()).then(|| texts.concat())
}

/// The item as it is kept and shown: with an id, a status, today's names of parts, and without audio.
pub(super) fn normal(given: &Value, fresh: String) -> Result<Value, Mistake> {
    let invalid = |message: &str, param| Err(Mistake::new("invalid_value", message).at(param));
    let Some(given) = given.as_object() else { return invalid("item must be an object", "item") };
    let id = match given.get("id") {
        None | Some(Value::Null) => fresh,
        Some(Value::String(id)) if (1..=ID_BYTES_MAX).contains(&id.len()) => id.clone(),
        Some(_) => return invalid("item.id must be a string of 1 to 256 bytes", "item.id"),
    };
    let mut item = Map::new();
    item.insert("id".to_owned(), id.into());
    item.insert("object".to_owned(), "realtime.item".into());
    item.insert("status".to_owned(), "completed".into());
    let kind = given.get("type").and_then(Value::as_str).unwrap_or_default();
    item.insert("type".to_owned(), kind.into());
    match kind {
        "message" => {
            let role = given.get("role").and_then(Value::as_str).unwrap_or_default();
            if !["assistant", "system", "user"].contains(&role) {
                return invalid("item.role must be user, assistant or system", "item.role");
            }
            let Some(parts) = given.get("content").and_then(Value::as_array) else {
                return invalid("item.content must be a list of parts", "item.content");
            };
            let parts: Option<Vec<Value>> = parts.iter().map(|part| normal_part(role, part)).collect();
            let Some(parts) = parts else {
                return invalid(
                    "a part must be input_text, input_audio, input_image, output_text or output_audio",
                    "item.content",
                );
            };
            item.insert("role".to_owned(), role.into());
            item.insert("content".to_owned(), parts.into());
        }
        "function_call" | "function_call_output" => {
            for name in ["arguments", "call_id", "name", "output"] {
                if let Some(text) = given.get(name).filter(|value| value.is_string()) {
                    item.insert(name.to_owned(), text.clone());
                }
            }
        }
        _ => {
            let message = "item.type must be message, function_call or function_call_output";
            return invalid(message, "item.type");
        }
    }
    Ok(Value::Object(item))
}

fn normal_part(role: &str, part: &Value) -> Option<Value> {
    let text = part.get("text").and_then(Value::as_str);
    let transcript = part.get("transcript").and_then(Value::as_str);
    Some(match (part.get("type")?.as_str()?, role) {
        ("input_text", _) => json!({ "type": "input_text", "text": text? }),
        ("text" | "output_text", "assistant") => json!({ "type": "output_text", "text": text? }),
        // A parser of a known client demands the key, if only as null.
        ("input_audio", _) => json!({ "type": "input_audio", "transcript": transcript }),
        ("audio" | "output_audio", "assistant") => {
            json!({ "type": "output_audio", "transcript": transcript.unwrap_or_default() })
        }
        ("input_image", "user") => json!({ "type": "input_image" }),
        _ => return None,
    })
}
