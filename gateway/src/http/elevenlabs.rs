//! ElevenLabs' REST endpoints: text to speech, with times of characters or without, and the list of voices.

use std::sync::Arc;

use axum::Extension;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, Request, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use proto::body::{Body, Plain};
use proto::elevenlabs::{self, OutputFormat, TimedDocument, TimedLines, read_request};
use serde::Deserialize;

use super::RequestId;
use super::segment::Segment;
use super::whole::Arrived;
use crate::app::App;
use crate::auth::Caller;
use crate::error::ApiError;

/// What a URL says that matters here.
#[derive(Debug, Deserialize)]
pub(super) struct Asked {
    output_format: Option<String>,
}

/// `POST /v1/text-to-speech/{voice}` and `.../stream`, which answer alike: as the sound is made.
pub(super) async fn speak(
    State(app): State<Arc<App>>,
    Extension(id): Extension<RequestId>,
    Extension(caller): Extension<Caller>,
    Segment(voice): Segment,
    asked: Result<Query<Asked>, QueryRejection>,
    request: Request,
) -> Result<Response, ApiError> {
    answer(app, (id, caller), (voice, asked), request, |format| Box::new(Plain(format.speech_format()))).await
}

/// `POST /v1/text-to-speech/{voice}/with-timestamps`.
pub(super) async fn document(
    State(app): State<Arc<App>>,
    Extension(id): Extension<RequestId>,
    Extension(caller): Extension<Caller>,
    Segment(voice): Segment,
    asked: Result<Query<Asked>, QueryRejection>,
    request: Request,
) -> Result<Response, ApiError> {
    answer(app, (id, caller), (voice, asked), request, |_| Box::<TimedDocument>::default()).await
}

/// `POST /v1/text-to-speech/{voice}/stream/with-timestamps`.
pub(super) async fn lines(
    State(app): State<Arc<App>>,
    Extension(id): Extension<RequestId>,
    Extension(caller): Extension<Caller>,
    Segment(voice): Segment,
    asked: Result<Query<Asked>, QueryRejection>,
    request: Request,
) -> Result<Response, ApiError> {
    answer(app, (id, caller), (voice, asked), request, |_| Box::new(TimedLines)).await
}

/// `GET /v1/voices`.
pub(super) async fn voices(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
) -> Result<Response, ApiError> {
    let listing = crate::voices::listing(&app, &caller.0?).await?;
    let body = serde_json::to_string(&elevenlabs::voices(listing)).map_err(|_| ApiError::internal())?;
    Ok(([(header::CONTENT_TYPE, "application/json")], body).into_response())
}

async fn answer(
    app: Arc<App>,
    (id, caller): (RequestId, Caller),
    (voice, asked): (String, Result<Query<Asked>, QueryRejection>),
    request: Request,
    shape: impl FnOnce(OutputFormat) -> Box<dyn Body>,
) -> Result<Response, ApiError> {
    let arrived = Arrived::receive(app, id, caller, request).await?;
    let Query(asked) = asked.map_err(|_| {
        ApiError::bad_request("field_out_of_range", "output_format is given twice").param("output_format")
    })?;
    let format = OutputFormat::read(asked.output_format.as_deref())?;
    let query = elevenlabs::Query { voice, format };
    let mut request = read_request(arrived.text()?, query, arrived.input_max())?;
    arrived.forget_unknown_language(&mut request)?;
    arrived.speak(request, shape(format), "elevenlabs").await
}
