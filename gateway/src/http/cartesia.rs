//! Cartesia's REST endpoints: `POST /tts/bytes` and `POST /tts/sse`.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Request, State};
use axum::response::Response;
use proto::body::Plain;
use proto::cartesia::{Events, SpeechAsk, read_request};

use super::RequestId;
use super::whole::Arrived;
use crate::app::App;
use crate::auth::Caller;
use crate::error::ApiError;

pub(super) async fn bytes(
    State(app): State<Arc<App>>,
    Extension(id): Extension<RequestId>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Response, ApiError> {
    let arrived = Arrived::receive(app, id, caller, request).await?;
    let SpeechAsk { request, .. } = read_request(arrived.text()?, arrived.input_max())?;
    let body = Box::new(Plain(request.format));
    arrived.speak(request, body, "cartesia").await
}

pub(super) async fn events(
    State(app): State<Arc<App>>,
    Extension(id): Extension<RequestId>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Response, ApiError> {
    let arrived = Arrived::receive(app, id, caller, request).await?;
    let SpeechAsk { request, context_id, add_timestamps } =
        read_request(arrived.text()?, arrived.input_max())?;
    let body = Box::new(Events::new(context_id, add_timestamps));
    arrived.speak(request, body, "cartesia").await
}
