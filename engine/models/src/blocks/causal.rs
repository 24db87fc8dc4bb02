//! Causal convolutions that carry their left context from chunk to chunk, per slot.

use device::program::{ConvShape, ProgramBuilder, Snake};
use device::{Dtype, Op, StateId, ValueId, WeightForm, WeightId};

use crate::ModelError;
use crate::weights::Loader;

/// The inputs every stateful operation of a chunk program reads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stream {
    /// `[B, 1]` i32: whose state.
    pub(crate) slots: ValueId,
    /// `[B, 1]` i32: frames the stream has decoded before; 0 is a fresh stream.
    pub(crate) start: ValueId,
    /// `[B, 1]` i32: frames of this chunk that count.
    pub(crate) valid: ValueId,
    /// Captured length in frames.
    pub(crate) frames: usize,
}

/// Stride-1 convolution with zeros to its left at the stream's beginning.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CausalConv {
    weight: WeightId,
    bias: WeightId,
    shape: ConvShape,
    state: Option<StateId>,
}

/// Transposed convolution, trimmed on the right so that it is causal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CausalConvTranspose {
    weight: WeightId,
    bias: WeightId,
    kernel: usize,
    stride: usize,
    state: Option<StateId>,
}

/// Sizes of a causal convolution.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConvSize {
    pub(crate) input: usize,
    pub(crate) out: usize,
    pub(crate) kernel: usize,
    pub(crate) dilation: usize,
}

impl CausalConv {
    /// Loads `{name}.weight` `[out, in, kernel]` and `{name}.bias`, and takes state for its history.
    pub(crate) fn load(loader: &mut Loader<'_>, name: &str, size: ConvSize) -> Result<Self, ModelError> {
        let ConvSize { input, out, kernel, dilation } = size;
        let history = (kernel - 1) * dilation;
        let state =
            if history == 0 { None } else { Some(loader.state(name, history * input, Dtype::F32)?) };
        Ok(Self {
            weight: loader.upload(&format!("{name}.weight"), WeightForm::Conv, &[out, input, kernel])?,
            bias: loader.vector(&format!("{name}.bias"), out)?,
            shape: ConvShape { kernel, stride: 1, dilation },
            state,
        })
    }

    /// Records `out = conv(snake(input)) + bias (+ residual)`.
    pub(crate) fn record(
        &self,
        builder: &mut ProgramBuilder,
        stream: &Stream,
        input: ValueId,
        snake: Option<Snake>,
        residual: Option<ValueId>,
        out: ValueId,
    ) {
        touch(builder, self.state);
        builder.push(Op::CausalConv {
            input,
            weight: self.weight,
            bias: Some(self.bias),
            shape: self.shape,
            snake,
            residual,
            state: self.state,
            slots: stream.slots,
            start: stream.start,
            valid: stream.valid,
            frames: stream.frames,
            out,
        });
    }
}

impl CausalConvTranspose {
    /// Loads `{name}.weight` `[in, out, kernel]` and `{name}.bias`, and takes state for the input rows
    /// that a later output row still needs.
    pub(crate) fn load(
        loader: &mut Loader<'_>,
        name: &str,
        input: usize,
        out: usize,
        kernel: usize,
        stride: usize,
    ) -> Result<Self, ModelError> {
        let history = kernel.div_ceil(stride) - 1;
        let state =
            if history == 0 { None } else { Some(loader.state(name, history * input, Dtype::F32)?) };
        let weight =
            loader.upload(&format!("{name}.weight"), WeightForm::ConvTranspose, &[input, out, kernel])?;
        Ok(Self { weight, bias: loader.vector(&format!("{name}.bias"), out)?, kernel, stride, state })
    }

    pub(crate) fn record(
        &self,
        builder: &mut ProgramBuilder,
        stream: &Stream,
        input: ValueId,
        snake: Option<Snake>,
        out: ValueId,
    ) {
        touch(builder, self.state);
        builder.push(Op::CausalConvTranspose {
            input,
            weight: self.weight,
            bias: Some(self.bias),
            kernel: self.kernel,
            stride: self.stride,
            snake,
            state: self.state,
            slots: stream.slots,
            start: stream.start,
            valid: stream.valid,
            frames: stream.frames,
            out,
        });
    }
}

fn touch(builder: &mut ProgramBuilder, state: Option<StateId>) {
    if let Some(state) = state {
        builder.touches(state);
    }
}
