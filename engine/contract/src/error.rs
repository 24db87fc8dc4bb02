//! Everything that can go wrong for one request. An error here never ends the engine.

use crate::Span;

/// How an error maps to a status or close code; the gateway owns the mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorClass {
    /// The request can never succeed as it is.
    BadRequest,
    /// A bug or a lost device; the request may be tried elsewhere.
    Internal,
    /// The thing named does not exist.
    NotFound,
    /// Try again after the hint.
    Overloaded,
    /// The engine is starting, draining or dead.
    Unavailable,
}

/// One request's failure. Texts say what to do and never hold the request's text or audio.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    #[error("this context is closed; open another")]
    ContextClosed,
    #[error("the device it spoke on was lost: {what}")]
    DeviceLost { what: String },
    #[error("text holds a control token ({token}) the model would obey; remove it or escape it")]
    ControlToken { token: String },
    #[error("{field} is {value}, but must be {bound}")]
    FieldOutOfRange { field: &'static str, value: String, bound: &'static str },
    #[error("an internal fault ended this request: {what}")]
    Internal { what: String },
    #[error("the {lane} lane was lost: {what}")]
    LaneLost { lane: &'static str, what: String },
    #[error("the model made a sample that is not a number; nothing of it was sent")]
    NotFinite,
    #[error("the engine cannot promise first audio in time; retry after {} ms", retry_after.as_millis())]
    Overloaded { retry_after: Span },
    #[error("the output queue is full: audio is not being taken away")]
    OutputFull,
    #[error("no room for the voice's features ({what})")]
    OutOfMemory { what: &'static str },
    #[error("{field} is not supported by model {model}: {hint}")]
    Unsupported { field: &'static str, model: String, hint: String },
    #[error("text is {given} characters; at most {max} may wait in one context")]
    TextTooLong { given: u64, max: u64 },
    #[error("too many contexts are open; close one or retry after {} ms", retry_after.as_millis())]
    TooManyContexts { retry_after: Span },
    #[error("the engine is not serving: {reason}")]
    Unavailable { reason: String },
    #[error("unknown language {language:?}; this model speaks: {}", known.join(", "))]
    UnknownLanguage { language: String, known: Vec<String> },
    #[error("unknown model {model:?}; loaded: {}", known.join(", "))]
    UnknownModel { model: String, known: Vec<String> },
    #[error("unknown voice {voice:?}; valid voices: {}", known.join(", "))]
    UnknownVoice { voice: String, known: Vec<String> },
    #[error("the reference clip cannot be used: {what}")]
    BadReference { what: String },
}

impl EngineError {
    /// Stable code on the wire.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::BadReference { .. } => "bad_reference",
            Self::ContextClosed => "context_closed",
            Self::ControlToken { .. } => "control_token",
            Self::DeviceLost { .. } => "device_lost",
            Self::FieldOutOfRange { .. } => "field_out_of_range",
            Self::Internal { .. } => "internal",
            Self::LaneLost { .. } => "lane_lost",
            Self::NotFinite => "not_finite",
            Self::Overloaded { .. } => "overloaded",
            Self::OutOfMemory { .. } => "out_of_memory",
            Self::OutputFull => "output_full",
            Self::TextTooLong { .. } => "text_too_long",
            Self::TooManyContexts { .. } => "too_many_contexts",
            Self::Unavailable { .. } => "unavailable",
            Self::UnknownLanguage { .. } => "unknown_language",
            Self::UnknownModel { .. } => "unknown_model",
            Self::UnknownVoice { .. } => "unknown_voice",
            Self::Unsupported { .. } => "unsupported",
        }
    }

    #[must_use]
    pub const fn class(&self) -> ErrorClass {
        match self {
            Self::BadReference { .. }
            | Self::ContextClosed
            | Self::ControlToken { .. }
            | Self::FieldOutOfRange { .. }
            | Self::TextTooLong { .. }
            | Self::UnknownLanguage { .. }
            | Self::Unsupported { .. } => ErrorClass::BadRequest,
            Self::UnknownModel { .. } | Self::UnknownVoice { .. } => ErrorClass::NotFound,
            Self::OutOfMemory { .. } | Self::Overloaded { .. } | Self::TooManyContexts { .. } => {
                ErrorClass::Overloaded
            }
            Self::Unavailable { .. } => ErrorClass::Unavailable,
            Self::DeviceLost { .. }
            | Self::Internal { .. }
            | Self::LaneLost { .. }
            | Self::NotFinite
            | Self::OutputFull => ErrorClass::Internal,
        }
    }

    /// The request field at fault, where one is.
    #[must_use]
    pub const fn param(&self) -> Option<&'static str> {
        match self {
            Self::BadReference { .. } => Some("reference"),
            Self::ControlToken { .. } | Self::TextTooLong { .. } => Some("text"),
            Self::FieldOutOfRange { field, .. } | Self::Unsupported { field, .. } => Some(field),
            Self::UnknownLanguage { .. } => Some("language"),
            Self::UnknownModel { .. } => Some("model"),
            Self::UnknownVoice { .. } => Some("voice"),
            _ => None,
        }
    }

    #[must_use]
    pub const fn retry_after(&self) -> Option<Span> {
        match self {
            Self::Overloaded { retry_after } | Self::TooManyContexts { retry_after } => Some(*retry_after),
            _ => None,
        }
    }
}
