//! Every adapter against transcripts in the shape of the servers it is for: each names the code it follows.
//!
//! A transcript is a list of steps. `client` and `request` are what must come from the adapter (fields named
//! there must be equal, others may stand beside them), everything else is what the server does. `TEXT` stands
//! for what is said, `SOUND80` for 80 ms of loud PCM in base64.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures_util::SinkExt;
use load::bench::Run;
use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Message};

use super::adapters::{Socket, TEXTS, accept, http_chunk, http_request, measure, next_json, pcm, server};

const TRANSCRIPTS: [(&str, &str); 10] = [
    ("nari", include_str!("transcripts/nari.json")),
    ("nari-full", include_str!("transcripts/nari-full.json")),
    ("vllm-omni", include_str!("transcripts/vllm-omni.json")),
    ("vllm-omni-sse", include_str!("transcripts/vllm-omni-sse.json")),
    ("vllm-omni-broken", include_str!("transcripts/vllm-omni-broken.json")),
    ("sglang-omni", include_str!("transcripts/sglang-omni.json")),
    ("sglang-omni-events", include_str!("transcripts/sglang-omni-events.json")),
    ("sglang-omni-full", include_str!("transcripts/sglang-omni-full.json")),
    ("openai-realtime", include_str!("transcripts/openai-realtime.json")),
    ("openai-realtime-failed", include_str!("transcripts/openai-realtime-failed.json")),
];

/// What the adapter did otherwise than the transcript has it.
type Complaints = Arc<Mutex<Vec<String>>>;

/// Whether `found` holds all of `wanted`.
fn holds(found: &Value, wanted: &Value) -> bool {
    match (found, wanted) {
        (Value::Object(found), Value::Object(wanted)) => {
            wanted.iter().all(|(key, value)| found.get(key).is_some_and(|it| holds(it, value)))
        }
        (Value::Array(found), Value::Array(wanted)) => {
            found.len() == wanted.len() && found.iter().zip(wanted).all(|(it, value)| holds(it, value))
        }
        (Value::String(found), Value::String(wanted)) if wanted == "TEXT" => TEXTS.contains(&found.as_str()),
        _ => found == wanted,
    }
}

/// With sound where a transcript has a word for it.
fn filled(text: &str) -> String {
    [80, 320].into_iter().fold(text.to_owned(), |text, millis| {
        text.replace(&format!("SOUND{millis}\""), &format!("{}\"", STANDARD.encode(pcm(millis, true))))
    })
}

enum Peer {
    Http(TcpStream),
    Socket(Box<Socket>),
}

impl Peer {
    async fn step(&mut self, step: &Value) -> Result<(), String> {
        let sound = step["sound_ms"].as_u64().map(|millis| pcm(millis as usize, true));
        match (self, sound) {
            (Self::Http(socket), Some(sound)) => http_chunk(socket, &sound).await,
            (Self::Http(socket), None) => {
                if step["request"].is_object() {
                    let (_, body) = http_request(socket).await;
                    let without = step["without"].as_array().into_iter().flatten();
                    let unwanted = without.filter_map(Value::as_str).any(|key| body.get(key).is_some());
                    if unwanted || !holds(&body, &step["request"]) {
                        return Err(format!("it asked {body}, not {}", step["request"]));
                    }
                } else if let Some(head) = step["head"].as_str() {
                    socket.write_all(head.as_bytes()).await.expect("sent");
                } else if let Some(chunk) = step["chunk"].as_str() {
                    http_chunk(socket, filled(chunk).as_bytes()).await;
                } else if step["end"] == true {
                    socket.write_all(b"0\r\n\r\n").await.expect("sent");
                }
            }
            (Self::Socket(socket), Some(sound)) => drop(socket.send(Message::binary(sound)).await),
            (Self::Socket(socket), None) => {
                if step["client"].is_object() {
                    let message = next_json(socket).await.unwrap_or_default();
                    if !holds(&message, &step["client"]) {
                        return Err(format!("it sent {message}, not {}", step["client"]));
                    }
                } else if step["server"].is_object() {
                    drop(socket.send(Message::text(filled(&step["server"].to_string()))).await);
                } else if let Some(code) = step["close"][0].as_u64() {
                    let reason = step["close"][1].as_str().unwrap_or_default().to_owned();
                    let frame = CloseFrame { code: (code as u16).into(), reason: reason.into() };
                    drop(socket.send(Message::Close(Some(frame))).await);
                }
            }
        }
        if let Some(millis) = step["wait_ms"].as_u64() {
            tokio::time::sleep(Duration::from_millis(millis)).await;
        }
        Ok(())
    }
}

/// Measures a server that does what the transcript says.
async fn replay(name: &str, transcript: Arc<Value>) -> (Run, Vec<String>) {
    let complaints = Complaints::default();
    let (noted, script) = (complaints.clone(), transcript.clone());
    let address = server(move |socket| {
        let (noted, script) = (noted.clone(), script.clone());
        async move {
            let http = script["target"].as_str().is_some_and(|target| target.contains("http://"));
            let mut peer = if http {
                Peer::Http(socket)
            } else {
                let subprotocol = (script["subprotocol"] == "nari.speech.v1").then_some("nari.speech.v1");
                Peer::Socket(Box::new(accept(socket, subprotocol).await))
            };
            for step in script["steps"].as_array().into_iter().flatten() {
                if let Err(complaint) = peer.step(step).await {
                    noted.lock().expect("no panic holds it").push(complaint);
                    return;
                }
            }
            // The adapter closes; until then nothing more is said.
            if let Peer::Socket(socket) = &mut peer {
                while next_json(socket).await.is_some() {}
            }
        }
    })
    .await;
    let target = transcript["target"].as_str().expect("a target").replace("ADDRESS", &address);
    let run = measure(&format!("{name}={target}"), &[]).await;
    let complaints = complaints.lock().expect("no panic holds it").clone();
    (run, complaints)
}

#[tokio::test]
async fn adapters_speak_with_the_servers_they_are_for_as_their_code_has_it() {
    for (name, text) in TRANSCRIPTS {
        let transcript: Arc<Value> = Arc::new(serde_json::from_str(text).expect("a transcript"));
        assert!(transcript["source"].as_str().is_some_and(|source| source.contains(": ")), "{name}");
        let (run, complaints) = replay(name, transcript.clone()).await;
        assert!(complaints.is_empty(), "{name}: {}", complaints[0]);
        let ending = transcript["refused"].as_str().or_else(|| transcript["failed"].as_str());
        if let Some(ending) = ending {
            // The probe, a lone request, is answered like this already.
            let error = run.error.expect("it cannot be measured");
            assert!(error.contains(ending), "{name}: {error}");
            assert_eq!(
                error.contains("refused a lone request"),
                transcript["refused"].is_string(),
                "{name}: {error}"
            );
            continue;
        }
        assert_eq!(run.error, None, "{name}");
        let rate = &run.report.targets[0].rates[0];
        assert!(rate.offered > 0 && rate.completed == rate.offered, "{name}: {rate:?}");
        assert_eq!(rate.first_chunk_ms, transcript["first_chunk_ms"].as_f64(), "{name}");
        let heard_ms = rate.audio_s_per_s * 600.0 / rate.offered as f64;
        let wanted = transcript["heard_ms"].as_f64().expect("a length");
        assert!((heard_ms - wanted).abs() < 1.0, "{name}: {heard_ms} ms of sound");
        assert_eq!(rate.stall_s, 0.0, "{name}");
    }
}
