//! How the lanes share the device that a server opens: as told, as a profile says, or as measured once.

use std::path::{Path, PathBuf};

use contract::Span;
use load::sim::ProfileFile;
use load::workload::Workload;
use runtime::{DeviceChoice, OpenOptions, Split};

use crate::clock::Clock;

/// `engine.split` when it is to be measured.
pub(crate) const MEASURED: &str = "auto";
/// No further split is measured at a first start after this.
const MEASURING_MAX: Span = Span::from_millis(120_000);
/// SMs of the background lane that are tried on a GPU, first those near the default's: there may not be time for all.
const SMS_TRIED: [u32; 4] = [56, 48, 64, 40];
/// What a first start takes a packet to cost the host.
const PACKET_US: f64 = 50.0;

/// # Errors
/// What is written as a split and is none; whether a profile can be read shows when it is.
pub(crate) fn check(asked: &str) -> Result<(), String> {
    let numbers = asked.chars().all(|c| c.is_ascii_digit() || "/+- ".contains(c));
    match asked.parse::<Split>() {
        Err(error) if numbers && !asked.is_empty() => Err(error.to_string()),
        _ => Ok(()),
    }
}

/// The split to open with; `None` leaves it to the device.
///
/// # Errors
/// A profile that cannot be read, or a device that cannot be measured.
pub(crate) fn choose(asked: &str, options: &OpenOptions, clock: Clock) -> Result<Option<Split>, String> {
    if asked.is_empty() {
        return Ok(None);
    }
    if let Ok(split) = asked.parse() {
        return Ok(Some(split));
    }
    if asked != MEASURED {
        let profile = ProfileFile::load(asked).map_err(|error| format!("engine.split: {error}"))?;
        return Ok(of_profile(&profile));
    }
    let tried = tried(&options.device);
    if tried.len() < 2 {
        return Ok(None);
    }
    let kept = kept(options);
    if let Some(profile) = kept.as_deref().and_then(|file| ProfileFile::load(file.to_str()?).ok()) {
        return Ok(of_profile(&profile));
    }
    tracing::info!(splits = tried.len(), "measuring how the lanes best share the device, this once");
    let workload = Workload::load("libritts").map_err(|error| error.to_string())?;
    let begun = clock.now();
    let enough = || clock.now().since(begun) > MEASURING_MAX;
    let (profile, judged) = crate::cli::profile::measure(options, &tried, PACKET_US, &workload, &enough)?;
    if let Some(judged) = judged {
        tracing::info!(reason = judged.reason, "the lanes' split is chosen");
    }
    if let Some(file) = kept {
        keep(&file, &profile);
    }
    Ok(of_profile(&profile))
}

fn of_profile(profile: &ProfileFile) -> Option<Split> {
    let parts = &profile.parts;
    (parts.lm > 0 && parts.background > 0).then_some(Split { lm: parts.lm, background: parts.background })
}

/// Splits worth trying on a device.
fn tried(device: &DeviceChoice) -> Vec<Split> {
    match device {
        // The lm lane gets what the background lane leaves.
        DeviceChoice::Cuda { .. } => SMS_TRIED.map(|background| Split { lm: 1, background }).to_vec(),
        DeviceChoice::Cpu { cores } => {
            let all = std::thread::available_parallelism().map_or(1, usize::from);
            let cores = u32::try_from(cores.as_ref().map_or(all, Vec::len)).unwrap_or(1);
            let half = cores.div_ceil(2);
            let tried = [half, half.saturating_sub(1), half + 1].into_iter();
            tried
                .filter(|lm| (1..cores).contains(lm))
                .map(|lm| Split { lm, background: cores - lm })
                .collect()
        }
    }
}

/// Where the choice for this model on this device is kept.
fn kept(options: &OpenOptions) -> Option<PathBuf> {
    let device = match &options.device {
        DeviceChoice::Cpu { cores } => format!("cpu-{}", cores.as_ref().map_or(0, Vec::len)),
        DeviceChoice::Cuda { ordinal, .. } => format!("cuda-{ordinal}"),
    };
    let name = format!("{}-{device}-{}.json", options.name, options.contexts_max);
    crate::native::cache("splits").map(|folder| folder.join(name))
}

/// A choice that cannot be kept is made again at the next start.
fn keep(file: &Path, profile: &ProfileFile) {
    let Ok(text) = serde_json::to_string_pretty(profile) else { return };
    let half = file.with_added_extension(std::process::id().to_string());
    let folder = file.parent().map_or(Ok(()), std::fs::create_dir_all);
    if folder.and_then(|()| std::fs::write(&half, text)).and_then(|()| std::fs::rename(&half, file)).is_err()
    {
        tracing::warn!(file = %file.display(), "the split that was chosen cannot be kept");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_as_a_split_and_is_none_is_not_looked_for_as_a_file() {
        for wrong in ["0/1", "100/0", "-1/2", "1/1/1", "1025/1", "100", "/"] {
            assert!(check(wrong).is_err_and(|what| what.contains("is no split")), "{wrong}");
        }
        for fine in ["", "auto", "100/32", " 1 / 1 ", "h100-published", "/etc/voxlane/h200-1.7b.json"] {
            assert_eq!(check(fine), Ok(()), "{fine}");
        }
    }

    #[test]
    fn splits_around_the_half_are_tried_where_there_is_a_choice() {
        let tried = |cores: usize| {
            let splits = tried(&DeviceChoice::Cpu { cores: Some((0..cores).collect()) });
            splits.iter().map(Split::to_string).collect::<Vec<_>>()
        };
        assert_eq!(tried(8), ["4/4", "3/5", "5/3"]);
        assert_eq!(tried(3), ["2/1", "1/2"]);
        assert_eq!(tried(2), ["1/1"]);
        assert!(tried(1).is_empty());
    }
}
