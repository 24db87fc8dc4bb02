//! Attention over pages, over a frame's own keys, over a carried window, over the rows at hand.

use device::program::{AttentionShape, Op, Rows};
use device::{ValueId, WeightId};

use super::{Arg, Derived, Field, Lowering, Place, Storage, at, field, int, int_field, maybe_vector, value};

/// Threads of an attention block: four warps.
const THREADS: u32 = 128;
/// Columns of the longest head.
const DIM_MAX: usize = 256;

/// `struct Heads` of `attention.cu`.
struct Heads<'a> {
    q: Field,
    k: Field,
    v: Field,
    q_norm: Option<WeightId>,
    k_norm: Option<WeightId>,
    eps: f32,
    shape: &'a AttentionShape,
    positions: Option<ValueId>,
    position: usize,
    steps: usize,
    q_stride: usize,
    kv_stride: usize,
}

/// `struct Keys` of `attention.cu`.
struct Keys {
    pages: Field,
    owner: Option<ValueId>,
    table: Option<ValueId>,
    table_cols: usize,
    page_len: usize,
    page_stride: usize,
    values: i64,
}

impl Heads<'_> {
    fn arg(&self) -> Arg {
        let &AttentionShape { heads, kv_heads, head_dim, rope, scale } = self.shape;
        debug_assert!(head_dim <= DIM_MAX, "a head of {head_dim} columns");
        let frequencies = rope.map_or(Place::Null, |rope| {
            Place::Weight(Derived::Frequencies { theta: rope.theta.to_bits(), dim: head_dim })
        });
        Arg::Struct(vec![
            self.q.clone(),
            self.k.clone(),
            self.v.clone(),
            field(maybe_vector(self.q_norm)),
            field(maybe_vector(self.k_norm)),
            field(frequencies),
            Field::F32(self.eps),
            Field::F32(scale),
            int_field(heads),
            int_field(kv_heads),
            int_field(head_dim),
            super::maybe(self.positions),
            int_field(self.position),
            int_field(self.steps),
            int_field(self.q_stride),
            int_field(self.kv_stride),
        ])
    }
}

impl Keys {
    fn arg(&self) -> Arg {
        Arg::Struct(vec![
            self.pages.clone(),
            super::maybe(self.owner),
            super::maybe(self.table),
            int_field(self.table_cols),
            int_field(self.page_len),
            Field::I64(i64::try_from(self.page_stride).unwrap_or(i64::MAX)),
            Field::I64(self.values),
        ])
    }
}

/// Columns a lane holds.
const fn parts(dim: usize) -> usize {
    match dim {
        0..=32 => 1,
        33..=64 => 2,
        65..=128 => 4,
        _ => 8,
    }
}

/// Keys of a frame that one warp holds, a lane to a key.
const SHORT_KEYS_MAX: usize = 32;
/// Columns of a head of the kernels in `pair.cu`, and keys of one page they read together.
const PAIR_DIM: usize = 128;
const PAIR_KEYS: usize = 16;
/// Bytes of keys and values a block of `attend_pair_pages` holds of a chunk of each of its warps.
const PAIR_HELD: usize = 4 * PAIR_KEYS * 2 * PAIR_DIM * 2;
/// Positions `attend_frame` may begin a frame with.
const FRAME_BEGINS: usize = 2;
/// Keys, each with its value, that a block appends: a warp each.
const APPEND_PAIRS: usize = THREADS as usize / 32 / 2;
/// Columns of the heads of which a block may hold the whole window, and what its rows are padded by.
const HELD_DIMS: [usize; 3] = [32, 64, 128];
const WINDOW_PAD: usize = 4;
/// A window no position reaches.
const NO_WINDOW: usize = i32::MAX as usize;

/// Whether the kernels in `pair.cu` know such heads.
const fn is_pair(shape: &AttentionShape) -> bool {
    shape.head_dim == PAIR_DIM && shape.heads == 2 * shape.kv_heads
}

impl Lowering<'_> {
    /// Heads without norms, `steps` consecutive positions a batch row from 0 on.
    fn heads<'a>(
        &self,
        q: ValueId,
        k: ValueId,
        v: ValueId,
        shape: &'a AttentionShape,
        steps: usize,
    ) -> Heads<'a> {
        let [(q, q_stride), (k, kv_stride), (v, v_stride)] = [q, k, v].map(|id| self.rows_at(id));
        debug_assert_eq!(kv_stride, v_stride, "keys and values are read with one stride");
        let (q_norm, k_norm, eps, positions, position) = (None, None, 0.0, None, 0);
        Heads { q, k, v, q_norm, k_norm, eps, shape, positions, position, steps, q_stride, kv_stride }
    }

    pub(super) fn attention(&mut self, op: &Op) {
        match op {
            Op::PagedAttention { .. } => self.paged(op),
            Op::DepthAttention { .. } => self.depth(op),
            Op::WindowAttention { .. } => self.window(op),
            Op::LocalAttention { .. } => self.local(op),
            _ => unreachable!("only attention is lowered here"),
        }
    }

    /// Type of keys and values in pages.
    pub(crate) const fn page_storage(&self) -> Storage {
        self.factor()
    }

    fn paged(&mut self, op: &Op) {
        let &Op::PagedAttention {
            q,
            k,
            v,
            q_norm,
            k_norm,
            norm_eps,
            ref shape,
            pages,
            layer,
            positions,
            owner,
            page_table,
            out,
        } = op
        else {
            return;
        };
        let Some(spec) = self.catalog.paged(pages) else { return };
        let half = spec.page_len * spec.kv_heads * spec.head_dim;
        let storage = self.page_storage();
        let first = 2 * layer * half * storage.bytes();
        let heads = Heads {
            q_norm,
            k_norm,
            eps: norm_eps,
            positions: Some(positions),
            ..self.heads(q, k, v, shape, 1)
        };
        let keys = Keys {
            pages: Field::At(Place::Pages(pages), first as u64),
            owner: Some(owner),
            table: Some(page_table),
            table_cols: self.cols(page_table),
            page_len: spec.page_len,
            page_stride: 2 * spec.layers * half,
            values: i64::try_from(half).unwrap_or(i64::MAX),
        };
        // A decode step's rows belong to different contexts; a prompt's rows attend to each other.
        let alone = self.program.value(q).rows == Rows::PerRow(1);
        self.attend(&heads, &keys, storage, self.rows_of(q), NO_WINDOW, alone, out);
    }

    fn depth(&mut self, op: &Op) {
        let &Op::DepthAttention { q, k, v, q_norm, k_norm, norm_eps, ref shape, keys, values, position, out } =
            op
        else {
            return;
        };
        let steps = self.steps_of(q);
        let heads = Heads { q_norm, k_norm, eps: norm_eps, position, ..self.heads(q, k, v, shape, steps) };
        // Keys and values are two values of the program; the kernel wants the way from one to the other, which
        // only the arena's layout tells: both are placed as one piece of working memory of the first.
        let capacity = self.steps_of(keys);
        let stride = capacity * self.cols(keys);
        let stored = self.frame_storage(shape, capacity);
        let caches = self.depth_cache(keys, values, stored);
        let keys = Keys {
            pages: field(caches),
            owner: None,
            table: None,
            table_cols: 0,
            page_len: capacity,
            page_stride: stride,
            values: i64::try_from(self.shape.batch * stride).unwrap_or(i64::MAX),
        };
        self.attend(&heads, &keys, stored, self.rows_of(q), NO_WINDOW, steps == 1, out);
    }

    /// Type of a frame's keys and values: what the reference keeps them in, where `attend_frame` reads them; f32 for
    /// other heads, whose kernels hold a frame's keys a lane each. The same for all that share them.
    fn frame_storage(&self, shape: &AttentionShape, capacity: usize) -> Storage {
        if is_pair(shape) && capacity <= SHORT_KEYS_MAX { self.factor() } else { Storage::F32 }
    }

    /// One piece of memory for the keys and values of one layer of a frame.
    fn depth_cache(&mut self, keys: ValueId, values: ValueId, stored: Storage) -> Place {
        if let Some((_, place)) = self.caches.iter().find(|(pair, _)| *pair == (keys, values)) {
            return place.clone();
        }
        let bytes = (self.count(keys) + self.count(values)) * stored.bytes();
        let place = self.temp(bytes);
        self.caches.push(((keys, values), place.clone()));
        place
    }

    fn local(&mut self, op: &Op) {
        let &Op::LocalAttention { q, k, v, ref shape, window, out } = op else { return };
        let rows = self.rows_of(q);
        let half = rows * self.cols(k);
        let cache = self.temp(2 * half * Storage::F32.bytes());
        let heads = self.heads(q, k, v, shape, rows);
        let keys = Keys {
            pages: field(cache),
            owner: None,
            table: None,
            table_cols: 0,
            page_len: rows,
            page_stride: 0,
            values: i64::try_from(half).unwrap_or(i64::MAX),
        };
        self.attend(&heads, &keys, Storage::F32, rows, window.min(NO_WINDOW), false, out);
    }

    #[expect(clippy::too_many_arguments, reason = "what one launch is made of")]
    fn attend(
        &mut self,
        heads: &Heads<'_>,
        keys: &Keys,
        stored: Storage,
        rows: usize,
        window: usize,
        fused: bool,
        out: ValueId,
    ) {
        let &AttentionShape { heads: count, kv_heads, head_dim, .. } = heads.shape;
        let short = keys.table.is_none() && keys.page_len <= SHORT_KEYS_MAX;
        let pairs = is_pair(heads.shape) && stored.is_bf16() && self.storage(out).is_bf16();
        let begins = heads.steps == FRAME_BEGINS && heads.position == 0;
        if pairs && short && (fused || begins) {
            let args = vec![heads.arg(), keys.arg(), int(rows), value(out)];
            let blocks = (rows * count).div_ceil(THREADS as usize / 32);
            return self.launch("attend_frame", [blocks, 1, 1], THREADS, 0, args);
        }
        let pages = keys.table.is_some() && keys.page_len.is_multiple_of(PAIR_KEYS);
        if pairs && pages && window == NO_WINDOW {
            if !fused {
                let args = vec![heads.arg(), keys.arg(), int(rows)];
                let blocks = (rows * kv_heads).div_ceil(APPEND_PAIRS);
                self.launch("append_pair_pages", [blocks, 1, 1], THREADS, 0, args);
            }
            // Where keys lie is told before the program begins, and those before a fresh one were stored by then.
            let told = [heads.positions, keys.owner, keys.table];
            let early = fused && told.iter().flatten().all(|id| self.program.inputs.contains(id));
            let flag = |set: bool| int(usize::from(set));
            // Three blocks with two chunks of each warp fit on an SM.
            let chunks = if rows * kv_heads <= 3 * self.target.sms as usize { 2 } else { 1 };
            let args = vec![heads.arg(), keys.arg(), flag(fused), flag(early), int(chunks), value(out)];
            let shared = chunks * PAIR_HELD;
            return self.launch("attend_pair_pages", [kv_heads, rows, 1], THREADS, shared, args);
        }
        if fused && short && stored == Storage::F32 {
            let kernel = format!("attend_short_{}_{}", self.storage(out).letter(), parts(head_dim));
            let args = vec![heads.arg(), keys.arg(), int(rows), value(out)];
            let blocks = (rows * count).div_ceil(THREADS as usize / 32);
            return self.launch(kernel, [blocks, 1, 1], THREADS, 0, args);
        }
        if !fused {
            let kernel = format!("append_{}", stored.letter());
            self.launch(kernel, [kv_heads, rows, 1], THREADS, 0, vec![heads.arg(), keys.arg()]);
        }
        let kernel = format!("attend_{}{}_{}", stored.letter(), self.storage(out).letter(), parts(head_dim));
        let args = vec![heads.arg(), keys.arg(), int(window), int(usize::from(fused)), value(out)];
        self.launch(kernel, [count, rows, 1], THREADS, 0, args);
    }

    fn window(&mut self, op: &Op) {
        let &Op::WindowAttention { q, k, v, ref shape, window, state, slots, start, valid, out } = op else {
            return;
        };
        let steps = self.steps_of(q);
        let heads = self.heads(q, k, v, shape, steps);
        let (letter, dim) = (self.storage(out).letter(), shape.head_dim);
        let args = vec![
            heads.arg(),
            at(Place::State(state)),
            value(slots),
            value(start),
            value(valid),
            int(window),
            value(out),
        ];
        let held = 2 * (window - 1 + steps) * (dim + WINDOW_PAD) * Storage::F32.bytes();
        let whole = HELD_DIMS.contains(&dim) && held <= self.target.shared_max;
        let (family, shared) =
            if whole { ("held", held) } else { ("window", steps * dim * Storage::F32.bytes()) };
        let kernel = format!("attend_{family}_{letter}_{}", parts(dim));
        self.launch(kernel, [shape.kv_heads, self.shape.batch, 1], THREADS, shared, args);
    }
}
