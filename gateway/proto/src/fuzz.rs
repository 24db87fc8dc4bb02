//! Fuzz bodies as ordinary functions, so that ordinary tests compile and run them too.
//!
//! Each takes bytes of any kind and must return: a panic is our bug, whatever the bytes.

mod foreign;

use std::sync::Arc;

use bytes::Bytes;
use contract::{
    Chunk, EngineError, EngineInfo, FinishReason, Lane, Layout, Limits, ModelInfo, SamplingDefaults, Span,
    TextAccepted, Tick, Usage,
};

pub use foreign::foreign;

use crate::dialect::Dialect;
use crate::elevenlabs::{OutputFormat, Query, read_request};
use crate::pacer::Packet;
use crate::reader::Reader;
use crate::realtime::{Realtime, Start};
use crate::segmenter::Zones;
use crate::session::{
    Config, EncodeWork, Encoded, EngineCommand, EpochKey, Limits as SessionLimits, Message, Output, Session,
};
use crate::speech::SpeechRequest;
use crate::wire::{Flags, Header, Incoming, Json, Native, PacketKind, Received, ServerMessage};

/// Every reader of the wire, over the same bytes.
pub fn wire(bytes: &[u8]) {
    // The outcomes do not matter here, only that there is one.
    let _ = Header::decode(bytes).map(|(header, _)| header.encode());
    let text = String::from_utf8_lossy(bytes);
    let _ = Json::parse(&text);
    if let Ok(incoming) = Incoming::decode(&text) {
        let _ = Incoming::decode(&incoming.message.to_json());
    }
    let _ = ServerMessage::from_json(&text);
    let _ = SpeechRequest::decode(&text, 4_096);
    let _ = crate::cartesia::read_request(&text, 4_096);
    let _ = read_request(&text, Query { voice: String::new(), format: OutputFormat::Opus }, 4_096);
    let zones = Zones::streamed(u32::from(bytes.first().copied().unwrap_or(0)));
    let english = ear::Ear::new(ear::language("english"), Arc::default());
    for ear in [None, Some(english)] {
        let mut parts = Vec::new();
        let mut reader = Reader::new(ear, zones);
        reader.push(&text, &mut parts);
        reader.release(&mut parts);
        reader.push(&text, &mut parts);
        reader.flush(&mut parts);
    }
}

/// A whole session under virtual time. The bytes choose what happens next: messages (well formed, and
/// not), engine outputs of any epoch, packets, stalls, lost connections, time.
pub fn session(bytes: &[u8]) {
    let mut sequences = [0_u32; 4];
    run(bytes, Box::new(Native), |action, argument| native(action, argument, &mut sequences));
}

/// The same under a client of OpenAI Realtime.
pub fn realtime(bytes: &[u8]) {
    run(bytes, Box::new(Realtime::new(Start::default())), crate::realtime::message);
}

/// Drives a session of any dialect; `message` words the client's messages, of ten kinds.
pub fn run(bytes: &[u8], dialect: Box<dyn Dialect>, mut message: impl FnMut(u8, u8) -> String) {
    let mut now = Tick::from_millis(1);
    let mut session = Session::with_dialect(now, config(), dialect);
    let mut bytes = bytes.iter().copied();
    let mut engine: Vec<(EpochKey, u64)> = Vec::new();
    let mut jobs: Vec<(EpochKey, bool)> = Vec::new();
    while let Some(action) = bytes.next() {
        let argument = bytes.next().unwrap_or(0);
        let text = match action % 24 {
            kind @ 0..=10 => message(kind, argument),
            11 => {
                let noise: Vec<u8> = bytes.by_ref().take(usize::from(argument)).collect();
                session.handle_message(now, Message::Binary(&noise));
                String::from_utf8_lossy(&noise).into_owned()
            }
            _ => {
                other(&mut session, &mut now, &mut engine, &mut jobs, action % 24, argument);
                String::new()
            }
        };
        if !text.is_empty() {
            session.handle_message(now, Message::Text(&text));
        }
        drain(&mut session, now, &mut engine, &mut jobs, argument);
        let (at, _) = session.poll_timeout();
        if action.is_multiple_of(5) && at != Tick::NEVER {
            now = now.max(at);
            session.handle_timeout(now);
            drain(&mut session, now, &mut engine, &mut jobs, argument);
        }
    }
}

/// A message of the native wire.
fn native(kind: u8, argument: u8, sequences: &mut [u32; 4]) -> String {
    let context = u16::from(argument % 4);
    let named = |kind: &str| format!(r#"{{"type":"{kind}","context":{context}}}"#);
    match kind {
        0 if argument > 200 => {
            format!(r#"{{"type":"open","context":{context},"reference":{{"codec":"opus"}}}}"#)
        }
        0 => named("open"),
        1..=3 => {
            let sequence = &mut sequences[usize::from(context)];
            *sequence = if argument > 250 { 1 } else { *sequence + 1 };
            let text = ["Hello. ", "a", r"\ud83d", r"\ude00", "<|x|> ", "", " 3.", "你好。"];
            let text = text[usize::from(argument / 4) % text.len()];
            format!(r#"{{"type":"text.append","context":{context},"sequence":{sequence},"text":"{text}"}}"#)
        }
        4 => named("text.flush"),
        5 => named("text.end"),
        6 => {
            sequences[usize::from(context)] = 0;
            named("cancel")
        }
        7 => format!(
            r#"{{"type":"playback","context":{context},"epoch":0,"t":{argument},"played":{},"buffered":960,"state":"{}","underruns":{},"sequence":{}}}"#,
            u64::from(argument) * 480,
            ["playing", "paused", "starved", "prebuffer", "ended"][usize::from(argument) % 5],
            argument % 3,
            argument / 2
        ),
        8 => r#"{"type":"hello","trace":true,"playback":{"prebuffer_ms":100}}"#.to_owned(),
        9 => format!(r#"{{"type":"ping","t":{argument}}}"#),
        _ => r#"{"type":"resume","token":"x","received":[]}"#.to_owned(),
    }
}

/// What happens that is no message.
fn other(
    session: &mut Session,
    now: &mut Tick,
    engine: &mut [(EpochKey, u64)],
    jobs: &mut Vec<(EpochKey, bool)>,
    action: u8,
    argument: u8,
) {
    let which = if engine.is_empty() { 0 } else { usize::from(argument) % engine.len() };
    match (action, engine.get_mut(which)) {
        (12 | 13, Some((key, samples))) => {
            let chunk = Chunk {
                first_sample: *samples,
                samples: vec![0.1; usize::from(argument) * 16].into_boxed_slice(),
                segment: u32::from(argument % 3),
                frames: 1,
                lane: Lane::Background,
                slack: Span::MAX,
                ready: *now,
                launched: *now,
                made: *now,
            };
            *samples += u64::from(argument) * 16;
            session.handle_engine(*now, *key, contract::Output::Chunk(chunk));
        }
        (14, Some((key, samples))) => {
            let (segment, end_sample) = (u32::from(argument % 5), *samples);
            let reason = FinishReason::Done;
            let output = contract::Output::SegmentFinished { segment, end_sample, reason };
            session.handle_engine(*now, *key, output);
        }
        (15, Some((key, _))) => {
            let error = (argument.is_multiple_of(3)).then_some(EngineError::NotFinite);
            let reason = if error.is_some() { FinishReason::Failed } else { FinishReason::Done };
            let output = contract::Output::Finished { reason, usage: Usage::default(), error };
            session.handle_engine(*now, *key, output);
        }
        (16..=18, _) if !jobs.is_empty() => {
            let (key, last) = jobs.remove(0);
            let opus = argument.is_multiple_of(2);
            let packet = Packet {
                kind: if opus { PacketKind::Opus } else { PacketKind::Pcm },
                duration: u16::from(argument) * 16,
                silence: opus,
                payload: Bytes::from_static(b"packet"),
            };
            let packets = vec![packet; usize::from(argument % 7)];
            session.handle_encoded(*now, key, Encoded { packets, last });
        }
        (19, _) => session.handle_detach(*now),
        (20, _) => {
            let epoch = contract::Epoch(u16::from(argument / 16));
            let received =
                Received { context: u16::from(argument % 4), epoch, sequence: u32::from(argument) };
            session.handle_attach(*now, "r".to_owned(), &[received]);
        }
        (21, _) => session.handle_pong(*now, &u64::from(argument).to_be_bytes()),
        (23, _) if argument > 128 => {
            let flags = if argument.is_multiple_of(3) { Flags::END } else { Flags::NONE };
            let header = Header {
                kind: PacketKind::Opus,
                flags,
                context: u16::from(argument % 4),
                sequence: u32::from(argument % 8),
                timestamp: 0,
                duration: 960,
                epoch: contract::Epoch(0),
            };
            session.handle_message(*now, Message::Binary(&header.encode()));
        }
        (23, _) if argument > 64 => {
            let refused = EngineError::BadReference { what: "test".to_owned() };
            session.handle_reference(*now, u16::from(argument % 4), Err(refused));
        }
        (22, _) if argument == 252 => session.handle_token_renewed(*now),
        (22, _) if argument > 249 && argument < 252 => session.handle_token_end(*now, Span::from_millis(500)),
        (22, _) if argument > 252 => session.handle_drain(*now, "test", Span::from_millis(500)),
        _ => *now += Span::from_millis(i64::from(argument) * 3),
    }
}

fn drain(
    session: &mut Session,
    now: Tick,
    engine: &mut Vec<(EpochKey, u64)>,
    jobs: &mut Vec<(EpochKey, bool)>,
    argument: u8,
) {
    while let Some(output) = session.poll_output() {
        let (key, reply) = match output {
            Output::Engine(EngineCommand::Open { key, .. }) if argument < 240 => {
                engine.push((key, 0));
                (key, Ok(TextAccepted::default()))
            }
            Output::Engine(EngineCommand::Open { key, .. }) => {
                (key, Err(EngineError::Unavailable { reason: "test".to_owned() }))
            }
            Output::Engine(EngineCommand::PushText { key, .. }) => match argument % 16 {
                0 => (key, Err(EngineError::Overloaded { retry_after: Span::from_millis(20) })),
                1 => (key, Err(EngineError::ControlToken { token: "x".to_owned() })),
                _ => (key, Ok(TextAccepted { ids: 1, held_bytes: u32::from(argument % 3) })),
            },
            Output::Engine(
                EngineCommand::EndSegment { key }
                | EngineCommand::Finish { key }
                | EngineCommand::ReleaseTail { key },
            ) => (key, Ok(TextAccepted::default())),
            Output::Encode(job) => {
                if job.work != EncodeWork::Forget {
                    jobs.push((job.key, job.work == EncodeWork::Finish));
                }
                continue;
            }
            Output::SendText(text) if argument.is_multiple_of(2) => {
                session.handle_written(now, text.len());
                continue;
            }
            Output::SendBinary(message) if argument.is_multiple_of(2) => {
                session.handle_written(now, message.len());
                continue;
            }
            _ => continue,
        };
        session.handle_reply(now, key, reply);
    }
}

fn config() -> Config {
    let model = ModelInfo {
        name: "m".to_owned(),
        family: "m".to_owned(),
        licence: String::new(),
        sample_rate: 24_000,
        samples_per_frame: 1_920,
        layouts: vec![Layout::Streamed, Layout::Whole],
        languages: Vec::new(),
        voices: Vec::new(),
        default_voice: None,
        takes_instructions: false,
        takes_reference: true,
        sampling: SamplingDefaults { temperature: 1.0, top_k: 0, top_p: 1.0, repetition_penalty: 1.0 },
        segment_characters_max: 40,
    };
    let limits = Limits { contexts_max: 4, open_max: 8, output_samples_max: 48_000 };
    Config {
        session: "s".to_owned(),
        resume: "r".to_owned(),
        engine: Arc::new(EngineInfo { models: vec![model], limits, device: String::new() }),
        tenant: 0,
        voices: None,
        lexicon: std::sync::Arc::default(),
        bench: false,
        quotas: None,
        opus_pre_skip: 312,
        paces: crate::paces::Paces::default(),
        limits: SessionLimits { text_characters: 200, ..SessionLimits::default() },
    }
}
