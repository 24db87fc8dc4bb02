//! OpenAI Realtime (GA) as a [`Dialect`]: docs/realtime.md says what of it there is.
//!
//! A response is a context of the session. A `tts` model speaks its input word for word: the newest text
//! of the user's that no response has spoken, or what `response.create` brings along.
//!
//! Known clients validate every event strictly, and some end their loop on an error. So no private event is
//! ever sent, harmless mistakes are clamped, and what only this server knows travels in an extra field,
//! `voxlane`.

mod client;
mod conversation;
mod events;
mod fuzz;
mod hearing;
mod input;
mod level;
mod response;
mod settings;
mod sounding;
mod turns;
mod words;

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use contract::{Epoch, Layout, ModelInfo, Tick};
use serde_json::{Map, Value, json};

use crate::dialect::{Dialect, Event, Manner, Step};
use crate::quota::Level;
use crate::wire::{
    Cancel, ClientMessage, CloseCode, ContextRef, End, ErrorMessage, ErrorObject, Flags, Header, Heard,
    PacketKind, Ready, ReferenceOpen, ServerMessage, Text, TextAppend,
};
pub use client::EVENT_BYTES_MAX;
pub use events::{CLIENT_EVENTS, SERVER_EVENTS};
pub(crate) use fuzz::message;
pub use settings::{EAGERNESS, TURN_MS_MAX};
pub use words::Mistake;

use conversation::Conversation;
use hearing::Hearing;
use input::Input;
use response::{Cause, Outcome, Response};
use settings::Settings;
use words::{Ids, Words, kind_of};

/// The subprotocol that browsers offer, and that is selected.
pub const SUBPROTOCOL: &str = "realtime";
/// Longest message of a client: 15 MiB of audio, and what stands around it.
pub const MESSAGE_BYTES_MAX: usize = 16 * 1_024 * 1_024;

/// Finished responses whose sound a listener may still have: as many as the session remembers.
const SPOKEN_MAX: usize = 8;

/// One client of the protocol.
#[derive(Debug)]
pub struct Realtime {
    start: Start,
    ids: Ids,
    settings: Settings,
    conversation: Conversation,
    input: Input,
    hearing: Hearing,
    /// Speaks the next responses in place of the voice: a committed recording.
    reference: Option<(ReferenceOpen, Bytes)>,
    next_context: u16,
    /// Asked for, and the session has not answered.
    opening: BTreeMap<u16, Response>,
    active: BTreeMap<u16, Response>,
    /// The newest last.
    spoken: VecDeque<Spoken>,
    /// `(context, content_index, audio_end_ms)` of a truncation that stops a response.
    truncating: Option<(u16, u64, u64)>,
    /// Told with each response that begins.
    quotas: Vec<Level>,
}

/// What the connection says before its first message.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Start {
    /// `?model=`.
    pub model: Option<String>,
    /// Settings that came with the credential.
    pub session: Option<Map<String, Value>>,
}

/// A response's sound, while a truncation may come for it.
#[derive(Debug)]
struct Spoken {
    item: String,
    context: u16,
    /// 48 kHz samples sent.
    sent: u64,
    /// What was heard, once it has been asked.
    heard: Option<Heard>,
    /// `(content_index, audio_end_ms)` of a truncation that waits for what was heard.
    truncating: Option<(u64, u64)>,
}

impl Realtime {
    #[must_use]
    pub fn new(start: Start) -> Self {
        Self {
            start,
            ids: Ids::default(),
            settings: Settings::new(String::new(), String::new()),
            conversation: Conversation::default(),
            input: Input::default(),
            hearing: Hearing::default(),
            reference: None,
            next_context: 1,
            opening: BTreeMap::new(),
            active: BTreeMap::new(),
            spoken: VecDeque::new(),
            truncating: None,
            quotas: Vec::new(),
        }
    }

    /// An error event for a client that never gets a session.
    #[must_use]
    pub fn refusal(error: &ErrorObject) -> String {
        let mut steps = Vec::new();
        Words { ids: &mut Ids::new(&error.request_id), steps: &mut steps }.fail(error, None);
        match steps.pop() {
            Some(Step::Text(text)) => text,
            _ => String::new(),
        }
    }

    /// The settings that a session of this model begins with once it was given these, whole, as its events show
    /// them under `id`.
    ///
    /// # Errors
    /// What is wrong with them, as `session.update` would say it.
    pub fn settings(
        model: &ModelInfo,
        id: &str,
        given: Option<&Map<String, Value>>,
    ) -> Result<Value, Mistake> {
        let voice = model.default_voice.and_then(|at| model.voices.get(at)).map(|voice| voice.name.clone());
        let mut settings = Settings::new(model.name.clone(), voice.unwrap_or_default());
        given.map_or(Ok(()), |given| settings.update(given))?;
        Ok(settings.shown(id))
    }

    fn ready(&mut self, ready: &Ready, steps: &mut Vec<Step>) {
        self.ids = Ids::new(&ready.session);
        let model = self.start.model.clone().or_else(|| ready.default_model.clone()).unwrap_or_default();
        let known = ready.models.iter().find(|known| known.name == model);
        let voice = known.or(ready.models.first()).and_then(|known| known.default_voice.clone());
        self.settings = Settings::new(model, voice.unwrap_or_default());
        let given = self.start.session.take();
        let mistake = given.and_then(|session| self.settings.update(&session).err());
        let session = self.settings.shown(&self.ids.session());
        let mut words = Words { ids: &mut self.ids, steps };
        words.say("session.created", json!({ "session": session }));
        if let Some(mistake) = mistake {
            words.refuse(&mistake, None);
        }
    }

    /// The session has a context for a response: it begins, and its text goes in whole.
    fn opened(&mut self, context: u16, steps: &mut Vec<Step>) {
        let Some(response) = self.opening.remove(&context) else { return };
        response.begin(&self.quotas, &mut self.conversation, &mut Words { ids: &mut self.ids, steps });
        let text = TextAppend { context, epoch: None, sequence: 1, text: Text::from(response.text.as_str()) };
        steps.push(Step::client(ClientMessage::TextAppend(text)));
        steps.push(Step::client(ClientMessage::TextEnd(ContextRef { context, epoch: None })));
        if let Some((_, samples)) = &self.reference {
            let header = Header {
                kind: PacketKind::Pcm,
                flags: Flags::END,
                context,
                sequence: 1,
                timestamp: 0,
                duration: 0,
                epoch: Epoch(0),
            };
            steps.push(Step::Audio { header, payload: samples.clone() });
        }
        self.active.insert(context, response);
    }

    fn packet(&mut self, now: Tick, header: &Header, payload: &Bytes, steps: &mut Vec<Step>) {
        if let Some(response) = self.active.get_mut(&header.context)
            && header.kind == PacketKind::Pcm
        {
            response.began.get_or_insert(now);
            response.gather(payload, header.duration, &mut Words { ids: &mut self.ids, steps });
        }
    }

    fn settle(&mut self, steps: &mut Vec<Step>) {
        for response in self.active.values_mut() {
            response.settle(&mut Words { ids: &mut self.ids, steps });
        }
    }

    fn end(&mut self, now: Tick, end: &End, steps: &mut Vec<Step>) {
        let outcome = match end.reason.as_str() {
            "done" => Outcome::Completed(end.usage),
            "capped" => Outcome::Capped(end.usage),
            "cancelled" => Outcome::Cancelled(None),
            _ => Outcome::Failed,
        };
        self.finish(now, end.context, outcome, steps);
    }

    fn finish(&mut self, now: Tick, context: u16, outcome: Outcome, steps: &mut Vec<Step>) {
        let Some(response) = self.active.remove(&context) else { return };
        let (item, sent) = (response.item.clone(), response.sent);
        let failed = response.failed.as_ref().filter(|_| matches!(outcome, Outcome::Failed));
        if response.began.is_none()
            && let Some(source) = &response.source
            && failed.is_some_and(|error| kind_of(error) != "invalid_request_error")
        {
            // The text was not at fault, and nothing of it was heard.
            self.conversation.give_back(source);
        }
        if response.conversation.is_some() {
            self.await_user(now, &response, &outcome);
        }
        let heard = match &outcome {
            Outcome::Cancelled(heard) => heard.clone(),
            Outcome::Failed => {
                Some(Heard { text: response.told().to_owned(), samples: sent, ..Heard::default() })
            }
            Outcome::Capped(_) | Outcome::Completed(_) => None,
        };
        response.finish(outcome, &mut self.conversation, &mut Words { ids: &mut self.ids, steps });
        while self.spoken.len() >= SPOKEN_MAX {
            self.spoken.pop_front();
        }
        let truncating = self.truncating.take_if(|(stopped, ..)| *stopped == context);
        let truncating = truncating.map(|(_, content_index, millis)| (content_index, millis));
        self.spoken.push_back(Spoken { item, context, sent, heard, truncating });
    }

    /// The session has stopped a context, and says what was heard of it.
    fn cancelled(&mut self, now: Tick, context: u16, heard: &Heard, steps: &mut Vec<Step>) {
        steps.push(Step::Forget { context });
        self.finish(now, context, Outcome::Cancelled(Some(heard.clone())), steps);
        if let Some(spoken) = self.spoken.iter_mut().find(|spoken| spoken.context == context) {
            spoken.heard = Some(heard.clone());
            self.truncated(context, steps);
        }
    }

    /// Answers a truncation, once what was heard is known.
    fn truncated(&mut self, context: u16, steps: &mut Vec<Step>) {
        let Some(spoken) = self.spoken.iter_mut().find(|spoken| spoken.context == context) else { return };
        let Some((content_index, asked)) = spoken.truncating.take() else { return };
        let millis = asked.min(response::millis(spoken.sent));
        let cut = self.conversation.truncate(&spoken.item, spoken.heard.as_ref(), millis);
        let millis = cut.unwrap_or(millis);
        let event = json!({ "item_id": spoken.item, "content_index": content_index, "audio_end_ms": millis });
        Words { ids: &mut self.ids, steps }.say("conversation.item.truncated", event);
    }

    fn error(&mut self, message: &ErrorMessage, steps: &mut Vec<Step>) {
        let mut words = Words { ids: &mut self.ids, steps };
        let Some(context) = message.context else {
            return words.fail(&message.error, message.id.as_deref());
        };
        if let Some(mut refused) = self.opening.remove(&context) {
            if let Some(source) = &refused.source {
                self.conversation.give_back(source);
            }
            if kind_of(&message.error) == "rate_limit_error" {
                // As the service itself does it. An error would end a known client's loop, and a response
                // that has failed is one it may ask for again.
                refused.failed = Some(message.error.clone());
                refused.begin(&self.quotas, &mut self.conversation, &mut words);
                refused.finish(Outcome::Failed, &mut self.conversation, &mut words);
            } else {
                words.fail(&message.error, refused.event_id.as_deref());
            }
        } else if let Some(response) = self.active.get_mut(&context) {
            response.failed = Some(message.error.clone());
        } else {
            // The session has forgotten what a truncation names: it is answered with what is known.
            self.truncated(context, steps);
        }
    }

    /// Stops a response; the session's answer finishes it.
    fn stop(&mut self, context: u16, cause: Cause, played: Option<u64>, steps: &mut Vec<Step>) {
        if let Some(response) = self.active.get_mut(&context) {
            response.cause = cause;
        }
        steps.push(Step::client(ClientMessage::Cancel(Cancel { context, epoch: None, played })));
    }
}

impl Dialect for Realtime {
    fn manner(&self) -> Manner {
        // All of a response's text is there at once, as it is over HTTP.
        Manner { layouts: [Layout::Whole, Layout::Streamed], times: true, resumes: false }
    }

    fn handle_text(&mut self, now: Tick, text: &str, steps: &mut Vec<Step>) {
        self.client_text(now, text, steps);
    }

    fn handle_binary(&mut self, _now: Tick, _bytes: &[u8], steps: &mut Vec<Step>) {
        let mistake =
            words::Mistake::new("invalid_event", "events are text messages; audio stands in them as base64");
        Words { ids: &mut self.ids, steps }.refuse(&mistake, None);
    }

    fn handle_timeout(&mut self, now: Tick, steps: &mut Vec<Step>) {
        self.idle(now, steps);
    }

    fn poll_timeout(&self) -> Tick {
        self.hearing.idle_at.unwrap_or(Tick::NEVER)
    }

    fn handle_event(&mut self, now: Tick, event: &Event<'_>, steps: &mut Vec<Step>) {
        match event {
            Event::Packet { header, payload } => self.packet(now, header, payload, steps),
            Event::Settled => self.settle(steps),
            Event::Times { context, characters } => {
                if let Some(response) = self.active.get_mut(context) {
                    response.tell(characters, &mut Words { ids: &mut self.ids, steps });
                }
            }
            Event::Quotas(levels) => self.quotas = levels.to_vec(),
            // These responses are never flushed.
            Event::FlushSpoken { .. } => {}
            Event::Message(message) => match message {
                ServerMessage::Ready(ready) => self.ready(ready, steps),
                ServerMessage::Opened(opened) => self.opened(opened.context, steps),
                ServerMessage::Cancelled { context, heard, .. } => {
                    self.cancelled(now, *context, heard, steps)
                }
                ServerMessage::End(end) => self.end(now, end, steps),
                ServerMessage::Error(error) => self.error(error, steps),
                // A drain shows in its Close; the rest tells of what the client did not ask.
                ServerMessage::Chunk(_)
                | ServerMessage::Goaway { .. }
                | ServerMessage::Pong { .. }
                | ServerMessage::Resumed { .. }
                | ServerMessage::TextAck { .. }
                | ServerMessage::TextFlushed { .. }
                | ServerMessage::TextReleased { .. }
                | ServerMessage::TextSpoken(_)
                | ServerMessage::Unknown => {}
            },
        }
    }
}

/// Closes when context ids have run out: they grow, and are 16 bits wide.
fn used_up(words: &mut Words<'_>) {
    let mistake =
        words::Mistake::new("session_expired", "this session has made 65,535 responses; open another");
    words.refuse(&mistake, None);
    words.steps.push(Step::Close(CloseCode::Done));
}
