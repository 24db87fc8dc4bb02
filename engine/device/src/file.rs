//! Opening what a folder holds without trusting it: a pipe would wait for a writer that never comes, a
//! device never ends, and neither is a checkpoint's file.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::DeviceError;

/// A regular file and its length in bytes. The kind is looked at first: opening a pipe waits.
///
/// # Errors
/// [`DeviceError::BadFile`] for anything else, or what cannot be opened.
pub fn open_regular(path: &Path) -> Result<(File, u64), DeviceError> {
    let bad = |what: String| DeviceError::BadFile { file: path.to_owned(), what };
    let found = std::fs::metadata(path).map_err(|error| bad(error.to_string()))?;
    if !found.is_file() {
        return Err(bad("is not a regular file".to_owned()));
    }
    let file = File::open(path).map_err(|error| bad(format!("cannot be opened: {error}")))?;
    Ok((file, found.len()))
}

/// All of a regular file of at most `bytes_max` bytes.
///
/// # Errors
/// As [`open_regular`], or a file that is longer (or grows while it is read).
pub fn read_regular(path: &Path, bytes_max: u64) -> Result<Vec<u8>, DeviceError> {
    let bad = |what: String| DeviceError::BadFile { file: path.to_owned(), what };
    let (file, length) = open_regular(path)?;
    let mut bytes = Vec::new();
    if length <= bytes_max {
        // The length is only what the file system says; reading stops at the bound whatever comes.
        file.take(bytes_max + 1).read_to_end(&mut bytes).map_err(|error| bad(error.to_string()))?;
    }
    let length = length.max(bytes.len() as u64);
    if length > bytes_max {
        return Err(bad(format!("is {length} bytes long; at most {bytes_max} are read")));
    }
    Ok(bytes)
}
