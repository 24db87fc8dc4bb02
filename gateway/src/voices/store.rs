//! The folder of kept voices: one process or several, safe against a crash at any byte.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use aws_lc_rs::digest::{SHA256, digest};
use codecs::pcm::RawEncoding;
use contract::Clip;

use super::clip::{Recording, prepare};
use super::manifest::{self, Stamp};
use super::record::{Record, Sharing, Viewer};

/// Clips kept ready in memory: 30 s at 24 kHz are 2.9 MB.
const CLIPS_KEPT: usize = 32;

/// A folder of voices. Methods touch the disk: call them where blocking is allowed, except
/// [`Store::find`], which does so only when another process has changed the folder or a clip is not at hand.
pub(crate) struct Store {
    folder: PathBuf,
    per_tenant_max: AtomicUsize,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    stamp: Stamp,
    voices: Arc<Vec<Record>>,
    /// By id and rate, least recently used first.
    clips: Vec<(String, Arc<Clip>)>,
}

/// What a caller brings for a new voice.
pub(crate) struct NewVoice {
    pub(crate) record: Record,
    pub(crate) recording: Recording,
}

/// A voice that has been removed.
pub(crate) struct Gone {
    /// Of its clip at each rate, unless another voice has the same one: what engines keep features by.
    pub(crate) hashes: Vec<[u8; 16]>,
}

/// Why a voice is not kept or not found.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    #[error("cannot {what} {}: {source}", path.display())]
    Io { what: &'static str, path: PathBuf, source: std::io::Error },
    #[error("{} cannot be read: {what}", path.display())]
    Manifest { path: PathBuf, what: String },
    #[error("this tenant keeps {kept} voices, which is all it may; delete one")]
    Quota { kept: usize },
    #[error("this server keeps as many voices as it can; delete some")]
    Full,
    #[error("this tenant already has a voice of this name; delete it, or choose another name")]
    Exists,
    #[error("the clip of this voice is not what was kept; delete the voice and bring it again")]
    Damaged,
}

impl StoreError {
    pub(super) fn io(what: &'static str, path: &Path, source: std::io::Error) -> Self {
        Self::Io { what, path: path.to_owned(), source }
    }
}

impl Store {
    /// Opens a folder, makes it if it is not there, and sweeps what a crash left.
    ///
    /// # Errors
    /// A folder that cannot be used, or one of another version.
    pub(crate) fn open(folder: &Path, per_tenant_max: usize) -> Result<Self, StoreError> {
        std::fs::create_dir_all(folder).map_err(|source| StoreError::io("make", folder, source))?;
        let held = manifest::lock(folder)?;
        let voices = manifest::read(folder)?;
        manifest::sweep(&held, folder, &voices)?;
        let seen = Seen { stamp: manifest::stamp(folder), voices: Arc::new(voices), clips: Vec::new() };
        Ok(Self {
            folder: folder.to_owned(),
            per_tenant_max: AtomicUsize::new(per_tenant_max),
            seen: Mutex::new(seen),
        })
    }

    pub(crate) fn set_quota(&self, per_tenant_max: usize) {
        self.per_tenant_max.store(per_tenant_max, Ordering::Relaxed);
    }

    /// Voices this viewer may speak with, oldest first.
    ///
    /// # Errors
    /// When the folder cannot be read any more.
    pub(crate) fn list(&self, viewer: &Viewer) -> Result<Vec<Record>, StoreError> {
        Ok(self.current()?.iter().filter(|record| viewer.sees(record)).cloned().collect())
    }

    /// The voice with this id, or else the one of this name, that the viewer may speak with.
    ///
    /// # Errors
    /// As [`Store::list`].
    pub(crate) fn find(&self, viewer: &Viewer, name: &str) -> Result<Option<Record>, StoreError> {
        let voices = self.current()?;
        let mut seen = voices.iter().filter(|record| viewer.sees(record));
        let by_id = seen.clone().find(|record| record.id == name);
        Ok(by_id.or_else(|| seen.find(|record| record.name == name)).cloned())
    }

    /// The clip of a voice for an engine that wants `model_hz`.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] when the file is not the one that was kept.
    pub(crate) fn clip(&self, record: &Record, model_hz: u32) -> Result<Arc<Clip>, StoreError> {
        let key = format!("{}@{model_hz}", record.id);
        {
            let mut seen = self.seen();
            if let Some(at) = seen.clips.iter().position(|(kept, _)| *kept == key) {
                let kept = seen.clips.remove(at);
                let clip = Arc::clone(&kept.1);
                seen.clips.push(kept);
                return Ok(clip);
            }
        }
        let path = manifest::clip_path(&self.folder, &record.id);
        let bytes = std::fs::read(&path).map_err(|source| StoreError::io("read", &path, source))?;
        if hex(digest(&SHA256, &bytes).as_ref()) != record.sha256 {
            return Err(StoreError::Damaged);
        }
        let header = bytes.len().saturating_sub(record.samples as usize * 2);
        let (pairs, _) = bytes.get(header..).unwrap_or_default().as_chunks::<2>();
        let samples = pairs.iter().map(|pair| i16::from_le_bytes(*pair)).collect();
        let recording = Recording { rate_hz: record.rate_hz, samples };
        let clip =
            prepare(&recording, record.transcript.as_deref(), model_hz).map_err(|_| StoreError::Damaged)?;
        let clip = Arc::new(clip);
        let mut seen = self.seen();
        if seen.clips.len() >= CLIPS_KEPT {
            seen.clips.remove(0);
        }
        seen.clips.push((key, Arc::clone(&clip)));
        Ok(clip)
    }

    /// Keeps a voice; its record gets the clip's length and digest.
    ///
    /// # Errors
    /// [`StoreError::Quota`], [`StoreError::Exists`], or the disk's.
    pub(crate) fn add(&self, new: NewVoice) -> Result<Record, StoreError> {
        let NewVoice { mut record, recording } = new;
        let bytes = wav(&recording)?;
        record.rate_hz = recording.rate_hz;
        record.samples = u32::try_from(recording.samples.len()).unwrap_or(u32::MAX);
        record.sha256 = hex(digest(&SHA256, &bytes).as_ref());
        let held = manifest::lock(&self.folder)?;
        let mut voices = manifest::read(&self.folder)?;
        let of_tenant = voices.iter().filter(|kept| kept.tenant == record.tenant);
        let kept = of_tenant.clone().count();
        if kept >= self.per_tenant_max.load(Ordering::Relaxed) {
            return Err(StoreError::Quota { kept });
        }
        if of_tenant.clone().any(|kept| kept.name == record.name) {
            return Err(StoreError::Exists);
        }
        manifest::place(&self.folder, &manifest::clip_name(&record.id), &bytes)?;
        voices.push(record.clone());
        if let Err(error) = manifest::write(&held, &self.folder, voices) {
            // The list may have taken its place all the same, and only its folder not have been flushed.
            let listed = |voices: Vec<Record>| voices.iter().any(|kept| kept.id == record.id);
            if !manifest::read(&self.folder).is_ok_and(listed) {
                // No list names the clip; what cannot be removed now is swept at the next start.
                drop(std::fs::remove_file(manifest::clip_path(&self.folder, &record.id)));
            }
            return Err(error);
        }
        Ok(record)
    }

    /// Forgets a voice of the viewer's: its place in the list, its clip, and what is in memory of it. Gives
    /// what engines know it by, for models at these rates; `None` when there is no such voice of theirs.
    ///
    /// # Errors
    /// The disk's.
    pub(crate) fn remove(
        &self,
        viewer: &Viewer,
        id: &str,
        rates_hz: &[u32],
    ) -> Result<Option<Gone>, StoreError> {
        let held = manifest::lock(&self.folder)?;
        let mut voices = manifest::read(&self.folder)?;
        let theirs =
            |record: &Record| viewer.owns(record) && (record.sharing != Sharing::Everyone || viewer.admin);
        let Some(at) = voices.iter().position(|record| record.id == id && theirs(record)) else {
            return Ok(None);
        };
        let gone = voices.remove(at);
        let hash = |record: &Record, rate: u32| self.clip(record, rate).map(|clip| clip.hash);
        // Another voice may have the same clip, and with it the same features.
        let same = |record: &&Record| record.sha256 == gone.sha256 && record.transcript == gone.transcript;
        let hashes = if voices.iter().any(|record| same(&record)) {
            Vec::new()
        } else {
            rates_hz.iter().filter_map(|rate| hash(&gone, *rate).ok()).collect()
        };
        manifest::write(&held, &self.folder, voices)?;
        let path = manifest::clip_path(&self.folder, &gone.id);
        // After the list, so that no list ever names a file that is not there; a crash here leaves it to
        // the next sweep.
        std::fs::remove_file(&path).map_err(|source| StoreError::io("remove", &path, source))?;
        self.seen().clips.retain(|(key, _)| !key.starts_with(&format!("{id}@")));
        Ok(Some(Gone { hashes }))
    }

    /// The list as it stands, read again when another process has changed it.
    fn current(&self) -> Result<Arc<Vec<Record>>, StoreError> {
        let mut seen = self.seen();
        let stamp = manifest::stamp(&self.folder);
        if stamp != seen.stamp {
            let voices = manifest::read(&self.folder)?;
            seen.clips.retain(|(key, _)| {
                key.split('@').next().is_some_and(|id| voices.iter().any(|record| record.id == id))
            });
            seen.voices = Arc::new(voices);
            seen.stamp = stamp;
        }
        Ok(Arc::clone(&seen.voices))
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn wav(recording: &Recording) -> Result<Vec<u8>, StoreError> {
    let header =
        codecs::wav::header(recording.rate_hz, RawEncoding::S16Le, recording.samples.len() as u64, &[]);
    let mut bytes = header.map_err(|_| StoreError::Damaged)?.to_vec();
    for sample in &recording.samples {
        bytes.extend_from_slice(&sample.to_le_bytes());
    }
    Ok(bytes)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests;
