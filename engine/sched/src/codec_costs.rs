//! What codec calls cost now, laid out to be looked up: it is asked for at every row of every step.

use contract::{Lane, Partition, Span, Stage};

use crate::Profile;
use crate::profile::corrected;

/// The profile's codec costs at its captured shapes, as corrected by the launches measured so far.
#[derive(Clone, Debug)]
pub(crate) struct CodecCosts {
    /// Which captured executable holds so many rows, and so many frames; the last for all above.
    bucket_of: Vec<usize>,
    length_of: Vec<usize>,
    lengths: usize,
    background: Costs,
    urgent: Costs,
    /// The longest of one chunk by itself in the urgent lane.
    alone_max: Span,
}

/// Of one partition: `[bucket * lengths + length]`, as profiled and as corrected.
#[derive(Clone, Debug)]
struct Costs {
    micros: Vec<i64>,
    now: Vec<Span>,
}

impl Costs {
    fn of(profile: &Profile, partition: Partition) -> Self {
        let shapes = profile
            .codec_buckets
            .iter()
            .flat_map(|rows| profile.codec_lengths.iter().map(|length| (*rows, *length)));
        let micros: Vec<i64> =
            shapes.map(|(rows, length)| profile.uncorrected(Stage::Codec, partition, rows, length)).collect();
        let now = vec![Span::ZERO; micros.len()];
        Self { micros, now }
    }

    fn renew(&mut self, correction_ppm: i64) {
        for (now, micros) in self.now.iter_mut().zip(&self.micros) {
            *now = corrected(*micros, correction_ppm);
        }
    }
}

impl CodecCosts {
    pub(crate) fn of(profile: &Profile) -> Self {
        let places = |axis: &[u32], find: &dyn Fn(u32) -> u32| -> Vec<usize> {
            let most = axis.last().copied().unwrap_or(0);
            let place = |wanted| axis.iter().position(|entry| *entry == find(wanted)).unwrap_or(0);
            (0..=most).map(place).collect()
        };
        let mut costs = Self {
            bucket_of: places(&profile.codec_buckets, &|rows| profile.codec_bucket(rows)),
            length_of: places(&profile.codec_lengths, &|frames| profile.codec_length(frames)),
            lengths: profile.codec_lengths.len(),
            background: Costs::of(profile, Partition::Background),
            urgent: Costs::of(profile, Partition::Whole),
            alone_max: Span::ZERO,
        };
        costs.renew(profile);
        costs
    }

    /// Takes over what the profile says now.
    pub(crate) fn renew(&mut self, profile: &Profile) {
        self.background.renew(profile.correction_ppm(Stage::Codec, Partition::Background));
        self.urgent.renew(profile.correction_ppm(Stage::Codec, Partition::Whole));
        let alone = profile.codec_lengths.iter().map(|length| self.at(Lane::Urgent, 1, *length));
        self.alone_max = alone.max().unwrap_or(Span::ZERO);
    }

    /// No chunk by itself in the urgent lane is predicted to take longer.
    pub(crate) fn alone_max(&self) -> Span {
        self.alone_max
    }

    /// Predicted time of one call of `lane` for this many rows, the longest of `frames`.
    pub(crate) fn at(&self, lane: Lane, rows: u32, frames: u32) -> Span {
        let place = |of: &[usize], wanted: u32| of.get(wanted as usize).or(of.last()).copied().unwrap_or(0);
        let at = place(&self.bucket_of, rows) * self.lengths + place(&self.length_of, frames);
        let costs = if lane == Lane::Urgent { &self.urgent } else { &self.background };
        costs.now.get(at).copied().unwrap_or(Span::ZERO)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CostTable;

    #[test]
    fn every_call_costs_what_the_profile_says_before_and_after_it_is_corrected() {
        let table = CostTable::linear(500, 90, 7, 16, 10);
        let mut profile = Profile::new(Span::from_millis(80), vec![1, 8], vec![1, 2, 4, 16], vec![2, 4, 10])
            .with_cost(Stage::Codec, Partition::Background, table.clone())
            .with_cost(Stage::Codec, Partition::Whole, table);
        let mut costs = CodecCosts::of(&profile);
        for _ in 0..2 {
            for (lane, partition) in
                [(Lane::Urgent, Partition::Whole), (Lane::Background, Partition::Background)]
            {
                for (rows, frames) in (0..20).flat_map(|rows| (0..14).map(move |frames| (rows, frames))) {
                    let (bucket, length) = (profile.codec_bucket(rows), profile.codec_length(frames));
                    let plain = profile.cost(Stage::Codec, partition, bucket, length);
                    assert_eq!(costs.at(lane, rows, frames), plain, "{lane:?}, {rows} rows of {frames}");
                }
            }
            profile.observe(Stage::Codec, Partition::Whole, 4, 10, Span::from_millis(9));
            costs.renew(&profile);
        }
    }
}
