//! Loops over values and rows. Plain Rust that the compiler vectorises in each instruction set.

use device::program::Activation;

use super::lanes::{LANES, Lanes};
use super::math;

/// `value = f(value)` for each. Macros rather than closures here and below: a closure is a function of its
/// own, and where the compiler does not inline it, it lacks the instruction set of the body around it.
macro_rules! map {
    ($values:expr, $f:expr) => {
        for value in $values {
            *value = $f(*value);
        }
    };
}

/// Applies `activation` in place.
#[inline(always)]
pub(super) fn activate<L: Lanes>(activation: Activation, values: &mut [f32]) {
    match activation {
        Activation::Elu => map!(values, math::elu::<L>),
        Activation::GeluErf => map!(values, math::gelu_erf::<L>),
        Activation::Relu => {
            for value in values {
                *value = value.max(0.0);
            }
        }
        Activation::Sigmoid => map!(values, math::sigmoid::<L>),
        Activation::Silu => map!(values, math::silu::<L>),
        Activation::Tanh => map!(values, math::tanh::<L>),
    }
}

/// `gate = silu(gate) * up`.
#[inline(always)]
pub(super) fn gate<L: Lanes>(gate: &mut [f32], up: &[f32]) {
    for (gate, &up) in gate.iter_mut().zip(up) {
        *gate = math::silu::<L>(*gate) * up;
    }
}

/// `out = x + inverse * sin(alpha x)^2` over rows as wide as `alpha`.
#[inline(always)]
pub(super) fn snake<L: Lanes>(input: &[f32], alpha: &[f32], inverse: &[f32], out: &mut [f32]) {
    let width = alpha.len();
    for (input, out) in input.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
        for (((out, &x), &alpha), &inverse) in out.iter_mut().zip(input).zip(alpha).zip(inverse) {
            *out = L::fma1(inverse, math::sin_squared::<L>(x * alpha), x);
        }
    }
}

/// As [`snake`], in place.
#[inline(always)]
pub(super) fn snake_in_place<L: Lanes>(values: &mut [f32], alpha: &[f32], inverse: &[f32]) {
    for row in values.chunks_exact_mut(alpha.len()) {
        for ((x, &alpha), &inverse) in row.iter_mut().zip(alpha).zip(inverse) {
            *x = L::fma1(inverse, math::sin_squared::<L>(*x * alpha), *x);
        }
    }
}

/// Sum over a row, `$sum` becoming `$next` at each `$x`: [`LANES`] running sums, folded in a fixed order.
macro_rules! fold {
    ($row:expr, $x:ident, $sum:ident => $next:expr) => {{
        let mut sums = [0.0; LANES];
        let chunks = $row.chunks_exact(LANES);
        let rest = chunks.remainder();
        for chunk in chunks {
            for i in 0..LANES {
                let ($x, $sum) = (chunk[i], sums[i]);
                sums[i] = $next;
            }
        }
        let mut tail = 0.0;
        for &$x in rest {
            let $sum = tail;
            tail = $next;
        }
        total(sums) + tail
    }};
}

#[inline(always)]
fn total([a, b, c, d, e, f, g, h]: [f32; LANES]) -> f32 {
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}

/// `row / rms(row) * weight`, in place.
#[inline(always)]
pub(super) fn rms_norm<L: Lanes>(row: &mut [f32], weight: &[f32], eps: f32) {
    let squares = fold!(row, x, sum => L::fma1(x, x, sum));
    let scale = 1.0 / (squares / row.len() as f32 + eps).sqrt();
    for (x, &weight) in row.iter_mut().zip(weight) {
        *x = *x * scale * weight;
    }
}

/// `(row - mean) / deviation * weight + bias`, in place.
#[inline(always)]
pub(super) fn layer_norm<L: Lanes>(row: &mut [f32], weight: &[f32], bias: &[f32], eps: f32) {
    let count = row.len() as f32;
    let mean = fold!(row, x, sum => sum + x) / count;
    let variance = fold!(row, x, sum => L::fma1(x - mean, x - mean, sum)) / count;
    let scale = 1.0 / (variance + eps).sqrt();
    for ((x, &weight), &bias) in row.iter_mut().zip(weight).zip(bias) {
        *x = L::fma1((*x - mean) * scale, weight, bias);
    }
}

/// `target += input * scale`, rows as wide as `scale`.
#[inline(always)]
pub(super) fn add_scaled<L: Lanes>(target: &mut [f32], input: &[f32], scale: &[f32]) {
    let width = scale.len();
    for (target, input) in target.chunks_exact_mut(width).zip(input.chunks_exact(width)) {
        for ((target, &input), &scale) in target.iter_mut().zip(input).zip(scale) {
            *target = L::fma1(input, scale, *target);
        }
    }
}

/// `target += input`.
#[inline(always)]
pub(super) fn add<L: Lanes>(target: &mut [f32], input: &[f32]) {
    for (target, &input) in target.iter_mut().zip(input) {
        *target += input;
    }
}

/// One output row of a depthwise convolution: taps lie `tap_stride` values apart in `rows`.
#[inline(always)]
pub(super) fn depthwise_row<L: Lanes>(
    rows: &[f32],
    tap_stride: usize,
    weight: &[f32],
    bias: Option<&[f32]>,
    out: &mut [f32],
) {
    let width = out.len();
    match bias {
        Some(bias) => out.copy_from_slice(bias),
        None => out.fill(0.0),
    }
    for (tap, weight) in weight.chunks_exact(width).enumerate() {
        let row = &rows[tap * tap_stride..tap * tap_stride + width];
        for ((out, &x), &weight) in out.iter_mut().zip(row).zip(weight) {
            *out = L::fma1(x, weight, *out);
        }
    }
}

/// Squared distance of two rows.
#[inline(always)]
pub(super) fn distance<L: Lanes>(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0; LANES];
    let mut tail = 0.0;
    let (a_chunks, b_chunks) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    for (&a, &b) in a_chunks.remainder().iter().zip(b_chunks.remainder()) {
        tail = L::fma1(a - b, a - b, tail);
    }
    for (a, b) in a_chunks.zip(b_chunks) {
        for ((sum, &a), &b) in sums.iter_mut().zip(a).zip(b) {
            *sum = L::fma1(a - b, a - b, *sum);
        }
    }
    total(sums) + tail
}

/// Rotates the two halves of a head by the angles whose cosines and sines are given.
#[inline(always)]
pub(super) fn rotate<L: Lanes>(head: &mut [f32], cosines: &[f32], sines: &[f32]) {
    let (low, high) = head.split_at_mut(cosines.len());
    for (((low, high), &cosine), &sine) in low.iter_mut().zip(high).zip(cosines).zip(sines) {
        let (a, b) = (*low, *high);
        *low = L::fma1(a, cosine, -(b * sine));
        *high = L::fma1(b, cosine, a * sine);
    }
}

/// `sqrt(re^2 + im^2 + eps)` into `re`.
#[inline(always)]
pub(super) fn magnitude<L: Lanes>(re: &mut [f32], im: &[f32], eps: f32) {
    for (re, &im) in re.iter_mut().zip(im) {
        *re = L::fma1(*re, *re, L::fma1(im, im, eps)).sqrt();
    }
}
