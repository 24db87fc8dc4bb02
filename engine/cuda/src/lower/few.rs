//! Which kernel of `rows_hopper.cu` a product of few rows takes, and into how many parts k is split: pure, as
//! [`super::hopper`] is.

/// A tile of `rows` rows by [`COLS`] columns.
#[derive(Debug, PartialEq)]
pub(super) struct Tile {
    name: &'static str,
    gated: &'static str,
    pub(super) rows: usize,
    pub(super) threads: u32,
    stages: usize,
}

/// Columns of every tile; of a gated pair, half as many of each.
pub(super) const COLS: usize = 64;
/// Rows of the largest tile: beyond, weights are no longer what such a product waits for.
const ROWS_MAX: usize = 128;
/// The kernels take k in steps of this many values.
const STEP: usize = 64;
/// Parts of k: powers of two up to this.
const SPLITS: [usize; 4] = [1, 2, 4, 8];
/// Steps of k a block takes at least.
const STEPS_MIN: usize = 3;
/// What one more part costs, in steps of k: its sums are sent to another block.
const PART_COST: f64 = 0.3;
/// Alignment the matrix instructions ask of shared memory; a block aligns its own.
const ALIGN: usize = 1024;

const fn tile(name: &'static str, gated: &'static str, rows: usize, threads: u32, stages: usize) -> Tile {
    Tile { name, gated, rows, threads, stages }
}

const TILES: [Tile; 5] = [
    tile("product_rows_8", "product_rows_gated_8", 8, 128, 8),
    tile("product_rows_16", "product_rows_gated_16", 16, 128, 8),
    tile("product_rows_32", "product_rows_gated_32", 32, 128, 7),
    tile("product_rows_64", "product_rows_gated_64", 64, 128, 5),
    tile("product_rows_128", "product_rows_gated_128", 128, 256, 3),
];

impl Tile {
    pub(super) const fn kernel(&self, gated: bool) -> &'static str {
        if gated { self.gated } else { self.name }
    }

    /// Bytes of shared memory a block asks for: its stages, and the sums of its share of the rows from all its peers.
    pub(super) const fn shared(&self) -> usize {
        let padding = if self.rows < 64 { 4 } else { 8 };
        self.stages * (self.rows + COLS) * 2 * STEP + 4 * self.rows * (COLS + padding) + ALIGN
    }
}

/// The tile for so many rows, where there is one for products of `depth` and matrices of these columns (of a gated
/// pair, of one of the two).
pub(super) fn choose(rows: usize, widths: &[usize], gated: bool, depth: usize) -> Option<&'static Tile> {
    let cols = if gated { COLS / 2 } else { COLS };
    let fits = depth.is_multiple_of(STEP) && widths.iter().all(|width| width.is_multiple_of(cols));
    TILES.iter().find(|tile| tile.rows >= rows.min(ROWS_MAX)).filter(|_| fits && rows <= ROWS_MAX)
}

/// Parts of k for `tiles` tiles of such a product on `sms` SMs: as many as shorten the way of the last block.
pub(super) fn splits(tiles: usize, depth: usize, sms: usize) -> usize {
    let steps = depth / STEP;
    let cost = |parts: usize| {
        let share = (tiles * parts) as f64 / sms.max(1) as f64;
        steps.div_ceil(parts) as f64 * share.max(1.0) + PART_COST * parts as f64
    };
    // A cluster's blocks lie on neighbouring SMs, of which a small partition has few.
    let allowed = |parts: &usize| *parts == 1 || (steps / parts >= STEPS_MIN && *parts <= sms / 4);
    SPLITS.into_iter().filter(allowed).min_by(|&a, &b| cost(a).total_cmp(&cost(b))).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fewest_rows_that_hold_them_all_are_taken_and_shapes_that_fill_no_tile_are_left_to_others() {
        let name = |rows, widths: &[usize], gated, depth| {
            choose(rows, widths, gated, depth).map(|tile| tile.kernel(gated))
        };
        assert_eq!(name(1, &[2048, 1024, 1024], false, 2048), Some("product_rows_8"));
        assert_eq!(name(9, &[2048], false, 2048), Some("product_rows_16"));
        assert_eq!(name(64, &[3072, 3072], true, 1024), Some("product_rows_gated_64"));
        assert_eq!(name(65, &[1024], false, 3072), Some("product_rows_128"));
        assert_eq!(name(129, &[1024], false, 3072), None);
        assert_eq!(name(4, &[1000], false, 64), None, "columns that end within a tile");
        assert_eq!(name(4, &[96, 96], true, 64), Some("product_rows_gated_8"));
        assert_eq!(name(4, &[64], false, 100), None, "a step of k that ends within a row");
    }

    #[test]
    fn two_blocks_of_every_tile_fit_an_sm() {
        for tile in TILES {
            assert!(tile.shared() + 64 <= 113 << 10, "{}: {}", tile.name, tile.shared());
        }
    }

    #[test]
    fn k_is_split_until_every_sm_has_a_block_and_no_part_is_too_short() {
        let of = |cols: usize, depth| splits(cols / COLS, depth, 132);
        assert_eq!([of(4096, 1024), of(1024, 2048), of(6144, 1024), of(1024, 3072)], [2, 8, 2, 8]);
        assert_eq!([of(2048, 2048), of(12_288, 2048), of(2048, 6144)], [4, 1, 4]);
        for sms in [4, 8, 16, 100] {
            assert!(splits(2, 8192, sms) <= (sms / 4).max(1), "{sms}");
        }
        assert_eq!(splits(1, 64, 132), 1);
    }
}
