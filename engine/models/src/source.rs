//! Where a checkpoint's files are.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use device::Checkpoint;

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
                let path = folder.join(name);
                let bytes = std::fs::metadata(&path).map_err(|error| unreadable(error.to_string()))?.len();
                if bytes > SIDE_FILE_BYTES_MAX {
                    return Err(unreadable(format!(
                        "{bytes} bytes are more than the {SIDE_FILE_BYTES_MAX} allowed"
                    )));
                }
                std::fs::read(&path).map(Cow::Owned).map_err(|error| unreadable(error.to_string()))
            }
            Self::Embedded(files) | Self::Random { files, .. } => files
                .iter()
                .find(|(path, _)| *path == name)
                .map(|(_, bytes)| Cow::Borrowed(*bytes))
                .ok_or_else(|| unreadable("it is not embedded".to_owned())),
        }
    }

    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        match self {
            Self::Dir(folder) => folder.join(name).is_file(),
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
