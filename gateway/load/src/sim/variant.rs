//! One configuration to simulate: a profile's own, with settings changed.

use std::borrow::Cow;

use contract::{Partition, Span, Stage};
use sched::{CostTable, PrefillPolicy, Profile, SchedConfig};

use super::profile::{ProfileError, ProfileFile, StageCost};

/// Settings of one simulated system.
#[derive(Clone, Debug, PartialEq)]
pub struct Variant {
    pub name: String,
    /// Listeners report what they have played.
    pub reports: bool,
    /// First and late chunks have a lane of their own on the whole processor.
    pub urgent_lane: bool,
    /// The lm and the background lane have parts of the processor of their own.
    pub partition: bool,
    /// Lanes run at the same time.
    pub asynchronous: bool,
    /// The number of frames is fixed at arrival, as `--exact-frames` does.
    pub exact_frames: bool,
    changes: Vec<Change>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Change {
    key: Key,
    value: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Key {
    BackgroundBatch,
    DeferralCap,
    FirstAudioLimit,
    LadderBudget,
    LmAhead,
    LmDepth,
    LmLead,
    LmLoadMax,
    Policy,
    TtfaTarget,
    StepsBetweenPrefills,
    RideRows,
    UrgentBatch,
    UrgentMargin,
    Slots,
    ShortestChunk,
}

const KEYS: [(&str, Key); 16] = [
    ("background_batch", Key::BackgroundBatch),
    ("deferral_cap_ms", Key::DeferralCap),
    ("first_audio_limit_ms", Key::FirstAudioLimit),
    ("ladder_budget_permille", Key::LadderBudget),
    ("lm_ahead_ms", Key::LmAhead),
    ("lm_depth", Key::LmDepth),
    ("lm_lead_ms", Key::LmLead),
    ("lm_load_max_permille", Key::LmLoadMax),
    ("policy", Key::Policy),
    ("ttfa_target_ms", Key::TtfaTarget),
    ("steps_between_prefills", Key::StepsBetweenPrefills),
    ("ride_rows_max", Key::RideRows),
    ("urgent_batch_max", Key::UrgentBatch),
    ("urgent_margin_ms", Key::UrgentMargin),
    ("slots", Key::Slots),
    ("shortest_chunk", Key::ShortestChunk),
];
const POLICIES: [&str; 3] = ["automatic", "deadline-aware", "prefill-first"];

/// A variant that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VariantError {
    #[error("variant {0:?} must be written NAME or NAME:KEY=VALUE,KEY=VALUE...")]
    Shape(String),
    #[error("{0:?} is no setting of a variant; one of reports, urgent, partition, async, {keys}", keys = KEYS.map(|(name, _)| name).join(", "))]
    Key(String),
    #[error("{key} cannot be {value:?}; give {expected}")]
    Value { key: String, value: String, expected: &'static str },
}

impl Variant {
    /// The profile's own settings.
    #[must_use]
    pub fn plain(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            reports: true,
            urgent_lane: true,
            partition: true,
            asynchronous: true,
            exact_frames: false,
            changes: Vec::new(),
        }
    }

    /// Reads `NAME:KEY=VALUE,KEY=VALUE...`.
    ///
    /// # Errors
    /// [`VariantError`], naming the setting.
    pub fn parse(text: &str) -> Result<Self, VariantError> {
        let (name, settings) = text.split_once(':').unwrap_or((text, ""));
        if name.is_empty() {
            return Err(VariantError::Shape(text.to_owned()));
        }
        let mut variant = Self::plain(name);
        for setting in settings.split(',').filter(|setting| !setting.is_empty()) {
            let (key, value) = setting.split_once('=').ok_or_else(|| VariantError::Shape(text.to_owned()))?;
            variant.set(key, value)?;
        }
        Ok(variant)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), VariantError> {
        let wrong = |expected| VariantError::Value { key: key.to_owned(), value: value.to_owned(), expected };
        let switch = || match value {
            "on" => Ok(true),
            "off" => Ok(false),
            _ => Err(wrong("on or off")),
        };
        match key {
            "reports" => self.reports = switch()?,
            "urgent" => self.urgent_lane = switch()?,
            "partition" => self.partition = switch()?,
            "async" => self.asynchronous = switch()?,
            _ => {
                let known = KEYS.iter().find(|(name, _)| *name == key);
                let (_, key) = known.ok_or_else(|| VariantError::Key(key.to_owned()))?;
                let value = if *key == Key::Policy {
                    let at = POLICIES.iter().position(|policy| *policy == value);
                    at.ok_or_else(|| wrong("automatic, deadline-aware or prefill-first"))? as f64
                } else {
                    let number = value.parse::<f64>().ok().filter(|value| (0.0..=1e9).contains(value));
                    number.ok_or_else(|| wrong("a number from 0 to 1e9"))?
                };
                self.changes.push(Change { key: *key, value });
            }
        }
        Ok(())
    }

    /// The scheduler's configuration.
    #[must_use]
    pub fn config(&self, profile: &ProfileFile) -> SchedConfig {
        let mut config = profile.config();
        // Everything the records would tell is counted as it is decided.
        config.records_max = 1;
        for Change { key, value } in self.changes.iter().copied() {
            let span = Span::from_micros((value * 1_000.0) as i64);
            let count = value as u32;
            match key {
                Key::BackgroundBatch => config.background_batch = count,
                Key::DeferralCap => config.deferral_cap = span,
                Key::FirstAudioLimit => config.first_audio_limit = span,
                Key::LadderBudget => config.ladder_budget_permille = count,
                Key::LmAhead => config.lm_ahead = span,
                Key::LmDepth => config.lm_depth = count,
                Key::LmLead => config.lm_lead = span,
                Key::LmLoadMax => config.lm_load_max_permille = count,
                Key::TtfaTarget => config.ttfa_target = span,
                Key::UrgentBatch => config.urgent_batch_max = count,
                Key::UrgentMargin => config.urgent_margin = span,
                Key::Slots => config.slots = count,
                Key::StepsBetweenPrefills => config.steps_between_prefills = count,
                Key::RideRows => config.ride_rows_max = count,
                Key::Policy => {
                    config.prefill_policy = match count {
                        0 => PrefillPolicy::Automatic,
                        1 => PrefillPolicy::DeadlineAware,
                        _ => PrefillPolicy::PrefillFirst,
                    };
                }
                Key::ShortestChunk => {}
            }
        }
        config
    }

    /// The device it runs on. Without partitions every lane has the whole processor, and two that are busy have
    /// half of it each: a guess, as blocks of both stand in one queue.
    #[must_use]
    pub fn device<'p>(&self, profile: &'p ProfileFile) -> Cow<'p, ProfileFile> {
        if self.partition {
            return Cow::Borrowed(profile);
        }
        let mut whole = profile.clone();
        for cost in &mut whole.stages {
            let Some((stage, _)) = cost.key() else { continue };
            let on_whole = profile.stages.iter().find(|it| it.key() == Some((stage, Partition::Whole)));
            if let Some(measured) = on_whole {
                *cost = StageCost { partition: cost.partition.clone(), ..measured.clone() };
            }
        }
        let sharing = &mut whole.sharing;
        (sharing.lm_beside_background, sharing.background_beside_lm) = (0.5, 0.5);
        (sharing.whole_beside_background, sharing.background_beside_whole) = (0.5, 0.5);
        Cow::Owned(whole)
    }

    /// The profile as this variant's scheduler sees it.
    ///
    /// # Errors
    /// As [`ProfileFile::costs`].
    pub fn seen(&self, profile: &ProfileFile) -> Result<Profile, ProfileError> {
        let mut seen = profile.costs()?;
        if !self.urgent_lane {
            let background =
                profile.stages.iter().find(|cost| cost.key() == Some((Stage::Codec, Partition::Background)));
            if let Some(cost) = background {
                let table = CostTable::new(cost.rows.clone(), cost.lengths.clone(), cost.micros.clone());
                let invalid = |source| ProfileError::Invalid { name: profile.name.clone(), source };
                seen = seen.with_cost(Stage::Codec, Partition::Whole, table.map_err(invalid)?);
            }
        }
        let shortest = self.changes.iter().rev().find(|change| change.key == Key::ShortestChunk);
        if let Some(change) = shortest {
            let lengths: Vec<u32> = seen
                .codec_lengths
                .iter()
                .copied()
                .filter(|length| f64::from(*length) >= change.value)
                .collect();
            if !lengths.is_empty() {
                seen.codec_lengths = lengths;
            }
        }
        Ok(seen)
    }
}
