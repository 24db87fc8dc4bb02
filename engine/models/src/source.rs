//! Where a checkpoint's files are.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use device::{Checkpoint, DeviceError};

use crate::ModelError;

/// Most bytes read of any file that is not weights: a foreign folder must not exhaust memory.
const SIDE_FILE_BYTES_MAX: u64 = 64 << 20;

/// A checkpoint folder, on disk or inside the binary.
#[derive(Clone, Debug)]
pub enum ModelSource {
    Dir(PathBuf),
    /// Path within the folder, with `/`, and contents.
    Embedded(&'static [(&'static str, &'static [u8])]),
    /// Configs and tokenizer as in [`ModelSource::Embedded`], weights drawn from a seed.
    Random {
        files: &'static [(&'static str, &'static [u8])],
        seed: u64,
    },
}

impl ModelSource {
    /// A whole small file.
    ///
    /// # Errors
    /// Missing, unreadable or too large to be what it says.
    pub fn file(&self, name: &str) -> Result<Cow<'static, [u8]>, ModelError> {
        let unreadable = |what: String| ModelError::Unreadable { file: self.label(name), what };
        match self {
            Self::Dir(folder) => {
                let read = device::read_regular(&folder.join(name), SIDE_FILE_BYTES_MAX);
                read.map(Cow::Owned).map_err(|error| match error {
                    DeviceError::BadFile { what, .. } => unreadable(what),
                    other => other.into(),
                })
            }
            Self::Embedded(files) | Self::Random { files, .. } => files
                .iter()
                .find(|(path, _)| *path == name)
                .map(|(_, bytes)| Cow::Borrowed(*bytes))
                .ok_or_else(|| unreadable("it is not embedded".to_owned())),
        }
    }

    /// Whether there is anything of this name: what is no regular file is refused by whoever reads it, not
    /// passed over.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        match self {
            Self::Dir(folder) => folder.join(name).exists(),
            Self::Embedded(files) | Self::Random { files, .. } => files.iter().any(|(path, _)| *path == name),
        }
    }

    /// The weights in `folder` of the checkpoint (`""` for its root).
    ///
    /// # Errors
    /// Missing, truncated or foreign files.
    pub fn weights(&self, folder: &str) -> Result<Checkpoint, ModelError> {
        match self {
            Self::Dir(root) => Ok(Checkpoint::open(&root.join(folder))?),
            Self::Random { seed, .. } => Ok(Checkpoint::random(*seed)),
            Self::Embedded(_) => {
                let name = if folder.is_empty() {
                    "model.safetensors".to_owned()
                } else {
                    format!("{folder}/model.safetensors")
                };
                Ok(Checkpoint::from_bytes(self.label(&name), self.file(&name)?)?)
            }
        }
    }

    /// How errors name a file.
    #[must_use]
    pub fn label(&self, name: &str) -> String {
        match self {
            Self::Dir(folder) => folder.join(Path::new(name)).display().to_string(),
            Self::Embedded(_) | Self::Random { .. } => format!("embedded {name}"),
        }
    }
}
