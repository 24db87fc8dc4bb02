//! Depth transformer: within one frame, the codes below the first are drawn one by one, each from its
//! own head, by a small decoder whose keys and values live for that frame only (RQ-Transformer, Lee et
//! al. 2022; CSM and Qwen3-TTS draw their frames so).
//!
//! Position 0 is the backbone's hidden state, position 1 the first code's embedding, position `j + 1`
//! the embedding of code `j`; the head `j - 1` at position `j` gives code `j`.

use device::program::{ProgramBuilder, Rows};
use device::{Op, ValueId, WeightId};

use super::{AttentionKind, LayerScratch, LayerShape, LayerWeights, record_layer};

/// Weights of a depth transformer.
#[derive(Clone, Debug)]
pub(crate) struct DepthWeights {
    /// Backbone width to own width; `None` where they are the same space.
    pub(crate) projection: Option<(WeightId, WeightId)>,
    pub(crate) layers: Vec<LayerWeights>,
    pub(crate) norm: WeightId,
    /// Head `j - 1` draws code `j`.
    pub(crate) heads: Vec<WeightId>,
    /// Table `j` embeds code `j`, in the backbone's width; the last code is never embedded here.
    pub(crate) tables: Vec<WeightId>,
}

/// A depth transformer ready to record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DepthTransformer<'a> {
    pub(crate) weights: &'a DepthWeights,
    pub(crate) shape: &'a LayerShape,
    /// Width of the hidden state and of the tables.
    pub(crate) input_width: usize,
    pub(crate) vocab: usize,
}

impl DepthTransformer<'_> {
    /// Records the passes of one frame. `hidden` `[B, input_width]`; `code` `[B, 1]` i32 holds code 0 and
    /// then each code in turn; all but code 0 are placed in `codes` `[B, groups]`. `draw` records the
    /// sampling of code `j` from `logits` `[B, vocab]` into `code`.
    pub(crate) fn record(
        &self,
        builder: &mut ProgramBuilder,
        hidden: ValueId,
        code: ValueId,
        codes: ValueId,
        mut draw: impl FnMut(&mut ProgramBuilder, ValueId, usize),
    ) {
        let groups = self.weights.heads.len() + 1;
        let width = self.shape.hidden;
        let (one, two) = (Rows::PerRow(1), Rows::PerRow(2));
        let cache: Vec<(ValueId, ValueId)> = (0..self.weights.layers.len())
            .map(|layer| {
                let mut value = |part: &str| {
                    builder.scratch(
                        &format!("depth.{layer}.{part}"),
                        Rows::PerRow(groups),
                        self.shape.kv_width(),
                    )
                };
                (value("keys"), value("values"))
            })
            .collect();

        let pair_scratch = LayerScratch::new(builder, "depth.pair", two, self.shape);
        let step_scratch = LayerScratch::new(builder, "depth.step", one, self.shape);
        let step = builder.scratch("depth.stream", one, width);
        let normed = builder.scratch("depth.normed", one, width);
        let logits = builder.scratch("depth.logits", one, self.vocab);
        let embedded = builder.scratch("depth.embedded", one, self.input_width);

        self.embed(builder, 0, code, embedded);
        let pair = self.first_pair(builder, hidden, embedded);
        for (layer, &(keys, values)) in cache.iter().enumerate() {
            let kind = AttentionKind::Depth { keys, values, position: 0 };
            record_layer(builder, &self.weights.layers[layer], self.shape, &pair_scratch, pair, kind);
        }
        let flat = builder.scratch("depth.pair.flat", one, 2 * width);
        builder.push(Op::Reshape { source: pair, out: flat });
        builder.push(Op::Slice { source: flat, first: width, out: step });

        for position in 1..groups {
            if position > 1 {
                self.embed(builder, position - 1, code, embedded);
                self.project(builder, embedded, step);
                for (layer, &(keys, values)) in cache.iter().enumerate() {
                    let kind = AttentionKind::Depth { keys, values, position };
                    record_layer(builder, &self.weights.layers[layer], self.shape, &step_scratch, step, kind);
                }
            }
            builder.push(Op::RmsNorm {
                input: step,
                weight: self.weights.norm,
                eps: self.shape.norm_eps,
                out: normed,
            });
            builder.push(Op::Linear {
                input: normed,
                weight: self.weights.heads[position - 1],
                bias: None,
                activation: None,
                residual: None,
                out: logits,
            });
            draw(builder, logits, position);
            builder.push(Op::Place { source: code, out: codes, first: position });
        }
    }

    /// Hidden state and first code, projected, as two consecutive rows per batch row.
    fn first_pair(&self, builder: &mut ProgramBuilder, hidden: ValueId, embedded: ValueId) -> ValueId {
        let (one, two) = (Rows::PerRow(1), Rows::PerRow(2));
        let wide = builder.scratch("depth.pair.wide", one, 2 * self.input_width);
        builder.push(Op::Place { source: hidden, out: wide, first: 0 });
        builder.push(Op::Place { source: embedded, out: wide, first: self.input_width });
        let rows = builder.scratch("depth.pair.rows", two, self.input_width);
        builder.push(Op::Reshape { source: wide, out: rows });
        if self.weights.projection.is_none() {
            return rows;
        }
        let pair = builder.scratch("depth.pair.stream", two, self.shape.hidden);
        self.project(builder, rows, pair);
        pair
    }

    fn embed(&self, builder: &mut ProgramBuilder, group: usize, code: ValueId, out: ValueId) {
        builder.push(Op::Embed { table: self.weights.tables[group], ids: code, out, accumulate: false });
    }

    /// Into the depth transformer's own width; a copy where it is the backbone's.
    fn project(&self, builder: &mut ProgramBuilder, input: ValueId, out: ValueId) {
        builder.push(match self.weights.projection {
            Some((weight, bias)) => {
                Op::Linear { input, weight, bias: Some(bias), activation: None, residual: None, out }
            }
            None => Op::Reshape { source: input, out },
        });
    }
}
