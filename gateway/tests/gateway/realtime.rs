//! `GET /v1/realtime`: its door, and one response over a real socket.

use futures_util::StreamExt;
use serde_json::json;
use tokio_tungstenite::tungstenite::Error;
use tokio_tungstenite::tungstenite::protocol::Message;

use crate::json_socket::{Socket, event, say};
use crate::keyring::{API_KEY, Keyring};
use crate::support::{Running, eventually, start};

async fn connect(
    server: &Running,
    query: &str,
    headers: &[(&'static str, String)],
) -> Result<(Socket, Option<String>), Error> {
    crate::json_socket::connect(server, &format!("/v1/realtime{query}"), headers).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_browser_is_let_in_by_subprotocol_and_its_token_is_never_echoed() {
    let server = Keyring::new().serve("").await;
    let offered =
        |token: &str| vec![("sec-websocket-protocol", format!("realtime, openai-insecure-api-key.{token}"))];
    let (mut socket, selected) = connect(&server, "", &offered(API_KEY)).await.expect("let in");
    assert_eq!(selected.as_deref(), Some("realtime"));
    assert_eq!(event(&mut socket).await["type"], "session.created");
    let (mut socket, selected) = connect(&server, "", &offered("wrong")).await.expect("upgraded");
    assert_eq!(selected.as_deref(), Some("realtime"));
    let told = event(&mut socket).await;
    assert_eq!((&told["type"], &told["error"]["code"]), (&json!("error"), &json!("invalid_api_key")));
    match socket.next().await.expect("a close").expect("readable") {
        Message::Close(frame) => assert_eq!(u16::from(frame.expect("a frame").code), 4401),
        other => panic!("{other:?}"),
    }
    for (query, headers, status) in [
        ("", vec![("authorization", "Bearer wrong".to_owned())], 401),
        ("?model=gpt-realtime", vec![("authorization", format!("Bearer {API_KEY}"))], 404),
        ("?intent=transcription", vec![("authorization", format!("Bearer {API_KEY}"))], 400),
        ("?model=a&model=b", vec![("authorization", format!("Bearer {API_KEY}"))], 400),
    ] {
        match connect(&server, query, &headers).await {
            Err(Error::Http(answer)) => assert_eq!(answer.status(), status, "{query}"),
            other => panic!("{query}: {:?}", other.map(|(_, selected)| selected)),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_is_spoken_and_counted_and_a_lost_connection_ends_its_session() {
    let server = start("").await;
    let (mut socket, selected) = connect(&server, "", &[]).await.expect("let in");
    assert_eq!(selected, None);
    let create = json!({ "type": "response.create", "response": { "input": [{ "type": "message",
        "role": "user", "content": [{ "type": "input_text", "text": "One two three." }] }] } });
    say(&mut socket, create.clone()).await;
    let mut sound = 0;
    loop {
        let event = event(&mut socket).await;
        match event["type"].as_str().expect("a type") {
            "response.output_audio.delta" => sound += event["delta"].as_str().expect("base64").len(),
            "response.done" => {
                assert_eq!(event["response"]["status"], "completed", "{event}");
                break;
            }
            _ => {}
        }
    }
    assert!(sound > 1_000);
    assert!(server.metric("voxlane_first_audio_seconds_count", "realtime").await >= 1.0);
    say(&mut socket, create).await;
    while event(&mut socket).await["type"] != "response.output_audio.delta" {}
    drop(socket);
    // Others keep a lost session for a while; this protocol has no way back to one.
    eventually("the session ends with its connection", async || server.sessions().await == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn items_longer_than_any_buffer_are_told_back_whole_and_the_session_goes_on() {
    let server = start("").await;
    let (mut socket, _) = connect(&server, "", &[]).await.expect("let in");
    for words in [40_000, 60_000, 125_000] {
        let text = "a ".repeat(words);
        let content = json!([{ "type": "input_text", "text": text }]);
        let item = json!({ "type": "message", "role": "user", "content": content });
        say(&mut socket, json!({ "type": "conversation.item.create", "item": item })).await;
        let told = loop {
            let event = event(&mut socket).await;
            if event["type"] == "conversation.item.done" {
                break event;
            }
        };
        assert_eq!(told["item"]["content"][0]["text"], text.as_str(), "{words} words");
    }
}

/// Whether or not keys are set: a program is tried out without any.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_secret_brings_its_settings_to_a_server_without_keys_too() {
    let server = start("").await;
    let body = r#"{"session":{"type":"realtime","instructions":"Kept."}}"#;
    let made = crate::support::post(server.public, "/v1/realtime/client_secrets", body).await.json();
    let value = made["value"].as_str().expect("a value").to_owned();
    for (header, text) in [
        ("authorization", format!("Bearer {value}")),
        ("sec-websocket-protocol", format!("realtime, openai-insecure-api-key.{value}")),
    ] {
        let (mut socket, _) = connect(&server, "", &[(header, text)]).await.expect("let in");
        assert_eq!(event(&mut socket).await["session"]["instructions"], "Kept.", "{header}");
    }
    // Nobody needs one, and a wrong one is as good as none.
    let wrong = [("authorization", "Bearer ek_wrong".to_owned())];
    let (mut socket, _) = connect(&server, "", &wrong).await.expect("let in");
    assert_eq!(event(&mut socket).await["session"]["instructions"], "");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_secret_is_made_of_settings_that_a_session_takes_and_answers_with_them_whole() {
    let server = start("").await;
    let ask =
        async |body: String| crate::support::post(server.public, "/v1/realtime/client_secrets", &body).await;
    for (session, code, param) in [
        (r#"{"type":"transcription"}"#, "invalid_value", "session.type"),
        (r#"{"instructions":7}"#, "invalid_type", "session.instructions"),
        (r#"{"audio":{"output":{"voice":""}}}"#, "invalid_value", "session.audio.output.voice"),
        (r#"{"audio":{"output":{"speed":9}}}"#, "invalid_value", "session.audio.output.speed"),
        (
            r#"{"audio":{"input":{"format":{"type":"audio/opus"}}}}"#,
            "invalid_value",
            "session.audio.input.format",
        ),
        (r#"{"voxlane":{"seed":-1}}"#, "invalid_value", "voxlane"),
        (r#"{"model":"gpt-realtime"}"#, "unknown_model", "session.model"),
        (r#"{"model":7}"#, "wrong_type", "session.model"),
    ] {
        let answer = ask(format!(r#"{{"session":{session}}}"#)).await;
        let error = &answer.json()["error"];
        let status = if code == "unknown_model" { 404 } else { 400 };
        assert_eq!((answer.status, &error["code"], &error["param"]), (status, &json!(code), &json!(param)));
    }
    let whole = ask(String::new()).await.json();
    assert_eq!(whole["session"]["audio"]["output"]["format"]["type"], "audio/pcm");
    let named =
        ask(r#"{"session":{"model":"tts-1","audio":{"output":{"speed":1.25}}}}"#.to_owned()).await.json();
    assert_eq!(named["session"]["model"], whole["session"]["model"], "an alias means the first model");
    let value = named["value"].as_str().expect("a value");
    let (mut socket, _) =
        connect(&server, "", &[("authorization", format!("Bearer {value}"))]).await.expect("let in");
    let created = event(&mut socket).await;
    assert_eq!(created["session"]["model"], named["session"]["model"]);
    assert_eq!(created["session"]["audio"], named["session"]["audio"], "what was promised is what begins");
}

/// One thread serves both, and one of them appends minutes of a telephone's audio.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_long_append_of_one_session_holds_up_no_other() {
    let server = start("").await;
    let (mut long, _) = connect(&server, "", &[]).await.expect("let in");
    let (mut other, _) = connect(&server, "", &[]).await.expect("let in");
    event(&mut other).await;
    let format = json!({ "type": "audio/pcmu" });
    let session = json!({ "type": "realtime", "audio": { "input": { "format": format } } });
    say(&mut long, json!({ "type": "session.update", "session": session })).await;
    let begun = tokio::time::Instant::now();
    let listened = tokio::spawn(async move {
        say(&mut long, json!({ "type": "input_audio_buffer.append", "audio": "A".repeat(2 << 20) })).await;
        say(&mut long, json!({ "type": "input_audio_buffer.commit" })).await;
        while event(&mut long).await["type"] != "input_audio_buffer.committed" {}
        begun.elapsed()
    });
    let mut longest = std::time::Duration::ZERO;
    while !listened.is_finished() {
        let asked = tokio::time::Instant::now();
        say(&mut other, json!({ "type": "input_audio_buffer.clear" })).await;
        assert_eq!(event(&mut other).await["type"], "input_audio_buffer.cleared");
        longest = longest.max(asked.elapsed());
    }
    let listened = listened.await.expect("no panic");
    assert!(longest < listened / 2, "waited {longest:?} of {listened:?}");
}
