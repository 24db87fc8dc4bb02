//! How the processor is split between the lm and the background partition.

use contract::{Partition, Stage};

use crate::Profile;

/// One way to split, and what was measured under it.
#[derive(Clone, Debug)]
pub struct SplitCandidate {
    /// Processor parts (cores, SMs) of the lm partition; the rest is the background partition's.
    pub lm_parts: u32,
    pub profile: Profile,
}

/// The split that gives the backbone most throughput while the codec keeps up with `contexts`
/// contexts of about `positions` positions; if the codec keeps up under none, the one with the fastest
/// codec. An index into `candidates`, `None` when that is empty.
#[must_use]
pub fn choose_split(candidates: &[SplitCandidate], contexts: u32, positions: u32) -> Option<usize> {
    let rates: Vec<(u128, u128)> =
        candidates.iter().map(|it| rates(&it.profile, contexts, positions)).collect();
    let keeping_up = (0..rates.len()).filter(|&at| rates[at].1 >= rates[at].0);
    keeping_up
        .max_by_key(|&at| (rates[at].0, std::cmp::Reverse(at)))
        .or_else(|| (0..rates.len()).max_by_key(|&at| (rates[at].1, std::cmp::Reverse(at))))
}

/// Frames a thousand seconds that the backbone makes, and that the codec decodes in full batches.
fn rates(profile: &Profile, contexts: u32, positions: u32) -> (u128, u128) {
    const THOUSAND_SECONDS_US: u128 = 1_000_000_000;
    let rate = |frames: u32, micros: i64| u128::from(frames) * THOUSAND_SECONDS_US / (micros.max(1) as u128);
    let contexts = contexts.clamp(1, profile.decode_contexts_max().max(1));
    let bucket = profile.decode_bucket(contexts);
    let step = profile.cost(Stage::Decode, Partition::Lm, bucket, positions);
    let rows = profile.codec_bucket(contexts);
    let length = profile.steady_length();
    let codec = profile.cost(Stage::Codec, Partition::Background, rows, length);
    (rate(contexts, step.as_micros()), rate(contexts.min(rows) * length, codec.as_micros()))
}
