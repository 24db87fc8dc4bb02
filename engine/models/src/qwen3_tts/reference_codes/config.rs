//! What the codec's encoder takes from its config.

use device::program::{AttentionShape, Rope};

use super::super::class_defaults;
use crate::ModelError;
use crate::json::Object;

/// `encoder_config` of the codec. A key that a checkpoint leaves out has the reference class's default.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ReferenceCodesConfig {
    /// Codebooks that are kept, in all.
    pub(crate) groups: usize,
    /// Of these, the semantic ones.
    pub(super) semantic: usize,
    pub(super) codebook: usize,
    pub(super) codebook_dim: usize,
    pub(super) stack: StackConfig,
    pub(super) downsample_kernel: usize,
    pub(super) transformer: TransformerConfig,
}

/// The convolution stack.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct StackConfig {
    pub(super) filters: usize,
    /// Strides in order of use.
    pub(super) strides: Vec<usize>,
    pub(super) residual_layers: usize,
    pub(super) kernel: usize,
    pub(super) last_kernel: usize,
    pub(super) residual_kernel: usize,
    pub(super) dilation_growth: usize,
    pub(super) compress: usize,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct TransformerConfig {
    pub(super) layers: usize,
    pub(super) hidden: usize,
    pub(super) intermediate: usize,
    pub(super) shape: AttentionShape,
    pub(super) norm_eps: f32,
}

/// Stride after the transformer; a literal of the reference.
pub(super) const DOWNSAMPLE: usize = 2;
/// Least usage an entry's sum is divided by; a literal of the reference.
pub(super) const USAGE_MIN: f32 = 1e-5;

impl ReferenceCodesConfig {
    /// From the root of the codec's `config.json`.
    ///
    /// # Errors
    /// A value of the wrong type, or a setting whose arithmetic is not this module's.
    pub(crate) fn read(root: &Object<'_>) -> Result<Self, ModelError> {
        let root = &root.clone().or(class_defaults::of("codec_config"));
        let keys = root.object("encoder_config")?.or(class_defaults::of("encoder_config"));
        let quantizers = keys.count("num_quantizers")?;
        let semantic = keys.count("num_semantic_quantizers")?;
        let groups = root.count("encoder_valid_num_quantizers")?;
        if groups > quantizers || groups <= semantic {
            let bound = format!(
                "above num_semantic_quantizers, {semantic}, and at most num_quantizers, {quantizers}"
            );
            return Err(root.out_of_range("encoder_valid_num_quantizers", groups, bound));
        }
        let wanted = [
            ("use_causal_conv", keys.flag_or("use_causal_conv", true)?, true),
            ("use_conv_shortcut", keys.flag_or("use_conv_shortcut", false)?, false),
            ("attention_bias", keys.flag_or("attention_bias", false)?, false),
        ];
        if let Some((key, found, wanted)) = wanted.into_iter().find(|(_, found, wanted)| found != wanted) {
            return Err(keys.out_of_range(key, found, wanted.to_string()));
        }
        for (key, wanted) in [("pad_mode", "constant"), ("hidden_act", "gelu")] {
            let found = keys.text(key)?;
            if found != wanted {
                return Err(keys.out_of_range(key, found, wanted));
            }
        }
        let channels = keys.count("audio_channels")?;
        if channels != 1 {
            return Err(keys.out_of_range("audio_channels", channels, "1"));
        }
        let stack = StackConfig::read(&keys)?;
        let codebook_dim = keys.count("codebook_dim")?;
        let projected = keys.count("vector_quantization_hidden_dimension")?;
        if projected != codebook_dim {
            let bound = format!("codebook_dim, {codebook_dim}");
            return Err(keys.out_of_range("vector_quantization_hidden_dimension", projected, bound));
        }
        Ok(Self {
            groups,
            semantic,
            codebook: keys.count("codebook_size")?,
            codebook_dim,
            downsample_kernel: downsample_kernel(root, &keys, &stack)?,
            stack,
            transformer: TransformerConfig::read(&keys)?,
        })
    }
}

impl StackConfig {
    fn read(keys: &Object<'_>) -> Result<Self, ModelError> {
        let mut strides = keys.counts("upsampling_ratios")?;
        strides.reverse();
        let filters = keys.count("num_filters")?;
        let compress = keys.count("compress")?;
        if filters < compress {
            return Err(keys.out_of_range("compress", compress, format!("at most num_filters, {filters}")));
        }
        Ok(Self {
            filters,
            strides,
            residual_layers: keys.count("num_residual_layers")?,
            kernel: keys.count("kernel_size")?,
            last_kernel: keys.count("last_kernel_size")?,
            residual_kernel: keys.count("residual_kernel_size")?,
            dilation_growth: keys.count("dilation_growth_rate")?,
            compress,
        })
    }
}

impl TransformerConfig {
    fn read(keys: &Object<'_>) -> Result<Self, ModelError> {
        let hidden = keys.count("hidden_size")?;
        let heads = keys.count("num_attention_heads")?;
        let kv_heads = keys.count("num_key_value_heads")?;
        if !heads.is_multiple_of(kv_heads) {
            return Err(keys.out_of_range("num_key_value_heads", kv_heads, format!("a divisor of {heads}")));
        }
        let head_dim = if keys.is_absent("head_dim") { hidden / heads } else { keys.count("head_dim")? };
        if head_dim == 0 || !head_dim.is_multiple_of(2) {
            return Err(keys.out_of_range("head_dim", head_dim, "even, for the rotary embedding"));
        }
        let theta = keys.rope_base("rope_theta")?;
        let scale = (head_dim as f32).sqrt().recip();
        Ok(Self {
            layers: keys.count("num_hidden_layers")?,
            hidden,
            intermediate: keys.count("intermediate_size")?,
            shape: AttentionShape { heads, kv_heads, head_dim, rope: Some(Rope { theta }), scale },
            norm_eps: keys.epsilon("norm_eps")?,
        })
    }
}

/// The kernel of the last halving, if the rates say that there is one.
fn downsample_kernel(root: &Object<'_>, keys: &Object<'_>, stack: &StackConfig) -> Result<usize, ModelError> {
    let per_frame = stack.strides.iter().try_fold(DOWNSAMPLE, |product, &stride| product.checked_mul(stride));
    let stated = root.count("encode_downsample_rate")?;
    if per_frame != Some(stated) {
        let bound = format!("the product of upsampling_ratios times {DOWNSAMPLE}");
        return Err(root.out_of_range("encode_downsample_rate", stated, bound));
    }
    let sample_rate = keys.sample_rate("sampling_rate")?;
    let stack_rate = sample_rate.div_ceil(stated / DOWNSAMPLE) as f32;
    let frame_rate = keys.number_or("frame_rate", sample_rate as f32 / stated as f32)?;
    let kernel = ((stack_rate / frame_rate) as usize).saturating_mul(2);
    if frame_rate <= 0.0 || !(DOWNSAMPLE..=stated).contains(&kernel) {
        let bound = format!("about {}, the codec's", sample_rate as f32 / stated as f32);
        return Err(keys.out_of_range("frame_rate", frame_rate, bound));
    }
    Ok(kernel)
}
