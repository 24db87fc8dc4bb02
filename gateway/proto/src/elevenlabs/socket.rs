//! The sockets `stream-input` and `multi-stream-input` as a [`Dialect`].

use contract::{Layout, Tick};

use super::error::code;
use super::message::{ClientMessage, ServerMessage};
use super::{Alignment, Contexts, Options};
use crate::dialect::{Dialect, Event, Manner, Step};
use crate::named::{self, Gatherer, Named, Speaker, binary, ended_unspoken, unreadable};
use crate::speech::SpeechReference;
use crate::wire::{CloseCode, ErrorMessage, Open, ServerMessage as Said, Speed, Text, WireError};

/// The name of the one context of `stream-input`.
const ONLY: &str = "";

/// Speaks with clients of ElevenLabs' sockets.
#[derive(Debug)]
pub struct Socket {
    options: Options,
    contexts: Named<Context>,
    /// The client wants the socket closed when everything has been spoken.
    closing: bool,
}

#[derive(Debug)]
struct Context {
    speaker: Speaker,
    /// Known once the session has opened it.
    gatherer: Option<Gatherer>,
    /// Where the last character ended that the client was told of, in 48 kHz samples.
    told: u64,
}

impl Socket {
    #[must_use]
    pub const fn new(options: Options) -> Self {
        Self { options, contexts: Named::new(), closing: false }
    }

    fn message(&mut self, message: ClientMessage, steps: &mut Vec<Step>) {
        let one = self.options.contexts == Contexts::One;
        if message.close_socket {
            return self.close_socket(steps);
        }
        let name = match message.context_id {
            _ if one => ONLY.to_owned(),
            Some(name) => name,
            // It keeps the connection, as every message does.
            None => return,
        };
        if message.close_context {
            return self.close_context(&name, steps);
        }
        match message.text {
            Some(text) if !text.is_empty() => {
                let known = self.contexts.get_mut(&name).is_some();
                if known || self.open(&name, message.speed, message.reference, steps) {
                    self.append(&name, text, message.flush, steps);
                }
            }
            Some(_) if one => self.end_only(steps),
            other => {
                let Some(context) = self.contexts.get_mut(&name) else { return };
                match (message.flush, other) {
                    (true, _) => context.speaker.flush(steps),
                    (false, Some(_)) => context.speaker.touch(steps),
                    (false, None) => {}
                }
            }
        }
    }

    fn append(&mut self, name: &str, text: Text, flush: bool, steps: &mut Vec<Step>) {
        let auto = self.options.auto_mode;
        if let Some(context) = self.contexts.get_mut(name) {
            context.speaker.append(text, steps);
            if flush || (auto && context.speaker.unflushed) {
                context.speaker.flush(steps);
            }
        }
    }

    /// False when there is no context now. When the socket has had as many as it can number it closes, and
    /// clients come again.
    fn open(
        &mut self,
        name: &str,
        speed: Speed,
        clip: Option<Result<SpeechReference, WireError>>,
        steps: &mut Vec<Step>,
    ) -> bool {
        let clip = match clip.transpose() {
            Ok(clip) => clip,
            Err(error) => {
                unreadable((self.shown(name), error), steps);
                return false;
            }
        };
        let Some(number) = self.contexts.next_number() else {
            steps.push(Step::Close(CloseCode::Restart));
            return false;
        };
        let ask = &self.options.ask;
        let open = Open {
            context: number,
            audio: Some(self.options.format.choice(speed)),
            model: ask.model.clone(),
            voice: ask.voice.clone(),
            language: ask.language.clone(),
            sampling: ask.sampling,
            normalize: ask.normalize,
            ..Open::default()
        };
        if let Err(error) = named::open(open, clip, steps) {
            unreadable((self.shown(name), error), steps);
            return false;
        }
        let context = Context { speaker: Speaker::new(number), gatherer: None, told: 0 };
        self.contexts.insert(name, number, context);
        true
    }

    /// The text of `stream-input` has ended.
    fn end_only(&mut self, steps: &mut Vec<Step>) {
        let speaks = self.contexts.get_mut(ONLY).is_some_and(|context| context.speaker.end(steps));
        if !speaks {
            self.say_final(ONLY, steps);
            steps.push(Step::Close(CloseCode::Done));
        }
    }

    /// What was flushed is spoken to its end. Text that was not is a turn broken off: such a context ends at
    /// once, and so does one that is closed a second time.
    fn close_context(&mut self, name: &str, steps: &mut Vec<Step>) {
        let Some(context) = self.contexts.get_mut(name) else { return };
        let speaker = &mut context.speaker;
        if speaker.ended || speaker.unflushed || !speaker.end(steps) {
            let number = speaker.number;
            self.forget(number, steps);
        }
    }

    fn close_socket(&mut self, steps: &mut Vec<Step>) {
        self.closing = true;
        let mut silent = Vec::new();
        for (_, context) in self.contexts.iter_mut() {
            if !context.speaker.end(steps) {
                silent.push(context.speaker.number);
            }
        }
        for number in silent {
            self.forget(number, steps);
        }
        self.close_if_done(steps);
    }

    /// Cancels a context, and tells its end.
    fn forget(&mut self, number: u16, steps: &mut Vec<Step>) {
        if let Some((name, _)) = self.contexts.remove(number) {
            steps.push(Step::Forget { context: number });
            self.say_final(&name, steps);
            self.close_if_done(steps);
        }
    }

    fn close_if_done(&self, steps: &mut Vec<Step>) {
        if self.closing && self.contexts.is_empty() {
            steps.push(Step::Close(CloseCode::Done));
        }
    }

    fn say_final(&self, name: &str, steps: &mut Vec<Step>) {
        let message = ServerMessage::Final { is_final: true, context_id: self.shown(name) };
        steps.push(Step::Text(message.to_json()));
    }

    /// The context's id as messages carry it.
    fn shown(&self, name: &str) -> Option<String> {
        (self.options.contexts == Contexts::Many).then(|| name.to_owned())
    }

    fn said(&mut self, message: &Said, steps: &mut Vec<Step>) {
        match message {
            Said::Opened(opened) => {
                let encoding = self.options.format.speech_format().encoding();
                if let Some((_, context)) = self.contexts.numbered(opened.context) {
                    let serial = u32::from(opened.context);
                    context.gatherer = Some(Gatherer::new(encoding, serial, opened.audio.pre_skip));
                }
            }
            Said::End(end) => self.ended(end.context, steps),
            Said::Error(error) => match ended_unspoken(error) {
                Some(number) => self.ended(number, steps),
                None => self.failed(error, steps),
            },
            _ => {}
        }
    }

    fn ended(&mut self, number: u16, steps: &mut Vec<Step>) {
        self.write(number, true, steps);
        if let Some((name, _)) = self.contexts.remove(number) {
            self.say_final(&name, steps);
            if self.options.contexts == Contexts::One {
                steps.push(Step::Close(CloseCode::Done));
            }
            self.close_if_done(steps);
        }
    }

    /// A context that something went wrong with ends: its client cannot send the same again.
    fn failed(&mut self, said: &ErrorMessage, steps: &mut Vec<Step>) {
        let Some(name) = self.contexts.failed(said) else { return };
        let error = &said.error;
        let message = ServerMessage::Error {
            error: error.message.clone(),
            message: error.message.clone(),
            code: code(&error.code).to_owned(),
            context_id: name.filter(|_| self.options.contexts == Contexts::Many),
        };
        steps.push(Step::Text(message.to_json()));
        if self.options.contexts == Contexts::One {
            let overloaded = error.kind == "overloaded_error";
            steps.push(Step::Close(if overloaded { CloseCode::Overload } else { CloseCode::Policy }));
        } else if let Some(number) = said.context {
            self.forget(number, steps);
        }
    }

    /// Writes what was gathered of a context; characters alone wait for more sound, or for the end.
    fn write(&mut self, number: u16, last: bool, steps: &mut Vec<Step>) {
        let sync = self.options.sync_alignment;
        let many = self.options.contexts == Contexts::Many;
        let Some((name, context)) = self.contexts.numbered(number) else { return };
        let Some(gatherer) = &mut context.gatherer else { return };
        let speaks = gatherer.has_sound() || (last && !gatherer.times.is_empty());
        if !speaks {
            return;
        }
        let times = std::mem::take(&mut gatherer.times);
        // Clients that ask for no sync add the messages' times up: each begins where the last one ended.
        let alignment = Alignment::new(&times, if sync { 0 } else { context.told });
        context.told = times.last().map_or(context.told, |last| last.end);
        let message = ServerMessage::Audio {
            audio: gatherer.take().unwrap_or_default(),
            is_final: None,
            // Text is spoken as it is written.
            normalized_alignment: alignment.clone(),
            alignment,
            context_id: many.then(|| name.to_owned()),
        };
        steps.push(Step::Text(message.to_json()));
    }
}

impl Dialect for Socket {
    fn manner(&self) -> Manner {
        Manner { layouts: [Layout::Streamed, Layout::Whole], times: true, resumes: false }
    }

    fn handle_text(&mut self, _now: Tick, text: &str, steps: &mut Vec<Step>) {
        match ClientMessage::decode(text) {
            Ok(message) => self.message(message, steps),
            Err(error) => unreadable(error, steps),
        }
    }

    fn handle_binary(&mut self, _now: Tick, _bytes: &[u8], steps: &mut Vec<Step>) {
        unreadable(binary(), steps);
    }

    fn handle_event(&mut self, _now: Tick, event: &Event<'_>, steps: &mut Vec<Step>) {
        match event {
            Event::Message(message) => self.said(message, steps),
            Event::Packet { header, payload } => {
                let context = self.contexts.numbered(header.context);
                let gatherer = context.and_then(|(_, context)| context.gatherer.as_mut());
                if gatherer.is_some_and(|gatherer| gatherer.packet(header, payload)) {
                    self.write(header.context, false, steps);
                }
            }
            Event::Settled => {
                for number in self.contexts.numbers() {
                    self.write(number, false, steps);
                }
            }
            Event::Times { context, characters } => {
                let context = self.contexts.numbered(*context);
                if let Some(gatherer) = context.and_then(|(_, context)| context.gatherer.as_mut()) {
                    gatherer.times.extend_from_slice(characters);
                }
            }
            Event::FlushSpoken { .. } | Event::Quotas(_) => {}
        }
    }
}
