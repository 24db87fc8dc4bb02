//! The profile file: what stages cost on a device, what its lanes cost each other, and what the host
//! takes beside them. Written by `voxlane profile`, read by `voxlane simulate` and `voxlane plan`.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use contract::{Partition, Span, Stage};
use sched::{CostTable, Profile, SchedConfig};
use serde::{Deserialize, Serialize};

use super::split::{SplitChoice, SplitCost};

/// One model on one device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProfileFile {
    pub name: String,
    pub device: String,
    /// What in it was not measured, and why it is thought so.
    #[serde(default)]
    pub guesses: Vec<String>,
    pub frame_ms: f64,
    #[serde(default = "one")]
    pub rows_per_context: u32,
    #[serde(default)]
    pub look_ahead: u32,
    #[serde(default)]
    pub state_grows: bool,
    /// A launch costs what its live rows cost, not what its bucket does: a CPU pads nothing.
    #[serde(default)]
    pub live_rows: bool,
    pub decode_buckets: Vec<u32>,
    pub codec_buckets: Vec<u32>,
    pub codec_lengths: Vec<u32>,
    pub stages: Vec<StageCost>,
    /// The same device under other splits; the stages above are of the one that was chosen.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub splits: Vec<SplitCost>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub choice: Option<SplitChoice>,
    #[serde(default)]
    pub parts: Parts,
    #[serde(default)]
    pub sharing: Sharing,
    #[serde(default)]
    pub host: HostCost,
    #[serde(default)]
    pub prompt: PromptShape,
    #[serde(default)]
    pub limits: Limits,
}

/// Cost of one stage on one partition, over rows and lengths.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StageCost {
    /// `decode`, `prefill`, `codec` or `encode`.
    pub stage: String,
    /// `lm`, `background` or `whole`.
    pub partition: String,
    pub rows: Vec<u32>,
    /// Decode: positions of the longest row. Codec: frames a row. Prefill: prompt positions in all (rows: those of the
    /// executable, with the decode rows that ride along). Encode: samples.
    pub lengths: Vec<u32>,
    /// Microseconds, row by row: `micros[r * lengths.len() + l]`.
    pub micros: Vec<u32>,
}

/// Cores or SMs of each partition.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Parts {
    pub unit: String,
    pub whole: u32,
    pub lm: u32,
    pub background: u32,
}

/// What is left of a lane's speed beside others, 0 to 1.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Sharing {
    /// Of the lm and background lanes while urgent work runs.
    pub beside_urgent: f64,
    /// Of decode while a background batch runs, and the other way round.
    pub lm_beside_background: f64,
    pub background_beside_lm: f64,
    /// Of a prefill on the whole processor while a background batch runs, and the other way round.
    pub whole_beside_background: f64,
    pub background_beside_whole: f64,
    /// Of urgent work that finds other lanes busy.
    pub urgent_beside_lanes: f64,
}

/// What the host does beside the lanes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HostCost {
    /// Cores that host work shares with the lanes: on a CPU all of them; 0 where the lanes run elsewhere.
    pub cores: u32,
    /// Processor time of one 20 ms packet: encoding, sending, and the generator's receiving.
    pub packet_us: f64,
    /// Processor time of one request beside its packets: connection, text, reports, generator.
    pub request_us: f64,
    /// From a completion to the next launch's start.
    pub launch_us: f64,
    /// From a chunk on the host to its first packet at the listener's socket.
    pub path_us: f64,
    /// Longest part by which a launch exceeds its table.
    pub spread: f64,
}

/// How long prompts are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PromptShape {
    /// Positions beside the text.
    pub positions: u32,
    pub ids_per_word: f64,
    /// Silence before speech begins.
    pub onset_ms: f64,
}

/// The scheduler's bounds on this device; what is left out has the scheduler's default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    pub slots: Option<u32>,
    pub open_max: Option<u32>,
    pub pages: Option<u32>,
    pub page_positions: Option<u32>,
    pub background_batch: Option<u32>,
    pub lm_depth: Option<u32>,
    pub lm_ahead_us: Option<u32>,
    pub prefill_rows_max: Option<u32>,
    pub prefill_tokens_max: Option<u32>,
    pub ride_rows_max: Option<u32>,
    pub ride_tokens_max: Option<u32>,
    pub first_audio_limit_ms: Option<u32>,
    pub steps_between_prefills: Option<u32>,
}

/// A profile that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    #[error("{name:?} is neither a profile ({known}) nor a file: {source}", known = names().join(", "))]
    Unknown { name: String, source: std::io::Error },
    #[error("profile {name}: {source}")]
    Parse { name: String, source: serde_json::Error },
    #[error("profile {name} has no stage {missing}; measure it with voxlane profile")]
    Missing { name: String, missing: String },
    #[error("profile {name}: stage {stage:?} on {partition:?} is none of the engine's")]
    Stage { name: String, stage: String, partition: String },
    #[error("profile {name}: {source}")]
    Invalid { name: String, source: sched::ConfigError },
    #[error("profile {name}: {field} must be {bound}")]
    Bound { name: String, field: &'static str, bound: &'static str },
    #[error("profile {name}: stage {stage} on {partition} is in it twice")]
    Twice { name: String, stage: String, partition: String },
    #[error("profile {0} is larger than {mib} MiB, which no profile is", mib = BYTES_MAX >> 20)]
    Large(String),
}

/// Bytes of a file that are read.
const BYTES_MAX: u64 = 16 << 20;
/// Rows or frames of one launch, and slots or pages of one device: tables this long are kept.
const AXIS_MAX: u32 = 1 << 16;
const KEPT_MAX: u32 = 1 << 22;

const BUILT_IN: [(&str, &str); 1] =
    [("h100-published", include_str!("../../../../config/profiles/h100-published.json"))];

/// Names of the built-in profiles.
#[must_use]
pub fn names() -> Vec<&'static str> {
    BUILT_IN.iter().map(|(name, _)| *name).collect()
}

/// A partition's name in profile files.
#[must_use]
pub const fn partition_name(partition: Partition) -> &'static str {
    match partition {
        Partition::Background => "background",
        Partition::Lm => "lm",
        Partition::Whole => "whole",
    }
}

const fn one() -> u32 {
    1
}

impl Default for Sharing {
    fn default() -> Self {
        Self {
            beside_urgent: 0.0,
            lm_beside_background: 1.0,
            background_beside_lm: 1.0,
            whole_beside_background: 1.0,
            background_beside_whole: 1.0,
            urgent_beside_lanes: 1.0,
        }
    }
}

impl Default for HostCost {
    fn default() -> Self {
        Self { cores: 0, packet_us: 0.0, request_us: 0.0, launch_us: 0.0, path_us: 500.0, spread: 0.0 }
    }
}

impl Default for PromptShape {
    fn default() -> Self {
        Self { positions: 24, ids_per_word: 1.4, onset_ms: 0.0 }
    }
}

impl ProfileFile {
    /// A built-in profile by name, or a file.
    ///
    /// # Errors
    /// [`ProfileError`], naming the stage or field at fault.
    pub fn load(name: &str) -> Result<Self, ProfileError> {
        if let Some((name, text)) = BUILT_IN.iter().find(|(known, _)| *known == name) {
            return Self::parse(name, text);
        }
        let unknown = |source| ProfileError::Unknown { name: name.to_owned(), source };
        let mut text = String::new();
        let file = File::open(Path::new(name)).map_err(unknown)?;
        let read = file.take(BYTES_MAX + 1).read_to_string(&mut text).map_err(unknown)?;
        if read as u64 > BYTES_MAX {
            return Err(ProfileError::Large(name.to_owned()));
        }
        Self::parse(name, &text)
    }

    /// # Errors
    /// As [`ProfileFile::load`].
    pub fn parse(name: &str, text: &str) -> Result<Self, ProfileError> {
        let profile: Self = serde_json::from_str(text)
            .map_err(|source| ProfileError::Parse { name: name.to_owned(), source })?;
        profile.check(name)?;
        Ok(profile)
    }

    fn check(&self, name: &str) -> Result<(), ProfileError> {
        let needed = [
            (Stage::Codec, Partition::Background),
            (Stage::Codec, Partition::Whole),
            (Stage::Decode, Partition::Lm),
            (Stage::Prefill, Partition::Whole),
        ];
        let missing: Vec<String> = needed
            .into_iter()
            .filter(|(stage, partition)| !self.stages.iter().any(|cost| cost.is(*stage, *partition)))
            .map(|(stage, partition)| format!("{} on {}", stage.name(), partition_name(partition)))
            .collect();
        if !missing.is_empty() {
            return Err(ProfileError::Missing { name: name.to_owned(), missing: missing.join(", ") });
        }
        for (index, cost) in self.stages.iter().enumerate() {
            if self.stages[..index]
                .iter()
                .any(|it| (&it.stage, &it.partition) == (&cost.stage, &cost.partition))
            {
                let (stage, partition) = (cost.stage.clone(), cost.partition.clone());
                return Err(ProfileError::Twice { name: name.to_owned(), stage, partition });
            }
        }
        let axis = |axis: &[u32]| axis.last().is_none_or(|most| *most <= AXIS_MAX);
        let kept = |limit: Option<u32>| limit.is_none_or(|limit| limit <= KEPT_MAX);
        let part = |value: f64| (0.0..=1.0).contains(&value);
        let cost = |value: f64| (0.0..=1e9).contains(&value);
        let (sharing, host) = (&self.sharing, &self.host);
        let bounds = [
            ("decode_buckets", axis(&self.decode_buckets), "at most 65536"),
            ("codec_buckets", axis(&self.codec_buckets), "at most 65536"),
            ("codec_lengths", axis(&self.codec_lengths), "at most 65536"),
            ("limits.slots", kept(self.limits.slots), "at most 4194304"),
            ("limits.pages", kept(self.limits.pages), "at most 4194304"),
            ("frame_ms", (1.0..=10_000.0).contains(&self.frame_ms), "1 to 10000"),
            ("sharing.beside_urgent", part(sharing.beside_urgent), "0 to 1"),
            ("sharing.lm_beside_background", part(sharing.lm_beside_background), "0 to 1"),
            ("sharing.background_beside_lm", part(sharing.background_beside_lm), "0 to 1"),
            ("sharing.whole_beside_background", part(sharing.whole_beside_background), "0 to 1"),
            ("sharing.background_beside_whole", part(sharing.background_beside_whole), "0 to 1"),
            (
                "sharing.urgent_beside_lanes",
                sharing.urgent_beside_lanes > 0.0 && part(sharing.urgent_beside_lanes),
                "above 0, at most 1",
            ),
            ("host.packet_us", cost(host.packet_us), "not negative"),
            ("host.request_us", cost(host.request_us), "not negative"),
            ("host.launch_us", cost(host.launch_us), "not negative"),
            ("host.path_us", cost(host.path_us), "not negative"),
            ("host.spread", (0.0..=10.0).contains(&host.spread), "0 to 10"),
            ("prompt.ids_per_word", (0.1..=100.0).contains(&self.prompt.ids_per_word), "0.1 to 100"),
            ("prompt.onset_ms", (0.0..=10_000.0).contains(&self.prompt.onset_ms), "0 to 10000"),
        ];
        if let Some((field, _, bound)) = bounds.into_iter().find(|(_, holds, _)| !holds) {
            return Err(ProfileError::Bound { name: name.to_owned(), field, bound });
        }
        self.costs().map(|_| ()).map_err(|error| error.named(name))?;
        self.config().validate().map_err(|source| ProfileError::Invalid { name: name.to_owned(), source })
    }

    /// The scheduler's view of it.
    ///
    /// # Errors
    /// [`ProfileError`], naming the stage at fault.
    pub fn costs(&self) -> Result<Profile, ProfileError> {
        let invalid = |source| ProfileError::Invalid { name: self.name.clone(), source };
        let mut profile = Profile::new(
            Span::from_micros((self.frame_ms * 1_000.0).round() as i64),
            self.decode_buckets.clone(),
            self.codec_buckets.clone(),
            self.codec_lengths.clone(),
        );
        profile.look_ahead = self.look_ahead;
        profile.rows_per_context = self.rows_per_context;
        profile.state_grows = self.state_grows;
        profile.validate().map_err(invalid)?;
        for cost in &self.stages {
            let (stage, partition) = cost.key().ok_or_else(|| ProfileError::Stage {
                name: self.name.clone(),
                stage: cost.stage.clone(),
                partition: cost.partition.clone(),
            })?;
            let table = CostTable::new(cost.rows.clone(), cost.lengths.clone(), cost.micros.clone());
            profile = profile.with_cost(stage, partition, table.map_err(invalid)?);
        }
        Ok(profile)
    }

    /// The scheduler's bounds on it.
    #[must_use]
    pub fn config(&self) -> SchedConfig {
        let default = SchedConfig::default();
        let limits = &self.limits;
        SchedConfig {
            slots: limits.slots.unwrap_or(default.slots),
            open_max: limits.open_max.unwrap_or(default.open_max),
            pages: limits.pages.unwrap_or(default.pages),
            page_positions: limits.page_positions.unwrap_or(default.page_positions),
            background_batch: limits.background_batch.unwrap_or(default.background_batch),
            lm_depth: limits.lm_depth.unwrap_or(default.lm_depth),
            lm_ahead: limits.lm_ahead_us.map_or(default.lm_ahead, |us| Span::from_micros(i64::from(us))),
            prefill_rows_max: limits.prefill_rows_max.unwrap_or(default.prefill_rows_max),
            prefill_tokens_max: limits.prefill_tokens_max.unwrap_or(default.prefill_tokens_max),
            ride_rows_max: limits.ride_rows_max.unwrap_or(default.ride_rows_max),
            ride_tokens_max: limits.ride_tokens_max.unwrap_or(default.ride_tokens_max),
            first_audio_limit: limits
                .first_audio_limit_ms
                .map_or(default.first_audio_limit, |ms| Span::from_millis(i64::from(ms))),
            steps_between_prefills: limits.steps_between_prefills.unwrap_or(default.steps_between_prefills),
            ..default
        }
    }

    /// 48 kHz samples of one frame.
    #[must_use]
    pub fn frame_samples(&self) -> u64 {
        ((self.frame_ms * 48.0).round() as u64).max(1)
    }
}

impl StageCost {
    /// Its stage and partition, if the names are the engine's.
    #[must_use]
    pub fn key(&self) -> Option<(Stage, Partition)> {
        let stages = [Stage::Codec, Stage::Decode, Stage::Encode, Stage::Prefill];
        let partitions = [Partition::Background, Partition::Lm, Partition::Whole];
        let stage = stages.into_iter().find(|stage| stage.name() == self.stage)?;
        let partition =
            partitions.into_iter().find(|partition| partition_name(*partition) == self.partition)?;
        Some((stage, partition))
    }

    fn is(&self, stage: Stage, partition: Partition) -> bool {
        self.key() == Some((stage, partition))
    }
}

impl ProfileError {
    /// The same, of a file with this name.
    fn named(self, file: &str) -> Self {
        match self {
            Self::Stage { stage, partition, .. } => Self::Stage { name: file.to_owned(), stage, partition },
            Self::Invalid { source, .. } => Self::Invalid { name: file.to_owned(), source },
            other => other,
        }
    }
}
