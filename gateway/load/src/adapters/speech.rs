//! `POST /v1/audio/speech` as OpenAI, vLLM-Omni and SGLang-Omni stream it: raw PCM, WAV or events in
//! the body.
//!
//! The protocol carries no playback reports and no interrupt; who interrupts closes the connection.

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::{Map, Value, json};
use tokio::net::TcpStream;

use super::body::Body;
use super::{Request, STOP_LIMIT, failure, field_value, until};
use crate::hearing::Hearing;
use crate::outcome::Ending;
use crate::target::Dialect;

/// Bytes of an error's body that are read.
const ERROR_MAX: usize = 4_096;

pub(super) async fn speak(
    request: &Request<'_>,
    hearing: &mut Hearing,
    dialect: Dialect,
    wav: bool,
) -> Result<Ending, String> {
    let socket = TcpStream::connect(&request.target.address).await.map_err(failure)?;
    socket.set_nodelay(true).map_err(failure)?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(socket)).await.map_err(failure)?;
    let answering = async {
        let mut answer = sender.send_request(post(request, dialect, wav)?).await.map_err(failure)?;
        let status = answer.status().as_u16();
        if status == 200 {
            listen(request, hearing, answer, wav).await
        } else {
            Ok(refused(status, answer.body_mut()).await)
        }
    };
    // The connection is driven beside the request, and dropped with it.
    tokio::pin!(answering);
    tokio::select! {
        ending = &mut answering => ending,
        closed = connection => match closed {
            Ok(()) => answering.await,
            Err(error) => Err(failure(error)),
        },
    }
}

fn post(request: &Request<'_>, dialect: Dialect, wav: bool) -> Result<hyper::Request<Full<Bytes>>, String> {
    let mut body = Map::new();
    body.insert("input".to_owned(), json!(request.utterance.text));
    body.insert("response_format".to_owned(), json!(if wav { "wav" } else { "pcm" }));
    if dialect != Dialect::OpenAi {
        body.insert("stream".to_owned(), json!(true));
    }
    if dialect != Dialect::SglangOmni {
        body.insert("stream_format".to_owned(), json!("audio"));
    }
    if let Some(frames) = request.exact_frames() {
        body.insert("exact_frames".to_owned(), json!(frames));
    }
    for (key, value) in &request.target.fields {
        body.insert(key.clone(), field_value(value));
    }
    let mut head = hyper::Request::post(&request.target.path)
        .header("host", &request.target.address)
        .header("content-type", "application/json");
    if let Some(token) = request.token {
        head = head.header("authorization", format!("Bearer {token}"));
    }
    head.body(Full::new(Bytes::from(Value::Object(body).to_string()))).map_err(failure)
}

async fn listen(
    request: &Request<'_>,
    hearing: &mut Hearing,
    mut answer: hyper::Response<Incoming>,
    wav: bool,
) -> Result<Ending, String> {
    let mut body = Body::of(answer.headers(), wav)?;
    let mut heard = false;
    loop {
        let frame = tokio::select! {
            biased;
            frame = answer.body_mut().frame() => frame,
            () = until(request.clock, hearing.interrupts_at()) => {
                hearing.interrupted(request.clock.now());
                return Ok(Ending::Interrupted);
            }
        };
        let Some(frame) = frame else { break };
        let now = request.clock.now();
        let Ok(bytes) = frame.map_err(failure)?.into_data() else { continue };
        hearing.byte(now);
        let (samples, audible) = body.take(&bytes)?;
        if samples == 0 {
            continue;
        }
        hearing.sound(now, samples, audible);
        // The first piece of a body is the first chunk, where a server does not wait for more.
        if !heard {
            heard = true;
            hearing.first_chunk(samples, None);
        }
    }
    body.end().map(|()| Ending::Done)
}

/// 429 and 503 turn a request away; anything else is a failure.
async fn refused(status: u16, body: &mut Incoming) -> Ending {
    let mut text = Vec::new();
    let reading = async {
        while let Some(Ok(frame)) = body.frame().await {
            if let Ok(bytes) = frame.into_data() {
                text.extend_from_slice(&bytes);
            }
            if text.len() >= ERROR_MAX {
                break;
            }
        }
    };
    // The status has said it; why is not waited for for ever.
    drop(tokio::time::timeout(STOP_LIMIT, reading).await);
    let said: Value = serde_json::from_slice(&text).unwrap_or(Value::Null);
    let error = &said["error"];
    let code = error["code"].as_str().map_or_else(|| format!("http_{status}"), str::to_owned);
    match status {
        429 | 503 => Ending::Refused(code),
        _ => {
            // Servers made with FastAPI say it as `detail`.
            let message = error["message"].as_str().or_else(|| said["detail"].as_str());
            let message = message.unwrap_or("the server said no more");
            Ending::Failed(failure(format!("status {status}, {code}: {message}")))
        }
    }
}
