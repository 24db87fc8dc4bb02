//! Reference audio over the socket: announced, streamed, judged elsewhere, spoken with or refused.

mod rig;

use std::sync::Arc;

use bytes::Bytes;
use contract::{Clip, CloneMode, EngineError, Epoch, Span};
use proto::cartesia;
use proto::elevenlabs::{self, Contexts, Options};
use proto::session::{ClipForm, JUDGED_MAX, Message};
use proto::wire::{Flags, Header, PacketKind, ServerMessage, WireCodec};
use rig::Rig;
use serde_json::{Value, json};

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
    assert_eq!((job.context, job.model_rate), (1, rig::RATE));
    let packets = vec![Bytes::from_static(&[1, 2]), Bytes::from_static(&[3, 4])];
    assert_eq!(job.form, ClipForm::Packets { codec: WireCodec::Pcm, sample_rate: 16_000, packets });
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

#[test]
fn g711_is_taken_as_it_is_announced_and_comes_out_in_packets_of_its_own_kind() {
    for (name, codec, kind) in
        [("mulaw", WireCodec::MuLaw, PacketKind::MuLaw), ("alaw", WireCodec::ALaw, PacketKind::ALaw)]
    {
        let mut rig = Rig::new();
        rig.text(&format!(
            r#"{{"type":"open","context":1,"audio":{{"codec":"{name}"}},"reference":{{"codec":"{name}"}}}}"#
        ));
        let ServerMessage::Opened(opened) = rig.last() else { panic!("{:?}", rig.last()) };
        let audio = &opened.audio;
        assert_eq!((audio.codec.as_str(), audio.sample_rate, audio.pre_skip), (name, 8_000, 0));
        rig.append(1, 1, "Hello there.");
        packet(&mut rig, kind, 1, Flags::END, &[0xFF; 160]);
        let packets = vec![Bytes::from_static(&[0xFF; 160])];
        let job = rig.references.pop().expect("a job");
        assert_eq!(job.form, ClipForm::Packets { codec, sample_rate: 8_000, packets });
    }
}

fn eleven(contexts: Contexts) -> Rig {
    let options = Options::read(contexts, "clara", [("output_format", "ulaw_8000")]).expect("valid");
    Rig::speaking(Box::new(elevenlabs::Socket::new(options)))
}

fn first_message(rig: &mut Rig, message: &Value) -> Vec<Value> {
    rig.text(&message.to_string());
    std::mem::take(rig.said.as_mut().expect("a foreign dialect"))
}

/// What a socket of ElevenLabs' and one of Cartesia's says first.
fn first_messages(reference: &Value) -> [(Rig, Value); 3] {
    let eleven_says = json!({ "text": "Hello there. ", "flush": true, "reference": reference });
    let mut many = eleven_says.clone();
    many["context_id"] = json!("a");
    let cartesia_says = json!({
        "context_id": "a", "transcript": "Hello there.", "continue": false, "reference": reference,
        "voice": {"mode": "id", "id": "clara"},
        "output_format": {"container": "raw", "encoding": "pcm_mulaw", "sample_rate": 8_000},
    });
    [
        (eleven(Contexts::Many), many),
        (eleven(Contexts::One), eleven_says),
        (Rig::speaking(Box::new(cartesia::Socket::new())), cartesia_says),
    ]
}

#[test]
fn a_clip_in_a_contexts_first_message_speaks_in_place_of_its_voice() {
    let reference = json!({ "audio": "UklGRg==", "transcript": "Words.", "mode": "speaker" });
    for (mut rig, message) in first_messages(&reference) {
        assert!(first_message(&mut rig, &message).is_empty(), "{message}");
        assert!(rig.engine.is_empty(), "no voice yet");
        let job = rig.references.pop().expect("a job");
        assert_eq!(job.form, ClipForm::File(Bytes::from_static(b"RIFF")));
        assert_eq!((job.context, job.transcript.as_deref()), (1, Some("Words.")));
        rig.session.handle_reference(rig.now, 1, Ok(clip()));
        rig.drain();
        let opened = rig.opened.last().expect("opened");
        let contract::VoiceChoice::Reference { clip: given, mode } = &opened.voice else {
            panic!("{opened:?}")
        };
        assert_eq!((&**given, *mode), (&*clip(), CloneMode::Speaker));
        assert_eq!(rig.engine[&rig.key(1, 0)].segments, ["Hello there."]);
    }
}

#[test]
fn a_clip_that_is_refused_is_told_in_the_words_of_its_protocol() {
    let code = |said: &[Value]| {
        let told = said.first().unwrap_or_else(|| panic!("nothing was said"));
        [&told["code"], &told["error_code"]].into_iter().find_map(Value::as_str).map(str::to_owned)
    };
    for (mut rig, message) in first_messages(&json!({ "audio": "no base64!" })) {
        assert_eq!(code(&first_message(&mut rig, &message)).as_deref(), Some("bad_reference"));
        assert!(rig.references.is_empty() && rig.engine.is_empty(), "{message}");
    }
    for (mut rig, message) in first_messages(&json!({ "url": "https://example.com/a.wav" })) {
        assert_eq!(code(&first_message(&mut rig, &message)).as_deref(), Some("unknown_field"));
    }
    for (mut rig, message) in first_messages(&json!({ "audio": "UklGRg==" })) {
        assert!(first_message(&mut rig, &message).is_empty());
        let error = EngineError::BadReference { what: "it is silent".to_owned() };
        rig.session.handle_reference(rig.now, 1, Err(error));
        rig.drain();
        let said = std::mem::take(rig.said.as_mut().expect("a foreign dialect"));
        assert_eq!(code(&said).as_deref(), Some("bad_reference"), "{message}");
    }
}

#[test]
fn no_more_clips_of_a_session_are_judged_at_once_than_its_bound() {
    let mut rig = Rig::speaking(Box::new(cartesia::Socket::new()));
    let [_, _, (_, mut message)] = first_messages(&json!({ "audio": "UklGRg==" }));
    // Without a word yet, a context does not count as speaking.
    message["transcript"] = json!(" ");
    message["continue"] = json!(true);
    for at in 0..=JUDGED_MAX {
        message["context_id"] = json!(format!("c{at}"));
        let said = first_message(&mut rig, &message);
        assert_eq!(said.len(), usize::from(at == JUDGED_MAX), "{said:?}");
    }
    assert_eq!(rig.references.len(), JUDGED_MAX);
    // Contexts that are forgotten make no room: their clips are still being decoded.
    for at in 0..JUDGED_MAX {
        rig.text(&json!({ "context_id": format!("c{at}"), "cancel": true }).to_string());
    }
    message["context_id"] = json!("in their place");
    assert_eq!(first_message(&mut rig, &message).len(), 1);
    assert_eq!(rig.references.len(), JUDGED_MAX);
    rig.session.handle_reference(rig.now, 1, Ok(clip()));
    rig.drain();
    message["context_id"] = json!("once more");
    assert!(first_message(&mut rig, &message).is_empty());
}
