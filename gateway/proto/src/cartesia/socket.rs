//! The socket `/tts/websocket` as a [`Dialect`].

use std::collections::VecDeque;

use contract::{Layout, Span, Tick};

use super::error;
use super::event::{Event as Out, WordTimestamps};
use super::message::{ClientMessage, Generate, Said};
use crate::alignment::Words;
use crate::dialect::{Dialect, Event, Manner, Step};
use crate::named::{self, Gatherer, Named, Speaker, binary, ended_unspoken, unreadable};
use crate::wire::{CloseCode, ErrorMessage, Open, ServerMessage, WireError};

/// Flushes of one context that may wait to be spoken.
const FLUSHES_MAX: usize = 256;

/// Speaks with clients of Cartesia's socket.
#[derive(Debug)]
pub struct Socket {
    contexts: Named<Context>,
}

#[derive(Debug)]
struct Context {
    speaker: Speaker,
    gatherer: Gatherer,
    /// Where times were asked for.
    words: Option<Words>,
    /// When its first text came.
    began: Tick,
    /// When text that waits for more is spoken without.
    due: Tick,
    /// Flushes under way, in order: the ones that the client asked for have a number.
    flushes: VecDeque<Option<u32>>,
    /// Flushes that the client has asked for, and been told the end of.
    asked: u32,
    done: u32,
}

impl Default for Socket {
    fn default() -> Self {
        Self { contexts: Named::new() }
    }
}

impl Socket {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn generate(&mut self, now: Tick, name: String, mut generate: Generate, steps: &mut Vec<Step>) {
        match self.contexts.get_mut(&name) {
            // The end of a context that has ended, or that never spoke.
            None if generate.is_blank() && !generate.more => return say_done(Some(name), steps),
            Some(context) if context.speaker.ended && generate.is_blank() => return,
            Some(context) if context.speaker.ended => {
                let error = WireError::ContextEnded { context: context.speaker.number, epoch: 0 };
                return unreadable((Some(name), error), steps);
            }
            Some(_) => {}
            None => {
                if let Err(error) = self.open(now, &name, &mut generate, steps) {
                    return unreadable((Some(name), error), steps);
                }
            }
        }
        let Some(context) = self.contexts.get_mut(&name) else { return };
        let number = context.speaker.number;
        context.speaker.append(generate.transcript, steps);
        if generate.flush && !context.flush(&name, steps) {
            let bound = format!("at most {FLUSHES_MAX} times under way");
            let error = WireError::FieldOutOfRange { param: "flush".to_owned(), bound };
            self.forget(number, steps);
            return unreadable((Some(name), error), steps);
        }
        if !generate.more {
            context.due = Tick::NEVER;
            if !context.speaker.end(steps) {
                self.forget(number, steps);
                say_done(Some(name), steps);
            }
        } else if context.speaker.unflushed {
            context.due = now + generate.delay;
            if generate.delay == Span::ZERO {
                context.flush_unasked(steps);
            }
        }
    }

    /// Opens a context; when all numbers have been used the socket closes, and clients come again.
    fn open(
        &mut self,
        now: Tick,
        name: &str,
        generate: &mut Generate,
        steps: &mut Vec<Step>,
    ) -> Result<(), WireError> {
        let opening = generate.opening()?;
        let Some(number) = self.contexts.next_number() else {
            steps.push(Step::Close(CloseCode::Restart));
            return Ok(());
        };
        let ask = opening.ask;
        let open = Open {
            context: number,
            audio: Some(opening.audio),
            model: ask.model,
            voice: ask.voice,
            language: ask.language,
            sampling: ask.sampling,
            ..Open::default()
        };
        named::open(open, opening.reference, steps)?;
        let context = Context {
            speaker: Speaker::new(number),
            gatherer: Gatherer::new(Some(opening.encoding), 0, 0),
            words: opening.timestamps.then(Words::default),
            began: now,
            due: Tick::NEVER,
            flushes: VecDeque::new(),
            asked: 0,
            done: 0,
        };
        self.contexts.insert(name, number, context);
        Ok(())
    }

    /// Nothing follows, not even `done`: a client that has let go of a context takes that for the end of
    /// another.
    fn cancel(&mut self, name: &str, steps: &mut Vec<Step>) {
        if let Some(context) = self.contexts.get_mut(name) {
            let number = context.speaker.number;
            self.forget(number, steps);
        }
    }

    fn forget(&mut self, number: u16, steps: &mut Vec<Step>) {
        if self.contexts.remove(number).is_some() {
            steps.push(Step::Forget { context: number });
        }
    }

    fn said(&mut self, now: Tick, message: &ServerMessage, steps: &mut Vec<Step>) {
        match message {
            ServerMessage::End(end) => self.ended(now, end.context, steps),
            ServerMessage::Error(error) => match ended_unspoken(error) {
                Some(number) => self.ended(now, number, steps),
                None => self.failed(error, steps),
            },
            _ => {}
        }
    }

    fn ended(&mut self, now: Tick, number: u16, steps: &mut Vec<Step>) {
        self.write(now, number, true, steps);
        if let Some((name, _)) = self.contexts.remove(number) {
            say_done(Some(name), steps);
        }
    }

    /// A context that something went wrong with ends: its client cannot send the same again.
    fn failed(&mut self, said: &ErrorMessage, steps: &mut Vec<Step>) {
        let Some(name) = self.contexts.failed(said) else { return };
        // One client reads the context's id whatever the message is.
        let name = Some(name.unwrap_or_default());
        steps.push(Step::Text(error::event(name, &said.error).to_json()));
        if let Some(number) = said.context {
            self.forget(number, steps);
        }
    }

    fn flush_spoken(&mut self, now: Tick, number: u16, steps: &mut Vec<Step>) {
        self.write(now, number, false, steps);
        let Some((name, context)) = self.contexts.numbered(number) else { return };
        if let Some(Some(flush_id)) = context.flushes.pop_front() {
            context.done = flush_id;
            say_flush_done(name, flush_id, steps);
        }
    }

    /// Writes what was gathered of a context; at its end also the last word.
    fn write(&mut self, now: Tick, number: u16, last: bool, steps: &mut Vec<Step>) {
        let Some((name, context)) = self.contexts.numbered(number) else { return };
        let flush_id = (context.asked > 0).then_some(context.done + 1);
        if let Some(data) = context.gatherer.take() {
            let event = Out::Chunk {
                context_id: Some(name.to_owned()),
                data,
                done: false,
                status_code: 206,
                step_time: now.since(context.began).as_micros() as f64 / 1_000.0,
                flush_id,
            };
            steps.push(Step::Text(event.to_json()));
        }
        let times = std::mem::take(&mut context.gatherer.times);
        let mut words = Vec::new();
        if let Some(open) = &mut context.words {
            open.push(&times, &mut words);
            if last {
                open.finish(&mut words);
            }
        }
        if !words.is_empty() {
            let event = Out::Timestamps {
                context_id: Some(name.to_owned()),
                done: false,
                status_code: 206,
                word_timestamps: WordTimestamps::new(words),
                flush_id,
            };
            steps.push(Step::Text(event.to_json()));
        }
    }
}

impl Context {
    /// The client wants to hear what there is, and to be told the end of it; false when too many wait.
    fn flush(&mut self, name: &str, steps: &mut Vec<Step>) -> bool {
        if self.flushes.len() >= FLUSHES_MAX {
            return false;
        }
        self.asked += 1;
        if self.speaker.speaks {
            self.flushes.push_back(Some(self.asked));
            self.speaker.flush(steps);
        } else {
            self.done = self.asked;
            say_flush_done(name, self.asked, steps);
        }
        self.due = Tick::NEVER;
        true
    }

    /// Text has waited long enough for more. Where too many flushes are under way it waits for the next.
    fn flush_unasked(&mut self, steps: &mut Vec<Step>) {
        self.due = Tick::NEVER;
        if self.speaker.unflushed && self.flushes.len() < FLUSHES_MAX {
            self.flushes.push_back(None);
            self.speaker.flush(steps);
        }
    }
}

impl Dialect for Socket {
    fn manner(&self) -> Manner {
        Manner { layouts: [Layout::Streamed, Layout::Whole], times: true, resumes: false }
    }

    /// LiveKit's plugin keeps sockets in a pool between turns.
    fn reads_when_idle(&self) -> bool {
        false
    }

    fn handle_text(&mut self, now: Tick, text: &str, steps: &mut Vec<Step>) {
        match ClientMessage::decode(text) {
            Ok(ClientMessage { context_id, said: Said::Cancel }) => self.cancel(&context_id, steps),
            Ok(ClientMessage { context_id, said: Said::Generate(generate) }) => {
                self.generate(now, context_id, *generate, steps);
            }
            Err(error) => unreadable(error, steps),
        }
    }

    fn handle_binary(&mut self, _now: Tick, _bytes: &[u8], steps: &mut Vec<Step>) {
        unreadable(binary(), steps);
    }

    fn handle_event(&mut self, now: Tick, event: &Event<'_>, steps: &mut Vec<Step>) {
        match event {
            Event::Message(message) => self.said(now, message, steps),
            Event::Packet { header, payload } => {
                let context = self.contexts.numbered(header.context);
                if context.is_some_and(|(_, context)| context.gatherer.packet(header, payload)) {
                    self.write(now, header.context, false, steps);
                }
            }
            Event::Settled => {
                for number in self.contexts.numbers() {
                    self.write(now, number, false, steps);
                }
            }
            Event::Times { context, characters } => {
                if let Some((_, context)) = self.contexts.numbered(*context) {
                    context.gatherer.times.extend_from_slice(characters);
                }
            }
            Event::FlushSpoken { context } => self.flush_spoken(now, *context, steps),
            Event::Quotas(_) => {}
        }
    }

    fn handle_timeout(&mut self, now: Tick, steps: &mut Vec<Step>) {
        for (_, context) in self.contexts.iter_mut().filter(|(_, context)| context.due <= now) {
            context.flush_unasked(steps);
        }
    }

    fn poll_timeout(&self) -> Tick {
        self.contexts.iter().map(|context| context.due).min().unwrap_or(Tick::NEVER)
    }
}

fn say_done(context_id: Option<String>, steps: &mut Vec<Step>) {
    let event = Out::Done { context_id, done: true, status_code: 200 };
    steps.push(Step::Text(event.to_json()));
}

fn say_flush_done(name: &str, flush_id: u32, steps: &mut Vec<Step>) {
    let event = Out::FlushDone {
        context_id: Some(name.to_owned()),
        done: false,
        flush_done: true,
        flush_id,
        status_code: 206,
    };
    steps.push(Step::Text(event.to_json()));
}
