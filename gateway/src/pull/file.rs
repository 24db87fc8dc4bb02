//! One file: what has come of it, what is still missing, and whether it is what the hub lists.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use aws_lc_rs::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256};

use super::error::PullError;
use super::hub::{Body, Content, Hub, Listed, cut, wait_before_retry};
use super::name::RepoName;

/// Times in a row that a file may be asked for without a byte of it coming.
const TRIES_MAX: u32 = 5;
const PIECE_BYTES: usize = 1 << 20;

/// Where a file comes from.
pub(super) struct Origin<'a> {
    pub(super) hub: &'a Hub,
    pub(super) repo: &'a RepoName,
    pub(super) commit: &'a str,
}

/// Brings a file to `target`, going on where an earlier try was cut. `came` is told the bytes that are there.
///
/// # Errors
/// What the hub refuses, what the disk refuses, and content that is not what was listed.
pub(super) async fn fetch(
    origin: &Origin<'_>,
    file: &Listed,
    target: &Path,
    came: &mut dyn FnMut(u64),
) -> Result<(), PullError> {
    if is_whole(file, target)? {
        came(file.size);
        return Ok(());
    }
    let part = partial(target);
    for last in [false, true] {
        fill(origin, file, &part, came).await?;
        match check(file, &part) {
            Ok(()) => {
                return std::fs::rename(&part, target).map_err(|error| write_failed(target, 0, error));
            }
            // Perhaps of another content that was half there: once more from the first byte.
            Err(error) => {
                std::fs::remove_file(&part).map_err(|error| write_failed(&part, 0, error))?;
                if last {
                    return Err(error);
                }
            }
        }
    }
    Ok(())
}

/// Whether an earlier pull has brought all of it. Anything else at its place is removed.
fn is_whole(file: &Listed, target: &Path) -> Result<bool, PullError> {
    if !target.exists() {
        return Ok(false);
    }
    if check(file, target).is_ok() {
        return Ok(true);
    }
    std::fs::remove_file(target).map_err(|error| write_failed(target, 0, error))?;
    Ok(false)
}

/// Asks for what is missing until it is there.
async fn fill(
    origin: &Origin<'_>,
    file: &Listed,
    part: &Path,
    came: &mut dyn FnMut(u64),
) -> Result<(), PullError> {
    let mut tries = 0;
    loop {
        let before = length(part);
        let error = match once(origin, file, part, before, came).await {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        tries = if length(part) > before { 0 } else { tries + 1 };
        let wait = wait_before_retry(&error, tries).filter(|_| tries < TRIES_MAX);
        tokio::time::sleep(wait.ok_or(error)?).await;
    }
}

/// One request, from where the file ends.
async fn once(
    origin: &Origin<'_>,
    file: &Listed,
    part: &Path,
    have: u64,
    came: &mut dyn FnMut(u64),
) -> Result<(), PullError> {
    if have == file.size && part.exists() {
        return Ok(());
    }
    let have = if have > file.size { 0 } else { have };
    let failed = |at: u64, error| write_failed(part, file.size.saturating_sub(at), error);
    let (mut body, mut at) = match origin.hub.open(origin.repo, origin.commit, &file.path, have).await? {
        Body::From(body) => (Some(body), have),
        Body::Whole(body) => (Some(body), 0),
        Body::Beyond => (None, 0),
    };
    let mut out =
        OpenOptions::new().create(true).append(true).open(part).map_err(|error| failed(at, error))?;
    if at != length(part) {
        out.set_len(at).map_err(|error| failed(at, error))?;
    }
    let ended = |at: u64| PullError::Cut {
        what: file.path.clone(),
        reason: format!("{at} of {} bytes came", file.size),
    };
    let Some(body) = &mut body else { return Err(ended(0)) };
    while let Some(piece) = body.chunk().await.map_err(|error| cut(&file.path, error))? {
        let after = at + piece.len() as u64;
        if after > file.size {
            return Err(PullError::Answer {
                what: file.path.clone(),
                reason: format!("it is longer than the {} bytes that are listed", file.size),
            });
        }
        out.write_all(&piece).map_err(|error| failed(at, error))?;
        at = after;
        came(at);
    }
    out.sync_all().map_err(|error| failed(at, error))?;
    if at == file.size { Ok(()) } else { Err(ended(at)) }
}

/// Where a file grows until it is whole.
pub(super) fn partial(target: &Path) -> PathBuf {
    target.with_added_extension("part")
}

fn length(path: &Path) -> u64 {
    path.metadata().map_or(0, |found| found.len())
}

/// Whether a file is what the hub lists.
fn check(file: &Listed, path: &Path) -> Result<(), PullError> {
    let damaged = |reason: String| PullError::Damaged { what: file.path.clone(), reason };
    let found = length(path);
    if found != file.size {
        return Err(damaged(format!("{found} bytes, not {}", file.size)));
    }
    let (mut hash, expected) = match &file.content {
        Content::Sha256(sum) => (Context::new(&SHA256), sum),
        Content::Blob(sum) => {
            let mut hash = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
            hash.update(format!("blob {}\0", file.size).as_bytes());
            (hash, sum)
        }
    };
    let mut bytes = vec![0; PIECE_BYTES];
    let mut read = File::open(path).map_err(|error| write_failed(path, 0, error))?;
    loop {
        match read.read(&mut bytes).map_err(|error| write_failed(path, 0, error))? {
            0 => break,
            count => hash.update(&bytes[..count]),
        }
    }
    let sum: String = hash.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    if sum == *expected { Ok(()) } else { Err(damaged(format!("checksum {sum}, not {expected}"))) }
}

/// What a failed write means. `missing` bytes were still to come.
pub(super) fn write_failed(path: &Path, missing: u64, source: std::io::Error) -> PullError {
    match source.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            let folder = path.parent().unwrap_or(path).to_owned();
            PullError::DiskFull { folder, missing }
        }
        _ => PullError::Write { path: path.to_owned(), source },
    }
}
