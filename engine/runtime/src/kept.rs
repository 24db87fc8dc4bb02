//! Features of clips in a folder: what was encoded once is read by the next process.
//!
//! Reading happens on the caller's thread and writing on a thread of its own, so that the engine thread
//! never waits for a disk. A file is written whole under another name and renamed; one that cannot be read
//! is none. The folder is bounded: the oldest files go first.

use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use contract::CloneMode;
use models::VoiceFeatures;
use sched::EncodeKey;

/// Features that may wait for the disk; more are not kept, and encoded again by the next process.
const WRITES_MAX: usize = 16;
/// Bytes of the folder.
const FOLDER_BYTES_MAX: u64 = 1 << 30;
/// Bytes of one file: 30 s in context are a few MB.
const FILE_BYTES_MAX: u64 = 64 << 20;
const ENDING: &str = ".features";

pub(crate) struct Kept {
    folder: PathBuf,
    /// Which checkpoint these are features of.
    fingerprint: u64,
    /// What the engine has in memory: not worth reading.
    cached: Mutex<BTreeSet<EncodeKey>>,
    writes: SyncSender<Write>,
}

/// What the folder's thread does, in order.
enum Write {
    Forget(PathBuf),
    Keep(PathBuf, Arc<VoiceFeatures>),
}

impl Kept {
    /// # Errors
    /// A folder that cannot be made.
    pub(crate) fn open(folder: &Path, fingerprint: u64) -> std::io::Result<Self> {
        std::fs::create_dir_all(folder)?;
        let (writes, waiting) = sync_channel::<Write>(WRITES_MAX);
        let bounded = folder.to_owned();
        std::thread::Builder::new().name("voxlane-features".to_owned()).spawn(move || {
            while let Ok(next) = waiting.recv() {
                match next {
                    Write::Forget(path) => drop(std::fs::remove_file(path)),
                    Write::Keep(path, features) => {
                        // A disk that is full costs an encode in the next process, and nothing else.
                        drop(write(&path, &features.to_bytes()));
                        drop(bound(&bounded));
                    }
                }
            }
        })?;
        Ok(Self { folder: folder.to_owned(), fingerprint, cached: Mutex::default(), writes })
    }

    /// Features that an earlier process made, unless the engine has them in memory.
    pub(crate) fn load(&self, key: EncodeKey) -> Option<Arc<VoiceFeatures>> {
        if self.cached().contains(&key) {
            return None;
        }
        let mut bytes = Vec::new();
        let file = std::fs::File::open(self.path(key)).ok()?;
        file.take(FILE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
        VoiceFeatures::from_bytes(&bytes).map(Arc::new)
    }

    pub(crate) fn keep(&self, key: EncodeKey, features: &Arc<VoiceFeatures>) {
        drop(self.writes.try_send(Write::Keep(self.path(key), Arc::clone(features))));
    }

    /// What the engine now has in memory.
    pub(crate) fn set_cached(&self, keys: BTreeSet<EncodeKey>) {
        *self.cached() = keys;
    }

    pub(crate) fn forget(&self, hash: [u8; 16]) {
        for mode in [CloneMode::InContext, CloneMode::Speaker] {
            let key = EncodeKey { hash, mode };
            self.cached().remove(&key);
            drop(std::fs::remove_file(self.path(key)));
            // And once more behind what may be waiting to be written.
            drop(self.writes.try_send(Write::Forget(self.path(key))));
        }
    }

    fn path(&self, key: EncodeKey) -> PathBuf {
        let hash: String = key.hash.iter().map(|byte| format!("{byte:02x}")).collect();
        let mode = match key.mode {
            CloneMode::InContext => "in-context",
            CloneMode::Speaker => "speaker",
        };
        self.folder.join(format!("{hash}-{mode}-{:016x}{ENDING}", self.fingerprint))
    }

    fn cached(&self) -> std::sync::MutexGuard<'_, BTreeSet<EncodeKey>> {
        self.cached.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The process's id keeps two writers of one file apart.
fn write(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let temporary = path.with_extension(format!("new-{}", std::process::id()));
    let written = std::fs::write(&temporary, bytes).and_then(|()| std::fs::rename(&temporary, path));
    if written.is_err() {
        // A full disk keeps no half of a file: it is what fills the disk.
        drop(std::fs::remove_file(&temporary));
    }
    written
}

/// Removes the oldest files until the folder is within its bound, and what a crash left half written.
fn bound(folder: &Path) -> std::io::Result<()> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let about = entry.metadata()?;
        files.push((about.modified()?, about.len(), entry.path()));
    }
    files.sort();
    let mut bytes: u64 = files.iter().map(|(_, bytes, _)| bytes).sum();
    for (_, length, path) in files {
        if bytes <= FOLDER_BYTES_MAX {
            break;
        }
        std::fs::remove_file(path)?;
        bytes -= length;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::write;

    #[test]
    fn what_cannot_be_kept_leaves_nothing_half_written() {
        let folder = std::env::temp_dir().join(format!("voxlane-kept-{}", std::process::id()));
        // A folder stands where the file should go, so that the last step fails.
        std::fs::create_dir_all(folder.join("features.bin/inside")).expect("a folder");
        assert!(write(&folder.join("features.bin"), b"features").is_err());
        assert_eq!(std::fs::read_dir(&folder).expect("the folder").count(), 1, "the folder alone");
        write(&folder.join("other.bin"), b"features").expect("kept");
        assert_eq!(std::fs::read(folder.join("other.bin")).expect("kept"), b"features");
        std::fs::remove_dir_all(folder).expect("removed");
    }
}
