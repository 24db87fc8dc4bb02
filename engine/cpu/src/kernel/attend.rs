//! Attention of one query over runs of keys and values.
//!
//! Scores of all keys are held at once (a context is some hundred positions), so the order of every sum
//! depends on positions only, never on how keys are spread over pages or chunks.

use super::lanes::{LANES, Lanes};
use super::math;

/// Keys and values of consecutive positions, each row `stride` values from the last.
#[derive(Clone, Copy)]
pub(crate) struct Run {
    pub(crate) keys: *const f32,
    pub(crate) values: *const f32,
    pub(crate) rows: usize,
}

/// `out = softmax(scale * q . keys) values`; the head's part of a row starts at `offset`; `scores` is working memory for all rows of all runs.
///
/// # Safety
/// Each run's rows must lie behind its pointers, `stride` values apart.
#[inline(always)]
pub(super) unsafe fn attend<L: Lanes>(
    q: &[f32],
    runs: &[Run],
    offset: usize,
    stride: usize,
    scale: f32,
    scores: &mut [f32],
    out: &mut [f32],
) {
    let dim = q.len();
    let mut count = 0;
    for run in runs {
        for row in 0..run.rows {
            // SAFETY: the caller's word.
            let key = unsafe { std::slice::from_raw_parts(run.keys.add(offset + row * stride), dim) };
            scores[count] = dot::<L>(q, key) * scale;
            count += 1;
        }
    }
    let scores = &mut scores[..count];
    let total = softmax::<L>(scores);
    out.fill(0.0);
    let mut index = 0;
    for run in runs {
        for row in 0..run.rows {
            // SAFETY: the caller's word.
            let value = unsafe { std::slice::from_raw_parts(run.values.add(offset + row * stride), dim) };
            let weight = scores[index];
            for (out, &value) in out.iter_mut().zip(value) {
                *out = L::fma1(weight, value, *out);
            }
            index += 1;
        }
    }
    let inverse = 1.0 / total;
    for out in out {
        *out *= inverse;
    }
}

#[inline(always)]
fn dot<L: Lanes>(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [L::splat(0.0); 2];
    let mut i = 0;
    let len = a.len().min(b.len());
    // SAFETY: all loads lie below `len`.
    unsafe {
        while i + 2 * LANES <= len {
            sums[0] = sums[0].fma(L::load(a.as_ptr().add(i)), L::load(b.as_ptr().add(i)));
            sums[1] = sums[1].fma(L::load(a.as_ptr().add(i + LANES)), L::load(b.as_ptr().add(i + LANES)));
            i += 2 * LANES;
        }
    }
    let mut rest = 0.0;
    while i < len {
        rest = L::fma1(a[i], b[i], rest);
        i += 1;
    }
    sums[0].add(sums[1]).sum() + rest
}

/// Turns scores into unnormalised weights, and returns their sum.
#[inline(always)]
fn softmax<L: Lanes>(scores: &mut [f32]) -> f32 {
    let mut tops = [f32::NEG_INFINITY; LANES];
    for chunk in scores.chunks(LANES) {
        for (top, &score) in tops.iter_mut().zip(chunk) {
            *top = if score > *top { score } else { *top };
        }
    }
    let top = tops.iter().fold(f32::NEG_INFINITY, |top, &t| if t > top { t } else { top });
    let mut sums = [0.0; LANES];
    for chunk in scores.chunks_mut(LANES) {
        for (sum, score) in sums.iter_mut().zip(chunk) {
            *score = math::exp::<L>(*score - top);
            *sum += *score;
        }
    }
    let [a, b, c, d, e, f, g, h] = sums;
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}
