//! Tensors of the codec's encoder.

use device::{WeightForm, WeightId};

use super::config::{DOWNSAMPLE, ReferenceCodesConfig, USAGE_MIN};
use crate::ModelError;
use crate::weights::Loader;

/// The encoder's weights on a device.
#[derive(Clone, Debug)]
pub(crate) struct ReferenceCodesWeights {
    pub(super) enter: Conv,
    pub(super) levels: Vec<Level>,
    pub(super) leave: Conv,
    pub(super) layers: Vec<Layer>,
    pub(super) downsample: Conv,
    pub(super) semantic: Branch,
    pub(super) acoustic: Branch,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Conv {
    pub(super) weight: WeightId,
    pub(super) bias: Option<WeightId>,
    pub(super) input: usize,
    pub(super) out: usize,
    pub(super) kernel: usize,
    pub(super) stride: usize,
    pub(super) dilation: usize,
}

/// Residual blocks at one rate, then the convolution to the next.
#[derive(Clone, Debug)]
pub(super) struct Level {
    pub(super) blocks: Vec<ResidualBlock>,
    pub(super) narrow: Conv,
}

#[derive(Clone, Debug)]
pub(super) struct ResidualBlock {
    pub(super) first: Conv,
    /// Weight and bias of the pointwise convolution.
    pub(super) second: (WeightId, WeightId),
}

#[derive(Clone, Debug)]
pub(super) struct Layer {
    pub(super) input_norm: (WeightId, WeightId),
    pub(super) q: WeightId,
    pub(super) k: WeightId,
    pub(super) v: WeightId,
    pub(super) o: WeightId,
    pub(super) attention_scale: WeightId,
    pub(super) post_norm: (WeightId, WeightId),
    pub(super) widen: WeightId,
    pub(super) narrow: WeightId,
    pub(super) mlp_scale: WeightId,
}

/// One half of the split quantizer.
#[derive(Clone, Debug)]
pub(super) struct Branch {
    pub(super) projection: WeightId,
    pub(super) codebooks: Vec<WeightId>,
}

impl ReferenceCodesWeights {
    /// Loads the tensors under `encoder` of the codec's files.
    ///
    /// # Errors
    /// A tensor that is missing or of another shape, or no memory.
    pub(crate) fn load(loader: &mut Loader<'_>, config: &ReferenceCodesConfig) -> Result<Self, ModelError> {
        let stack = &config.stack;
        let mut channels = stack.filters;
        let plain = |input, out, kernel| ConvSize { input, out, kernel, stride: 1, dilation: 1 };
        let enter = Conv::load(loader, "encoder.encoder.layers.0.conv", plain(1, channels, stack.kernel))?;
        // Layers count in the order they run, activations too.
        let mut number = 1;
        let mut levels = Vec::new();
        for &stride in &stack.strides {
            let mut blocks = Vec::new();
            let mut dilation = 1;
            for _ in 0..stack.residual_layers {
                blocks.push(ResidualBlock::load(loader, number, channels, dilation, config)?);
                number += 1;
                dilation = stack.dilation_growth.saturating_mul(dilation);
            }
            number += 1;
            let size =
                ConvSize { input: channels, out: 2 * channels, kernel: 2 * stride, stride, dilation: 1 };
            let narrow = Conv::load(loader, &format!("encoder.encoder.layers.{number}.conv"), size)?;
            number += 1;
            channels *= 2;
            levels.push(Level { blocks, narrow });
        }
        number += 1;
        let hidden = config.transformer.hidden;
        let leave = plain(channels, hidden, stack.last_kernel);
        let leave = Conv::load(loader, &format!("encoder.encoder.layers.{number}.conv"), leave)?;
        let layers = (0..config.transformer.layers).map(|index| Layer::load(loader, index, config));
        let layers = layers.collect::<Result<_, _>>()?;
        let kernel = config.downsample_kernel;
        let weight =
            loader.upload("encoder.downsample.conv.weight", WeightForm::Conv, &[hidden, hidden, kernel])?;
        Ok(Self {
            enter,
            levels,
            leave,
            layers,
            downsample: Conv {
                weight,
                bias: None,
                input: hidden,
                out: hidden,
                kernel,
                stride: DOWNSAMPLE,
                dilation: 1,
            },
            semantic: Branch::load(loader, "semantic", config.semantic, config)?,
            acoustic: Branch::load(loader, "acoustic", config.groups - config.semantic, config)?,
        })
    }
}

#[derive(Clone, Copy)]
struct ConvSize {
    input: usize,
    out: usize,
    kernel: usize,
    stride: usize,
    dilation: usize,
}

impl Conv {
    fn load(loader: &mut Loader<'_>, name: &str, size: ConvSize) -> Result<Self, ModelError> {
        let ConvSize { input, out, kernel, stride, dilation } = size;
        let weight = loader.upload(&format!("{name}.weight"), WeightForm::Conv, &[out, input, kernel])?;
        let bias = Some(loader.vector(&format!("{name}.bias"), out)?);
        Ok(Self { weight, bias, input, out, kernel, stride, dilation })
    }
}

impl ResidualBlock {
    fn load(
        loader: &mut Loader<'_>,
        number: usize,
        channels: usize,
        dilation: usize,
        config: &ReferenceCodesConfig,
    ) -> Result<Self, ModelError> {
        let name = format!("encoder.encoder.layers.{number}.block");
        let inner = channels / config.stack.compress;
        let kernel = config.stack.residual_kernel;
        let size = ConvSize { input: channels, out: inner, kernel, stride: 1, dilation };
        Ok(Self {
            first: Conv::load(loader, &format!("{name}.1.conv"), size)?,
            second: (
                loader.matrix(&format!("{name}.3.conv.weight"), channels, inner)?,
                loader.vector(&format!("{name}.3.conv.bias"), channels)?,
            ),
        })
    }
}

impl Layer {
    fn load(
        loader: &mut Loader<'_>,
        index: usize,
        config: &ReferenceCodesConfig,
    ) -> Result<Self, ModelError> {
        let prefix = format!("encoder.encoder_transformer.layers.{index}");
        let transformer = config.transformer;
        let (hidden, inner) = (transformer.hidden, transformer.intermediate);
        let q_width = transformer.shape.heads * transformer.shape.head_dim;
        let kv_width = transformer.shape.kv_heads * transformer.shape.head_dim;
        let mut matrix = |part: &str, out: usize, input: usize| {
            loader.matrix(&format!("{prefix}.{part}.weight"), out, input)
        };
        let q = matrix("self_attn.q_proj", q_width, hidden)?;
        let k = matrix("self_attn.k_proj", kv_width, hidden)?;
        let v = matrix("self_attn.v_proj", kv_width, hidden)?;
        let o = matrix("self_attn.o_proj", hidden, q_width)?;
        let widen = matrix("mlp.fc1", inner, hidden)?;
        let narrow = matrix("mlp.fc2", hidden, inner)?;
        let mut vector = |part: &str| loader.vector(&format!("{prefix}.{part}"), hidden);
        Ok(Self {
            input_norm: (vector("input_layernorm.weight")?, vector("input_layernorm.bias")?),
            post_norm: (vector("post_attention_layernorm.weight")?, vector("post_attention_layernorm.bias")?),
            attention_scale: vector("self_attn_layer_scale.scale")?,
            mlp_scale: vector("mlp_layer_scale.scale")?,
            q,
            k,
            v,
            o,
            widen,
            narrow,
        })
    }
}

impl Branch {
    /// The first `count` codebooks: each entry is the mean of what it was trained on.
    fn load(
        loader: &mut Loader<'_>,
        kind: &str,
        count: usize,
        config: &ReferenceCodesConfig,
    ) -> Result<Self, ModelError> {
        let name = format!("encoder.quantizer.{kind}_residual_vector_quantizer");
        let (entries, width) = (config.codebook, config.codebook_dim);
        let projection =
            loader.matrix(&format!("{name}.input_proj.weight"), width, config.transformer.hidden)?;
        let codebooks = (0..count).map(|index| {
            let codebook = format!("{name}.layers.{index}.codebook");
            loader.computed(&codebook, WeightForm::Table, &[entries, width], |files| {
                let sums = files.values(&format!("{codebook}.embed_sum"), &[entries, width])?;
                let usage = files.values(&format!("{codebook}.cluster_usage"), &[entries])?;
                let means = sums.chunks(width).zip(&usage);
                Ok(means
                    .flat_map(|(sum, &used)| sum.iter().map(move |value| value / used.max(USAGE_MIN)))
                    .collect())
            })
        });
        Ok(Self { projection, codebooks: codebooks.collect::<Result<_, _>>()? })
    }
}
