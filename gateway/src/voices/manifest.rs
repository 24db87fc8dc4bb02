//! The list of kept voices, as a file that is replaced whole.
//!
//! Every change is: take the folder's lock, read the list, write a new clip under a temporary name and
//! rename it, write the new list under a temporary name and rename it. A process that dies anywhere in
//! between leaves the old list or the new one, and at most a file that no list names; whoever opens the
//! folder next sweeps those. Readers need no lock: a renamed file is seen whole.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::record::Record;
use super::store::StoreError;

const NAME: &str = "manifest.json";
const LOCK: &str = "lock";
const FORMAT: &str = "voxlane-voices";
const VERSION: u32 = 1;
/// Bytes of a manifest: some ten thousand voices.
const BYTES_MAX: u64 = 64 << 20;
/// Names that a crash can leave behind begin so.
const TEMPORARY: &str = ".new-";

/// What every version has.
#[derive(Deserialize)]
struct Head {
    format: String,
    version: u32,
}

#[derive(Serialize, Deserialize)]
struct Contents {
    format: String,
    version: u32,
    voices: Vec<Record>,
}

/// Tells one state of the file from another: a rename makes a new inode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Stamp(u64, i64, i64, u64);

/// The folder's lock, held until dropped; shared with other processes.
pub(super) struct Locked(#[expect(dead_code, reason = "held for its lock")] File);

pub(super) fn lock(folder: &Path) -> Result<Locked, StoreError> {
    let path = folder.join(LOCK);
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
    let file = file.map_err(|source| StoreError::io("open", &path, source))?;
    file.lock().map_err(|source| StoreError::io("lock", &path, source))?;
    Ok(Locked(file))
}

pub(super) fn stamp(folder: &Path) -> Stamp {
    std::fs::metadata(folder.join(NAME))
        .map_or(Stamp::default(), |file| Stamp(file.ino(), file.mtime(), file.mtime_nsec(), file.size()))
}

/// An absent list is an empty one.
pub(super) fn read(folder: &Path) -> Result<Vec<Record>, StoreError> {
    let path = folder.join(NAME);
    let mut text = Vec::new();
    match File::open(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        opened => opened
            .and_then(|file| file.take(BYTES_MAX).read_to_end(&mut text))
            .map_err(|source| StoreError::io("read", &path, source))?,
    };
    let unreadable = |what: String| StoreError::Manifest { path: path.clone(), what };
    // First, because the voices of another version may look otherwise.
    let head: Head = serde_json::from_slice(&text).map_err(|error| unreadable(error.to_string()))?;
    if head.format != FORMAT || head.version != VERSION {
        return Err(unreadable(format!(
            "it is {} version {}; this version reads {FORMAT} version {VERSION}",
            head.format, head.version
        )));
    }
    let contents: Contents = serde_json::from_slice(&text).map_err(|error| unreadable(error.to_string()))?;
    Ok(contents.voices)
}

pub(super) fn write(_held: &Locked, folder: &Path, voices: Vec<Record>) -> Result<(), StoreError> {
    let contents = Contents { format: FORMAT.to_owned(), version: VERSION, voices };
    let text = serde_json::to_vec_pretty(&contents)
        .map_err(|error| StoreError::Manifest { path: folder.join(NAME), what: error.to_string() })?;
    // What could not be read again must not be written.
    if text.len() as u64 > BYTES_MAX {
        return Err(StoreError::Full);
    }
    place(folder, NAME, &text)
}

/// Writes a file that is either wholly there or not at all.
pub(super) fn place(folder: &Path, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
    let (temporary, path) = (folder.join(format!("{TEMPORARY}{name}")), folder.join(name));
    let write = || {
        let mut file = File::create(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&temporary, &path)?;
        // The rename itself must outlive a crash.
        File::open(folder)?.sync_all()
    };
    write().map_err(|source| {
        // On a full disk the part that was written is in the way of everything else.
        drop(std::fs::remove_file(&temporary));
        StoreError::io("write", &path, source)
    })
}

/// Removes what a crash left: temporary files, and clips that no list names.
pub(super) fn sweep(_held: &Locked, folder: &Path, voices: &[Record]) -> Result<(), StoreError> {
    let listed = |name: &str| voices.iter().any(|voice| clip_name(&voice.id) == name);
    let entries = std::fs::read_dir(folder).map_err(|source| StoreError::io("list", folder, source))?;
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with(TEMPORARY) || (name.ends_with(".wav") && !listed(&name)) {
            std::fs::remove_file(entry.path())
                .map_err(|source| StoreError::io("remove", &entry.path(), source))?;
        }
    }
    Ok(())
}

pub(super) fn clip_path(folder: &Path, id: &str) -> PathBuf {
    folder.join(clip_name(id))
}

pub(super) fn clip_name(id: &str) -> String {
    format!("{id}.wav")
}
