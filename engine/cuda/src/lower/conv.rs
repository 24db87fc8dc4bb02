//! Convolutions: rows with their history or padding are laid out, then the product strides over them.

use device::program::{ConvShape, Op, Padding, Snake};
use device::{StateId, ValueId, WeightId};

use super::product::{Factor, Left, Product};
use super::window::Windowed;
use super::{Arg, Derived, Lowering, Place, Storage, at, field, int, int_field, long, maybe_vector, value};

pub(super) const THREADS: usize = 256;
/// What a causal convolution is told of its contexts.
#[derive(Clone, Copy)]
pub(super) struct Stream {
    pub(super) state: Option<StateId>,
    pub(super) slots: ValueId,
    pub(super) start: ValueId,
    pub(super) valid: ValueId,
    pub(super) frames: usize,
}

impl Lowering<'_> {
    /// Lowers the convolution at `index`; returns how many ops it took in.
    pub(super) fn convolution(&mut self, index: usize) -> usize {
        match self.program.ops[index] {
            Op::CausalConv {
                input,
                weight,
                bias,
                ref shape,
                ref snake,
                residual,
                state,
                slots,
                start,
                valid,
                frames,
                out,
            } => {
                let history = (shape.kernel - 1) * shape.dilation;
                let stream = Stream { state, slots, start, valid, frames };
                let work = self.factor();
                let (steps, cin) = (self.steps_of(input), self.cols(input));
                if let Some(snake) = snake
                    && self.storage(input).is_bf16()
                    && let Some(window) = self.window_for(cin, self.cols(out), shape, residual)
                {
                    let first = Windowed { input, weight, bias, shape, snake, stream };
                    let second = residual.is_none().then(|| self.second_half(index, &first, out)).flatten();
                    let taken = 1 + usize::from(second.is_some());
                    self.windowed(&window, &first, second.as_ref(), residual, out);
                    return taken;
                }
                let carried = self.carry(input, history, snake.as_ref(), stream, work);
                let left = Left {
                    at: carried,
                    rows: self.rows_of(input),
                    group: steps,
                    group_stride: (history + steps) * cin,
                    row_stride: cin,
                    tap_stride: shape.dilation * cin,
                    cin,
                    taps: shape.kernel,
                    scale: None,
                };
                let factor = Factor {
                    weight: field(Place::Weight(Derived::Conv { id: weight, bf16: work.is_bf16() })),
                    bias: maybe_vector(bias),
                    out: Place::Value(out),
                    cols: self.cols(out),
                };
                let residual = residual.map(|id| (Place::Value(id), self.storage(id)));
                self.convolve(left, factor, residual, self.storage(out), work);
            }
            Op::CausalConvTranspose {
                input,
                weight,
                bias,
                kernel,
                stride,
                ref snake,
                state,
                slots,
                start,
                valid,
                frames,
                out,
            } => {
                let taps = kernel / stride;
                let stream = Stream { state, slots, start, valid, frames };
                let work = self.factor();
                let carried = self.carry(input, taps - 1, snake.as_ref(), stream, work);
                let (steps, cin) = (self.steps_of(input), self.cols(input));
                let left = Left {
                    at: carried,
                    rows: self.rows_of(input),
                    group: steps,
                    group_stride: (taps - 1 + steps) * cin,
                    row_stride: cin,
                    tap_stride: cin,
                    cin,
                    taps,
                    scale: None,
                };
                let factor = Factor {
                    weight: field(Place::Weight(Derived::Transposed {
                        id: weight,
                        stride,
                        bf16: work.is_bf16(),
                    })),
                    bias: bias
                        .map_or(Place::Null, |id| Place::Weight(Derived::Repeated { id, times: stride })),
                    out: Place::Value(out),
                    cols: stride * self.cols(out),
                };
                self.convolve(left, factor, None, self.storage(out), work);
            }
            Op::CausalDepthwiseConv {
                input,
                weight,
                bias,
                kernel,
                state,
                slots,
                start,
                valid,
                frames,
                out,
            } => {
                let stream = Stream { state: Some(state), slots, start, valid, frames };
                let carried = self.carry(input, kernel - 1, None, stream, Storage::F32);
                let steps = self.steps_of(input);
                let shape = ConvShape { kernel, stride: 1, dilation: 1 };
                self.depthwise(carried, kernel - 1 + steps, steps, &shape, weight, bias, out);
            }
            Op::Conv { input, weight, bias, ref shape, padding, activation, out } => {
                let padded = self.pad(input, padding);
                let (cin, work) = (self.cols(input), Storage::F32);
                let rows = self.rows_of(out);
                let left = Left {
                    at: padded,
                    rows,
                    group: rows,
                    group_stride: 0,
                    row_stride: shape.stride * cin,
                    tap_stride: shape.dilation * cin,
                    cin,
                    taps: shape.kernel,
                    scale: None,
                };
                let factor = Factor {
                    weight: field(Place::Weight(Derived::Conv { id: weight, bf16: false })),
                    bias: maybe_vector(bias),
                    out: Place::Value(out),
                    cols: self.cols(out),
                };
                self.product(Product {
                    left,
                    factors: vec![factor],
                    gated: false,
                    activation,
                    residual: None,
                    out: Storage::F32,
                    factor: work,
                    norm: None,
                });
            }
            Op::DepthwiseConv { input, weight, bias, ref shape, padding, out } => {
                let padded = self.pad(input, padding);
                let rows = self.rows_of(out);
                self.depthwise(padded, 0, rows, shape, weight, bias, out);
            }
            _ => unreachable!("only convolutions are lowered here"),
        }
        1
    }

    fn convolve(
        &mut self,
        left: Left,
        factor: Factor,
        residual: Option<(Place, Storage)>,
        out: Storage,
        work: Storage,
    ) {
        self.product(Product {
            left,
            factors: vec![factor],
            gated: false,
            activation: None,
            residual,
            out,
            factor: work,
            norm: None,
        });
    }

    #[expect(clippy::too_many_arguments, reason = "what one launch is made of")]
    fn depthwise(
        &mut self,
        rows: Place,
        span: usize,
        steps: usize,
        shape: &ConvShape,
        weight: WeightId,
        bias: Option<WeightId>,
        out: ValueId,
    ) {
        let n = self.count(out);
        let args = vec![
            at(rows),
            int(span),
            int(steps),
            int(shape.stride),
            int(shape.dilation),
            int(shape.kernel),
            int(self.cols(out)),
            at(Place::Weight(Derived::Depthwise { id: weight })),
            at(maybe_vector(bias)),
            value(out),
            long(n),
        ];
        self.each(format!("depthwise_{}", self.storage(out).letter()), n, args);
    }

    /// `[batch, history + steps, cols]` in `work`'s type, after `snake`; moves the history on.
    fn carry(
        &mut self,
        input: ValueId,
        history: usize,
        snake: Option<&Snake>,
        stream: Stream,
        work: Storage,
    ) -> Place {
        if history == 0 && snake.is_none() && self.storage(input) == work {
            return Place::Value(input);
        }
        let (batch, steps, cols) = (self.shape.batch, self.steps_of(input), self.cols(input));
        let carried = self.temp(batch * (history + steps) * cols * work.bytes());
        self.lay_out(input, carried.clone(), history, snake, stream, work);
        carried
    }

    /// Lays rows out behind their history in `carried`, unless that is nowhere, and moves the history on.
    pub(super) fn lay_out(
        &mut self,
        input: ValueId,
        carried: Place,
        history: usize,
        snake: Option<&Snake>,
        stream: Stream,
        work: Storage,
    ) {
        let (batch, steps, cols) = (self.shape.batch, self.steps_of(input), self.cols(input));
        let history_blocks = (history.min(1) * batch * cols).div_ceil(THREADS);
        let input_blocks =
            if carried == Place::Null { 0 } else { (batch * steps * cols).div_ceil(4 * THREADS) };
        let (alpha, inverse) = match snake {
            None => (Place::Null, Place::Null),
            Some(&Snake { alpha, beta }) => (
                Place::Weight(Derived::SnakeAlpha { alpha, beta }),
                Place::Weight(Derived::SnakeInverse { alpha, beta }),
            ),
        };
        let arg = Arg::Struct(vec![
            field(Place::Value(input)),
            field(carried),
            field(alpha),
            field(inverse),
            field(stream.state.map_or(Place::Null, Place::State)),
            field(Place::Value(stream.slots)),
            field(Place::Value(stream.start)),
            field(Place::Value(stream.valid)),
            int_field(history),
            int_field(steps),
            int_field(cols),
            int_field(steps / stream.frames),
            int_field(history_blocks),
            int_field(batch),
        ]);
        let eight = self.storage(input).is_bf16() && work.is_bf16() && cols.is_multiple_of(8);
        // A thread takes eight channels of four rows.
        let input_blocks = if eight { input_blocks.div_ceil(8) } else { input_blocks };
        let kernel = if eight {
            "carry_eight".to_owned()
        } else {
            format!("carry_{}{}", self.storage(input).letter(), work.letter())
        };
        self.launch(kernel, [history_blocks + input_blocks, 1, 1], THREADS as u32, 0, vec![arg]);
    }

    fn pad(&mut self, input: ValueId, padding: Padding) -> Place {
        let (mode, left, right) = match padding {
            Padding::Zeros { left, right } => (0, left, right),
            Padding::Reflect { left, right } => (1, left, right),
            Padding::Replicate { left, right } => (2, left, right),
        };
        if left + right == 0 {
            return Place::Value(input);
        }
        let (rows, cols) = (self.rows_of(input), self.cols(input));
        let n = (left + rows + right) * cols;
        let padded = self.temp(n * Storage::F32.bytes());
        let args =
            vec![value(input), int(rows), int(cols), int(left), int(mode), at(padded.clone()), long(n)];
        self.each("pad_rows", n, args);
        padded
    }
}
