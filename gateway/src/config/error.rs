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
        "{key} is {value}, which others can reach, and no key is set: give auth.secret_file, auth.public_keys, auth.jwks_file, auth.jwks_url or auth.api_keys_file, or listen on loopback (127.0.0.1, [::1])"
    )]
    Unguarded { key: &'static str, value: String },
    #[error(
        "{key} is {value}, which others can reach, and the admin side checks no token: listen on loopback, or guard the address and set server.admin_remote"
    )]
    AdminExposed { key: &'static str, value: String },
    #[error(
        "no key is set any more, and a reload opens no server that had keys: give it keys, or start it again if everybody may come in"
    )]
    Opens,
    #[error("{key}: {what}")]
    Unusable { key: &'static str, what: String },
    #[error("{from}: {key}: {what}")]
    Unfit { key: &'static str, what: String, from: Source },
}
