//! Ops that move rows, norms and elementwise ops.

use device::ValueId;
use device::program::{Activation, Op};

use super::{
    Arg, Derived, Field, Lowering, Place, Storage, at, float, int, long, maybe_vector, value, vector,
};

/// Threads for a row of `cols` values.
fn threads(cols: usize) -> u32 {
    match cols {
        0..=64 => 64,
        65..=256 => 128,
        257..=1024 => 256,
        _ => 512,
    }
}

impl Lowering<'_> {
    pub(super) fn rows(&mut self, op: &Op) {
        match *op {
            Op::Embed { table, ids, out, accumulate } => {
                let kernel = format!("embed_{}{}", self.factor().letter(), self.storage(out).letter());
                let table = Place::Weight(Derived::Plain { id: table, bf16: self.factor().is_bf16() });
                let cols = self.cols(out);
                let args = vec![at(table), value(ids), value(out), int(cols), int(usize::from(accumulate))];
                self.by_row(kernel, out, args);
            }
            Op::EmbedSum { ref tables, codes, out, accumulate } => {
                let kernel = format!("embed_sum_{}{}", self.factor().letter(), self.storage(out).letter());
                let (groups, cols, rows) = (self.cols(codes), self.cols(out), self.rows_of(out));
                let list =
                    Place::Weight(Derived::Tables { ids: tables.clone(), bf16: self.factor().is_bf16() });
                let args = vec![
                    at(list),
                    int(tables.len()),
                    value(codes),
                    int(groups),
                    value(out),
                    int(cols),
                    int(usize::from(accumulate)),
                ];
                self.launch(kernel, [rows, cols.div_ceil(256), 1], 256, 0, args);
            }
            Op::GatherRows { source, rows, out, accumulate } => {
                let kernel = self.pair("gather_rows", source, out);
                let cols = self.cols(out);
                let args =
                    vec![value(source), value(rows), value(out), int(cols), int(usize::from(accumulate))];
                self.by_row(kernel, out, args);
            }
            Op::Slice { source, first, out } => {
                let width = self.cols(out);
                self.copy(source, self.cols(source), first, out, width, 0, self.rows_of(out), width);
            }
            Op::Place { source, out, first } => {
                let width = self.cols(source);
                self.copy(source, width, 0, out, self.cols(out), first, self.rows_of(source), width);
            }
            Op::Reshape { source, out } => {
                let width = self.cols(out);
                self.copy(source, width, 0, out, width, 0, self.rows_of(out), width);
            }
            Op::Repeat { source, out } => {
                let (cols, times) = (self.cols(out), self.rows_of(out) / self.rows_of(source));
                self.by_row(
                    "repeat_rows".to_owned(),
                    out,
                    vec![value(source), value(out), int(cols), int(times)],
                );
            }
            Op::LoadState { state, slots, out } => {
                let args = vec![at(Place::State(state)), value(slots), value(out), int(self.cols(out))];
                self.by_row("load_state".to_owned(), out, args);
            }
            Op::StoreState { state, slots, source, active } => {
                let active = active.map_or(Place::Null, Place::Value);
                let args = vec![
                    at(Place::State(state)),
                    value(slots),
                    value(source),
                    int(self.cols(source)),
                    at(active),
                ];
                self.by_row("store_state".to_owned(), source, args);
            }
            Op::Equals { ids, id, flags } => {
                let rows = self.rows_of(flags);
                let args =
                    vec![value(ids), int(self.cols(ids)), Arg::One(Field::I32(id)), value(flags), int(rows)];
                self.each("equals", rows, args);
            }
            Op::MaskRows { source, valid, frames, out } => {
                let steps = self.steps_of(out);
                let args = vec![
                    value(source),
                    value(valid),
                    value(out),
                    int(self.cols(out)),
                    int(steps),
                    int(steps / frames),
                ];
                self.by_row("mask_rows".to_owned(), out, args);
            }
            Op::RmsNorm { input, weight, eps, out } => {
                let cols = self.cols(out);
                let args = vec![value(input), at(vector(weight)), float(eps), value(out), int(cols)];
                let narrows = self.storage(input) == Storage::F32 && self.storage(out).is_bf16();
                if narrows && cols.is_multiple_of(128) && cols <= 4096 {
                    let threads = u32::try_from(cols / 4).unwrap_or(1);
                    return self.launch("rms_norm_wide", [self.rows_of(out), 1, 1], threads, 0, args);
                }
                let kernel = self.pair("rms_norm", input, out);
                self.by_row(kernel, out, args);
            }
            Op::LayerNorm { input, weight, bias, eps, out } => {
                let kernel = self.pair("layer_norm", input, out);
                let args = vec![
                    value(input),
                    at(vector(weight)),
                    at(vector(bias)),
                    float(eps),
                    value(out),
                    int(self.cols(out)),
                ];
                self.by_row(kernel, out, args);
            }
            Op::AddScaled { target, input, scale } => {
                let kernel = self.pair("add_scaled", input, target);
                let (cols, n) = (self.cols(target), self.count(target));
                let args = vec![value(target), value(input), at(maybe_vector(scale)), int(cols), long(n)];
                self.each(kernel, n, args);
            }
            Op::Multiply { a, b, out } => {
                let repeat = self.rows_of(out) / self.rows_of(b).max(1);
                let n = self.count(out);
                let args = vec![value(a), value(b), value(out), int(self.cols(out)), int(repeat), long(n)];
                self.each("multiply", n, args);
            }
            Op::Activate { input, activation, out } => {
                let (kernel, n) = (self.pair("activate", input, out), self.count(out));
                let args = vec![value(input), int(activation_code(Some(activation))), value(out), long(n)];
                self.each(kernel, n, args);
            }
            Op::Clamp { input, low, high, out } => {
                let (kernel, n) = (self.pair("clamp", input, out), self.count(out));
                self.each(kernel, n, vec![value(input), float(low), float(high), value(out), long(n)]);
            }
            Op::SnakeBeta { input, ref snake, out } => {
                let (kernel, n) = (self.pair("snake", input, out), self.count(out));
                let (alpha, beta) = (snake.alpha, snake.beta);
                let args = vec![
                    value(input),
                    at(Place::Weight(Derived::SnakeAlpha { alpha, beta })),
                    at(Place::Weight(Derived::SnakeInverse { alpha, beta })),
                    value(out),
                    int(self.cols(out)),
                    long(n),
                ];
                self.each(kernel, n, args);
            }
            _ => unreachable!("every other op is lowered elsewhere"),
        }
    }

    /// The kernel for the types of `input` and `out`.
    fn pair(&self, name: &str, input: ValueId, out: ValueId) -> String {
        format!("{name}_{}{}", self.storage(input).letter(), self.storage(out).letter())
    }

    /// A kernel with a block a row of `like`.
    fn by_row(&mut self, kernel: String, like: ValueId, args: Vec<Arg>) {
        let (rows, block) = (self.rows_of(like), threads(self.cols(like)));
        self.launch(kernel, [rows, 1, 1], block, 0, args);
    }

    #[expect(clippy::too_many_arguments, reason = "two windows of one copy")]
    fn copy(
        &mut self,
        source: ValueId,
        source_cols: usize,
        source_first: usize,
        out: ValueId,
        out_cols: usize,
        out_first: usize,
        rows: usize,
        width: usize,
    ) {
        let words = self.storage(out) == Storage::I32;
        let kernel = if words { "copy_words".to_owned() } else { self.pair("copy", source, out) };
        let args = vec![
            value(source),
            int(source_cols),
            int(source_first),
            value(out),
            int(out_cols),
            int(out_first),
            long(rows),
            int(width),
        ];
        self.each(kernel, rows * width, args);
    }
}

/// As `enum Activation` in the prelude.
pub(super) const fn activation_code(activation: Option<Activation>) -> usize {
    match activation {
        None => 0,
        Some(Activation::Elu) => 1,
        Some(Activation::GeluErf) => 2,
        Some(Activation::Relu) => 3,
        Some(Activation::Sigmoid) => 4,
        Some(Activation::Silu) => 5,
        Some(Activation::Tanh) => 6,
    }
}
