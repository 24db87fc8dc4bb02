//! Why nothing, or not all, was pulled. No text holds a token, or a URL that could hold a signature.

use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PullError {
    #[error("HF_ENDPOINT: {0}")]
    Endpoint(String),
    #[error("{what} needs a token: set HF_TOKEN (a repository that does not exist answers alike)")]
    NoToken { what: String },
    #[error("HF_TOKEN is not accepted for {what}; make a new one, or unset it for public repositories")]
    BadToken { what: String },
    #[error("HF_TOKEN holds what no token does: copy it again, one line of letters, digits and signs")]
    UnreadableToken,
    #[error(
        "access to {what} is not granted: accept its terms on its page, with the account that HF_TOKEN belongs to"
    )]
    Forbidden { what: String },
    #[error("{what} does not exist at this hub")]
    NotFound { what: String },
    #[error("the hub asks to wait{} before {what}; run the same command later, what has come stays", seconds.map(|s| format!(" {s} s")).unwrap_or_default())]
    TooMany { what: String, seconds: Option<u32> },
    #[error("the hub answers {what} with status {status}; what has come stays, run the same command again")]
    Status { what: String, status: u16 },
    #[error("{what}: {reason}; what has come stays, run the same command again")]
    Cut { what: String, reason: String },
    #[error("{what}: the hub's answer cannot be used: {reason}")]
    Answer { what: String, reason: String },
    #[error("the repository names a file {path:?} that would lie outside its folder; nothing was pulled")]
    Outside { path: String },
    #[error("{what} came twice with another content than the hub lists ({reason})")]
    Damaged { what: String, reason: String },
    #[error("the disk of {} is full; free {missing} bytes and run the same command again, what has come stays", folder.display())]
    DiskFull { folder: PathBuf, missing: u64 },
    #[error("{} holds something else; remove it, or choose another folder with --to", folder.display())]
    Occupied { folder: PathBuf },
    #[error("another pull is writing to {}", folder.display())]
    Busy { folder: PathBuf },
    #[error("cannot write {}: {source}", path.display())]
    Write { path: PathBuf, source: std::io::Error },
}
