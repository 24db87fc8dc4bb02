//! Weights laid out for the matrix kernel: panels of [`PANEL`] output columns, reduction index major.

use crate::kernel::LANES;

/// Output columns of one panel: two vectors.
pub(crate) const PANEL: usize = 2 * LANES;

/// A weight `[outputs, taps * inputs]` in panels `[panel][tap][input][PANEL]`, the last panel padded with
/// zeros; or, for one output, as it is.
#[derive(Debug)]
pub(crate) struct Packed {
    pub(crate) data: Vec<f32>,
    pub(crate) outputs: usize,
    pub(crate) taps: usize,
    pub(crate) inputs: usize,
}

impl Packed {
    /// `at(output, tap, input)` gives each weight.
    pub(crate) fn new(
        outputs: usize,
        taps: usize,
        inputs: usize,
        at: impl Fn(usize, usize, usize) -> f32,
    ) -> Self {
        let width = if outputs == 1 { 1 } else { PANEL };
        let panels = outputs.div_ceil(width);
        let mut data = Vec::with_capacity(panels * taps * inputs * width);
        for panel in 0..panels {
            for tap in 0..taps {
                for input in 0..inputs {
                    for column in panel * width..(panel + 1) * width {
                        data.push(if column < outputs { at(column, tap, input) } else { 0.0 });
                    }
                }
            }
        }
        Self { data, outputs, taps, inputs }
    }

    /// From `[outputs, inputs]`.
    pub(crate) fn matrix(data: &[f32], outputs: usize, inputs: usize) -> Self {
        Self::new(outputs, 1, inputs, |o, _, i| data[o * inputs + i])
    }

    /// From a convolution's `[outputs, inputs, kernel]`.
    pub(crate) fn conv(data: &[f32], outputs: usize, inputs: usize, kernel: usize) -> Self {
        Self::new(outputs, kernel, inputs, |o, t, i| data[(o * inputs + i) * kernel + t])
    }

    /// From a transposed convolution's `[inputs, outputs, kernel]`: a causal convolution over
    /// `kernel / stride` taps whose `stride * outputs` columns are `stride` consecutive output rows.
    pub(crate) fn transposed(
        data: &[f32],
        inputs: usize,
        outputs: usize,
        kernel: usize,
        stride: usize,
    ) -> Self {
        let taps = kernel / stride;
        Self::new(stride * outputs, taps, inputs, |column, tap, input| {
            let (phase, output) = (column / outputs, column % outputs);
            data[(input * outputs + output) * kernel + (taps - 1 - tap) * stride + phase]
        })
    }

    /// Panels of the whole weight.
    pub(crate) fn panels(&self) -> usize {
        self.outputs.div_ceil(PANEL)
    }

    /// Multiplications of one output row.
    pub(crate) fn work(&self) -> usize {
        self.outputs * self.taps * self.inputs
    }
}
