//! A client of the sockets that speak JSON alone: OpenAI Realtime's, ElevenLabs' and Cartesia's.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use futures_util::{SinkExt, StreamExt};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Error;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::protocol::Message;

use crate::support::{PATIENCE, Running};

pub(crate) type Socket = WebSocketStream<TcpStream>;

/// Connects to `path`; the second part is the subprotocol selected.
pub(crate) async fn connect(
    server: &Running,
    path: &str,
    headers: &[(&'static str, String)],
) -> Result<(Socket, Option<String>), Error> {
    let address = server.address();
    let mut request = format!("ws://{address}{path}").into_client_request().expect("a request");
    for (name, value) in headers {
        request.headers_mut().insert(*name, value.parse().expect("a header"));
    }
    let socket = TcpStream::connect(address).await.expect("connects");
    let (socket, answer) = tokio_tungstenite::client_async(request, socket).await?;
    let selected = answer.headers().get("sec-websocket-protocol");
    Ok((socket, selected.map(|value| value.to_str().expect("text").to_owned())))
}

/// The next message.
pub(crate) async fn event(socket: &mut Socket) -> Value {
    loop {
        let next = tokio::time::timeout(PATIENCE, socket.next()).await.expect("an event in time");
        match next.expect("an event").expect("readable") {
            Message::Text(text) => return serde_json::from_str(&text).expect("JSON"),
            Message::Ping(_) => {}
            other => panic!("{other:?}"),
        }
    }
}

/// The code the server closes with, whatever else it says before.
pub(crate) async fn close_code(socket: &mut Socket) -> u16 {
    loop {
        let next = tokio::time::timeout(PATIENCE, socket.next()).await.expect("a close in time");
        if let Message::Close(frame) = next.expect("a close").expect("readable") {
            return frame.expect("a frame").code.into();
        }
    }
}

pub(crate) async fn say(socket: &mut Socket, event: Value) {
    socket.send(Message::Text(event.to_string().into())).await.expect("sent");
}

/// The sound of all messages up to the `last` one, which is in base64 under `field` of those that carry sound:
/// OpenAI's other messages have other things there.
pub(crate) async fn sound(socket: &mut Socket, field: &str, last: impl Fn(&Value) -> bool) -> Vec<u8> {
    let mut sound = Vec::new();
    loop {
        let event = event(socket).await;
        assert!(event.get("error").is_none_or(Value::is_null) && event["type"] != "error", "{event}");
        let other = event["type"].as_str().is_some_and(|kind| kind.contains("transcript"));
        if let Some(piece) = event[field].as_str().filter(|_| !other) {
            sound.extend(BASE64_STANDARD.decode(piece).expect("base64"));
        }
        if last(&event) {
            return sound;
        }
    }
}
