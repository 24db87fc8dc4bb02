//! Everything a message of a peer can be refused for, and the error object it is told with
//! (docs/protocol.md section 9, DESIGN.md section 7).

use contract::{EngineError, ErrorClass, Span};
use serde::{Deserialize, Serialize};

/// One refused message or request. It harms at most the context it names.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    #[error("context {context} takes no audio now: it was opened without reference, or its clip has ended")]
    AudioNotAccepted { context: u16 },
    #[error("a binary message begins with a header that cannot be read: {what}")]
    BadHeader { what: &'static str },
    #[error(
        "epoch {epoch} of context {context} has ended; open another context, or cancel this one to start its next epoch"
    )]
    ContextEnded { context: u16, epoch: u16 },
    #[error("context {context} is not greater than every id opened before ({highest}); choose a greater id")]
    ContextExists { context: u16, highest: u16 },
    #[error("the server is draining; connect again elsewhere")]
    Draining,
    #[error("the field {field:?} is given twice")]
    DuplicateField { field: String },
    #[error("there is nothing to speak: send text with a letter or a digit before text.end")]
    EmptyText,
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error("epoch {given} of context {context} does not exist yet; it is in epoch {current}")]
    EpochAhead { context: u16, given: u16, current: u16 },
    #[error("hello comes once, before the first open")]
    HelloTooLate,
    #[error("{param} must be {bound}")]
    FieldOutOfRange { param: String, bound: String },
    #[error("this is not one JSON object: {what}, at byte {at}")]
    InvalidJson { at: usize, what: &'static str },
    #[error("the JSON is nested more than 16 levels deep")]
    JsonTooDeep,
    #[error(
        "half of a surrogate pair stands alone in {param}; send whole characters, or the second half first in the next text.append"
    )]
    LoneSurrogate { param: String, sequence: Option<u32> },
    #[error("the field {param:?} is missing{}", hint.map(|h| format!(": {h}")).unwrap_or_default())]
    MissingField { param: String, hint: Option<&'static str> },
    #[error("the quota of {limit} {what} a minute is used up; come again later")]
    QuotaUsed { what: &'static str, limit: u32, retry_after: Span },
    #[error("resume must be the first message of a connection")]
    ResumeTooLate,
    #[error("no session can be resumed with this token; go on with the new one")]
    ResumeUnknown,
    #[error("text.append {given} of context {context} skips one; send {expected}")]
    SequenceGap { context: u16, given: u32, expected: u32 },
    #[error("text.end was already sent for epoch {epoch} of context {context}")]
    TextEnded { context: u16, epoch: u16 },
    #[error(
        "{waiting} characters of context {context} wait to be spoken; at most {max} may: send text.append {sequence} again later"
    )]
    TextTooLong { context: u16, sequence: u32, waiting: u64, max: u64, retry_after: Span },
    #[error(
        "this session's token has ended: what was said is spoken, then the session closes; connect with a new token"
    )]
    TokenExpired,
    #[error("{live} contexts are live; at most {max} may be: end or cancel one")]
    TooManyContexts { live: usize, max: usize },
    #[error("context {context} was not opened; send open first")]
    UnknownContext { context: u16 },
    #[error("unknown field {param:?} in {place}; {}", nearest_text(nearest.as_deref(), known))]
    UnknownField { param: String, place: String, nearest: Option<String>, known: &'static [&'static str] },
    #[error("unknown type {given:?}; {}", nearest_text(nearest.as_deref(), known))]
    UnknownType { given: String, nearest: Option<String>, known: &'static [&'static str] },
    #[error("{param} is not supported: {hint}")]
    Unsupported { param: &'static str, hint: String },
    #[error("{param} must be {expected}, but is {found}")]
    WrongType { param: String, expected: &'static str, found: &'static str },
}

/// Coarse kind of an error: chooses the HTTP status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ErrorKind {
    Authentication,
    InvalidRequest,
    NotFound,
    Overloaded,
    Permission,
    RateLimit,
    Server,
    Unavailable,
}

/// The one error object of every endpoint: `{type, code, message, param?, retry_after_ms?, request_id}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ErrorObject {
    #[serde(rename = "type")]
    pub kind: String,
    /// Stable; programs decide by it.
    pub code: String,
    /// For people; says what to do.
    pub message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub param: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    pub request_id: String,
}

/// Body of an HTTP error: `{error: {...}}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ErrorBody {
    pub error: ErrorObject,
}

impl ErrorKind {
    /// The kind whose [`ErrorKind::name`] this is; [`ErrorKind::Server`] for any other text.
    #[must_use]
    pub fn of_name(name: &str) -> Self {
        const ALL: [ErrorKind; 8] = [
            ErrorKind::Authentication,
            ErrorKind::InvalidRequest,
            ErrorKind::NotFound,
            ErrorKind::Overloaded,
            ErrorKind::Permission,
            ErrorKind::RateLimit,
            ErrorKind::Server,
            ErrorKind::Unavailable,
        ];
        ALL.into_iter().find(|kind| kind.name() == name).unwrap_or(Self::Server)
    }

    /// `error.type` on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Authentication => "authentication_error",
            Self::InvalidRequest => "invalid_request_error",
            Self::NotFound => "not_found_error",
            Self::Overloaded => "overloaded_error",
            Self::Permission => "permission_error",
            Self::RateLimit => "rate_limit_error",
            Self::Server => "server_error",
            Self::Unavailable => "unavailable_error",
        }
    }

    #[must_use]
    pub const fn http_status(self) -> u16 {
        match self {
            Self::InvalidRequest => 400,
            Self::Authentication => 401,
            Self::Permission => 403,
            Self::NotFound => 404,
            Self::RateLimit => 429,
            Self::Server => 500,
            Self::Overloaded | Self::Unavailable => 503,
        }
    }
}

impl From<ErrorClass> for ErrorKind {
    fn from(class: ErrorClass) -> Self {
        match class {
            ErrorClass::BadRequest => Self::InvalidRequest,
            ErrorClass::Internal => Self::Server,
            ErrorClass::NotFound => Self::NotFound,
            ErrorClass::Overloaded => Self::Overloaded,
            ErrorClass::Unavailable => Self::Unavailable,
        }
    }
}

impl WireError {
    /// Stable code on the wire.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::AudioNotAccepted { .. } => "audio_not_accepted",
            Self::BadHeader { .. } => "bad_header",
            Self::ContextEnded { .. } => "context_ended",
            Self::ContextExists { .. } => "context_exists",
            Self::Draining => "draining",
            Self::DuplicateField { .. } => "duplicate_field",
            Self::EmptyText => "empty_text",
            Self::Engine(error) => error.code(),
            Self::EpochAhead { .. } => "epoch_ahead",
            Self::FieldOutOfRange { .. } => "field_out_of_range",
            Self::HelloTooLate => "hello_too_late",
            Self::InvalidJson { .. } => "invalid_json",
            Self::JsonTooDeep => "json_too_deep",
            Self::LoneSurrogate { .. } => "lone_surrogate",
            Self::MissingField { .. } => "missing_field",
            Self::QuotaUsed { .. } => "rate_limit_exceeded",
            Self::ResumeTooLate => "resume_too_late",
            Self::ResumeUnknown => "resume_unknown",
            Self::SequenceGap { .. } => "sequence_gap",
            Self::TextEnded { .. } => "text_ended",
            Self::TextTooLong { .. } => "text_too_long",
            Self::TokenExpired => "token_expired",
            Self::TooManyContexts { .. } => "too_many_contexts",
            Self::UnknownContext { .. } => "unknown_context",
            Self::UnknownField { .. } => "unknown_field",
            Self::UnknownType { .. } => "unknown_type",
            Self::Unsupported { .. } => "unsupported",
            Self::WrongType { .. } => "wrong_type",
        }
    }

    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Draining => ErrorKind::Unavailable,
            Self::Engine(error) => error.class().into(),
            Self::QuotaUsed { .. } | Self::TextTooLong { .. } => ErrorKind::RateLimit,
            Self::TokenExpired => ErrorKind::Authentication,
            _ => ErrorKind::InvalidRequest,
        }
    }

    /// Path of the field at fault.
    #[must_use]
    pub fn param(&self) -> Option<&str> {
        match self {
            Self::ContextEnded { .. } | Self::ContextExists { .. } | Self::UnknownContext { .. } => {
                Some("context")
            }
            Self::DuplicateField { field } => Some(field),
            Self::EmptyText | Self::TextTooLong { .. } => Some("text"),
            Self::Engine(error) => error.param(),
            Self::EpochAhead { .. } => Some("epoch"),
            Self::SequenceGap { .. } => Some("sequence"),
            Self::UnknownType { .. } => Some("type"),
            Self::Unsupported { param, .. } => Some(param),
            Self::FieldOutOfRange { param, .. }
            | Self::LoneSurrogate { param, .. }
            | Self::MissingField { param, .. }
            | Self::UnknownField { param, .. }
            | Self::WrongType { param, .. } => Some(param),
            _ => None,
        }
    }

    #[must_use]
    pub const fn retry_after(&self) -> Option<Span> {
        match self {
            Self::Engine(error) => error.retry_after(),
            Self::QuotaUsed { retry_after, .. } | Self::TextTooLong { retry_after, .. } => Some(*retry_after),
            _ => None,
        }
    }

    /// The object that tells a client; `request_id` is given because ids are never drawn here.
    #[must_use]
    pub fn object(&self, request_id: String) -> ErrorObject {
        ErrorObject {
            kind: self.kind().name().to_owned(),
            code: self.code().to_owned(),
            message: self.to_string(),
            param: self.param().map(str::to_owned),
            retry_after_ms: self.retry_after().map(|span| u64::try_from(span.as_millis()).unwrap_or(0)),
            request_id,
        }
    }
}

/// `name` as an error may show it: at most 64 characters of what a peer wrote.
pub(crate) fn shown(name: &str) -> String {
    name.chars().filter(|c| !c.is_control()).take(64).collect()
}

/// The known name most like `given`, if any is like it at all.
pub(crate) fn nearest(given: &str, known: &[&str]) -> Option<String> {
    let given = shown(given).to_lowercase();
    known
        .iter()
        .map(|name| (strsim::jaro_winkler(&given, name), *name))
        .filter(|(likeness, _)| *likeness > 0.7)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, name)| name.to_owned())
}

fn nearest_text(nearest: Option<&str>, known: &[&str]) -> String {
    match nearest {
        Some(name) => format!("did you mean {name:?}?"),
        None => format!("known: {}", known.join(", ")),
    }
}
