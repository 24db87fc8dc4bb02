//! The folder of kept voices: one process or several, safe against a crash at any byte.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use aws_lc_rs::digest::{SHA256, digest};
use codecs::pcm::RawEncoding;
use contract::Clip;

use super::clip::{Recording, prepare};
use super::disk::{Disk, Os, Stamp};
use super::manifest::{Folder, Locked};
use super::record::{Record, Sharing, Viewer};

/// Clips kept ready in memory: 30 s at 24 kHz are 2.9 MB.
const CLIPS_KEPT: usize = 32;

/// A folder of voices. Methods touch the disk: call them where blocking is allowed, except
/// [`Store::find`], which does so only when another process has changed the folder or a clip is not at hand.
pub(crate) struct Store {
    folder: Folder,
    per_tenant_max: AtomicUsize,
    seen: Mutex<Seen>,
    /// Times the disk would not do what was asked.
    faults: AtomicU64,
    /// A fault left files that no list names.
    unswept: AtomicBool,
}

#[derive(Default)]
struct Seen {
    stamp: Option<Stamp>,
    voices: Arc<Vec<Record>>,
    /// The folder cannot be read: `voices` are those it held when it last could.
    lost: bool,
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
    /// Why its clip may still be on the disk: it goes with the next change that succeeds, or the next start.
    pub(crate) unfinished: Option<StoreError>,
}

/// Why a voice is not kept or not found.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    #[error("cannot {what} {}: {source}", path.display())]
    Io { what: &'static str, path: PathBuf, source: std::io::Error },
    #[error("cannot flush the folder of {}, which a crash may undo: {source}", path.display())]
    Unflushed { path: PathBuf, source: std::io::Error },
    #[error("{} cannot be read: {what}", path.display())]
    Manifest { path: PathBuf, what: String },
    #[error("{} holds sounds ({sound}) and no list of voices", folder.display())]
    Unlisted { folder: PathBuf, sound: String },
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

    /// Whether what was to be written stands there all the same.
    fn is_placed(&self) -> bool {
        matches!(self, Self::Unflushed { .. })
    }

    /// For whoever starts the server: what to do about it.
    pub(crate) fn advice(&self) -> &'static str {
        match self {
            Self::Unlisted { .. } => {
                "name a folder that holds nothing else, or bring back the manifest.json that belongs to them"
            }
            Self::Manifest { .. } => "bring back one that can be read, or name another folder",
            _ => {
                "name a folder that this process can make and write to, on a disk with room, or none: then no \
                 voices are kept"
            }
        }
    }
}

impl Store {
    /// Opens a folder, makes it if it is not there, and sweeps what a crash left.
    ///
    /// # Errors
    /// A folder that cannot be used, one of another version, or one of somebody else's sounds.
    pub(crate) fn open(folder: &Path, per_tenant_max: usize) -> Result<Self, StoreError> {
        Self::open_on(Box::new(Os), folder, per_tenant_max)
    }

    fn open_on(disk: Box<dyn Disk>, folder: &Path, per_tenant_max: usize) -> Result<Self, StoreError> {
        let folder = Folder { path: folder.to_owned(), disk };
        folder.make()?;
        let held = folder.lock()?;
        let voices = match folder.read()? {
            Some(voices) => voices,
            None => {
                // With a list from the start, one that is missing later is one that was lost: its clips are
                // not swept, and neither are a stranger's.
                if let Some(sound) = folder.any_sound()? {
                    return Err(StoreError::Unlisted { folder: folder.path, sound });
                }
                folder.write(&held, Vec::new())?;
                Vec::new()
            }
        };
        folder.sweep(&held, &voices)?;
        let seen = Seen { stamp: folder.stamp()?, voices: Arc::new(voices), ..Seen::default() };
        drop(held);
        Ok(Self {
            folder,
            per_tenant_max: AtomicUsize::new(per_tenant_max),
            seen: Mutex::new(seen),
            faults: AtomicU64::new(0),
            unswept: AtomicBool::new(false),
        })
    }

    pub(crate) fn set_quota(&self, per_tenant_max: usize) {
        self.per_tenant_max.store(per_tenant_max, Ordering::Relaxed);
    }

    /// Times the disk would not do what was asked, since the start.
    pub(crate) fn faults(&self) -> u64 {
        self.faults.load(Ordering::Relaxed)
    }

    /// Voices this viewer may speak with, oldest first.
    pub(crate) fn list(&self, viewer: &Viewer) -> Vec<Record> {
        self.current().iter().filter(|record| viewer.sees(record)).cloned().collect()
    }

    /// The voice with this id, or else the one of this name, that the viewer may speak with.
    pub(crate) fn find(&self, viewer: &Viewer, name: &str) -> Option<Record> {
        let voices = self.current();
        let mut seen = voices.iter().filter(|record| viewer.sees(record));
        let by_id = seen.clone().find(|record| record.id == name);
        by_id.or_else(|| seen.find(|record| record.name == name)).cloned()
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
        let bytes = self.counted(self.folder.read_clip(&record.id))?;
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
        self.counted(self.try_add(new))
    }

    fn try_add(&self, new: NewVoice) -> Result<Record, StoreError> {
        let NewVoice { mut record, recording } = new;
        let bytes = wav(&recording)?;
        record.rate_hz = recording.rate_hz;
        record.samples = u32::try_from(recording.samples.len()).unwrap_or(u32::MAX);
        record.sha256 = hex(digest(&SHA256, &bytes).as_ref());
        let held = self.folder.lock()?;
        let mut voices = self.listed(&held)?;
        let of_tenant = voices.iter().filter(|kept| kept.tenant == record.tenant);
        let kept = of_tenant.clone().count();
        if kept >= self.per_tenant_max.load(Ordering::Relaxed) {
            return Err(StoreError::Quota { kept });
        }
        if of_tenant.clone().any(|kept| kept.name == record.name) {
            return Err(StoreError::Exists);
        }
        voices.push(record.clone());
        let clip = self.folder.write_clip(&held, &record.id, &bytes);
        // A list that has taken its place, and only whose folder was not flushed, has the clip as well.
        let listed = clip.is_ok();
        let kept = clip.and_then(|()| self.folder.write(&held, voices));
        if let Err(error) = kept {
            // What cannot be removed now is swept later.
            self.unswept.store(true, Ordering::Relaxed);
            if !(listed && error.is_placed()) {
                drop(self.folder.remove_clip(&record.id));
            }
            return Err(error);
        }
        self.tidy(&held);
        drop(self.current());
        Ok(record)
    }

    /// Forgets a voice of the viewer's: its place in the list, its clip, and what is in memory of it. Gives
    /// what engines know it by, for models at these rates; `None` when there is no such voice of theirs.
    ///
    /// # Errors
    /// The disk's; then the voice is as it was.
    pub(crate) fn remove(
        &self,
        viewer: &Viewer,
        id: &str,
        rates_hz: &[u32],
    ) -> Result<Option<Gone>, StoreError> {
        self.counted(self.try_remove(viewer, id, rates_hz))
    }

    fn try_remove(&self, viewer: &Viewer, id: &str, rates_hz: &[u32]) -> Result<Option<Gone>, StoreError> {
        let held = self.folder.lock()?;
        let mut voices = self.listed(&held)?;
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
        // The clip goes after the list, so that no list ever names a file that is not there; a crash between
        // them leaves it to the next sweep. So does a list whose folder could not be flushed: a crash may
        // bring the old one back.
        let unfinished = match self.folder.write(&held, voices) {
            Ok(()) => self.folder.remove_clip(&gone.id),
            Err(error) if error.is_placed() => Err(error),
            Err(error) => {
                self.unswept.store(true, Ordering::Relaxed);
                return Err(error);
            }
        };
        let unfinished = self.counted(unfinished).err();
        match unfinished {
            Some(_) => self.unswept.store(true, Ordering::Relaxed),
            None => self.tidy(&held),
        }
        drop(self.current());
        self.seen().clips.retain(|(key, _)| !key.starts_with(&format!("{id}@")));
        Ok(Some(Gone { hashes, unfinished }))
    }

    /// The list as it stands, read again when another process has changed it. While it cannot be read, what it
    /// last said holds: a folder that is away for a while takes no voice with it.
    fn current(&self) -> Arc<Vec<Record>> {
        let mut seen = self.seen();
        let Err(error) = self.look(&mut seen) else {
            if std::mem::take(&mut seen.lost) {
                tracing::info!("the folder of voices can be read again");
            }
            return Arc::clone(&seen.voices);
        };
        if !std::mem::replace(&mut seen.lost, true) {
            self.faults.fetch_add(1, Ordering::Relaxed);
            tracing::error!(%error, "the folder of voices cannot be read; voices last seen there are served on");
        }
        Arc::clone(&seen.voices)
    }

    fn look(&self, seen: &mut Seen) -> Result<(), StoreError> {
        let stamp = self.folder.stamp()?;
        if stamp == seen.stamp && stamp.is_some() {
            return Ok(());
        }
        let voices = self.folder.read()?.ok_or_else(|| self.missing())?;
        seen.clips.retain(|(key, _)| {
            key.split('@').next().is_some_and(|id| voices.iter().any(|record| record.id == id))
        });
        seen.voices = Arc::new(voices);
        seen.stamp = stamp;
        Ok(())
    }

    /// The list, for a change to it. None is no empty one: [`Store::open`] has seen it.
    fn listed(&self, _held: &Locked) -> Result<Vec<Record>, StoreError> {
        self.folder.read()?.ok_or_else(|| self.missing())
    }

    fn missing(&self) -> StoreError {
        StoreError::io("find the list in", &self.folder.path, std::io::ErrorKind::NotFound.into())
    }

    /// Sweeps what an earlier fault left, now that the disk does as it is asked again.
    fn tidy(&self, held: &Locked) {
        if self.unswept.swap(false, Ordering::Relaxed) {
            let swept = self.listed(held).and_then(|voices| self.folder.sweep(held, &voices));
            if swept.is_err() {
                self.unswept.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Counts what the disk would not do.
    fn counted<T>(&self, outcome: Result<T, StoreError>) -> Result<T, StoreError> {
        if let Err(StoreError::Io { .. } | StoreError::Unflushed { .. } | StoreError::Manifest { .. }) =
            &outcome
        {
            self.faults.fetch_add(1, Ordering::Relaxed);
        }
        outcome
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
mod faults;
#[cfg(test)]
mod tests;
