//! Linear layers, norms and elementwise ops.

use std::ops::Range;

use device::WeightId;
use device::program::{Activation, Op};

use super::{Matrix, Run};
use crate::kernel::{self, Product};
use crate::pack::{PANEL, Packed};
use crate::plan::line;

/// Rows of a share that keep the tiles of the matrix kernel full.
const ROW_GRAIN: usize = 6;
/// Rows from which members split rows; below, they split columns, so that weights are read once.
const ROWS_SPLIT: usize = 48;

/// A product over the rows of a value or of working memory.
pub(super) struct Linear<'a> {
    pub(super) a: *const f32,
    pub(super) rows: usize,
    pub(super) group: usize,
    pub(super) group_stride: usize,
    pub(super) row_stride: usize,
    pub(super) tap_stride: usize,
    pub(super) weight: &'a Packed,
    pub(super) bias: Option<&'a [f32]>,
    pub(super) activation: Option<Activation>,
    pub(super) residual: Option<Matrix<'a>>,
    pub(super) out: *mut f32,
}

impl<'a> Run<'a> {
    pub(super) fn dense(&self, op: &'a Op) {
        match *op {
            Op::Linear { input, weight, bias, activation, residual, out } => {
                let residual = residual.map(|residual| self.value(residual));
                self.linear(
                    self.value(input),
                    self.exe.memory.packed(weight),
                    self.vector(bias),
                    activation,
                    residual,
                    self.value(out),
                );
            }
            Op::GatedMlp { input, gate, up, down, out } => {
                self.gated_mlp(self.value(input), [gate, up, down], self.value(out));
            }
            Op::RmsNorm { input, weight, eps, out } => {
                let weight = self.exe.memory.raw(weight);
                self.by_row(input, out, 4, |row| kernel::rms_norm(row, weight, eps));
            }
            Op::LayerNorm { input, weight, bias, eps, out } => {
                let (weight, bias) = (self.exe.memory.raw(weight), self.exe.memory.raw(bias));
                self.by_row(input, out, 6, |row| kernel::layer_norm(row, weight, bias, eps));
            }
            Op::Activate { input, activation, out } => {
                self.by_row(input, out, 20, |row| kernel::activate(activation, row));
            }
            Op::Clamp { input, low, high, out } => {
                // A sample that is not a number stays one, so that the engine sees it.
                self.by_row(input, out, 1, |row| row.iter_mut().for_each(|x| *x = x.clamp(low, high)));
            }
            Op::AddScaled { target, input, scale } => {
                let (target, input) = (self.value(target), self.value(input));
                let rows = self.member.share(target.rows, target.cols);
                match self.vector(scale) {
                    Some(scale) => kernel::add_scaled(target.get_mut(rows.clone()), input.get(rows), scale),
                    None => kernel::add(target.get_mut(rows.clone()), input.get(rows)),
                }
            }
            Op::Multiply { a, b, out } => {
                let b = self.value(b);
                let rows = self.value(out).rows;
                self.copied(a, out, 1, |index, row| {
                    let b = b.row(index * b.rows / rows);
                    row.iter_mut().zip(b).for_each(|(x, &y)| *x *= y);
                });
            }
            Op::SnakeBeta { input, ref snake, out } => {
                let snake = self.exe.memory.snake(snake);
                let (from, to) = (self.value(input), self.value(out));
                let rows = self.member.share(to.rows, 20 * to.cols);
                if input == out {
                    kernel::snake_in_place(to.get_mut(rows), &snake.alpha, &snake.inverse);
                } else {
                    let target = to.get_mut(rows.clone());
                    kernel::snake(from.get(rows), &snake.alpha, &snake.inverse, target);
                }
            }
            _ => {}
        }
    }

    pub(super) fn vector(&self, id: Option<WeightId>) -> Option<&'a [f32]> {
        id.map(|id| self.exe.memory.raw(id))
    }

    /// `f` on each row of `out`, which first takes `input`'s values. `work` is per value.
    fn by_row(&self, input: device::ValueId, out: device::ValueId, work: usize, f: impl Fn(&mut [f32])) {
        self.copied(input, out, work, |_, row| f(row));
    }

    fn copied(
        &self,
        input: device::ValueId,
        out: device::ValueId,
        work: usize,
        f: impl Fn(usize, &mut [f32]),
    ) {
        let (from, to) = (self.value(input), self.value(out));
        for row in self.member.share(to.rows, work * to.cols) {
            let target = to.row_mut(row);
            if input != out {
                target.copy_from_slice(from.row(row));
            }
            f(row, target);
        }
    }

    pub(super) fn linear(
        &self,
        input: Matrix<'a>,
        weight: &'a Packed,
        bias: Option<&'a [f32]>,
        activation: Option<Activation>,
        residual: Option<Matrix<'a>>,
        out: Matrix<'a>,
    ) {
        self.product(&Linear {
            a: input.ptr(),
            rows: input.rows,
            group: input.rows.max(1),
            group_stride: 0,
            row_stride: input.cols,
            tap_stride: 0,
            weight,
            bias,
            activation,
            residual,
            out: out.ptr(),
        });
    }

    /// This member's share of a product, activation and residual included.
    pub(super) fn product(&self, job: &Linear) {
        let width = job.weight.outputs;
        let (rows, panels) = if job.rows >= ROWS_SPLIT || width < 2 * PANEL {
            (self.member.share_by(job.rows, job.weight.work(), ROW_GRAIN), 0..job.weight.panels())
        } else {
            let work = job.rows * job.weight.work() / job.weight.panels();
            (0..job.rows, self.member.share(job.weight.panels(), work))
        };
        if rows.is_empty() || panels.is_empty() {
            return;
        }
        let after = job.activation.is_some();
        // SAFETY: the op's shapes were checked, so rows and panels lie inside the operands; members have
        // disjoint rows or panels of `out`.
        unsafe {
            kernel::product(&Product {
                a: job.a,
                group: job.group,
                group_stride: job.group_stride,
                row_stride: job.row_stride,
                tap_stride: job.tap_stride,
                weight: job.weight,
                bias: job.bias,
                residual: job.residual.filter(|_| !after).map(|residual| residual.ptr().cast_const()),
                out: job.out,
                rows: rows.clone(),
                panels: panels.clone(),
            });
        }
        let Some(activation) = job.activation else { return };
        let columns = panels.start * PANEL..(panels.end * PANEL).min(width);
        for row in rows {
            // SAFETY: this member's part of a row.
            let part = unsafe { part(job.out, row * width, &columns) };
            kernel::activate(activation, part);
            if let Some(residual) = job.residual {
                kernel::add(part, &residual.row(row)[columns.clone()]);
            }
        }
    }

    fn gated_mlp(&self, input: Matrix<'a>, [gate, up, down]: [WeightId; 3], out: Matrix<'a>) {
        let memory = &self.exe.memory;
        let inner = memory.packed(gate).outputs;
        let gated = self.temp(0, input.rows, inner);
        let upper = self.temp(line(input.rows * inner), input.rows, inner);
        self.linear(input, memory.packed(gate), None, None, None, gated);
        self.linear(input, memory.packed(up), None, None, None, upper);
        self.member.barrier();
        let rows = self.member.share(input.rows, 20 * inner);
        kernel::gate(gated.get_mut(rows.clone()), upper.get(rows));
        self.member.barrier();
        self.linear(gated, memory.packed(down), None, None, None, out);
    }
}

/// Some columns of the row that starts at `start`.
///
/// # Safety
/// They lie inside the value, and no other member touches them.
unsafe fn part<'a>(out: *mut f32, start: usize, columns: &Range<usize>) -> &'a mut [f32] {
    // SAFETY: the caller's word.
    unsafe { std::slice::from_raw_parts_mut(out.add(start + columns.start), columns.len()) }
}
