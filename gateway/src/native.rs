//! Opens the runtime's engine from the gateway's configuration.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use contract::{EngineHandle, Span};
use runtime::{
    DeviceChoice, FaultError, FaultScript, ModelSource, OpenOptions, Precision, Without, WithoutError,
};

use crate::clock::Clock;
use crate::config::EngineConfig;
use crate::engine::Embedded;
use crate::pull::{RepoName, default_folder};
use crate::split::MEASURED as MEASURED_SPLIT;

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
    let devices = devices(config)?;
    match devices.as_slice() {
        [device] => {
            options.device = device.clone();
            let open = |options: OpenOptions, split: &str| {
                let split = crate::split::choose(split, &options, clock)?;
                runtime::open(OpenOptions { split, ..options }).map_err(|error| error.to_string())
            };
            if config.device == AUTO {
                or_on_cpu(options, &config.split, open)
            } else {
                open(options, &config.split)
            }
        }
        _ => {
            // Devices of a fleet are alike: the first one's choice is theirs.
            options.split = crate::split::choose(&config.split, &options, clock)?;
            runtime::open_fleet(&options, devices).map_err(|error| error.to_string())
        }
    }
}

/// Opens the GPU that was found, or the CPU where that cannot be: parts of a GPU are none of a CPU.
fn or_on_cpu<T>(
    options: OpenOptions,
    split: &str,
    open: impl Fn(OpenOptions, &str) -> Result<T, String>,
) -> Result<T, String> {
    if !matches!(options.device, DeviceChoice::Cuda { .. }) {
        return open(options, split);
    }
    open(options.clone(), split).or_else(|error| {
        tracing::warn!(error, "the GPU cannot be used; going on with the CPU");
        let device = DeviceChoice::Cpu { cores: None };
        open(OpenOptions { device, ..options }, if split == MEASURED_SPLIT { split } else { "" })
    })
}

/// What the configuration asks the runtime to open, on the first of its devices.
///
/// # Errors
/// As [`open`].
pub(crate) fn options(
    config: &EngineConfig,
    embedded: Option<Embedded>,
    clock: Clock,
) -> Result<OpenOptions, String> {
    let first = devices(config)?.into_iter().next();
    let (source, name) = match (&config.random_weights, &config.model, embedded) {
        (Some(shape), ..) => (random(shape)?, format!("tts-{shape}")),
        (None, Some(folder), _) => {
            let folder = found(folder)?;
            let name = name_of(&folder);
            (ModelSource::Dir(folder), name)
        }
        (None, None, Some(files)) => (ModelSource::Embedded(files), EMBEDDED_NAME.to_owned()),
        (None, None, None) => {
            return Err("this binary holds no model; name a checkpoint's folder with --model".to_owned());
        }
    };
    Ok(OpenOptions {
        contexts_max: config.contexts_max,
        device: first.unwrap_or(DeviceChoice::Cpu { cores: None }),
        first_audio_limit: given(config.first_audio_limit),
        steps_between_prefills: config.steps_between_prefills,
        stuck_after: given(config.stuck_after),
        without: without(config)?,
        faults: faults(config)?,
        seed: config.seed,
        bench: config.bench,
        ..OpenOptions::new(source, name, clock.origin())
    })
}

/// A checkpoint's folder, or where `pull` has put the repository of this name.
///
/// # Errors
/// A repository that has not been pulled.
fn found(model: &Path) -> Result<PathBuf, String> {
    let repo = model.to_str().and_then(|name| name.parse::<RepoName>().ok());
    let Some(repo) = repo.filter(|_| !model.exists()) else { return Ok(model.to_owned()) };
    let pulled = default_folder(&repo).filter(|folder| folder.exists());
    let name = model.display();
    pulled.ok_or_else(|| format!("there is no folder {name}; bring the repository with: voxlane pull {name}"))
}

/// A time that was given; zero leaves it to the device.
fn given(time: Duration) -> Option<Span> {
    let micros = i64::try_from(time.as_micros()).unwrap_or(i64::MAX);
    (micros > 0).then(|| Span::from_micros(micros))
}

/// The faults to rehearse.
///
/// # Errors
/// A script that cannot be read, or one where nobody measures: a server that serves breaks nothing on purpose.
pub(crate) fn faults(config: &EngineConfig) -> Result<FaultScript, String> {
    let script: FaultScript = config.faults.parse().map_err(|error: FaultError| error.to_string())?;
    measuring_only(config, script.is_empty())?;
    Ok(script)
}

/// The parts to go without.
///
/// # Errors
/// Parts that are not known, or left out where nobody measures.
pub(crate) fn without(config: &EngineConfig) -> Result<Without, String> {
    let without: Without = config.without.parse().map_err(|error: WithoutError| error.to_string())?;
    measuring_only(config, without == Without::default())?;
    Ok(without)
}

fn measuring_only(config: &EngineConfig, plain: bool) -> Result<(), String> {
    if plain || config.bench { Ok(()) } else { Err("only with engine.bench (--bench)".to_owned()) }
}

/// # Errors
/// A name that no published shape has.
pub(crate) fn knows_shape(name: &str) -> Result<(), String> {
    random(name).map(drop)
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

/// `engine.device` when the processor is ours to choose.
const AUTO: &str = "auto";

/// The processors that the configuration names, one an engine.
///
/// # Errors
/// A device that is not known, or a list that cannot be had.
pub(crate) fn devices(config: &EngineConfig) -> Result<Vec<DeviceChoice>, String> {
    if config.device == AUTO {
        let card = if runtime::has_cuda_driver() { Some(cuda(config, 0)?) } else { None };
        return Ok(vec![card.unwrap_or(DeviceChoice::Cpu { cores: None })]);
    }
    let named = read_devices(&config.device)?.into_iter().map(|device| match device {
        DeviceName::Cpu(cores) => Ok(DeviceChoice::Cpu { cores }),
        DeviceName::Cuda(ordinal) => cuda(config, ordinal),
    });
    runtime::share_out(named.collect::<Result<_, _>>()?).map_err(|error| error.to_string())
}

/// One of the devices that `engine.device` lists.
#[derive(Clone, Debug, PartialEq, Eq)]
enum DeviceName {
    /// Chosen cores, or all.
    Cpu(Option<Vec<usize>>),
    Cuda(u32),
}

/// Devices stand between commas; so do the cores of one, which are plain numbers.
fn read_devices(list: &str) -> Result<Vec<DeviceName>, String> {
    let unknown = |what: &str| {
        format!(
            "device {what:?} is not known; use auto, or a list of cpu, cpu:0,1 for chosen cores, and cuda:0"
        )
    };
    let mut devices = Vec::new();
    for part in list.split(',').map(str::trim) {
        let number = |text: &str| text.trim().parse().map_err(|_| unknown(part));
        match (part.split_once(':'), devices.last_mut()) {
            (None, _) if part == "cpu" => devices.push(DeviceName::Cpu(None)),
            (None, Some(DeviceName::Cpu(Some(cores)))) => cores.push(number(part)?),
            (Some(("cpu", core)), _) => devices.push(DeviceName::Cpu(Some(vec![number(core)?]))),
            (Some(("cuda", ordinal)), _) => {
                devices.push(DeviceName::Cuda(ordinal.parse().map_err(|_| unknown(part))?));
            }
            _ => return Err(unknown(part)),
        }
    }
    Ok(devices)
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

/// Where compiled kernels are kept.
fn kernel_cache() -> Option<PathBuf> {
    cache("kernels")
}

/// A folder of things that can be made again: in `XDG_CACHE_HOME`, else `~/.cache`.
pub(crate) fn cache(name: &str) -> Option<PathBuf> {
    let base = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let base = base.or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")));
    base.filter(|base| base.is_absolute()).map(|base| base.join("voxlane").join(name))
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
        use DeviceName::{Cpu, Cuda};
        assert_eq!(read_devices("cpu"), Ok(vec![Cpu(None)]));
        assert_eq!(read_devices("cpu:0, 2"), Ok(vec![Cpu(Some(vec![0, 2]))]));
        assert_eq!(read_devices("cuda:1"), Ok(vec![Cuda(1)]));
        assert_eq!(read_devices("cuda:0,cuda:1"), Ok(vec![Cuda(0), Cuda(1)]));
        let mixed = vec![Cpu(Some(vec![0, 1])), Cpu(Some(vec![2])), Cuda(3), Cpu(None)];
        assert_eq!(read_devices("cpu:0,1,cpu:2,cuda:3,cpu"), Ok(mixed));
        for wrong in ["cpu:one", "cuda", "cuda:", "tpu", "cuda:0,1", "cpu,auto", "cpu,", "", "cpu,0"] {
            assert!(read_devices(wrong).is_err_and(|error| error.contains("cuda:0")), "{wrong}");
        }
    }

    #[test]
    fn how_prompts_take_turns_is_the_engines_own_rule_until_the_key_says_otherwise() {
        let steps = |text: &str| {
            let config = crate::config::Layers::default().text("a file", text);
            let config = config.resolve().and_then(|it| it.config()).expect("valid").engine;
            options(&config, Some(Embedded::default()), Clock::start())
                .expect("an engine")
                .steps_between_prefills
        };
        assert_eq!((steps(""), steps("[engine]\nsteps_between_prefills = \"2\"")), (None, Some(2)));
        for wrong in ["65", "-1", "two"] {
            let text = format!("[engine]\nsteps_between_prefills = \"{wrong}\"");
            let config = crate::config::Layers::default().text("a file", &text);
            assert!(config.resolve().and_then(|it| it.config()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn where_the_gpu_that_was_found_cannot_be_used_the_cpu_speaks_however_the_lanes_were_to_share_it() {
        let options = || {
            let config =
                crate::config::Layers::default().resolve().and_then(|it| it.config()).expect("valid");
            options(&config.engine, Some(Embedded::default()), Clock::start()).expect("an engine")
        };
        let card =
            DeviceChoice::Cuda { ordinal: 0, precision: Precision::Bf16, background_sms: 56, kernels: None };
        // What cannot be measured on a card fails before it is opened.
        let open = |options: OpenOptions, split: &str| match options.device {
            DeviceChoice::Cuda { .. } => Err("too old a driver".to_owned()),
            DeviceChoice::Cpu { .. } => Ok(split.to_owned()),
        };
        let spoken = |split| or_on_cpu(OpenOptions { device: card.clone(), ..options() }, split, open);
        for (split, on_cpu) in [("", ""), ("auto", "auto"), ("100/32", ""), ("h200.json", "")] {
            assert_eq!(spoken(split).as_deref(), Ok(on_cpu), "{split}");
        }
        let cpu = OpenOptions { device: DeviceChoice::Cpu { cores: None }, ..options() };
        assert_eq!(
            or_on_cpu(cpu, "1/1", open).as_deref(),
            Ok("1/1"),
            "parts of the CPU stay as they were asked for"
        );
    }

    #[test]
    fn a_folder_names_its_model() {
        assert_eq!(name_of(Path::new("/models/Qwen3-TTS-12Hz-1.7B-Base")), "tts-qwen3-tts-12hz-1.7b-base");
        assert_eq!(name_of(Path::new("/models/tts-mine")), "tts-mine");
    }
}
