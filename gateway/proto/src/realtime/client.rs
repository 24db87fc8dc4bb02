//! What each event of the client does.

use std::borrow::Cow;

use bytes::Bytes;
use contract::{CloneMode, Tick};
use serde::Deserialize;
use serde_json::{Value, json};

use super::conversation::text_of;
use super::response::{Asked, Cause, Outcome, Response};
use super::settings::{self, OWN};
use super::words::{Mistake, Words};
use super::{Realtime, conversation, used_up};
use crate::catalog::{CLONE_MODES, TRANSCRIPT_CHARACTERS_MAX};
use crate::dialect::Step;
use crate::wire::{
    AudioChoice, ClientMessage, ErrorObject, Open, ReferenceOpen, Unreadable, UsageFields, WireCodec,
    WireError,
};

/// Bytes of an event that carries no audio.
pub const EVENT_BYTES_MAX: usize = 262_144;
/// Characters one response may speak.
const TEXT_CHARACTERS_MAX: usize = 100_000;
/// Responses outside the conversation that may run at once.
const OUT_OF_BAND_MAX: usize = 4;

/// As much of an event as every one has, without making values of the rest.
#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    #[serde(borrow, default)]
    event_id: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    audio: Option<Cow<'a, str>>,
}

/// An event of the client, with what it answers to.
struct Asking<'a> {
    event: Value,
    event_id: Option<&'a str>,
}

impl Asking<'_> {
    fn text(&self, name: &str) -> Option<&str> {
        self.event[name].as_str()
    }
}

impl Realtime {
    pub(super) fn client_text(&mut self, now: Tick, text: &str, steps: &mut Vec<Step>) {
        let envelope: Envelope<'_> = match serde_json::from_str(text) {
            Ok(envelope) => envelope,
            Err(error) => {
                let what = if error.is_data() {
                    "an event has a type, and texts are strings"
                } else {
                    "it is not JSON"
                };
                let error = WireError::InvalidJson { at: error.column(), what };
                steps.push(Step::Unreadable(Box::new(Unreadable { id: None, error })));
                return;
            }
        };
        let event_id = envelope.event_id.as_deref().filter(|id| id.len() <= 512);
        let outcome = if envelope.kind == "input_audio_buffer.append" {
            self.append(now, envelope.audio.as_deref(), steps)
        } else if text.len() > EVENT_BYTES_MAX {
            let message = format!("an event without audio must be at most {EVENT_BYTES_MAX} bytes");
            Err(Mistake::new("event_too_large", message))
        } else {
            // The envelope skips over values that no value can be made of: half a surrogate pair, a number
            // beyond all bounds, too deep a nesting.
            match serde_json::from_str(text) {
                Ok(event) => self.client_event(&envelope.kind, &Asking { event, event_id }, steps),
                Err(error) => {
                    Err(Mistake::new("invalid_json", format!("this event cannot be read: {error}")))
                }
            }
        };
        if let Err(mistake) = outcome {
            Words { ids: &mut self.ids, steps }.refuse(&mistake, event_id);
        }
    }

    fn client_event(
        &mut self,
        kind: &str,
        asking: &Asking<'_>,
        steps: &mut Vec<Step>,
    ) -> Result<(), Mistake> {
        match kind {
            "session.update" => self.update(asking, steps),
            "conversation.item.create" => self.create_item(asking, steps),
            "conversation.item.delete" => self.delete_item(asking, steps),
            "conversation.item.retrieve" => self.retrieve_item(asking, steps),
            "conversation.item.truncate" => self.truncate_item(asking, steps),
            "input_audio_buffer.commit" => self.commit(asking, steps),
            "input_audio_buffer.clear" => {
                self.input.take();
                self.hearing.settle();
                Words { ids: &mut self.ids, steps }.say("input_audio_buffer.cleared", json!({}));
                Ok(())
            }
            "response.create" => self.create_response(asking, steps),
            "response.cancel" => self.cancel_response(asking, steps),
            // What is on its way to the listener is the listener's.
            "output_audio_buffer.clear" => Ok(()),
            _ => {
                let shown: String = kind.chars().filter(|c| !c.is_control()).take(64).collect();
                let message = format!("unknown event type {shown:?}");
                Err(Mistake::new("unknown_event", message).at("type"))
            }
        }
    }

    fn update(&mut self, asking: &Asking<'_>, steps: &mut Vec<Step>) -> Result<(), Mistake> {
        let Some(session) = asking.event["session"].as_object() else {
            return Err(Mistake::new("missing_required_parameter", "session must be an object").at("session"));
        };
        let before = self.settings.voice.clone();
        self.settings.update(session)?;
        if self.settings.voice != before {
            self.reference = None;
        }
        let session = self.settings.shown(&self.ids.session());
        Words { ids: &mut self.ids, steps }.say("session.updated", json!({ "session": session }));
        Ok(())
    }

    fn create_item(&mut self, asking: &Asking<'_>, steps: &mut Vec<Step>) -> Result<(), Mistake> {
        let fresh = self.ids.item();
        let previous = asking.text("previous_item_id");
        let (before, item) = self.conversation.create(&asking.event["item"], previous, fresh)?;
        let mut words = Words { ids: &mut self.ids, steps };
        for kind in ["conversation.item.added", "conversation.item.done"] {
            words.say(kind, json!({ "previous_item_id": before, "item": item }));
        }
        Ok(())
    }

    fn delete_item(&mut self, asking: &Asking<'_>, steps: &mut Vec<Step>) -> Result<(), Mistake> {
        let id = asking.text("item_id").unwrap_or_default();
        if !self.conversation.delete(id) {
            return Err(absent("item_delete_invalid_item_id"));
        }
        Words { ids: &mut self.ids, steps }.say("conversation.item.deleted", json!({ "item_id": id }));
        Ok(())
    }

    fn retrieve_item(&mut self, asking: &Asking<'_>, steps: &mut Vec<Step>) -> Result<(), Mistake> {
        let found = asking.text("item_id").and_then(|id| self.conversation.get(id));
        let item = found.cloned().ok_or_else(|| absent("item_retrieve_invalid_item_id"))?;
        Words { ids: &mut self.ids, steps }.say("conversation.item.retrieved", json!({ "item": item }));
        Ok(())
    }

    /// A playback report and, while the item is being made, a cancel too.
    fn truncate_item(&mut self, asking: &Asking<'_>, steps: &mut Vec<Step>) -> Result<(), Mistake> {
        let id = asking.text("item_id").unwrap_or_default();
        let content_index = asking.event["content_index"].as_u64().unwrap_or(0);
        let millis = asking.event["audio_end_ms"].as_f64().map_or(0, |millis| millis.max(0.0) as u64);
        let played = Some(millis.saturating_mul(48));
        let speaking = self.active.iter().find(|(_, response)| response.item == id).map(|(at, _)| *at);
        if let Some(context) = speaking {
            // Its end makes the entry that the answer is kept in.
            self.truncating = Some((context, content_index, millis));
            self.stop(context, Cause::Client, played, steps);
            return Ok(());
        }
        if let Some(spoken) = self.spoken.iter_mut().find(|spoken| spoken.item == id) {
            let context = spoken.context;
            spoken.truncating = Some((content_index, millis));
            if spoken.heard.is_some() {
                self.truncated(context, steps);
            } else {
                self.stop(context, Cause::Client, played, steps);
            }
            return Ok(());
        }
        // It was heard long ago: late, and no harm.
        let cut = self.conversation.truncate(id, None, millis);
        let millis = cut.ok_or_else(|| absent("item_truncate_invalid_item_id"))?;
        let event = json!({ "item_id": id, "content_index": content_index, "audio_end_ms": millis });
        Words { ids: &mut self.ids, steps }.say("conversation.item.truncated", event);
        Ok(())
    }

    fn commit(&mut self, asking: &Asking<'_>, steps: &mut Vec<Step>) -> Result<(), Mistake> {
        if self.input.is_empty() {
            let message = "the input audio buffer is empty: append audio before committing it";
            return Err(Mistake::new("input_audio_buffer_commit_empty", message));
        }
        let about = read_reference(&asking.event[OWN])?;
        let recording = self.input.take();
        if let Some(about) = about {
            let samples: Vec<u8> = recording.samples.iter().flat_map(|sample| sample.to_le_bytes()).collect();
            let about = ReferenceOpen { codec: WireCodec::Pcm, sample_rate: recording.rate_hz, ..about };
            self.reference = Some((about, Bytes::from(samples)));
        }
        self.hearing.settle();
        let id = self.hearing.item.take().unwrap_or_else(|| self.ids.item());
        self.committed(&id, steps);
        Ok(())
    }

    fn cancel_response(&mut self, asking: &Asking<'_>, steps: &mut Vec<Step>) -> Result<(), Mistake> {
        let named = asking.text("response_id");
        let found = self.active.iter().find(|(_, response)| match named {
            Some(id) => response.id == id,
            None => response.conversation.is_some(),
        });
        let Some((context, _)) = found else {
            let message = "Cancellation failed: no active response found";
            return Err(Mistake::new("response_cancel_not_active", message));
        };
        let context = *context;
        self.stop(context, Cause::Client, None, steps);
        Ok(())
    }

    fn create_response(&mut self, asking: &Asking<'_>, steps: &mut Vec<Step>) -> Result<(), Mistake> {
        let response = &asking.event["response"];
        let in_band = response["conversation"] != "none";
        let running = |responses: &std::collections::BTreeMap<u16, Response>| {
            responses.values().filter(|response| response.conversation.is_some() == in_band).count()
        };
        let running = running(&self.active) + running(&self.opening);
        if in_band && running > 0 {
            let message =
                "the conversation already has an active response: wait for response.done, or cancel it";
            return Err(Mistake::new("conversation_already_has_active_response", message));
        }
        if running >= OUT_OF_BAND_MAX {
            let message = format!("at most {OUT_OF_BAND_MAX} responses may run outside the conversation");
            return Err(Mistake::new("too_many_responses", message));
        }
        let asked = self.asked(response)?;
        let own = match response.get(OWN) {
            Some(own) => settings::read_own(own)?,
            None => self.settings.own.clone(),
        };
        let (source, text) = self.text_to_speak(response)?;
        if text.chars().count() > TEXT_CHARACTERS_MAX {
            let message = format!("a response speaks at most {TEXT_CHARACTERS_MAX} characters");
            return Err(Mistake::new("text_too_long", message).at("response.input"));
        }
        let Some(next) = self.next_context.checked_add(1) else {
            used_up(&mut Words { ids: &mut self.ids, steps });
            return Ok(());
        };
        let context = std::mem::replace(&mut self.next_context, next);
        self.hearing.idle_at = None;
        let ids = (self.ids.response(), self.ids.item());
        let conversation = in_band.then(|| self.ids.conversation());
        let event_id = asking.event_id.map(str::to_owned);
        let mut response = Response::new(ids, text, asked, conversation, event_id);
        response.source = source;
        if !response.asked.audio || !response.text.chars().any(char::is_alphanumeric) {
            return self.without_sound(response, steps);
        }
        let reference = self.reference.as_ref().map(|(about, _)| about.clone());
        let voice = Some(response.asked.voice.clone()).filter(|name| reference.is_none() && !name.is_empty());
        let open = Open {
            context,
            audio: Some(AudioChoice {
                codec: WireCodec::Pcm,
                sample_rate: Some(response.asked.format.rate_hz()),
                speed: self.settings.speed,
                ..AudioChoice::default()
            }),
            model: Some(self.settings.model().to_owned()),
            voice,
            reference,
            language: own.language,
            sampling: own.sampling,
            ..Open::default()
        };
        self.opening.insert(context, response);
        steps.push(Step::client(ClientMessage::Open(Box::new(open))));
        Ok(())
    }

    /// A response that is text alone, or has nothing to say.
    fn without_sound(&mut self, mut response: Response, steps: &mut Vec<Step>) -> Result<(), Mistake> {
        let outcome = if response.asked.audio {
            response.failed = Some(ErrorObject {
                kind: "invalid_request_error".to_owned(),
                code: "empty_text".to_owned(),
                message: "there is nothing to speak: create a user item with text first, or give \
                          response.input or response.instructions"
                    .to_owned(),
                param: None,
                retry_after_ms: None,
                request_id: String::new(),
            });
            Outcome::Failed
        } else {
            Outcome::Completed(UsageFields::default())
        };
        let mut words = Words { ids: &mut self.ids, steps };
        response.begin(&[], &mut self.conversation, &mut words);
        response.finish(outcome, &mut self.conversation, &mut words);
        Ok(())
    }

    fn asked(&self, response: &Value) -> Result<Asked, Mistake> {
        let output = &response["audio"]["output"];
        let given = |nested: &Value, beta: &str| {
            if nested.is_null() { response[beta].clone() } else { nested.clone() }
        };
        let modalities = given(&response["output_modalities"], "modalities");
        let modalities = if modalities.is_null() {
            self.settings.modalities.clone()
        } else {
            settings::modalities(&modalities)?
        };
        let voice = given(&output["voice"], "voice");
        let format = given(&output["format"], "output_audio_format");
        let max_output_tokens = response["max_output_tokens"].clone();
        Ok(Asked {
            audio: modalities == ["audio"],
            voice: if voice.is_null() { self.settings.voice.clone() } else { settings::voice(&voice)? },
            format: if format.is_null() {
                self.settings.output
            } else {
                settings::format(&format, "response.audio.output.format")?
            },
            metadata: response["metadata"].clone(),
            max_output_tokens: if max_output_tokens.is_null() { "inf".into() } else { max_output_tokens },
        })
    }

    /// The text of `input`; else the newest user's text that was not spoken, with the id of its item; else the
    /// instructions of this response alone.
    fn text_to_speak(&mut self, response: &Value) -> Result<(Option<String>, String), Mistake> {
        if let Some(input) = response["input"].as_array() {
            let mut texts = Vec::new();
            for item in input {
                texts.extend(match item["type"].as_str() {
                    Some("item_reference") => {
                        let id = item["id"].as_str().unwrap_or_default();
                        let found = self
                            .conversation
                            .get(id)
                            .ok_or_else(|| absent("item_reference_invalid_item_id"))?;
                        text_of(found)
                    }
                    _ => text_of(&conversation::normal(item, String::new())?),
                });
            }
            if !texts.is_empty() {
                return Ok((None, texts.join(" ")));
            }
        }
        if let Some((id, text)) = self.conversation.take_text() {
            return Ok((Some(id), text));
        }
        let instructions = response["instructions"].as_str().unwrap_or_default();
        // A known client puts the session's instructions before those of the response.
        let own = instructions.strip_prefix(self.settings.instructions.as_str()).unwrap_or(instructions);
        Ok((None, own.trim().to_owned()))
    }
}

fn absent(code: &'static str) -> Mistake {
    Mistake::new(code, "the conversation has no item with this id").at("item_id")
}

/// `voxlane: {reference: {transcript, mode}}` of a commit: the recording becomes the voice.
fn read_reference(own: &Value) -> Result<Option<ReferenceOpen>, Mistake> {
    let reference = &own["reference"];
    if reference.is_null() {
        return Ok(None);
    }
    let wrong = |message: &str| Err(Mistake::new("invalid_value", message).at("voxlane.reference"));
    let transcript = match &reference["transcript"] {
        Value::Null => None,
        Value::String(text) if text.len() <= TRANSCRIPT_CHARACTERS_MAX => Some(text.clone()),
        _ => return wrong("transcript must be a string of at most 2000 bytes"),
    };
    let mode: Option<CloneMode> = match &reference["mode"] {
        Value::Null => None,
        given => match CLONE_MODES.iter().find(|(name, _)| given == name) {
            Some((_, mode)) => Some(*mode),
            None => return wrong("mode must be in_context or speaker"),
        },
    };
    if !reference.is_object() {
        return wrong("reference must be an object");
    }
    Ok(Some(ReferenceOpen { transcript, mode, ..ReferenceOpen::default() }))
}
