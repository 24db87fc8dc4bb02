//! The one matrix kernel: linear layers and convolutions alike.
//!
//! Row `r` of the output is the sum over taps and inputs of `a[row(r) + tap * tap_stride + input]` times the
//! packed weight. A convolution needs no gathered copy of its input: its taps are strides into the same
//! rows. Each output element is one chain of fused multiply-adds in a fixed order (taps, then inputs), so
//! results do not depend on the number of rows, on their grouping into tiles, or on threads.

use super::lanes::{LANES, Lanes};
use crate::pack::{PANEL, Packed, Words};

/// Rows of the largest tile: 6 x 16 sums and their operands fill the sixteen registers of AVX2.
const TILE: usize = 6;
/// Rows worked on before moving to the next panels, so that they stay in the second-level cache.
const BLOCK: usize = 96;

/// One product. Pointers must stay valid, and `out` unshared, for the call.
pub(crate) struct Product<'a> {
    pub(crate) a: *const f32,
    /// Rows come in groups that lie `group_stride` values apart; within one, rows lie `row_stride` apart.
    pub(crate) group: usize,
    pub(crate) group_stride: usize,
    pub(crate) row_stride: usize,
    pub(crate) tap_stride: usize,
    pub(crate) weight: &'a Packed,
    pub(crate) bias: Option<&'a [f32]>,
    /// Same layout as `out`; may be `out` itself.
    pub(crate) residual: Option<*const f32>,
    pub(crate) out: *mut f32,
    pub(crate) rows: std::ops::Range<usize>,
    pub(crate) panels: std::ops::Range<usize>,
}

impl Product<'_> {
    /// Where `HEIGHT` consecutive rows begin.
    #[inline(always)]
    unsafe fn rows<const HEIGHT: usize>(&self, first: usize) -> [*const f32; HEIGHT] {
        let (mut group, mut row) =
            if first < self.group { (0, first) } else { (first / self.group, first % self.group) };
        let mut list = [self.a; HEIGHT];
        for at in &mut list {
            // SAFETY: the caller's rows lie behind `a`.
            *at = unsafe { self.a.add(group * self.group_stride + row * self.row_stride) };
            row += 1;
            if row == self.group {
                (group, row) = (group + 1, 0);
            }
        }
        list
    }
}

/// Runs a product over its rows and panels.
///
/// # Safety
/// Every row named must lie behind `a` for all taps, and `out` must hold all rows.
#[inline(always)]
pub(super) unsafe fn product<L: Lanes>(job: &Product) {
    // SAFETY: passed on to the caller.
    unsafe {
        match &job.weight.words {
            Words::Full(words) if job.weight.outputs == 1 => single::<L>(job, words),
            Words::Full(words) => blocks::<L, false>(job, words.as_ptr().cast()),
            Words::Half(words) => blocks::<L, true>(job, words.as_ptr()),
        }
    }
}

/// All rows and panels; `words` are the weight's.
#[inline(always)]
unsafe fn blocks<L: Lanes, const HALF: bool>(job: &Product, words: *const u32) {
    let mut row = job.rows.start;
    while row < job.rows.end {
        let end = job.rows.end.min(row + BLOCK);
        let mut panel = job.panels.start;
        while panel < job.panels.end {
            // SAFETY: passed on to the caller.
            panel += unsafe { block::<L, HALF>(job, words, row..end, panel) };
        }
        row = end;
    }
}

/// Runs the panels at `panel` over a block of rows; returns how many panels those were.
#[inline(always)]
unsafe fn block<L: Lanes, const HALF: bool>(
    job: &Product,
    words: *const u32,
    rows: std::ops::Range<usize>,
    panel: usize,
) -> usize {
    let panels = job.panels.end - panel;
    let count = rows.len();
    // Few rows leave registers for more columns, which hides the latency of the chains.
    let wide = match count {
        1 if panels >= 4 => 4,
        1 | 2 if panels >= 2 => 2,
        _ => 1,
    };
    let tiles = count.div_ceil(TILE);
    let mut row = rows.start;
    for tile in 0..tiles {
        let height = (rows.end - row).div_ceil(tiles - tile);
        // SAFETY: passed on to the caller.
        unsafe {
            match (height, wide) {
                (1, 4) => self::tile::<L, HALF, 1, 4>(job, words, row, panel),
                (1, 2) => self::tile::<L, HALF, 1, 2>(job, words, row, panel),
                (1, _) => self::tile::<L, HALF, 1, 1>(job, words, row, panel),
                (2, 2) => self::tile::<L, HALF, 2, 2>(job, words, row, panel),
                (2, _) => self::tile::<L, HALF, 2, 1>(job, words, row, panel),
                (3, _) => self::tile::<L, HALF, 3, 1>(job, words, row, panel),
                (4, _) => self::tile::<L, HALF, 4, 1>(job, words, row, panel),
                (5, _) => self::tile::<L, HALF, 5, 1>(job, words, row, panel),
                _ => self::tile::<L, HALF, 6, 1>(job, words, row, panel),
            }
        }
        row += height;
    }
    wide
}

/// `HEIGHT` rows by `WIDE` panels. Loops over the sums have constant bounds: an array indexed by a running
/// variable would live in memory throughout.
#[expect(clippy::needless_range_loop, reason = "constant bounds keep the sums in registers")]
#[inline(always)]
unsafe fn tile<L: Lanes, const HALF: bool, const HEIGHT: usize, const WIDE: usize>(
    job: &Product,
    words: *const u32,
    row: usize,
    panel: usize,
) {
    let weight = job.weight;
    let depth = weight.taps * weight.inputs;
    // SAFETY: rows and panels are in bounds by the caller's word and by the packing.
    unsafe {
        let a = job.rows::<HEIGHT>(row);
        let width = if HALF { LANES } else { PANEL };
        let mut b = words.add(panel * depth * width);
        let mut sums = [[[L::splat(0.0); 2]; WIDE]; HEIGHT];
        for tap in 0..weight.taps {
            let tap = tap * job.tap_stride;
            for input in 0..weight.inputs {
                let columns: [[L; 2]; WIDE] = std::array::from_fn(|w| {
                    let at = b.add(w * depth * width);
                    if HALF {
                        L::load_pair(at)
                    } else {
                        [L::load(at.cast()), L::load(at.cast::<f32>().add(LANES))]
                    }
                });
                for r in 0..HEIGHT {
                    let value = L::splat(*a[r].add(tap + input));
                    for w in 0..WIDE {
                        sums[r][w][0] = sums[r][w][0].fma(value, columns[w][0]);
                        sums[r][w][1] = sums[r][w][1].fma(value, columns[w][1]);
                    }
                }
                b = b.add(width);
            }
        }
        // The sums leave their registers here, once: indexed by the loops below they would live in memory, and be
        // stored after every multiplication (measured: 4.9 ms of codec a frame instead of 2.1).
        let sums = std::hint::black_box(sums);
        for w in 0..WIDE {
            let first = (panel + w) * PANEL;
            let width = weight.outputs - first;
            let at = row * weight.outputs + first;
            if width >= PANEL {
                let mut bias = [L::splat(0.0); 2];
                if let Some(values) = job.bias {
                    let values = values.as_ptr().add(first);
                    bias = [L::load(values), L::load(values.add(LANES))];
                }
                let mut out = job.out.add(at);
                if let Some(residual) = job.residual {
                    let mut residual = residual.add(at);
                    for r in 0..HEIGHT {
                        sums[r][w][0].add(bias[0]).add(L::load(residual)).store(out);
                        sums[r][w][1].add(bias[1]).add(L::load(residual.add(LANES))).store(out.add(LANES));
                        residual = residual.add(weight.outputs);
                        out = out.add(weight.outputs);
                    }
                } else {
                    for r in 0..HEIGHT {
                        sums[r][w][0].add(bias[0]).store(out);
                        sums[r][w][1].add(bias[1]).store(out.add(LANES));
                        out = out.add(weight.outputs);
                    }
                }
            } else {
                for r in 0..HEIGHT {
                    let at = at + r * weight.outputs;
                    store_part::<L>(job, sums[r][w][0], first, at, width.min(LANES));
                    store_part::<L>(
                        job,
                        sums[r][w][1],
                        first + LANES,
                        at + LANES,
                        width.saturating_sub(LANES),
                    );
                }
            }
        }
    }
}

/// Some columns at the end of a row.
#[inline(always)]
unsafe fn store_part<L: Lanes>(job: &Product, sum: L, column: usize, at: usize, width: usize) {
    let mut values = [0.0; LANES];
    // SAFETY: `width` values lie inside the row.
    unsafe {
        sum.store(values.as_mut_ptr());
        for (i, &value) in values.iter().enumerate().take(width) {
            let bias = job.bias.map_or(0.0, |bias| bias[column + i]);
            let residual = job.residual.map_or(0.0, |residual| *residual.add(at + i));
            *job.out.add(at + i) = value + bias + residual;
        }
    }
}

/// One output column: a dot product a row.
#[inline(always)]
unsafe fn single<L: Lanes>(job: &Product, words: &[f32]) {
    let weight = job.weight;
    let bias = job.bias.map_or(0.0, |bias| bias[0]);
    for row in job.rows.clone() {
        // SAFETY: as for tiles.
        unsafe {
            let [a] = job.rows::<1>(row);
            let mut sums = [L::splat(0.0); 2];
            let mut rest = 0.0;
            for tap in 0..weight.taps {
                let a = a.add(tap * job.tap_stride);
                let b = words.as_ptr().add(tap * weight.inputs);
                let mut input = 0;
                while input + 2 * LANES <= weight.inputs {
                    sums[0] = sums[0].fma(L::load(a.add(input)), L::load(b.add(input)));
                    sums[1] = sums[1].fma(L::load(a.add(input + LANES)), L::load(b.add(input + LANES)));
                    input += 2 * LANES;
                }
                while input < weight.inputs {
                    rest = L::fma1(*a.add(input), *b.add(input), rest);
                    input += 1;
                }
            }
            let residual = job.residual.map_or(0.0, |residual| *residual.add(row));
            *job.out.add(row) = sums[0].add(sums[1]).sum() + rest + bias + residual;
        }
    }
}
