//! What roles on N devices would carry: each device speaks alone (its processor split between backbone
//! and codec), or gives itself to one of the two.

use contract::{Partition, Stage};
use serde::{Deserialize, Serialize};

use super::profile::{ProfileError, ProfileFile};
use crate::workload::Workload;

/// One layout of `N` devices.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Layout {
    /// Devices that run both backbone and codec.
    pub combined: u32,
    pub backbone: u32,
    pub codec: u32,
    /// Contexts in real time.
    pub contexts: f64,
    /// Requests of the workload a second.
    pub requests_per_s: f64,
    /// What holds it back: `backbone` or `codec`.
    pub limit: String,
    /// It leans on a cost that the profile does not hold.
    pub guessed: bool,
}

/// Part of what decode and codec could do at all that is left of it with prompts, chance and first audio in time: as
/// simulated and published for one H100. Of one H200, whose thousands of contexts even chance out, it is a sixth less than
/// was measured (docs/h200.md): on the safe side.
const FILL: f64 = 0.7;

/// Frames a second of each role on one device.
#[derive(Clone, Copy, Debug)]
struct Roles {
    /// Both, on one: frames that are made and decoded.
    both: f64,
    /// Of these the backbone is the limit.
    lm_short: bool,
    lm_alone: f64,
    codec_alone: f64,
    guessed: bool,
}

/// Every layout of `devices`, best first.
///
/// # Errors
/// [`ProfileError`] for a profile that cannot be run.
pub fn rank(profile: &ProfileFile, devices: u32, workload: &Workload) -> Result<Vec<Layout>, ProfileError> {
    let seconds = workload.utterances.iter().map(|it| it.spoken_s()).sum::<f64>();
    let seconds = seconds / workload.utterances.len().max(1) as f64;
    let positions = positions(profile, workload);
    let roles = roles(profile, positions)?;
    let frames_per_s = 1_000.0 / profile.frame_ms;
    let mut layouts = Vec::new();
    for backbone in 0..=devices {
        for codec in 0..=devices - backbone {
            let combined = devices - backbone - codec;
            // Half of a pair does nothing by itself.
            if (backbone == 0) != (codec == 0) {
                continue;
            }
            let (of_lm, of_codec) =
                (f64::from(backbone) * roles.lm_alone, f64::from(codec) * roles.codec_alone);
            let together = f64::from(combined) * roles.both;
            let frames = (together + of_lm.min(of_codec)) * FILL;
            let lm_short = if combined > 0 { roles.lm_short } else { of_lm <= of_codec };
            layouts.push(Layout {
                combined,
                backbone,
                codec,
                contexts: crate::report::rounded(frames / frames_per_s, 1),
                requests_per_s: crate::report::rounded(frames / frames_per_s / seconds, 2),
                limit: if lm_short { "backbone" } else { "codec" }.to_owned(),
                guessed: roles.guessed && backbone > 0,
            });
        }
    }
    layouts.sort_by(|a, b| b.contexts.total_cmp(&a.contexts).then(b.combined.cmp(&a.combined)));
    Ok(layouts)
}

/// Positions of an average request halfway through.
fn positions(profile: &ProfileFile, workload: &Workload) -> u32 {
    let count = workload.utterances.len().max(1) as f64;
    let sum: f64 = workload
        .utterances
        .iter()
        .map(|it| it.words() as f64 * profile.prompt.ids_per_word + it.spoken_s() * 500.0 / profile.frame_ms)
        .sum();
    profile.prompt.positions + (sum / count) as u32
}

/// Rows of an urgent batch.
const URGENT_ROWS: u32 = 8;

/// Frames a second that one device makes and decodes. Where its background lane cannot keep up, chunks turn urgent and are
/// decoded on the whole processor, in the part of the time that makes both ends meet; both lanes lose `lost` of their
/// speed meanwhile.
fn both(lm: f64, background: f64, urgent: f64, lost: f64) -> f64 {
    let short = (lm - background).max(0.0);
    let part = (short / (urgent + lost * short).max(1e-9)).min(1.0);
    let slowed = 1.0 - lost * part;
    (lm * slowed).min(background * slowed + urgent * part)
}

fn roles(profile: &ProfileFile, positions: u32) -> Result<Roles, ProfileError> {
    let costs = profile.costs()?;
    let has = |stage, partition| profile.stages.iter().any(|cost| cost.key() == Some((stage, partition)));
    let decode = |partition| {
        // The largest batch whose step still fits into a frame.
        let fits = |rows: u32| {
            let micros = costs.cost(Stage::Decode, partition, rows, positions).as_micros().max(1) as f64;
            (micros <= profile.frame_ms * 1_000.0)
                .then(|| f64::from(rows / costs.rows_per_context) * 1e6 / micros)
        };
        // More contexts than a batch holds take turns.
        costs.decode_buckets.iter().filter_map(|rows| fits(*rows)).fold(0.0, f64::max)
    };
    let codec = |partition| {
        let length = costs.steady_length();
        costs
            .codec_buckets
            .iter()
            .map(|rows| {
                let micros = costs.cost(Stage::Codec, partition, *rows, length).as_micros().max(1) as f64;
                f64::from(rows * length) * 1e6 / micros
            })
            .fold(0.0, f64::max)
    };
    // On a device that does both, lanes slow each other.
    let beside = &profile.sharing;
    let lm_of_both = decode(Partition::Lm);
    let measured = has(Stage::Decode, Partition::Whole);
    // Without a measurement the backbone is taken to grow with its share of the processor.
    let grow =
        if profile.parts.lm > 0 { f64::from(profile.parts.whole) / f64::from(profile.parts.lm) } else { 1.0 };
    let lm_alone = if measured { decode(Partition::Whole) } else { lm_of_both * grow.max(1.0) };
    let lm = lm_of_both * beside.lm_beside_background;
    let background = codec(Partition::Background) * beside.background_beside_lm;
    let length = costs.steady_length();
    let micros = costs.cost(Stage::Codec, Partition::Whole, URGENT_ROWS, length).as_micros().max(1) as f64;
    let urgent = f64::from(URGENT_ROWS * length) * 1e6 / micros * beside.urgent_beside_lanes;
    Ok(Roles {
        both: both(lm, background, urgent, 1.0 - beside.beside_urgent),
        lm_short: lm <= background,
        lm_alone,
        codec_alone: codec(Partition::Whole),
        guessed: !measured,
    })
}
