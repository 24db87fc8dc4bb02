//! What is asked wrongly is refused by name: fields, types, models, voices, formats.

mod rig;

use contract::Layout;
use proto::catalog::{self, Ask, Target};
use proto::speech::{
    INPUT_CHARACTERS_MAX, SpeechEvent, SpeechFormat, SpeechRequest, SpeechUsage, StreamFormat,
};
use proto::wire::{ErrorKind, Incoming, WireError};

fn refusal(message: &str) -> WireError {
    Incoming::decode(message).expect_err(message).error
}

fn speech(body: &str) -> Result<SpeechRequest, WireError> {
    SpeechRequest::decode(body, INPUT_CHARACTERS_MAX)
}

#[test]
fn an_unknown_field_names_the_nearest_and_a_strange_one_lists_all() {
    let error = refusal(r#"{"type":"text.append","context":1,"sequnce":1,"text":"a"}"#);
    assert_eq!(error.code(), "unknown_field");
    assert_eq!(error.param(), Some("sequnce"));
    assert_eq!(error.to_string(), r#"unknown field "sequnce" in text.append; did you mean "sequence"?"#);
    let error = refusal(r#"{"type":"cancel","context":1,"zzz":1}"#);
    assert!(error.to_string().ends_with("known: context, epoch, played"), "{error}");
    let error = refusal(r#"{"type":"open","context":1,"audio":{"codek":"pcm"}}"#);
    assert_eq!(error.param(), Some("audio.codek"));
    assert!(refusal(r#"{"type":"text.apend"}"#).to_string().contains(r#"did you mean "text.append""#));
}

#[test]
fn a_wrong_type_is_named_with_its_path() {
    for (message, code, param) in [
        (r#"{"type":"text.append","context":"1","sequence":1,"text":"a"}"#, "wrong_type", "context"),
        (r#"{"type":"text.append","context":1,"sequence":1.5,"text":"a"}"#, "wrong_type", "sequence"),
        (r#"{"type":"text.append","context":1,"sequence":1,"text":["a"]}"#, "wrong_type", "text"),
        (r#"{"type":"text.append","context":1,"sequence":0,"text":"a"}"#, "field_out_of_range", "sequence"),
        (
            r#"{"type":"text.append","context":65536,"sequence":1,"text":"a"}"#,
            "field_out_of_range",
            "context",
        ),
        (r#"{"type":"text.append","context":1,"text":"a"}"#, "missing_field", "sequence"),
        (r#"{"type":"open","context":1,"temperature":"NaN"}"#, "wrong_type", "temperature"),
        (r#"{"type":"open","context":1,"temperature":-0.1}"#, "field_out_of_range", "temperature"),
        (r#"{"type":"open","context":1,"top_p":0}"#, "field_out_of_range", "top_p"),
        (r#"{"type":"open","context":1,"seed":9007199254740992}"#, "field_out_of_range", "seed"),
        (r#"{"type":"open","context":1,"layout":"stream"}"#, "field_out_of_range", "layout"),
        (r#"{"type":"open","context":1,"voice":{"id":7}}"#, "wrong_type", "voice.id"),
        (
            r#"{"type":"open","context":1,"audio":{"sample_rate":44100}}"#,
            "field_out_of_range",
            "audio.sample_rate",
        ),
        (
            r#"{"type":"resume","token":"x","received":[{"context":1,"epoch":0}]}"#,
            "missing_field",
            "received[0].sequence",
        ),
        (r#"{"type":7}"#, "wrong_type", "type"),
        (r#"{"context":1}"#, "missing_field", "type"),
    ] {
        let error = refusal(message);
        assert_eq!((error.code(), error.param()), (code, Some(param)), "{message}: {error}");
        assert_eq!(error.kind(), ErrorKind::InvalidRequest);
    }
    assert_eq!(refusal(r#"{"type":"open","context":1,"temperature":NaN}"#).code(), "invalid_json");
    assert_eq!(refusal(r#"{"type":"ping","t":1e999}"#).code(), "invalid_json");
    assert_eq!(refusal(r#"{"type":"ping","t":1,"t":2}"#).code(), "duplicate_field");
    assert_eq!(refusal(r#"{"type":"open","context":1,"voice":"\ud83d"}"#).code(), "lone_surrogate");
}

#[test]
fn the_id_of_a_refused_message_comes_back_with_its_error() {
    let refused = Incoming::decode(r#"{"type":"open","id":"m7","contxt":1}"#).unwrap_err();
    assert_eq!(refused.id.as_deref(), Some("m7"));
    let object = refused.error.object("s-1-4".to_owned());
    assert_eq!(
        serde_json::to_string(&object).unwrap(),
        r#"{"type":"invalid_request_error","code":"unknown_field","message":"unknown field \"contxt\" in open; did you mean \"context\"?","param":"contxt","request_id":"s-1-4"}"#
    );
}

#[test]
fn unknown_models_voices_and_languages_list_the_valid_ones() {
    let info = rig::info();
    let resolve = |ask: Ask| Target::resolve(&info, &ask, [Layout::Streamed, Layout::Whole], false);
    let name = |name: &str| Some(name.to_owned());
    for (ask, code, listed) in [
        (Ask { voice: name("clar"), ..Ask::default() }, "unknown_voice", "clara, marcus"),
        (Ask { model: name("gpt"), ..Ask::default() }, "unknown_model", "tts-tiny"),
        (Ask { language: name("klingon"), ..Ask::default() }, "unknown_language", "auto, english"),
        (Ask { instructions: name("whisper"), ..Ask::default() }, "unsupported", "takes none"),
        (Ask { exact_frames: Some(3), ..Ask::default() }, "unsupported", "--bench"),
        (
            Ask { voice: name("marcus"), layout: Some(Layout::Streamed), ..Ask::default() },
            "unsupported",
            "this voice can: whole",
        ),
    ] {
        let error = resolve(ask).unwrap_err();
        assert_eq!(error.code(), code);
        assert!(error.to_string().contains(listed), "{error}");
    }
    let target = resolve(Ask { voice: name("Marcus"), language: name("English"), ..Ask::default() }).unwrap();
    assert_eq!((target.voice.as_deref(), target.layout), (Some("marcus"), Layout::Whole));
    assert_eq!(target.language.as_deref(), Some("english"));
}

#[test]
fn a_speech_request_takes_what_openai_clients_send() {
    let request = speech(
        r#"{"model":"tts-tiny","input":"Hello.","voice":{"id":"clara"},"response_format":"opus","speed":1,"stream_format":"sse","seed":7,"temperature":0.25}"#,
    )
    .unwrap();
    assert_eq!((request.format, request.stream), (SpeechFormat::Opus, StreamFormat::Sse));
    assert_eq!(request.ask.voice.as_deref(), Some("clara"));
    assert_eq!(request.ask.sampling.seed, Some(7));
    let plain = speech(r#"{"input":"Hello."}"#).unwrap();
    assert_eq!(
        (plain.format, plain.stream, plain.ask),
        (SpeechFormat::Wav, StreamFormat::Audio, Ask::default())
    );
}

#[test]
fn a_speech_request_takes_what_clients_of_other_servers_send() {
    let request = speech(
        r#"{"input":"Hello.","speaker":{"id":"clara"},"instruct":"calmly","lang_code":"english","stream":true,"task_type":"Base","word_timestamps":false,"max_tokens":null,"speed":0.25,"response_format":"mp3"}"#,
    )
    .unwrap();
    assert_eq!(request.ask.voice.as_deref(), Some("clara"));
    assert_eq!(request.ask.instructions.as_deref(), Some("calmly"));
    assert_eq!(request.ask.language.as_deref(), Some("english"));
    assert_eq!((request.speed.get(), request.format), (0.25, SpeechFormat::Opus));
    for (body, transcript) in [
        (r#"{"input":"a","ref_audio":"data:audio/wav;base64,UklG","x_vector_only_mode":true}"#, None),
        (
            r#"{"input":"a","references":[{"audio":"UklG","text":"Hm."}],"x_vector_only_mode":true}"#,
            Some("Hm."),
        ),
    ] {
        let reference = speech(body).unwrap().reference.expect("a clip");
        assert_eq!((reference.audio.as_str(), reference.transcript.as_deref()), ("UklG", transcript));
        assert_eq!(reference.mode, Some(contract::CloneMode::Speaker));
    }
}

#[test]
fn every_field_of_a_speech_request_stands_in_its_page() {
    let page = include_str!("../../../docs/speech.md");
    let known = speech(r#"{"input":"a","zzzz":1}"#).unwrap_err().to_string();
    let names: Vec<&str> = known.split("known: ").nth(1).expect("a list").split(", ").collect();
    assert!(names.len() > 30, "{known}");
    for name in names {
        assert!(page.contains(&format!("`{name}`")), "{name}");
    }
}

#[test]
fn a_speech_request_is_refused_by_the_field_at_fault() {
    let long = format!(r#"{{"input":"{}"}}"#, "a".repeat(4_097));
    for (body, code, param, says) in [
        (r#"{"input":""}"#, "field_out_of_range", "input", "a letter or a digit"),
        (r#"{"input":" \n... "}"#, "field_out_of_range", "input", "a letter or a digit"),
        (r#"{"voice":"clara"}"#, "missing_field", "input", "missing"),
        (long.as_str(), "field_out_of_range", "input", "at most 4096 characters, but has 4097"),
        (
            r#"{"input":"a","response_format":"aac"}"#,
            "unsupported",
            "response_format",
            "none of wav, pcm, opus, flac",
        ),
        (
            r#"{"input":"a","response_format":"mp3","stream_format":"sse"}"#,
            "unsupported",
            "response_format",
            "\"mp3\" is none of",
        ),
        (r#"{"input":"a","speed":4.1}"#, "field_out_of_range", "speed", "from 0.25 to 4"),
        (r#"{"input":"a","max_new_tokens":9}"#, "unsupported", "max_new_tokens", "shorten input"),
        (r#"{"input":"a","speaker":"b","voice":"c"}"#, "duplicate_field", "speaker", "twice"),
        (r#"{"input":"a","ref_audio":"https://a.b/c.wav"}"#, "unsupported", "ref_audio", "base64"),
        (r#"{"input":"a","ref_audio":"/etc/passwd"}"#, "unsupported", "ref_audio", "base64"),
        (r#"{"input":"a","references":[]}"#, "field_out_of_range", "references", "one clip"),
        (r#"{"input":"a","references":[{},{}]}"#, "field_out_of_range", "references", "one clip"),
        (r#"{"input":"a","inputs":"b"}"#, "unknown_field", "inputs", r#"did you mean "input""#),
        (r#"{"input":"a\ud800"}"#, "lone_surrogate", "input", "surrogate"),
        (r#"{"input":"a","sample_rate":44100}"#, "field_out_of_range", "sample_rate", "8000, 16000"),
        (r#"{"input":"a","temperature":1e-400}"#, "", "", ""),
    ] {
        match speech(body) {
            Ok(_) => assert_eq!(code, "", "{body}"),
            Err(error) => {
                assert_eq!((error.code(), error.param()), (code, Some(param)), "{body}: {error}");
                assert!(error.to_string().contains(says), "{error}");
            }
        }
    }
    assert_eq!(speech("[]").unwrap_err().code(), "invalid_json");
}

#[test]
fn the_catalogue_has_the_shape_of_design_section_7() {
    let info = rig::english_info();
    assert_eq!(
        serde_json::to_string(&catalog::voices(&info, 5)).unwrap(),
        r#"{"object":"list","data":[{"id":"clara","name":"clara","created_at":5,"object":"audio.voice","type":"clip","language":"english"},{"id":"marcus","name":"marcus","created_at":5,"object":"audio.voice","type":"clip","language":"english"}]}"#
    );
    assert_eq!(
        serde_json::to_string(&catalog::models(&info, 5)).unwrap(),
        r#"{"object":"list","data":[{"id":"tts-tiny","object":"model","created":5,"owned_by":"voxlane"}]}"#
    );
}

#[test]
fn speech_events_are_written_as_openai_writes_them() {
    let used = contract::Usage {
        characters: 12,
        text_ids: 3,
        frames: 10,
        samples: 38_400,
        encode: contract::Span::from_micros(1_500),
        ..contract::Usage::default()
    };
    assert_eq!(
        SpeechEvent::Delta { audio: "AAA=".to_owned() }.to_event(),
        "data: {\"type\":\"speech.audio.delta\",\"audio\":\"AAA=\"}\n\n"
    );
    assert_eq!(
        SpeechEvent::Done { usage: SpeechUsage::new(&used), finish_reason: "stop" }.to_event(),
        "data: {\"type\":\"speech.audio.done\",\"usage\":{\"input_tokens\":3,\"output_tokens\":10,\"total_tokens\":13,\"characters\":12,\"audio_ms\":800,\"encode_ms\":1.5},\"finish_reason\":\"stop\"}\n\n"
    );
}

#[test]
fn a_language_is_known_by_its_name_or_its_code() {
    let known = ["auto".to_owned(), "english".to_owned(), "chinese".to_owned()];
    for (asked, found) in [
        ("English", Some("english")),
        ("en", Some("english")),
        ("en-GB", Some("english")),
        ("zh_CN", Some("chinese")),
        ("auto", Some("auto")),
        ("de", None),
        ("", None),
    ] {
        assert_eq!(catalog::language(&known, asked), found, "{asked}");
    }
}
