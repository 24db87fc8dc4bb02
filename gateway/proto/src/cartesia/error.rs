//! A failure in the service's words.

use serde::Serialize;

use super::event::Event;
use crate::wire::ErrorObject;

/// The HTTP status and body that say `error`, which this server answers with `status` in its own words.
#[must_use]
pub fn error(status: u16, error: &ErrorObject) -> (u16, String) {
    #[derive(Serialize)]
    struct Body<'a> {
        error_code: &'a str,
        title: &'a str,
        message: &'a str,
        status_code: u16,
        request_id: &'a str,
    }
    let (error_code, title) = named(error);
    let message = &error.message;
    let body = Body { error_code, title, message, status_code: status, request_id: &error.request_id };
    // Only maps with keys that are no strings can fail, and there are none.
    (status, serde_json::to_string(&body).unwrap_or_default())
}

/// The same as an event.
pub(super) fn event(context_id: Option<String>, status: u16, error: &ErrorObject) -> Event {
    let (code, title) = named(error);
    Event::Error {
        context_id,
        done: false,
        status_code: status,
        title: title.to_owned(),
        message: error.message.clone(),
        error_code: code.to_owned(),
        request_id: error.request_id.clone(),
    }
}

/// The service's code and title; codes that it has no word for stay this server's.
fn named(error: &ErrorObject) -> (&str, &str) {
    let code = match error.code.as_str() {
        "invalid_token" | "token_expired" => "invalid_api_key",
        "overloaded" | "too_many_contexts" => "concurrency_limited",
        "unknown_language" => "language_not_supported",
        "unknown_model" => "model_not_found",
        "unknown_voice" => "voice_not_found",
        other => other,
    };
    let title = match error.kind.as_str() {
        "authentication_error" => "Unauthorized",
        "permission_error" => "Forbidden",
        "not_found_error" => "Not found",
        "rate_limit_error" | "overloaded_error" | "unavailable_error" => "Not now",
        "invalid_request_error" => "Invalid request",
        _ => "Server error",
    };
    (code, title)
}
