//! Why a checkpoint cannot be used.

use device::DeviceError;

/// A failure to open, understand or place a checkpoint. Texts name the file, key or tensor.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    #[error("{file} cannot be read: {what}; is this a complete checkpoint folder?")]
    Unreadable { file: String, what: String },
    #[error("{file} is not valid JSON: {what}; download it again")]
    BadJson { file: String, what: String },
    #[error("{file} lacks the key {key}; is this checkpoint of another family or version?")]
    MissingKey { file: String, key: String },
    #[error("{file}: {key} must be {expected}")]
    WrongType { file: String, key: String, expected: &'static str },
    #[error("{file}: {key} is {value}, but must be {bound}")]
    OutOfRange { file: String, key: String, value: String, bound: String },
    #[error("model_type {found:?} is not known; this build serves: {}", known.join(", "))]
    UnknownFamily { found: String, known: Vec<&'static str> },
    #[error("{file}: {what}")]
    Tokenizer { file: String, what: String },
    #[error("voice {voice}: {what}")]
    Voice { voice: String, what: String },
    #[error("no program for stage {stage} at length {length}; captured: {captured:?}")]
    NoProgram { stage: &'static str, length: u32, captured: Vec<u32> },
    #[error(transparent)]
    Device(#[from] DeviceError),
}
