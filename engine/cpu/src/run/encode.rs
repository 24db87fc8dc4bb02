//! Ops of the encoders.

use device::WeightId;
use device::program::Op;

use super::dense::Linear;
use super::{Matrix, Run};
use crate::kernel;
use crate::plan::line;

impl<'a> Run<'a> {
    pub(super) fn encoder(&self, op: &'a Op) {
        match *op {
            Op::Statistics { input, weights, eps, out } => {
                let weights = weights.map(|weights| self.value(weights));
                self.statistics(self.value(input), weights, eps, self.value(out));
            }
            Op::SoftmaxOverTime { input, out } => self.softmax_over_time(self.value(input), self.value(out)),
            Op::LogMel { .. } => self.log_mel(op),
            Op::QuantizeResidual { residual, codebook, codes, column } => {
                self.quantize(self.value(residual), codebook, self.value(codes), column);
            }
            _ => {}
        }
    }

    fn statistics(&self, input: Matrix, weights: Option<Matrix>, eps: f32, out: Matrix) {
        let (rows, cols) = (input.rows, input.cols);
        let uniform = 1.0 / rows as f64;
        for column in self.member.share(cols, 4 * rows) {
            let weight = |row: usize| weights.map_or(uniform, |w| f64::from(w.row(row)[column]));
            let mean: f64 = (0..rows).map(|row| weight(row) * f64::from(input.row(row)[column])).sum();
            let variance: f64 =
                (0..rows).map(|row| weight(row) * (f64::from(input.row(row)[column]) - mean).powi(2)).sum();
            // SAFETY: two words of the one row, this member's.
            unsafe {
                *out.ptr().add(column) = mean as f32;
                *out.ptr().add(cols + column) = (variance as f32).max(eps).sqrt();
            }
        }
    }

    fn softmax_over_time(&self, input: Matrix, out: Matrix) {
        for column in self.member.share(input.cols, 20 * input.rows) {
            let at = |row: usize| f64::from(input.row(row)[column]);
            let top = (0..input.rows).map(at).fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = (0..input.rows).map(|row| (at(row) - top).exp()).sum();
            for row in 0..input.rows {
                // SAFETY: one word of this member's column.
                unsafe { *out.ptr().add(row * out.cols + column) = ((at(row) - top).exp() / sum) as f32 };
            }
        }
    }

    fn log_mel(&self, op: &'a Op) {
        let Op::LogMel { input, window, filters, n_fft, hop, pad, magnitude_eps, floor, out } = *op else {
            return;
        };
        let (input, out) = (self.value(input), self.value(out));
        let samples = input.get(0..input.rows);
        let window = self.exe.memory.raw(window);
        let bins = n_fft / 2 + 1;
        let frames = self.temp(0, out.rows, n_fft);
        let re = self.temp(line(out.rows * n_fft), out.rows, bins);
        let im = self.temp(line(out.rows * n_fft) + line(out.rows * bins), out.rows, bins);
        let last = samples.len() - 1;
        for row in self.member.share(out.rows, n_fft) {
            for (i, (value, &window)) in frames.row_mut(row).iter_mut().zip(window).enumerate() {
                let at = (row * hop + i).abs_diff(pad);
                *value = window * samples[if at > last { 2 * last - at } else { at }];
            }
        }
        self.member.barrier();
        let fourier = &self.exe.memory.fourier[&n_fft];
        self.linear(frames, &fourier.cosines, None, None, None, re);
        self.linear(frames, &fourier.sines, None, None, None, im);
        self.member.barrier();
        let rows = self.member.share(out.rows, 4 * bins);
        kernel::magnitude(re.get_mut(rows.clone()), im.get(rows), magnitude_eps);
        self.member.barrier();
        let filters = self.exe.memory.packed(filters);
        self.product(&Linear {
            a: re.ptr(),
            rows: out.rows,
            group: out.rows,
            group_stride: 0,
            row_stride: bins,
            tap_stride: 0,
            weight: filters,
            bias: None,
            activation: None,
            residual: None,
            out: out.ptr(),
        });
        self.member.barrier();
        for row in self.member.share(out.rows, 20 * out.cols) {
            out.row_mut(row).iter_mut().for_each(|x| *x = x.max(floor).ln());
        }
    }

    fn quantize(&self, residual: Matrix, codebook: WeightId, codes: Matrix, column: usize) {
        let codebook = self.exe.memory.raw(codebook);
        let width = residual.cols;
        for row in self.member.share(residual.rows, codebook.len()) {
            let values = residual.row_mut(row);
            let mut best = (0, f32::INFINITY);
            for (index, code) in codebook.chunks_exact(width).enumerate() {
                let distance = kernel::distance(values, code);
                if distance < best.1 {
                    best = (index, distance);
                }
            }
            let code = &codebook[best.0 * width..(best.0 + 1) * width];
            values.iter_mut().zip(code).for_each(|(value, code)| *value -= code);
            codes.ints_mut(row..row + 1)[column] = best.0 as i32;
        }
    }
}
