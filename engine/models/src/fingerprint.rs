//! Tells one checkpoint from another without reading all of it.

use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::ModelSource;
use crate::features_file::{fnv, mix};

/// Places of a file that are looked at, and bytes at each: a fine-tune changes weights everywhere.
const PLACES: u64 = 256;
const PLACE_BYTES: usize = 4_096;
/// Where a checkpoint's weights and configuration lie.
const FOLDERS: [&str; 2] = ["", "speech_tokenizer"];
const ENDINGS: [&str; 2] = [".json", ".safetensors"];

impl ModelSource {
    /// A number that two checkpoints share only if names, sizes and some bytes everywhere are the same.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn fingerprint(&self) -> std::io::Result<u64> {
        match self {
            Self::Random { files, seed } => Ok(mix(Self::Embedded(files).fingerprint()?, *seed)),
            Self::Embedded(files) => {
                let mut files: Vec<_> = files.iter().filter(|(name, _)| counts(name)).collect();
                files.sort_unstable();
                Ok(files.iter().fold(0, |hash, (name, bytes)| {
                    sampled(mix(hash, fnv(name.as_bytes())), bytes.len() as u64, |at, buffer| {
                        let from = usize::try_from(at).unwrap_or(usize::MAX).min(bytes.len());
                        let count = buffer.len().min(bytes.len() - from);
                        buffer[..count].copy_from_slice(&bytes[from..from + count]);
                        Ok(count)
                    })
                    .unwrap_or(hash)
                }))
            }
            Self::Dir(root) => {
                let mut names = Vec::new();
                for folder in FOLDERS {
                    // A checkpoint without its codec's folder cannot be opened at all.
                    let Ok(entries) = std::fs::read_dir(root.join(folder)) else { continue };
                    for entry in entries {
                        let name = entry?.file_name().to_string_lossy().into_owned();
                        names.push(if folder.is_empty() { name } else { format!("{folder}/{name}") });
                    }
                }
                names.retain(|name| counts(name));
                names.sort_unstable();
                let mut hash = 0;
                for name in names {
                    let file = File::open(root.join(&name))?;
                    let length = file.metadata()?.len();
                    let seen = mix(hash, fnv(name.as_bytes()));
                    hash = sampled(seen, length, |at, buffer| file.read_at(buffer, at))?;
                }
                Ok(hash)
            }
        }
    }
}

fn counts(name: &str) -> bool {
    ENDINGS.iter().any(|ending| name.ends_with(ending)) && !name.starts_with("voices/")
}

fn sampled(
    hash: u64,
    length: u64,
    mut read: impl FnMut(u64, &mut [u8]) -> std::io::Result<usize>,
) -> std::io::Result<u64> {
    let mut hash = mix(hash, length);
    let mut buffer = [0; PLACE_BYTES];
    let step = (length / PLACES).max(PLACE_BYTES as u64);
    let mut at = 0;
    while at < length {
        let count = read(at, &mut buffer)?;
        hash = mix(hash, fnv(&buffer[..count]));
        at += step;
    }
    Ok(hash)
}
