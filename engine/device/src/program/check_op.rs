//! The shape rules of each operation.

use super::check::Checker;
use super::{Op, Rows};
use crate::{DeviceError, Dtype, WeightForm};

use Dtype::{F32, I32};

impl Checker<'_> {
    pub(super) fn op(&self, op: &Op) -> Result<(), DeviceError> {
        match op {
            Op::Linear { .. }
            | Op::GatedMlp { .. }
            | Op::RmsNorm { .. }
            | Op::LayerNorm { .. }
            | Op::AddScaled { .. }
            | Op::Multiply { .. }
            | Op::Activate { .. }
            | Op::Clamp { .. }
            | Op::SnakeBeta { .. } => self.dense(op),
            Op::PagedAttention { .. }
            | Op::DepthAttention { .. }
            | Op::WindowAttention { .. }
            | Op::LocalAttention { .. } => self.attend(op),
            Op::CausalConv { .. }
            | Op::CausalDepthwiseConv { .. }
            | Op::CausalConvTranspose { .. }
            | Op::Conv { .. }
            | Op::DepthwiseConv { .. } => self.convolve(op),
            _ => self.other(op),
        }
    }

    fn other(&self, op: &Op) -> Result<(), DeviceError> {
        match *op {
            Op::Embed { table, ids, out, .. } => {
                self.dtype(I32, &[ids])?;
                self.dtype(F32, &[out])?;
                self.cols(ids, 1, "one id a row")?;
                self.same_rows(ids, out)?;
                self.table(table, self.value(out)?.cols)
            }
            Op::EmbedSum { ref tables, codes, out, .. } => {
                self.dtype(I32, &[codes])?;
                self.dtype(F32, &[out])?;
                self.same_rows(codes, out)?;
                let groups = self.value(codes)?.cols;
                self.ensure(!tables.is_empty() && tables.len() <= groups, || {
                    format!("{} tables for {groups} columns of codes", tables.len())
                })?;
                let width = self.value(out)?.cols;
                tables.iter().try_for_each(|&table| self.table(table, width))
            }
            Op::GatherRows { source, rows, out, accumulate } => {
                self.dtype(I32, &[rows])?;
                self.cols(rows, 1, "one row number a row")?;
                self.same_rows(rows, out)?;
                self.cols(out, self.value(source)?.cols, "source")?;
                self.dtype(self.value(source)?.dtype, &[out])?;
                self.ensure(!accumulate || self.value(out)?.dtype == F32, || {
                    "only F32 can be accumulated".to_owned()
                })
            }
            Op::Slice { source, first, out } => self.window(source, first, out),
            Op::Place { source, out, first } => self.window(out, first, source),
            Op::Repeat { source, out } => {
                self.ensure(matches!(self.value(source)?.rows, Rows::Fixed(1) | Rows::PerRow(1)), || {
                    "source must have one row".to_owned()
                })?;
                self.ensure(
                    std::mem::discriminant(&self.value(source)?.rows)
                        == std::mem::discriminant(&self.value(out)?.rows),
                    || "source and out must have rows of one kind".to_owned(),
                )?;
                self.cols(out, self.value(source)?.cols, "source")?;
                self.dtype(self.value(source)?.dtype, &[out])
            }
            Op::Reshape { source, out } => {
                let (from, to) = (self.value(source)?, self.value(out)?);
                self.dtype(from.dtype, &[out])?;
                let sizes = match (from.rows, to.rows) {
                    (Rows::PerRow(a), Rows::PerRow(b)) | (Rows::Fixed(a), Rows::Fixed(b)) => {
                        a * from.cols == b * to.cols
                    }
                    (Rows::Tokens, Rows::Tokens) => from.cols == to.cols,
                    _ => false,
                };
                self.ensure(sizes, || {
                    format!("[{}, {}] does not become [{}, {}]", from.rows, from.cols, to.rows, to.cols)
                })
            }
            Op::LoadState { state, slots, out } => {
                self.per_row(&[slots])?;
                self.rows(out, Rows::PerRow(1))?;
                self.state(state, self.value(out)?.dtype, self.value(out)?.cols)
            }
            Op::StoreState { state, slots, source, active } => {
                self.per_row(&[slots])?;
                self.per_row(active.as_slice())?;
                self.rows(source, Rows::PerRow(1))?;
                self.state(state, self.value(source)?.dtype, self.value(source)?.cols)
            }
            Op::Statistics { input, weights, out, .. } => {
                self.dtype(F32, &[input, out])?;
                self.fixed(input)?;
                self.rows(out, Rows::Fixed(1))?;
                self.cols(out, 2 * self.value(input)?.cols, "means and deviations")?;
                weights.map_or(Ok(()), |weights| self.same(input, weights))
            }
            Op::SoftmaxOverTime { input, out } => {
                self.dtype(F32, &[input])?;
                self.fixed(input)?;
                self.same(input, out)
            }
            Op::LogMel { input, window, filters, n_fft, hop, pad, out, .. } => {
                self.dtype(F32, &[input, out])?;
                self.cols(input, 1, "samples")?;
                self.ensure(n_fft > 1 && hop > 0, || "n_fft and hop must be positive".to_owned())?;
                let samples = self.fixed(input)?;
                self.ensure(samples > pad && samples + 2 * pad >= n_fft, || {
                    format!("{samples} samples are too few for {n_fft} points and padding {pad}")
                })?;
                self.rows(out, Rows::Fixed((samples + 2 * pad - n_fft) / hop + 1))?;
                self.weight(window, WeightForm::Vector, &[n_fft])?;
                self.weight(filters, WeightForm::Matrix, &[self.value(out)?.cols, n_fft / 2 + 1])
            }
            Op::QuantizeResidual { residual, codebook, codes, .. } => {
                self.dtype(F32, &[residual])?;
                self.dtype(I32, &[codes])?;
                self.same_rows(residual, codes)?;
                self.table(codebook, self.value(residual)?.cols)
            }
            Op::Sample { logits, params, seeds, step, bound, allow_keep, history, slots, out, .. } => {
                self.dtype(F32, &[logits, params])?;
                self.dtype(I32, &[seeds, out])?;
                self.per_row(&[step, slots])?;
                self.per_row(allow_keep.as_slice())?;
                for id in [logits, params, seeds, out] {
                    self.rows(id, Rows::PerRow(1))?;
                }
                self.cols(params, 4, "temperature, top_k, top_p, penalty")?;
                self.cols(seeds, 2, "a 64-bit seed")?;
                let vocabulary = self.value(logits)?.cols;
                if let Some(bound) = bound {
                    self.ensure(bound.suppress_from <= bound.suppress_to, || {
                        format!("suppressed ids {}..{} run backwards", bound.suppress_from, bound.suppress_to)
                    })?;
                    let suppressed = (bound.suppress_to as usize).min(vocabulary)
                        - (bound.suppress_from as usize).min(vocabulary);
                    self.ensure(suppressed < vocabulary, || "every id is suppressed".to_owned())?;
                }
                history.map_or(Ok(()), |history| self.state(history, I32, vocabulary))
            }
            Op::Equals { ids, flags, .. } => {
                self.dtype(I32, &[ids, flags])?;
                self.same_rows(ids, flags)?;
                self.cols(flags, 1, "one flag a row")
            }
            Op::MaskRows { source, valid, frames, out } => {
                self.per_row(&[valid])?;
                self.same(source, out)?;
                self.frames(self.steps(source)?, frames)
            }
            _ => Ok(()),
        }
    }

    /// `part` is columns `first..` of `whole`.
    fn window(&self, whole: super::ValueId, first: usize, part: super::ValueId) -> Result<(), DeviceError> {
        self.same_rows(whole, part)?;
        self.dtype(self.value(whole)?.dtype, &[part])?;
        let (whole, part) = (self.value(whole)?, self.value(part)?);
        self.ensure(first.saturating_add(part.cols) <= whole.cols, || {
            format!("columns {first}..+{} are outside {} ({} columns)", part.cols, whole.name, whole.cols)
        })
    }

    fn frames(&self, rows: usize, frames: usize) -> Result<(), DeviceError> {
        self.ensure(frames > 0 && rows.is_multiple_of(frames), || {
            format!("{rows} rows are not a multiple of {frames} frames")
        })
    }

    fn dense(&self, op: &Op) -> Result<(), DeviceError> {
        match *op {
            Op::Linear { input, weight, bias, residual, out, .. } => {
                self.dtype(F32, &[input, out])?;
                self.same_rows(input, out)?;
                let width = self.value(out)?.cols;
                self.weight(weight, WeightForm::Matrix, &[width, self.value(input)?.cols])?;
                self.vectors(&[bias], width)?;
                residual.map_or(Ok(()), |residual| self.same(out, residual))
            }
            Op::GatedMlp { input, gate, up, down, out } => {
                self.dtype(F32, &[input])?;
                self.same(input, out)?;
                let width = self.value(input)?.cols;
                let inner = self.catalog.weight(gate).map_or(0, |weight| weight.shape[0]);
                self.weight(gate, WeightForm::Matrix, &[inner, width])?;
                self.weight(up, WeightForm::Matrix, &[inner, width])?;
                self.weight(down, WeightForm::Matrix, &[width, inner])
            }
            Op::RmsNorm { input, weight, out, .. } => {
                self.dtype(F32, &[input])?;
                self.same(input, out)?;
                self.vectors(&[Some(weight)], self.value(input)?.cols)
            }
            Op::LayerNorm { input, weight, bias, out, .. } => {
                self.dtype(F32, &[input])?;
                self.same(input, out)?;
                self.vectors(&[Some(weight), Some(bias)], self.value(input)?.cols)
            }
            Op::AddScaled { target, input, scale } => {
                self.dtype(F32, &[target])?;
                self.same(target, input)?;
                self.vectors(&[scale], self.value(input)?.cols)
            }
            Op::Multiply { a, b, out } => {
                self.dtype(F32, &[a, b])?;
                self.same(a, out)?;
                self.cols(b, self.value(a)?.cols, "a")?;
                let (rows, other) = (self.value(a)?.rows, self.value(b)?.rows);
                let broadcast =
                    other == Rows::Fixed(1) || (other == Rows::PerRow(1) && matches!(rows, Rows::PerRow(_)));
                self.ensure(rows == other || broadcast, || format!("{other} rows do not broadcast to {rows}"))
            }
            Op::Activate { input, out, .. } | Op::Clamp { input, out, .. } => {
                self.dtype(F32, &[input])?;
                self.same(input, out)
            }
            Op::SnakeBeta { input, ref snake, out } => {
                self.dtype(F32, &[input])?;
                self.same(input, out)?;
                self.snake(Some(snake), self.value(input)?.cols)
            }
            _ => Ok(()),
        }
    }

    fn attend(&self, op: &Op) -> Result<(), DeviceError> {
        match *op {
            Op::PagedAttention {
                q,
                k,
                v,
                q_norm,
                k_norm,
                ref shape,
                pages,
                layer,
                positions,
                owner,
                page_table,
                out,
                ..
            } => {
                self.attention(shape, q, k, v)?;
                self.same(q, out)?;
                self.vectors(&[q_norm, k_norm], shape.head_dim)?;
                self.paged(pages, layer, shape)?;
                self.dtype(I32, &[positions, owner, page_table])?;
                for id in [positions, owner] {
                    self.same_rows(q, id)?;
                    self.cols(id, 1, "one value a row")?;
                }
                self.rows(page_table, Rows::PerRow(1))
            }
            Op::DepthAttention {
                q, k, v, q_norm, k_norm, ref shape, keys, values, position, out, ..
            } => {
                self.attention(shape, q, k, v)?;
                self.same(q, out)?;
                self.vectors(&[q_norm, k_norm], shape.head_dim)?;
                self.same(keys, values)?;
                self.dtype(F32, &[keys])?;
                self.cols(keys, shape.kv_heads * shape.head_dim, "kv heads")?;
                let (steps, capacity) = (self.steps(q)?, self.steps(keys)?);
                self.ensure(position + steps <= capacity, || {
                    format!("positions {position}..+{steps} do not fit a capacity of {capacity}")
                })
            }
            Op::WindowAttention { q, k, v, ref shape, window, state, slots, start, valid, out } => {
                self.attention(shape, q, k, v)?;
                self.same(q, out)?;
                self.steps(q)?;
                self.per_row(&[slots, start, valid])?;
                self.ensure(window > 0, || "the window is empty".to_owned())?;
                self.state(state, F32, 2 * (window - 1) * shape.kv_heads * shape.head_dim)
            }
            Op::LocalAttention { q, k, v, ref shape, window, out } => {
                self.attention(shape, q, k, v)?;
                self.same(q, out)?;
                self.fixed(q)?;
                self.ensure(window > 0, || "the window is empty".to_owned())
            }
            _ => Ok(()),
        }
    }

    fn convolve(&self, op: &Op) -> Result<(), DeviceError> {
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
                self.dtype(F32, &[input, out])?;
                self.same_rows(input, out)?;
                self.per_row(&[slots, start, valid])?;
                self.frames(self.steps(input)?, frames)?;
                self.ensure(shape.stride == 1 && shape.kernel > 0 && shape.dilation > 0, || {
                    "stride must be 1, kernel and dilation at least 1".to_owned()
                })?;
                let (from, to) = (self.value(input)?.cols, self.value(out)?.cols);
                self.weight(weight, WeightForm::Conv, &[to, from, shape.kernel])?;
                self.vectors(&[bias], to)?;
                self.snake(snake.as_ref(), from)?;
                self.history(state, (shape.kernel - 1) * shape.dilation * from)?;
                residual.map_or(Ok(()), |residual| self.same(out, residual))
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
                self.dtype(F32, &[input])?;
                self.same(input, out)?;
                self.per_row(&[slots, start, valid])?;
                self.frames(self.steps(input)?, frames)?;
                self.ensure(kernel > 1, || "kernel must be at least 2".to_owned())?;
                let width = self.value(input)?.cols;
                self.weight(weight, WeightForm::Depthwise, &[width, 1, kernel])?;
                self.vectors(&[bias], width)?;
                self.state(state, F32, (kernel - 1) * width)
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
                self.dtype(F32, &[input, out])?;
                self.per_row(&[slots, start, valid])?;
                let steps = self.steps(input)?;
                self.frames(steps, frames)?;
                self.ensure(stride > 0 && kernel > 0 && kernel.is_multiple_of(stride), || {
                    format!("kernel {kernel} is not a multiple of stride {stride}")
                })?;
                self.rows(out, Rows::PerRow(steps * stride))?;
                let (from, to) = (self.value(input)?.cols, self.value(out)?.cols);
                self.weight(weight, WeightForm::ConvTranspose, &[from, to, kernel])?;
                self.vectors(&[bias], to)?;
                self.snake(snake.as_ref(), from)?;
                self.history(state, (kernel / stride - 1) * from)
            }
            Op::Conv { input, weight, bias, ref shape, padding, out, .. } => {
                self.dtype(F32, &[input, out])?;
                self.rows(out, Rows::Fixed(self.conv_rows(self.fixed(input)?, shape, padding)?))?;
                let (from, to) = (self.value(input)?.cols, self.value(out)?.cols);
                self.weight(weight, WeightForm::Conv, &[to, from, shape.kernel])?;
                self.vectors(&[bias], to)
            }
            Op::DepthwiseConv { input, weight, bias, ref shape, padding, out } => {
                self.dtype(F32, &[input, out])?;
                self.rows(out, Rows::Fixed(self.conv_rows(self.fixed(input)?, shape, padding)?))?;
                let width = self.value(input)?.cols;
                self.cols(out, width, "input")?;
                self.weight(weight, WeightForm::Depthwise, &[width, 1, shape.kernel])?;
                self.vectors(&[bias], width)
            }
            _ => Ok(()),
        }
    }
}
