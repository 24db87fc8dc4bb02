//! The constants of an operation as text: weights as `w3`, states as `s1`, page pools as `p0`.

use std::fmt::{Debug, Write};

use super::{AttentionShape, ConvShape, Op, Snake};
use crate::WeightId;

impl Op {
    /// Everything that is not a value, for printing.
    #[must_use]
    pub fn detail(&self) -> String {
        let mut text = Detail(String::new());
        match self {
            Self::Embed { table, .. } => text.weight("table", *table),
            Self::EmbedSum { tables, .. } => {
                let names: Vec<String> = tables.iter().map(|id| format!("w{}", id.0)).collect();
                text.show("tables", format_args!("[{}]", names.join(" ")));
            }
            Self::Slice { first, .. } | Self::Place { first, .. } => text.show("first", first),
            Self::LoadState { state, .. } | Self::StoreState { state, .. } => {
                text.show("state", format_args!("s{}", state.0));
            }
            Self::Linear { weight, bias, activation, .. } => {
                text.weight("weight", *weight);
                text.maybe("bias", *bias);
                text.some("activation", activation.as_ref());
            }
            Self::GatedMlp { gate, up, down, .. } => {
                text.weight("gate", *gate);
                text.weight("up", *up);
                text.weight("down", *down);
            }
            Self::RmsNorm { weight, eps, .. } => {
                text.weight("weight", *weight);
                text.show("eps", eps);
            }
            Self::LayerNorm { weight, bias, eps, .. } => {
                text.weight("weight", *weight);
                text.weight("bias", *bias);
                text.show("eps", eps);
            }
            Self::AddScaled { scale, .. } => text.maybe("scale", *scale),
            Self::Activate { activation, .. } => text.show("activation", activation),
            Self::Clamp { low, high, .. } => text.show("to", format_args!("{low:?}..={high:?}")),
            Self::SnakeBeta { snake, .. } => text.snake(Some(snake)),
            Self::PagedAttention { q_norm, k_norm, shape, pages, layer, .. } => {
                text.attention(shape);
                text.maybe("q_norm", *q_norm);
                text.maybe("k_norm", *k_norm);
                text.show("pages", format_args!("p{}", pages.0));
                text.show("layer", layer);
            }
            Self::DepthAttention { q_norm, k_norm, shape, position, .. } => {
                text.attention(shape);
                text.maybe("q_norm", *q_norm);
                text.maybe("k_norm", *k_norm);
                text.show("position", position);
            }
            Self::WindowAttention { shape, window, state, .. } => {
                text.attention(shape);
                text.show("window", window);
                text.show("state", format_args!("s{}", state.0));
            }
            Self::LocalAttention { shape, window, .. } => {
                text.attention(shape);
                text.show("window", window);
            }
            Self::CausalConv { weight, bias, shape, snake, state, frames, .. } => {
                text.conv(*weight, *bias, shape);
                text.snake(snake.as_ref());
                text.some("state", state.map(|id| id.0).as_ref());
                text.show("frames", frames);
            }
            Self::CausalDepthwiseConv { weight, bias, kernel, state, frames, .. } => {
                text.weight("weight", *weight);
                text.maybe("bias", *bias);
                text.show("kernel", kernel);
                text.show("state", format_args!("s{}", state.0));
                text.show("frames", frames);
            }
            Self::CausalConvTranspose { weight, bias, kernel, stride, snake, state, frames, .. } => {
                text.weight("weight", *weight);
                text.maybe("bias", *bias);
                text.show("kernel", kernel);
                text.show("stride", stride);
                text.snake(snake.as_ref());
                text.some("state", state.map(|id| id.0).as_ref());
                text.show("frames", frames);
            }
            Self::Conv { weight, bias, shape, padding, activation, .. } => {
                text.conv(*weight, *bias, shape);
                text.show("padding", padding);
                text.some("activation", activation.as_ref());
            }
            Self::DepthwiseConv { weight, bias, shape, padding, .. } => {
                text.conv(*weight, *bias, shape);
                text.show("padding", padding);
            }
            Self::Statistics { eps, .. } => text.show("eps", eps),
            Self::LogMel { window, filters, n_fft, hop, pad, magnitude_eps, floor, .. } => {
                text.weight("window", *window);
                text.weight("filters", *filters);
                text.show("n_fft", n_fft);
                text.show("hop", hop);
                text.show("pad", pad);
                text.show("magnitude_eps", magnitude_eps);
                text.show("floor", floor);
            }
            Self::QuantizeResidual { codebook, column, .. } => {
                text.weight("codebook", *codebook);
                text.show("column", column);
            }
            Self::Sample { draw, bound, history, column, .. } => {
                text.show("draw", draw);
                text.some("bound", bound.as_ref());
                text.some("history", history.map(|id| id.0).as_ref());
                text.show("column", column);
            }
            Self::Equals { id, .. } => text.show("id", id),
            Self::MaskRows { frames, .. } => text.show("frames", frames),
            Self::GatherRows { .. }
            | Self::Multiply { .. }
            | Self::SoftmaxOverTime { .. }
            | Self::Repeat { .. }
            | Self::Reshape { .. } => {}
        }
        text.0
    }
}

struct Detail(String);

impl Detail {
    fn show(&mut self, name: &str, value: impl Debug) {
        if !self.0.is_empty() {
            self.0.push_str(", ");
        }
        // Writing to a String cannot fail.
        let _ = write!(self.0, "{name}={value:?}");
    }

    fn some<T: Debug>(&mut self, name: &str, value: Option<&T>) {
        if let Some(value) = value {
            self.show(name, value);
        }
    }

    fn weight(&mut self, name: &str, id: WeightId) {
        self.show(name, format_args!("w{}", id.0));
    }

    fn maybe(&mut self, name: &str, id: Option<WeightId>) {
        if let Some(id) = id {
            self.weight(name, id);
        }
    }

    fn attention(&mut self, shape: &AttentionShape) {
        self.show("heads", format_args!("{}/{}x{}", shape.heads, shape.kv_heads, shape.head_dim));
        self.some("theta", shape.rope.map(|rope| rope.theta).as_ref());
        self.show("scale", shape.scale);
    }

    fn conv(&mut self, weight: WeightId, bias: Option<WeightId>, shape: &ConvShape) {
        self.weight("weight", weight);
        self.maybe("bias", bias);
        self.show("kernel", shape.kernel);
        self.show("stride", shape.stride);
        self.show("dilation", shape.dilation);
    }

    fn snake(&mut self, snake: Option<&Snake>) {
        if let Some(snake) = snake {
            self.weight("alpha", snake.alpha);
            self.weight("beta", snake.beta);
        }
    }
}
