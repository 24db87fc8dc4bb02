//! The operations. Few and coarse; a fused form is an op of its own with the same meaning as its parts.
//!
//! Shapes: `[rows, cols]`, rows as in [`super::Rows`]. `B` is live batch rows, `T` rows per batch row,
//! `N` packed tokens.

use super::ValueId;
use crate::{PagedId, StateId, WeightId};

/// Elementwise functions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    Elu,
    /// `x/2 * (1 + erf(x/sqrt 2))`.
    GeluErf,
    Relu,
    Sigmoid,
    Silu,
    Tanh,
}

/// Rotary embedding, half-split (NeoX) over the whole head.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rope {
    pub theta: f32,
}

/// Heads of one attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionShape {
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub rope: Option<Rope>,
    /// Multiplies q.k; usually `head_dim^-0.5`.
    pub scale: f32,
}

/// `x + 1/(exp(beta) + 1e-9) * sin(exp(alpha) x)^2` per channel; weights hold the logs (SnakeBeta).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Snake {
    pub alpha: WeightId,
    pub beta: WeightId,
}

/// How a convolution without history treats the borders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Padding {
    /// Zeros: `left` before, `right` after.
    Zeros { left: usize, right: usize },
    /// Mirrored without repeating the border sample.
    Reflect { left: usize, right: usize },
    /// The border value repeated.
    Replicate { left: usize, right: usize },
}

/// Geometry of a one-dimensional convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvShape {
    pub kernel: usize,
    pub stride: usize,
    pub dilation: usize,
}

/// What the sampler must know of the vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleBound {
    /// Ids in `suppress_from..suppress_to` are never drawn, except `keep`.
    pub suppress_from: u32,
    pub suppress_to: u32,
    /// End-of-speech, drawn only when the row's `allow_keep` input is 1.
    pub keep: Option<u32>,
}

/// One operation.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    // ---- moving rows -----------------------------------------------------------------------------
    /// `out[i] (+)= table[ids[i]]`; a negative id contributes zeros.
    Embed {
        table: WeightId,
        ids: ValueId,
        out: ValueId,
        accumulate: bool,
    },
    /// `out[i] (+)= sum_g tables[g][codes[i, g]]`; negative codes contribute zeros. `codes` is `[rows, G]`.
    EmbedSum {
        tables: Vec<WeightId>,
        codes: ValueId,
        out: ValueId,
        accumulate: bool,
    },
    /// `out[i] = source[rows[i]]`; a negative row gives zeros. With `accumulate`, adds instead.
    GatherRows {
        source: ValueId,
        rows: ValueId,
        out: ValueId,
        accumulate: bool,
    },
    /// `out[:, 0..w] = source[:, first..first + w]`, `w` being `out`'s columns.
    Slice {
        source: ValueId,
        first: usize,
        out: ValueId,
    },
    /// `out[:, first..first + w] = source`, `w` being `source`'s columns.
    Place {
        source: ValueId,
        out: ValueId,
        first: usize,
    },
    /// The same elements, row-major, under another row length: `[B, T*C]` seen as `[B*T, C]` or back.
    Reshape {
        source: ValueId,
        out: ValueId,
    },
    /// `out[b] = state[slots[b]]`.
    LoadState {
        state: StateId,
        slots: ValueId,
        out: ValueId,
    },
    /// `state[slots[b]] = source[b]`, for rows whose `active[b]` is not 0 (all when `None`).
    StoreState {
        state: StateId,
        slots: ValueId,
        source: ValueId,
        active: Option<ValueId>,
    },

    // ---- dense -----------------------------------------------------------------------------------
    /// `out = act(input @ weight^T + bias)`, then `+ residual` when given.
    Linear {
        input: ValueId,
        weight: WeightId,
        bias: Option<WeightId>,
        activation: Option<Activation>,
        residual: Option<ValueId>,
        out: ValueId,
    },
    /// `out = down(silu(gate(input)) * up(input))` (SwiGLU), no biases.
    GatedMlp {
        input: ValueId,
        gate: WeightId,
        up: WeightId,
        down: WeightId,
        out: ValueId,
    },
    /// `out = input / rms(input) * weight` over columns.
    RmsNorm {
        input: ValueId,
        weight: WeightId,
        eps: f32,
        out: ValueId,
    },
    /// Over columns, with bias.
    LayerNorm {
        input: ValueId,
        weight: WeightId,
        bias: WeightId,
        eps: f32,
        out: ValueId,
    },
    /// `target += input * scale` with a per-column scale (layer scale), or 1.
    AddScaled {
        target: ValueId,
        input: ValueId,
        scale: Option<WeightId>,
    },
    /// `out = a * b` elementwise; `b` may have one row per batch row (or one row) and is then broadcast.
    Multiply {
        a: ValueId,
        b: ValueId,
        out: ValueId,
    },
    Activate {
        input: ValueId,
        activation: Activation,
        out: ValueId,
    },
    /// Clamp to `[low, high]`.
    Clamp {
        input: ValueId,
        low: f32,
        high: f32,
        out: ValueId,
    },
    /// SnakeBeta per column.
    SnakeBeta {
        input: ValueId,
        snake: Snake,
        out: ValueId,
    },

    // ---- attention -------------------------------------------------------------------------------
    /// Causal attention over pages. Per row: per-head RMS norm of q and k when weights are given,
    /// rope at `positions`, append k and v at that position, attend to positions `0..=position`.
    /// `q` `[R, heads*dim]`, `k`, `v` `[R, kv_heads*dim]`, R being B (decode) or N (prefill).
    /// `owner[r]` is the batch row whose line of `page_table` `[B, pages_max]` holds the row's pages.
    /// Rows whose position is negative neither append nor attend; their `out` is zero.
    PagedAttention {
        q: ValueId,
        k: ValueId,
        v: ValueId,
        q_norm: Option<WeightId>,
        k_norm: Option<WeightId>,
        norm_eps: f32,
        shape: AttentionShape,
        pages: PagedId,
        layer: usize,
        positions: ValueId,
        owner: ValueId,
        page_table: ValueId,
        out: ValueId,
    },
    /// Attention of a depth transformer: keys and values live in the scratch values `keys`, `values`
    /// `[B * capacity, kv_heads*dim]` (rows `PerRow(capacity)`) for this launch only. `q`, `k`, `v`
    /// hold `T` consecutive positions per batch row starting at the recorded `position`.
    DepthAttention {
        q: ValueId,
        k: ValueId,
        v: ValueId,
        q_norm: Option<WeightId>,
        k_norm: Option<WeightId>,
        norm_eps: f32,
        shape: AttentionShape,
        keys: ValueId,
        values: ValueId,
        position: usize,
        out: ValueId,
    },
    /// Causal attention over the last `window` positions with carried keys and values: `state` holds,
    /// per slot, `2 * (window - 1) * kv_heads * dim` values (k then v, oldest first, roped). `T` rows
    /// per batch row, of which the first `valid[b]` count; `start[b]` is the absolute position of row 0
    /// (positions before 0 are masked). State is advanced by `valid[b]`.
    WindowAttention {
        q: ValueId,
        k: ValueId,
        v: ValueId,
        shape: AttentionShape,
        window: usize,
        state: StateId,
        slots: ValueId,
        start: ValueId,
        valid: ValueId,
        out: ValueId,
    },
    /// Causal attention over the last `window` positions of the rows at hand; no state (encoders).
    LocalAttention {
        q: ValueId,
        k: ValueId,
        v: ValueId,
        shape: AttentionShape,
        window: usize,
        out: ValueId,
    },

    // ---- convolution (time is rows, channels are columns) ------------------------------------------
    /// Causal convolution with carried history: `state` holds the last `(kernel - 1) * dilation` input
    /// rows per slot (after `snake`, when given), taken as zeros where `start[b]` is 0 (a fresh stream), advanced by `valid[b] * rows-per-frame` of the
    /// input, `T_in / frames` being rows per frame. Stride is 1. `out = conv(snake(input)) + bias (+ residual)`.
    CausalConv {
        input: ValueId,
        weight: WeightId,
        bias: Option<WeightId>,
        shape: ConvShape,
        snake: Option<Snake>,
        residual: Option<ValueId>,
        state: Option<StateId>,
        slots: ValueId,
        start: ValueId,
        valid: ValueId,
        /// Frames a full row holds: `T_in` is a multiple of it.
        frames: usize,
        out: ValueId,
    },
    /// Causal depthwise convolution with carried history of `kernel - 1` rows, as above.
    CausalDepthwiseConv {
        input: ValueId,
        weight: WeightId,
        bias: Option<WeightId>,
        kernel: usize,
        state: StateId,
        slots: ValueId,
        start: ValueId,
        valid: ValueId,
        frames: usize,
        out: ValueId,
    },
    /// Causal transposed convolution, right-trimmed by `kernel - stride`: output row `t * stride + p`
    /// depends on input rows `t` and earlier. `state` holds the last `ceil(kernel / stride) - 1` input
    /// rows (after `snake`). `kernel` is a multiple of `stride`.
    CausalConvTranspose {
        input: ValueId,
        weight: WeightId,
        bias: Option<WeightId>,
        kernel: usize,
        stride: usize,
        snake: Option<Snake>,
        state: Option<StateId>,
        slots: ValueId,
        start: ValueId,
        valid: ValueId,
        frames: usize,
        out: ValueId,
    },
    /// Stateless convolution with padding and stride (encoders).
    Conv {
        input: ValueId,
        weight: WeightId,
        bias: Option<WeightId>,
        shape: ConvShape,
        padding: Padding,
        activation: Option<Activation>,
        out: ValueId,
    },
    /// Stateless depthwise convolution (encoders).
    DepthwiseConv {
        input: ValueId,
        weight: WeightId,
        bias: Option<WeightId>,
        shape: ConvShape,
        padding: Padding,
        out: ValueId,
    },

    // ---- encoders ----------------------------------------------------------------------------------
    /// Column means and standard deviations over time, weighted by `weights` (`[T, C]`, summing to 1 per
    /// column) or uniform: `out` is `[1, 2C]`: means, then `sqrt(max(variance, eps))`.
    Statistics {
        input: ValueId,
        weights: Option<ValueId>,
        eps: f32,
        out: ValueId,
    },
    /// Softmax over time (rows) for each column.
    SoftmaxOverTime {
        input: ValueId,
        out: ValueId,
    },
    /// `out[t] = source[0]` for every row.
    Repeat {
        source: ValueId,
        out: ValueId,
    },
    /// Log-mel spectrogram: `input` `[samples, 1]`; `window` `[n_fft]`, `filters` `[mels, n_fft/2 + 1]`;
    /// reflect padding `pad` at both ends, no centring; `out[t, m] = ln(max(floor,
    /// sum_k filters[m, k] * sqrt(|X_tk|^2 + magnitude_eps)))`.
    LogMel {
        input: ValueId,
        window: WeightId,
        filters: WeightId,
        n_fft: usize,
        hop: usize,
        pad: usize,
        magnitude_eps: f32,
        floor: f32,
        out: ValueId,
    },
    /// Nearest codebook row by Euclidean distance, lowest index at ties; subtracts it from `residual`
    /// in place and writes the index into column `column` of `codes`.
    QuantizeResidual {
        residual: ValueId,
        codebook: WeightId,
        codes: ValueId,
        column: usize,
    },

    // ---- sampling ----------------------------------------------------------------------------------
    /// Draws one id per row. Order of processors as in the reference: repetition penalty over `history`
    /// (ids drawn so far by this slot), suppression, temperature, top-k, top-p, then a draw with the
    /// counter-based generator keyed by the row's seed and (`step[b]`, `draw`).
    /// `params` `[B, 4]`: temperature (0 = greedy), top_k (0 = off), top_p, penalty. `seeds` `[B, 2]`
    /// (i32 bit patterns, low word first). `history`: state of `vocab` i32 flags per slot; the drawn id
    /// is marked; flags count as cleared where `step[b]` is 0. `allow_keep[b]` 0 masks `bound.keep`. Writes `out[b, column]`.
    Sample {
        logits: ValueId,
        params: ValueId,
        seeds: ValueId,
        step: ValueId,
        draw: u32,
        bound: Option<SampleBound>,
        allow_keep: Option<ValueId>,
        history: Option<StateId>,
        slots: ValueId,
        out: ValueId,
        column: usize,
    },
    /// `flags[b] = (ids[b, 0] == id) as i32`.
    Equals {
        ids: ValueId,
        id: i32,
        flags: ValueId,
    },
    /// Copies `source` `[B*T, C]` to `out` with rows at and past `valid[b] * (T / frames)` zeroed.
    MaskRows {
        source: ValueId,
        valid: ValueId,
        frames: usize,
        out: ValueId,
    },
}
