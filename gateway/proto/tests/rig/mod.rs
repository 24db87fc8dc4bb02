//! A driver for one session under virtual time: a scripted engine, an encoding pool that only counts, a
//! socket that may stall, and an observer that holds every output against the rules of the wire.

// Each test file uses its own part of what is here.
#![allow(dead_code, unreachable_pub, unused_imports)]

mod engine;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use contract::{Chunk, EngineError, Epoch, FinishReason, Lane, Playback, Span, TextAccepted, Tick, Usage};
use proto::dialect::Dialect;
use proto::pacer::Packet;
use proto::session::{
    Config, EncodeJob, EncodeWork, Encoded, EngineCommand, EpochKey, Message, Output, Session, TimeoutReason,
};
use proto::wire::{CloseCode, Flags, Header, PacketKind, ServerMessage};

pub use engine::{config, english_info, info};

const START: Tick = Tick::from_millis(1_000);
pub const RATE: u32 = 24_000;
pub const PRE_SKIP: u16 = 312;
/// Samples of one frame, 80 ms.
pub const FRAME: usize = 1_920;

/// An engine context as the script sees it.
#[derive(Debug, Default)]
pub struct EngineContext {
    pub segments: Vec<String>,
    pub current: String,
    pub samples: u64,
    pub spoken: u32,
    pub finish: bool,
    pub cancelled: bool,
    pub done: bool,
    pub released: u32,
    pub playback: Option<Playback>,
}

/// What the client has seen of one context.
#[derive(Debug, Default)]
pub struct Heard {
    pub epoch: u16,
    pub sequence: u32,
    pub next_timestamp: u64,
    pub last_packet_end: bool,
    pub acked: u32,
    pub packets: Vec<Header>,
}

pub struct Rig {
    pub session: Session,
    pub now: Tick,
    pub engine: BTreeMap<EpochKey, EngineContext>,
    /// Fails the next call of this kind of every context.
    pub refuse_open: Option<EngineError>,
    pub refuse_text: VecDeque<EngineError>,
    pub held_bytes: u32,
    /// Answers of the engine that wait while `reply_now` is off.
    pub replies: VecDeque<(EpochKey, Result<TextAccepted, EngineError>)>,
    pub reply_now: bool,
    pub jobs: VecDeque<EncodeJob>,
    pub encoders: BTreeMap<EpochKey, u64>,
    /// Encode at once when drained.
    pub encode_now: bool,
    /// The socket takes everything at once.
    pub write_now: bool,
    pub answer_pings: bool,
    pub unwritten: usize,
    pub messages: Vec<ServerMessage>,
    /// What a dialect other than the native one wrote; `None` where the session speaks that.
    pub said: Option<Vec<serde_json::Value>>,
    pub heard: BTreeMap<u16, Heard>,
    pub ends: BTreeSet<(u16, u16)>,
    pub closed: Option<CloseCode>,
    pub resume: Option<(String, usize)>,
    pub pings: Vec<[u8; 8]>,
    pub references: Vec<proto::session::ReferenceJob>,
    /// Requests the engine was given.
    pub opened: Vec<contract::OpenContext>,
}

impl Rig {
    pub fn new() -> Self {
        Self::with(config())
    }

    pub fn with(config: Config) -> Self {
        Self::around(Session::new(START, config), None)
    }

    /// A session whose client speaks this dialect, in JSON.
    pub fn speaking(dialect: Box<dyn Dialect>) -> Self {
        Self::around(Session::with_dialect(START, config(), dialect), Some(Vec::new()))
    }

    fn around(session: Session, said: Option<Vec<serde_json::Value>>) -> Self {
        let mut rig = Self {
            session,
            now: START,
            said,
            engine: BTreeMap::new(),
            refuse_open: None,
            refuse_text: VecDeque::new(),
            held_bytes: 0,
            replies: VecDeque::new(),
            reply_now: true,
            jobs: VecDeque::new(),
            encoders: BTreeMap::new(),
            encode_now: true,
            write_now: true,
            answer_pings: true,
            unwritten: 0,
            messages: Vec::new(),
            heard: BTreeMap::new(),
            ends: BTreeSet::new(),
            closed: None,
            resume: None,
            pings: Vec::new(),
            references: Vec::new(),
            opened: Vec::new(),
        };
        rig.drain();
        rig
    }

    pub fn text(&mut self, json: &str) {
        self.session.handle_message(self.now, Message::Text(json));
        self.drain();
    }

    pub fn append(&mut self, context: u16, sequence: u32, text: &str) {
        let text = serde_json::to_string(text).expect("a string");
        self.text(&format!(
            r#"{{"type":"text.append","context":{context},"sequence":{sequence},"text":{text}}}"#
        ));
    }

    pub fn simple(&mut self, kind: &str, context: u16) {
        self.text(&format!(r#"{{"type":"{kind}","context":{context}}}"#));
    }

    /// Opens context, says `text`, ends it.
    pub fn say(&mut self, context: u16, text: &str) {
        self.simple("open", context);
        self.append(context, 1, text);
        self.simple("text.end", context);
    }

    pub fn key(&self, context: u16, epoch: u16) -> EpochKey {
        EpochKey { context, epoch: Epoch(epoch) }
    }

    /// Moves time on, waking the session whenever it wants to.
    pub fn wait(&mut self, span: Span) {
        let until = self.now + span;
        let mut wakes = 0;
        loop {
            let (at, reason) = self.session.poll_timeout();
            if at > until || reason == TimeoutReason::None {
                break;
            }
            wakes += 1;
            assert!(wakes < 20_000, "the session spins on {reason:?} at {}", self.now);
            let before = self.session.poll_timeout();
            self.now = self.now.max(at);
            self.session.handle_timeout(self.now);
            self.drain();
            let after = self.session.poll_timeout();
            assert!(after.0 > self.now || after != before, "{before:?} comes back at {}", self.now);
        }
        self.now = until;
        self.session.handle_timeout(self.now);
        self.drain();
    }

    /// The engine makes `frames` frames of a context's current segment.
    pub fn speak(&mut self, key: EpochKey, frames: u32) {
        self.chunk(key, vec![0.1; FRAME * frames as usize]);
    }

    /// The engine makes these samples of a context's current segment.
    pub fn chunk(&mut self, key: EpochKey, samples: Vec<f32>) {
        let Some(context) = self.engine.get_mut(&key) else { return };
        let chunk = Chunk {
            first_sample: context.samples,
            segment: context.spoken,
            frames: samples.len().div_ceil(FRAME) as u32,
            lane: Lane::Urgent,
            slack: Span::from_millis(120),
            ready: self.now,
            launched: self.now,
            made: self.now,
            samples: samples.into(),
        };
        context.samples += chunk.samples.len() as u64;
        self.session.handle_engine(self.now, key, contract::Output::Chunk(chunk));
        self.drain();
    }

    pub fn finish_segment(&mut self, key: EpochKey) {
        let Some(context) = self.engine.get_mut(&key) else { return };
        let output = contract::Output::SegmentFinished {
            segment: context.spoken,
            end_sample: context.samples,
            reason: FinishReason::Done,
        };
        context.spoken += 1;
        self.session.handle_engine(self.now, key, output);
        self.drain();
    }

    pub fn finish(&mut self, key: EpochKey, reason: FinishReason, error: Option<EngineError>) {
        let Some(context) = self.engine.get_mut(&key) else { return };
        context.done = true;
        let usage = Usage { samples: context.samples, text_ids: 7, ..Usage::default() };
        self.session.handle_engine(self.now, key, contract::Output::Finished { reason, usage, error });
        self.drain();
    }

    /// The engine speaks all segments whose end it has, then finishes if it was told to.
    pub fn speak_all(&mut self, key: EpochKey, frames: u32) {
        loop {
            let Some(context) = self.engine.get(&key) else { return };
            if context.done || context.cancelled {
                return;
            }
            if (context.spoken as usize) < context.segments.len() {
                self.speak(key, frames);
                self.finish_segment(key);
            } else {
                if context.finish {
                    self.finish(key, FinishReason::Done, None);
                }
                return;
            }
        }
    }

    /// Runs one job of the encoding pool: packets of 20 ms, pre-skip in front, the rest at the end.
    pub fn encode_one(&mut self) -> bool {
        let Some(job) = self.jobs.pop_front() else { return false };
        let opus = job.format.codec == proto::wire::WireCodec::Opus;
        let start = if opus { u64::from(PRE_SKIP) } else { 0 };
        let pending = self.encoders.entry(job.key).or_insert(start);
        let mut encoded = Encoded::default();
        match job.work {
            EncodeWork::Forget => {
                self.encoders.remove(&job.key);
                return true;
            }
            EncodeWork::Samples(samples) => {
                *pending += proto::at_wire_clock(samples.len() as u64, job.format.heard_rate());
            }
            EncodeWork::Finish => encoded.last = true,
        }
        let packet = |duration: u64| Packet {
            kind: if opus { PacketKind::Opus } else { PacketKind::Pcm },
            duration: duration as u16,
            silence: false,
            payload: Bytes::from_static(&[7; 40]),
        };
        while *pending >= 960 {
            *pending -= 960;
            encoded.packets.push(packet(960));
        }
        if encoded.last {
            if *pending > 0 {
                encoded.packets.push(packet(*pending));
            }
            self.encoders.remove(&job.key);
        }
        self.session.handle_encoded(self.now, job.key, encoded);
        self.drain();
        true
    }

    pub fn drain(&mut self) {
        while let Some(output) = self.session.poll_output() {
            assert!(self.closed.is_none(), "{output:?} follows the close");
            match output {
                Output::Reference(job) => self.references.push(*job),
                Output::Close { code } => self.closed = Some(code),
                Output::Encode(job) => self.jobs.push_back(job),
                Output::Engine(command) => self.engine_command(command),
                Output::Resume { token, received } => self.resume = Some((token, received.len())),
                Output::SendBinary(message) => {
                    self.unwritten += message.len();
                    self.packet(&message);
                }
                Output::Said(_) => {}
                Output::SendPing(payload) => self.pings.push(payload),
                Output::SendText(text) => {
                    self.unwritten += text.len();
                    if let Some(said) = &mut self.said {
                        said.push(serde_json::from_str(&text).expect("JSON"));
                        continue;
                    }
                    let message = ServerMessage::from_json(&text).expect("a known message");
                    assert_ne!(message, ServerMessage::Unknown, "{text}");
                    self.observe(&message);
                    self.messages.push(message);
                }
            }
        }
        if self.write_now && self.unwritten > 0 {
            let bytes = std::mem::take(&mut self.unwritten);
            self.session.handle_written(self.now, bytes);
            self.drain();
        }
        if self.answer_pings && !self.pings.is_empty() {
            for payload in std::mem::take(&mut self.pings) {
                self.session.handle_pong(self.now, &payload);
            }
            self.drain();
        }
        if self.encode_now && self.encode_one() {
            self.drain();
        }
    }

    fn engine_command(&mut self, command: EngineCommand) {
        let (key, reply) = match command {
            EngineCommand::Cancel { key } => {
                self.engine.get_mut(&key).expect("cancelled after opening").cancelled = true;
                return;
            }
            EngineCommand::Playback { key, playback } => {
                self.engine.get_mut(&key).expect("told after opening").playback = Some(playback);
                return;
            }
            EngineCommand::Open { key, request } => {
                assert_eq!(request.tenant, 3);
                self.opened.push((*request).clone());
                match self.refuse_open.take() {
                    Some(error) => (key, Err(error)),
                    None => {
                        let fresh = self.engine.insert(key, EngineContext::default());
                        assert!(fresh.is_none(), "an engine context for {key:?} was opened twice");
                        (key, Ok(TextAccepted::default()))
                    }
                }
            }
            EngineCommand::PushText { key, text } => match self.refuse_text.pop_front() {
                Some(error) => (key, Err(error)),
                None => {
                    let context = self.engine.get_mut(&key).expect("open");
                    assert!(!context.finish, "text after finish");
                    context.current.push_str(&text);
                    (key, Ok(TextAccepted { ids: 1, held_bytes: self.held_bytes }))
                }
            },
            EngineCommand::ReleaseTail { key } => {
                self.engine.get_mut(&key).expect("open").released += 1;
                (key, Ok(TextAccepted::default()))
            }
            EngineCommand::EndSegment { key } => {
                let context = self.engine.get_mut(&key).expect("open");
                assert_ne!(context.current, "", "an empty segment");
                let segment = std::mem::take(&mut context.current);
                context.segments.push(segment);
                (key, Ok(TextAccepted::default()))
            }
            EngineCommand::Finish { key } => {
                let context = self.engine.get_mut(&key).expect("open");
                assert_eq!(context.current, "", "finish before the segment's end");
                context.finish = true;
                (key, Ok(TextAccepted::default()))
            }
        };
        self.replies.push_back((key, reply));
        if self.reply_now {
            self.reply_one();
        }
    }

    pub fn reply_one(&mut self) -> bool {
        let Some((key, reply)) = self.replies.pop_front() else { return false };
        self.session.handle_reply(self.now, key, reply);
        true
    }

    /// Holds a packet against the rules of docs/protocol.md section 5.
    fn packet(&mut self, message: &[u8]) {
        let (header, payload) = Header::decode(message).expect("a good header");
        let heard = self.heard.entry(header.context).or_default();
        assert_eq!(header.epoch.0, heard.epoch, "a packet of another epoch");
        assert!(!self.ends.contains(&(header.context, header.epoch.0)), "a packet after the epoch's end");
        assert!(!heard.last_packet_end, "a packet after END");
        assert_eq!(header.sequence, heard.sequence + 1, "sequence");
        assert_eq!(u64::from(header.timestamp), heard.next_timestamp, "timestamp");
        assert_eq!(header.flags.contains(Flags::START), header.timestamp == 0);
        assert_eq!(payload.is_empty(), header.kind == PacketKind::Gap);
        heard.sequence = header.sequence;
        heard.next_timestamp += u64::from(header.duration);
        heard.last_packet_end = header.flags.contains(Flags::END);
        heard.packets.push(header);
    }

    fn observe(&mut self, message: &ServerMessage) {
        match message {
            ServerMessage::Cancelled { context, epoch, .. } => {
                let heard = self.heard.entry(*context).or_default();
                assert_eq!(*epoch, heard.epoch.wrapping_add(1), "an epoch grows by one");
                heard.epoch = *epoch;
                heard.next_timestamp = 0;
                heard.last_packet_end = false;
                heard.acked = 0;
            }
            ServerMessage::End(end) => {
                assert!(
                    self.ends.insert((end.context, end.epoch)),
                    "two ends of {}/{}",
                    end.context,
                    end.epoch
                );
                let heard = self.heard.entry(end.context).or_default();
                if end.epoch == heard.epoch && end.samples > 0 && end.reason == "done" {
                    assert!(heard.last_packet_end, "an end without END");
                    assert_eq!(heard.sequence, end.sequence);
                }
            }
            ServerMessage::TextAck { context, epoch, sequence, .. } => {
                let heard = self.heard.entry(*context).or_default();
                assert_eq!(*epoch, heard.epoch);
                assert!(*sequence >= heard.acked, "acks go back");
                heard.acked = *sequence;
            }
            _ => {}
        }
    }

    pub fn last(&self) -> &ServerMessage {
        self.messages.last().expect("ready came")
    }

    /// Codes of all errors so far.
    pub fn errors(&self) -> Vec<&str> {
        let errors = self.messages.iter().filter_map(|message| match message {
            ServerMessage::Error(error) => Some(error.error.code.as_str()),
            _ => None,
        });
        errors.collect()
    }

    /// `(context, epoch, reason)` of all ends so far, in order.
    pub fn reasons(&self) -> Vec<(u16, u16, &str)> {
        let ends = self.messages.iter().filter_map(|message| match message {
            ServerMessage::End(end) => Some((end.context, end.epoch, end.reason.as_str())),
            _ => None,
        });
        ends.collect()
    }
}
