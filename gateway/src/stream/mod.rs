//! `GET /v1/stream`, and what it shares with the sockets of other protocols: the tasks around one
//! [`proto::session::Session`].
//!
//! Three tasks a session: the reader takes messages off the socket, the writer puts them on it, and the
//! drive owns the state machine, the engine contexts and the encoders. The drive waits for nothing but
//! the next event, so a cancel is heard at any moment. An endpoint chooses the [`Dialect`] and little
//! else ([`door`]).

mod accounts;
mod door;
mod drive;
mod encoders;
mod engine_side;
mod foreign;
mod late_queue;
mod references;
mod refusal;
mod registry;
mod socket;
mod watch;

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use proto::wire::{ErrorMessage, Native, SUBPROTOCOL, ServerMessage};

use crate::app::App;
use crate::auth::Caller;
use crate::error::ApiError;
use crate::http::RequestId;
use crate::inflow;

pub(crate) use door::{Endpoint, enter};
pub(crate) use foreign::{cartesia, elevenlabs_many, elevenlabs_one};
pub(crate) use refusal::Refusal;
pub(crate) use registry::Registry;

/// `GET /v1/stream`.
pub(crate) async fn upgrade(
    State(app): State<Arc<App>>,
    Extension(id): Extension<RequestId>,
    Extension(caller): Extension<Caller>,
    upgrade: Result<inflow::Upgrade, WebSocketUpgradeRejection>,
) -> Result<Response, Response> {
    let upgrade = upgrade.map_err(|rejection| refused_upgrade(&rejection))?;
    if !upgrade.socket.requested_protocols().any(|given| given == SUBPROTOCOL) {
        let message = format!("offer the subprotocol {SUBPROTOCOL} in Sec-WebSocket-Protocol");
        return Err(ApiError::bad_request("subprotocol_required", message).into_response());
    }
    let endpoint = Endpoint::new(&app, "stream", &[SUBPROTOCOL], Box::new(Native));
    enter(&app, id, caller, upgrade, endpoint, |error, id| {
        let (context, epoch) = (None, None);
        let message = ErrorMessage { error: error.object(id), context, epoch, id: None };
        Refusal::new(error, ServerMessage::Error(message).to_json())
    })
    .map_err(IntoResponse::into_response)
}

/// A secret that cannot be guessed.
fn resume_token() -> std::io::Result<String> {
    Ok(format!("r-{}", crate::app::random_hex::<16>()?))
}

pub(crate) fn refused_upgrade(rejection: &WebSocketUpgradeRejection) -> Response {
    let (status, code, message) = match rejection {
        WebSocketUpgradeRejection::InvalidWebSocketVersionHeader(_) => {
            let message = "Sec-WebSocket-Version must be 13";
            (StatusCode::UPGRADE_REQUIRED, "websocket_version", message)
        }
        WebSocketUpgradeRejection::MethodNotGet(_) | WebSocketUpgradeRejection::MethodNotConnect(_) => {
            (StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", "upgrade with GET")
        }
        WebSocketUpgradeRejection::WebSocketKeyHeaderMissing(_) => {
            (StatusCode::BAD_REQUEST, "websocket_key", "Sec-WebSocket-Key is missing")
        }
        WebSocketUpgradeRejection::ConnectionNotUpgradable(_)
        | WebSocketUpgradeRejection::InvalidConnectionHeader(_)
        | WebSocketUpgradeRejection::InvalidUpgradeHeader(_) => {
            let message = "this path is a WebSocket; send Connection: Upgrade and Upgrade: websocket";
            (StatusCode::UPGRADE_REQUIRED, "upgrade_required", message)
        }
        _ => (StatusCode::BAD_REQUEST, "bad_upgrade", "this request cannot be upgraded to a WebSocket"),
    };
    let mut response = ApiError::new(status, code, message).into_response();
    if status == StatusCode::UPGRADE_REQUIRED {
        let headers = response.headers_mut();
        headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
        headers.insert(header::SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"));
    }
    response
}
