//! What real clients said, recorded by tests/clients/record.py, said again: it is understood, and nothing is
//! answered in a shape that the client was not recorded to read.

mod rig;

use std::collections::BTreeSet;

use proto::dialect::Dialect;
use proto::elevenlabs::{self, Contexts, Options, OutputFormat, Query};
use proto::realtime::{Realtime, Start};
use proto::speech::{SpeechFormat, SpeechRequest, StreamFormat};
use proto::{cartesia, session::EpochKey};
use rig::Rig;
use serde_json::Value;

const TRANSCRIPTS: &[(&str, &str)] = &[
    ("agents-js", include_str!("transcripts/agents-js.jsonl")),
    ("agents-python", include_str!("transcripts/agents-python.jsonl")),
    ("cartesia-sdk", include_str!("transcripts/cartesia-sdk.jsonl")),
    ("elevenlabs-sdk", include_str!("transcripts/elevenlabs-sdk.jsonl")),
    ("livekit-cartesia", include_str!("transcripts/livekit-cartesia.jsonl")),
    ("livekit-elevenlabs", include_str!("transcripts/livekit-elevenlabs.jsonl")),
    ("livekit-openai", include_str!("transcripts/livekit-openai.jsonl")),
    ("openai-npm-browser", include_str!("transcripts/openai-npm-browser.jsonl")),
    ("openai-npm-server", include_str!("transcripts/openai-npm-server.jsonl")),
    ("openai-python", include_str!("transcripts/openai-python.jsonl")),
    ("pipecat-cartesia", include_str!("transcripts/pipecat-cartesia.jsonl")),
    ("pipecat-elevenlabs", include_str!("transcripts/pipecat-elevenlabs.jsonl")),
    ("pipecat-openai", include_str!("transcripts/pipecat-openai.jsonl")),
];
/// What each says first; pipecat's for ElevenLabs and Cartesia begin another turn, and break it off.
const SAID: &str = "Good evening, and welcome.";

fn dialect(path: &str) -> Box<dyn Dialect> {
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    if path == "/tts/websocket" {
        return Box::new(cartesia::Socket::new());
    }
    let query = query.split('&').filter_map(|pair| pair.split_once('='));
    if path == "/v1/realtime" {
        let model = query.clone().find(|(name, _)| *name == "model").map(|(_, model)| model.to_owned());
        return Box::new(Realtime::new(Start { model, session: None }));
    }
    let contexts = if path.ends_with("/multi-stream-input") { Contexts::Many } else { Contexts::One };
    let options = Options::read(contexts, "clara", query).expect("a query as clients send it");
    Box::new(elevenlabs::Socket::new(options))
}

/// What a value is made of: names and kinds, not what they hold.
fn shape(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => value.to_string(),
        // Sound is recorded as its length.
        Value::Number(_) | Value::String(_) => "text or number".to_owned(),
        Value::Array(values) => format!("[{}]", values.first().map(shape).unwrap_or_default()),
        Value::Object(fields) => {
            fields.iter().map(|(name, value)| format!("{name}: {}; ", shape(value))).collect()
        }
    }
}

/// The engine speaks a little of whatever is under way, or all of it.
fn speak(rig: &mut Rig, all: bool) {
    let keys: Vec<EpochKey> = rig.engine.keys().copied().collect();
    for key in keys {
        let context = &rig.engine[&key];
        if !all && !context.done && !context.cancelled {
            rig.speak(key, 1);
        } else if all {
            rig.speak_all(key, 8);
        }
    }
}

#[test]
fn what_real_clients_said_is_understood_and_answered_as_they_read_it() {
    for (name, transcript) in TRANSCRIPTS {
        let mut lines = transcript.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        let path = lines.next().and_then(|line| Some(line["path"].as_str()?.to_owned())).expect("a path");
        let mut rig = Rig::speaking(dialect(&path));
        let mut read = BTreeSet::new();
        for line in lines {
            if let Some(message) = line.get("client") {
                // The recorded server knew a voice that the rig has not.
                rig.text(&message.to_string().replace("\"june\"", "\"clara\""));
                continue;
            }
            let message = &line["server"];
            read.insert(shape(message));
            let ends =
                message["isFinal"] == true || message["type"] == "done" || message["type"] == "response.done";
            // The end of a turn that was broken off comes without the engine.
            let all = ends && rig.engine.len() == 1;
            speak(&mut rig, all);
        }
        let said = rig.said.as_ref().expect("a foreign dialect");
        assert!(!said.is_empty(), "{name}");
        for message in said {
            assert!(read.contains(&shape(message)), "{name} was not recorded to read {message}");
        }
        assert_eq!(rig.engine[&rig.key(1, 0)].segments, [SAID], "{name}");
        assert!(rig.engine[&rig.key(1, 0)].done, "{name}: the first turn is spoken to its end");
        let broken = rig.engine.get(&rig.key(2, 0)).map(|context| context.cancelled);
        assert!(broken.unwrap_or(true), "{name}: the second turn is broken off");
        assert_eq!(broken.is_some(), ["pipecat-cartesia", "pipecat-elevenlabs"].contains(name), "{name}");
    }
}

/// What clients asked over HTTP, one a line.
const ASKED: &str = include_str!("transcripts/http.jsonl");

#[test]
fn what_real_clients_asked_over_http_is_understood() {
    let mut clients = BTreeSet::new();
    for line in ASKED.lines() {
        let asked: Value = serde_json::from_str(line).expect("JSON");
        let (client, path) =
            (asked["client"].as_str().expect("a client"), asked["path"].as_str().expect("a path"));
        clients.insert(client.to_owned());
        let body = asked["body"].to_string();
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let named =
            |name: &str| query.split('&').filter_map(|pair| pair.split_once('=')).find(|(n, _)| *n == name);
        if path == "/v1/realtime/client_secrets" {
            let session = asked["body"]["session"].as_object();
            let settings = Realtime::settings(&rig::config().engine.models[0], "s", session).expect(client);
            assert_eq!(settings["audio"]["output"]["voice"], "marcus");
            continue;
        }
        let (request, voice) = match path {
            "/v1/audio/speech" => (SpeechRequest::decode(&body, 100).expect(client), None),
            "/tts/bytes" | "/tts/sse" => {
                let ask = cartesia::read_request(&body, 100).expect(client);
                assert_eq!(ask.add_timestamps, path == "/tts/sse", "{client}");
                (ask.request, Some("june"))
            }
            path => {
                let voice = path.split('/').nth(3).expect("a voice").to_owned();
                let format =
                    OutputFormat::read(named("output_format").map(|(_, format)| format)).expect(client);
                (elevenlabs::read_request(&body, Query { voice, format }, 100).expect(client), Some("june"))
            }
        };
        assert_eq!(request.input, SAID, "{client}");
        assert_eq!(request.ask.voice.as_deref(), voice.or(asked["body"]["voice"].as_str()), "{client}");
        assert_eq!(
            request.ask.model.as_deref(),
            asked["body"]["model"].as_str(),
            "names of other services' models mean ours"
        );
        let events = asked["body"]["stream_format"] == "sse";
        assert_eq!(request.stream == StreamFormat::Sse, events, "{client}");
        let mp3 = asked["body"]["response_format"] == "mp3";
        assert_eq!(request.format == SpeechFormat::Pcm, !mp3, "{client}: {:?}", request.format);
        assert_eq!(request.speed.get(), asked["body"]["speed"].as_f64().unwrap_or(1.0), "{client}");
    }
    assert_eq!(clients.len(), 9, "{clients:?}");
}
