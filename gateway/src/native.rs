//! Opens the runtime's engine from the gateway's configuration.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use contract::{EngineHandle, Span};
use runtime::{DeviceChoice, ModelSource, OpenOptions, Precision};

use crate::clock::Clock;
use crate::config::EngineConfig;
use crate::engine::Embedded;

/// The embedded model's name on the wire.
const EMBEDDED_NAME: &str = "tts-tiny";
/// Random weights are the same in every run.
const RANDOM_SEED: u64 = 1;

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
    let mut options = options(config, embedded, clock)?;
    options.features = features.map(Path::to_owned);
    let chosen = read_device(&config.device)? != DeviceName::Auto;
    match runtime::open(options.clone()) {
        Err(error) if !chosen && matches!(options.device, DeviceChoice::Cuda { .. }) => {
            tracing::warn!(%error, "the GPU cannot be used; going on with the CPU");
            let device = DeviceChoice::Cpu { cores: None };
            runtime::open(OpenOptions { device, ..options }).map_err(|error| error.to_string())
        }
        opened => opened.map_err(|error| error.to_string()),
    }
}

/// What the configuration asks the runtime to open.
///
/// # Errors
/// As [`open`].
pub(crate) fn options(
    config: &EngineConfig,
    embedded: Option<Embedded>,
    clock: Clock,
) -> Result<OpenOptions, String> {
    let device = match read_device(&config.device)? {
        DeviceName::Cpu(cores) => DeviceChoice::Cpu { cores },
        DeviceName::Cuda(ordinal) => cuda(config, ordinal)?,
        DeviceName::Auto if runtime::has_cuda_driver() => cuda(config, 0)?,
        DeviceName::Auto => DeviceChoice::Cpu { cores: None },
    };
    let (source, name) = match (&config.random_weights, &config.model, embedded) {
        (Some(shape), ..) => (random(shape)?, format!("tts-{shape}")),
        (None, Some(folder), _) => (ModelSource::Dir(folder.clone()), name_of(folder)),
        (None, None, Some(files)) => (ModelSource::Embedded(files), EMBEDDED_NAME.to_owned()),
        (None, None, None) => {
            return Err("this binary holds no model; name a checkpoint's folder with --model".to_owned());
        }
    };
    Ok(OpenOptions {
        contexts_max: config.contexts_max,
        device,
        first_audio_limit: Span::from_micros(
            i64::try_from(config.first_audio_limit.as_micros()).unwrap_or(i64::MAX),
        ),
        seed: config.seed,
        bench: config.bench,
        ..OpenOptions::new(source, name, clock.origin())
    })
}

/// A published shape: its configs, the embedded model's tokenizer, weights from a seed.
fn random(shape: &str) -> Result<ModelSource, String> {
    macro_rules! files {
        ($shape:literal) => {
            &[
                (
                    "config.json",
                    include_bytes!(concat!("../../config/models/shapes/", $shape, "/config.json")),
                ),
                (
                    "generation_config.json",
                    include_bytes!(concat!("../../config/models/shapes/", $shape, "/generation_config.json")),
                ),
                (
                    "speech_tokenizer/config.json",
                    include_bytes!(concat!(
                        "../../config/models/shapes/",
                        $shape,
                        "/speech_tokenizer/config.json"
                    )),
                ),
                ("tokenizer.json", include_bytes!("../../config/models/tiny/tokenizer.json")),
                ("tokenizer_config.json", include_bytes!("../../config/models/tiny/tokenizer_config.json")),
            ]
        };
    }
    let files: Embedded = match shape {
        "qwen3-tts-1.7b" => files!("qwen3-tts-1.7b"),
        "qwen3-tts-0.6b" => files!("qwen3-tts-0.6b"),
        other => {
            return Err(format!(
                "random weights {other:?} are unknown; use qwen3-tts-1.7b or qwen3-tts-0.6b"
            ));
        }
    };
    Ok(ModelSource::Random { files, seed: RANDOM_SEED })
}

/// What `engine.device` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DeviceName {
    Auto,
    /// Chosen cores, or all.
    Cpu(Option<Vec<usize>>),
    Cuda(u32),
}

/// # Errors
/// A name that is not `auto`, `cpu`, `cpu:0,2` or `cuda:0`.
pub(crate) fn read_device(name: &str) -> Result<DeviceName, String> {
    let cores = |list: &str| list.split(',').map(|core| core.trim().parse().ok()).collect::<Option<Vec<_>>>();
    let known = match (name, name.split_once(':')) {
        ("auto", _) => Some(DeviceName::Auto),
        ("cpu", _) => Some(DeviceName::Cpu(None)),
        (_, Some(("cpu", list))) => cores(list).map(|cores| DeviceName::Cpu(Some(cores))),
        (_, Some(("cuda", ordinal))) => ordinal.parse().ok().map(DeviceName::Cuda),
        _ => None,
    };
    known.ok_or_else(|| {
        format!("device {name:?} is not known; use auto, cpu, cpu:0,1 for chosen cores, or cuda:0")
    })
}

/// # Errors
/// A name that is not `bf16` or `f32`.
pub(crate) fn read_precision(name: &str) -> Result<Precision, String> {
    match name {
        "bf16" => Ok(Precision::Bf16),
        "f32" => Ok(Precision::F32),
        other => Err(format!("precision {other:?} is not known; use bf16 or f32")),
    }
}

fn cuda(config: &EngineConfig, ordinal: u32) -> Result<DeviceChoice, String> {
    let precision = read_precision(&config.precision)?;
    Ok(DeviceChoice::Cuda {
        ordinal,
        precision,
        background_sms: config.background_sms,
        kernels: kernel_cache(),
    })
}

/// Where compiled kernels are kept: `XDG_CACHE_HOME`, else `~/.cache`.
fn kernel_cache() -> Option<PathBuf> {
    let base = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let base = base.or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")));
    base.filter(|base| base.is_absolute()).map(|base| base.join("voxlane/kernels"))
}

/// The wire name of a checkpoint in `folder`: `tts-` and the folder's own name in lower case.
pub(crate) fn name_of(folder: &Path) -> String {
    let resolved = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    let name =
        resolved.file_name().map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().to_lowercase());
    if name.starts_with("tts-") { name } else { format!("tts-{name}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_name_all_cores_or_chosen_ones_or_are_refused() {
        assert_eq!(read_device("auto"), Ok(DeviceName::Auto));
        assert_eq!(read_device("cpu"), Ok(DeviceName::Cpu(None)));
        assert_eq!(read_device("cpu:0, 2"), Ok(DeviceName::Cpu(Some(vec![0, 2]))));
        assert_eq!(read_device("cuda:1"), Ok(DeviceName::Cuda(1)));
        for wrong in ["cpu:one", "cuda", "cuda:", "tpu"] {
            assert!(read_device(wrong).is_err_and(|error| error.contains("cuda:0")), "{wrong}");
        }
    }

    #[test]
    fn a_folder_names_its_model() {
        assert_eq!(name_of(Path::new("/models/Qwen3-TTS-12Hz-1.7B-Base")), "tts-qwen3-tts-12hz-1.7b-base");
        assert_eq!(name_of(Path::new("/models/tts-mine")), "tts-mine");
    }
}
