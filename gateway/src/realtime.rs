//! `GET /v1/realtime`: OpenAI Realtime's socket (docs/realtime.md).

use std::sync::Arc;

use axum::Extension;
use axum::extract::rejection::QueryRejection;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use contract::{EngineInfo, ModelInfo, Span};
use proto::realtime::{EVENT_BYTES_MAX, MESSAGE_BYTES_MAX, Realtime, SUBPROTOCOL, Start};
use serde::Deserialize;
use serde_json::Value;

use crate::app::App;
use crate::auth::{Caller, Kind};
use crate::error::ApiError;
use crate::http::RequestId;
use crate::inflow;
use crate::stream::{Endpoint, Refusal, enter, refused_upgrade};

/// Voice agents keep a session open between turns: as long as the protocol's own service does.
const IDLE: Span = Span::from_millis(3_600_000);
/// A message can be 16 MiB, so no more than one waits while another is handled.
const EVENTS: usize = 1;
/// An item is told back twice, as long as it came: a few of the longest wait for nobody's reading.
const UNWRITTEN_BYTES_MAX: u64 = 8 * EVENT_BYTES_MAX as u64;

#[derive(Debug, Deserialize)]
pub(crate) struct Asked {
    model: Option<String>,
    intent: Option<String>,
    call_id: Option<String>,
}

pub(crate) async fn upgrade(
    State(app): State<Arc<App>>,
    Extension(id): Extension<RequestId>,
    Extension(caller): Extension<Caller>,
    asked: Result<Query<Asked>, QueryRejection>,
    upgrade: Result<inflow::Upgrade, WebSocketUpgradeRejection>,
) -> Result<Response, Response> {
    let upgrade = upgrade.map_err(|rejection| refused_upgrade(&rejection))?;
    let asked = asked.map_err(|_| twice().into_response())?.0;
    let session = match &caller.0 {
        Ok(caller) => match &caller.kind {
            Kind::ClientSecret { session } => session.as_ref().and_then(|given| given.as_object()).cloned(),
            _ => None,
        },
        Err(_) => None,
    };
    // A client secret may name the model that its sessions speak with.
    let given = session.as_ref().and_then(|session| session.get("model")).and_then(Value::as_str);
    let model = model(&app, asked, given).map_err(IntoResponse::into_response)?;
    let dialect = Box::new(Realtime::new(Start { model, session }));
    let mut endpoint = Endpoint::new(&app, "realtime", &[SUBPROTOCOL], dialect);
    endpoint.limits.idle = IDLE;
    endpoint.limits.message_bytes = MESSAGE_BYTES_MAX;
    endpoint.limits.frame_bytes = MESSAGE_BYTES_MAX;
    endpoint.limits.unwritten_bytes_max = endpoint.limits.unwritten_bytes_max.max(UNWRITTEN_BYTES_MAX);
    endpoint.events = EVENTS;
    enter(&app, id, caller, upgrade, endpoint, |error, id| {
        // Clients of this protocol stop trying at this code, and at no other of ours.
        let code = if error.status.is_server_error() { error.code } else { "invalid_api_key" };
        let told = ApiError { code, ..error.clone() };
        Refusal::new(error, Realtime::refusal(&told.object(id)))
    })
    .map_err(IntoResponse::into_response)
}

fn twice() -> ApiError {
    ApiError::bad_request("duplicate_field", "the query cannot be read: give each of its fields once")
}

/// The model a connection names, if there is one of that name here, and it speaks what it is given.
fn model(app: &App, asked: Asked, given: Option<&str>) -> Result<Option<String>, ApiError> {
    if asked.call_id.is_some() || asked.intent.as_deref().is_some_and(|intent| intent == "transcription") {
        let message = "this server speaks: it takes no calls and makes no transcripts; connect with ?model=";
        return Err(ApiError::bad_request("unsupported", message));
    }
    let Some(name) = asked.model.as_deref().or(given) else { return Ok(None) };
    named(&app.engine()?.info(), name).map(|found| Some(found.name.clone()))
}

/// The model of this name.
///
/// # Errors
/// There is none.
pub(crate) fn named<'a>(info: &'a EngineInfo, name: &str) -> Result<&'a ModelInfo, ApiError> {
    if let Some(found) = proto::catalog::model(info, name) {
        return Ok(found);
    }
    let known: Vec<&str> = info.models.iter().map(|model| model.name.as_str()).collect();
    let shown: String = name.chars().filter(|c| !c.is_control()).take(64).collect();
    let message = format!(
        "there is no model {shown:?} here, and none that converses: the models speak what they are given. Known: {}",
        known.join(", ")
    );
    Err(ApiError::new(StatusCode::NOT_FOUND, "unknown_model", message).param("model"))
}
