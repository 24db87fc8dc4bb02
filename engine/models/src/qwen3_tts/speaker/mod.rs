//! The speaker encoder: a clip to one vector (x-vector) that stands in the prompt.
//!
//! ECAPA-TDNN (Desplanques et al. 2020) without batch norms: log-mel, a time-delay layer, squeeze-excited
//! Res2Net blocks, aggregation of their outputs, attentive statistics, one linear layer. Every
//! convolution keeps the length by mirroring the borders.

mod mel;

use device::program::{Activation, ConvShape, Padding, Program, ProgramBuilder, Rows};
use device::{Dtype, Op, ValueId, WeightForm, WeightId};

use super::class_defaults;
use crate::ModelError;
use crate::json::Object;
use crate::weights::Loader;

use mel::MEL;

/// `speaker_encoder_config`. A key that a checkpoint leaves out has the reference class's default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SpeakerConfig {
    pub(crate) enc_dim: usize,
    pub(crate) sample_rate: usize,
    mel_dim: usize,
    /// First layer, blocks, aggregation.
    layers: Vec<TdnnShape>,
    attention_channels: usize,
    res2net_scale: usize,
    se_channels: usize,
}

/// One entry of `enc_channels`, `enc_kernel_sizes` and `enc_dilations`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TdnnShape {
    channels: usize,
    kernel: usize,
    dilation: usize,
}

/// Least variance a deviation is taken of; a literal of the reference.
const VARIANCE_MIN: f32 = 1e-12;

impl SpeakerConfig {
    /// # Errors
    /// A value of the wrong type, or lists and widths that do not fit each other.
    pub(crate) fn read(keys: &Object<'_>) -> Result<Self, ModelError> {
        let keys = keys.clone().or(class_defaults::of("speaker_encoder_config"));
        let channels = keys.counts("enc_channels")?;
        let kernels = keys.counts("enc_kernel_sizes")?;
        let dilations = keys.counts("enc_dilations")?;
        let same_length = |key: &str, list: &[usize]| {
            let bound = format!("as long as enc_channels, {}", channels.len());
            if list.len() == channels.len() { Ok(()) } else { Err(keys.out_of_range(key, list.len(), bound)) }
        };
        same_length("enc_kernel_sizes", &kernels)?;
        same_length("enc_dilations", &dilations)?;
        let res2net_scale = keys.count("enc_res2net_scale")?;
        let Some((&aggregated, earlier)) = channels.split_last().filter(|(_, earlier)| earlier.len() >= 2)
        else {
            return Err(keys.out_of_range("enc_channels", channels.len(), "at least 3 entries"));
        };
        let width = earlier[0];
        if earlier.iter().any(|&other| other != width) || !width.is_multiple_of(res2net_scale) {
            let bound =
                format!("equal but for the last, and divisible by enc_res2net_scale, {res2net_scale}");
            return Err(keys.out_of_range("enc_channels", format!("{channels:?}"), bound));
        }
        if aggregated != width * (earlier.len() - 1) {
            let bound = "its blocks' sum at the end (the outputs that are aggregated)";
            return Err(keys.out_of_range("enc_channels", format!("{channels:?}"), bound));
        }
        let mel_dim = keys.count("mel_dim")?;
        if mel_dim > MEL.bins() {
            let bound = format!("at most the {} bins of the spectrum", MEL.bins());
            return Err(keys.out_of_range("mel_dim", mel_dim, bound));
        }
        let shapes = channels.iter().zip(kernels).zip(dilations);
        let layers = shapes.map(|((&channels, kernel), dilation)| TdnnShape { channels, kernel, dilation });
        Ok(Self {
            enc_dim: keys.count("enc_dim")?,
            sample_rate: keys.sample_rate("sample_rate")?,
            mel_dim,
            layers: layers.collect(),
            attention_channels: keys.count("enc_attention_channels")?,
            res2net_scale,
            se_channels: keys.count("enc_se_channels")?,
        })
    }

    fn aggregated(&self) -> usize {
        self.layers.last().map_or(0, |layer| layer.channels)
    }
}

/// Fewest samples of a clip: its frames must be more than any layer mirrors.
pub(crate) fn samples_min(config: &SpeakerConfig) -> usize {
    let mirrored = config.layers.iter().map(|layer| same_padding(*layer).1).max().unwrap_or(0);
    MEL.samples_min(mirrored + 1)
}

/// The encoder's weights on a device.
#[derive(Clone, Debug)]
pub(crate) struct SpeakerWeights {
    window: WeightId,
    filters: WeightId,
    first: Tdnn,
    blocks: Vec<Block>,
    aggregate: Tdnn,
    attention: (Tdnn, Tdnn),
    last: Tdnn,
}

/// A convolution and its bias.
#[derive(Clone, Copy, Debug)]
struct Tdnn {
    weight: WeightId,
    bias: WeightId,
    shape: TdnnShape,
}

#[derive(Clone, Debug)]
struct Block {
    enter: Tdnn,
    steps: Vec<Tdnn>,
    leave: Tdnn,
    squeeze: (Tdnn, Tdnn),
}

impl SpeakerWeights {
    /// Loads the tensors under `speaker_encoder`, and the mel filters computed here.
    ///
    /// # Errors
    /// A tensor that is missing or of another shape, or no memory.
    pub(crate) fn load(loader: &mut Loader<'_>, config: &SpeakerConfig) -> Result<Self, ModelError> {
        let (bands, bins) = (config.mel_dim, MEL.bins());
        let window =
            loader.computed("speaker_encoder.mel.window", WeightForm::Vector, &[MEL.n_fft], |_| {
                Ok(MEL.window())
            })?;
        let filters =
            loader.computed("speaker_encoder.mel.filters", WeightForm::Matrix, &[bands, bins], |_| {
                Ok(MEL.filters(bands, config.sample_rate))
            })?;
        // `read` admits at least three layers.
        let (first, inner, last) = match config.layers.as_slice() {
            [first, inner @ .., last] => (*first, inner, *last),
            _ => unreachable!("a speaker encoder has at least three layers"),
        };
        let attended = config.attention_channels;
        let wide = last.channels;
        let first = Tdnn::load(loader, "blocks.0.conv", bands, first)?;
        let blocks = (1..).zip(inner).map(|(index, shape)| Block::load(loader, index, *shape, config));
        Ok(Self {
            window,
            filters,
            first,
            blocks: blocks.collect::<Result<_, _>>()?,
            aggregate: Tdnn::load(loader, "mfa.conv", wide, last)?,
            attention: (
                Tdnn::load(loader, "asp.tdnn.conv", 3 * wide, pointwise(attended))?,
                Tdnn::load(loader, "asp.conv", attended, pointwise(wide))?,
            ),
            last: Tdnn::load(loader, "fc", 2 * wide, pointwise(config.enc_dim))?,
        })
    }
}

impl Block {
    fn load(
        loader: &mut Loader<'_>,
        index: usize,
        shape: TdnnShape,
        config: &SpeakerConfig,
    ) -> Result<Self, ModelError> {
        let name = |part: &str| format!("blocks.{index}.{part}");
        let channels = shape.channels;
        let step = TdnnShape { channels: channels / config.res2net_scale, ..shape };
        let enter = Tdnn::load(loader, &name("tdnn1.conv"), channels, pointwise(channels))?;
        let steps = (0..config.res2net_scale - 1)
            .map(|i| {
                Tdnn::load(loader, &name(&format!("res2net_block.blocks.{i}.conv")), step.channels, step)
            })
            .collect::<Result<_, _>>()?;
        let squeezed = config.se_channels;
        Ok(Self {
            enter,
            steps,
            leave: Tdnn::load(loader, &name("tdnn2.conv"), channels, pointwise(channels))?,
            squeeze: (
                Tdnn::load(loader, &name("se_block.conv1"), channels, pointwise(squeezed))?,
                Tdnn::load(loader, &name("se_block.conv2"), squeezed, pointwise(channels))?,
            ),
        })
    }
}

impl Tdnn {
    fn load(loader: &mut Loader<'_>, name: &str, input: usize, shape: TdnnShape) -> Result<Self, ModelError> {
        let tensor = format!("speaker_encoder.{name}.weight");
        let weight = if shape.kernel == 1 {
            loader.matrix(&tensor, shape.channels, input)?
        } else {
            loader.upload(&tensor, WeightForm::Conv, &[shape.channels, input, shape.kernel])?
        };
        let bias = loader.vector(&format!("speaker_encoder.{name}.bias"), shape.channels)?;
        Ok(Self { weight, bias, shape })
    }
}

const fn pointwise(channels: usize) -> TdnnShape {
    TdnnShape { channels, kernel: 1, dilation: 1 }
}

/// Mirrored rows before and after that keep the length.
const fn same_padding(shape: TdnnShape) -> (usize, usize) {
    let total = shape.dilation * (shape.kernel - 1);
    (total / 2, total - total / 2)
}

/// The program for a clip of `samples` samples: input `[samples, 1]`, output the vector `[1, enc_dim]`.
pub(crate) fn program(config: &SpeakerConfig, weights: &SpeakerWeights, samples: usize) -> Program {
    let mut builder = ProgramBuilder::new(format!("qwen3_tts.speaker.{samples}"));
    let clip = builder.input("clip", Dtype::F32, Rows::Fixed(samples), 1);
    let frames = MEL.frames(samples);
    let mel = builder.scratch("mel", Rows::Fixed(frames), config.mel_dim);
    builder.push(Op::LogMel {
        input: clip,
        window: weights.window,
        filters: weights.filters,
        n_fft: MEL.n_fft,
        hop: MEL.hop,
        pad: MEL.pad(),
        magnitude_eps: MEL.magnitude_eps,
        floor: MEL.floor,
        out: mel,
    });
    let mut record = Recorder { builder, rows: Rows::Fixed(frames) };
    let aggregated = record.scratch("aggregated", config.aggregated());
    let mut stream = record.tdnn("first", &weights.first, mel, Some(Activation::Relu));
    let mut first = 0;
    for (index, block) in (1..).zip(&weights.blocks) {
        stream = record.block(&format!("block{index}"), block, stream);
        record.push(Op::Place { source: stream, out: aggregated, first });
        first += block.leave.shape.channels;
    }
    let features = record.tdnn("mfa", &weights.aggregate, aggregated, Some(Activation::Relu));
    let pooled = record.attentive_statistics(&weights.attention, features, config.aggregated());
    record.rows = Rows::Fixed(1);
    let vector = record.tdnn("vector", &weights.last, pooled, None);
    record.builder.output(vector);
    record.builder.finish()
}

struct Recorder {
    builder: ProgramBuilder,
    /// Rows of the values recorded.
    rows: Rows,
}

impl Recorder {
    fn push(&mut self, op: Op) {
        self.builder.push(op);
    }

    fn scratch(&mut self, name: &str, cols: usize) -> ValueId {
        self.builder.scratch(name, self.rows, cols)
    }

    fn tdnn(&mut self, name: &str, layer: &Tdnn, input: ValueId, activation: Option<Activation>) -> ValueId {
        let TdnnShape { channels, kernel, dilation } = layer.shape;
        let out = self.scratch(name, channels);
        let (weight, bias) = (layer.weight, Some(layer.bias));
        let op = if kernel == 1 {
            Op::Linear { input, weight, bias, activation, residual: None, out }
        } else {
            let (left, right) = same_padding(layer.shape);
            let shape = ConvShape { kernel, stride: 1, dilation };
            Op::Conv {
                input,
                weight,
                bias,
                shape,
                padding: Padding::Reflect { left, right },
                activation,
                out,
            }
        };
        self.push(op);
        out
    }

    /// Squeeze-excited Res2Net block: the channels in equal parts, each part's layer fed with the sum of
    /// the part and the output of the part before; then a gate per channel from the mean over time.
    fn block(&mut self, name: &str, block: &Block, input: ValueId) -> ValueId {
        let relu = Some(Activation::Relu);
        let channels = block.enter.shape.channels;
        let part = channels / (block.steps.len() + 1);
        let entered = self.tdnn(&format!("{name}.enter"), &block.enter, input, relu);
        let mixed = self.scratch(&format!("{name}.mixed"), channels);
        let unchanged = self.slice(&format!("{name}.part0"), entered, 0, part);
        self.push(Op::Place { source: unchanged, out: mixed, first: 0 });
        let mut before = None;
        for (index, step) in (1..).zip(&block.steps) {
            let first = index * part;
            let slice = self.slice(&format!("{name}.part{index}"), entered, first, part);
            if let Some(before) = before {
                self.push(Op::AddScaled { target: slice, input: before, scale: None });
            }
            let out = self.tdnn(&format!("{name}.step{index}"), step, slice, relu);
            self.push(Op::Place { source: out, out: mixed, first });
            before = Some(out);
        }
        let left = self.tdnn(&format!("{name}.leave"), &block.leave, mixed, relu);
        let gate = self.gate(name, &block.squeeze, left, channels);
        let gated = self.scratch(&format!("{name}.gated"), channels);
        self.push(Op::Multiply { a: left, b: gate, out: gated });
        self.push(Op::AddScaled { target: gated, input, scale: None });
        gated
    }

    fn gate(&mut self, name: &str, squeeze: &(Tdnn, Tdnn), input: ValueId, channels: usize) -> ValueId {
        let rows = std::mem::replace(&mut self.rows, Rows::Fixed(1));
        let statistics = self.scratch(&format!("{name}.statistics"), 2 * channels);
        self.push(Op::Statistics { input, weights: None, eps: VARIANCE_MIN, out: statistics });
        let mean = self.slice(&format!("{name}.mean"), statistics, 0, channels);
        let squeezed = self.tdnn(&format!("{name}.squeeze"), &squeeze.0, mean, Some(Activation::Relu));
        let gate = self.tdnn(&format!("{name}.gate"), &squeeze.1, squeezed, Some(Activation::Sigmoid));
        self.rows = rows;
        gate
    }

    /// Means and deviations over time, `[1, 2 * channels]`, weighted by attention that sees each frame
    /// beside the plain means and deviations.
    fn attentive_statistics(&mut self, layers: &(Tdnn, Tdnn), features: ValueId, channels: usize) -> ValueId {
        let plain = self.builder.scratch("plain", Rows::Fixed(1), 2 * channels);
        self.push(Op::Statistics { input: features, weights: None, eps: VARIANCE_MIN, out: plain });
        let repeated = self.scratch("repeated", 2 * channels);
        self.push(Op::Repeat { source: plain, out: repeated });
        let beside = self.scratch("beside", 3 * channels);
        self.push(Op::Place { source: features, out: beside, first: 0 });
        self.push(Op::Place { source: repeated, out: beside, first: channels });
        let seen = self.tdnn("attention.seen", &layers.0, beside, Some(Activation::Relu));
        let bent = self.scratch("attention.bent", layers.0.shape.channels);
        self.push(Op::Activate { input: seen, activation: Activation::Tanh, out: bent });
        let scores = self.tdnn("attention.scores", &layers.1, bent, None);
        let attention = self.scratch("attention", channels);
        self.push(Op::SoftmaxOverTime { input: scores, out: attention });
        let pooled = self.builder.scratch("pooled", Rows::Fixed(1), 2 * channels);
        self.push(Op::Statistics {
            input: features,
            weights: Some(attention),
            eps: VARIANCE_MIN,
            out: pooled,
        });
        pooled
    }

    fn slice(&mut self, name: &str, source: ValueId, first: usize, cols: usize) -> ValueId {
        let out = self.scratch(name, cols);
        self.push(Op::Slice { source, first, out });
        out
    }
}
