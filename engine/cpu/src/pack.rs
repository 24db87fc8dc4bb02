//! Weights laid out for the matrix kernel: panels of [`PANEL`] output columns, reduction index major.

use crate::kernel::LANES;

/// Output columns of one panel: two vectors.
pub(crate) const PANEL: usize = 2 * LANES;

/// A weight `[outputs, taps * inputs]` in panels `[panel][tap][input][PANEL]`, the last panel padded with
/// zeros; or, for one output, as it is.
#[derive(Debug)]
pub(crate) struct Packed {
    pub(crate) words: Words,
    pub(crate) outputs: usize,
    pub(crate) taps: usize,
    pub(crate) inputs: usize,
}

/// Values of a packed weight.
#[derive(Debug)]
pub(crate) enum Words {
    Full(Vec<f32>),
    /// Weights that are bf16 without loss, as checkpoints store them: half the memory, and half the time
    /// of a decode step, which is spent reading weights. Word `i` of a panel's row holds column `i` in its
    /// lower half and column `i + LANES` in its upper.
    Half(Vec<u32>),
}

impl Packed {
    /// `at(output, tap, input)` gives each weight.
    pub(crate) fn new(
        outputs: usize,
        taps: usize,
        inputs: usize,
        at: impl Fn(usize, usize, usize) -> f32,
    ) -> Self {
        if outputs == 1 {
            let row = (0..taps * inputs).map(|i| at(0, i / inputs, i % inputs)).collect();
            return Self { words: Words::Full(row), outputs, taps, inputs };
        }
        let panels = outputs.div_ceil(PANEL);
        let mut data = Vec::with_capacity(panels * taps * inputs * PANEL);
        for panel in 0..panels {
            for tap in 0..taps {
                for input in 0..inputs {
                    for column in panel * PANEL..(panel + 1) * PANEL {
                        data.push(if column < outputs { at(column, tap, input) } else { 0.0 });
                    }
                }
            }
        }
        let words = if data.iter().all(|x| x.to_bits() & 0xFFFF == 0) {
            let pair = |low: f32, high: f32| low.to_bits() >> 16 | high.to_bits();
            let rows = data.chunks_exact(PANEL);
            Words::Half(rows.flat_map(|row| (0..LANES).map(move |i| pair(row[i], row[i + LANES]))).collect())
        } else {
            Words::Full(data)
        };
        Self { words, outputs, taps, inputs }
    }

    /// Bytes held.
    pub(crate) fn bytes(&self) -> usize {
        match &self.words {
            Words::Full(words) => 4 * words.len(),
            Words::Half(words) => 4 * words.len(),
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_take_half_the_room_only_where_nothing_is_lost() {
        let coarse = Packed::matrix(&[1.5, -2.0, 0.25, 3.0], 2, 2);
        assert!(matches!(coarse.words, Words::Half(_)));
        let fine = Packed::matrix(&[1.5, -2.0, 0.1, 3.0], 2, 2);
        assert!(matches!(fine.words, Words::Full(_)));
        assert_eq!(fine.bytes(), 2 * coarse.bytes());
    }
}
