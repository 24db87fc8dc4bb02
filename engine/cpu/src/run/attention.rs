//! Attention: rows are normed, turned and stored first, then each query head attends on its own.

use std::cell::RefCell;

use device::program::{AttentionShape, Op};

use super::{Matrix, Run};
use crate::kernel::{self, Run as Keys};
use crate::plan::line;

thread_local! {
    /// Page runs of the query at hand; kept so that the frame path does not allocate.
    static RUNS: RefCell<Vec<Keys>> = const { RefCell::new(Vec::new()) };
}

/// Half of the longest head with rope.
const HALF_MAX: usize = 128;

/// How rows of heads are prepared.
#[derive(Clone, Copy)]
struct Heads<'a> {
    dim: usize,
    norm: Option<&'a [f32]>,
    eps: f32,
    frequencies: Option<[f32; HALF_MAX]>,
}

/// Cosines and sines of one position.
struct Angles {
    cosines: [f32; HALF_MAX],
    sines: [f32; HALF_MAX],
}

impl<'a> Heads<'a> {
    fn new(shape: &AttentionShape, norm: Option<&'a [f32]>, eps: f32) -> Self {
        let half = shape.head_dim / 2;
        assert!(half <= HALF_MAX, "heads of {} are longer than {}", shape.head_dim, 2 * HALF_MAX);
        let frequencies = shape.rope.map(|rope| {
            let mut list = [0.0; HALF_MAX];
            for (i, frequency) in list.iter_mut().enumerate().take(half) {
                *frequency = 1.0 / rope.theta.powf((2 * i) as f32 / shape.head_dim as f32);
            }
            list
        });
        Self { dim: shape.head_dim, norm, eps, frequencies }
    }

    fn angles(&self, position: usize) -> Option<Angles> {
        self.frequencies.map(|frequencies| {
            let mut angles = Angles { cosines: [0.0; HALF_MAX], sines: [0.0; HALF_MAX] };
            let list = angles.sines.iter_mut().zip(&mut angles.cosines).zip(frequencies);
            for ((sine, cosine), frequency) in list.take(self.dim / 2) {
                (*sine, *cosine) = (position as f32 * frequency).sin_cos();
            }
            angles
        })
    }

    /// Norms and turns each head of `row` into `target`.
    fn prepare(&self, row: &[f32], angles: Option<&Angles>, target: &mut [f32]) {
        target.copy_from_slice(row);
        let half = self.dim / 2;
        for head in target.chunks_exact_mut(self.dim) {
            if let Some(norm) = self.norm {
                kernel::rms_norm(head, norm, self.eps);
            }
            if let Some(angles) = angles {
                kernel::rotate(head, &angles.cosines[..half], &angles.sines[..half]);
            }
        }
    }
}

impl<'a> Run<'a> {
    pub(super) fn attention(&self, op: &'a Op) {
        match op {
            Op::PagedAttention { .. } => self.paged(op),
            Op::DepthAttention { .. } => self.depth(op),
            Op::WindowAttention { .. } => self.window(op),
            Op::LocalAttention { .. } => self.local(op),
            _ => {}
        }
    }

    /// Runs `runs` for each query head of this member's share. It fills in the keys of query `row`, and
    /// returns false for a row that does not attend.
    fn attend(
        &self,
        shape: &AttentionShape,
        q: Matrix<'a>,
        scores: Matrix<'a>,
        out: Matrix<'a>,
        runs: impl Fn(usize, &mut Vec<Keys>) -> bool,
    ) {
        let dim = shape.head_dim;
        let stride = shape.kv_heads * dim;
        let sharing = shape.heads / shape.kv_heads;
        RUNS.with_borrow_mut(|list| {
            let mut ready = None;
            for item in self.member.share(q.rows * shape.heads, 2 * dim * scores.cols.min(64)) {
                let (row, head) = (item / shape.heads, item % shape.heads);
                if ready.is_none_or(|(known, _)| known != row) {
                    list.clear();
                    ready = Some((row, runs(row, list)));
                }
                let columns = head * dim..(head + 1) * dim;
                // SAFETY: one head of one row, this member's.
                let target = unsafe { out.ptr().add(row * out.cols + columns.start) };
                let target = unsafe { std::slice::from_raw_parts_mut(target, dim) };
                if !ready.is_some_and(|(_, attends)| attends) {
                    target.fill(0.0);
                    continue;
                }
                let offset = head / sharing * dim;
                let q = &q.row(row)[columns];
                let scores = scores.row_mut(self.member.index);
                // SAFETY: `runs` names rows of `stride` values that this launch holds.
                unsafe { kernel::attend(q, list, offset, stride, shape.scale, scores, target) };
            }
        });
    }

    fn paged(&self, op: &'a Op) {
        let Op::PagedAttention {
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
        } = op
        else {
            return;
        };
        let [q, k, v, out] = [q, k, v, out].map(|&id| self.value(id));
        let [positions, owner, table] = [positions, owner, page_table].map(|&id| self.value(id));
        let pool = &self.exe.memory.pages[pages.0 as usize];
        let page_len = pool.spec.page_len;
        let (positions, owner) = (positions.ints(), owner.ints());
        let page = |row: usize, index: usize| {
            let context = owner[row] as usize;
            assert!(index < table.cols, "position {} is past the page table", positions[row]);
            pool.layer(table.ints()[context * table.cols + index], *layer)
        };
        let queries = Heads::new(shape, self.vector(*q_norm), *norm_eps);
        let keys = Heads::new(shape, self.vector(*k_norm), *norm_eps);
        let turned = self.temp(0, q.rows, q.cols);
        for row in self.member.share(q.rows, 8 * (q.cols + k.cols)) {
            let Ok(position) = usize::try_from(positions[row]) else { continue };
            let angles = queries.angles(position);
            queries.prepare(q.row(row), angles.as_ref(), turned.row_mut(row));
            let (key, value) = page(row, position / page_len);
            let at = position % page_len * k.cols;
            // SAFETY: a position lies inside its page; only this row writes it.
            let (key, value) = unsafe {
                (
                    std::slice::from_raw_parts_mut(key.add(at), k.cols),
                    std::slice::from_raw_parts_mut(value.add(at), k.cols),
                )
            };
            keys.prepare(k.row(row), angles.as_ref(), key);
            value.copy_from_slice(v.row(row));
        }
        self.member.barrier();
        let scores = self.temp(line(q.rows * q.cols), self.member.count, line(page_len * table.cols));
        self.attend(shape, turned, scores, out, |row, runs| {
            let Ok(position) = usize::try_from(positions[row]) else { return false };
            for index in 0..=position / page_len {
                let (keys, values) = page(row, index);
                runs.push(Keys { keys, values, rows: (position + 1 - index * page_len).min(page_len) });
            }
            true
        });
    }

    fn depth(&self, op: &'a Op) {
        let Op::DepthAttention { q, k, v, q_norm, k_norm, norm_eps, shape, keys, values, position, out } = op
        else {
            return;
        };
        let [q, k, v, keys, values, out] = [q, k, v, keys, values, out].map(|&id| self.value(id));
        let (steps, capacity) = (q.rows / self.batch, keys.rows / self.batch);
        let queries = Heads::new(shape, self.vector(*q_norm), *norm_eps);
        let turner = Heads::new(shape, self.vector(*k_norm), *norm_eps);
        let turned = self.temp(0, q.rows, q.cols);
        let mut angles = (usize::MAX, None);
        for row in self.member.share(q.rows, 8 * (q.cols + k.cols)) {
            let at = position + row % steps;
            if angles.0 != at {
                angles = (at, queries.angles(at));
            }
            let place = row / steps * capacity + at;
            queries.prepare(q.row(row), angles.1.as_ref(), turned.row_mut(row));
            turner.prepare(k.row(row), angles.1.as_ref(), keys.row_mut(place));
            values.row_mut(place).copy_from_slice(v.row(row));
        }
        self.member.barrier();
        let scores = self.temp(line(q.rows * q.cols), self.member.count, line(capacity));
        self.attend(shape, turned, scores, out, |row, runs| {
            let first = row / steps * capacity * keys.cols;
            // SAFETY: `capacity` rows of this context.
            let (keys, values) = unsafe { (keys.ptr().add(first), values.ptr().add(first)) };
            runs.push(Keys { keys, values, rows: position + row % steps + 1 });
            true
        });
    }

    fn window(&self, op: &'a Op) {
        let Op::WindowAttention { q, k, v, shape, window, state, slots, start, valid, out } = op else {
            return;
        };
        let [q, k, v, out] = [q, k, v, out].map(|&id| self.value(id));
        let [slots, start, valid] = [slots, start, valid].map(|&id| self.value(id).ints());
        let state = &self.exe.memory.states[state.0 as usize];
        let steps = q.rows / self.batch;
        let past = window - 1;
        let heads = Heads::new(shape, None, 0.0);
        let turned = self.temp(0, q.rows, q.cols);
        let fresh = self.temp(line(q.rows * q.cols), k.rows, k.cols);
        for row in self.member.share(q.rows, 8 * (q.cols + k.cols)) {
            let position = start[row / steps].max(0) as usize + row % steps;
            let angles = heads.angles(position);
            heads.prepare(q.row(row), angles.as_ref(), turned.row_mut(row));
            heads.prepare(k.row(row), angles.as_ref(), fresh.row_mut(row));
        }
        self.member.barrier();
        let scores =
            self.temp(line(q.rows * q.cols) + line(k.rows * k.cols), self.member.count, line(*window));
        self.attend(shape, turned, scores, out, |row, runs| {
            let (context, step) = (row / steps, row % steps);
            let before = past.min(start[context].max(0) as usize + step);
            let near = before.min(step);
            let far = before - near;
            if far > 0 {
                let stored = state.row(slots[context]).cast::<f32>();
                // SAFETY: the last `far` of the `past` rows of keys, then of values.
                unsafe {
                    let keys = stored.add((past - far) * k.cols);
                    runs.push(Keys { keys, values: keys.add(past * k.cols), rows: far });
                }
            }
            let first = (row - near) * k.cols;
            // SAFETY: rows of this context.
            let (keys, values) = unsafe { (fresh.ptr().add(first), v.ptr().add(first)) };
            runs.push(Keys { keys, values, rows: near + 1 });
            true
        });
        self.member.barrier();
        for context in self.member.share(self.batch, 2 * past * k.cols) {
            let valid = valid[context].max(0) as usize;
            assert!(valid <= steps, "{valid} of {steps} rows are valid");
            let stored = state.row(slots[context]).cast::<f32>();
            for (half, source) in [fresh, v].into_iter().enumerate() {
                // SAFETY: one half of the slot's row; every member has attended.
                let stored = unsafe {
                    std::slice::from_raw_parts_mut(stored.add(half * past * k.cols), past * k.cols)
                };
                let new = valid.min(past);
                stored.copy_within(new * k.cols.., 0);
                let first = context * steps + valid - new;
                stored[(past - new) * k.cols..].copy_from_slice(source.get(first..first + new));
            }
        }
    }

    fn local(&self, op: &'a Op) {
        let Op::LocalAttention { q, k, v, shape, window, out } = op else { return };
        let [q, k, v, out] = [q, k, v, out].map(|&id| self.value(id));
        let heads = Heads::new(shape, None, 0.0);
        let turned = self.temp(0, q.rows, q.cols);
        let keys = self.temp(line(q.rows * q.cols), k.rows, k.cols);
        for row in self.member.share(q.rows, 8 * (q.cols + k.cols)) {
            let angles = heads.angles(row);
            heads.prepare(q.row(row), angles.as_ref(), turned.row_mut(row));
            heads.prepare(k.row(row), angles.as_ref(), keys.row_mut(row));
        }
        self.member.barrier();
        let length = line((*window).min(q.rows));
        let scores = self.temp(line(q.rows * q.cols) + line(k.rows * k.cols), self.member.count, length);
        self.attend(shape, turned, scores, out, |row, runs| {
            let first = (row + 1).saturating_sub(*window);
            let at = first * k.cols;
            // SAFETY: rows of the values.
            let (keys, values) = unsafe { (keys.ptr().add(at), v.ptr().add(at)) };
            runs.push(Keys { keys, values, rows: row + 1 - first });
            true
        });
    }
}
