//! The one error of this crate.

/// What went wrong, in words the caller can act on. Values from a peer only ever produce these.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CodecError {
    /// A call after `finish`; the stream is closed.
    #[error("{what} is finished: call reset or make a new one before giving it more audio")]
    Finished { what: &'static str },
    /// An argument of ours is outside what the format allows.
    #[error("{setting} = {value} is not possible: use {allowed}")]
    InvalidSetting { setting: &'static str, value: i64, allowed: &'static str },
    /// A library refused something that was checked before; the stream it came from must be dropped.
    #[error("{operation} failed ({reason}): drop this stream and make a new one")]
    Library { operation: &'static str, reason: String },
    /// Bytes that do not follow their format.
    #[error("not valid {format}: {reason}")]
    Malformed { format: &'static str, reason: &'static str },
    /// A NaN or an infinity; `index` counts samples from the start of the stream.
    #[error("sample {index} is not a finite number: the source must not be played")]
    NonFinite { index: u64 },
    /// More than the stated limit.
    #[error("{what} is {found}, more than the limit of {limit}: send less")]
    TooLarge { what: &'static str, found: u64, limit: u64 },
    /// Bytes end before what they announce.
    #[error("{format} ends early: {needed} bytes are announced, {found} are there; send the whole file")]
    Truncated { format: &'static str, needed: u64, found: u64 },
    /// Valid, but of a kind not read here.
    #[error("{what} {found} is not supported: use {supported}")]
    Unsupported { what: &'static str, found: u64, supported: &'static str },
}

/// Refuses the first sample that is not finite. `first_index` is the stream position of `samples[0]`.
pub(crate) fn check_finite(samples: &[f32], first_index: u64) -> Result<(), CodecError> {
    match samples.iter().position(|sample| !sample.is_finite()) {
        Some(at) => Err(CodecError::NonFinite { index: first_index + at as u64 }),
        None => Ok(()),
    }
}
