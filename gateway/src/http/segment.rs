//! A segment of a path as text.

use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;

use crate::error::ApiError;

/// The one segment of a path that names something. What is no text is refused as everything else is: in the
/// words of the endpoint's own protocol.
pub(crate) struct Segment(pub(crate) String);

impl<S: Send + Sync> FromRequestParts<S> for Segment {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let found = Path::<String>::from_request_parts(parts, state).await;
        found.map(|Path(text)| Self(text)).map_err(|_| {
            let message = "the path must be UTF-8 once its percent-encoding is undone";
            ApiError::bad_request("field_out_of_range", message)
        })
    }
}
