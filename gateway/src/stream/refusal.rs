//! A token that came as a subprotocol and is not taken: told on the socket, because a browser cannot read
//! the status of a refused upgrade.

use std::time::Duration;

use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade};
use axum::response::Response;
use proto::wire::CloseCode;

use crate::error::ApiError;

/// Time the peer gets to take the error and the Close, and to answer it.
const LINGER: Duration = Duration::from_secs(2);
/// It may not say anything, so little room is enough.
const BYTES_MAX: usize = 4_096;

/// What the peer hears.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    message: String,
    code: CloseCode,
}

impl Refusal {
    /// `message` is `error` in the words of the protocol.
    pub(crate) fn new(error: &ApiError, message: String) -> Self {
        // A token that cannot be judged now is not a wrong one.
        let code = if error.status.is_server_error() { CloseCode::Overload } else { CloseCode::Token };
        Self { message, code }
    }
}

/// Upgrades, says why not, closes.
pub(super) fn tell(upgrade: WebSocketUpgrade, protocols: &'static [&str], refusal: Refusal) -> Response {
    upgrade
        .protocols(protocols.iter().copied())
        .read_buffer_size(BYTES_MAX)
        .write_buffer_size(BYTES_MAX)
        .max_frame_size(BYTES_MAX)
        .max_message_size(BYTES_MAX)
        .on_upgrade(async move |websocket| {
            // A peer that takes nothing is let go of.
            let _ended = tokio::time::timeout(LINGER, close(websocket, refusal)).await;
        })
}

async fn close(mut websocket: WebSocket, refusal: Refusal) {
    let Refusal { message, code } = refusal;
    let frame = CloseFrame { code: code.code(), reason: code.name().into() };
    let said = websocket.send(Message::Text(message.into())).await.is_ok();
    if said && websocket.send(Message::Close(Some(frame))).await.is_ok() {
        while websocket.recv().await.is_some_and(|item| item.is_ok()) {}
    }
}
