//! Parts that several model families share, recorded with `device` operations.

mod causal;
mod depth;
mod layer;
mod residual;

pub(crate) use causal::{CausalConv, CausalConvTranspose, ConvSize, Stream};
pub(crate) use depth::{DepthTransformer, DepthWeights};
pub(crate) use layer::{AttentionKind, LayerScratch, LayerShape, LayerWeights, TensorNames, record_layer};
pub(crate) use residual::{ConvNext, ConvNextSize, ResidualUnit, load_snake};
