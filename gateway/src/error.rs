//! The error object of every answer that is not a success (DESIGN.md section 7).

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use contract::{EngineError, ErrorClass};
use proto::wire::{ErrorBody, ErrorObject, WireError};

/// One request's failure, as HTTP shows it.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{code}: {message}")]
pub struct ApiError {
    pub status: StatusCode,
    pub code: &'static str,
    pub message: String,
    pub param: Option<String>,
    pub retry_after_ms: Option<u64>,
}

impl ApiError {
    pub(crate) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into(), param: None, retry_after_ms: None }
    }

    pub(crate) fn bad_request(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code, message)
    }

    pub(crate) fn param(self, param: impl Into<String>) -> Self {
        Self { param: Some(param.into()), ..self }
    }

    pub(crate) fn retry_after_ms(self, millis: u64) -> Self {
        Self { retry_after_ms: Some(millis), ..self }
    }

    pub(crate) fn internal() -> Self {
        let message = "a fault of ours ended this request; it may be tried again";
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
    }

    pub(crate) fn draining() -> Self {
        let message = "this server is draining; connect elsewhere";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "draining", message).retry_after_ms(1_000)
    }

    /// The object's `type`: follows from status and code, so that the two never disagree.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self.status.as_u16() {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            429 => "rate_limit_error",
            503 if matches!(self.code, "unavailable" | "draining") => "unavailable_error",
            503 => "overloaded_error",
            400..=499 => "invalid_request_error",
            _ => "server_error",
        }
    }

    /// The object, as `docs/protocol.md` has it.
    #[must_use]
    pub fn object(&self, request_id: &str) -> ErrorObject {
        ErrorObject {
            kind: self.kind().to_owned(),
            code: self.code.to_owned(),
            message: self.message.clone(),
            param: self.param.clone(),
            retry_after_ms: self.retry_after_ms,
            request_id: request_id.to_owned(),
        }
    }

    /// The answer to a request with this id.
    pub(crate) fn respond(&self, request_id: &str) -> Response {
        let body = ErrorBody { error: self.object(request_id) };
        // Only maps with keys that are no strings can fail, and there are none.
        let body = serde_json::to_string(&body).unwrap_or_default();
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(millis) = self.retry_after_ms {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(millis.div_ceil(1_000).max(1)));
        }
        response
    }
}

impl From<EngineError> for ApiError {
    fn from(error: EngineError) -> Self {
        let status = match error.class() {
            ErrorClass::BadRequest => StatusCode::BAD_REQUEST,
            ErrorClass::NotFound => StatusCode::NOT_FOUND,
            ErrorClass::Overloaded | ErrorClass::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            ErrorClass::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        };
        let retry = error.retry_after().map(|span| u64::try_from(span.as_millis()).unwrap_or(0));
        Self {
            status,
            code: error.code(),
            message: error.to_string(),
            param: error.param().map(str::to_owned),
            retry_after_ms: retry,
        }
    }
}

impl From<WireError> for ApiError {
    fn from(error: WireError) -> Self {
        let status = error.kind().http_status();
        let retry = error.retry_after().map(|span| u64::try_from(span.as_millis()).unwrap_or(0));
        Self {
            status: StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
            code: error.code(),
            message: error.to_string(),
            param: error.param().map(str::to_owned),
            retry_after_ms: retry,
        }
    }
}

/// Carries an [`ApiError`] to the layer that knows the request's id.
#[derive(Clone, Debug)]
pub(crate) struct Refused(pub(crate) ApiError);

impl IntoResponse for ApiError {
    /// The body is written by the request-id layer, which finds the error in the extensions.
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = self.status;
        response.extensions_mut().insert(Refused(self));
        response
    }
}

#[cfg(test)]
mod tests {
    use contract::Span;

    use super::*;

    #[test]
    fn an_engine_error_keeps_its_code_param_and_retry_hint() {
        let error = ApiError::from(EngineError::Overloaded { retry_after: Span::from_millis(1_500) });
        let object = error.object("r-1");
        assert_eq!(error.status, 503);
        assert_eq!((object.kind.as_str(), object.code.as_str()), ("overloaded_error", "overloaded"));
        assert_eq!(object.retry_after_ms, Some(1_500));
        assert_eq!(object.request_id, "r-1");
    }

    #[test]
    fn an_unknown_voice_is_not_found_and_lists_the_valid_ones() {
        let known = vec!["clara".to_owned(), "june".to_owned()];
        let error = ApiError::from(EngineError::UnknownVoice { voice: "x".to_owned(), known });
        assert_eq!(error.status, 404);
        assert_eq!(error.param.as_deref(), Some("voice"));
        assert!(error.message.contains("clara, june"));
    }
}
