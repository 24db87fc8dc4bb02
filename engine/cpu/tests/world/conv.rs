//! Convolutions and encoder ops of the reference.

#![allow(clippy::needless_range_loop, reason = "indices are the formulas' own")]

use device::program::{Op, Padding, Snake};
use device::{StateId, ValueId};

use super::reference::{Reference, Table, activate};

impl Reference {
    /// Runs `op` if it is one of this file's.
    pub fn convolve(&mut self, op: &Op) -> bool {
        match *op {
            Op::CausalConv {
                input,
                weight,
                bias,
                ref shape,
                ref snake,
                residual,
                state,
                slots,
                start,
                valid,
                frames,
                out,
            } => {
                let history = (shape.kernel - 1) * shape.dilation;
                let outputs = self.values[out.0 as usize].cols;
                let rows = self.carry(input, history, snake.as_ref(), state, [slots, start, valid], frames);
                let mut result = self.get(out);
                for (context, rows) in rows.iter().enumerate() {
                    let steps = rows.len() - history;
                    for t in 0..steps {
                        for o in 0..outputs {
                            let mut sum = bias.map_or(0.0, |bias| self.weight(bias)[o]);
                            for (i, _) in rows[0].iter().enumerate() {
                                for k in 0..shape.kernel {
                                    let w = self.weight(weight)[(o * rows[0].len() + i) * shape.kernel + k];
                                    sum += rows[t + k * shape.dilation][i] * w;
                                }
                            }
                            let row = context * steps + t;
                            sum += residual.map_or(0.0, |id| self.values[id.0 as usize].row(row)[o]);
                            result.row_mut(row)[o] = sum;
                        }
                    }
                }
                self.set(out, result);
            }
            Op::CausalDepthwiseConv {
                input,
                weight,
                bias,
                kernel,
                state,
                slots,
                start,
                valid,
                frames,
                out,
            } => {
                let rows = self.carry(input, kernel - 1, None, Some(state), [slots, start, valid], frames);
                let mut result = self.get(out);
                for (context, rows) in rows.iter().enumerate() {
                    let steps = rows.len() + 1 - kernel;
                    for t in 0..steps {
                        for c in 0..rows[0].len() {
                            let sum: f64 = (0..kernel)
                                .map(|k| rows[t + k][c] * self.weight(weight)[c * kernel + k])
                                .sum();
                            let bias = bias.map_or(0.0, |bias| self.weight(bias)[c]);
                            result.row_mut(context * steps + t)[c] = sum + bias;
                        }
                    }
                }
                self.set(out, result);
            }
            Op::CausalConvTranspose {
                input,
                weight,
                bias,
                kernel,
                stride,
                ref snake,
                state,
                slots,
                start,
                valid,
                frames,
                out,
            } => {
                let history = kernel / stride - 1;
                let rows = self.carry(input, history, snake.as_ref(), state, [slots, start, valid], frames);
                let mut result = self.get(out);
                let outputs = result.cols;
                for (context, rows) in rows.iter().enumerate() {
                    // The whole transposed convolution of history and input, then the part that is new.
                    let steps = rows.len() - history;
                    let mut full = vec![vec![0.0; outputs]; (rows.len() - 1) * stride + kernel];
                    for (t, row) in rows.iter().enumerate() {
                        for (i, x) in row.iter().enumerate() {
                            for (o, k) in (0..outputs).flat_map(|o| (0..kernel).map(move |k| (o, k))) {
                                full[t * stride + k][o] +=
                                    x * self.weight(weight)[(i * outputs + o) * kernel + k];
                            }
                        }
                    }
                    for t in 0..steps * stride {
                        for o in 0..outputs {
                            let bias = bias.map_or(0.0, |bias| self.weight(bias)[o]);
                            result.row_mut(context * steps * stride + t)[o] =
                                full[history * stride + t][o] + bias;
                        }
                    }
                }
                self.set(out, result);
            }
            Op::Conv { input, weight, bias, ref shape, padding, activation, out } => {
                let input = self.get(input);
                let mut result = self.get(out);
                for t in 0..result.rows {
                    for o in 0..result.cols {
                        let mut sum = bias.map_or(0.0, |bias| self.weight(bias)[o]);
                        for k in 0..shape.kernel {
                            for i in 0..input.cols {
                                let w = self.weight(weight)[(o * input.cols + i) * shape.kernel + k];
                                sum += padded(&input, t * shape.stride + k * shape.dilation, padding, i) * w;
                            }
                        }
                        result.row_mut(t)[o] = activation.map_or(sum, |activation| activate(activation, sum));
                    }
                }
                self.set(out, result);
            }
            Op::DepthwiseConv { input, weight, bias, ref shape, padding, out } => {
                let input = self.get(input);
                let mut result = self.get(out);
                for t in 0..result.rows {
                    for c in 0..result.cols {
                        let sum: f64 = (0..shape.kernel)
                            .map(|k| {
                                padded(&input, t * shape.stride + k * shape.dilation, padding, c)
                                    * self.weight(weight)[c * shape.kernel + k]
                            })
                            .sum();
                        result.row_mut(t)[c] = sum + bias.map_or(0.0, |bias| self.weight(bias)[c]);
                    }
                }
                self.set(out, result);
            }
            Op::Statistics { input, weights, eps, out } => {
                let input = self.get(input);
                let weights = weights.map(|id| self.get(id));
                let weight =
                    |t: usize, c: usize| weights.as_ref().map_or(1.0 / input.rows as f64, |w| w.row(t)[c]);
                let mut data = vec![0.0; 2 * input.cols];
                for c in 0..input.cols {
                    let mean: f64 = (0..input.rows).map(|t| weight(t, c) * input.row(t)[c]).sum();
                    let variance: f64 =
                        (0..input.rows).map(|t| weight(t, c) * (input.row(t)[c] - mean).powi(2)).sum();
                    data[c] = mean;
                    data[input.cols + c] = variance.max(f64::from(eps)).sqrt();
                }
                self.set(out, Table { rows: 1, cols: 2 * input.cols, data });
            }
            Op::SoftmaxOverTime { input, out } => {
                let mut table = self.get(input);
                for c in 0..table.cols {
                    let sum: f64 = (0..table.rows).map(|t| table.row(t)[c].exp()).sum();
                    for t in 0..table.rows {
                        table.row_mut(t)[c] = table.row(t)[c].exp() / sum;
                    }
                }
                self.set(out, table);
            }
            Op::LogMel { input, window, filters, n_fft, hop, pad, magnitude_eps, floor, out } => {
                let input = self.get(input);
                let mut result = self.get(out);
                let padding = Padding::Reflect { left: pad, right: pad };
                for t in 0..result.rows {
                    let magnitudes: Vec<f64> = (0..=n_fft / 2)
                        .map(|k| {
                            let (mut re, mut im) = (0.0, 0.0);
                            for n in 0..n_fft {
                                let x = padded(&input, t * hop + n, padding, 0) * self.weight(window)[n];
                                let angle = std::f64::consts::TAU * (k * n) as f64 / n_fft as f64;
                                re += x * angle.cos();
                                im -= x * angle.sin();
                            }
                            (re * re + im * im + f64::from(magnitude_eps)).sqrt()
                        })
                        .collect();
                    for m in 0..result.cols {
                        let filter = &self.weight(filters)[m * magnitudes.len()..];
                        let sum: f64 = filter.iter().zip(&magnitudes).map(|(f, x)| f * x).sum();
                        result.row_mut(t)[m] = sum.max(f64::from(floor)).ln();
                    }
                }
                self.set(out, result);
            }
            Op::QuantizeResidual { residual, codebook, codes, column } => {
                let (mut table, mut codes_t) = (self.get(residual), self.get(codes));
                for row in 0..table.rows {
                    let distance = |code: &[f64]| -> f64 {
                        table.row(row).iter().zip(code).map(|(x, c)| (x - c).powi(2)).sum()
                    };
                    let list: Vec<f64> = self.weight(codebook).chunks(table.cols).map(distance).collect();
                    let best = (0..list.len()).fold(0, |best, i| if list[i] < list[best] { i } else { best });
                    let code = self.weight(codebook)[best * table.cols..(best + 1) * table.cols].to_vec();
                    table.row_mut(row).iter_mut().zip(code).for_each(|(x, c)| *x -= c);
                    codes_t.row_mut(row)[column] = best as f64;
                }
                self.set(residual, table);
                self.set(codes, codes_t);
            }
            _ => return false,
        }
        true
    }

    /// History and input rows of each context, after `snake`; moves the state on.
    fn carry(
        &mut self,
        input: ValueId,
        history: usize,
        snake: Option<&Snake>,
        state: Option<StateId>,
        [slots, start, valid]: [ValueId; 3],
        frames: usize,
    ) -> Vec<Vec<Vec<f64>>> {
        let [input, slots, start, valid] = [input, slots, start, valid].map(|id| self.get(id));
        let steps = input.rows / self.batch;
        let mut all = Vec::new();
        for context in 0..self.batch {
            let first = slots.int(context) as usize * history * input.cols;
            let mut rows: Vec<Vec<f64>> = (0..history)
                .map(|h| match state {
                    Some(state) if start.int(context) != 0 => {
                        let from = first + h * input.cols;
                        self.states[state.0 as usize].1[from..from + input.cols].to_vec()
                    }
                    _ => vec![0.0; input.cols],
                })
                .collect();
            for t in 0..steps {
                let row = input.row(context * steps + t);
                let apply = |(c, &x): (usize, &f64)| snake.map_or(x, |snake| self.snake(snake, c, x));
                rows.push(row.iter().enumerate().map(apply).collect());
            }
            if let Some(state) = state {
                let valid = valid.int(context) as usize * steps / frames;
                let kept: Vec<f64> = rows[valid..valid + history].concat();
                self.states[state.0 as usize].1[first..first + kept.len()].copy_from_slice(&kept);
            }
            all.push(rows);
        }
        all
    }
}

fn padded(input: &Table, at: usize, padding: Padding, column: usize) -> f64 {
    let (Padding::Zeros { left, .. } | Padding::Reflect { left, .. } | Padding::Replicate { left, .. }) =
        padding;
    let (at, last) = (at as i64 - left as i64, input.rows as i64 - 1);
    let from = match padding {
        Padding::Zeros { .. } if at < 0 || at > last => return 0.0,
        Padding::Zeros { .. } => at,
        Padding::Replicate { .. } => at.clamp(0, last),
        Padding::Reflect { .. } if at < 0 => -at,
        Padding::Reflect { .. } if at > last => 2 * last - at,
        Padding::Reflect { .. } => at,
    };
    input.row(from as usize)[column]
}
