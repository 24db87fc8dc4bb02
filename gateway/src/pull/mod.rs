//! `voxlane pull`: a checkpoint from a hub, into a folder that `serve --model` reads.
//!
//! Everything is gathered in a folder beside the wanted one and checked against the hub's listing; only then
//! does it get its name. A pull that was cut goes on where it was.

mod error;
mod file;
mod hub;
mod name;

use std::fs::File;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub use error::PullError;
pub use name::{NameError, RepoName};

use file::{Origin, fetch, write_failed};
use hub::{Hub, Listed};

/// Most files of one repository.
const FILES_MAX: usize = 4_096;
/// What was pulled, beside the files.
const RECORD: &str = ".voxlane-pull.json";
/// Held by the pull that writes to a folder.
const LOCK: &str = ".voxlane-pull.lock";

/// What to pull, from where, to where.
#[derive(Clone, Debug)]
pub struct PullOptions {
    pub repo: RepoName,
    pub to: PathBuf,
    /// The hub's address; `None` is huggingface.co.
    pub endpoint: Option<String>,
    pub token: Option<String>,
}

/// How far a pull is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress<'a> {
    pub file: &'a str,
    /// Bytes of all files, and how many of them are there.
    pub came: u64,
    pub all: u64,
}

/// A checkpoint that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pulled {
    pub commit: String,
    pub files: usize,
    pub bytes: u64,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    repo: String,
    commit: String,
}

/// Pulls a repository's checkpoint. What is there already stays as it is.
///
/// # Errors
/// [`PullError`], which says what to do; what has come stays for the next try.
pub async fn pull(
    options: &PullOptions,
    progress: &mut (dyn FnMut(Progress<'_>) + Send),
) -> Result<Pulled, PullError> {
    let PullOptions { repo, to, endpoint, token } = options;
    let hub = Hub::new(endpoint.as_deref(), token.as_deref())?;
    let listing = hub.list(repo).await?;
    let files = wanted(repo, listing.files)?;
    let bytes = files.iter().fold(0, |sum: u64, file| sum.saturating_add(file.size));
    let pulled = Pulled { commit: listing.commit, files: files.len(), bytes };
    let record = Record { repo: format!("{}/{}", repo.owner, repo.name), commit: pulled.commit.clone() };
    if to.exists() {
        return match read_record(to) {
            Some(there) if there == record => Ok(pulled),
            _ => Err(PullError::Occupied { folder: to.clone() }),
        };
    }
    let gathering = to.with_added_extension("pull");
    std::fs::create_dir_all(&gathering).map_err(|error| write_failed(&gathering, pulled.bytes, error))?;
    let _alone = lock(&gathering)?;
    clear_others(&gathering, Path::new(""), &files).map_err(|error| write_failed(&gathering, 0, error))?;
    let origin = Origin { hub: &hub, repo, commit: &pulled.commit };
    let mut before = 0_u64;
    for file in &files {
        let below = name::below(&file.path).ok_or_else(|| PullError::Outside { path: file.path.clone() })?;
        let target = gathering.join(below);
        let folder = target.parent().unwrap_or(&gathering);
        std::fs::create_dir_all(folder).map_err(|error| write_failed(folder, file.size, error))?;
        let mut came = |there| {
            progress(Progress { file: &file.path, came: before.saturating_add(there), all: pulled.bytes })
        };
        fetch(&origin, file, &target, &mut came).await?;
        before = before.saturating_add(file.size);
    }
    finish(&gathering, to, &record)?;
    Ok(pulled)
}

/// The files that are read by a server, each of which must lie below the folder.
fn wanted(repo: &RepoName, files: Vec<Listed>) -> Result<Vec<Listed>, PullError> {
    let refused =
        |reason: String| PullError::Answer { what: format!("{}/{}", repo.owner, repo.name), reason };
    if let Some(outside) = files.iter().find(|file| name::below(&file.path).is_none()) {
        return Err(PullError::Outside { path: outside.path.clone() });
    }
    let mut files: Vec<_> = files.into_iter().filter(|file| name::is_wanted(&file.path)).collect();
    files.sort_by(|one, other| one.path.cmp(&other.path));
    if files.len() > FILES_MAX {
        return Err(refused(format!("it lists {} files; at most {FILES_MAX} are taken", files.len())));
    }
    if !files.iter().any(|file| file.path == "config.json") {
        return Err(refused("it has no config.json: this is no checkpoint that can be served".to_owned()));
    }
    Ok(files)
}

fn read_record(folder: &Path) -> Option<Record> {
    serde_json::from_slice(&crate::input::read(&folder.join(RECORD), 4_096).ok()?).ok()
}

/// Removes what an earlier pull, of another commit or repository, has left behind.
fn clear_others(gathering: &Path, below: &Path, files: &[Listed]) -> std::io::Result<()> {
    for entry in std::fs::read_dir(gathering.join(below))? {
        let entry = entry?;
        let path = below.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            clear_others(gathering, &path, files)?;
            continue;
        }
        let listed = |file: &Listed| {
            let file = Path::new(&file.path);
            path == file || path == file::partial(file)
        };
        if path != Path::new(LOCK) && !files.iter().any(listed) {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Keeps other pulls out of the folder until dropped.
fn lock(folder: &Path) -> Result<File, PullError> {
    let path = folder.join(LOCK);
    let failed = |error| write_failed(&path, 0, error);
    let file = File::create(&path).map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => Err(PullError::Busy { folder: folder.to_owned() }),
        Err(std::fs::TryLockError::Error(error)) => Err(failed(error)),
    }
}

/// Gives what was gathered its name.
fn finish(gathering: &Path, to: &Path, record: &Record) -> Result<(), PullError> {
    let path = gathering.join(RECORD);
    let text = serde_json::json!(record).to_string();
    std::fs::write(&path, text).map_err(|error| write_failed(&path, 0, error))?;
    let lock = gathering.join(LOCK);
    std::fs::remove_file(&lock).map_err(|error| write_failed(&lock, 0, error))?;
    std::fs::rename(gathering, to).map_err(|error| match error.kind() {
        std::io::ErrorKind::DirectoryNotEmpty | std::io::ErrorKind::NotADirectory => {
            PullError::Occupied { folder: to.to_owned() }
        }
        _ => write_failed(to, 0, error),
    })
}

/// Where a repository is pulled to when nobody says: `XDG_DATA_HOME`, else `~/.local/share`.
#[must_use]
pub fn default_folder(repo: &RepoName) -> Option<PathBuf> {
    let base = std::env::var_os("XDG_DATA_HOME").map(PathBuf::from);
    let base = base.or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/share")));
    let base = base.filter(|base| base.is_absolute())?;
    Some(base.join("voxlane/models").join(&repo.owner).join(&repo.name))
}
