//! The codec's decoder: codes to sound, causal, with per-slot state so that a stream may be cut into
//! chunks anywhere.

use device::program::{ProgramBuilder, Rows, Snake};
use device::{Dtype, Op, Program, StateId, ValueId, WeightForm, WeightId};

use super::config::{CodecConfig, Config};
use crate::ModelError;
use crate::blocks::{
    AttentionKind, CausalConv, CausalConvTranspose, ConvNext, ConvNextSize, ConvSize, LayerScratch,
    LayerWeights, ResidualUnit, Stream, TensorNames, load_snake, record_layer,
};
use crate::weights::Loader;

/// Architecture of the 12 Hz codec that its config file does not spell.
const FRONT_KERNEL: usize = 3;
const WIDE_KERNEL: usize = 7;
const DILATIONS: [usize; 3] = [1, 3, 9];
const CONVNEXT_WIDENING: usize = 4;
const CONVNEXT_NORM_EPS: f32 = 1e-6;
/// Codebook rows are stored as sums over their uses; rows hardly used are not blown up beyond this.
const CLUSTER_USAGE_MIN: f32 = 1e-5;

const SCALES: TensorNames =
    TensorNames { attention_scale: "self_attn_layer_scale.scale", mlp_scale: "mlp_layer_scale.scale" };

/// The decoder on a device.
#[derive(Clone, Debug)]
pub(crate) struct Codec {
    semantic: Quantizer,
    acoustic: Quantizer,
    front: CausalConv,
    project_in: (WeightId, WeightId),
    layers: Vec<(LayerWeights, StateId)>,
    norm: WeightId,
    project_out: (WeightId, WeightId),
    upsamplers: Vec<(CausalConvTranspose, ConvNext)>,
    wide: CausalConv,
    blocks: Vec<Block>,
    last_snake: Snake,
    last: CausalConv,
    states: Vec<StateId>,
}

/// Codebooks that share one output projection.
#[derive(Clone, Debug)]
struct Quantizer {
    tables: Vec<WeightId>,
    project: WeightId,
}

#[derive(Clone, Debug)]
struct Block {
    snake: Snake,
    up: CausalConvTranspose,
    units: Vec<ResidualUnit>,
    rate: usize,
    channels: usize,
}

impl Codec {
    pub(crate) fn load(loader: &mut Loader<'_>, config: &Config) -> Result<Self, ModelError> {
        let codec = &config.codec;
        let (latent, hidden) = (codec.latent, codec.shape.hidden);
        let first_state = loader.states().len();
        let semantic = Quantizer::load(loader, "decoder.quantizer.rvq_first", codec, 1)?;
        let acoustic =
            Quantizer::load(loader, "decoder.quantizer.rvq_rest", codec, config.talker.groups - 1)?;
        let front = ConvSize { input: codec.codebook_dim, out: latent, kernel: FRONT_KERNEL, dilation: 1 };
        let front = CausalConv::load(loader, "decoder.pre_conv.conv", front)?;
        let project_in = dense(loader, "decoder.pre_transformer.input_proj", hidden, latent)?;
        let layers = (0..codec.layers)
            .map(|layer| {
                let prefix = format!("decoder.pre_transformer.layers.{layer}");
                let weights = LayerWeights::load(loader, &prefix, &codec.shape, SCALES)?;
                let width = 2 * (codec.window - 1) * codec.shape.kv_width();
                Ok((weights, loader.state(&prefix, width, Dtype::F32)?))
            })
            .collect::<Result<_, ModelError>>()?;
        let norm = loader.vector("decoder.pre_transformer.norm.weight", hidden)?;
        let project_out = dense(loader, "decoder.pre_transformer.output_proj", latent, hidden)?;
        let upsamplers = codec
            .upsampling_ratios
            .iter()
            .enumerate()
            .map(|(index, &ratio)| {
                let name = format!("decoder.upsample.{index}");
                let up = CausalConvTranspose::load(
                    loader,
                    &format!("{name}.0.conv"),
                    latent,
                    latent,
                    ratio,
                    ratio,
                )?;
                let size = ConvNextSize {
                    channels: latent,
                    inner: CONVNEXT_WIDENING * latent,
                    kernel: WIDE_KERNEL,
                    norm_eps: CONVNEXT_NORM_EPS,
                };
                Ok((up, ConvNext::load(loader, &format!("{name}.1"), size)?))
            })
            .collect::<Result<_, ModelError>>()?;
        let size = ConvSize { input: latent, out: codec.decoder_dim, kernel: WIDE_KERNEL, dilation: 1 };
        let wide = CausalConv::load(loader, "decoder.decoder.0.conv", size)?;
        let blocks = codec
            .upsample_rates
            .iter()
            .enumerate()
            .map(|(index, &rate)| Block::load(loader, index + 1, codec.decoder_dim >> index, rate))
            .collect::<Result<Vec<_>, _>>()?;
        let after = blocks.len() + 1;
        let channels = codec.decoder_dim >> blocks.len();
        let last_snake = load_snake(loader, &format!("decoder.decoder.{after}"), channels)?;
        let size = ConvSize { input: channels, out: 1, kernel: WIDE_KERNEL, dilation: 1 };
        let last = CausalConv::load(loader, &format!("decoder.decoder.{}.conv", after + 1), size)?;
        let states = loader.states()[first_state..].to_vec();
        Ok(Self {
            semantic,
            acoustic,
            front,
            project_in,
            layers,
            norm,
            project_out,
            upsamplers,
            wide,
            blocks,
            last_snake,
            last,
            states,
        })
    }

    /// Every state of one stream: what a primed image holds.
    pub(crate) fn states(&self) -> &[StateId] {
        &self.states
    }

    /// A chunk of `length` frames per batch row. Inputs: slots, start, valid `[B, 1]`, codes
    /// `[B * length, groups]`. Output: samples `[B * length * samples per frame, 1]` in [-1, 1].
    pub(crate) fn program(&self, config: &Config, length: usize) -> Program {
        let codec = &config.codec;
        let mut builder = ProgramBuilder::new(format!("codec.{length}"));
        let one = Rows::PerRow(1);
        let stream = Stream {
            slots: builder.input("slots", Dtype::I32, one, 1),
            start: builder.input("start", Dtype::I32, one, 1),
            valid: builder.input("valid", Dtype::I32, one, 1),
            frames: length,
        };
        let codes = builder.input("codes", Dtype::I32, Rows::PerRow(length), config.talker.groups);
        let mut at = self.record_latent(&mut builder, codec, &stream, codes, config.talker.groups);
        let mut rows = length;
        for (index, ((up, block), &ratio)) in self.upsamplers.iter().zip(&codec.upsampling_ratios).enumerate()
        {
            rows *= ratio;
            let out = builder.scratch(&format!("upsample.{index}"), Rows::PerRow(rows), codec.latent);
            up.record(&mut builder, &stream, at, None, out);
            block.record(&mut builder, &stream, &format!("upsample.{index}"), Rows::PerRow(rows), out);
            at = out;
        }
        let wide = builder.scratch("wide", Rows::PerRow(rows), codec.decoder_dim);
        self.wide.record(&mut builder, &stream, at, None, None, wide);
        at = wide;
        for (index, block) in self.blocks.iter().enumerate() {
            rows *= block.rate;
            at = block.record(&mut builder, &stream, &format!("block.{index}"), Rows::PerRow(rows), at);
        }
        let raw = builder.scratch("raw", Rows::PerRow(rows), 1);
        let samples = builder.scratch("samples", Rows::PerRow(rows), 1);
        self.last.record(&mut builder, &stream, at, Some(self.last_snake), None, raw);
        builder.push(Op::Clamp { input: raw, low: -1.0, high: 1.0, out: samples });
        builder.output(samples);
        builder.finish()
    }

    /// Codes to the latent the convolutions take, at frame rate.
    fn record_latent(
        &self,
        builder: &mut ProgramBuilder,
        codec: &CodecConfig,
        stream: &Stream,
        codes: ValueId,
        groups: usize,
    ) -> ValueId {
        let rows = Rows::PerRow(stream.frames);
        let inner = codec.codebook_dim / 2;
        let rest = builder.value("codes.rest", Dtype::I32, rows, groups - 1);
        builder.push(Op::Slice { source: codes, first: 1, out: rest });
        let looked_up = builder.scratch("looked_up", rows, inner);
        let first = builder.scratch("quantized.first", rows, codec.codebook_dim);
        let quantized = builder.scratch("quantized", rows, codec.codebook_dim);
        self.semantic.record(builder, codes, looked_up, None, first);
        self.acoustic.record(builder, rest, looked_up, Some(first), quantized);

        let latent = builder.scratch("latent", rows, codec.latent);
        self.front.record(builder, stream, quantized, None, None, latent);
        let hidden = builder.scratch("stream", rows, codec.shape.hidden);
        builder.push(linear(latent, self.project_in, hidden));
        let scratch = LayerScratch::new(builder, "transformer", rows, &codec.shape);
        for (weights, state) in &self.layers {
            builder.touches(*state);
            let kind = AttentionKind::Window {
                window: codec.window,
                state: *state,
                slots: stream.slots,
                start: stream.start,
                valid: stream.valid,
            };
            record_layer(builder, weights, &codec.shape, &scratch, hidden, kind);
        }
        let normed = builder.scratch("normed", rows, codec.shape.hidden);
        builder.push(Op::RmsNorm {
            input: hidden,
            weight: self.norm,
            eps: codec.shape.norm_eps,
            out: normed,
        });
        let transformed = builder.scratch("transformed", rows, codec.latent);
        builder.push(linear(normed, self.project_out, transformed));
        transformed
    }
}

impl Quantizer {
    fn load(
        loader: &mut Loader<'_>,
        name: &str,
        codec: &CodecConfig,
        count: usize,
    ) -> Result<Self, ModelError> {
        let (entries, inner) = (codec.codebook, codec.codebook_dim / 2);
        let tables = (0..count)
            .map(|index| {
                let book = format!("{name}.vq.layers.{index}._codebook");
                loader.computed(&book, WeightForm::Table, &[entries, inner], |files| {
                    let mut table = files.values(&format!("{book}.embedding_sum"), &[entries, inner])?;
                    let usage = files.values(&format!("{book}.cluster_usage"), &[entries])?;
                    for (row, uses) in table.chunks_exact_mut(inner).zip(usage) {
                        let uses = uses.max(CLUSTER_USAGE_MIN);
                        row.iter_mut().for_each(|value| *value /= uses);
                    }
                    Ok(table)
                })
            })
            .collect::<Result<_, _>>()?;
        let project = loader.matrix(&format!("{name}.output_proj.weight"), codec.codebook_dim, inner)?;
        Ok(Self { tables, project })
    }

    fn record(
        &self,
        builder: &mut ProgramBuilder,
        codes: ValueId,
        looked_up: ValueId,
        residual: Option<ValueId>,
        out: ValueId,
    ) {
        builder.push(Op::EmbedSum { tables: self.tables.clone(), codes, out: looked_up, accumulate: false });
        builder.push(Op::Linear {
            input: looked_up,
            weight: self.project,
            bias: None,
            activation: None,
            residual,
            out,
        });
    }
}

impl Block {
    fn load(loader: &mut Loader<'_>, index: usize, input: usize, rate: usize) -> Result<Self, ModelError> {
        let name = format!("decoder.decoder.{index}.block");
        let channels = input / 2;
        let snake = load_snake(loader, &format!("{name}.0"), input)?;
        let up =
            CausalConvTranspose::load(loader, &format!("{name}.1.conv"), input, channels, 2 * rate, rate)?;
        let units = DILATIONS
            .iter()
            .enumerate()
            .map(|(unit, &dilation)| {
                ResidualUnit::load(loader, &format!("{name}.{}", unit + 2), channels, WIDE_KERNEL, dilation)
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { snake, up, units, rate, channels })
    }

    fn record(
        &self,
        builder: &mut ProgramBuilder,
        stream: &Stream,
        name: &str,
        rows: Rows,
        input: ValueId,
    ) -> ValueId {
        let mut value = |part: &str| builder.scratch(&format!("{name}.{part}"), rows, self.channels);
        let (mut at, between, mut spare) = (value("even"), value("between"), value("odd"));
        self.up.record(builder, stream, input, Some(self.snake), at);
        for unit in &self.units {
            unit.record(builder, stream, at, between, spare);
            (at, spare) = (spare, at);
        }
        at
    }
}

fn dense(
    loader: &mut Loader<'_>,
    name: &str,
    out: usize,
    input: usize,
) -> Result<(WeightId, WeightId), ModelError> {
    let weight = loader.matrix(&format!("{name}.weight"), out, input)?;
    Ok((weight, loader.vector(&format!("{name}.bias"), out)?))
}

fn linear(input: ValueId, (weight, bias): (WeightId, WeightId), out: ValueId) -> Op {
    Op::Linear { input, weight, bias: Some(bias), activation: None, residual: None, out }
}
