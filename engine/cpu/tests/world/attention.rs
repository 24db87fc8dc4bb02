//! Attention ops of the reference.

use device::WeightId;
use device::program::{AttentionShape, Op};

use super::reference::{Reference, Table, rms_norm};

impl Reference {
    fn heads(
        &self,
        row: &[f64],
        shape: &AttentionShape,
        norm: Option<WeightId>,
        eps: f32,
        position: f64,
    ) -> Vec<f64> {
        let (dim, half) = (shape.head_dim, shape.head_dim / 2);
        let mut result = row.to_vec();
        for head in result.chunks_mut(dim) {
            if let Some(norm) = norm {
                rms_norm(head, self.weight(norm), f64::from(eps));
            }
            if let Some(rope) = shape.rope {
                for i in 0..half {
                    let angle = position / f64::from(rope.theta).powf(2.0 * i as f64 / dim as f64);
                    let (a, b) = (head[i], head[half + i]);
                    head[i] = a * angle.cos() - b * angle.sin();
                    head[half + i] = b * angle.cos() + a * angle.sin();
                }
            }
        }
        result
    }

    /// Runs an attention op.
    pub fn attend(&mut self, op: &Op) {
        match *op {
            Op::PagedAttention {
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
            } => {
                let [q, k, v, positions, owner, table] =
                    [q, k, v, positions, owner, page_table].map(|id| self.get(id));
                let mut result = Table { rows: q.rows, cols: q.cols, data: vec![0.0; q.data.len()] };
                let page_len = self.pages[pages.0 as usize].page_len;
                let page = |row: usize, position: usize| {
                    table.row(owner.int(row) as usize)[position / page_len] as i64
                };
                for row in 0..q.rows {
                    if let Ok(position) = usize::try_from(positions.int(row)) {
                        let key = self.heads(k.row(row), shape, k_norm, norm_eps, position as f64);
                        *self.pages[pages.0 as usize].at(page(row, position), layer, position % page_len) =
                            (key, v.row(row).to_vec());
                    }
                }
                for row in 0..q.rows {
                    if let Ok(position) = usize::try_from(positions.int(row)) {
                        let query = self.heads(q.row(row), shape, q_norm, norm_eps, position as f64);
                        let keys: Vec<_> = (0..=position)
                            .map(|p| {
                                self.pages[pages.0 as usize].at(page(row, p), layer, p % page_len).clone()
                            })
                            .collect();
                        attend(&query, &keys, shape, result.row_mut(row));
                    }
                }
                self.set(out, result);
            }
            Op::DepthAttention {
                q,
                k,
                v,
                q_norm,
                k_norm,
                norm_eps,
                ref shape,
                keys,
                values,
                position,
                out,
            } => {
                let [q, k, v, mut keys_t, mut values_t] = [q, k, v, keys, values].map(|id| self.get(id));
                let mut result = Table { rows: q.rows, cols: q.cols, data: vec![0.0; q.data.len()] };
                let (steps, capacity) = (q.rows / self.batch, keys_t.rows / self.batch);
                for row in 0..q.rows {
                    let (context, at) = (row / steps, position + row % steps);
                    let key = self.heads(k.row(row), shape, k_norm, norm_eps, at as f64);
                    keys_t.row_mut(context * capacity + at).copy_from_slice(&key);
                    values_t.row_mut(context * capacity + at).copy_from_slice(v.row(row));
                    let query = self.heads(q.row(row), shape, q_norm, norm_eps, at as f64);
                    let first = context * capacity;
                    let known: Vec<_> = (first..=first + at)
                        .map(|p| (keys_t.row(p).to_vec(), values_t.row(p).to_vec()))
                        .collect();
                    attend(&query, &known, shape, result.row_mut(row));
                }
                self.set(keys, keys_t);
                self.set(values, values_t);
                self.set(out, result);
            }
            Op::WindowAttention { q, k, v, ref shape, window, state, slots, start, valid, out } => {
                let [q, k, v, slots, start, valid] = [q, k, v, slots, start, valid].map(|id| self.get(id));
                let mut result = Table { rows: q.rows, cols: q.cols, data: vec![0.0; q.data.len()] };
                let (steps, past, width) = (q.rows / self.batch, window - 1, k.cols);
                for context in 0..self.batch {
                    let first = slots.int(context) as usize * 2 * past * width;
                    let stored = self.states[state.0 as usize].1[first..first + 2 * past * width].to_vec();
                    let mut known: Vec<(Vec<f64>, Vec<f64>)> = (0..past)
                        .map(|p| {
                            let at = p * width..(p + 1) * width;
                            (stored[at.clone()].to_vec(), stored[past * width..][at].to_vec())
                        })
                        .collect();
                    let start = start.int(context) as usize;
                    for step in 0..steps {
                        let row = context * steps + step;
                        let position = start + step;
                        let key = self.heads(k.row(row), shape, None, 0.0, position as f64);
                        known.push((key, v.row(row).to_vec()));
                        let seen = (position + 1).min(window);
                        let query = self.heads(q.row(row), shape, None, 0.0, position as f64);
                        attend(&query, &known[known.len() - seen..], shape, result.row_mut(row));
                    }
                    let valid = valid.int(context) as usize;
                    let kept = &known[valid..valid + past];
                    let flat =
                        kept.iter().flat_map(|(key, _)| key).chain(kept.iter().flat_map(|(_, value)| value));
                    self.states[state.0 as usize].1[first..first + 2 * past * width]
                        .iter_mut()
                        .zip(flat)
                        .for_each(|(to, &from)| *to = from);
                }
                self.set(out, result);
            }
            Op::LocalAttention { q, k, v, ref shape, window, out } => {
                let [q, k, v] = [q, k, v].map(|id| self.get(id));
                let mut result = Table { rows: q.rows, cols: q.cols, data: vec![0.0; q.data.len()] };
                let known: Vec<_> = (0..k.rows)
                    .map(|row| (self.heads(k.row(row), shape, None, 0.0, row as f64), v.row(row).to_vec()))
                    .collect();
                for row in 0..q.rows {
                    let query = self.heads(q.row(row), shape, None, 0.0, row as f64);
                    let first = (row + 1).saturating_sub(window);
                    attend(&query, &known[first..=row], shape, result.row_mut(row));
                }
                self.set(out, result);
            }
            ref other => panic!("the reference does not know {}", other.name()),
        }
    }
}

fn attend(query: &[f64], known: &[(Vec<f64>, Vec<f64>)], shape: &AttentionShape, out: &mut [f64]) {
    let dim = shape.head_dim;
    for head in 0..shape.heads {
        let from = head / (shape.heads / shape.kv_heads) * dim;
        let q = &query[head * dim..(head + 1) * dim];
        let scores: Vec<f64> = known
            .iter()
            .map(|(key, _)| {
                q.iter().zip(&key[from..]).map(|(a, b)| a * b).sum::<f64>() * f64::from(shape.scale)
            })
            .collect();
        let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let total: f64 = scores.iter().map(|s| (s - top).exp()).sum();
        for d in 0..dim {
            let sum: f64 = scores.iter().zip(known).map(|(s, (_, v))| (s - top).exp() * v[from + d]).sum();
            out[head * dim + d] = sum / total;
        }
    }
}
