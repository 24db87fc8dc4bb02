//! From a program to kernel launches, for one number of rows: pure, so that it can be read and tested without
//! a device.
//!
//! Several ops may become one launch (projections that share an input, a branch added to its stream), and one
//! op several. Values and working memory get their place by the launches that touch them.

mod attention;
mod conv;
mod dense;
mod draw;
mod encode;
mod few;
mod hopper;
mod library;
mod norm;
mod product;
#[cfg(test)]
mod published;
mod ready;
mod rows;
mod step;
mod storage;
#[cfg(test)]
mod tests;
mod window;

use std::borrow::Cow;

use device::layout::{Block, pack};
use device::program::{Op, Program, Rows};
use device::{Catalog, ValueId};

pub(crate) use ready::Ready;
pub(crate) use step::{Arg, Derived, Field, Matmul, Place, Step};
pub use storage::Precision;
pub(crate) use storage::Storage;

/// Arena addresses are multiples of this, in bytes.
const ALIGN: usize = 256;
/// Threads of a block of an elementwise kernel.
const THREADS: u32 = 256;
/// Blocks past which elementwise kernels loop.
const BLOCKS_MAX: u32 = 8192;

/// Rows a lowering is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Shape {
    pub(crate) batch: usize,
    pub(crate) tokens: usize,
}

/// What a lowering may know of the processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) precision: Precision,
    /// SMs of the partition.
    pub(crate) sms: u32,
    /// Bytes of shared memory a block may ask for.
    pub(crate) shared_max: usize,
    /// Whether the kernels for Hopper's matrix instructions were compiled.
    pub(crate) hopper: bool,
    /// Rows from which the library multiplies, where it is there and products are in bf16.
    pub(crate) library_from: Option<usize>,
}

/// Launches in order, and where what they touch lies in the arena.
#[derive(Debug)]
pub(crate) struct Lowered {
    pub(crate) steps: Vec<Step>,
    /// Bytes into the arena; `None` for launch inputs and values no launch touches.
    pub(crate) values: Vec<Option<usize>>,
    pub(crate) temps: Vec<usize>,
    /// Bytes of arena.
    pub(crate) bytes: usize,
    /// Zeroed words the launches share.
    pub(crate) counters: usize,
}

/// `program` has been checked against `catalog`.
pub(crate) fn lower(program: &Program, catalog: &Catalog, shape: Shape, target: Target) -> Lowered {
    let mut lowering = Lowering {
        program,
        catalog,
        shape,
        target,
        storages: storage::storages(program, target.precision),
        steps: Vec::new(),
        temps: Vec::new(),
        counters: 0,
        caches: Vec::new(),
        scaled: Vec::new(),
        parts: Vec::new(),
    };
    let mut index = 0;
    while index < program.ops.len() {
        index += lowering.op(index);
    }
    lowering.place()
}

/// Fills working memory with NaN in both types.
pub(crate) fn poison_step(at: u64, words: usize) -> Step {
    let address = Arg::One(Field::I64(at.cast_signed()));
    let blocks = words.div_ceil(THREADS as usize).clamp(1, BLOCKS_MAX as usize);
    let grid = [u32::try_from(blocks).unwrap_or(1), 1, 1];
    Step {
        library: None,
        kernel: "poison".into(),
        grid,
        block: THREADS,
        shared: 0,
        cluster: 1,
        args: vec![address, long(words)],
    }
}

pub(crate) fn row_count(rows: Rows, shape: Shape) -> usize {
    rows.count(shape.batch, shape.tokens)
}

pub(crate) struct Lowering<'a> {
    program: &'a Program,
    catalog: &'a Catalog,
    shape: Shape,
    target: Target,
    storages: Vec<Storage>,
    steps: Vec<Step>,
    /// Bytes of each piece of working memory.
    temps: Vec<usize>,
    counters: usize,
    /// Keys and values of a frame, by the values of the program that stand for them.
    caches: Vec<((ValueId, ValueId), Place)>,
    /// Normed rows that products left to be scaled by their readers.
    scaled: Vec<(ValueId, norm::RowScale)>,
    /// Values that are columns of a wider result.
    parts: Vec<(ValueId, library::Part)>,
}

impl<'a> Lowering<'a> {
    /// Lowers the op at `index` with those it is fused with; returns how many ops that was.
    fn op(&mut self, index: usize) -> usize {
        let op = &self.program.ops[index];
        self.forget_scales(op);
        match op {
            Op::Linear { .. } | Op::GatedMlp { .. } => return self.dense(index),
            Op::PagedAttention { .. }
            | Op::DepthAttention { .. }
            | Op::WindowAttention { .. }
            | Op::LocalAttention { .. } => self.attention(op),
            Op::CausalConv { .. }
            | Op::CausalDepthwiseConv { .. }
            | Op::CausalConvTranspose { .. }
            | Op::Conv { .. }
            | Op::DepthwiseConv { .. } => return self.convolution(index),
            Op::Statistics { .. }
            | Op::SoftmaxOverTime { .. }
            | Op::LogMel { .. }
            | Op::QuantizeResidual { .. } => self.encoder(op),
            Op::Sample { .. } => return self.draw(index),
            _ => self.rows(op),
        }
        1
    }

    fn rows_of(&self, id: ValueId) -> usize {
        row_count(self.program.value(id).rows, self.shape)
    }

    /// Rows of one batch row.
    fn steps_of(&self, id: ValueId) -> usize {
        match self.program.value(id).rows {
            Rows::PerRow(n) => n,
            Rows::Tokens | Rows::Fixed(_) => self.rows_of(id),
        }
    }

    fn cols(&self, id: ValueId) -> usize {
        self.program.value(id).cols
    }

    fn count(&self, id: ValueId) -> usize {
        self.rows_of(id) * self.cols(id)
    }

    fn storage(&self, id: ValueId) -> Storage {
        self.storages[id.0 as usize]
    }

    /// The type products multiply in.
    const fn factor(&self) -> Storage {
        match self.target.precision {
            Precision::F32 => Storage::F32,
            Precision::Bf16 => Storage::Bf16,
        }
    }

    fn temp(&mut self, bytes: usize) -> Place {
        self.temps.push(bytes);
        Place::Temp(self.temps.len() - 1)
    }

    fn launch(
        &mut self,
        kernel: impl Into<Cow<'static, str>>,
        grid: [usize; 3],
        block: u32,
        shared: usize,
        args: Vec<Arg>,
    ) {
        let grid = grid.map(|n| u32::try_from(n).unwrap_or(u32::MAX));
        self.steps.push(Step {
            library: None,
            kernel: kernel.into(),
            grid,
            block,
            shared: u32::try_from(shared).unwrap_or(u32::MAX),
            cluster: 1,
            args,
        });
    }

    /// The launch just laid out runs in clusters of `blocks` along z.
    fn in_clusters(&mut self, blocks: usize) {
        if let Some(step) = self.steps.last_mut() {
            step.cluster = u32::try_from(blocks).unwrap_or(1);
        }
    }

    /// An elementwise kernel over `n` values.
    fn each(&mut self, kernel: impl Into<Cow<'static, str>>, n: usize, args: Vec<Arg>) {
        let blocks = n.div_ceil(THREADS as usize).min(BLOCKS_MAX as usize).max(1);
        self.launch(kernel, [blocks, 1, 1], THREADS, 0, args);
    }

    /// Lives run from the first to the last launch that names a value.
    fn place(self) -> Lowered {
        let Self { program, shape, storages, steps, temps, counters, .. } = self;
        let mut lives: Vec<Option<(usize, usize)>> = vec![None; program.values.len() + temps.len()];
        for (index, step) in steps.iter().enumerate() {
            for place in step.places() {
                let slot = match place {
                    Place::Value(id) => id.0 as usize,
                    Place::Temp(temp) => program.values.len() + temp,
                    _ => continue,
                };
                lives[slot].get_or_insert((index, index)).1 = index;
            }
        }
        for &id in &program.outputs {
            if let Some(life) = &mut lives[id.0 as usize] {
                life.1 = steps.len();
            }
        }
        let mut blocks = Vec::new();
        let mut owners = Vec::new();
        for (slot, life) in lives.iter().enumerate() {
            let Some((from, to)) = *life else { continue };
            let bytes = match program.values.get(slot) {
                Some(_) if program.inputs.contains(&ValueId(slot as u32)) => continue,
                Some(value) => row_count(value.rows, shape) * value.cols * storages[slot].bytes(),
                None => temps[slot - program.values.len()],
            };
            blocks.push(Block::new(from, to, bytes));
            owners.push(slot);
        }
        let bytes = pack(&mut blocks, ALIGN);
        let mut offsets = vec![None; lives.len()];
        for (&slot, block) in owners.iter().zip(&blocks) {
            offsets[slot] = Some(block.offset);
        }
        let temps =
            offsets.split_off(program.values.len()).into_iter().map(Option::unwrap_or_default).collect();
        Lowered { steps, values: offsets, temps, bytes, counters }
    }
}

/// An argument that is a value's address.
fn value(id: ValueId) -> Arg {
    at(Place::Value(id))
}

fn at(place: Place) -> Arg {
    Arg::One(Field::At(place, 0))
}

fn field(place: Place) -> Field {
    Field::At(place, 0)
}

fn maybe(id: Option<ValueId>) -> Field {
    Field::At(id.map_or(Place::Null, Place::Value), 0)
}

fn int(value: usize) -> Arg {
    Arg::One(int_field(value))
}

fn int_field(value: usize) -> Field {
    Field::I32(i32::try_from(value).unwrap_or(i32::MAX))
}

fn long(value: usize) -> Arg {
    Arg::One(Field::I64(i64::try_from(value).unwrap_or(i64::MAX)))
}

fn float(value: f32) -> Arg {
    Arg::One(Field::F32(value))
}

fn vector(id: device::WeightId) -> Place {
    Place::Weight(Derived::Plain { id, bf16: false })
}

fn maybe_vector(id: Option<device::WeightId>) -> Place {
    id.map_or(Place::Null, vector)
}
