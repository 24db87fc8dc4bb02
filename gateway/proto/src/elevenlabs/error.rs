//! A failure in the service's words: `{"detail": {...}}`.

use serde::Serialize;

use crate::wire::ErrorObject;

/// What `detail` holds. `status` is where clients look; `code` is the same word in its newer place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ErrorDetail {
    pub status: String,
    pub code: String,
    #[serde(rename = "type")]
    pub kind: String,
    pub message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub param: Option<String>,
    pub request_id: String,
}

/// The HTTP status and body that say `error`, which this server answers with `status` in its own words.
#[must_use]
pub fn error(status: u16, error: &ErrorObject) -> (u16, String) {
    #[derive(Serialize)]
    struct Body {
        detail: ErrorDetail,
    }
    let status = match error.code.as_str() {
        "overloaded" | "too_many_contexts" => 429,
        _ => status,
    };
    let body = Body { detail: detail(error) };
    // Only maps with keys that are no strings can fail, and there are none.
    (status, serde_json::to_string(&body).unwrap_or_default())
}

fn detail(error: &ErrorObject) -> ErrorDetail {
    let code = match error.code.as_str() {
        "insufficient_scope" => "missing_permissions",
        "invalid_token" | "token_expired" => "invalid_api_key",
        "overloaded" => "system_busy",
        "too_many_contexts" => "too_many_concurrent_requests",
        "unknown_model" => "model_not_found",
        "unknown_voice" => "voice_not_found",
        other => other,
    };
    ErrorDetail {
        status: code.to_owned(),
        code: code.to_owned(),
        kind: error.kind.clone(),
        message: error.message.clone(),
        param: error.param.clone(),
        request_id: error.request_id.clone(),
    }
}

#[cfg(test)]
mod tests {
    use contract::{EngineError, Span};

    use super::*;
    use crate::wire::WireError;

    #[test]
    fn the_errors_that_clients_decide_by_have_the_services_names_and_statuses() {
        for (given, status, name) in [
            (EngineError::Overloaded { retry_after: Span::from_millis(20) }, 429, "system_busy"),
            (EngineError::UnknownVoice { voice: "x".to_owned(), known: Vec::new() }, 404, "voice_not_found"),
            (EngineError::OutputFull, 500, "output_full"),
        ] {
            let given = WireError::Engine(given);
            let (told, body) = error(given.kind().http_status(), &given.object("r-1".to_owned()));
            let json: serde_json::Value = serde_json::from_str(&body).expect("JSON");
            assert_eq!((told, &json["detail"]["status"]), (status, &name.into()));
            assert_eq!(json["detail"]["request_id"], "r-1");
        }
    }
}
