//! What can go wrong between a model program and a processor.

use std::path::PathBuf;

/// A failure at load, build or launch. Texts name the file, tensor or setting at fault.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    #[error("{file}: {what}")]
    BadFile { file: PathBuf, what: String },
    #[error("tensor {name}: {what}")]
    BadTensor { name: String, what: String },
    #[error("tensor {name} is missing from {file}; is this the right checkpoint?")]
    MissingTensor { name: String, file: PathBuf },
    #[error("{setting}: {what}")]
    BadSetting { setting: &'static str, what: String },
    /// `what` says how much is free; `remedy` is a sentence about a setting.
    #[error("{what} needs {asked} bytes; {remedy}")]
    OutOfMemory { what: String, asked: u64, remedy: &'static str },
    #[error("program {program}, op {op}: {what}")]
    BadProgram { program: String, op: usize, what: String },
    #[error("launch input {input} has {given} values, but {expected} are needed")]
    BadInput { input: String, given: usize, expected: usize },
    #[error("the {lane} lane was lost: {what}")]
    LaneLost { lane: &'static str, what: String },
}
