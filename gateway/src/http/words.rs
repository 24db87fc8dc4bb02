//! In whose words a refusal is told: each protocol's clients read their own shape of error.

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use proto::{cartesia, elevenlabs};

use crate::error::ApiError;

/// A protocol's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Words {
    Cartesia,
    ElevenLabs,
    Own,
}

impl Words {
    /// Whose a path is.
    pub(super) fn of(path: &str) -> Self {
        if path.starts_with("/tts/") {
            return Self::Cartesia;
        }
        match path.strip_prefix("/v1/").map(|rest| rest.split('/').next()) {
            Some(Some("text-to-speech" | "voices")) => Self::ElevenLabs,
            _ => Self::Own,
        }
    }

    /// The answer to a request with this id.
    pub(super) fn refusal(self, error: &ApiError, request_id: &str) -> Response {
        let mut response = error.respond(request_id);
        let (status, object) = (error.status.as_u16(), error.object(request_id));
        let (status, body) = match self {
            Self::Own => return response,
            Self::Cartesia => cartesia::error(status, &object),
            Self::ElevenLabs => elevenlabs::error(status, &object),
        };
        *response.status_mut() = StatusCode::from_u16(status).unwrap_or(error.status);
        *response.body_mut() = Body::from(body);
        let json = HeaderValue::from_static("application/json");
        response.headers_mut().insert(axum::http::header::CONTENT_TYPE, json);
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_protocol_is_refused_in_its_own_words() {
        for (path, words) in [
            ("/v1/text-to-speech/june/stream", Words::ElevenLabs),
            ("/v1/voices", Words::ElevenLabs),
            ("/v1/audio/voices", Words::Own),
            ("/v1/audio/speech", Words::Own),
            ("/tts/bytes", Words::Cartesia),
            ("/", Words::Own),
        ] {
            assert_eq!(Words::of(path), words, "{path}");
        }
    }
}
