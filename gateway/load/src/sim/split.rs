//! Which split of a device carries most: every one that was measured, simulated under the same load.

use std::sync::atomic::AtomicBool;

use contract::{Partition, Span, Stage};
use serde::{Deserialize, Serialize};

use super::profile::{ProfileError, ProfileFile, Sharing, StageCost};
use super::{Scene, Variant, plan};
use crate::mood::Moods;
use crate::plot::{Chart, Line};
use crate::rates::Rates;
use crate::workload::Workload;

/// What was measured under one split of the device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SplitCost {
    /// Parts (cores, SMs) of the two lanes.
    pub lm: u32,
    pub background: u32,
    pub stages: Vec<StageCost>,
    #[serde(default)]
    pub sharing: Sharing,
}

/// The split that was chosen, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SplitChoice {
    pub lm: u32,
    pub background: u32,
    pub reason: String,
}

/// One split as it was judged.
#[derive(Clone, Debug, PartialEq)]
pub struct Judged {
    pub lm: u32,
    pub background: u32,
    /// One decode step of the largest bucket, and frames a second of the codec in full background batches.
    pub step_ms: f64,
    pub codec_frames_per_s: f64,
    /// Requests a second of which nine in ten have first audio within 200 ms and no stall, simulated.
    pub capacity: f64,
}

/// Splits judged under one workload. Never empty.
#[derive(Clone, Debug, PartialEq)]
pub struct Judgement {
    pub splits: Vec<Judged>,
    pub chosen: usize,
    pub reason: String,
}

/// Windows of the search: a choice needs no more than an order.
const WINDOW: Span = Span::from_millis(20_000);
/// Capacities this near are alike: then the quicker decode step is worth more.
const ALIKE: f64 = 0.03;

impl ProfileFile {
    /// The device as it is under one of its splits.
    #[must_use]
    pub fn under(&self, split: &SplitCost) -> Self {
        let mut profile = self.clone();
        profile.splits = Vec::new();
        profile.stages.retain(|cost| !split.stages.iter().any(|other| other.key() == cost.key()));
        profile.stages.extend(split.stages.iter().cloned());
        profile.sharing = split.sharing.clone();
        (profile.parts.lm, profile.parts.background) = (split.lm, split.background);
        profile
    }
}

/// Simulates every split that the profile holds.
///
/// # Errors
/// [`ProfileError`] for a profile without splits, or one that cannot be run.
pub fn judge(profile: &ProfileFile, workload: &Workload) -> Result<Judgement, ProfileError> {
    let missing = || ProfileError::Missing { name: profile.name.clone(), missing: "splits".to_owned() };
    let mut splits = Vec::new();
    for split in &profile.splits {
        let under = profile.under(split);
        splits.push(Judged {
            lm: split.lm,
            background: split.background,
            capacity: capacity(&under, workload)?,
            ..speeds(&under)?
        });
    }
    let most = splits.iter().map(|it| it.capacity).fold(0.0, f64::max);
    let alike = (0..splits.len()).filter(|&at| splits[at].capacity >= most * (1.0 - ALIKE));
    let chosen =
        alike.min_by(|&a, &b| splits[a].step_ms.total_cmp(&splits[b].step_ms)).ok_or_else(missing)?;
    let reason = reason(&splits, chosen, workload);
    Ok(Judgement { splits, chosen, reason })
}

/// Requests a second at 90%.
fn capacity(profile: &ProfileFile, workload: &Workload) -> Result<f64, ProfileError> {
    let moods = Moods::default();
    let scene = Scene { profile, workload, moods: &moods, seeds: 0..1 };
    // What the stages' own times allow at most is where the search begins.
    let bound =
        plan::rank(profile, 1, workload)?.first().map_or(1.0, |layout| layout.requests_per_s).max(0.02);
    let rates = Rates::Search { low: bound * 0.5, high: bound * 1.2 };
    let simulated = super::run(
        &scene,
        &[Variant::plain(&profile.name)],
        rates,
        WINDOW,
        &|_| {},
        &AtomicBool::new(false),
    )?;
    Ok(simulated
        .report
        .targets
        .first()
        .and_then(|target| target.capacity.get("90").copied().flatten())
        .unwrap_or(0.0))
}

fn speeds(profile: &ProfileFile) -> Result<Judged, ProfileError> {
    let costs = profile.costs()?;
    let (rows, chunks) = (costs.decode_buckets.last().copied().unwrap_or(1), costs.codec_rows_max());
    let (positions, length) = (profile.prompt.positions.max(1) + 100, costs.steady_length());
    let step = costs.cost(Stage::Decode, Partition::Lm, rows, positions).as_micros().max(1) as f64;
    let codec = costs.cost(Stage::Codec, Partition::Background, chunks, length).as_micros().max(1) as f64;
    Ok(Judged {
        lm: 0,
        background: 0,
        step_ms: step / 1_000.0,
        codec_frames_per_s: f64::from(chunks * length) * 1e6 / codec,
        capacity: 0.0,
    })
}

fn reason(splits: &[Judged], chosen: usize, workload: &Workload) -> String {
    let name = |it: &Judged| format!("{}/{}", it.lm, it.background);
    let best = &splits[chosen];
    let others = splits.iter().enumerate().filter(|(at, _)| *at != chosen);
    let others: Vec<String> = others
        .map(|(_, it)| {
            let why = if it.capacity >= best.capacity * (1.0 - ALIKE) {
                format!("alike, but a step takes {:.2} ms", it.step_ms)
            } else if it.codec_frames_per_s < best.codec_frames_per_s {
                format!("its codec makes {:.0} frames/s", it.codec_frames_per_s)
            } else {
                format!("its step takes {:.2} ms", it.step_ms)
            };
            format!("{} carries {:.2} ({why})", name(it), it.capacity)
        })
        .collect();
    let rest = if others.is_empty() { "no other was measured".to_owned() } else { others.join("; ") };
    format!(
        "{} carries {:.2} {} requests/s at 90%, simulated, with a step of {:.2} ms and {:.0} codec frames/s; {rest}",
        name(best),
        best.capacity,
        workload.name,
        best.step_ms,
        best.codec_frames_per_s
    )
}

impl Judgement {
    #[must_use]
    pub fn choice(&self) -> SplitChoice {
        let Judged { lm, background, .. } = self.splits[self.chosen];
        SplitChoice { lm, background, reason: self.reason.clone() }
    }

    /// Step time against codec throughput: what one lane gains the other loses.
    #[must_use]
    pub fn chart(&self) -> Chart {
        let mut order: Vec<usize> = (0..self.splits.len()).collect();
        order.sort_by(|&a, &b| {
            self.splits[a].codec_frames_per_s.total_cmp(&self.splits[b].codec_frames_per_s)
        });
        let point = |at: usize| (self.splits[at].codec_frames_per_s, self.splits[at].step_ms);
        let front = Line { name: "splits".to_owned(), points: order.iter().map(|&at| point(at)).collect() };
        let single = |&at: &usize| {
            let Judged { lm, background, capacity, .. } = self.splits[at];
            let mark = if at == self.chosen { ", chosen" } else { "" };
            Line { name: format!("{lm}/{background}: {capacity:.1}/s{mark}"), points: vec![point(at)] }
        };
        Chart {
            title: "Splits of the device: lm step against codec".to_owned(),
            x_label: "codec frames a second, background lane".to_owned(),
            y_label: "ms of a decode step, largest batch".to_owned(),
            y_max: None,
            level: None,
            lines: std::iter::once(front).chain(order.iter().map(single)).collect(),
        }
    }
}
