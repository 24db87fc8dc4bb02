//! The list of kept voices, as a file that is replaced whole.
//!
//! Every change is: take the folder's lock, read the list, write a new clip under a temporary name and
//! rename it, write the new list under a temporary name and rename it. A process that dies anywhere in
//! between leaves the old list or the new one, and at most a file that no list names; whoever opens the
//! folder next sweeps those. Readers need no lock: a renamed file is seen whole.

use std::fs::File;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::disk::{Disk, Stamp};
use super::record::Record;
use super::store::StoreError;

const NAME: &str = "manifest.json";
const LOCK: &str = "lock";
const FORMAT: &str = "voxlane-voices";
const VERSION: u32 = 1;
/// Bytes of a manifest: some ten thousand voices.
const BYTES_MAX: u64 = 64 << 20;
/// Bytes of a clip: 30 s at 48 kHz, with room.
const CLIP_BYTES_MAX: u64 = 16 << 20;
/// Names that a crash can leave behind begin so.
const TEMPORARY: &str = ".new-";
const CLIP: &str = ".wav";

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

/// A folder on a disk.
pub(super) struct Folder {
    pub(super) path: PathBuf,
    pub(super) disk: Box<dyn Disk>,
}

/// The folder's lock, held until dropped; shared with other processes.
pub(super) struct Locked(#[expect(dead_code, reason = "held for its lock")] File);

impl Folder {
    /// Makes the folder if it is not there.
    pub(super) fn make(&self) -> Result<(), StoreError> {
        self.disk.make_folder(&self.path).map_err(|source| StoreError::io("make", &self.path, source))
    }

    pub(super) fn lock(&self) -> Result<Locked, StoreError> {
        let path = self.path.join(LOCK);
        let file = self.disk.lock(&path).map_err(|source| StoreError::io("lock", &path, source))?;
        Ok(Locked(file))
    }

    /// Of the list; `None` where there is none.
    pub(super) fn stamp(&self) -> Result<Option<Stamp>, StoreError> {
        let path = self.path.join(NAME);
        absent(self.disk.stamp(&path)).map_err(|source| StoreError::io("look at", &path, source))
    }

    /// The list; `None` where there is none.
    pub(super) fn read(&self) -> Result<Option<Vec<Record>>, StoreError> {
        let path = self.path.join(NAME);
        let text = absent(self.disk.read(&path, BYTES_MAX));
        let Some(text) = text.map_err(|source| StoreError::io("read", &path, source))? else {
            return Ok(None);
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
        let contents: Contents =
            serde_json::from_slice(&text).map_err(|error| unreadable(error.to_string()))?;
        Ok(Some(contents.voices))
    }

    pub(super) fn write(&self, _held: &Locked, voices: Vec<Record>) -> Result<(), StoreError> {
        let contents = Contents { format: FORMAT.to_owned(), version: VERSION, voices };
        let text = serde_json::to_vec_pretty(&contents)
            .map_err(|error| StoreError::Manifest { path: self.path.join(NAME), what: error.to_string() })?;
        // What could not be read again must not be written.
        if text.len() as u64 > BYTES_MAX {
            return Err(StoreError::Full);
        }
        self.place(NAME, &text)
    }

    pub(super) fn write_clip(&self, _held: &Locked, id: &str, bytes: &[u8]) -> Result<(), StoreError> {
        self.place(&clip_name(id), bytes)
    }

    pub(super) fn read_clip(&self, id: &str) -> Result<Vec<u8>, StoreError> {
        let path = self.clip_path(id);
        self.disk.read(&path, CLIP_BYTES_MAX).map_err(|source| StoreError::io("read", &path, source))
    }

    pub(super) fn remove_clip(&self, id: &str) -> Result<(), StoreError> {
        let path = self.clip_path(id);
        self.disk.remove(&path).map_err(|source| StoreError::io("remove", &path, source))
    }

    pub(super) fn clip_path(&self, id: &str) -> PathBuf {
        self.path.join(clip_name(id))
    }

    /// Writes a file that is either wholly there or not at all.
    ///
    /// # Errors
    /// [`StoreError::Unflushed`] when it is there, and a crash may take it away again.
    fn place(&self, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
        let (temporary, path) = (self.path.join(format!("{TEMPORARY}{name}")), self.path.join(name));
        let placed = self.disk.write(&temporary, bytes).and_then(|()| self.disk.rename(&temporary, &path));
        if let Err(source) = placed {
            // On a full disk the part that was written is in the way of everything else.
            drop(self.disk.remove(&temporary));
            return Err(StoreError::io("write", &path, source));
        }
        // The rename itself must outlive a crash.
        self.disk.flush_folder(&self.path).map_err(|source| StoreError::Unflushed { path, source })
    }

    /// Removes what a crash left: temporary files, and clips of ours that no list names.
    pub(super) fn sweep(&self, _held: &Locked, voices: &[Record]) -> Result<(), StoreError> {
        let listed = |name: &str| voices.iter().any(|voice| clip_name(&voice.id) == name);
        for name in self.names()? {
            if name.starts_with(TEMPORARY) || (is_clip(&name) && !listed(&name)) {
                let path = self.path.join(&name);
                self.disk.remove(&path).map_err(|source| StoreError::io("remove", &path, source))?;
            }
        }
        Ok(())
    }

    /// A sound file that stands in the folder.
    pub(super) fn any_sound(&self) -> Result<Option<String>, StoreError> {
        Ok(self.names()?.into_iter().find(|name| !name.starts_with(TEMPORARY) && name.ends_with(CLIP)))
    }

    fn names(&self) -> Result<Vec<String>, StoreError> {
        self.disk.names(&self.path).map_err(|source| StoreError::io("list", &self.path, source))
    }
}

fn absent<T>(outcome: std::io::Result<T>) -> std::io::Result<Option<T>> {
    match outcome {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        outcome => outcome.map(Some),
    }
}

fn clip_name(id: &str) -> String {
    format!("{id}{CLIP}")
}

/// Every id begins so: a sound that somebody else put into the folder is not ours to sweep.
fn is_clip(name: &str) -> bool {
    name.starts_with("v-") && name.ends_with(CLIP)
}
