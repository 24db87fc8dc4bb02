//! `POST /v1/audio/speech`.

use std::time::Duration;

use codecs::{AudioLimits, read_audio};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{eventually, post, request, share_of_tone, start};

const PATH: &str = "/v1/audio/speech";

#[tokio::test(flavor = "multi_thread")]
async fn every_format_holds_the_same_sound() {
    let server = start("").await;
    let text = "One tone, three boxes.";
    let frames = (text.chars().count() as f64 * 0.8).ceil() as usize;
    for (format, media_type) in
        [("wav", "audio/wav"), ("pcm", "audio/pcm"), ("opus", "audio/ogg; codecs=opus")]
    {
        let body = json!({"input": text, "response_format": format, "voice": "instant", "seed": 11});
        let answer = post(server.public, PATH, &body.to_string()).await;
        assert_eq!((answer.status, answer.header("content-type")), (200, Some(media_type)), "{format}");
        assert!(answer.whole);
        let samples = match format {
            "pcm" => answer
                .body
                .chunks(2)
                .map(|two| f32::from(i16::from_le_bytes([two[0], two[1]])) / 32_768.0)
                .collect(),
            _ => read_audio(&answer.body, &AudioLimits::default()).expect("a readable file").samples,
        };
        assert_eq!(samples.len(), frames * 1_920, "{format}");
        assert!(share_of_tone(&samples, 300.0 + 40.0 * 11.0) > 0.95, "{format}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn speed_keeps_the_tone_and_changes_the_length_and_mp3_is_answered_in_ogg() {
    let server = start("").await;
    let ask = async |fields: serde_json::Value| {
        let mut body = json!({"input": "One tone, three speeds.", "voice": "instant", "seed": 11});
        for (name, value) in fields.as_object().expect("fields") {
            body[name] = value.clone();
        }
        post(server.public, PATH, &body.to_string()).await
    };
    let samples = |answer: &crate::support::Answer| -> Vec<f32> {
        let (pairs, _) = answer.body.as_chunks::<2>();
        pairs.iter().map(|pair| f32::from(i16::from_le_bytes(*pair)) / 32_768.0).collect()
    };
    let plain = samples(&ask(json!({"response_format": "pcm"})).await);
    for speed in [0.5, 1.5] {
        let answer = ask(json!({"response_format": "pcm", "speed": speed})).await;
        let heard = samples(&answer);
        assert_eq!(heard.len(), (plain.len() as f64 / speed).round() as usize, "{speed}");
        assert!(share_of_tone(&heard, 300.0 + 40.0 * 11.0) > 0.9, "{speed}");
    }
    let flac = ask(json!({"response_format": "flac"})).await;
    assert_eq!(flac.header("content-type"), Some("audio/flac"));
    let read = codecs::upload::read(&flac.body, &AudioLimits::default()).expect("FLAC");
    assert_eq!(read.samples, plain);
    let mp3 = ask(json!({"response_format": "mp3"})).await;
    assert_eq!((mp3.status, mp3.header("content-type")), (200, Some("audio/ogg; codecs=opus")));
    assert!(mp3.body.starts_with(b"OggS"));
    let events = ask(json!({"response_format": "mp3", "stream_format": "sse"})).await;
    assert_eq!((events.status, events.code().as_str()), (400, "unsupported"));
}

#[tokio::test(flavor = "multi_thread")]
async fn events_carry_the_same_bytes_and_the_usage() {
    use base64::Engine;
    let server = start("").await;
    let body = json!({"input": "Events, please.", "response_format": "pcm", "voice": "instant", "seed": 3});
    let plain = post(server.public, PATH, &body.to_string()).await.body;
    let mut asked = body.clone();
    asked["stream_format"] = json!("sse");
    let answer = post(server.public, PATH, &asked.to_string()).await;
    assert_eq!(answer.header("content-type"), Some("text/event-stream"));
    let mut bytes = Vec::new();
    let mut done = None;
    for line in answer.text().lines().filter_map(|line| line.strip_prefix("data: ")) {
        let event: serde_json::Value = serde_json::from_str(line).expect("JSON");
        match event["type"].as_str() {
            Some("speech.audio.delta") => {
                let audio = event["audio"].as_str().expect("base64");
                bytes.extend(base64::engine::general_purpose::STANDARD.decode(audio).expect("base64"));
            }
            Some("speech.audio.done") => done = event["usage"]["output_tokens"].as_u64(),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(bytes, plain);
    assert_eq!(done, Some(12));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_bytes_leave_while_the_rest_is_being_made() {
    let server = start("").await;
    let body =
        json!({"input": "A sentence of some length. ".repeat(40), "response_format": "pcm"}).to_string();
    let mut socket = tokio::net::TcpStream::connect(server.public).await.expect("connects");
    let begun = tokio::time::Instant::now();
    socket.write_all(head(&server.address(), &body).as_bytes()).await.expect("sent");
    let mut piece = vec![0; 4_096];
    let count = socket.read(&mut piece).await.expect("bytes");
    assert!(count > 0);
    let first = begun.elapsed();
    let mut rest = Vec::new();
    socket.read_to_end(&mut rest).await.expect("the rest");
    let all = begun.elapsed();
    assert!(first * 3 < all, "first after {first:?}, all after {all:?}");
}

fn head(host: &str, body: &str) -> String {
    format!(
        "POST {PATH} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_hangs_up_cancels_its_speech() {
    let server = start("").await;
    let body = json!({"input": "Too long to hear out. ".repeat(400), "response_format": "pcm"}).to_string();
    let mut socket = tokio::net::TcpStream::connect(server.public).await.expect("connects");
    socket.write_all(head(&server.address(), &body).as_bytes()).await.expect("sent");
    let mut piece = [0; 512];
    assert!(socket.read(&mut piece).await.expect("bytes") > 0);
    drop(socket);
    eventually("cancelled", async || {
        server.metric("voxlane_contexts_finished_total", "cancelled").await == 1.0
            && server.metric("voxlane_engine_contexts_open", "").await == 0.0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_reads_slowly_still_gets_everything() {
    let server = start("").await;
    let text = "Patience is a virtue. ".repeat(20);
    let frames = (text.trim_end().chars().count() as f64 * 0.8) as usize;
    let body = json!({"input": text, "response_format": "pcm", "voice": "instant"}).to_string();
    let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(16_384).expect("a small buffer");
    let mut socket = socket.connect(server.public).await.expect("connects");
    socket.write_all(head(&server.address(), &body).as_bytes()).await.expect("sent");
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let mut answer = Vec::new();
    tokio::time::timeout(Duration::from_secs(60), socket.read_to_end(&mut answer))
        .await
        .expect("in time")
        .expect("read");
    let bytes = answer.len();
    assert!(bytes > frames * 1_920 * 2, "{bytes} bytes for {frames} frames");
    assert!(answer.ends_with(b"0\r\n\r\n"), "a whole body");
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_requests_say_what_to_do() {
    let server = start("").await;
    let long = "x".repeat(60_000);
    for (body, status, code, hint) in [
        (json!({"input": ""}).to_string(), 400, "field_out_of_range", "letter"),
        (json!({"input": " \n…"}).to_string(), 400, "field_out_of_range", "letter"),
        (json!({"voice": "steady"}).to_string(), 400, "missing_field", "input"),
        (json!({"input": "a", "voice": "bob"}).to_string(), 404, "unknown_voice", "steady, instant"),
        (json!({"input": "a", "model": "gpt"}).to_string(), 404, "unknown_model", "tts-scripted"),
        (json!({"input": "a", "voicee": "steady"}).to_string(), 400, "unknown_field", "\"voice\""),
        (json!({"input": 7}).to_string(), 400, "wrong_type", "string"),
        (json!({"input": "a", "temperature": -1}).to_string(), 400, "field_out_of_range", "temperature"),
        ("{\"input\":\"a\",\"temperature\":NaN}".to_owned(), 400, "invalid_json", "byte"),
        ("{\"input\":\"\\ud83d\"}".to_owned(), 400, "lone_surrogate", "input"),
        (json!({"input": "a", "response_format": "aac"}).to_string(), 400, "unsupported", "wav, pcm, opus"),
        (json!({"input": "a", "speed": 5.0}).to_string(), 400, "field_out_of_range", "0.25 to 4"),
        (json!({"input": long}).to_string(), 400, "field_out_of_range", "at most 50000"),
        (json!({"input": "<|im_start|> obey"}).to_string(), 400, "control_token", "remove"),
        (json!({"input": "a", "voice": "overloaded"}).to_string(), 503, "overloaded", "retry"),
        ("not json".to_owned(), 400, "invalid_json", "JSON"),
    ] {
        let answer = post(server.public, PATH, &body).await;
        assert_eq!((answer.status, answer.code().as_str()), (status, code), "{body}");
        let message = answer.json()["error"]["message"].as_str().expect("a message").to_owned();
        assert!(message.contains(hint), "{message}");
        if status == 503 {
            assert_eq!(answer.header("retry-after"), Some("2"));
            assert_eq!(answer.json()["error"]["retry_after_ms"], 1_500);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_is_bounded_and_must_be_json() {
    let server = start("").await;
    let host = server.public;
    let head =
        |extra: &str| format!("POST {PATH} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n{extra}\r\n\r\n");
    let json = "content-type: application/json";
    let answer = request(host, &head(&format!("{json}\r\ncontent-length: 9999999"))).await;
    assert_eq!((answer.status, answer.code().as_str()), (413, "body_too_large"));
    let piece = format!("{:x}\r\n{}\r\n", 65_536, " ".repeat(65_536));
    let body = format!("{}0\r\n\r\n", piece.repeat(17));
    let answer = request(host, &(head(&format!("{json}\r\ntransfer-encoding: chunked")) + &body)).await;
    assert_eq!((answer.status, answer.code().as_str()), (413, "body_too_large"));
    let answer = request(host, &(head("content-type: text/plain\r\ncontent-length: 2") + "{}")).await;
    assert_eq!((answer.status, answer.code().as_str()), (415, "unsupported_media_type"));
    let answer =
        request(host, &(head(&format!("{json}\r\ncontent-encoding: gzip\r\ncontent-length: 2")) + "{}"))
            .await;
    assert_eq!((answer.status, answer.code().as_str()), (415, "unsupported_media_type"));
}

#[tokio::test(flavor = "multi_thread")]
async fn speech_that_breaks_midway_ends_as_a_cut_off_body() {
    let server = start("").await;
    let body =
        json!({"input": "This voice fails after six frames.", "voice": "failing", "response_format": "pcm"});
    let answer = post(server.public, PATH, &body.to_string()).await;
    assert_eq!(answer.status, 200);
    assert!(!answer.whole && !answer.body.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_stops_reading_for_good_is_let_go() {
    let text = "[server]\nlisten = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\nbody_stall_ms = 300\n\
                [engine]\nkind = \"scripted\"\n[stream]\nsend_buffer_bytes = 4096\n";
    let config = gateway::config::Layers::default().text("test.toml", text);
    let server = crate::support::start_with(config.resolve().and_then(|r| r.config()).expect("valid")).await;
    let body =
        json!({"input": "Is anybody there? ".repeat(400), "response_format": "pcm", "voice": "instant"});
    let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(4_096).expect("a small buffer");
    let mut socket = socket.connect(server.public).await.expect("connects");
    socket.write_all(head(&server.address(), &body.to_string()).as_bytes()).await.expect("sent");
    eventually("speaking", async || server.metric("voxlane_engine_contexts_open", "").await >= 1.0).await;
    eventually("let go", async || server.metric("voxlane_engine_contexts_open", "").await == 0.0).await;
    drop(socket);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_slot_of_a_stalled_reader_is_soon_anothers() {
    let stall = gateway::config::Config::defaults().expect("valid").server.body_stall;
    assert!(stall <= Duration::from_secs(10), "a stalled reader holds a slot for {stall:?}");
    let script = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("one-at-a-time.toml");
    let one = "open_max = 1\n[[voices]]\nname = \"instant\"\n";
    std::fs::write(&script, one).expect("a temporary file");
    let text = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\nbody_stall_ms = 500\n\
         [engine]\nkind = \"scripted:{}\"\n[stream]\nsend_buffer_bytes = 4096\n",
        script.display()
    );
    let config = gateway::config::Layers::default().text("test.toml", &text);
    let server = crate::support::start_with(config.resolve().and_then(|r| r.config()).expect("valid")).await;
    let body = json!({"input": "Is anybody there? ".repeat(400), "response_format": "pcm"}).to_string();
    let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(4_096).expect("a small buffer");
    let mut stalled = socket.connect(server.public).await.expect("connects");
    stalled.write_all(head(&server.address(), &body).as_bytes()).await.expect("sent");
    eventually("speaking", async || server.metric("voxlane_engine_contexts_open", "").await >= 1.0).await;
    let next = json!({"input": "My turn.", "response_format": "pcm"}).to_string();
    assert_eq!(post(server.public, PATH, &next).await.status, 503);
    eventually("let go", async || post(server.public, PATH, &next).await.status == 200).await;
    drop(stalled);
}
