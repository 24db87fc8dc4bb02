//! One draw from a row of logits: the reference of [`crate::Op::Sample`], used as is on a CPU.
//!
//! Processors run in the reference's order (Hugging Face `generate`): repetition penalty, suppression,
//! temperature, top-k, top-p. The generator is Philox4x32-10 (Salmon et al., "Parallel random numbers: as
//! easy as 1, 2, 3", SC 2011), a function of seed and counter, so a draw depends on nothing else.

use std::cmp::Ordering;

use crate::program::SampleBound;

/// One row's settings, in the order of `params` of [`crate::Op::Sample`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampleParams {
    /// 0 (or less) takes the most likely id.
    pub temperature: f32,
    /// 0 keeps all ids. Ids equal to the last one kept are kept as well.
    pub top_k: usize,
    /// Keeps the most likely ids up to and including the one that reaches this mass; 1 keeps all.
    pub top_p: f32,
    /// Divides positive and multiplies negative logits of ids drawn before; 1 is off.
    pub penalty: f32,
}

/// Which random number a draw uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draw {
    pub seed: u64,
    /// Frame of the context, from 0.
    pub step: u32,
    /// Index of the draw within the frame.
    pub draw: u32,
}

/// One id that may be drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    pub id: u32,
    pub probability: f32,
}

/// Working memory of draws; keep one a thread.
#[derive(Debug, Default)]
pub struct Sampler {
    scores: Vec<f32>,
    order: Vec<f32>,
    candidates: Vec<Candidate>,
}

impl SampleParams {
    /// Reads a row of `params`: temperature, top_k, top_p, penalty.
    #[must_use]
    pub fn from_row(row: [f32; 4]) -> Self {
        Self { temperature: row[0], top_k: row[1].max(0.0) as usize, top_p: row[2], penalty: row[3] }
    }
}

impl Draw {
    /// Uniform in [0, 1).
    #[must_use]
    pub fn uniform(self) -> f64 {
        let key = [self.seed as u32, (self.seed >> 32) as u32];
        let [word, ..] = philox([self.step, self.draw, 0, 0], key);
        f64::from(word) / 4_294_967_296.0
    }
}

impl Sampler {
    /// The id drawn for one row. `history` holds a non-zero flag for each id drawn before. NaN logits are
    /// never drawn unless nothing else is left.
    pub fn draw(
        &mut self,
        logits: &[f32],
        params: SampleParams,
        history: Option<&[i32]>,
        bound: Option<&SampleBound>,
        allow_keep: bool,
        draw: Draw,
    ) -> u32 {
        if params.temperature <= 0.0 {
            self.score(logits, params, history, bound, allow_keep);
            return best(&self.scores);
        }
        self.distribution(logits, params, history, bound, allow_keep);
        let target = draw.uniform();
        let mut mass = 0.0;
        for candidate in &self.candidates {
            mass += f64::from(candidate.probability);
            if target < mass {
                return candidate.id;
            }
        }
        // Rounding may leave the sum just below 1.
        self.candidates.last().map_or(0, |candidate| candidate.id)
    }

    /// The processed distribution: what may be drawn with which probability, most likely first.
    /// Temperature must be positive.
    pub fn distribution(
        &mut self,
        logits: &[f32],
        params: SampleParams,
        history: Option<&[i32]>,
        bound: Option<&SampleBound>,
        allow_keep: bool,
    ) -> &[Candidate] {
        self.score(logits, params, history, bound, allow_keep);
        for score in &mut self.scores {
            *score /= params.temperature;
        }
        let threshold = self.kth_largest(params.top_k);
        self.candidates.clear();
        for (id, &score) in self.scores.iter().enumerate() {
            if score >= threshold && score > f32::NEG_INFINITY {
                self.candidates.push(Candidate { id: id as u32, probability: score });
            }
        }
        if self.candidates.is_empty() {
            self.candidates.push(Candidate { id: best(&self.scores), probability: 0.0 });
        }
        self.candidates.sort_unstable_by(|a, b| {
            b.probability.partial_cmp(&a.probability).unwrap_or(Ordering::Equal).then(a.id.cmp(&b.id))
        });
        softmax(&mut self.candidates);
        if params.top_p < 1.0 {
            let mut mass = 0.0;
            let mut kept = 0;
            for candidate in &self.candidates {
                if kept > 0 && mass >= f64::from(params.top_p) {
                    break;
                }
                mass += f64::from(candidate.probability);
                kept += 1;
            }
            self.candidates.truncate(kept);
            for candidate in &mut self.candidates {
                candidate.probability = (f64::from(candidate.probability) / mass) as f32;
            }
        }
        &self.candidates
    }

    /// Logits after penalty and suppression.
    fn score(
        &mut self,
        logits: &[f32],
        params: SampleParams,
        history: Option<&[i32]>,
        bound: Option<&SampleBound>,
        allow_keep: bool,
    ) {
        self.scores.clear();
        self.scores.extend(logits.iter().map(|&l| if l.is_nan() { f32::NEG_INFINITY } else { l }));
        if let Some(history) = history.filter(|_| params.penalty != 1.0) {
            for (score, &flag) in self.scores.iter_mut().zip(history) {
                if flag != 0 {
                    *score = if *score < 0.0 { *score * params.penalty } else { *score / params.penalty };
                }
            }
        }
        let Some(bound) = bound else { return };
        let vocabulary = self.scores.len();
        for id in (bound.suppress_from as usize).min(vocabulary)..(bound.suppress_to as usize).min(vocabulary)
        {
            if bound.keep != Some(id as u32) {
                self.scores[id] = f32::NEG_INFINITY;
            }
        }
        if let Some(keep) = bound.keep.filter(|_| !allow_keep)
            && let Some(score) = self.scores.get_mut(keep as usize)
        {
            *score = f32::NEG_INFINITY;
        }
    }

    fn kth_largest(&mut self, k: usize) -> f32 {
        if k == 0 || k >= self.scores.len() {
            return f32::NEG_INFINITY;
        }
        self.order.clear();
        self.order.extend_from_slice(&self.scores);
        let (_, &mut kth, _) = self.order.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a));
        kth
    }
}

/// The lowest id among the highest scores.
fn best(scores: &[f32]) -> u32 {
    let mut best = 0;
    for (id, score) in scores.iter().enumerate() {
        if *score > scores[best] {
            best = id;
        }
    }
    best as u32
}

/// Turns descending scores, held in `probability`, into probabilities.
fn softmax(candidates: &mut [Candidate]) {
    let top = candidates.first().map_or(0.0, |candidate| candidate.probability);
    let mut sum = 0.0f64;
    for candidate in candidates.iter_mut() {
        let value = f64::from(candidate.probability - top).exp();
        candidate.probability = value as f32;
        sum += value;
    }
    for candidate in candidates.iter_mut() {
        candidate.probability = (f64::from(candidate.probability) / sum) as f32;
    }
}

/// Philox4x32-10.
fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for round in 0..10 {
        if round > 0 {
            key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
        }
        let a = u64::from(counter[0]) * 0xD251_1F53;
        let b = u64::from(counter[2]) * 0xCD9E_8D57;
        counter = [
            (b >> 32) as u32 ^ counter[1] ^ key[0],
            b as u32,
            (a >> 32) as u32 ^ counter[3] ^ key[1],
            a as u32,
        ];
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: SampleParams = SampleParams { temperature: 1.0, top_k: 0, top_p: 1.0, penalty: 1.0 };

    #[test]
    fn the_generator_gives_the_published_known_answers() {
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(
            philox([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn top_k_keeps_ties_with_the_last_one_kept() {
        let mut sampler = Sampler::default();
        let params = SampleParams { top_k: 2, ..PLAIN };
        let ids: Vec<u32> = sampler
            .distribution(&[1.0, 3.0, 2.0, 2.0, 0.0], params, None, None, true)
            .iter()
            .map(|c| c.id)
            .collect();
        assert_eq!(ids, [1, 2, 3]);
    }

    #[test]
    fn top_p_keeps_the_id_that_crosses_the_mass_and_renormalises() {
        let mut sampler = Sampler::default();
        let logits: Vec<f32> = [0.5f32, 0.3, 0.15, 0.05].iter().map(|p| p.ln()).collect();
        let params = SampleParams { top_p: 0.6, ..PLAIN };
        let kept = sampler.distribution(&logits, params, None, None, true);
        assert_eq!(kept.iter().map(|c| c.id).collect::<Vec<_>>(), [0, 1]);
        assert!((kept[0].probability - 0.625).abs() < 1e-6, "{kept:?}");
    }

    #[test]
    fn the_penalty_pushes_ids_drawn_before_down_whatever_their_sign() {
        let mut sampler = Sampler::default();
        let params = SampleParams { penalty: 2.0, temperature: 0.0, ..PLAIN };
        let draw = Draw { seed: 0, step: 0, draw: 0 };
        assert_eq!(sampler.draw(&[2.0, 1.5], params, Some(&[1, 0]), None, true, draw), 1);
        assert_eq!(sampler.draw(&[-1.0, -1.5], params, Some(&[1, 0]), None, true, draw), 1);
    }

    #[test]
    fn suppressed_ids_are_never_drawn_and_the_kept_one_only_when_allowed() {
        let mut sampler = Sampler::default();
        let bound = SampleBound { suppress_from: 2, suppress_to: 5, keep: Some(3) };
        let logits = [0.0, 0.0, 9.0, 9.0, 9.0];
        let ids = |sampler: &mut Sampler, allow| -> Vec<u32> {
            let list = sampler.distribution(&logits, PLAIN, None, Some(&bound), allow);
            list.iter().map(|c| c.id).collect()
        };
        assert_eq!(ids(&mut sampler, true), [3, 0, 1]);
        assert_eq!(ids(&mut sampler, false), [0, 1]);
    }

    #[test]
    fn draws_follow_the_distribution() {
        let mut sampler = Sampler::default();
        let logits: Vec<f32> = [0.6f32, 0.3, 0.1].iter().map(|p| p.ln()).collect();
        let mut counts = [0u32; 3];
        for step in 0..30_000 {
            let draw = Draw { seed: 0x1234_5678_9abc_def0, step, draw: 1 };
            counts[sampler.draw(&logits, PLAIN, None, None, true, draw) as usize] += 1;
        }
        for (count, p) in counts.iter().zip([0.6, 0.3, 0.1]) {
            let share = f64::from(*count) / 30_000.0;
            assert!((share - p).abs() < 0.01, "{counts:?}");
        }
    }

    #[test]
    fn a_row_of_nothing_but_nan_still_gives_an_id() {
        let mut sampler = Sampler::default();
        let draw = Draw { seed: 1, step: 2, draw: 3 };
        assert_eq!(sampler.draw(&[f32::NAN; 4], PLAIN, None, None, true, draw), 0);
    }
}
