//! A program recorded as graphs, one for each number of rows it may be launched with.

use contract::{ShapeKey, Stage};
use device::program::{Program, Rows};
use device::{DeviceError, Dtype, HostTensor, Launch, PROMPTS_MAX, ValueId};

use crate::driver::{Graph, Pinned};
use crate::lower::{Lowered, Shape, row_count};

/// Inputs start at multiples of this many words.
const INPUT_ALIGN: usize = 64;
/// Token rows of the smallest prefill graph.
const TOKENS_MIN: u32 = 64;
/// Positions of the prompts beside the riders' own.
const RIDE_TOKENS: [usize; 3] = [64, 128, 256];

/// One recording of one shape.
pub(crate) struct Variant {
    pub(crate) shape: Shape,
    pub(crate) lowered: Lowered,
    /// Words into the input block, per input: laid out for this shape's rows, so that a launch copies no more.
    pub(crate) offsets: Vec<usize>,
    pub(crate) input_words: usize,
    /// `None` until recorded, and again once the arena has moved.
    pub(crate) graph: Option<Graph>,
}

/// A program, its graphs, and the memory its launches pass inputs and outputs through.
pub(crate) struct Executable {
    pub(crate) key: ShapeKey,
    pub(crate) program: Program,
    pub(crate) variants: Vec<Variant>,
    /// Words of the largest shape's input block.
    pub(crate) input_words: usize,
    pub(crate) output_words: usize,
    /// Device address of the input block.
    pub(crate) inputs_at: u64,
    /// Host memory of launches that are not in flight: inputs, outputs.
    pub(crate) idle: Vec<(Pinned, Pinned)>,
    /// What rows past the live ones hold, per input.
    padding: Vec<i32>,
}

impl Variant {
    /// Not recorded yet.
    pub(crate) fn new(program: &Program, shape: Shape, lowered: Lowered) -> Self {
        let mut input_words = 0;
        let mut offsets = Vec::with_capacity(program.inputs.len());
        for id in &program.inputs {
            let value = program.value(*id);
            offsets.push(input_words);
            input_words += (row_count(value.rows, shape) * value.cols).next_multiple_of(INPUT_ALIGN);
        }
        Self { shape, lowered, offsets, input_words, graph: None }
    }
}

/// Every shape an executable of `key` is recorded for, the smallest first.
pub(crate) fn shapes(key: ShapeKey, program: &Program) -> Vec<Shape> {
    let buckets = |least, most| -> Vec<usize> {
        device::row_buckets(least, most).into_iter().map(|rows| rows as usize).collect()
    };
    let counts_tokens = program.values.iter().any(|value| value.rows == Rows::Tokens);
    let rows = match key.stage {
        // A batch of prompts is bounded by its tokens: one row count is enough.
        Stage::Prefill | Stage::Encode => vec![key.bucket.min(PROMPTS_MAX) as usize],
        Stage::Codec | Stage::Decode => buckets(1, key.bucket),
    };
    let tokens = if counts_tokens { buckets(TOKENS_MIN, key.length) } else { vec![0] };
    let pairs = tokens.iter().flat_map(|&tokens| rows.iter().map(move |&batch| Shape { batch, tokens }));
    let mut shapes: Vec<Shape> = pairs.collect();
    if key.stage == Stage::Prefill && key.bucket > PROMPTS_MAX {
        // Rows past the prompts are running contexts whose step rides along, each a row and a token.
        let riding = buckets(PROMPTS_MAX, key.bucket).into_iter().skip(1);
        let with = |batch: usize| RIDE_TOKENS.map(|tokens| Shape { batch, tokens: batch + tokens });
        shapes.extend(riding.flat_map(with).filter(|shape| shape.tokens <= key.length as usize));
    }
    shapes
}

impl Executable {
    pub(crate) fn new(key: ShapeKey, program: Program, variants: Vec<Variant>, scratch_slot: i32) -> Self {
        let largest = variants.iter().fold(Shape { batch: 0, tokens: 0 }, |most, variant| Shape {
            batch: most.batch.max(variant.shape.batch),
            tokens: most.tokens.max(variant.shape.tokens),
        });
        let words = |id: &ValueId| {
            let value = program.value(*id);
            row_count(value.rows, largest) * value.cols
        };
        let input_words = variants.iter().map(|variant| variant.input_words).max().unwrap_or(0);
        let output_words = program.outputs.iter().map(words).sum();
        let padding = program.inputs.iter().map(|id| padding(&program, *id, scratch_slot)).collect();
        Self { key, program, variants, input_words, output_words, inputs_at: 0, idle: Vec::new(), padding }
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
        let Variant { shape, offsets, .. } = &self.variants[variant];
        for (index, (id, tensor)) in self.program.inputs.iter().zip(&launch.inputs).enumerate() {
            let value = self.program.value(*id);
            let room = row_count(value.rows, *shape) * value.cols;
            let target = &mut into[offsets[index]..offsets[index] + room];
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

#[cfg(test)]
mod tests {
    use contract::{Lane, LaunchId, ModelId, Partition};
    use device::ExecutableId;
    use device::program::ProgramBuilder;

    use super::*;

    /// A program of two inputs, three and 200 words a row.
    fn executable() -> Executable {
        let mut builder = ProgramBuilder::new("inputs");
        for (name, cols) in [("narrow", 3), ("wide", 200)] {
            builder.input(name, Dtype::I32, Rows::PerRow(1), cols);
        }
        let program = builder.finish();
        let key = ShapeKey {
            model: ModelId(0),
            stage: Stage::Decode,
            bucket: 64,
            length: 1,
            partition: Partition::Lm,
        };
        let lowered =
            || Lowered { steps: Vec::new(), values: Vec::new(), temps: Vec::new(), bytes: 0, counters: 0 };
        let variants =
            shapes(key, &program).into_iter().map(|shape| Variant::new(&program, shape, lowered()));
        let variants = variants.collect();
        Executable::new(key, program, variants, 64)
    }

    #[test]
    fn prompts_find_a_shape_whoever_rides_along_within_the_bounds() {
        let mut builder = ProgramBuilder::new("tokens");
        builder.input("rows", Dtype::I32, Rows::PerRow(1), 1);
        builder.input("tokens", Dtype::I32, Rows::Tokens, 1);
        let program = builder.finish();
        let (model, partition) = (ModelId(0), Partition::Lm);
        let key = ShapeKey { model, stage: Stage::Prefill, bucket: 300, length: 2_048, partition };
        let shapes = shapes(key, &program);
        let holds = |rows: usize, tokens: usize| {
            shapes.iter().find(|shape| shape.batch >= rows && shape.tokens >= tokens).copied()
        };
        for riders in 0..300 {
            for (prompts, tokens) in [(1, 1), (1, 64), (2, 128), (1, 256), (32, 256), (32, 32)] {
                let rows = riders + prompts;
                assert!(rows > 300 || holds(rows, riders + tokens).is_some(), "{riders} and {prompts}");
            }
        }
        let shape = |batch, tokens| Some(Shape { batch, tokens });
        assert_eq!(holds(32, 2_048), shape(32, 2_048), "prompts alone need no more rows than they are");
        assert_eq!((holds(33, 60), holds(140, 139 + 28)), (shape(40, 104), shape(160, 224)));
    }

    #[test]
    fn a_launch_copies_its_own_buckets_inputs_and_not_the_largest_ones() {
        let executable = executable();
        let words: Vec<usize> = executable.variants.iter().map(|variant| variant.input_words).collect();
        assert!(words.is_sorted() && words[0] == 64 + 256, "{words:?}");
        assert_eq!(executable.input_words, 64 * 3 + 64 * 200);
        assert_eq!(words.last(), Some(&executable.input_words));
    }

    #[test]
    fn inputs_lie_where_the_variants_launches_read_them_with_padding_behind() {
        let executable = executable();
        for rows in [1, 3, 5, 64] {
            let inputs = [3, 200].map(|cols| HostTensor::I32((0..rows * cols).map(|i| i + cols).collect()));
            let (launch, id) = (LaunchId(1), ExecutableId(0));
            let rows = rows as usize;
            let launch =
                Launch { launch, lane: Lane::Lm, executable: id, rows, tokens: 0, inputs: inputs.to_vec() };
            let variant = executable.admit(&launch).expect("fits");
            let Variant { shape, offsets, input_words, .. } = &executable.variants[variant];
            let mut block = vec![u32::MAX; executable.input_words];
            executable.fill(variant, &launch, &mut block);
            for ((cols, offset), tensor) in [3, 200].into_iter().zip(offsets).zip(&launch.inputs) {
                let HostTensor::I32(values) = tensor else { panic!("ids") };
                let laid = &block[*offset..offset + shape.batch * cols];
                assert!(laid.iter().zip(values).all(|(word, value)| word.cast_signed() == *value));
                assert!(laid[rows * cols..].iter().all(|word| *word == 0), "{rows} rows");
            }
            assert!(block[*input_words..].iter().all(|word| *word == u32::MAX), "nothing beyond is touched");
        }
    }
}
