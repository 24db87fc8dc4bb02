//! The one matrix kernel: linear layers and convolutions alike.
//!
//! Row `r` of the output is the sum over taps and inputs of `a[row(r) + tap * tap_stride + input]` times the
//! packed weight. A convolution needs no gathered copy of its input: its taps are strides into the same
//! rows. Each output element is one chain of fused multiply-adds in a fixed order (taps, then inputs), so
//! results do not depend on the number of rows, on their grouping into tiles, or on threads.

use super::lanes::{LANES, Lanes};
use crate::pack::{PANEL, Packed};

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
    #[inline(always)]
    unsafe fn row(&self, row: usize) -> *const f32 {
        let offset = (row / self.group) * self.group_stride + (row % self.group) * self.row_stride;
        // SAFETY: the caller's rows lie behind `a`.
        unsafe { self.a.add(offset) }
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
        if job.weight.outputs == 1 {
            return single::<L>(job);
        }
        let mut row = job.rows.start;
        while row < job.rows.end {
            let end = job.rows.end.min(row + BLOCK);
            let mut panel = job.panels.start;
            while panel < job.panels.end {
                panel += block::<L>(job, row..end, panel);
            }
            row = end;
        }
    }
}

/// Runs the panels at `panel` over a block of rows; returns how many panels those were.
#[inline(always)]
unsafe fn block<L: Lanes>(job: &Product, rows: std::ops::Range<usize>, panel: usize) -> usize {
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
                (1, 4) => self::tile::<L, 1, 4>(job, row, panel),
                (1, 2) => self::tile::<L, 1, 2>(job, row, panel),
                (1, _) => self::tile::<L, 1, 1>(job, row, panel),
                (2, 2) => self::tile::<L, 2, 2>(job, row, panel),
                (2, _) => self::tile::<L, 2, 1>(job, row, panel),
                (3, _) => self::tile::<L, 3, 1>(job, row, panel),
                (4, _) => self::tile::<L, 4, 1>(job, row, panel),
                (5, _) => self::tile::<L, 5, 1>(job, row, panel),
                _ => self::tile::<L, 6, 1>(job, row, panel),
            }
        }
        row += height;
    }
    wide
}

/// `HEIGHT` rows by `WIDE` panels.
#[inline(always)]
unsafe fn tile<L: Lanes, const HEIGHT: usize, const WIDE: usize>(job: &Product, row: usize, panel: usize) {
    let weight = job.weight;
    let depth = weight.taps * weight.inputs;
    // SAFETY: rows and panels are in bounds by the caller's word and by the packing.
    unsafe {
        let a: [*const f32; HEIGHT] = std::array::from_fn(|r| job.row(row + r));
        let mut b = weight.data.as_ptr().add(panel * depth * PANEL);
        let mut sums = [[[L::splat(0.0); 2]; WIDE]; HEIGHT];
        for tap in 0..weight.taps {
            let tap = tap * job.tap_stride;
            for input in 0..weight.inputs {
                let columns: [[L; 2]; WIDE] = std::array::from_fn(|w| {
                    let at = b.add(w * depth * PANEL);
                    [L::load(at), L::load(at.add(LANES))]
                });
                for r in 0..HEIGHT {
                    let value = L::splat(*a[r].add(tap + input));
                    for w in 0..WIDE {
                        sums[r][w][0] = sums[r][w][0].fma(value, columns[w][0]);
                        sums[r][w][1] = sums[r][w][1].fma(value, columns[w][1]);
                    }
                }
                b = b.add(PANEL);
            }
        }
        for w in 0..WIDE {
            let first = (panel + w) * PANEL;
            let width = PANEL.min(weight.outputs - first);
            for (r, sums) in sums.iter().enumerate() {
                let at = (row + r) * weight.outputs + first;
                if width == PANEL {
                    store_full::<L>(job, sums[w], first, at);
                } else {
                    store_part::<L>(job, sums[w], first, at, width);
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn store_full<L: Lanes>(job: &Product, mut sums: [L; 2], first: usize, at: usize) {
    // SAFETY: a full panel lies inside the row.
    unsafe {
        for (half, sum) in sums.iter_mut().enumerate() {
            if let Some(bias) = job.bias {
                *sum = sum.add(L::load(bias.as_ptr().add(first + half * LANES)));
            }
            if let Some(residual) = job.residual {
                *sum = sum.add(L::load(residual.add(at + half * LANES)));
            }
            sum.store(job.out.add(at + half * LANES));
        }
    }
}

#[inline(always)]
unsafe fn store_part<L: Lanes>(job: &Product, sums: [L; 2], first: usize, at: usize, width: usize) {
    let mut values = [0.0; PANEL];
    // SAFETY: `width` columns lie inside the row.
    unsafe {
        sums[0].store(values.as_mut_ptr());
        sums[1].store(values.as_mut_ptr().add(LANES));
        for (column, &value) in values.iter().enumerate().take(width) {
            let bias = job.bias.map_or(0.0, |bias| bias[first + column]);
            let residual = job.residual.map_or(0.0, |residual| *residual.add(at + column));
            *job.out.add(at + column) = value + bias + residual;
        }
    }
}

/// One output column: a dot product a row.
#[inline(always)]
unsafe fn single<L: Lanes>(job: &Product) {
    let weight = job.weight;
    let bias = job.bias.map_or(0.0, |bias| bias[0]);
    for row in job.rows.clone() {
        // SAFETY: as for tiles.
        unsafe {
            let a = job.row(row);
            let mut sums = [L::splat(0.0); 2];
            let mut rest = 0.0;
            for tap in 0..weight.taps {
                let a = a.add(tap * job.tap_stride);
                let b = weight.data.as_ptr().add(tap * weight.inputs);
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
