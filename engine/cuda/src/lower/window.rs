//! Convolutions whose kernels read their window themselves, with nothing laid out first: the widest stages of the
//! published codecs, alone or as whole residual units, and the last convolution into sound.

use device::program::{ConvShape, Op, Snake};
use device::{ValueId, WeightId};

use super::conv::{Stream, THREADS};
use super::{Arg, Derived, Lowering, Place, Storage, field, int, int_field, maybe_vector};

/// Channels there is a windowed kernel for: the widest stages of the published codecs.
const WINDOWED: [usize; 2] = [96, 192];
/// Rows of a block of a windowed convolution, and stages of its weights in flight.
const WINDOW_ROWS: usize = 128;
const WINDOW_STAGES: usize = 3;
/// Channels of one stage of the weights.
const WINDOW_SLICE: usize = 96;

/// Rows and stages of the kernels for Hopper, by the channels of [`WINDOWED`].
const HOPPER_WINDOWS: [(usize, usize); 2] = [(128, 4), (192, 4)];

/// Rows of a block of the kernel for one output channel, and the most taps and channels it holds.
const ONE_ROWS: usize = 256;
const ONE_TAPS_MAX: usize = 8;
const ONE_CHANNELS_MAX: usize = 256;

/// A family of windowed kernels and what a block asks for.
pub(super) struct Window {
    family: &'static str,
    rows: usize,
    threads: usize,
    shared: usize,
}

/// A convolution after a snake.
pub(super) struct Windowed<'a> {
    pub(super) input: ValueId,
    pub(super) weight: WeightId,
    pub(super) bias: Option<WeightId>,
    pub(super) shape: &'a ConvShape,
    pub(super) snake: &'a Snake,
    pub(super) stream: Stream,
}

/// The second half of a residual unit.
pub(super) struct Second {
    weight: WeightId,
    bias: Option<WeightId>,
    alpha: WeightId,
    beta: WeightId,
    out: ValueId,
}

/// Shared memory of a windowed convolution: stages of weights, and the block's rows with the history before them.
const fn window_bytes(channels: usize, history: usize) -> usize {
    2 * channels * (WINDOW_STAGES * WINDOW_SLICE + WINDOW_ROWS + history)
}

impl Lowering<'_> {
    /// The second half of a residual unit, when the op after `index` is one: a convolution of one tap over `between`
    /// alone, added to the unit's input.
    pub(super) fn second_half(&self, index: usize, first: &Windowed<'_>, between: ValueId) -> Option<Second> {
        let &Op::CausalConv { input, weight, bias, shape, snake, residual, out, .. } =
            self.program.ops.get(index + 1)?
        else {
            return None;
        };
        let Snake { alpha, beta } = snake?;
        let unit_input = first.input;
        let is_second = self.target.hopper
            && WINDOWED.contains(&self.cols(unit_input))
            && input == between
            && shape.kernel == 1
            && residual == Some(unit_input)
            && out != unit_input
            && self.cols(out) == self.cols(input)
            && self.is_last(index + 1, between);
        is_second.then_some(Second { weight, bias, alpha, beta, out })
    }

    /// The kernel for `channels` into `out` channels that lays nothing out first, where a block holds its rows and the
    /// history before them.
    pub(super) fn window_for(
        &self,
        channels: usize,
        out: usize,
        shape: &ConvShape,
        residual: Option<ValueId>,
    ) -> Option<Window> {
        let history = (shape.kernel - 1) * shape.dilation;
        if out == 1 {
            let fits = channels.is_multiple_of(8) && channels <= ONE_CHANNELS_MAX;
            let fits = fits && shape.kernel <= ONE_TAPS_MAX && shape.dilation == 1;
            // Its kernel adds nothing to the sound.
            let fits = fits && residual.is_none();
            return fits.then_some(Window { family: "one", rows: ONE_ROWS, threads: THREADS, shared: 0 });
        }
        let index = WINDOWED.iter().position(|&known| known == channels && out == channels)?;
        let window = if self.target.hopper {
            let (rows, stages) = HOPPER_WINDOWS[index];
            let window = 1024 * channels.div_ceil(64) * (rows + history).div_ceil(8);
            let sums = 4 * rows * (channels + 8);
            let shared = (stages * channels * 128 + window).max(sums) + 1024;
            Window { family: "hopper", rows, threads: 2 * rows, shared }
        } else {
            let shared = window_bytes(channels, history);
            Window { family: "window", rows: WINDOW_ROWS, threads: THREADS, shared }
        };
        // Only a chunk's first block finds history elsewhere.
        (window.shared <= self.target.shared_max && history <= window.rows).then_some(window)
    }

    /// A convolution, or a residual unit, whose rows are laid out in shared memory; then the history is moved on.
    pub(super) fn windowed(
        &mut self,
        window: &Window,
        first: &Windowed<'_>,
        second: Option<&Second>,
        residual: Option<ValueId>,
        out: ValueId,
    ) {
        let &Windowed { input, weight, bias, shape, snake, stream } = first;
        let (steps, channels) = (self.steps_of(input), self.cols(input));
        let history = (shape.kernel - 1) * shape.dilation;
        let residual = if second.is_some() { Some(input) } else { residual };
        let out = second.map_or(out, |second| second.out);
        let residual_bf16 = residual.is_some_and(|id| self.storage(id).is_bf16());
        let conv = |id| Place::Weight(Derived::Conv { id, bf16: true });
        let tables = |alpha, beta| {
            let alpha_at = Place::Weight(Derived::SnakeAlpha { alpha, beta });
            [field(alpha_at), field(Place::Weight(Derived::SnakeInverse { alpha, beta }))]
        };
        let mut fields = vec![
            field(Place::Value(input)),
            field(conv(weight)),
            field(Place::Value(out)),
            field(maybe_vector(bias)),
            field(residual.map_or(Place::Null, Place::Value)),
        ];
        fields.extend(tables(snake.alpha, snake.beta));
        fields.extend([
            field(stream.state.map_or(Place::Null, Place::State)),
            field(Place::Value(stream.slots)),
            field(Place::Value(stream.start)),
            int_field(steps),
            int_field(shape.kernel),
            int_field(shape.dilation),
            int_field(usize::from(self.storage(out).is_bf16())),
            int_field(usize::from(residual_bf16)),
        ]);
        match second {
            Some(second) => {
                fields.extend([field(conv(second.weight)), field(maybe_vector(second.bias))]);
                fields.extend(tables(second.alpha, second.beta));
            }
            None => fields.extend(std::iter::repeat_n(field(Place::Null), 4)),
        }
        let mut args = vec![Arg::Struct(fields)];
        let kernel = match (window.family, second) {
            ("one", _) => {
                args.push(int(channels));
                "conv_one".to_owned()
            }
            (_, Some(_)) => format!("unit_{}_{channels}", window.family),
            (_, None) => format!("conv_{}_{channels}", window.family),
        };
        let grid = [steps.div_ceil(window.rows), self.shape.batch, 1];
        self.launch(kernel, grid, window.threads as u32, window.shared, args);
        if history > 0 {
            self.lay_out(input, Place::Null, history, Some(snake), stream, Storage::Bf16);
        }
    }
}
