//! The codec's encoder: a reference clip to codes, for in-context cloning.
//!
//! Mimi (Défossez et al. 2024): a causal convolution stack (SEANet), a transformer, one more halving of
//! the rate, and a split residual quantizer.

mod config;
mod weights;

use device::program::{Activation, ConvShape, Padding, Program, ProgramBuilder, Rows};
use device::{Dtype, Op, ValueId};

pub(crate) use config::ReferenceCodesConfig;
pub(crate) use weights::ReferenceCodesWeights;

use config::DOWNSAMPLE;
use weights::{Branch, Conv, Layer, ResidualBlock};

/// The program for a clip of `samples` samples: input `[samples, 1]`, output codes `[frames, groups]`,
/// one frame for each started `encode_downsample_rate` samples.
pub(crate) fn program(
    config: &ReferenceCodesConfig,
    weights: &ReferenceCodesWeights,
    samples: usize,
) -> Program {
    let mut builder = ProgramBuilder::new(format!("qwen3_tts.reference_codes.{samples}"));
    let clip = builder.input("clip", Dtype::F32, Rows::Fixed(samples), 1);
    let mut record = Recorder { builder, rows: samples };

    let mut stream = record.conv("enter", &weights.enter, clip, None);
    for (index, level) in weights.levels.iter().enumerate() {
        for (depth, block) in level.blocks.iter().enumerate() {
            stream = record.residual_block(&format!("level{index}.block{depth}"), block, stream);
        }
        let bent = record.elu(&format!("level{index}.bent"), stream, level.narrow.input);
        stream = record.conv(&format!("level{index}.narrow"), &level.narrow, bent, None);
    }
    let bent = record.elu("leave.bent", stream, weights.leave.input);
    let stream = record.conv("leave", &weights.leave, bent, None);
    for (index, layer) in weights.layers.iter().enumerate() {
        record.layer(&format!("layer{index}"), config, layer, stream);
    }
    let features = record.downsample(&weights.downsample, stream);

    let codes = record.builder.value("codes", Dtype::I32, Rows::Fixed(record.rows), config.groups);
    record.quantize("semantic", config, &weights.semantic, features, codes, 0);
    record.quantize("acoustic", config, &weights.acoustic, features, codes, weights.semantic.codebooks.len());
    record.builder.output(codes);
    record.builder.finish()
}

struct Recorder {
    builder: ProgramBuilder,
    /// Rows of the stream at this point.
    rows: usize,
}

impl Recorder {
    fn push(&mut self, op: Op) {
        self.builder.push(op);
    }

    fn scratch(&mut self, name: &str, cols: usize) -> ValueId {
        self.builder.scratch(name, Rows::Fixed(self.rows), cols)
    }

    /// Causal: zeros before, and after only what fills the last stride.
    fn conv(&mut self, name: &str, conv: &Conv, input: ValueId, activation: Option<Activation>) -> ValueId {
        let Conv { kernel, stride, dilation, .. } = *conv;
        let filled = self.rows.next_multiple_of(stride);
        let padding =
            Padding::Zeros { left: (kernel - 1) * dilation + 1 - stride, right: filled - self.rows };
        self.rows = filled / stride;
        let out = self.scratch(name, conv.out);
        let shape = ConvShape { kernel, stride, dilation };
        let (weight, bias) = (conv.weight, conv.bias);
        self.push(Op::Conv { input, weight, bias, shape, padding, activation, out });
        out
    }

    fn elu(&mut self, name: &str, input: ValueId, cols: usize) -> ValueId {
        let out = self.scratch(name, cols);
        self.push(Op::Activate { input, activation: Activation::Elu, out });
        out
    }

    /// `x + narrow(elu(wide(elu(x))))`.
    fn residual_block(&mut self, name: &str, block: &ResidualBlock, input: ValueId) -> ValueId {
        let bent = self.elu(&format!("{name}.bent"), input, block.first.input);
        let inner = self.conv(&format!("{name}.inner"), &block.first, bent, Some(Activation::Elu));
        let out = self.scratch(name, block.first.input);
        let (weight, bias) = block.second;
        self.push(Op::Linear {
            input: inner,
            weight,
            bias: Some(bias),
            activation: None,
            residual: Some(input),
            out,
        });
        out
    }

    /// Layer norm, attention, layer norm, MLP, each branch scaled; over `stream`, in place.
    fn layer(&mut self, name: &str, config: &ReferenceCodesConfig, layer: &Layer, stream: ValueId) {
        let transformer = config.transformer;
        let shape = transformer.shape;
        let [q_width, kv_width] = [shape.heads, shape.kv_heads].map(|heads| heads * shape.head_dim);
        let mut scratch = |part: &str, cols: usize| self.scratch(&format!("{name}.{part}"), cols);
        let [normed, branch] = ["normed", "branch"].map(|part| scratch(part, transformer.hidden));
        let [q, attended] = ["q", "attended"].map(|part| scratch(part, q_width));
        let [k, v] = ["k", "v"].map(|part| scratch(part, kv_width));
        let inner = scratch("inner", transformer.intermediate);
        let linear = |input, weight, activation, out| Op::Linear {
            input,
            weight,
            bias: None,
            activation,
            residual: None,
            out,
        };
        let norm = |(weight, bias)| Op::LayerNorm {
            input: stream,
            weight,
            bias,
            eps: transformer.norm_eps,
            out: normed,
        };

        self.push(norm(layer.input_norm));
        for (weight, out) in [(layer.q, q), (layer.k, k), (layer.v, v)] {
            self.push(linear(normed, weight, None, out));
        }
        // The reference builds a plain causal mask here: its `sliding_window` has no effect.
        self.push(Op::LocalAttention { q, k, v, shape, window: self.rows, out: attended });
        self.push(linear(attended, layer.o, None, branch));
        self.push(Op::AddScaled { target: stream, input: branch, scale: Some(layer.attention_scale) });
        self.push(norm(layer.post_norm));
        self.push(linear(normed, layer.widen, Some(Activation::GeluErf), inner));
        self.push(linear(inner, layer.narrow, None, branch));
        self.push(Op::AddScaled { target: stream, input: branch, scale: Some(layer.mlp_scale) });
    }

    /// The last halving, with the border columns repeated.
    fn downsample(&mut self, conv: &Conv, input: ValueId) -> ValueId {
        let Conv { kernel, weight, bias, .. } = *conv;
        let filled = self.rows.next_multiple_of(DOWNSAMPLE);
        let padding = Padding::Replicate { left: kernel - DOWNSAMPLE, right: filled - self.rows };
        self.rows = filled / DOWNSAMPLE;
        let out = self.scratch("features", conv.out);
        let shape = ConvShape { kernel, stride: DOWNSAMPLE, dilation: 1 };
        self.push(Op::Conv { input, weight, bias, shape, padding, activation: None, out });
        out
    }

    /// One half of the split quantizer: its own projection of the features, then entry by entry.
    fn quantize(
        &mut self,
        name: &str,
        config: &ReferenceCodesConfig,
        branch: &Branch,
        features: ValueId,
        codes: ValueId,
        first: usize,
    ) {
        let residual = self.scratch(name, config.codebook_dim);
        self.push(Op::Linear {
            input: features,
            weight: branch.projection,
            bias: None,
            activation: None,
            residual: None,
            out: residual,
        });
        for (column, &codebook) in (first..).zip(&branch.codebooks) {
            self.push(Op::QuantizeResidual { residual, codebook, codes, column });
        }
    }
}
