//! A client of the protocol, and an engine that speaks when it is told to.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use contract::{Chunk, EngineError, FinishReason, Lane, Span, TextAccepted, Tick, Usage};
use proto::pacer::Packet;
use proto::quota::Quotas;
use proto::realtime::{Realtime, Start};
use proto::session::{
    Config, EncodeWork, Encoded, EngineCommand, EpochKey, Limits, Message, Output, ReferenceJob, Session,
};
use proto::wire::{CloseCode, PacketKind};
use serde_json::{Value, json};

/// A client, and an engine that speaks when it is told to.
pub(crate) struct Client {
    pub(crate) session: Session,
    pub(crate) now: Tick,
    pub(crate) events: VecDeque<Value>,
    pub(crate) contexts: Vec<EpochKey>,
    pub(crate) texts: Vec<String>,
    pub(crate) requests: Vec<contract::OpenContext>,
    pub(crate) cancelled: Vec<EpochKey>,
    pub(crate) references: Vec<ReferenceJob>,
    pub(crate) closed: Option<CloseCode>,
    pub(crate) refuse: Option<EngineError>,
    /// Of the newest chunk.
    pub(crate) samples: u64,
}

impl Client {
    pub(crate) fn new() -> Self {
        Self::with(Start::default())
    }

    /// One of a tenant with these quotas.
    pub(crate) fn bounded(quotas: Arc<dyn Quotas>) -> Self {
        Self::configured(Start::default(), Some(quotas))
    }

    pub(crate) fn with(start: Start) -> Self {
        Self::configured(start, None)
    }

    fn configured(start: Start, quotas: Option<Arc<dyn Quotas>>) -> Self {
        let limits = Limits {
            message_bytes: proto::realtime::MESSAGE_BYTES_MAX,
            lead: Span::from_millis(10_000),
            ..Limits::default()
        };
        let config = Config { limits, quotas, ..crate::rig::config() };
        let now = Tick::from_millis(1_000);
        let session = Session::with_dialect(now, config, Box::new(Realtime::new(start)));
        let mut client = Self {
            session,
            now,
            events: VecDeque::new(),
            contexts: Vec::new(),
            texts: Vec::new(),
            requests: Vec::new(),
            cancelled: Vec::new(),
            references: Vec::new(),
            closed: None,
            refuse: None,
            samples: 0,
        };
        client.drain();
        client
    }

    pub(crate) fn send(&mut self, event: &Value) {
        self.session.handle_message(self.now, Message::Text(&event.to_string()));
        self.drain();
    }

    pub(crate) fn say(&mut self, text: &str) {
        self.send(&json!({ "type": "conversation.item.create", "item": { "type": "message", "role": "user",
            "content": [{ "type": "input_text", "text": text }] } }));
    }

    /// Asks for a response and gives the types of what comes.
    pub(crate) fn ask(&mut self, response: &Value) -> Vec<String> {
        self.events.clear();
        self.send(&json!({ "type": "response.create", "event_id": "ask", "response": response }));
        self.kinds()
    }

    /// The engine makes `frames` frames of 80 ms of the newest context.
    pub(crate) fn speak(&mut self, frames: u32) {
        let key = *self.contexts.last().expect("a context");
        let samples = vec![0.1_f32; crate::rig::FRAME * frames as usize].into_boxed_slice();
        self.samples = samples.len() as u64;
        let chunk = Chunk {
            first_sample: 0,
            samples,
            segment: 0,
            frames,
            lane: Lane::Urgent,
            slack: Span::ZERO,
            ready: self.now,
            launched: self.now,
            made: self.now,
        };
        self.session.handle_engine(self.now, key, contract::Output::Chunk(chunk));
        self.drain();
    }

    pub(crate) fn finish(&mut self, reason: FinishReason, error: Option<EngineError>) {
        let key = *self.contexts.last().expect("a context");
        if reason == FinishReason::Done {
            let output = contract::Output::SegmentFinished { segment: 0, end_sample: self.samples, reason };
            self.session.handle_engine(self.now, key, output);
        }
        let usage = Usage { text_ids: 7, ..Usage::default() };
        self.session.handle_engine(self.now, key, contract::Output::Finished { reason, usage, error });
        self.drain();
    }

    pub(crate) fn drain(&mut self) {
        while let Some(output) = self.session.poll_output() {
            match output {
                Output::SendText(text) => {
                    self.events.push_back(serde_json::from_str(&text).expect("JSON"));
                    self.session.handle_written(self.now, text.len());
                }
                Output::Close { code } => self.closed = Some(code),
                Output::Encode(job) => {
                    let mut encoded = Encoded::default();
                    if let EncodeWork::Samples(samples) = &job.work {
                        let hertz = job.format.wire_rate as usize;
                        let count = samples.len() * hertz / job.format.heard_rate() as usize;
                        let packet = Packet {
                            kind: PacketKind::Pcm,
                            duration: 960,
                            silence: false,
                            payload: Bytes::from(vec![0; hertz / 50 * 2]),
                        };
                        encoded.packets = vec![packet; count / (hertz / 50)];
                    }
                    encoded.last = job.work == EncodeWork::Finish;
                    if job.work != EncodeWork::Forget {
                        self.session.handle_encoded(self.now, job.key, encoded);
                    }
                }
                Output::Engine(command) => self.engine(command),
                Output::Reference(job) => self.references.push(*job),
                Output::SendBinary(_) => panic!("no binary message is of this protocol"),
                Output::Resume { .. } | Output::Said(_) | Output::SendPing(_) => {}
            }
        }
    }

    pub(crate) fn engine(&mut self, command: EngineCommand) {
        let (key, reply) = match command {
            EngineCommand::Cancel { key } => return self.cancelled.push(key),
            EngineCommand::Playback { .. } => return,
            EngineCommand::Open { key, request } => {
                self.requests.push(*request);
                self.contexts.push(key);
                (key, self.refuse.take().map_or(Ok(TextAccepted::default()), Err))
            }
            EngineCommand::PushText { key, text } => {
                self.texts.push(text);
                (key, Ok(TextAccepted::default()))
            }
            EngineCommand::EndSegment { key }
            | EngineCommand::Finish { key }
            | EngineCommand::ReleaseTail { key } => (key, Ok(TextAccepted::default())),
        };
        self.session.handle_reply(self.now, key, reply);
    }

    pub(crate) fn kinds(&self) -> Vec<String> {
        self.events.iter().map(|event| event["type"].as_str().expect("a type").to_owned()).collect()
    }

    /// The last event of this type.
    pub(crate) fn last(&self, kind: &str) -> &Value {
        let found = self.events.iter().rev().find(|event| event["type"] == kind);
        found.unwrap_or_else(|| panic!("no {kind} in {:?}", self.kinds()))
    }

    /// Codes of the errors so far.
    pub(crate) fn errors(&self) -> Vec<&str> {
        let errors = self.events.iter().filter(|event| event["type"] == "error");
        errors.filter_map(|event| event["error"]["code"].as_str()).collect()
    }
}
