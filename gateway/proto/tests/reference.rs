//! Reference audio over the socket: announced, streamed, judged elsewhere, spoken with or refused.

mod rig;

use std::sync::Arc;

use bytes::Bytes;
use contract::{Clip, CloneMode, EngineError, Epoch, Span};
use proto::session::Message;
use proto::wire::{Flags, Header, PacketKind, ServerMessage};
use rig::Rig;

fn packet(rig: &mut Rig, kind: PacketKind, sequence: u32, flags: Flags, payload: &[u8]) {
    let header = Header { kind, flags, context: 1, sequence, timestamp: 0, duration: 960, epoch: Epoch(0) };
    let message = [&header.encode()[..], payload].concat();
    rig.session.handle_message(rig.now, Message::Binary(&message));
    rig.drain();
}

fn open(rig: &mut Rig, reference: &str) {
    rig.text(&format!(r#"{{"type":"open","context":1,"reference":{reference}}}"#));
}

fn clip() -> Arc<Clip> {
    Arc::new(Clip { samples: vec![0.1; 9], sample_rate: 24_000, transcript: None, hash: [3; 16] })
}

#[test]
fn text_waits_for_its_voice_and_the_engine_hears_of_the_context_with_the_clip() {
    let mut rig = Rig::new();
    open(&mut rig, r#"{"codec":"pcm","sample_rate":16000,"transcript":"Some words."}"#);
    rig.append(1, 1, "Hello there.");
    rig.simple("text.end", 1);
    packet(&mut rig, PacketKind::Pcm, 1, Flags::START, &[1, 2]);
    packet(&mut rig, PacketKind::Pcm, 2, Flags::END, &[3, 4]);
    assert!(rig.engine.is_empty(), "no voice yet");
    let job = rig.references.pop().expect("a job");
    assert_eq!((job.context, job.sample_rate, job.model_rate), (1, 16_000, rig::RATE));
    assert_eq!(job.packets, [Bytes::from_static(&[1, 2]), Bytes::from_static(&[3, 4])]);
    assert_eq!(job.transcript.as_deref(), Some("Some words."));
    rig.wait(Span::from_millis(700));
    rig.session.handle_reference(rig.now, 1, Ok(clip()));
    rig.drain();
    let opened = rig.opened.last().expect("opened");
    assert_eq!(opened.arrival, rig.now, "first audio is due from when the voice was there");
    let contract::VoiceChoice::Reference { clip: given, mode } = &opened.voice else { panic!("{opened:?}") };
    assert_eq!((&**given, *mode), (&*clip(), CloneMode::InContext));
    rig.speak_all(rig.key(1, 0), 2);
    assert_eq!(rig.reasons(), [(1, 0, "done")]);
}

#[test]
fn a_refused_clip_fails_its_context_and_nothing_else() {
    let mut rig = Rig::new();
    open(&mut rig, r#"{"codec":"opus"}"#);
    rig.append(1, 1, "Hello there.");
    packet(&mut rig, PacketKind::Opus, 1, Flags::END, &[9]);
    rig.references.pop().expect("a job");
    let error = EngineError::BadReference { what: "it is silent".to_owned() };
    rig.session.handle_reference(rig.now, 1, Err(error));
    rig.drain();
    assert_eq!(rig.errors(), ["bad_reference"]);
    assert_eq!(rig.reasons(), [(1, 0, "failed")]);
    // Another epoch of it has no voice either.
    rig.simple("cancel", 1);
    rig.append(1, 1, "Again.");
    assert_eq!(rig.errors(), ["bad_reference"; 2]);
    rig.say(2, "Hello there.");
    rig.speak_all(rig.key(2, 0), 2);
    assert!(rig.reasons().contains(&(2, 0, "done")));
}

#[test]
fn packets_out_of_order_of_another_kind_or_without_end_are_bounded_and_refused() {
    for (kind, sequences) in
        [(PacketKind::Pcm, &[2_u32][..]), (PacketKind::Pcm, &[1, 1]), (PacketKind::Opus, &[1])]
    {
        let mut rig = Rig::new();
        open(&mut rig, r#"{"codec":"pcm","sample_rate":48000}"#);
        rig.append(1, 1, "Hello there.");
        for sequence in sequences {
            packet(&mut rig, kind, *sequence, Flags::NONE, &[0, 0]);
        }
        assert_eq!(rig.errors(), ["bad_reference"], "{kind:?} {sequences:?}");
        assert_eq!(rig.reasons(), [(1, 0, "failed")]);
        // What still comes of it is refused and changes nothing.
        packet(&mut rig, PacketKind::Pcm, 9, Flags::NONE, &[0, 0]);
        assert_eq!(rig.errors(), ["bad_reference", "audio_not_accepted"]);
    }
    let mut rig = Rig::new();
    open(&mut rig, r#"{"codec":"pcm","sample_rate":48000}"#);
    rig.append(1, 1, "Hello there.");
    let piece = [0; 60_000];
    let mut sequence = 0;
    while rig.errors().is_empty() {
        sequence += 1;
        packet(&mut rig, PacketKind::Pcm, sequence, Flags::NONE, &piece);
    }
    assert_eq!((rig.errors(), sequence), (vec!["bad_reference"], 49), "30 s and no more");
    // A clip that never ends ends its context as idle.
    let mut rig = Rig::new();
    open(&mut rig, r#"{"codec":"opus"}"#);
    rig.append(1, 1, "Hello there.");
    rig.simple("text.end", 1);
    packet(&mut rig, PacketKind::Opus, 1, Flags::NONE, &[9]);
    rig.wait(Span::from_millis(61_000));
    assert_eq!(rig.reasons(), [(1, 0, "idle")]);
}

#[test]
fn what_open_says_of_a_reference_is_checked() {
    let mut rig = Rig::new();
    for (open, code) in [
        (r#"{"type":"open","context":1,"reference":{"codec":"pcm"}}"#, "missing_field"),
        (
            r#"{"type":"open","context":1,"reference":{"codec":"pcm","sample_rate":96000}}"#,
            "field_out_of_range",
        ),
        (r#"{"type":"open","context":1,"reference":{"codec":"mp3"}}"#, "field_out_of_range"),
        (r#"{"type":"open","context":1,"reference":{"url":"http://x"}}"#, "unknown_field"),
        (r#"{"type":"open","context":1,"reference":{},"voice":"clara"}"#, "unsupported"),
    ] {
        rig.text(open);
        assert_eq!(rig.errors().last().copied(), Some(code), "{open}");
    }
    open(&mut rig, "{}");
    assert!(matches!(rig.last(), ServerMessage::Opened(_)));
    rig.text(r#"{"type":"open","context":2,"reference":{}}"#);
    assert_eq!(rig.errors().last().copied(), Some("unsupported"), "one clip at a time");
    // Audio for a context that awaits none.
    rig.simple("open", 3);
    let header = Header {
        kind: PacketKind::Opus,
        flags: Flags::END,
        context: 3,
        sequence: 1,
        timestamp: 0,
        duration: 960,
        epoch: Epoch(0),
    };
    rig.session.handle_message(rig.now, Message::Binary(&header.encode()));
    rig.drain();
    assert_eq!(rig.errors().last().copied(), Some("audio_not_accepted"));
}
