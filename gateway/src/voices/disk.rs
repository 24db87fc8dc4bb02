//! What the folder of voices asks of a disk: few steps, any of which can fail.

use std::fs::{File, OpenOptions};
use std::io::{Read, Result, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;

/// Tells one state of a file from another: a rename makes a new inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp(u64, i64, i64, u64);

/// A disk, as far as voices need one.
pub(super) trait Disk: Send + Sync {
    fn make_folder(&self, folder: &Path) -> Result<()>;

    /// Opens a file, makes it if it is not there, and waits for its lock, which other processes share. The
    /// file holds it until it is dropped.
    fn lock(&self, path: &Path) -> Result<File>;

    fn stamp(&self, path: &Path) -> Result<Stamp>;

    /// At most `bytes_max` bytes of a file.
    fn read(&self, path: &Path, bytes_max: u64) -> Result<Vec<u8>>;

    /// Makes a file of these bytes, which outlives a crash once its name does.
    fn write(&self, path: &Path, bytes: &[u8]) -> Result<()>;

    fn rename(&self, from: &Path, to: &Path) -> Result<()>;

    /// Makes what was renamed in a folder outlive a crash.
    fn flush_folder(&self, folder: &Path) -> Result<()>;

    fn remove(&self, path: &Path) -> Result<()>;

    /// The names in a folder.
    fn names(&self, folder: &Path) -> Result<Vec<String>>;
}

/// The machine's own.
pub(super) struct Os;

impl Disk for Os {
    /// Nobody else's to read: voices and what their speakers agreed to are personal.
    fn make_folder(&self, folder: &Path) -> Result<()> {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
    }

    fn lock(&self, path: &Path) -> Result<File> {
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
        file.lock()?;
        Ok(file)
    }

    fn stamp(&self, path: &Path) -> Result<Stamp> {
        let file = std::fs::metadata(path)?;
        Ok(Stamp(file.ino(), file.mtime(), file.mtime_nsec(), file.size()))
    }

    fn read(&self, path: &Path, bytes_max: u64) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        File::open(path)?.take(bytes_max).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> Result<()> {
        let mut file = File::create(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        std::fs::rename(from, to)
    }

    fn flush_folder(&self, folder: &Path) -> Result<()> {
        File::open(folder)?.sync_all()
    }

    fn remove(&self, path: &Path) -> Result<()> {
        std::fs::remove_file(path)
    }

    fn names(&self, folder: &Path) -> Result<Vec<String>> {
        let entries = std::fs::read_dir(folder)?;
        entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    }
}
