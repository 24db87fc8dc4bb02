//! OpenAI Realtime: one user item, one response, base64 PCM at 24 kHz in events.
//!
//! Both the present event names and the older `response.audio.*` are taken.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::socket::{Received, Socket, ending_of};
use super::{CLOCK_HZ, PcmPieces, Request, STOP_LIMIT, failure, until};
use crate::ear;
use crate::hearing::Hearing;
use crate::outcome::Ending;

const RATE_HZ: u64 = 24_000;

pub(super) async fn speak(request: &Request<'_>, hearing: &mut Hearing) -> Result<Ending, String> {
    let mut socket = match Socket::connect(request, None).await? {
        Ok(socket) => socket,
        Err(ending) => return Ok(ending),
    };
    let item = json!({ "type": "message", "role": "user",
        "content": [{ "type": "input_text", "text": request.utterance.text }] });
    socket.send(&json!({ "type": "conversation.item.create", "item": item })).await?;
    socket.send(&json!({ "type": "response.create" })).await?;
    let mut pcm = PcmPieces::default();
    let mut item_id = Value::Null;
    loop {
        let received = tokio::select! {
            biased;
            received = socket.next() => Some(received?),
            () = until(request.clock, hearing.interrupts_at()) => None,
        };
        let now = request.clock.now();
        let message = match received {
            Some(Received::Json(message)) => message,
            Some(Received::Binary(_)) => continue,
            None => {
                let played_ms = ear::playing_time(hearing.interrupted(now)).as_millis();
                socket.send(&json!({ "type": "response.cancel" })).await?;
                socket
                    .send(&json!({ "type": "conversation.item.truncate", "item_id": item_id,
                        "content_index": 0, "audio_end_ms": played_ms }))
                    .await?;
                return stopped(&mut socket).await;
            }
        };
        match message["type"].as_str().unwrap_or_default() {
            "response.output_audio.delta" | "response.audio.delta" => {
                item_id = message["item_id"].clone();
                let bytes =
                    STANDARD.decode(message["delta"].as_str().unwrap_or_default()).map_err(failure)?;
                let (count, audible) = pcm.take(&bytes);
                hearing.sound(now, count * CLOCK_HZ / RATE_HZ, audible);
                hearing.first_chunk(count * CLOCK_HZ / RATE_HZ, None);
            }
            "response.done" => {
                let status = message["response"]["status"].as_str().unwrap_or("completed");
                return match status {
                    "completed" | "incomplete" => Ok(Ending::Done),
                    _ => ending_of(&message["response"]["status_details"]["error"], hearing.is_silent()),
                };
            }
            "error" => return ending_of(&message["error"], hearing.is_silent()),
            _ => {}
        }
    }
}

async fn stopped(socket: &mut Socket) -> Result<Ending, String> {
    let end = async {
        while let Ok(received) = socket.next().await {
            if matches!(received, Received::Json(message) if message["type"] == "response.done") {
                break;
            }
        }
    };
    tokio::time::timeout(STOP_LIMIT, end)
        .await
        .map_err(|_| failure("the server did not answer an interrupt"))?;
    Ok(Ending::Interrupted)
}
