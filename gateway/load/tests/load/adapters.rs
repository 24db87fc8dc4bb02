//! Every adapter against the smallest server that speaks its protocol.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use contract::Span;
use futures_util::{SinkExt, StreamExt};
use load::bench::{Run, Witness, run};
use load::mood::Moods;
use load::open_loop::{PATIENCE, Settings};
use load::rates::Rates;
use load::target::Target;
use load::workload::Workload;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_tungstenite::tungstenite::handshake::server::{Request, Response};
use tokio_tungstenite::tungstenite::protocol::Message;

/// What is said: first by the probe, then by the workload.
pub(crate) const TEXTS: [&str; 2] = ["Testing, one, two, three.", "Four words are enough."];

/// Samples at 24 kHz of so many milliseconds, as bytes: silent, or loud.
pub(crate) fn pcm(millis: usize, loud: bool) -> Vec<u8> {
    (0..millis * 24).flat_map(|n| if loud && n % 2 == 0 { 8_000_i16 } else { 3 }.to_le_bytes()).collect()
}

/// Serves each connection with `serve`, and gives the address.
pub(crate) async fn server<F>(serve: impl Fn(TcpStream) -> F + Send + 'static) -> String
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            tokio::spawn(serve(socket));
        }
    });
    address
}

pub(crate) fn settings(moods: &[&str]) -> Settings {
    let workload = Workload::parse("w", "{\"text\": \"Four words are enough.\"}").expect("valid");
    Settings {
        workload: Arc::new(workload),
        moods: Moods::parse(moods).expect("valid"),
        seeds: 0..1,
        token: Some("secret".to_owned()),
        exact_frame_ms: None,
        patience: PATIENCE,
    }
}

pub(crate) async fn measure(target: &str, moods: &[&str]) -> Run {
    measure_with(target, settings(moods)).await
}

pub(crate) async fn measure_with(target: &str, settings: Settings) -> Run {
    let targets = vec![Target::parse(target).expect("valid")];
    let (_alive, cut) = watch::channel(false);
    let rates = Rates::sweep("20").expect("valid");
    let witness = Witness { progress: &|_| {}, so_far: &|_| {}, cut };
    run(targets, settings, rates, Span::from_millis(600), witness).await
}

/// Reads one HTTP request and gives its head and JSON body.
pub(crate) async fn http_request(socket: &mut TcpStream) -> (String, Value) {
    let mut bytes = Vec::new();
    loop {
        let mut piece = [0; 4_096];
        let read = socket.read(&mut piece).await.expect("a request");
        bytes.extend_from_slice(&piece[..read]);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n")
            && let Ok(body) = serde_json::from_str(body)
        {
            return (head.to_lowercase(), body);
        }
        assert!(read > 0, "the request ended early");
    }
}

pub(crate) async fn http_chunk(socket: &mut TcpStream, bytes: &[u8]) {
    let head = format!("{:x}\r\n", bytes.len());
    for part in [head.as_bytes(), bytes, b"\r\n"] {
        socket.write_all(part).await.expect("sent");
    }
}

async fn speech(mut socket: TcpStream, wav: bool, dialect: &'static str) {
    let (head, body) = http_request(&mut socket).await;
    assert!(head.contains("authorization: bearer secret"), "{head}");
    assert!(TEXTS.contains(&body["input"].as_str().expect("text")));
    assert_eq!(body["response_format"], if wav { "wav" } else { "pcm" });
    assert_eq!(body["voice"], "clara");
    assert_eq!(body.get("stream").is_some(), dialect != "speech");
    assert_eq!(body.get("stream_format").is_some(), dialect != "sglang-omni");
    socket.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await.expect("sent");
    if wav {
        let mut header = b"RIFF\xff\xff\xff\xffWAVEfmt ".to_vec();
        header.extend_from_slice(&16_u32.to_le_bytes());
        header.extend_from_slice(&[1, 0, 1, 0, 0xc0, 0x5d, 0, 0, 0x80, 0xbb, 0, 0, 2, 0, 16, 0]);
        header.extend_from_slice(b"data\xff\xff\xff\xff");
        // A header may come in pieces.
        http_chunk(&mut socket, &header[..13]).await;
        http_chunk(&mut socket, &header[13..]).await;
    }
    http_chunk(&mut socket, &pcm(100, false)).await;
    tokio::time::sleep(Duration::from_millis(60)).await;
    let loud = pcm(200, true);
    // Pieces of an odd length: samples are cut in half.
    http_chunk(&mut socket, &loud[..4_063]).await;
    http_chunk(&mut socket, &loud[4_063..]).await;
    socket.write_all(b"0\r\n\r\n").await.expect("sent");
}

#[tokio::test]
async fn first_audio_of_a_streamed_body_is_its_first_loud_sample() {
    for (adapter, wav, dialect) in [
        ("speech", false, "speech"),
        ("speech+wav", true, "speech"),
        ("vllm-omni", false, "vllm-omni"),
        ("sglang-omni", false, "sglang-omni"),
    ] {
        let address = server(move |socket| speech(socket, wav, dialect)).await;
        let run = measure(&format!("a={adapter},http://{address}?voice=clara"), &[]).await;
        assert_eq!(run.error, None);
        let rate = &run.report.targets[0].rates[0];
        assert!(rate.offered > 0 && rate.completed == rate.offered, "{rate:?}");
        let (first_byte, first_audio) = (rate.ttfb_ms.p50.expect("some"), rate.ttfa_ms.p50.expect("some"));
        assert!(first_audio >= first_byte + 50.0, "{adapter}: {first_byte} then {first_audio}");
        assert!(rate.stall_s < 0.1 * rate.offered as f64, "{adapter}: {}", rate.stall_s);
        assert_eq!(rate.frames_made, None);
        assert!(run.report.notes.iter().any(|note| note.contains("0.6 s")), "a short window is marked");
    }
}

#[tokio::test]
async fn a_gap_in_a_body_is_a_stall_of_its_length() {
    let address = server(|mut socket| async move {
        http_request(&mut socket).await;
        socket.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await.expect("sent");
        http_chunk(&mut socket, &pcm(20, true)).await;
        tokio::time::sleep(Duration::from_millis(150)).await;
        http_chunk(&mut socket, &pcm(20, true)).await;
        socket.write_all(b"0\r\n\r\n").await.expect("sent");
    })
    .await;
    let run = measure(&format!("a=speech,http://{address}"), &[]).await;
    let rate = &run.report.targets[0].rates[0];
    assert_eq!((rate.no_stall, rate.goodput), (0.0, 0.0));
    let each = rate.stall_s / rate.offered as f64;
    assert!((0.1..0.3).contains(&each), "{each}");
}

#[tokio::test]
async fn refusals_are_counted_by_code_and_are_no_failures() {
    let address = server(|mut socket| async move {
        http_request(&mut socket).await;
        let body = json!({ "error": { "code": "queue_full", "message": "later" } }).to_string();
        let head = format!("HTTP/1.1 503 Busy\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        socket.write_all(head.as_bytes()).await.expect("sent");
    })
    .await;
    // A target that refuses a lone request cannot be measured, and says why.
    let run = measure(&format!("a=speech,http://{address}"), &[]).await;
    assert!(run.error.as_deref().is_some_and(|error| error.contains("queue_full")), "{:?}", run.error);
    assert!(run.report.targets[0].rates.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_whose_reason_never_comes_is_a_refusal() {
    let address = server(|mut socket| async move {
        let _asked = http_request(&mut socket).await;
        let head = b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: 100\r\n\r\n{";
        socket.write_all(head).await.expect("written");
        std::future::pending::<()>().await;
    })
    .await;
    let run = measure(&format!("a=speech,http://{address}"), &[]).await;
    let error = run.error.unwrap_or_default();
    assert!(error.contains("refused a lone request: http_429"), "{error}");
}

#[tokio::test]
async fn an_unreachable_target_is_one_clear_error() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    drop(listener);
    for adapter in ["native", "speech", "nari", "realtime"] {
        let run = measure(&format!("gone={adapter},ws://{address}"), &[]).await;
        let error = run.error.expect("it cannot be reached");
        assert!(error.contains("gone") && error.to_lowercase().contains("refused"), "{error}");
    }
}

pub(crate) type Socket = tokio_tungstenite::WebSocketStream<TcpStream>;

pub(crate) async fn accept(socket: TcpStream, subprotocol: Option<&'static str>) -> Socket {
    #[expect(clippy::result_large_err, reason = "the library's own signature")]
    let answer = |request: &Request, mut response: Response| {
        assert_eq!(request.headers()["authorization"], "Bearer secret");
        if let Some(subprotocol) = subprotocol {
            assert_eq!(request.headers()["sec-websocket-protocol"], subprotocol);
            response.headers_mut().insert("sec-websocket-protocol", subprotocol.parse().expect("ASCII"));
        }
        Ok(response)
    };
    tokio_tungstenite::accept_hdr_async(socket, answer).await.expect("an upgrade")
}

pub(crate) async fn next_json(socket: &mut Socket) -> Option<Value> {
    match socket.next().await {
        Some(Ok(Message::Text(text))) => serde_json::from_str(&text).ok(),
        _ => None,
    }
}

async fn send_json(socket: &mut Socket, message: Value) {
    // A client that has what it wants may be gone.
    let _sent = socket.send(Message::text(message.to_string())).await;
}

async fn nari(socket: TcpStream) {
    let mut socket = accept(socket, Some("nari.speech.v1")).await;
    send_json(&mut socket, json!({ "type": "session.created" })).await;
    let start = next_json(&mut socket).await.expect("a message");
    assert_eq!((start["type"].as_str(), start["voice"].as_str()), (Some("request.start"), Some("aiden")));
    let (mut text, mut sequence) = (String::new(), 0);
    loop {
        let message = next_json(&mut socket).await.expect("a message");
        // Counted from 0, the end of the text included.
        assert_eq!(message["sequence"], sequence);
        if message["type"] == "input_text.end" {
            break;
        }
        sequence += 1;
        assert_eq!(message["type"], "input_text.append");
        text += message["text"].as_str().expect("text");
    }
    assert!(TEXTS.contains(&text.as_str()), "{text}");
    assert!(sequence >= 4, "text came word by word");
    let _sent = socket.send(Message::binary(pcm(4_000, true))).await;
    // Who has not interrupted by then never will.
    let wait = next_json(&mut socket);
    if let Ok(Some(message)) = tokio::time::timeout(Duration::from_millis(4_500), wait).await {
        assert_eq!(message["type"], "response.cancel");
    }
    send_json(&mut socket, json!({ "type": "response.done" })).await;
    while next_json(&mut socket).await.is_some() {}
}

#[tokio::test]
async fn naris_socket_takes_numbered_text_and_answers_an_interrupt() {
    let address = server(nari).await;
    let run = measure(&format!("a=nari+ids=200,ws://{address}?voice=aiden"), &["barge-in=1"]).await;
    assert_eq!(run.error, None);
    let rate = &run.report.targets[0].rates[0];
    assert!(rate.offered > 0 && rate.completed == rate.offered, "{rate:?}");
    assert_eq!(rate.first_chunk_ms, Some(4_000.0));
}

async fn realtime(socket: TcpStream, old_names: bool) {
    let mut socket = accept(socket, None).await;
    send_json(&mut socket, json!({ "type": "session.created" })).await;
    let item = next_json(&mut socket).await.expect("a message");
    assert!(TEXTS.contains(&item["item"]["content"][0]["text"].as_str().expect("text")));
    assert_eq!(next_json(&mut socket).await.expect("a message")["type"], "response.create");
    let delta = if old_names { "response.audio.delta" } else { "response.output_audio.delta" };
    for _ in 0..10 {
        let audio = STANDARD.encode(pcm(400, true));
        send_json(&mut socket, json!({ "type": delta, "item_id": "i1", "delta": audio })).await;
    }
    let wait = next_json(&mut socket);
    match tokio::time::timeout(Duration::from_millis(if old_names { 1 } else { 4_500 }), wait).await {
        Ok(Some(cancel)) => {
            assert_eq!(cancel["type"], "response.cancel");
            let truncate = next_json(&mut socket).await.expect("a message");
            assert_eq!(
                (&truncate["type"], &truncate["item_id"]),
                (&json!("conversation.item.truncate"), &json!("i1"))
            );
            let played = truncate["audio_end_ms"].as_u64().expect("a position");
            assert!((400..4_000).contains(&played), "{played}");
            send_json(&mut socket, json!({ "type": "response.done", "response": { "status": "cancelled" } }))
                .await;
        }
        _ => {
            send_json(&mut socket, json!({ "type": "response.done", "response": { "status": "completed" } }))
                .await
        }
    }
    while next_json(&mut socket).await.is_some() {}
}

#[tokio::test]
async fn realtime_is_heard_by_either_name_and_interrupted_with_a_position() {
    let old = server(|socket| realtime(socket, true)).await;
    let run = measure(&format!("a=realtime,ws://{old}"), &[]).await;
    assert_eq!(run.error, None);
    let rate = &run.report.targets[0].rates[0];
    assert!(rate.offered > 0 && rate.completed == rate.offered && rate.stall_s == 0.0, "{rate:?}");
    assert!((rate.audio_s_per_s * 0.6 / rate.offered as f64 - 4.0).abs() < 0.01, "{}", rate.audio_s_per_s);

    let new = server(|socket| realtime(socket, false)).await;
    let run = measure(&format!("a=realtime,ws://{new}"), &["barge-in=1"]).await;
    assert_eq!(run.error, None);
    let rate = &run.report.targets[0].rates[0];
    assert!(rate.offered > 0 && rate.completed == rate.offered, "{rate:?}");
    assert!(rate.audio_s_per_s > 0.0);
}
