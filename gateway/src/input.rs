//! Files that a person names on the command line or in the configuration, read within bounds.

use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result};
use std::path::Path;

/// All of a regular file of at most `bytes_max` bytes. The kind is looked at before it is opened: opening
/// a pipe waits for a writer, and a device never ends.
pub(crate) fn read(path: &Path, bytes_max: u64) -> Result<Vec<u8>> {
    let found = std::fs::metadata(path)?;
    if !found.is_file() {
        return Err(Error::new(ErrorKind::InvalidInput, "not a regular file"));
    }
    let mut bytes = Vec::new();
    if found.len() <= bytes_max {
        File::open(path)?.take(bytes_max + 1).read_to_end(&mut bytes)?;
    }
    let length = found.len().max(bytes.len() as u64);
    if length > bytes_max {
        let what = format!("{length} bytes long; at most {bytes_max} are read");
        return Err(Error::new(ErrorKind::InvalidInput, what));
    }
    Ok(bytes)
}

/// As [`read`], for text.
pub(crate) fn read_text(path: &Path, bytes_max: u64) -> Result<String> {
    String::from_utf8(read(path, bytes_max)?).map_err(|_| Error::new(ErrorKind::InvalidData, "not UTF-8"))
}
