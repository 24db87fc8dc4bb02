//! The backbone: text and codes of the last frame in, one frame out.

use device::program::{Activation, ProgramBuilder, Rows, SampleBound};
use device::{Dtype, Op, PagedId, PagedSpec, Program, StateId, ValueId, WeightId};

use super::config::Config;
use super::predictor;
use crate::blocks::{
    AttentionKind, DepthTransformer, DepthWeights, LayerScratch, LayerWeights, TensorNames, record_layer,
};
use crate::weights::Loader;
use crate::{Capacity, ModelError};

/// No layer scale in the backbone, so these are never looked up.
pub(super) const UNSCALED: TensorNames = TensorNames { attention_scale: "", mlp_scale: "" };

/// Lines for speakers' vectors in a prefill launch.
pub(super) const PROMPTS_MAX: usize = device::PROMPTS_MAX as usize;

/// Backbone and depth transformer on a device.
#[derive(Clone, Debug)]
pub(crate) struct Talker {
    text_table: WeightId,
    text_in: (WeightId, WeightId),
    text_out: (WeightId, WeightId),
    layers: Vec<LayerWeights>,
    norm: WeightId,
    head: WeightId,
    predictor: DepthWeights,
    pages: PagedId,
    pages_max: usize,
    /// Codes of the newest frame, per slot.
    last_codes: StateId,
    /// First codes drawn so far, as flags, per slot.
    history: StateId,
}

/// Inputs every frame needs, per batch row.
#[derive(Clone, Copy)]
struct FrameInputs {
    slots: ValueId,
    step: ValueId,
    allow_end: ValueId,
    head_params: ValueId,
    sub_params: ValueId,
    seeds: ValueId,
}

impl Talker {
    pub(crate) fn load(
        loader: &mut Loader<'_>,
        config: &Config,
        capacity: &Capacity,
    ) -> Result<Self, ModelError> {
        let talker = &config.talker;
        let hidden = talker.shape.hidden;
        let code_table = loader.table("talker.model.codec_embedding.weight", talker.vocab, hidden)?;
        let text_hidden = talker.text_hidden;
        let mut dense = |part: &str, out: usize| {
            let weight = loader.matrix(&format!("talker.text_projection.{part}.weight"), out, text_hidden)?;
            Ok::<_, ModelError>((weight, loader.vector(&format!("talker.text_projection.{part}.bias"), out)?))
        };
        let text_in = dense("linear_fc1", text_hidden)?;
        let text_out = dense("linear_fc2", hidden)?;
        let layers = (0..talker.layers)
            .map(|layer| {
                LayerWeights::load(loader, &format!("talker.model.layers.{layer}"), &talker.shape, UNSCALED)
            })
            .collect::<Result<_, _>>()?;
        let pages = loader.paged(PagedSpec {
            name: "talker".to_owned(),
            layers: talker.layers,
            kv_heads: talker.shape.kv_heads,
            head_dim: talker.shape.head_dim,
            page_len: capacity.page_len as usize,
            pages: capacity.pages as usize,
        })?;
        Ok(Self {
            text_table: loader.table("talker.model.text_embedding.weight", talker.text_vocab, text_hidden)?,
            text_in,
            text_out,
            layers,
            norm: loader.vector("talker.model.norm.weight", hidden)?,
            head: loader.matrix("talker.codec_head.weight", talker.vocab, hidden)?,
            predictor: predictor::load(loader, config, code_table)?,
            pages,
            pages_max: positions_max(config, capacity).div_ceil(capacity.page_len as usize),
            last_codes: loader.state("talker.last_codes", talker.groups, Dtype::I32)?,
            history: loader.state("talker.history", talker.vocab, Dtype::I32)?,
        })
    }

    /// Pages in one line of a page table.
    pub(crate) fn pages_max(&self) -> usize {
        self.pages_max
    }

    /// One step for running contexts. Inputs, each per batch row: slots, step, allow_end, params `[4]`,
    /// sub params `[4]`, seeds `[2]`, page table, position, owner (the row's own index), text id.
    /// Output: codes `[B, groups]`.
    pub(crate) fn decode_program(&self, config: &Config) -> Program {
        let mut builder = ProgramBuilder::new("decode");
        let talker = &config.talker;
        let frame = self.frame_inputs(&mut builder);
        let page_table = builder.input("page_table", Dtype::I32, Rows::PerRow(1), self.pages_max);
        let positions = builder.input("positions", Dtype::I32, Rows::PerRow(1), 1);
        let owner = builder.input("owner", Dtype::I32, Rows::PerRow(1), 1);
        let text_ids = builder.input("text_ids", Dtype::I32, Rows::PerRow(1), 1);

        let last = self.last_codes(&mut builder, config, &frame);
        let stream = builder.scratch("stream", Rows::PerRow(1), talker.shape.hidden);
        self.embed_codes(&mut builder, last, stream);
        self.add_text(&mut builder, config, Rows::PerRow(1), text_ids, stream);
        self.record_layers(&mut builder, config, Rows::PerRow(1), stream, positions, owner, page_table);
        let hidden = builder.scratch("hidden", Rows::PerRow(1), talker.shape.hidden);
        builder.push(self.final_norm(config, stream, hidden));
        self.record_frame(&mut builder, config, &frame, hidden);
        builder.finish()
    }

    /// Prompts, packed; the step of a running context is a prompt of one position. Inputs per batch row: slots, step (0
    /// for prompts), allow_end, params, sub params, seeds, page table, last (packed index of the row's last token);
    /// speakers `[PROMPTS_MAX, hidden]`; per token: text id, codes `[groups]` (-1 adds nothing), the batch row whose newest
    /// frame it takes (-1 for none), speaker row (-1 for none), position, owner. Output as a decode step's: the row's next
    /// frame.
    pub(crate) fn prefill_program(&self, config: &Config) -> Program {
        let mut builder = ProgramBuilder::new("prefill");
        let talker = &config.talker;
        let hidden_width = talker.shape.hidden;
        let frame = self.frame_inputs(&mut builder);
        let page_table = builder.input("page_table", Dtype::I32, Rows::PerRow(1), self.pages_max);
        let last = builder.input("last", Dtype::I32, Rows::PerRow(1), 1);
        let speaker = builder.input("speaker", Dtype::F32, Rows::Fixed(PROMPTS_MAX), hidden_width);
        let text_ids = builder.input("text_ids", Dtype::I32, Rows::Tokens, 1);
        let codes = builder.input("prompt_codes", Dtype::I32, Rows::Tokens, talker.groups);
        let newest_rows = builder.input("newest_rows", Dtype::I32, Rows::Tokens, 1);
        let speaker_rows = builder.input("speaker_rows", Dtype::I32, Rows::Tokens, 1);
        let positions = builder.input("positions", Dtype::I32, Rows::Tokens, 1);
        let owner = builder.input("owner", Dtype::I32, Rows::Tokens, 1);

        let stream = builder.scratch("stream", Rows::Tokens, hidden_width);
        self.embed_codes(&mut builder, codes, stream);
        let last_codes = self.last_codes(&mut builder, config, &frame);
        let newest = builder.scratch("newest", Rows::PerRow(1), hidden_width);
        self.embed_codes(&mut builder, last_codes, newest);
        builder.push(Op::GatherRows { source: newest, rows: newest_rows, out: stream, accumulate: true });
        builder.push(Op::GatherRows { source: speaker, rows: speaker_rows, out: stream, accumulate: true });
        self.add_text(&mut builder, config, Rows::Tokens, text_ids, stream);
        self.record_layers(&mut builder, config, Rows::Tokens, stream, positions, owner, page_table);
        let normed = builder.scratch("normed", Rows::Tokens, hidden_width);
        builder.push(self.final_norm(config, stream, normed));
        let hidden = builder.scratch("hidden", Rows::PerRow(1), hidden_width);
        builder.push(Op::GatherRows { source: normed, rows: last, out: hidden, accumulate: false });
        self.record_frame(&mut builder, config, &frame, hidden);
        builder.finish()
    }

    fn frame_inputs(&self, builder: &mut ProgramBuilder) -> FrameInputs {
        let mut input =
            |name: &str, dtype: Dtype, cols: usize| builder.input(name, dtype, Rows::PerRow(1), cols);
        FrameInputs {
            slots: input("slots", Dtype::I32, 1),
            step: input("step", Dtype::I32, 1),
            allow_end: input("allow_end", Dtype::I32, 1),
            head_params: input("params", Dtype::F32, 4),
            sub_params: input("sub_params", Dtype::F32, 4),
            seeds: input("seeds", Dtype::I32, 2),
        }
    }

    /// Codes of each row's newest frame, which never leave the device between two steps.
    fn last_codes(&self, builder: &mut ProgramBuilder, config: &Config, frame: &FrameInputs) -> ValueId {
        let last = builder.value("last_codes", Dtype::I32, Rows::PerRow(1), config.talker.groups);
        builder.touches(self.last_codes);
        builder.push(Op::LoadState { state: self.last_codes, slots: frame.slots, out: last });
        last
    }

    /// `out = sum_g table_g[codes_g]`, of the backbone's width.
    fn embed_codes(&self, builder: &mut ProgramBuilder, codes: ValueId, out: ValueId) {
        let tables = self.predictor.tables.clone();
        builder.push(Op::EmbedSum { tables, codes, out, accumulate: false });
    }

    /// `stream += text_projection(text_embedding[text])`: after the codes, as in the reference.
    fn add_text(
        &self,
        builder: &mut ProgramBuilder,
        config: &Config,
        rows: Rows,
        text_ids: ValueId,
        stream: ValueId,
    ) {
        let text_hidden = config.talker.text_hidden;
        let text = builder.scratch("text", rows, text_hidden);
        let inner = builder.scratch("text.inner", rows, text_hidden);
        builder.push(Op::Embed { table: self.text_table, ids: text_ids, out: text, accumulate: false });
        let act = Some(Activation::Silu);
        let (weight, bias) = self.text_in;
        builder.push(Op::Linear {
            input: text,
            weight,
            bias: Some(bias),
            activation: act,
            residual: None,
            out: inner,
        });
        let (weight, bias) = self.text_out;
        builder.push(Op::Linear {
            input: inner,
            weight,
            bias: Some(bias),
            activation: None,
            residual: Some(stream),
            out: stream,
        });
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "the page table's three companions are one attention's inputs"
    )]
    fn record_layers(
        &self,
        builder: &mut ProgramBuilder,
        config: &Config,
        rows: Rows,
        stream: ValueId,
        positions: ValueId,
        owner: ValueId,
        page_table: ValueId,
    ) {
        let shape = &config.talker.shape;
        let scratch = LayerScratch::new(builder, "talker", rows, shape);
        for (layer, weights) in self.layers.iter().enumerate() {
            let kind = AttentionKind::Paged { pages: self.pages, layer, positions, owner, page_table };
            record_layer(builder, weights, shape, &scratch, stream, kind);
        }
    }

    fn final_norm(&self, config: &Config, input: ValueId, out: ValueId) -> Op {
        Op::RmsNorm { input, weight: self.norm, eps: config.talker.shape.norm_eps, out }
    }

    /// First code from the head, the others from the depth transformer; stored for the next step.
    fn record_frame(
        &self,
        builder: &mut ProgramBuilder,
        config: &Config,
        frame: &FrameInputs,
        hidden: ValueId,
    ) {
        let talker = &config.talker;
        let logits = builder.scratch("logits", Rows::PerRow(1), talker.vocab);
        let code = builder.value("code", Dtype::I32, Rows::PerRow(1), 1);
        let codes = builder.value("codes", Dtype::I32, Rows::PerRow(1), talker.groups);
        builder.push(Op::Linear {
            input: hidden,
            weight: self.head,
            bias: None,
            activation: None,
            residual: None,
            out: logits,
        });
        builder.touches(self.history);
        // Above the codes, the first codebook's vocabulary holds control ids; of those only the end is drawn.
        let bound = SampleBound {
            suppress_from: config.predictor.vocab as u32,
            suppress_to: talker.vocab as u32,
            keep: Some(talker.codec.end),
        };
        builder.push(Op::Sample {
            logits,
            params: frame.head_params,
            seeds: frame.seeds,
            step: frame.step,
            draw: 0,
            bound: Some(bound),
            allow_keep: Some(frame.allow_end),
            history: Some(self.history),
            slots: frame.slots,
            out: code,
            column: 0,
        });
        builder.push(Op::Place { source: code, out: codes, first: 0 });
        let depth = DepthTransformer {
            weights: &self.predictor,
            shape: &config.predictor.shape,
            input_width: talker.shape.hidden,
            vocab: config.predictor.vocab,
        };
        depth.record(builder, hidden, code, codes, |builder, logits, group| {
            builder.push(Op::Sample {
                logits,
                params: frame.sub_params,
                seeds: frame.seeds,
                step: frame.step,
                draw: group as u32,
                bound: None,
                allow_keep: None,
                history: None,
                slots: frame.slots,
                out: code,
                column: 0,
            });
        });
        builder.touches(self.last_codes);
        builder.push(Op::StoreState {
            state: self.last_codes,
            slots: frame.slots,
            source: codes,
            active: None,
        });
        builder.output(codes);
    }
}

/// Positions one context may take with this model on this device.
pub(crate) fn positions_max(config: &Config, capacity: &Capacity) -> usize {
    config.talker.positions_max.min(capacity.positions_max as usize)
}
