//! Ops of the encoders.

use device::program::Op;

use super::product::{Factor, Product, whole};
use super::{Arg, Derived, Lowering, Place, Storage, at, field, float, int, long, maybe, value, vector};

impl Lowering<'_> {
    pub(super) fn encoder(&mut self, op: &Op) {
        match *op {
            Op::Statistics { input, weights, eps, out } => {
                let (rows, cols) = (self.rows_of(input), self.cols(input));
                let weights = Arg::One(maybe(weights));
                let args = vec![value(input), weights, float(eps), value(out), int(rows), int(cols)];
                self.launch("statistics", [cols, 1, 1], 256, 0, args);
            }
            Op::SoftmaxOverTime { input, out } => {
                let (rows, cols) = (self.rows_of(input), self.cols(input));
                let args = vec![value(input), value(out), int(rows), int(cols)];
                self.launch("softmax_over_time", [cols, 1, 1], 256, 0, args);
            }
            Op::LogMel { input, window, filters, n_fft, hop, pad, magnitude_eps, floor, out } => {
                let (frames, bins) = (self.rows_of(out), n_fft / 2 + 1);
                let magnitudes = self.temp(frames * bins * Storage::F32.bytes());
                let args = vec![
                    value(input),
                    int(self.rows_of(input)),
                    at(vector(window)),
                    int(n_fft),
                    int(hop),
                    int(pad),
                    float(magnitude_eps),
                    at(magnitudes.clone()),
                ];
                self.launch("spectrum", [frames, 1, 1], 256, 3 * n_fft * Storage::F32.bytes(), args);
                let factor = Factor {
                    weight: field(Place::Weight(Derived::Plain { id: filters, bf16: false })),
                    bias: Place::Null,
                    out: Place::Value(out),
                    cols: self.cols(out),
                };
                self.product(Product {
                    left: whole(magnitudes, frames, bins),
                    factors: vec![factor],
                    gated: false,
                    activation: None,
                    residual: None,
                    out: Storage::F32,
                    factor: Storage::F32,
                    norm: None,
                });
                let n = self.count(out);
                self.each("log_floor", n, vec![value(out), float(floor), long(n)]);
            }
            Op::QuantizeResidual { residual, codebook, codes, column } => {
                let width = self.cols(residual);
                let entries = self.catalog.weight(codebook).map_or(0, |weight| weight.shape[0]);
                let args = vec![
                    value(residual),
                    int(width),
                    at(Place::Weight(Derived::Plain { id: codebook, bf16: false })),
                    int(entries),
                    value(codes),
                    int(self.cols(codes)),
                    int(column),
                ];
                let rows = self.rows_of(residual);
                // The compiler reads a row in fours, to the end of the last one.
                let shared = width.next_multiple_of(4) * Storage::F32.bytes();
                self.launch("quantize_residual", [rows, 1, 1], 128, shared, args);
            }
            _ => unreachable!("only encoders' ops are lowered here"),
        }
    }
}
