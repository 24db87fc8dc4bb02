//! A program recorded as graphs, one for each number of rows it may be launched with.

use contract::{ShapeKey, Stage};
use device::program::{Program, Rows};
use device::{DeviceError, Dtype, HostTensor, Launch, ValueId};

use crate::driver::{Graph, Pinned};
use crate::lower::{Lowered, Shape, row_count};

/// Inputs start at multiples of this many words.
const INPUT_ALIGN: usize = 64;
/// Token rows of the smallest prefill graph.
const TOKENS_MIN: u32 = 64;

/// One recording of one shape.
pub(crate) struct Variant {
    pub(crate) shape: Shape,
    pub(crate) lowered: Lowered,
    /// `None` until recorded, and again once the arena has moved.
    pub(crate) graph: Option<Graph>,
}

/// A program, its graphs, and the memory its launches pass inputs and outputs through.
pub(crate) struct Executable {
    pub(crate) key: ShapeKey,
    pub(crate) program: Program,
    pub(crate) variants: Vec<Variant>,
    /// Words into the input block, per input, for the largest shape.
    pub(crate) offsets: Vec<usize>,
    pub(crate) input_words: usize,
    pub(crate) output_words: usize,
    /// Device address of the input block.
    pub(crate) inputs_at: u64,
    /// Host memory of launches that are not in flight: inputs, outputs.
    pub(crate) idle: Vec<(Pinned, Pinned)>,
    /// What rows past the live ones hold, per input.
    padding: Vec<i32>,
}

/// Every shape an executable of `key` is recorded for, the smallest first.
pub(crate) fn shapes(key: ShapeKey, program: &Program) -> Vec<Shape> {
    let buckets = |least, most| -> Vec<usize> {
        device::row_buckets(least, most).into_iter().map(|rows| rows as usize).collect()
    };
    let counts_tokens = program.values.iter().any(|value| value.rows == Rows::Tokens);
    let rows = match key.stage {
        // A batch of prompts is bounded by its tokens: one row count is enough.
        Stage::Prefill | Stage::Encode => vec![key.bucket as usize],
        Stage::Codec | Stage::Decode => buckets(1, key.bucket),
    };
    let tokens = if counts_tokens { buckets(TOKENS_MIN, key.length) } else { vec![0] };
    let pairs = tokens.iter().flat_map(|&tokens| rows.iter().map(move |&batch| Shape { batch, tokens }));
    pairs.collect()
}

impl Executable {
    pub(crate) fn new(key: ShapeKey, program: Program, variants: Vec<Variant>, scratch_slot: i32) -> Self {
        let largest = variants.last().map_or(Shape { batch: 0, tokens: 0 }, |variant| variant.shape);
        let words = |id: &ValueId| {
            let value = program.value(*id);
            row_count(value.rows, largest) * value.cols
        };
        let mut offsets = Vec::new();
        let mut input_words = 0;
        for id in &program.inputs {
            offsets.push(input_words);
            input_words += words(id).next_multiple_of(INPUT_ALIGN);
        }
        let output_words = program.outputs.iter().map(words).sum();
        let padding = program.inputs.iter().map(|id| padding(&program, *id, scratch_slot)).collect();
        Self {
            key,
            program,
            variants,
            offsets,
            input_words,
            output_words,
            inputs_at: 0,
            idle: Vec::new(),
            padding,
        }
    }

    /// Which variant serves a launch.
    ///
    /// # Errors
    /// [`DeviceError::BadInput`] for rows, tokens or inputs that do not fit.
    pub(crate) fn admit(&self, launch: &Launch) -> Result<usize, DeviceError> {
        let bad = |input: &str, given, expected| {
            Err(DeviceError::BadInput { input: input.to_owned(), given, expected })
        };
        let fits =
            |variant: &Variant| variant.shape.batch >= launch.rows && variant.shape.tokens >= launch.tokens;
        let Some(index) = self.variants.iter().position(fits).filter(|_| launch.rows > 0) else {
            return bad("batch rows", launch.rows, self.key.bucket as usize);
        };
        if launch.inputs.len() != self.program.inputs.len() {
            return bad("inputs of the program", launch.inputs.len(), self.program.inputs.len());
        }
        let live = Shape { batch: launch.rows, tokens: launch.tokens };
        for (id, tensor) in self.program.inputs.iter().zip(&launch.inputs) {
            let value = self.program.value(*id);
            let (dtype, given) = match tensor {
                HostTensor::F32(data) => (Dtype::F32, data.len()),
                HostTensor::I32(data) => (Dtype::I32, data.len()),
            };
            let expected = row_count(value.rows, live) * value.cols;
            if dtype != value.dtype || given != expected {
                return bad(&format!("{} ({:?})", value.name, value.dtype), given, expected);
            }
        }
        Ok(index)
    }

    /// Lays the launch's inputs out for `variant`, rows past the live ones padded.
    pub(crate) fn fill(&self, variant: usize, launch: &Launch, into: &mut [u32]) {
        let shape = self.variants[variant].shape;
        for (index, (id, tensor)) in self.program.inputs.iter().zip(&launch.inputs).enumerate() {
            let value = self.program.value(*id);
            let room = row_count(value.rows, shape) * value.cols;
            let target = &mut into[self.offsets[index]..self.offsets[index] + room];
            let live = match tensor {
                HostTensor::F32(data) => {
                    target.iter_mut().zip(data).for_each(|(word, value)| *word = value.to_bits());
                    data.len()
                }
                HostTensor::I32(data) => {
                    target.iter_mut().zip(data).for_each(|(word, &value)| *word = value.cast_unsigned());
                    data.len()
                }
            };
            target[live..].fill(self.padding[index].cast_unsigned());
        }
    }

    /// Words of each output for the live rows, and words between outputs for `variant`.
    pub(crate) fn outputs(&self, variant: usize, rows: usize, tokens: usize) -> Vec<(Dtype, usize, usize)> {
        let shape = self.variants[variant].shape;
        let live = Shape { batch: rows, tokens };
        let each = self.program.outputs.iter().map(|&id| {
            let value = self.program.value(id);
            (value.dtype, row_count(value.rows, live) * value.cols, row_count(value.rows, shape) * value.cols)
        });
        each.collect()
    }
}

/// Rows past the live ones do nothing: they name the scratch slot, no id, no position, no step.
fn padding(program: &Program, id: ValueId, scratch_slot: i32) -> i32 {
    for op in &program.ops {
        for operand in op.operands().iter().filter(|operand| operand.value == id) {
            match operand.field {
                "slots" => return scratch_slot,
                "positions" | "ids" | "codes" | "rows" | "source"
                    if program.value(id).dtype == Dtype::I32 =>
                {
                    return -1;
                }
                _ => {}
            }
        }
    }
    0
}
