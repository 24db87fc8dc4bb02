//! Which tile of `dense_hopper.cu` a product takes, and into how many parts k is split: pure, so that the choice can
//! be read and tested. The rules come from timing every tile at every shape of the published models
//! (docs/h200.md).

/// A shape of tile there is a kernel for.
pub(super) struct Tile {
    pub(super) name: &'static str,
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) threads: u32,
    stages: usize,
    /// Whether two blocks fit on an SM.
    pairs: bool,
}

/// Columns beyond which more than 64 rows take the tile and the parts of the least estimated time: there, how often all
/// SMs are filled decides, and the SMs of a partition differ.
const WIDE: usize = 4096;
/// The kernels take k in steps of this many values.
const STEP: usize = 64;
/// Blocks of a cluster at most: what every card grants. Blocks that fill an SM find fewer neighbours.
const SPLITS_MAX: usize = 8;
const SPLITS_MAX_ALONE: usize = 6;
/// SMs of which blocks that fill them find a cluster's neighbours, out of eight.
const NEIGHBOURS: usize = 7;
/// Steps of k a block takes at least.
const STEPS_MIN: usize = 3;
/// What one more part costs, in steps of k: its tile is read once more.
const PART_COST: f64 = 0.3;
/// The same in microseconds.
const PART_US: f64 = 0.5;
/// What the beginning and the end of a block cost that has an SM to itself, in steps of k: nothing runs beside them.
const ALONE_COST: f64 = 8.0;
/// Alignment the matrix instructions ask of shared memory; a block aligns its own.
const ALIGN: usize = 1024;

const fn tile(
    name: &'static str,
    rows: usize,
    cols: usize,
    threads: u32,
    stages: usize,
    pairs: bool,
) -> Tile {
    Tile { name, rows, cols, threads, stages, pairs }
}

const T8X64: Tile = tile("product_hopper_8x64", 8, 64, 128, 8, true);
const T16X64: Tile = tile("product_hopper_16x64", 16, 64, 128, 8, true);
const T32X64: Tile = tile("product_hopper_32x64", 32, 64, 128, 8, true);
const T64X64: Tile = tile("product_hopper_64x64", 64, 64, 128, 6, true);
const T128X32: Tile = tile("product_hopper_128x32", 128, 32, 256, 5, true);
const T128X64: Tile = tile("product_hopper_128x64", 128, 64, 256, 4, true);
const T128X96: Tile = tile("product_hopper_128x96", 128, 96, 256, 3, true);
const T128X256: Tile = tile("product_hopper_128x256", 128, 256, 256, 4, false);
const T192X64: Tile = tile("product_hopper_192x64", 192, 64, 384, 3, false);
const T192X128: Tile = tile("product_hopper_192x128", 192, 128, 384, 5, false);
const T256X128: Tile = tile("product_hopper_256x128", 256, 128, 512, 4, false);

/// What wide products of more than 64 rows choose among, with the microseconds that a step of k and a block's beginning
/// and end take while every SM has its fill: straight lines through the times of such products on one H200.
const WIDE_TILES: [(&Tile, StepAndEnds); 5] = [
    (&T128X64, (0.7, 5.0)),
    (&T128X96, (0.8, 6.5)),
    (&T192X128, (0.7, 6.6)),
    (&T256X128, (0.85, 7.2)),
    (&T128X256, (0.72, 13.3)),
];
type StepAndEnds = (f64, f64);

impl Tile {
    /// Bytes of shared memory a block asks for: its stages, or the tile of sums in their place.
    pub(super) fn shared(&self) -> usize {
        let padding = if self.rows < 64 { 4 } else { 8 };
        let sums = 4 * self.rows * (self.cols + padding);
        (self.stages * (self.rows + self.cols) * 2 * STEP).max(sums) + ALIGN
    }
}

/// The tile for `rows` by `cols` results of `depth` products each, on `sms` SMs.
pub(super) fn choose(rows: usize, cols: usize, depth: usize, sms: usize) -> &'static Tile {
    let weights = cols * depth;
    match rows {
        0..=8 => &T8X64,
        9..=16 => &T16X64,
        17..=32 => &T32X64,
        33..=64 => &T64X64,
        _ if cols > WIDE => fastest(rows, cols, depth, sms),
        65..=128 if weights <= 4 << 20 => &T128X32,
        65..=128 => &T128X64,
        _ if cols <= 64 => &T128X64,
        129..=192 if weights < 12 << 20 => &T192X64,
        129..=192 => &T192X128,
        193..=256 if weights < 12 << 20 => &T128X64,
        257.. if cols <= 288 && cols.is_multiple_of(96) => &T128X96,
        257.. if cols >= 768 && depth >= 3072 => &T128X256,
        _ => &T256X128,
    }
}

fn fastest(rows: usize, cols: usize, depth: usize, sms: usize) -> &'static Tile {
    let time = |&(tile, times): &(&Tile, StepAndEnds)| {
        let blocks = cols.div_ceil(tile.cols) * rows.div_ceil(tile.rows);
        let parts = wide_splits(tile, times, blocks, depth, sms);
        estimate(tile, times, blocks * parts, depth, sms, parts)
    };
    let tile = WIDE_TILES.into_iter().min_by(|a, b| time(a).total_cmp(&time(b)));
    tile.map_or(&T256X128, |(tile, _)| tile)
}

/// Microseconds of `blocks` that each take one of `parts` of `depth` products.
fn estimate(
    tile: &Tile,
    (step, ends): StepAndEnds,
    blocks: usize,
    depth: usize,
    sms: usize,
    parts: usize,
) -> f64 {
    let slots = match (tile.pairs, parts) {
        (true, _) => 2 * sms,
        (false, 1 | 2) => sms,
        (false, _) => sms * NEIGHBOURS / 8,
    };
    let waves = blocks.div_ceil(slots.max(1)) as f64;
    let taken = depth.div_ceil(STEP).div_ceil(parts) as f64;
    waves * (taken * step + ends) + PART_US * (parts - 1) as f64
}

fn wide_splits(tile: &Tile, times: StepAndEnds, tiles: usize, depth: usize, sms: usize) -> usize {
    let time = |parts: &usize| estimate(tile, times, tiles * parts, depth, sms, *parts);
    parts_allowed(SPLITS_MAX_ALONE, depth, sms).min_by(|a, b| time(a).total_cmp(&time(b))).unwrap_or(1)
}

/// Parts of k, `most` at most, of which none is too short and no cluster too wide for the partition.
fn parts_allowed(most: usize, depth: usize, sms: usize) -> impl Iterator<Item = usize> {
    let steps = depth.div_ceil(STEP);
    // A cluster's blocks lie on neighbouring SMs, of which a small partition has few.
    let most = most.min((sms / 4).max(1));
    (1..=most).filter(move |&parts| parts == 1 || steps / parts >= STEPS_MIN)
}

/// Parts of k for `blocks` tiles of a product into `cols` columns, on `sms` SMs: as many as shorten the way of the last
/// block.
pub(super) fn splits(tile: &Tile, blocks: usize, cols: usize, depth: usize, sms: usize) -> usize {
    let wide = WIDE_TILES.iter().find(|(wide, _)| wide.name == tile.name);
    if let Some(&(_, times)) = wide.filter(|_| cols > WIDE) {
        return wide_splits(tile, times, blocks, depth, sms);
    }
    if blocks >= sms && !tile.pairs {
        return 1;
    }
    let cost = |parts: usize| {
        let share = |sms: usize| (blocks * parts) as f64 / sms.max(1) as f64;
        let taken = depth.div_ceil(STEP).div_ceil(parts) as f64;
        let time = match (tile.pairs, parts) {
            (true, _) => taken * share(sms).max(1.0),
            (false, 1 | 2) => (taken + ALONE_COST) * share(sms).ceil(),
            (false, _) => (taken + ALONE_COST) * share(sms * NEIGHBOURS / 8).ceil(),
        };
        time + PART_COST * parts as f64
    };
    let most = if tile.pairs { SPLITS_MAX } else { SPLITS_MAX_ALONE };
    parts_allowed(most, depth, sms).min_by(|&a, &b| cost(a).total_cmp(&cost(b))).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(rows: usize, cols: usize, depth: usize) -> (&'static str, usize) {
        parts_on(rows, cols, depth, 132)
    }

    fn parts_on(rows: usize, cols: usize, depth: usize, sms: usize) -> (&'static str, usize) {
        let tile = choose(rows, cols, depth, sms);
        let blocks = cols.div_ceil(tile.cols) * rows.div_ceil(tile.rows);
        (tile.name, splits(tile, blocks, cols, depth, sms))
    }

    #[test]
    fn the_measured_best_is_chosen_for_a_decode_step_of_64_rows() {
        let best = |cols, depth| parts(64, cols, depth).1;
        let code_predictor = [best(4096, 1024), best(1024, 2048), best(6144, 1024), best(1024, 3072)];
        assert_eq!(code_predictor, [2, 8, 2, 8]);
        let backbone = [best(2048, 2048), best(12_288, 2048)];
        assert_eq!(backbone, [4, 1]);
    }

    #[test]
    fn the_measured_best_is_chosen_for_a_decode_step_of_128_to_256_rows() {
        let down = |rows| parts(rows, 2048, 6144);
        assert_eq!(parts(128, 12_288, 2048), ("product_hopper_128x96", 2));
        assert_eq!(down(128), ("product_hopper_128x64", 6));
        assert_eq!(parts(192, 12_288, 2048), ("product_hopper_192x128", 1));
        assert_eq!(down(192), ("product_hopper_192x128", 6));
        assert_eq!(parts(192, 4096, 1024), ("product_hopper_192x64", 2));
        assert_eq!(parts(192, 6144, 1024), ("product_hopper_192x128", 2));
        assert_eq!(parts(192, 2048, 2048), ("product_hopper_192x64", 3));
        assert_eq!(parts(256, 12_288, 2048), ("product_hopper_128x96", 1));
        assert_eq!(parts(128, 6144, 1024), ("product_hopper_128x64", 2));
        assert_eq!(parts(256, 6144, 1024), ("product_hopper_128x96", 2));
        assert_eq!(down(256), ("product_hopper_256x128", 6));
    }

    #[test]
    fn a_wide_product_fills_a_smaller_partition_once_where_a_tile_allows_it() {
        assert_eq!(parts_on(128, 12_288, 2048, 100), ("product_hopper_128x256", 2));
        assert_eq!(parts_on(192, 12_288, 2048, 100), ("product_hopper_192x128", 1));
        assert_eq!(parts_on(256, 12_288, 2048, 100), ("product_hopper_256x128", 1));
    }

    #[test]
    fn many_rows_take_wide_tiles_and_k_whole() {
        assert_eq!(parts(25_600, 384, 2688), ("product_hopper_256x128", 1));
        assert_eq!(parts(5120, 768, 5376), ("product_hopper_128x256", 1));
        assert_eq!(parts(102_400, 288, 384), ("product_hopper_128x96", 1));
        assert_eq!(parts(640, 6144, 3072), ("product_hopper_128x256", 1));
    }

    #[test]
    fn every_tile_fits_a_block_and_twice_where_it_says_so() {
        for tile in
            [T8X64, T16X64, T32X64, T64X64, T128X32, T128X64, T128X96, T128X256, T192X64, T192X128, T256X128]
        {
            let most = if tile.pairs { 113 << 10 } else { 226 << 10 };
            assert!(tile.shared() + 4 * tile.rows <= most, "{}: {}", tile.name, tile.shared());
        }
    }

    #[test]
    fn a_small_partition_is_asked_for_small_clusters() {
        let parts = [4, 8, 16, 32, 100].map(|sms| splits(&T64X64, 2, 128, 8192, sms));
        assert_eq!(parts, [1, 2, 4, 8, 8]);
    }

    #[test]
    fn no_part_is_empty_however_short_k_is() {
        for depth in [8, 64, 100, 192, 4096] {
            for blocks in [1, 7, 64, 1000] {
                let parts = splits(&T64X64, blocks, 64, depth, 100);
                assert!(parts >= 1 && parts <= depth.div_ceil(STEP), "{depth} in {parts}");
            }
        }
    }
}
