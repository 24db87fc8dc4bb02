//! What can be wrong with a configuration. Every text says which key, and what would be right.

use std::path::PathBuf;

use super::Source;

#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read config file {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("config file {} is not valid TOML: {message}", path.display())]
    Syntax { path: PathBuf, message: String },
    #[error("{from}: unknown key {key:?}; did you mean {nearest:?}?")]
    UnknownKey { key: String, nearest: &'static str, from: Source },
    #[error("{from}: {key} is {found}, but must be {expected}")]
    WrongType { key: &'static str, expected: String, found: String, from: Source },
    #[error(
        "{key} is {value}, but only loopback addresses (127.0.0.1, [::1]) are served: this release checks no keys, so a reachable port would serve anyone"
    )]
    NotLoopback { key: &'static str, value: String },
    #[error("{from}: {key}: {what}")]
    Unusable { key: &'static str, what: String, from: Source },
}
