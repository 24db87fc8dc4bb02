//! A decoder layer: RMS norm, attention with optional per-head norms and rotary embedding, RMS norm,
//! SwiGLU. The Llama and Qwen3 families and many codec transformers are stacks of it.
//!
//! `x += s_a * o(attention(norm(x)))`, `x += s_m * mlp(norm(x))`; the scales `s` are 1 where absent.

use device::program::{AttentionShape, ProgramBuilder, Rope, Rows};
use device::{Op, PagedId, StateId, ValueId, WeightId};

use crate::weights::Loader;
use crate::{ModelError, json};

/// Sizes of one layer; all layers of a stack are alike.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LayerShape {
    pub(crate) hidden: usize,
    pub(crate) intermediate: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) rope_theta: f32,
    pub(crate) norm_eps: f32,
    /// Biases on q, k, v and o.
    pub(crate) attention_bias: bool,
    /// Per-head RMS norm of q and k before rope.
    pub(crate) head_norms: bool,
    /// Per-channel scales on both branches.
    pub(crate) layer_scale: bool,
}

/// What a checkpoint calls the tensors that are not named alike everywhere.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TensorNames {
    pub(crate) attention_scale: &'static str,
    pub(crate) mlp_scale: &'static str,
}

/// Weights of one layer on the device.
#[derive(Clone, Debug)]
pub(crate) struct LayerWeights {
    input_norm: WeightId,
    q: (WeightId, Option<WeightId>),
    k: (WeightId, Option<WeightId>),
    v: (WeightId, Option<WeightId>),
    o: (WeightId, Option<WeightId>),
    q_norm: Option<WeightId>,
    k_norm: Option<WeightId>,
    attention_scale: Option<WeightId>,
    post_norm: WeightId,
    gate: WeightId,
    up: WeightId,
    down: WeightId,
    mlp_scale: Option<WeightId>,
}

/// Where keys and values come from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AttentionKind {
    /// The context's pages: rows are batch rows or packed tokens.
    Paged { pages: PagedId, layer: usize, positions: ValueId, owner: ValueId, page_table: ValueId },
    /// Values of this launch only, `position` being that of each batch row's first row.
    Depth { keys: ValueId, values: ValueId, position: usize },
    /// A carried window per slot.
    Window { window: usize, state: StateId, slots: ValueId, start: ValueId, valid: ValueId },
}

/// Values one stack's layers share; each layer overwrites them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LayerScratch {
    normed: ValueId,
    q: ValueId,
    k: ValueId,
    v: ValueId,
    attended: ValueId,
    branch: ValueId,
}

impl LayerShape {
    /// Reads the keys every decoder config of the transformers library spells alike.
    ///
    /// # Errors
    /// A missing key, or a setting whose arithmetic is not the one above.
    pub(crate) fn read(
        config: &json::Object<'_>,
        head_norms: bool,
        layer_scale: bool,
    ) -> Result<Self, ModelError> {
        let hidden = config.count("hidden_size")?;
        let heads = config.count("num_attention_heads")?;
        let kv_heads = config.count("num_key_value_heads")?;
        if !heads.is_multiple_of(kv_heads) {
            return Err(config.out_of_range(
                "num_key_value_heads",
                kv_heads,
                format!("a divisor of {heads}"),
            ));
        }
        let head_dim =
            if config.is_absent("head_dim") { hidden.div_ceil(heads) } else { config.count("head_dim")? };
        if !head_dim.is_multiple_of(2) {
            return Err(config.out_of_range("head_dim", head_dim, "even, for the rotary embedding"));
        }
        let act = config.text("hidden_act")?;
        if act != "silu" {
            return Err(config.out_of_range("hidden_act", act, "silu"));
        }
        Ok(Self {
            hidden,
            intermediate: config.count("intermediate_size")?,
            heads,
            kv_heads,
            head_dim,
            rope_theta: config.rope_base("rope_theta")?,
            norm_eps: config.epsilon("rms_norm_eps")?,
            attention_bias: config.flag_or("attention_bias", false)?,
            head_norms,
            layer_scale,
        })
    }

    pub(crate) fn q_width(&self) -> usize {
        self.heads * self.head_dim
    }

    pub(crate) fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    fn attention(&self) -> AttentionShape {
        AttentionShape {
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            rope: Some(Rope { theta: self.rope_theta }),
            scale: (self.head_dim as f32).sqrt().recip(),
        }
    }
}

impl LayerWeights {
    /// Loads the layer whose tensors start with `prefix` (for instance `model.layers.0`).
    pub(crate) fn load(
        loader: &mut Loader<'_>,
        prefix: &str,
        shape: &LayerShape,
        names: TensorNames,
    ) -> Result<Self, ModelError> {
        let mut attention = |part: &str, out: usize, input: usize| {
            let weight = loader.matrix(&format!("{prefix}.self_attn.{part}.weight"), out, input)?;
            let bias = if shape.attention_bias {
                Some(loader.vector(&format!("{prefix}.self_attn.{part}.bias"), out)?)
            } else {
                None
            };
            Ok::<_, ModelError>((weight, bias))
        };
        let q = attention("q_proj", shape.q_width(), shape.hidden)?;
        let k = attention("k_proj", shape.kv_width(), shape.hidden)?;
        let v = attention("v_proj", shape.kv_width(), shape.hidden)?;
        let o = attention("o_proj", shape.hidden, shape.q_width())?;
        let mut optional = |wanted: bool, part: &str, width: usize| {
            if wanted { loader.vector(&format!("{prefix}.{part}"), width).map(Some) } else { Ok(None) }
        };
        let q_norm = optional(shape.head_norms, "self_attn.q_norm.weight", shape.head_dim)?;
        let k_norm = optional(shape.head_norms, "self_attn.k_norm.weight", shape.head_dim)?;
        let attention_scale = optional(shape.layer_scale, names.attention_scale, shape.hidden)?;
        let mlp_scale = optional(shape.layer_scale, names.mlp_scale, shape.hidden)?;
        Ok(Self {
            input_norm: loader.vector(&format!("{prefix}.input_layernorm.weight"), shape.hidden)?,
            post_norm: loader.vector(&format!("{prefix}.post_attention_layernorm.weight"), shape.hidden)?,
            gate: loader.matrix(
                &format!("{prefix}.mlp.gate_proj.weight"),
                shape.intermediate,
                shape.hidden,
            )?,
            up: loader.matrix(&format!("{prefix}.mlp.up_proj.weight"), shape.intermediate, shape.hidden)?,
            down: loader.matrix(
                &format!("{prefix}.mlp.down_proj.weight"),
                shape.hidden,
                shape.intermediate,
            )?,
            q,
            k,
            v,
            o,
            q_norm,
            k_norm,
            attention_scale,
            mlp_scale,
        })
    }
}

impl LayerScratch {
    pub(crate) fn new(builder: &mut ProgramBuilder, name: &str, rows: Rows, shape: &LayerShape) -> Self {
        let mut value = |part: &str, cols: usize| builder.scratch(&format!("{name}.{part}"), rows, cols);
        Self {
            normed: value("normed", shape.hidden),
            q: value("q", shape.q_width()),
            k: value("k", shape.kv_width()),
            v: value("v", shape.kv_width()),
            attended: value("attended", shape.q_width()),
            branch: value("branch", shape.hidden),
        }
    }
}

/// Records one layer over `stream`, in place.
pub(crate) fn record_layer(
    builder: &mut ProgramBuilder,
    weights: &LayerWeights,
    shape: &LayerShape,
    scratch: &LayerScratch,
    stream: ValueId,
    kind: AttentionKind,
) {
    let LayerScratch { normed, q, k, v, attended, branch } = *scratch;
    builder.push(Op::RmsNorm { input: stream, weight: weights.input_norm, eps: shape.norm_eps, out: normed });
    for (weight, out) in [(weights.q, q), (weights.k, k), (weights.v, v)] {
        builder.push(linear(normed, weight, out));
    }
    builder.push(attention_op(weights, shape, scratch, kind));
    if weights.attention_scale.is_some() {
        builder.push(linear(attended, weights.o, branch));
        builder.push(Op::AddScaled { target: stream, input: branch, scale: weights.attention_scale });
    } else {
        let (weight, bias) = weights.o;
        let residual = Some(stream);
        builder.push(Op::Linear { input: attended, weight, bias, activation: None, residual, out: stream });
    }
    builder.push(Op::RmsNorm { input: stream, weight: weights.post_norm, eps: shape.norm_eps, out: normed });
    let (gate, up, down) = (weights.gate, weights.up, weights.down);
    builder.push(Op::GatedMlp { input: normed, gate, up, down, out: branch });
    builder.push(Op::AddScaled { target: stream, input: branch, scale: weights.mlp_scale });
}

fn linear(input: ValueId, (weight, bias): (WeightId, Option<WeightId>), out: ValueId) -> Op {
    Op::Linear { input, weight, bias, activation: None, residual: None, out }
}

fn attention_op(
    weights: &LayerWeights,
    shape: &LayerShape,
    scratch: &LayerScratch,
    kind: AttentionKind,
) -> Op {
    let LayerScratch { q, k, v, attended: out, .. } = *scratch;
    let LayerWeights { q_norm, k_norm, .. } = *weights;
    let norm_eps = shape.norm_eps;
    let shape = shape.attention();
    match kind {
        AttentionKind::Paged { pages, layer, positions, owner, page_table } => Op::PagedAttention {
            q,
            k,
            v,
            q_norm,
            k_norm,
            norm_eps,
            shape,
            pages,
            layer,
            positions,
            owner,
            page_table,
            out,
        },
        AttentionKind::Depth { keys, values, position } => {
            Op::DepthAttention { q, k, v, q_norm, k_norm, norm_eps, shape, keys, values, position, out }
        }
        AttentionKind::Window { window, state, slots, start, valid } => {
            Op::WindowAttention { q, k, v, shape, window, state, slots, start, valid, out }
        }
    }
}
