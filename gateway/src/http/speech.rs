//! `POST /v1/audio/speech`.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Request, State};
use axum::response::Response;
use proto::body::{Body, Plain};
use proto::speech::{Events, SpeechRequest, StreamFormat};

use super::RequestId;
use super::whole::Arrived;
use crate::app::App;
use crate::auth::Caller;
use crate::error::ApiError;

pub(super) async fn speak(
    State(app): State<Arc<App>>,
    Extension(id): Extension<RequestId>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Response, ApiError> {
    let arrived = Arrived::receive(app, id, caller, request).await?;
    let asked = SpeechRequest::decode(arrived.text()?, arrived.input_max())?;
    let body: Box<dyn Body> = match asked.stream {
        StreamFormat::Audio => Box::new(Plain(asked.format)),
        StreamFormat::Sse => Box::new(Events),
    };
    arrived.speak(asked, body, "speech").await
}
