//! What is loaded: models and voices.

use std::sync::Arc;

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use proto::catalog;

use crate::app::App;
use crate::error::ApiError;

/// `GET /v1/models`.
pub(super) async fn models(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    let info = app.engine()?.info();
    Ok(json(&catalog::models(&info, app.started_unix)))
}

fn json<T: serde::Serialize>(listing: &catalog::Listing<T>) -> Response {
    match serde_json::to_string(listing) {
        Ok(body) => ([(header::CONTENT_TYPE, "application/json")], body).into_response(),
        Err(_) => ApiError::internal().into_response(),
    }
}
