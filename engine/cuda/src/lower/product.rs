//! A matrix product as a launch: the kernel it takes, its tiles, and what that kernel is told.

use device::program::Activation;

use super::norm::{Norm, RowScale};
use super::rows::activation_code;
use super::{Arg, Field, Lowering, Place, Storage, few, field, hopper, int_field, vector};

/// One matrix of a product.
pub(super) struct Factor {
    pub(super) weight: Field,
    pub(super) bias: Place,
    pub(super) out: Place,
    /// Columns of the result.
    pub(super) cols: usize,
}

/// Rows of the left factor: row r begins at `(r / group) * group_stride + (r % group) * row_stride`.
pub(super) struct Left {
    pub(super) at: Place,
    pub(super) rows: usize,
    pub(super) group: usize,
    pub(super) group_stride: usize,
    pub(super) row_stride: usize,
    pub(super) tap_stride: usize,
    /// Values of a tap, and taps.
    pub(super) cin: usize,
    pub(super) taps: usize,
    pub(super) scale: Option<RowScale>,
}

/// `struct Product` of `dense.cu`.
pub(super) struct Product {
    pub(super) left: Left,
    pub(super) factors: Vec<Factor>,
    pub(super) gated: bool,
    pub(super) activation: Option<Activation>,
    pub(super) residual: Option<(Place, Storage)>,
    pub(super) out: Storage,
    /// Type of both factors.
    pub(super) factor: Storage,
    /// The result is a stream, and this norm follows.
    pub(super) norm: Option<Norm>,
}

/// A shape of tile there is a kernel for.
struct Tile {
    name: &'static str,
    rows: usize,
    cols: usize,
    threads: u32,
    stages: usize,
}

/// Each fits the 96 KiB of the smallest cards ([`crate::kernels::shared_max`]).
const TILES: [Tile; 8] = [
    Tile { name: "product_tensor_16x64", rows: 16, cols: 64, threads: 128, stages: 6 },
    Tile { name: "product_tensor_32x64", rows: 32, cols: 64, threads: 128, stages: 6 },
    Tile { name: "product_tensor_64x32", rows: 64, cols: 32, threads: 256, stages: 6 },
    Tile { name: "product_tensor_64x64", rows: 64, cols: 64, threads: 256, stages: 5 },
    Tile { name: "product_tensor_128x32", rows: 128, cols: 32, threads: 256, stages: 4 },
    Tile { name: "product_tensor_128x64", rows: 128, cols: 64, threads: 256, stages: 4 },
    Tile { name: "product_tensor_128x96", rows: 128, cols: 96, threads: 256, stages: 3 },
    Tile { name: "product_tensor_128x128", rows: 128, cols: 128, threads: 256, stages: 3 },
];
/// Side of a plain kernel's tile.
const PLAIN: usize = 64;
/// Steps of k a block of a tensor kernel takes at least when k is split.
const SPLIT_STEPS_MIN: usize = 4;
const STEP: usize = 64;
/// Parts k is split into at most: the last block adds them up with all its loads in flight at once.
const SPLITS_MAX: usize = 4;
/// Blocks wanted on each SM of the partition before k is split no further.
const BLOCKS_PER_SM: usize = 2;

impl Lowering<'_> {
    /// Lays a product out; says whether it took the norm that follows in.
    pub(super) fn product(&mut self, product: Product) -> bool {
        let Product { ref left, ref factors, gated, .. } = product;
        let widest: usize = factors.iter().map(|factor| factor.cols).sum();
        let aligned = left.cin.is_multiple_of(8)
            && left.row_stride.is_multiple_of(8)
            && left.group_stride.is_multiple_of(8)
            && left.tap_stride.is_multiple_of(8);
        if product.factor != Storage::Bf16 || !aligned {
            let letter = product.factor.letter();
            let tiles = tiles(factors, gated, PLAIN, PLAIN);
            let grid = [tiles, left.rows.div_ceil(PLAIN), 1];
            let args = vec![arguments(&product, 1, Place::Null)];
            self.launch(format!("product_plain_{letter}{letter}"), grid, 256, 0, args);
            return false;
        }
        let widths: Vec<usize> = factors.iter().map(|factor| factor.cols).collect();
        if self.target.hopper && suits_hopper(&widths, product.activation) {
            return self.hopper_product(&product, widest);
        }
        debug_assert!(left.scale.is_none(), "only Hopper's kernels scale rows");
        let tile = &TILES[choose(left.rows, widest)];
        let across = tiles(factors, gated, tile.cols, tile.cols / 2);
        let down = left.rows.div_ceil(tile.rows);
        let steps = (left.cin * left.taps).div_ceil(STEP);
        let wanted = (BLOCKS_PER_SM * self.target.sms as usize) / (across * down).max(1);
        let splits = wanted.min(steps / SPLIT_STEPS_MIN).clamp(1, SPLITS_MAX);
        let partial = if splits > 1 {
            self.counters = self.counters.max(across * down);
            self.temp(splits * across * down * tile.rows * tile.cols * 4)
        } else {
            Place::Null
        };
        let shared = tile.stages * (tile.rows + tile.cols) * 128;
        let args = vec![arguments(&product, splits, partial)];
        self.launch(tile.name, [across, down, splits], tile.threads, shared, args);
        false
    }

    /// A product on Hopper's matrix instructions, k split over a cluster of blocks.
    fn hopper_product(&mut self, product: &Product, widest: usize) -> bool {
        let Product { left, factors, gated, .. } = product;
        let depth = left.cin * left.taps;
        let sms = self.target.sms as usize;
        if let Some(tile) = few_rows(product) {
            let across = tiles(factors, *gated, few::COLS, few::COLS / 2);
            let splits = few::splits(across, depth, sms);
            return self.in_tiles(
                product,
                Tiles {
                    kernel: tile.kernel(*gated),
                    cols: few::COLS,
                    grid: [across, 1, splits],
                    threads: tile.threads,
                    shared: tile.shared(),
                },
            );
        }
        let tile = hopper::choose(left.rows, widest, depth, sms);
        let across = tiles(factors, *gated, tile.cols, tile.cols / 2);
        let down = left.rows.div_ceil(tile.rows);
        let splits = hopper::splits(tile, across * down, widest, depth, sms);
        self.in_tiles(
            product,
            Tiles {
                kernel: tile.name,
                cols: tile.cols,
                grid: [across, down, splits],
                threads: tile.threads,
                shared: tile.shared(),
            },
        )
    }

    /// Launches a product; says whether it took the norm that follows in.
    fn in_tiles(&mut self, product: &Product, chosen: Tiles) -> bool {
        let Tiles { kernel, cols, grid, threads, shared } = chosen;
        let [across, _, splits] = grid;
        let left = &product.left;
        // Lanes that share a row sum its squares by halving.
        let norm = product.norm.filter(|_| cols.is_power_of_two() && cols <= 128);
        let mut args = product_fields(product, splits, Place::Null);
        if let Some(Norm { weight, eps, out }) = norm {
            let squares = self.temp(left.rows * across * Storage::F32.bytes());
            args.extend([field(vector(weight)), field(Place::Value(out)), field(squares.clone())]);
            self.scaled.retain(|(id, _)| *id != out);
            self.scaled.push((out, RowScale { squares, tiles: across, eps }));
        } else {
            args.extend(std::iter::repeat_n(field(Place::Null), 3));
        }
        let args = vec![Arg::Struct(args)];
        self.launch(kernel, grid, threads, shared, args);
        self.in_clusters(splits);
        norm.is_some()
    }
}

/// The kernel a product on Hopper's matrix instructions runs on, and how.
struct Tiles {
    kernel: &'static str,
    /// Columns of a tile.
    cols: usize,
    grid: [usize; 3],
    threads: u32,
    shared: usize,
}

/// The tile of `rows_hopper.cu` for a product, where those kernels do what it asks for.
fn few_rows(product: &Product) -> Option<&'static few::Tile> {
    let Product { left, factors, gated, activation, .. } = product;
    let plain =
        left.taps == 1 && left.group >= left.rows && matches!(activation, None | Some(Activation::Silu));
    let plain = plain && (!gated || factors.iter().all(|factor| factor.bias == Place::Null));
    let widths: Vec<usize> = factors.iter().map(|factor| factor.cols).collect();
    few::choose(left.rows, &widths, *gated, left.cin).filter(|_| plain)
}

/// Whether products into this many columns run on Hopper's matrix instructions: results are read and written four at a
/// time, and of the activations only two are compiled in.
pub(super) fn suits_hopper(cols: &[usize], activation: Option<Activation>) -> bool {
    cols.iter().all(|cols| cols.is_multiple_of(8))
        && matches!(activation, None | Some(Activation::GeluErf | Activation::Silu))
}

/// All rows of a matrix, one tap.
pub(super) fn whole(at: Place, rows: usize, cols: usize) -> Left {
    Left {
        at,
        rows,
        group: rows.max(1),
        group_stride: 0,
        row_stride: cols,
        tap_stride: 0,
        cin: cols,
        taps: 1,
        scale: None,
    }
}

fn tiles(factors: &[Factor], gated: bool, cols: usize, gated_cols: usize) -> usize {
    match factors {
        [first, ..] if gated => first.cols.div_ceil(gated_cols),
        _ => factors.iter().map(|factor| factor.cols.div_ceil(cols)).sum(),
    }
}

/// The tile for a result of `rows` by `cols` in all. Few rows take narrow tiles, so that every SM has a block
/// without k being split into many parts.
const fn choose(rows: usize, cols: usize) -> usize {
    match (rows, cols) {
        (0..=16, _) => 0,
        (17..=32, _) => 1,
        (33..=64, 0..=4096) => 2,
        (33..=64, _) => 3,
        (65..=128, 0..=4096) => 4,
        (65..=256, _) => 5,
        (_, 0..=64) => 5,
        (_, 65..=96) => 6,
        _ => 7,
    }
}

fn arguments(product: &Product, splits: usize, partial: Place) -> Arg {
    let mut fields = product_fields(product, splits, partial);
    fields.extend(std::iter::repeat_n(field(Place::Null), 3));
    Arg::Struct(fields)
}

/// The fields of `struct Product` up to those of a norm that follows.
fn product_fields(product: &Product, splits: usize, partial: Place) -> Vec<Field> {
    let Product { left, factors, gated, activation, residual, out, .. } = product;
    let three = |pick: &dyn Fn(&Factor) -> Field, none: Field| -> Vec<Field> {
        (0..3).map(|i| factors.get(i).map_or_else(|| none.clone(), pick)).collect()
    };
    let long = |value: usize| Field::I64(i64::try_from(value).unwrap_or(i64::MAX));
    let null = || field(Place::Null);
    let mut fields = vec![
        field(left.at.clone()),
        long(left.group_stride),
        long(left.row_stride),
        long(left.tap_stride),
        int_field(left.rows),
        int_field(left.group),
        int_field(left.cin),
        int_field(left.taps),
    ];
    fields.extend(three(&|factor| factor.weight.clone(), null()));
    fields.extend(three(&|factor| field(factor.out.clone()), null()));
    fields.extend(three(&|factor| field(factor.bias.clone()), null()));
    fields.extend(three(&|factor| int_field(factor.cols), int_field(0)));
    let residual_bf16 = residual.as_ref().is_some_and(|(_, storage)| storage.is_bf16());
    fields.extend([
        int_field(factors.len()),
        int_field(usize::from(*gated)),
        int_field(activation_code(*activation)),
        int_field(usize::from(out.is_bf16())),
        int_field(usize::from(residual_bf16)),
        int_field(splits),
        field(residual.as_ref().map_or(Place::Null, |(place, _)| place.clone())),
        field(partial),
        field(Place::Counters),
    ]);
    let scale = left.scale.as_ref();
    fields.extend([
        scale.map_or_else(null, |scale| field(scale.squares.clone())),
        int_field(scale.map_or(0, |scale| scale.tiles)),
        Field::F32(scale.map_or(0.0, |scale| scale.eps)),
    ]);
    fields
}
