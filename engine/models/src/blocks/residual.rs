//! Residual parts of neural codecs: the SnakeBeta unit of DAC-like decoders and the causal ConvNeXt
//! block of their upsamplers.

use device::program::{Activation, ProgramBuilder, Rows, Snake};
use device::{Dtype, Op, StateId, ValueId, WeightForm, WeightId};

use super::{CausalConv, ConvSize, Stream};
use crate::ModelError;
use crate::weights::Loader;

/// `x + conv1x1(snake(conv_dilated(snake(x))))` (Kumar et al. 2023, with BigVGAN's SnakeBeta).
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResidualUnit {
    first_snake: Snake,
    first: CausalConv,
    second_snake: Snake,
    second: CausalConv,
}

/// Depthwise causal convolution, layer norm, two pointwise layers with GELU, scale, residual (Liu et
/// al. 2022, made causal).
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConvNext {
    depthwise: (WeightId, WeightId),
    kernel: usize,
    state: StateId,
    norm: (WeightId, WeightId),
    norm_eps: f32,
    widen: (WeightId, WeightId),
    narrow: (WeightId, WeightId),
    gamma: WeightId,
    channels: usize,
    inner: usize,
}

/// Sizes of a ConvNeXt block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConvNextSize {
    pub(crate) channels: usize,
    pub(crate) inner: usize,
    pub(crate) kernel: usize,
    pub(crate) norm_eps: f32,
}

/// Loads `{name}.alpha` and `{name}.beta`.
pub(crate) fn load_snake(loader: &mut Loader<'_>, name: &str, channels: usize) -> Result<Snake, ModelError> {
    Ok(Snake {
        alpha: loader.vector(&format!("{name}.alpha"), channels)?,
        beta: loader.vector(&format!("{name}.beta"), channels)?,
    })
}

impl ResidualUnit {
    /// Loads `act1`, `conv1.conv`, `act2`, `conv2.conv` under `name`.
    pub(crate) fn load(
        loader: &mut Loader<'_>,
        name: &str,
        channels: usize,
        kernel: usize,
        dilation: usize,
    ) -> Result<Self, ModelError> {
        let wide = ConvSize { input: channels, out: channels, kernel, dilation };
        let point = ConvSize { input: channels, out: channels, kernel: 1, dilation: 1 };
        Ok(Self {
            first_snake: load_snake(loader, &format!("{name}.act1"), channels)?,
            first: CausalConv::load(loader, &format!("{name}.conv1.conv"), wide)?,
            second_snake: load_snake(loader, &format!("{name}.act2"), channels)?,
            second: CausalConv::load(loader, &format!("{name}.conv2.conv"), point)?,
        })
    }

    /// Records the unit from `input` to `out` through `between`, three values of one shape.
    pub(crate) fn record(
        &self,
        builder: &mut ProgramBuilder,
        stream: &Stream,
        input: ValueId,
        between: ValueId,
        out: ValueId,
    ) {
        self.first.record(builder, stream, input, Some(self.first_snake), None, between);
        self.second.record(builder, stream, between, Some(self.second_snake), Some(input), out);
    }
}

impl ConvNext {
    /// Loads `dwconv.conv`, `norm`, `pwconv1`, `pwconv2`, `gamma` under `name`.
    pub(crate) fn load(loader: &mut Loader<'_>, name: &str, size: ConvNextSize) -> Result<Self, ModelError> {
        let ConvNextSize { channels, inner, kernel, norm_eps } = size;
        let mut pair = |part: &str, out: usize, input: usize| {
            let weight = loader.matrix(&format!("{name}.{part}.weight"), out, input)?;
            Ok::<_, ModelError>((weight, loader.vector(&format!("{name}.{part}.bias"), out)?))
        };
        let widen = pair("pwconv1", inner, channels)?;
        let narrow = pair("pwconv2", channels, inner)?;
        let depthwise = loader.upload(
            &format!("{name}.dwconv.conv.weight"),
            WeightForm::Depthwise,
            &[channels, 1, kernel],
        )?;
        Ok(Self {
            depthwise: (depthwise, loader.vector(&format!("{name}.dwconv.conv.bias"), channels)?),
            kernel,
            state: loader.state(&format!("{name}.dwconv.conv"), (kernel - 1) * channels, Dtype::F32)?,
            norm: (
                loader.vector(&format!("{name}.norm.weight"), channels)?,
                loader.vector(&format!("{name}.norm.bias"), channels)?,
            ),
            norm_eps,
            widen,
            narrow,
            gamma: loader.vector(&format!("{name}.gamma"), channels)?,
            channels,
            inner,
        })
    }

    /// Records the block over `target`, in place.
    pub(crate) fn record(
        &self,
        builder: &mut ProgramBuilder,
        stream: &Stream,
        name: &str,
        rows: Rows,
        target: ValueId,
    ) {
        let mixed = builder.scratch(&format!("{name}.mixed"), rows, self.channels);
        let branch = builder.scratch(&format!("{name}.branch"), rows, self.channels);
        let inner = builder.scratch(&format!("{name}.inner"), rows, self.inner);
        builder.touches(self.state);
        builder.push(Op::CausalDepthwiseConv {
            input: target,
            weight: self.depthwise.0,
            bias: Some(self.depthwise.1),
            kernel: self.kernel,
            state: self.state,
            slots: stream.slots,
            start: stream.start,
            valid: stream.valid,
            frames: stream.frames,
            out: mixed,
        });
        let (weight, bias) = self.norm;
        builder.push(Op::LayerNorm { input: mixed, weight, bias, eps: self.norm_eps, out: branch });
        let gelu = Some(Activation::GeluErf);
        let (weight, bias) = self.widen;
        builder.push(Op::Linear {
            input: branch,
            weight,
            bias: Some(bias),
            activation: gelu,
            residual: None,
            out: inner,
        });
        let (weight, bias) = self.narrow;
        builder.push(Op::Linear {
            input: inner,
            weight,
            bias: Some(bias),
            activation: None,
            residual: None,
            out: branch,
        });
        builder.push(Op::AddScaled { target, input: branch, scale: Some(self.gamma) });
    }
}
