//! Attention of one query over runs of keys and values.
//!
//! Scores of all keys are held at once (a context is some hundred positions), so the order of every sum
//! depends on positions only, never on how keys are spread over pages or chunks.

use super::lanes::{LANES, Lanes};
use super::math;

/// Columns summed at once: eight vectors.
const BLOCK: usize = 8 * LANES;

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
    let inverse = 1.0 / total;
    let mut column = 0;
    while column + BLOCK <= dim {
        // SAFETY: the caller's word; the columns lie inside each row.
        unsafe {
            weigh_block::<L, { BLOCK / LANES }>(
                runs,
                offset + column,
                stride,
                scores,
                inverse,
                &mut out[column..],
            )
        };
        column += BLOCK;
    }
    while column + LANES <= dim {
        // SAFETY: as above.
        unsafe { weigh_block::<L, 1>(runs, offset + column, stride, scores, inverse, &mut out[column..]) };
        column += LANES;
    }
    for (column, out) in out.iter_mut().enumerate().skip(column) {
        let (mut sum, mut index) = (0.0, 0);
        for run in runs {
            for row in 0..run.rows {
                // SAFETY: as above.
                let value = unsafe { *run.values.add(offset + row * stride + column) };
                sum = L::fma1(scores[index], value, sum);
                index += 1;
            }
        }
        *out = sum * inverse;
    }
}

/// Weighted sums of `VECTORS` vectors of columns, kept in registers over all rows.
#[expect(clippy::needless_range_loop, reason = "constant bounds keep the sums in registers")]
#[inline(always)]
unsafe fn weigh_block<L: Lanes, const VECTORS: usize>(
    runs: &[Run],
    offset: usize,
    stride: usize,
    scores: &[f32],
    inverse: f32,
    out: &mut [f32],
) {
    let mut sums = [L::splat(0.0); VECTORS];
    let mut scores = scores.iter();
    // SAFETY: the caller's word; `out` holds the block.
    unsafe {
        for run in runs {
            let mut at = run.values.add(offset);
            for &score in scores.by_ref().take(run.rows) {
                let score = L::splat(score);
                for i in 0..VECTORS {
                    sums[i] = sums[i].fma(score, L::load(at.add(i * LANES)));
                }
                at = at.wrapping_add(stride);
            }
        }
        assert!(out.len() >= VECTORS * LANES);
        for i in 0..VECTORS {
            L::splat(0.0).fma(sums[i], L::splat(inverse)).store(out.as_mut_ptr().add(i * LANES));
        }
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
