//! Responses and items.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use contract::{EngineError, FinishReason, Span};
use proto::realtime::Start;
use proto::session::{ClipForm, Message};
use serde_json::{Value, json};

use crate::client::Client;
use crate::rig;

const BEGINNING: [&str; 4] = [
    "response.created",
    "response.output_item.added",
    "conversation.item.added",
    "response.content_part.added",
];
pub(crate) const ENDING: [&str; 6] = [
    "response.output_audio.done",
    "response.output_audio_transcript.done",
    "response.content_part.done",
    "conversation.item.done",
    "response.output_item.done",
    "response.done",
];

#[test]
fn a_response_speaks_the_users_text_and_its_events_come_in_the_order_clients_rely_on() {
    let mut client = Client::new();
    assert_eq!(client.kinds(), ["session.created"]);
    assert_eq!(client.last("session.created")["session"]["model"], "tts-tiny");
    client.say("One two three.");
    assert_eq!(client.ask(&json!({ "metadata": { "client_event_id": "x" } })), BEGINNING);
    assert_eq!(client.last("response.created")["response"]["metadata"]["client_event_id"], "x");
    client.speak(10);
    client.finish(FinishReason::Done, None);
    let kinds = client.kinds();
    let middle = &kinds[BEGINNING.len()..kinds.len() - ENDING.len()];
    let pieces = middle.iter().filter(|kind| *kind == "response.output_audio.delta").count();
    assert!((8..=12).contains(&pieces), "800 ms come in events of about 100 ms: {pieces}");
    let told = client.events.iter().filter(|event| event["type"] == "response.output_audio_transcript.delta");
    let told: Vec<(&str, Option<f64>)> =
        told.map(|event| (event["delta"].as_str().unwrap(), event["start_time"].as_f64())).collect();
    // However few characters have a time at once, what leaves are words.
    assert_eq!(told.iter().map(|(delta, _)| *delta).collect::<Vec<_>>(), ["One ", "two ", "three."]);
    assert!(told.is_sorted_by(|a, b| a.1 < b.1) && told[0].1.is_some(), "when they sound: {told:?}");
    assert_eq!(pieces + told.len(), middle.len());
    assert_eq!(kinds[kinds.len() - ENDING.len()..], ENDING);
    assert_eq!(client.texts, ["One two three."]);
    let sound = client.events.iter().filter(|event| event["type"] == "response.output_audio.delta");
    let bytes: usize =
        sound.map(|event| STANDARD.decode(event["delta"].as_str().unwrap()).unwrap().len()).sum();
    assert_eq!(bytes, 10 * rig::FRAME * 2);
    let done = &client.last("response.done")["response"];
    assert_eq!((&done["status"], &done["usage"]["input_tokens"]), (&json!("completed"), &json!(7)));
    assert_eq!(done["output"][0]["content"][0]["transcript"], "One two three.");
    let ids: std::collections::BTreeSet<&str> =
        client.events.iter().map(|event| event["event_id"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), client.events.len(), "event ids differ");
}

#[test]
fn what_is_spoken_is_the_input_then_the_newest_text_then_the_instructions() {
    let mut client = Client::new();
    client.send(&json!({ "type": "session.update", "session": { "type": "realtime",
        "instructions": "Be kind." } }));
    client.say("Older.");
    client.say("Newer.");
    let input = json!([{ "type": "message", "role": "user",
        "content": [{ "type": "input_text", "text": "Given along." }] }]);
    assert_eq!(client.ask(&json!({ "conversation": "none", "input": input })).len(), BEGINNING.len() - 1);
    assert_eq!(client.last("response.created")["response"]["conversation_id"], Value::Null);
    client.ask(&json!({}));
    client.finish(FinishReason::Done, None);
    // LiveKit's client puts the session's instructions first.
    client.ask(&json!({ "instructions": "Be kind.\nSay good night." }));
    client.finish(FinishReason::Done, None);
    assert_eq!(client.texts, ["Given along.", "Newer.", "Say good night."]);
    client.ask(&json!({}));
    let done = &client.last("response.done")["response"];
    assert_eq!(
        (&done["status"], &done["status_details"]["error"]["code"]),
        (&json!("failed"), &json!("empty_text"))
    );
    assert!(client.errors().is_empty());
}

#[test]
fn a_second_response_is_refused_by_the_name_of_its_event_and_a_cancel_ends_the_first() {
    let mut client = Client::new();
    client.say("One two three four five six seven eight.");
    client.ask(&json!({}));
    client.speak(20);
    client.ask(&json!({}));
    let error = &client.last("error")["error"];
    assert_eq!(error["code"], "conversation_already_has_active_response");
    assert_eq!(error["event_id"], "ask");
    client.events.clear();
    client.send(&json!({ "type": "response.cancel" }));
    assert_eq!(client.kinds(), ENDING);
    let done = &client.last("response.done")["response"];
    assert_eq!(done["status"], "cancelled");
    assert_eq!(done["status_details"]["reason"], "client_cancelled");
    assert_eq!(client.cancelled, client.contexts);
    client.events.clear();
    client.send(&json!({ "type": "response.cancel" }));
    assert_eq!(client.errors(), ["response_cancel_not_active"]);
    assert!(client.last("error")["error"]["message"].as_str().unwrap().starts_with("Cancellation failed"));
    client.finish(FinishReason::Cancelled, None);
    client.say("Another.");
    assert_eq!(client.ask(&json!({})), BEGINNING);
}

#[test]
fn a_response_that_fails_keeps_the_words_that_were_told_and_no_others() {
    let text = "One two three four five six seven eight nine ten eleven twelve.";
    for frames in [0, 20] {
        let mut client = Client::new();
        client.say(text);
        client.ask(&json!({}));
        if frames > 0 {
            client.speak(frames);
        }
        client.finish(FinishReason::Failed, Some(EngineError::NotFinite));
        let told = client.events.iter().filter(|e| e["type"] == "response.output_audio_transcript.delta");
        let told: String = told.filter_map(|event| event["delta"].as_str()).collect();
        assert!(told.len() < text.len() && told.is_empty() == (frames == 0), "{told:?}");
        let done = &client.last("response.done")["response"];
        let (item, content) = (done["output"][0]["id"].clone(), &done["output"][0]["content"][0]);
        assert_eq!((&done["status"], &content["transcript"]), (&json!("failed"), &json!(told)));
        assert_eq!(client.last("response.output_audio_transcript.done")["transcript"], told);
        // The listener may have stopped before its end.
        client.send(&json!({ "type": "conversation.item.truncate", "item_id": item, "content_index": 0,
            "audio_end_ms": 99_000 }));
        assert_eq!(client.last("conversation.item.truncated")["audio_end_ms"], frames * 80);
        client.send(&json!({ "type": "conversation.item.retrieve", "item_id": item }));
        let kept = &client.last("conversation.item.retrieved")["item"]["content"][0]["transcript"];
        assert_eq!(*kept, told);
    }
}

#[test]
fn items_are_kept_echoed_placed_and_deleted_and_a_second_of_one_id_is_refused() {
    let mut client = Client::new();
    let create = |id: &str, previous: Value| {
        json!({ "type": "conversation.item.create", "event_id": id, "previous_item_id": previous,
            "item": { "id": id, "type": "function_call", "call_id": "c", "name": "f", "arguments": "{}" } })
    };
    client.send(&create("b", Value::Null));
    client.send(&create("a", json!("root")));
    assert_eq!(client.last("conversation.item.added")["previous_item_id"], Value::Null);
    client.send(&create("c", json!("b")));
    assert_eq!(client.last("conversation.item.done")["previous_item_id"], "b");
    assert_eq!(client.last("conversation.item.done")["item"]["arguments"], "{}");
    client.send(&create("c", Value::Null));
    client.send(&create("d", json!("nobody")));
    client.send(&json!({ "type": "conversation.item.delete", "item_id": "b" }));
    assert_eq!(client.last("conversation.item.deleted")["item_id"], "b");
    client.send(&json!({ "type": "conversation.item.retrieve", "event_id": "r", "item_id": "b" }));
    assert_eq!(client.last("error")["error"]["event_id"], "r");
    client.send(&json!({ "type": "conversation.item.create", "item": { "type": "mcp_call" } }));
    client.send(&json!({ "type": "conversation.item.create", "item": { "type": "message", "role": "user",
        "content": [{ "type": "input_audio", "audio": "AAAA" }] } }));
    let part = &client.last("conversation.item.added")["item"]["content"][0];
    assert_eq!(*part, json!({ "type": "input_audio", "transcript": null }), "sound is not kept");
    assert_eq!(
        client.errors(),
        [
            "item_create_duplicate_item_id",
            "item_create_invalid_previous_item_id",
            "item_retrieve_invalid_item_id",
            "invalid_value"
        ]
    );
}

#[test]
fn an_update_changes_what_it_names_and_shows_the_whole_and_old_names_are_understood() {
    let mut client = Client::new();
    client.send(&json!({ "type": "session.update", "session": { "type": "realtime", "tracing": "auto",
        "audio": { "input": { "turn_detection": { "type": "semantic_vad" } },
            "output": { "voice": { "id": "marcus" }, "format": { "type": "audio/pcmu" } } } } }));
    let session = client.last("session.updated")["session"].clone();
    assert_eq!(session["audio"]["output"]["voice"], "marcus");
    assert_eq!(session["audio"]["output"]["format"], json!({ "type": "audio/pcmu" }));
    assert_eq!(session["audio"]["input"]["turn_detection"]["interrupt_response"], true);
    assert_eq!(session["tracing"], "auto");
    client.send(
        &json!({ "type": "session.update", "session": { "voice": "clara", "modalities": ["text", "audio"],
        "output_audio_format": "pcm16", "turn_detection": null } }),
    );
    let session = client.last("session.updated")["session"].clone();
    assert_eq!(session["audio"]["output"]["voice"], "clara");
    assert_eq!(session["audio"]["output"]["format"]["rate"], 24_000);
    assert_eq!(session["audio"]["input"]["turn_detection"], Value::Null);
    assert_eq!(session["output_modalities"], json!(["audio"]));
    // Bounds of names are in characters, and a whole number is one however JSON writes it.
    let (longest, longer) = ("\u{e9}".repeat(256), "e".repeat(257));
    client.send(&json!({ "type": "session.update", "session": { "audio": { "output": { "voice": longest,
        "format": { "type": "audio/pcm", "rate": 24_000.0 } } }, "voxlane": { "language": longest } } }));
    let session = client.last("session.updated")["session"].clone();
    assert_eq!(session["audio"]["output"]["voice"], longest);
    assert_eq!(session["voxlane"]["language"], longest);
    for wrong in [
        json!({ "audio": { "output": { "voice": longer } } }),
        json!({ "audio": { "output": { "voice": "" } } }),
        json!({ "voxlane": { "language": longer } }),
        json!({ "type": "transcription" }),
        json!({ "audio": { "output": { "format": { "type": "audio/opus" } } } }),
        json!({ "audio": { "output": { "format": { "type": "audio/pcm", "rate": 16_000 } } } }),
        json!({ "output_modalities": ["smell"] }),
        json!({ "voxlane": { "sed": 1 } }),
    ] {
        client.events.clear();
        client.send(&json!({ "type": "session.update", "session": wrong }));
        assert_eq!(client.errors(), ["invalid_value"], "{wrong}");
    }
}

#[test]
fn an_engines_refusal_is_a_failed_response_and_an_unknown_voice_an_error_that_names_its_event() {
    let mut client = Client::new();
    client.say("One.");
    client.refuse = Some(EngineError::Overloaded { retry_after: Span::from_millis(900) });
    client.ask(&json!({}));
    let done = &client.last("response.done")["response"];
    assert_eq!(done["status"], "failed");
    assert_eq!(done["status_details"]["error"]["code"], "overloaded");
    client.say("Two.");
    assert_eq!(client.ask(&json!({ "audio": { "output": { "voice": "nobody" } } })), ["error"]);
    let error = &client.last("error")["error"];
    assert_eq!((&error["code"], &error["event_id"]), (&json!("unknown_voice"), &json!("ask")));
    client.say("Three.");
    assert_eq!(client.ask(&json!({ "audio": { "output": { "voice": "alloy" } } })), BEGINNING);
    assert_eq!(client.closed, None);
}

#[test]
fn a_text_that_no_response_could_speak_for_no_fault_of_its_own_is_spoken_by_the_next() {
    let mut client = Client::new();
    let nobody = json!({ "audio": { "output": { "voice": "nobody" } } });
    client.say("One.");
    assert_eq!(client.ask(&nobody), ["error"]);
    client.ask(&json!({}));
    assert_eq!(client.texts.last().map(String::as_str), Some("One."));
    client.finish(FinishReason::Done, None);
    // Once the engine has taken a response it may yet refuse it, at once or before the first sound.
    client.say("Two.");
    client.refuse = Some(EngineError::Overloaded { retry_after: Span::from_millis(900) });
    client.ask(&json!({}));
    assert_eq!(client.last("response.done")["response"]["status"], "failed");
    client.refuse = None;
    client.ask(&json!({}));
    assert_eq!(client.texts.last().map(String::as_str), Some("Two."));
    client.finish(FinishReason::Done, None);
    // A text that is itself at fault does not stand in the way of what is asked later.
    client.say("Three.");
    client.refuse = Some(EngineError::ControlToken { token: "<|im_end|>".to_owned() });
    client.ask(&json!({}));
    assert_eq!(client.last("response.done")["response"]["status"], "failed");
    client.ask(&json!({ "instructions": "Sorry." }));
    assert_eq!(client.texts.last().map(String::as_str), Some("Sorry."));
}

#[test]
fn own_settings_reach_the_engine_from_the_credential_the_session_and_the_response() {
    let given = json!({ "type": "realtime", "voxlane": { "seed": 5 } });
    let mut client = Client::with(Start { model: None, session: given.as_object().cloned() });
    client.say("One.");
    client.ask(&json!({}));
    client.finish(FinishReason::Done, None);
    client.say("Two.");
    client.ask(&json!({ "voxlane": { "seed": 6, "language": "english" } }));
    let seeds: Vec<_> = client.requests.iter().map(|request| request.sampling.seed).collect();
    assert_eq!(seeds, [Some(5), Some(6)]);
    assert_eq!(client.requests[1].language.as_deref(), Some("english"));
}

#[test]
fn a_committed_recording_becomes_the_voice_when_the_commit_says_so() {
    let mut client = Client::new();
    client.send(&json!({ "type": "session.update", "session": { "turn_detection": null } }));
    client.send(&json!({ "type": "input_audio_buffer.commit" }));
    assert_eq!(client.errors(), ["input_audio_buffer_commit_empty"]);
    // Three bytes, then one: pieces may end within a sample; and nobody has padded.
    for audio in ["AAAA", "AA"] {
        client.send(&json!({ "type": "input_audio_buffer.append", "audio": audio }));
    }
    client.events.clear();
    client.send(&json!({ "type": "input_audio_buffer.commit",
        "voxlane": { "reference": { "transcript": "Hm." } } }));
    assert_eq!(
        client.kinds(),
        ["input_audio_buffer.committed", "conversation.item.added", "conversation.item.done"]
    );
    client.say("One.");
    client.ask(&json!({}));
    let job = &client.references[0];
    let ClipForm::Packets { sample_rate, packets, .. } = &job.form else { panic!("{job:?}") };
    assert_eq!((packets.concat().len(), *sample_rate), (4, 24_000));
    assert_eq!(job.transcript.as_deref(), Some("Hm."));
}

#[test]
fn a_speed_of_the_protocol_is_kept_and_another_refused() {
    let mut client = Client::new();
    let update = |speed: f64| json!({ "type": "session.update", "session": { "type": "realtime", "audio": { "output": { "speed": speed } } } });
    client.send(&update(1.25));
    assert_eq!(client.last("session.updated")["session"]["audio"]["output"]["speed"], 1.25);
    client.say("Hello there.");
    client.ask(&json!({}));
    client.speak(25);
    client.finish(FinishReason::Done, None);
    let sound: usize = client
        .events
        .iter()
        .filter(|event| event["type"] == "response.output_audio.delta")
        .filter_map(|event| event["delta"].as_str())
        .map(|delta| delta.len() / 4 * 3)
        .sum();
    // Two seconds of 16-bit samples at 24 kHz, heard in less time.
    assert!(sound.abs_diff(96_000 * 4 / 5) < 1_000, "{sound}");
    for speed in [0.2, 1.6] {
        client.events.clear();
        client.send(&update(speed));
        assert_eq!(client.errors(), ["invalid_value"]);
    }
}

#[test]
fn a_setting_of_turn_detection_is_one_of_its_list_or_within_its_bounds_and_shown_as_it_is_kept() {
    let mut client = Client::new();
    let update = |turns: Value| {
        json!({ "type": "session.update",
        "session": { "audio": { "input": { "turn_detection": turns } } } })
    };
    for (kind, name, bad) in [
        ("semantic_vad", "eagerness", json!("wild")),
        ("semantic_vad", "eagerness", json!(2)),
        ("server_vad", "threshold", json!(7)),
        ("server_vad", "threshold", json!("0.5")),
        ("server_vad", "silence_duration_ms", json!(-5)),
        ("server_vad", "prefix_padding_ms", json!(0.5)),
        ("server_vad", "idle_timeout_ms", json!(60_001)),
        ("server_vad", "create_response", json!("no")),
    ] {
        client.events.clear();
        client.send(&update(json!({ "type": kind, name: bad })));
        assert_eq!(client.errors(), ["invalid_value"], "{name} {bad}");
        let error = &client.last("error")["error"];
        assert_eq!(error["param"], "session.audio.input.turn_detection");
        assert!(error["message"].as_str().is_some_and(|message| message.contains(name)), "{error}");
    }
    let given = json!({ "type": "server_vad", "threshold": 1, "prefix_padding_ms": null, "silence_duration_ms": 700.0,
        "idle_timeout_ms": 6_000, "interrupt_response": false });
    client.events.clear();
    client.send(&update(given));
    let shown = &client.last("session.updated")["session"]["audio"]["input"]["turn_detection"];
    let kept = json!({ "type": "server_vad", "threshold": 1.0, "prefix_padding_ms": 300, "silence_duration_ms": 700,
        "idle_timeout_ms": 6_000, "create_response": true, "interrupt_response": false });
    assert_eq!(*shown, kept);
}

#[test]
fn bad_events_are_errors_with_a_name_and_the_session_goes_on() {
    let mut client = Client::new();
    client.events.clear();
    for (event, code) in [
        (json!({ "type": "response.think", "event_id": "e" }), "unknown_event"),
        (json!({ "type": "session.update" }), "missing_required_parameter"),
        (json!({ "type": "session.update", "session": { "audio": 7 } }), "invalid_type"),
        (json!({ "type": "session.update", "session": { "audio": { "input": [] } } }), "invalid_type"),
        (json!({ "type": "session.update", "session": { "instructions": {} } }), "invalid_type"),
        (
            json!({ "type": "session.update", "session": { "turn_detection": { "type": 7 } } }),
            "invalid_value",
        ),
        (json!({ "type": "input_audio_buffer.append" }), "missing_required_parameter"),
        (json!({ "type": "input_audio_buffer.append", "audio": "*" }), "invalid_value"),
        (json!({ "type": "conversation.item.create", "item": [] }), "invalid_value"),
        (json!({ "type": "conversation.item.create", "item": "x".repeat(300_000) }), "event_too_large"),
        (json!({ "type": "input_audio_buffer.append", "audio": "A".repeat(15 << 20 | 4) }), "invalid_value"),
        (json!([]), "invalid_json"),
        (json!({ "type": 7 }), "invalid_json"),
    ] {
        client.events.clear();
        client.send(&event);
        assert_eq!(client.errors(), [code]);
        assert!(client.last("error")["error"]["message"].is_string());
    }
    client.events.clear();
    client.session.handle_message(client.now, Message::Binary(b"audio"));
    client.session.handle_message(client.now, Message::Text("{"));
    client.drain();
    assert_eq!(client.errors(), ["invalid_event", "invalid_json"]);
    client.say("Still here.");
    assert_eq!(client.ask(&json!({})), BEGINNING);
    // Losing the connection ends the session: this protocol takes none up again.
    client.session.handle_detach(client.now);
    client.drain();
    assert_eq!((client.session.is_closed(), client.cancelled.len()), (true, 1));
}

#[test]
fn an_event_that_cannot_be_read_whole_is_refused_by_its_id_and_none_of_it_is_done() {
    let mut client = Client::new();
    client.say("Mine alone.");
    let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
    for bad in [r#""\ud83d cut""#, r#""cut \ud83d""#, "1e999", "-1e999", &deep] {
        for (kind, field) in [
            ("conversation.item.create", "item"),
            ("conversation.item.delete", "item_id"),
            ("response.cancel", "response_id"),
            ("response.create", "response"),
            ("session.update", "session"),
        ] {
            client.events.clear();
            let event = format!(r#"{{"type":"{kind}","event_id":"bad","{field}":{{"a":{bad}}}}}"#);
            client.session.handle_message(client.now, Message::Text(&event));
            client.drain();
            assert_eq!(client.errors(), ["invalid_json"], "{event}");
            assert_eq!((client.events.len(), &client.last("error")["error"]["event_id"]), (1, &json!("bad")));
        }
    }
    assert_eq!((client.contexts.len(), client.closed), (0, None));
}
