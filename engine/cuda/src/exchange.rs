//! The host's side of a launch: inputs laid out in one block, outputs read out of another. Plain memory, no device:
//! whoever runs the launch copies the blocks.

use contract::{ShapeKey, Stage};
use device::program::{Program, Rows};
use device::{DeviceError, Dtype, HostTensor, Launch, PROMPTS_MAX, Piece, ValueId};

use crate::lower::{Shape, row_count};

/// Inputs start at multiples of this many words.
const INPUT_ALIGN: usize = 64;
/// Token rows of the smallest prefill graph.
const TOKENS_MIN: u32 = 64;
/// Positions of the prompts beside the riders' own.
const RIDE_TOKENS: [usize; 6] = [32, 64, 96, 128, 192, 256];

/// The layout of one shape's blocks.
pub(crate) struct Form {
    pub(crate) shape: Shape,
    /// Words into the input block, per input: laid out for this shape's rows, so that a launch copies no more.
    pub(crate) offsets: Vec<usize>,
    pub(crate) input_words: usize,
}

/// A program's inputs and outputs, in every shape it may be launched in.
pub(crate) struct Exchange {
    pub(crate) key: ShapeKey,
    pub(crate) program: Program,
    /// The smallest first.
    pub(crate) forms: Vec<Form>,
    /// Words of the largest shape's blocks.
    pub(crate) input_words: usize,
    pub(crate) output_words: usize,
    /// What rows past the live ones hold, per input; `None` where nobody looks at them.
    padding: Vec<Option<i32>>,
}

impl Form {
    fn new(program: &Program, shape: Shape) -> Self {
        let mut input_words = 0;
        let mut offsets = vec![0; program.inputs.len()];
        // What launches bring only a part of lies at the end, so that they copy no more than they bring.
        let whole = |input: &usize| !program.is_lookup(program.inputs[*input]);
        let (first, last): (Vec<usize>, Vec<usize>) = (0..offsets.len()).partition(whole);
        for input in first.into_iter().chain(last) {
            let value = program.value(program.inputs[input]);
            offsets[input] = input_words;
            input_words += (row_count(value.rows, shape) * value.cols).next_multiple_of(INPUT_ALIGN);
        }
        Self { shape, offsets, input_words }
    }
}

/// Every shape an executable of `key` is recorded for, the smallest first.
fn shapes(key: ShapeKey, program: &Program) -> Vec<Shape> {
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

impl Exchange {
    pub(crate) fn new(key: ShapeKey, program: Program, scratch_slot: i32) -> Self {
        let shapes = shapes(key, &program);
        let largest = shapes.iter().fold(Shape { batch: 0, tokens: 0 }, |most, shape| Shape {
            batch: most.batch.max(shape.batch),
            tokens: most.tokens.max(shape.tokens),
        });
        let words = |id: &ValueId| {
            let value = program.value(*id);
            row_count(value.rows, largest) * value.cols
        };
        let forms: Vec<Form> = shapes.into_iter().map(|shape| Form::new(&program, shape)).collect();
        let input_words = forms.iter().map(|form| form.input_words).max().unwrap_or(0);
        let output_words = program.outputs.iter().map(words).sum();
        let padding = program
            .inputs
            .iter()
            .map(|&id| (!program.is_lookup(id)).then(|| padding(&program, id, scratch_slot)));
        let padding = padding.collect();
        Self { key, program, forms, input_words, output_words, padding }
    }

    /// The smallest form that holds so much.
    pub(crate) fn form_for(&self, rows: usize, tokens: usize) -> Option<usize> {
        self.forms.iter().position(|form| form.shape.batch >= rows && form.shape.tokens >= tokens)
    }

    /// Which form serves a launch.
    ///
    /// # Errors
    /// [`DeviceError::BadInput`] for rows, tokens or inputs that do not fit.
    pub(crate) fn admit(&self, launch: &Launch) -> Result<usize, DeviceError> {
        let bad = |input: &str, given, expected| {
            Err(DeviceError::BadInput { input: input.to_owned(), given, expected })
        };
        let Some(index) = self.form_for(launch.rows, launch.tokens).filter(|_| launch.rows > 0) else {
            return bad("batch rows", launch.rows, self.key.bucket as usize);
        };
        if launch.inputs.len() != self.program.inputs.len() {
            return bad("inputs of the program", launch.inputs.len(), self.program.inputs.len());
        }
        if !launch.wanted.is_empty() {
            let first = self.program.outputs.first().map(|&id| self.program.value(id));
            let one = first.filter(|value| self.program.outputs.len() == 1 && value.dtype == Dtype::F32);
            let each = Shape { batch: 1, tokens: 0 };
            let width = one.map_or(0, |value| row_count(value.rows, each) * value.cols);
            Piece::check(&launch.wanted, launch.rows, width)?;
        }
        let live = Shape { batch: launch.rows, tokens: launch.tokens };
        for ((id, tensor), padding) in self.program.inputs.iter().zip(&launch.inputs).zip(&self.padding) {
            let value = self.program.value(*id);
            let (dtype, given) = match tensor {
                HostTensor::F32(data) => (Dtype::F32, data.len()),
                HostTensor::I32(data) => (Dtype::I32, data.len()),
            };
            let expected = row_count(value.rows, live) * value.cols;
            let fits = match padding {
                Some(_) => given == expected,
                None => given <= expected && given.is_multiple_of(value.cols),
            };
            if dtype != value.dtype || !fits {
                return bad(&format!("{} ({:?})", value.name, value.dtype), given, expected);
            }
        }
        Ok(index)
    }

    /// Lays the launch's inputs out in `form`, rows past the live ones padded. Words to copy, from the block's start.
    pub(crate) fn fill(&self, form: usize, launch: &Launch, into: &mut [u32]) -> usize {
        let mut words = 0;
        let Form { shape, offsets, .. } = &self.forms[form];
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
            match self.padding[index] {
                Some(padding) => {
                    target[live..].fill(padding.cast_unsigned());
                    words = words.max(offsets[index] + room);
                }
                None if live > 0 => words = words.max(offsets[index] + live),
                None => {}
            }
        }
        words
    }

    /// The outputs of a launch of so many rows, out of its block.
    pub(crate) fn read(&self, form: usize, rows: usize, tokens: usize, block: &[u32]) -> Vec<HostTensor> {
        let mut at = 0;
        let each = self.outputs(form, rows, tokens).into_iter().map(|(dtype, live, room)| {
            let words = &block[at..at + live];
            at += room;
            match dtype {
                Dtype::F32 => HostTensor::F32(words.iter().map(|&word| f32::from_bits(word)).collect()),
                Dtype::I32 => HostTensor::I32(words.iter().map(|&word| word.cast_signed()).collect()),
            }
        });
        each.collect()
    }

    /// Words of a launch's first output.
    pub(crate) fn first_words(&self, rows: usize, tokens: usize) -> usize {
        let live = Shape { batch: rows, tokens };
        self.program.outputs.first().map_or(0, |&id| {
            let value = self.program.value(id);
            row_count(value.rows, live) * value.cols
        })
    }

    /// Words of each output for the live rows, and words between outputs in `form`.
    pub(crate) fn outputs(&self, form: usize, rows: usize, tokens: usize) -> Vec<(Dtype, usize, usize)> {
        let shape = self.forms[form].shape;
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
    use device::program::ProgramBuilder;
    use device::{ExecutableId, Op};

    use super::*;

    /// A program of two inputs, three and 200 words a row.
    fn exchange() -> Exchange {
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
        Exchange::new(key, program, 64)
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
        assert_eq!((holds(33, 60), holds(140, 139 + 28)), (shape(40, 72), shape(160, 192)));
    }

    #[test]
    fn a_launch_copies_its_own_buckets_inputs_and_not_the_largest_ones() {
        let exchange = exchange();
        let words: Vec<usize> = exchange.forms.iter().map(|form| form.input_words).collect();
        assert!(words.is_sorted() && words[0] == 64 + 256, "{words:?}");
        assert_eq!(exchange.input_words, 64 * 3 + 64 * 200);
        assert_eq!(words.last(), Some(&exchange.input_words));
    }

    #[test]
    fn inputs_lie_where_the_launches_of_that_form_read_them_with_padding_behind() {
        let exchange = exchange();
        for rows in [1, 3, 5, 64] {
            let inputs = [3, 200].map(|cols| HostTensor::I32((0..rows * cols).map(|i| i + cols).collect()));
            let (launch, id) = (LaunchId(1), ExecutableId(0));
            let rows = rows as usize;
            let launch = Launch {
                launch,
                lane: Lane::Lm,
                executable: id,
                rows,
                tokens: 0,
                inputs: inputs.to_vec(),
                wanted: Vec::new(),
            };
            let form = exchange.admit(&launch).expect("fits");
            let Form { shape, offsets, input_words } = &exchange.forms[form];
            let mut block = vec![u32::MAX; exchange.input_words];
            exchange.fill(form, &launch, &mut block);
            for ((cols, offset), tensor) in [3, 200].into_iter().zip(offsets).zip(&launch.inputs) {
                let HostTensor::I32(values) = tensor else { panic!("ids") };
                let laid = &block[*offset..offset + shape.batch * cols];
                assert!(laid.iter().zip(values).all(|(word, value)| word.cast_signed() == *value));
                assert!(laid[rows * cols..].iter().all(|word| *word == 0), "{rows} rows");
            }
            assert!(block[*input_words..].iter().all(|word| *word == u32::MAX), "nothing beyond is touched");
        }
    }

    #[test]
    fn of_a_table_only_the_rows_that_a_launch_brings_are_copied() {
        let mut builder = ProgramBuilder::new("table");
        let source = builder.input("table", Dtype::F32, Rows::Fixed(32), 100);
        let rows = builder.input("rows", Dtype::I32, Rows::PerRow(1), 1);
        let out = builder.value("out", Dtype::F32, Rows::PerRow(1), 100);
        builder.push(Op::GatherRows { source, rows, out, accumulate: false });
        let (model, partition) = (ModelId(0), Partition::Lm);
        let key = ShapeKey { model, stage: Stage::Decode, bucket: 4, length: 1, partition };
        let exchange = Exchange::new(key, builder.finish(), 64);
        let copied = |lines: usize| {
            let inputs = vec![HostTensor::F32(vec![1.0; lines * 100]), HostTensor::I32(vec![0; 4])];
            let (launch, lane, executable, wanted) = (LaunchId(1), Lane::Lm, ExecutableId(0), Vec::new());
            let launch = Launch { launch, lane, executable, rows: 4, tokens: 0, inputs, wanted };
            let form = exchange.admit(&launch)?;
            let mut block = vec![u32::MAX; exchange.input_words];
            let copied = exchange.fill(form, &launch, &mut block);
            assert!(block[copied..].iter().all(|word| *word == u32::MAX), "what is left alone is not copied");
            Ok::<_, DeviceError>(copied)
        };
        assert_eq!([copied(0), copied(2), copied(32)], [Ok(4), Ok(64 + 200), Ok(64 + 3_200)]);
        assert!(copied(33).is_err());
    }
}
