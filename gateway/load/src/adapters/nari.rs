//! Nari's socket, `nari.speech.v1`: one request a connection, text by pieces numbered from 0, the end of the
//! text numbered as one more, PCM at 24 kHz.

use contract::Span;
use serde_json::{Map, Value, json};

use super::socket::{Received, Socket, ending_of};
use super::{CLOCK_HZ, PcmPieces, Request, STOP_LIMIT, failure, field_value, until};
use crate::hearing::Hearing;
use crate::outcome::Ending;

const RATE_HZ: u64 = 24_000;

pub(super) async fn speak(
    request: &Request<'_>,
    hearing: &mut Hearing,
    ids_per_s: Option<f64>,
) -> Result<Ending, String> {
    let mut socket = match Socket::connect(request, Some("nari.speech.v1")).await? {
        Ok(socket) => socket,
        Err(ending) => return Ok(ending),
    };
    let clock = request.clock;
    let mut start = Map::new();
    start.insert("type".to_owned(), json!("request.start"));
    for (key, value) in &request.target.fields {
        start.insert(key.clone(), field_value(value));
    }
    socket.send(&Value::Object(start)).await?;
    let begun = clock.now();
    let mut pieces = request.pieces(ids_per_s).into_iter().peekable();
    let mut sequence = 0;
    let mut ended = false;
    let mut pcm = PcmPieces::default();
    loop {
        let text_due = match pieces.peek() {
            Some((after, _)) => {
                Some(begun + Span::from_micros(i64::try_from(after.as_micros()).unwrap_or(0)))
            }
            None if !ended => Some(clock.now()),
            None => None,
        };
        let due = [text_due, hearing.interrupts_at()].into_iter().flatten().min();
        let received = tokio::select! {
            biased;
            received = socket.next() => Some(received?),
            () = until(clock, due) => None,
        };
        let now = clock.now();
        match received {
            Some(Received::Binary(bytes)) => {
                let (count, audible) = pcm.take(&bytes);
                hearing.sound(now, count * CLOCK_HZ / RATE_HZ, audible);
                hearing.first_chunk(count * CLOCK_HZ / RATE_HZ, None);
            }
            Some(Received::Json(message)) => match message["type"].as_str().unwrap_or_default() {
                "response.done" => {
                    return match message["stop_reason"].as_str() {
                        Some("cancelled") => Err("the server cancelled it".to_owned()),
                        _ => Ok(Ending::Done),
                    };
                }
                "error" => {
                    let error = if message["error"].is_object() { &message["error"] } else { &message };
                    if refused(error) && hearing.is_silent() {
                        return Ok(Ending::Refused("capacity".to_owned()));
                    }
                    return ending_of(error, hearing.is_silent());
                }
                _ => {}
            },
            None if hearing.interrupts_at().is_some_and(|at| at <= now) => {
                hearing.interrupted(now);
                socket.send(&json!({ "type": "response.cancel" })).await?;
                return stopped(&mut socket).await;
            }
            None => {
                let message = match pieces.next() {
                    Some((_, text)) => {
                        json!({ "type": "input_text.append", "sequence": sequence, "text": text })
                    }
                    None => {
                        ended = true;
                        json!({ "type": "input_text.end", "sequence": sequence })
                    }
                };
                sequence += 1;
                socket.send(&message).await?;
            }
        }
    }
}

/// A full server says so in words alone, under the code of bad input.
fn refused(error: &Value) -> bool {
    let message = error["message"].as_str().unwrap_or_default();
    ["active request capacity", "command queue capacity", "is not ready"]
        .iter()
        .any(|words| message.contains(words))
}

/// Waits for the end that a cancel brings.
async fn stopped(socket: &mut Socket) -> Result<Ending, String> {
    let end = async {
        loop {
            match socket.next().await {
                Ok(Received::Json(message)) if message["type"] == "response.done" => break,
                Ok(_) => {}
                // It may close instead of answering.
                Err(_) => break,
            }
        }
    };
    tokio::time::timeout(STOP_LIMIT, end)
        .await
        .map_err(|_| failure("the server did not answer an interrupt"))?;
    Ok(Ending::Interrupted)
}
