//! What a rehearsal breaks, and when: read from one line of text.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use contract::{DeviceId, Stage};

/// Faults of one script at most.
const FAULTS_MAX: usize = 64;

/// Faults to play: `KIND@STAGE:N`, several separated by commas. The fault befalls the Nth launch of the
/// stage (from 1, counted once the engine serves) on device 0, or on D with `KIND@STAGE:N:D`.
///
/// `error`: the launch is refused. `fail`: it ends in an error. `lost`: the device is gone from there on.
/// `stuck`: it never comes back. `hang`: the call that launches never returns. `nan`: its first row is not a
/// number (codec and encode, whose outputs are). `memory@weights:N`, `states`, `pages` or `programs`: the Nth
/// request for memory of that kind, while starting, is not granted.
#[derive(Clone, Debug, Default)]
pub struct FaultScript {
    pub(crate) faults: Vec<Fault>,
    /// Launches count from when this is set.
    serving: Arc<AtomicBool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) kind: FaultKind,
    pub(crate) count: u32,
    pub(crate) device: DeviceId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultKind {
    Launch(LaunchFault, Stage),
    Memory(MemoryUse),
}

/// What befalls a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LaunchFault {
    Error,
    Fail,
    Hang,
    Lost,
    Nan,
    Stuck,
}

/// What memory is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryUse {
    Pages,
    Programs,
    States,
    Weights,
}

/// A script that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("fault {text:?} is not known: {what}")]
pub struct FaultError {
    pub text: String,
    pub what: &'static str,
}

const LAUNCH_FAULTS: [(&str, LaunchFault); 6] = [
    ("error", LaunchFault::Error),
    ("fail", LaunchFault::Fail),
    ("hang", LaunchFault::Hang),
    ("lost", LaunchFault::Lost),
    ("nan", LaunchFault::Nan),
    ("stuck", LaunchFault::Stuck),
];
const MEMORY_USES: [(&str, MemoryUse); 4] = [
    ("pages", MemoryUse::Pages),
    ("programs", MemoryUse::Programs),
    ("states", MemoryUse::States),
    ("weights", MemoryUse::Weights),
];
const STAGES: [Stage; 4] = [Stage::Codec, Stage::Decode, Stage::Encode, Stage::Prefill];

/// The value that has this name.
fn named<T: Copy>(table: &[(&str, T)], name: &str) -> Option<T> {
    table.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
}

impl FromStr for FaultScript {
    type Err = FaultError;

    fn from_str(text: &str) -> Result<Self, FaultError> {
        let entries = text.split(',').map(str::trim).filter(|entry| !entry.is_empty());
        let faults: Vec<_> = entries.map(read).collect::<Result<_, _>>()?;
        if faults.len() > FAULTS_MAX {
            return Err(FaultError { text: text.to_owned(), what: "at most 64 fit in one script" });
        }
        Ok(Self { faults, ..Self::default() })
    }
}

fn read(text: &str) -> Result<Fault, FaultError> {
    let wrong = |what| FaultError { text: text.to_owned(), what };
    let (kind, place) = text.split_once('@').ok_or_else(|| wrong("write KIND@STAGE:N"))?;
    let mut parts = place.split(':');
    let place = parts.next().unwrap_or_default();
    let count = parts.next().and_then(|count| count.parse().ok()).filter(|count| *count > 0);
    let count = count.ok_or_else(|| wrong("N is a whole number from 1"))?;
    let device = match parts.next() {
        None => DeviceId(0),
        Some(device) => DeviceId(device.parse().map_err(|_| wrong("a device is a whole number"))?),
    };
    if parts.next().is_some() {
        return Err(wrong("write KIND@STAGE:N or KIND@STAGE:N:DEVICE"));
    }
    let kind = if kind == "memory" {
        let memory = named(&MEMORY_USES, place);
        FaultKind::Memory(memory.ok_or_else(|| wrong("memory is of weights, states, pages or programs"))?)
    } else {
        let fault = named(&LAUNCH_FAULTS, kind);
        let fault = fault.ok_or_else(|| wrong("one of error, fail, hang, lost, memory, nan, stuck"))?;
        let stage = STAGES.into_iter().find(|stage| stage.name() == place);
        let stage = stage.ok_or_else(|| wrong("stages are encode, prefill, decode and codec"))?;
        if fault == LaunchFault::Nan && !matches!(stage, Stage::Codec | Stage::Encode) {
            return Err(wrong("codes are whole numbers: nan befalls codec and encode"));
        }
        FaultKind::Launch(fault, stage)
    };
    Ok(Fault { kind, count, device })
}

impl FaultScript {
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.faults.is_empty()
    }

    /// What befalls one device.
    pub(crate) fn of(&self, device: DeviceId) -> Self {
        let faults = self.faults.iter().filter(|fault| fault.device == device).copied().collect();
        Self { faults, serving: Arc::default() }
    }

    /// From here on launches count.
    pub(crate) fn begin(&self) {
        self.serving.store(true, Ordering::Relaxed);
    }

    pub(crate) fn has_begun(&self) -> bool {
        self.serving.load(Ordering::Relaxed)
    }
}

/// As it was written, for the log.
impl fmt::Display for FaultScript {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, Fault { kind, count, device }) in self.faults.iter().enumerate() {
            let comma = if index > 0 { ", " } else { "" };
            let (kind, place) = match kind {
                FaultKind::Launch(fault, stage) => (name(&LAUNCH_FAULTS, *fault), stage.name()),
                FaultKind::Memory(memory) => ("memory", name(&MEMORY_USES, *memory)),
            };
            write!(f, "{comma}{kind}@{place}:{count}:{}", device.0)?;
        }
        Ok(())
    }
}

fn name<T: PartialEq>(table: &[(&'static str, T)], value: T) -> &'static str {
    table.iter().find(|(_, known)| *known == value).map_or("", |(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_read_and_written_alike() {
        let text = "stuck@decode:7, nan@codec:4:1,memory@pages:1";
        let script: FaultScript = text.parse().expect("reads");
        assert_eq!(script.to_string(), "stuck@decode:7:0, nan@codec:4:1, memory@pages:1:0");
        assert_eq!(script.of(DeviceId(1)).to_string(), "nan@codec:4:1");
        assert!("".parse::<FaultScript>().expect("nothing").is_empty());
    }

    #[test]
    fn what_cannot_befall_anything_is_refused_by_name() {
        for (text, why) in [
            ("stuck", "KIND@STAGE:N"),
            ("stuck@decode", "whole number from 1"),
            ("stuck@decode:0", "whole number from 1"),
            ("stuck@decode:-1", "whole number from 1"),
            ("stuck@decode:1:x", "a device is"),
            ("stuck@decode:1:0:2", "KIND@STAGE:N:DEVICE"),
            ("stuck@talker:1", "stages are"),
            ("melt@decode:1", "one of error"),
            ("memory@decode:1", "memory is of"),
            ("nan@decode:1", "codes are whole"),
        ] {
            let error = text.parse::<FaultScript>().expect_err(text).to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
        let many = vec!["stuck@decode:1"; FAULTS_MAX + 1].join(",");
        assert!(many.parse::<FaultScript>().is_err());
    }
}
