//! Opens the runtime's engine from the gateway's configuration.

use std::path::Path;
use std::sync::Arc;

use contract::EngineHandle;
use runtime::{ModelSource, OpenOptions};

use crate::clock::Clock;
use crate::config::EngineConfig;
use crate::engine::Embedded;

/// The embedded model's name on the wire.
const EMBEDDED_NAME: &str = "tts-tiny";

/// Loads, places and warms up; the engine speaks when this returns.
///
/// # Errors
/// Why the model cannot be opened, and what would help.
pub(crate) fn open(
    config: &EngineConfig,
    features: Option<&Path>,
    embedded: Option<Embedded>,
    clock: Clock,
) -> Result<Arc<dyn EngineHandle>, String> {
    let cores = cores(&config.device)?;
    let (source, name) = match (&config.model, embedded) {
        (Some(folder), _) => (ModelSource::Dir(folder.clone()), name_of(folder)),
        (None, Some(files)) => (ModelSource::Embedded(files), EMBEDDED_NAME.to_owned()),
        (None, None) => {
            return Err("this binary holds no model; name a checkpoint's folder with --model".to_owned());
        }
    };
    let options = OpenOptions {
        contexts_max: config.contexts_max,
        cores,
        bench: config.bench,
        features: features.map(Path::to_owned),
        ..OpenOptions::new(source, name, clock.origin())
    };
    runtime::open(options).map_err(|error| error.to_string())
}

/// The wire name of a checkpoint in `folder`: `tts-` and the folder's own name in lower case.
pub(crate) fn name_of(folder: &Path) -> String {
    let resolved = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    let name =
        resolved.file_name().map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().to_lowercase());
    if name.starts_with("tts-") { name } else { format!("tts-{name}") }
}

/// `auto` and `cpu` take every core this process may run on, `cpu:0,2` only those.
fn cores(device: &str) -> Result<Option<Vec<usize>>, String> {
    match device {
        "auto" | "cpu" => Ok(None),
        other => {
            let listed = other.strip_prefix("cpu:").and_then(|list| {
                list.split(',').map(|core| core.trim().parse().ok()).collect::<Option<Vec<usize>>>()
            });
            listed.map(Some).ok_or_else(|| {
                format!(
                    "device {other:?} is not known to this build; use auto, cpu, or cpu:0,1 for chosen cores"
                )
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_name_all_cores_or_chosen_ones_or_are_refused() {
        assert_eq!(cores("auto"), Ok(None));
        assert_eq!(cores("cpu:0, 2"), Ok(Some(vec![0, 2])));
        assert!(cores("cpu:one").is_err());
        assert!(cores("cuda:0").is_err_and(|error| error.contains("cpu")));
    }

    #[test]
    fn a_folder_names_its_model() {
        assert_eq!(name_of(Path::new("/models/Qwen3-TTS-12Hz-1.7B-Base")), "tts-qwen3-tts-12hz-1.7b-base");
        assert_eq!(name_of(Path::new("/models/tts-mine")), "tts-mine");
    }
}
