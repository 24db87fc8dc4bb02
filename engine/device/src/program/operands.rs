//! Which values an operation touches, and how.

use super::{Op, ValueId};

/// What an operation does to a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Reads all of it.
    Read,
    /// Working memory of a group of ops; holds nothing before the first and after the last.
    Scratch,
    /// Reads and rewrites all of it.
    Update,
    /// Writes all of it.
    Write,
    /// Writes some columns of it.
    WriteColumns,
}

/// One use of a value by an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operand {
    /// Field of the op.
    pub field: &'static str,
    pub role: Role,
    pub value: ValueId,
}

impl Op {
    /// Every value the operation touches, reads first.
    #[must_use]
    pub fn operands(&self) -> Vec<Operand> {
        let mut list = Vec::new();
        let mut add = |field, role, value| list.push(Operand { field, role, value });
        use Role::{Read, Scratch, Update, Write, WriteColumns};
        let sum = |accumulate: bool| if accumulate { Update } else { Write };
        match *self {
            Self::Embed { ids, out, accumulate, .. } => {
                add("ids", Read, ids);
                add("out", sum(accumulate), out);
            }
            Self::EmbedSum { codes, out, accumulate, .. } => {
                add("codes", Read, codes);
                add("out", sum(accumulate), out);
            }
            Self::GatherRows { source, rows, out, accumulate } => {
                add("source", Read, source);
                add("rows", Read, rows);
                add("out", sum(accumulate), out);
            }
            Self::Slice { source, out, .. }
            | Self::Repeat { source, out }
            | Self::Reshape { source, out } => {
                add("source", Read, source);
                add("out", Write, out);
            }
            Self::Place { source, out, .. } => {
                add("source", Read, source);
                add("out", WriteColumns, out);
            }
            Self::LoadState { slots, out, .. } => {
                add("slots", Read, slots);
                add("out", Write, out);
            }
            Self::StoreState { slots, source, active, .. } => {
                add("slots", Read, slots);
                add("source", Read, source);
                if let Some(active) = active {
                    add("active", Read, active);
                }
            }
            Self::Linear { input, residual, out, .. } => {
                add("input", Read, input);
                if let Some(residual) = residual {
                    add("residual", Read, residual);
                }
                add("out", Write, out);
            }
            Self::GatedMlp { input, out, .. }
            | Self::RmsNorm { input, out, .. }
            | Self::LayerNorm { input, out, .. }
            | Self::Activate { input, out, .. }
            | Self::Clamp { input, out, .. }
            | Self::SnakeBeta { input, out, .. }
            | Self::Conv { input, out, .. }
            | Self::DepthwiseConv { input, out, .. }
            | Self::SoftmaxOverTime { input, out }
            | Self::LogMel { input, out, .. } => {
                add("input", Read, input);
                add("out", Write, out);
            }
            Self::AddScaled { target, input, .. } => {
                add("input", Read, input);
                add("target", Update, target);
            }
            Self::Multiply { a, b, out } => {
                add("a", Read, a);
                add("b", Read, b);
                add("out", Write, out);
            }
            Self::PagedAttention { q, k, v, positions, owner, page_table, out, .. } => {
                add("q", Read, q);
                add("k", Read, k);
                add("v", Read, v);
                add("positions", Read, positions);
                add("owner", Read, owner);
                add("page_table", Read, page_table);
                add("out", Write, out);
            }
            Self::DepthAttention { q, k, v, keys, values, out, .. } => {
                add("q", Read, q);
                add("k", Read, k);
                add("v", Read, v);
                add("keys", Scratch, keys);
                add("values", Scratch, values);
                add("out", Write, out);
            }
            Self::WindowAttention { q, k, v, slots, start, valid, out, .. } => {
                add("q", Read, q);
                add("k", Read, k);
                add("v", Read, v);
                add("slots", Read, slots);
                add("start", Read, start);
                add("valid", Read, valid);
                add("out", Write, out);
            }
            Self::LocalAttention { q, k, v, out, .. } => {
                add("q", Read, q);
                add("k", Read, k);
                add("v", Read, v);
                add("out", Write, out);
            }
            Self::CausalConv { input, residual, slots, start, valid, out, .. } => {
                add("input", Read, input);
                if let Some(residual) = residual {
                    add("residual", Read, residual);
                }
                add("slots", Read, slots);
                add("start", Read, start);
                add("valid", Read, valid);
                add("out", Write, out);
            }
            Self::CausalDepthwiseConv { input, slots, start, valid, out, .. }
            | Self::CausalConvTranspose { input, slots, start, valid, out, .. } => {
                add("input", Read, input);
                add("slots", Read, slots);
                add("start", Read, start);
                add("valid", Read, valid);
                add("out", Write, out);
            }
            Self::Statistics { input, weights, out, .. } => {
                add("input", Read, input);
                if let Some(weights) = weights {
                    add("weights", Read, weights);
                }
                add("out", Write, out);
            }
            Self::QuantizeResidual { residual, codes, .. } => {
                add("residual", Update, residual);
                add("codes", WriteColumns, codes);
            }
            Self::Sample { logits, params, seeds, step, allow_keep, slots, out, .. } => {
                add("logits", Read, logits);
                add("params", Read, params);
                add("seeds", Read, seeds);
                add("step", Read, step);
                if let Some(allow_keep) = allow_keep {
                    add("allow_keep", Read, allow_keep);
                }
                add("slots", Read, slots);
                add("out", WriteColumns, out);
            }
            Self::Equals { ids, flags, .. } => {
                add("ids", Read, ids);
                add("flags", Write, flags);
            }
            Self::MaskRows { source, valid, out, .. } => {
                add("source", Read, source);
                add("valid", Read, valid);
                add("out", Write, out);
            }
        }
        list
    }

    /// The value that may be read and written at the same place: `out` may then equal it.
    #[must_use]
    pub fn in_place(&self) -> Option<ValueId> {
        match *self {
            Self::Linear { residual, .. } | Self::CausalConv { residual, .. } => residual,
            Self::RmsNorm { input, .. }
            | Self::LayerNorm { input, .. }
            | Self::Activate { input, .. }
            | Self::Clamp { input, .. }
            | Self::SnakeBeta { input, .. } => Some(input),
            Self::Multiply { a, .. } => Some(a),
            _ => None,
        }
    }

    /// The operation's name as it is printed.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Activate { .. } => "activate",
            Self::AddScaled { .. } => "add_scaled",
            Self::CausalConv { .. } => "causal_conv",
            Self::CausalConvTranspose { .. } => "causal_conv_transpose",
            Self::CausalDepthwiseConv { .. } => "causal_depthwise_conv",
            Self::Clamp { .. } => "clamp",
            Self::Conv { .. } => "conv",
            Self::DepthAttention { .. } => "depth_attention",
            Self::DepthwiseConv { .. } => "depthwise_conv",
            Self::Embed { .. } => "embed",
            Self::EmbedSum { .. } => "embed_sum",
            Self::Equals { .. } => "equals",
            Self::GatedMlp { .. } => "gated_mlp",
            Self::GatherRows { .. } => "gather_rows",
            Self::LayerNorm { .. } => "layer_norm",
            Self::Linear { .. } => "linear",
            Self::LoadState { .. } => "load_state",
            Self::LocalAttention { .. } => "local_attention",
            Self::LogMel { .. } => "log_mel",
            Self::MaskRows { .. } => "mask_rows",
            Self::Multiply { .. } => "multiply",
            Self::PagedAttention { .. } => "paged_attention",
            Self::Place { .. } => "place",
            Self::QuantizeResidual { .. } => "quantize_residual",
            Self::Repeat { .. } => "repeat",
            Self::Reshape { .. } => "reshape",
            Self::RmsNorm { .. } => "rms_norm",
            Self::Sample { .. } => "sample",
            Self::Slice { .. } => "slice",
            Self::SnakeBeta { .. } => "snake_beta",
            Self::SoftmaxOverTime { .. } => "softmax_over_time",
            Self::Statistics { .. } => "statistics",
            Self::StoreState { .. } => "store_state",
            Self::WindowAttention { .. } => "window_attention",
        }
    }
}
