//! Convolutions: rows with their history (or padding) are laid out once, with the snake applied, and the
//! matrix kernel strides over them.

use std::ops::Range;

use device::StateId;
use device::program::{ConvShape, Op, Padding};

use super::dense::Linear;
use super::{Matrix, Run};
use crate::kernel;
use crate::memory::SnakeTable;
use crate::pack::Packed;
use crate::plan::padding_rows;

/// What every causal convolution is told about its contexts.
struct Stream<'a> {
    state: Option<StateId>,
    slots: Matrix<'a>,
    start: Matrix<'a>,
    valid: Matrix<'a>,
    frames: usize,
}

/// Input rows of each context behind the rows they need from before.
struct Carried<'a> {
    /// `[batch * (history + steps), cols]`.
    rows: Matrix<'a>,
    history: usize,
    steps: usize,
}

impl<'a> Run<'a> {
    pub(super) fn convolution(&self, op: &'a Op) {
        let memory = &*self.exe.memory;
        match *op {
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
                let snake = snake.as_ref().map(|snake| memory.snake(snake));
                let stream = self.stream(state, slots, start, valid, frames);
                let carried = self.carry(self.value(input), history, snake, &stream);
                let residual = residual.map(|residual| self.value(residual));
                let (weight, bias) = (memory.packed(weight), self.vector(bias));
                self.slide(&carried, shape.dilation, weight, bias, residual, self.value(out));
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
                let snake = snake.as_ref().map(|snake| memory.snake(snake));
                let stream = self.stream(state, slots, start, valid, frames);
                let carried = self.carry(self.value(input), kernel / stride - 1, snake, &stream);
                let bias = bias.map(|bias| memory.repeated[&(bias, stride)].as_slice());
                self.slide(&carried, 1, &memory.transposed[&(weight, stride)], bias, None, self.value(out));
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
                let stream = self.stream(Some(state), slots, start, valid, frames);
                let carried = self.carry(self.value(input), kernel - 1, None, &stream);
                let out = self.value(out);
                let (weight, bias) = (memory.raw(weight), self.vector(bias));
                for row in self.member.share(out.rows, kernel * out.cols) {
                    let from = row / carried.steps * (carried.history + carried.steps) + row % carried.steps;
                    let rows = carried.rows.get(from..from + kernel);
                    kernel::depthwise_row(rows, out.cols, weight, bias, out.row_mut(row));
                }
            }
            Op::Conv { input, weight, bias, ref shape, padding, activation, out } => {
                let (input, out) = (self.value(input), self.value(out));
                let padded = self.pad(input, padding);
                self.product(&Linear {
                    a: padded.ptr(),
                    rows: out.rows,
                    group: out.rows,
                    group_stride: 0,
                    row_stride: shape.stride * padded.cols,
                    tap_stride: shape.dilation * padded.cols,
                    weight: memory.packed(weight),
                    bias: self.vector(bias),
                    activation,
                    residual: None,
                    out: out.ptr(),
                });
            }
            Op::DepthwiseConv { input, weight, bias, ref shape, padding, out } => {
                let (input, out) = (self.value(input), self.value(out));
                let padded = self.pad(input, padding);
                let (weight, bias) = (memory.raw(weight), self.vector(bias));
                let &ConvShape { kernel, stride, dilation } = shape;
                for row in self.member.share(out.rows, kernel * out.cols) {
                    let rows = padded.get(row * stride..row * stride + (kernel - 1) * dilation + 1);
                    kernel::depthwise_row(rows, dilation * out.cols, weight, bias, out.row_mut(row));
                }
            }
            _ => {}
        }
    }

    fn stream(
        &self,
        state: Option<StateId>,
        slots: device::ValueId,
        start: device::ValueId,
        valid: device::ValueId,
        frames: usize,
    ) -> Stream<'a> {
        Stream { state, slots: self.value(slots), start: self.value(start), valid: self.value(valid), frames }
    }

    fn slide(
        &self,
        carried: &Carried<'a>,
        dilation: usize,
        weight: &'a Packed,
        bias: Option<&'a [f32]>,
        residual: Option<Matrix<'a>>,
        out: Matrix<'a>,
    ) {
        let cols = carried.rows.cols;
        self.product(&Linear {
            a: carried.rows.ptr(),
            rows: self.batch * carried.steps,
            group: carried.steps,
            group_stride: (carried.history + carried.steps) * cols,
            row_stride: cols,
            tap_stride: dilation * cols,
            weight,
            bias,
            activation: None,
            residual,
            out: out.ptr(),
        });
    }

    /// Lays out history and input (after `snake`), and moves the history on by the valid rows.
    fn carry(
        &self,
        input: Matrix<'a>,
        history: usize,
        snake: Option<&SnakeTable>,
        stream: &Stream<'a>,
    ) -> Carried<'a> {
        let cols = input.cols;
        let steps = input.rows / self.batch;
        if history == 0 && snake.is_none() {
            return Carried { rows: input, history, steps };
        }
        let span = history + steps;
        let rows = self.temp(0, self.batch * span, cols);
        let work = if snake.is_some() { 20 * cols } else { cols };
        let share = self.member.share(rows.rows, work);
        for context in 0..self.batch {
            let base = context * span;
            let mine = clip(&share, base, base + span);
            let past = clip(&mine, base, base + history);
            if !past.is_empty()
                && let Some(state) = stream.state
            {
                let target = rows.get_mut(past.clone());
                if stream.start.ints()[context] == 0 {
                    target.fill(0.0);
                } else {
                    let state = &self.exe.memory.states[state.0 as usize];
                    let from = state.row(stream.slots.ints()[context]).cast::<f32>();
                    // SAFETY: the state is `history` rows of `cols`; this launch holds the slot, and writes
                    // it only after the barrier below.
                    let from = unsafe {
                        std::slice::from_raw_parts(from.add((past.start - base) * cols), target.len())
                    };
                    target.copy_from_slice(from);
                }
            }
            let now = clip(&mine, base + history, base + span);
            if !now.is_empty() {
                let first = context * steps + now.start - base - history;
                let from = input.get(first..first + now.len());
                let target = rows.get_mut(now);
                match snake {
                    Some(snake) => kernel::snake(from, &snake.alpha, &snake.inverse, target),
                    None => target.copy_from_slice(from),
                }
            }
        }
        self.member.barrier();
        if let Some(state) = stream.state.filter(|_| history > 0) {
            let state = &self.exe.memory.states[state.0 as usize];
            for context in self.member.share(self.batch, history * cols) {
                let valid = stream.valid.ints()[context].max(0) as usize * (steps / stream.frames);
                assert!(valid <= steps, "{valid} of {steps} rows are valid");
                let from = rows.get(context * span + valid..context * span + valid + history);
                let to = state.row(stream.slots.ints()[context]).cast::<f32>();
                // SAFETY: as above; nobody reads the state until the next op.
                unsafe { std::slice::from_raw_parts_mut(to, from.len()) }.copy_from_slice(from);
            }
        }
        Carried { rows, history, steps }
    }

    /// Input rows with their padding, all there for every member.
    fn pad(&self, input: Matrix<'a>, padding: Padding) -> Matrix<'a> {
        let (left, right) = padding_rows(padding);
        if left + right == 0 {
            return input;
        }
        let padded = self.temp(0, left + input.rows + right, input.cols);
        let last = input.rows - 1;
        for row in self.member.share(padded.rows, input.cols) {
            let at = row as isize - left as isize;
            let inside = usize::try_from(at).ok().filter(|&at| at <= last);
            let from = match padding {
                Padding::Zeros { .. } => inside,
                Padding::Replicate { .. } => Some(at.clamp(0, last as isize) as usize),
                Padding::Reflect { .. } => {
                    let at = at.unsigned_abs();
                    Some(if at > last { 2 * last - at } else { at })
                }
            };
            match from {
                Some(from) => padded.row_mut(row).copy_from_slice(input.row(from)),
                None => padded.row_mut(row).fill(0.0),
            }
        }
        self.member.barrier();
        padded
    }
}

fn clip(range: &Range<usize>, from: usize, to: usize) -> Range<usize> {
    let start = range.start.max(from).min(to);
    start..range.end.min(to).max(start)
}
