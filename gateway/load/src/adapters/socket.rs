//! A WebSocket of another protocol: JSON text messages and binary audio.

use futures_util::{SinkExt, StreamExt};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::HeaderValue;
use tokio_tungstenite::tungstenite::protocol::Message;
use tokio_tungstenite::tungstenite::{self};

use super::{Request, failure};
use crate::outcome::Ending;

/// What a server sent.
pub(super) enum Received {
    Json(Value),
    Binary(bytes::Bytes),
}

pub(super) struct Socket(WebSocketStream<TcpStream>);

impl Socket {
    /// Connects to the target's endpoint. A refusal with 429 or 503 is the inner error.
    pub(super) async fn connect(
        request: &Request<'_>,
        subprotocol: Option<&'static str>,
    ) -> Result<Result<Self, Ending>, String> {
        let target = request.target;
        let stream = TcpStream::connect(&target.address).await.map_err(failure)?;
        stream.set_nodelay(true).map_err(failure)?;
        let query = if target.fields.is_empty() { String::new() } else { format!("?{}", target.query()) };
        let url = format!("ws://{}{}{query}", target.address, target.path);
        let mut upgrade = url.into_client_request().map_err(failure)?;
        let headers = upgrade.headers_mut();
        if let Some(subprotocol) = subprotocol {
            headers.insert("sec-websocket-protocol", HeaderValue::from_static(subprotocol));
        }
        if let Some(token) = request.token {
            let value = HeaderValue::from_str(&format!("Bearer {token}")).map_err(failure)?;
            headers.insert("authorization", value);
        }
        match tokio_tungstenite::client_async(upgrade, stream).await {
            Ok((socket, _)) => Ok(Ok(Self(socket))),
            Err(tungstenite::Error::Http(answer)) => match answer.status().as_u16() {
                status @ (429 | 503) => Ok(Err(Ending::Refused(format!("http_{status}")))),
                status => Err(format!("the upgrade was answered with {status}")),
            },
            Err(error) => Err(failure(error)),
        }
    }

    pub(super) async fn send(&mut self, message: &Value) -> Result<(), String> {
        self.0.send(Message::text(message.to_string())).await.map_err(failure)
    }

    /// The next message; an error once the socket has ended.
    pub(super) async fn next(&mut self) -> Result<Received, String> {
        loop {
            match self.0.next().await {
                Some(Ok(Message::Text(text))) => {
                    return serde_json::from_str(&text).map(Received::Json).map_err(failure);
                }
                Some(Ok(Message::Binary(bytes))) => return Ok(Received::Binary(bytes)),
                Some(Ok(Message::Close(frame))) => {
                    let said = frame.map_or_else(String::new, |frame| format!(" with {frame}"));
                    return Err(failure(format!("the server closed{said}")));
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(failure(error)),
                None => return Err("the connection ended".to_owned()),
            }
        }
    }
}

/// What an error message stands for: being turned away before any sound, or a failure.
pub(super) fn ending_of(error: &Value, silent: bool) -> Result<Ending, String> {
    let code = error["code"].as_str().or_else(|| error["type"].as_str()).unwrap_or("error").to_owned();
    let busy = ["overloaded", "capacity", "rate_limit", "too_many", "quota", "full", "busy", "unavailable"];
    if silent && busy.iter().any(|word| code.contains(word)) {
        return Ok(Ending::Refused(code));
    }
    Err(failure(format!("{code}: {}", error["message"].as_str().unwrap_or("the server said no more"))))
}
