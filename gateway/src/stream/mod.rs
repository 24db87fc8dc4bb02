//! `GET /v1/stream`: the door, and the tasks around one [`proto::session::Session`].
//!
//! Three tasks a session: the reader takes messages off the socket, the writer puts them on it, and the
//! drive owns the state machine, the engine contexts and the encoders. The drive waits for nothing but
//! the next event, so a cancel is heard at any moment.

mod drive;
mod encoders;
mod engine_side;
mod references;
mod refusal;
mod registry;
mod socket;
mod watch;

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use contract::{EngineHandle, Span};
use proto::session::{Config, Limits};
use proto::wire::SUBPROTOCOL;

use crate::app::App;
use crate::auth::{Caller, Principal, TokenEnd};
use crate::error::ApiError;
use crate::http::RequestId;
use crate::usage::Account;
use crate::voices::{Shelf, Viewer};

pub(crate) use registry::Registry;

/// Bytes read from a socket at once: the library's default of 128 KiB is most of an idle session.
const READ_BUFFER_BYTES: usize = 2_048;

/// Opus' look-ahead at 48 kHz in the mode we encode in, whatever the input rate.
const OPUS_PRE_SKIP_48K: u16 = 312;

pub(crate) async fn upgrade(
    State(app): State<Arc<App>>,
    Extension(id): Extension<RequestId>,
    Extension(caller): Extension<Caller>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, Response> {
    let refuse = |error: ApiError| error.into_response();
    let upgrade = upgrade.map_err(|rejection| refused_upgrade(&rejection))?;
    if !upgrade.requested_protocols().any(|given| given == SUBPROTOCOL) {
        let message = format!("offer the subprotocol {SUBPROTOCOL} in Sec-WebSocket-Protocol");
        return Err(refuse(ApiError::bad_request("subprotocol_required", message)));
    }
    if app.drain.draining() {
        return Err(refuse(ApiError::draining()));
    }
    let engine = Arc::clone(app.engine().map_err(refuse)?);
    let caller = match caller.0 {
        Ok(caller) => caller,
        Err(error) => return Ok(refusal::tell(upgrade, error, id.0)),
    };
    let Some(place) = app.sessions.enter() else {
        let message = "every session place is taken; try again later";
        let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", message);
        return Err(refuse(error.retry_after_ms(1_000)));
    };
    let config = session_config(&app, &engine, id.0, &caller).map_err(|_| refuse(ApiError::internal()))?;
    let account = Account::of(&caller, &config.session, "stream");
    let token = TokenEnd::of(&caller, app.auth.policy().leeway_s, app.clock);
    let guard = Arc::new(app.drain.enter());
    let limits = &app.config.stream;
    let upgrade = upgrade
        .protocols([SUBPROTOCOL])
        .read_buffer_size(READ_BUFFER_BYTES)
        .write_buffer_size(READ_BUFFER_BYTES)
        .max_write_buffer_size(limits.write_buffer_bytes.max(8 * READ_BUFFER_BYTES))
        .max_frame_size(limits.frame_bytes_max)
        .max_message_size(limits.message_bytes_max);
    Ok(upgrade.on_upgrade(async move |websocket| {
        // The socket's tasks hold the guard too: a session has ended when its Close has left.
        let socket = socket::start(websocket, &guard);
        drive::run(app, engine, config, socket, place, (token, account)).await;
        drop(guard);
    }))
}

/// What the session is told of our configuration.
fn session_config(
    app: &App,
    engine: &Arc<dyn EngineHandle>,
    session: String,
    caller: &Principal,
) -> std::io::Result<Config> {
    let stream = &app.config.stream;
    let span = |duration: std::time::Duration| {
        Span::from_micros(i64::try_from(duration.as_micros()).unwrap_or(i64::MAX))
    };
    let limits = Limits {
        message_bytes: stream.message_bytes_max,
        frame_bytes: stream.frame_bytes_max,
        contexts: stream.contexts_max as usize,
        lead: span(stream.lead),
        unwritten_bytes: stream.write_buffer_bytes as u64,
        unwritten_bytes_max: 4 * stream.write_buffer_bytes as u64,
        slow_reader: span(stream.slow_reader),
        idle: span(stream.idle),
        context_idle: span(stream.context_idle),
        resume_window: span(stream.resume_window),
        ..Limits::default()
    };
    Ok(Config {
        session,
        resume: resume_token()?,
        engine: engine.info(),
        tenant: caller.group(),
        voices: app.voices.clone().map(|store| -> Arc<dyn proto::catalog::Voices> {
            Arc::new(Shelf { store, viewer: Viewer::of(caller) })
        }),
        lexicon: app.lexicons.of(&caller.tenant),
        bench: app.config.engine.bench,
        opus_pre_skip: OPUS_PRE_SKIP_48K,
        limits: Limits { contexts_open: limits.contexts_open.max(limits.contexts), ..limits },
    })
}

/// A secret that cannot be guessed.
fn resume_token() -> std::io::Result<String> {
    Ok(format!("r-{}", crate::app::random_hex::<16>()?))
}

fn refused_upgrade(rejection: &WebSocketUpgradeRejection) -> Response {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_look_ahead_told_to_clients_is_the_encoders_own() {
        use crate::encode::{Form, StreamEncoder};
        let opus = crate::config::OpusConfig { threads: 1, bitrate_bps: 32_000, complexity: 5 };
        for rate in [8_000, 16_000, 24_000, 48_000] {
            let encoder = StreamEncoder::new(Form::Opus, rate, rate, opus).expect("an Opus rate");
            assert_eq!(encoder.pre_skip_48k(), u32::from(OPUS_PRE_SKIP_48K), "{rate}");
        }
    }
}
