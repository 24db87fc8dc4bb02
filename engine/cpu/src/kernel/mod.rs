//! The inner loops. Each has one body, compiled twice: for AVX2 with FMA, and for the target's baseline; the
//! processor found at run time picks.

mod attend;
mod elementwise;
mod lanes;
mod math;
mod matmul;

use device::program::Activation;

pub(crate) use attend::Run;
pub(crate) use lanes::{LANES, has_avx2};
pub(crate) use matmul::Product;

macro_rules! kernels {
    ($($(#[$doc:meta])* $body:path => [$($unsafety:tt)?] fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $result:ty)?;)*) => {$(
        $(#[$doc])*
        #[allow(unused_unsafe)]
        pub(crate) $($unsafety)? fn $name($($arg: $type),*) $(-> $result)? {
            use $body as body;
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma")]
                unsafe fn wide($($arg: $type),*) $(-> $result)? {
                    // SAFETY: the features are enabled; the rest is the caller's word.
                    unsafe { body::<lanes::Avx2>($($arg),*) }
                }
                if has_avx2() {
                    // SAFETY: just detected.
                    return unsafe { wide($($arg),*) };
                }
            }
            // SAFETY: the caller's word.
            unsafe { body::<lanes::Plain>($($arg),*) }
        }
    )*};
}

kernels! {
    /// Matrix product; see [`Product`].
    matmul::product => [unsafe] fn product(job: &Product);
    attend::attend => [unsafe] fn attend(q: &[f32], runs: &[Run], offset: usize, stride: usize, scale: f32, scores: &mut [f32], out: &mut [f32]);
    elementwise::activate => [] fn activate(activation: Activation, values: &mut [f32]);
    elementwise::gate => [] fn gate(gate: &mut [f32], up: &[f32]);
    elementwise::snake => [] fn snake(input: &[f32], alpha: &[f32], inverse: &[f32], out: &mut [f32]);
    elementwise::snake_in_place => [] fn snake_in_place(values: &mut [f32], alpha: &[f32], inverse: &[f32]);
    elementwise::rms_norm => [] fn rms_norm(row: &mut [f32], weight: &[f32], eps: f32);
    elementwise::layer_norm => [] fn layer_norm(row: &mut [f32], weight: &[f32], bias: &[f32], eps: f32);
    elementwise::add_scaled => [] fn add_scaled(target: &mut [f32], input: &[f32], scale: &[f32]);
    elementwise::add => [] fn add(target: &mut [f32], input: &[f32]);
    elementwise::depthwise_row => [] fn depthwise_row(
        rows: &[f32], tap_stride: usize, weight: &[f32], bias: Option<&[f32]>, out: &mut [f32]);
    elementwise::distance => [] fn distance(a: &[f32], b: &[f32]) -> f32;
    elementwise::rotate => [] fn rotate(head: &mut [f32], cosines: &[f32], sines: &[f32]);
    elementwise::magnitude => [] fn magnitude(re: &mut [f32], im: &[f32], eps: f32);
}

#[cfg(test)]
mod tests {
    use super::lanes::Plain;
    use super::*;
    use crate::pack::Packed;

    fn values(count: usize, seed: usize) -> Vec<f32> {
        (0..count).map(|i| ((i * 7_919 + seed * 104_729) % 2_001) as f32 / 1_000.0 - 1.0).collect()
    }

    fn close(portable: &[f32], picked: &[f32]) {
        assert_eq!(portable.len(), picked.len());
        for (i, (a, b)) in portable.iter().zip(picked).enumerate() {
            assert!((a - b).abs() < 1e-5 * b.abs().max(1.0), "{i}: {a} and {b}");
        }
    }

    #[test]
    fn the_portable_body_and_the_one_picked_for_this_processor_agree() {
        let (rows, inputs) = (9, 70);
        let a = values(rows * inputs, 1);
        for (outputs, coarse) in [(1, false), (35, false), (35, true), (64, true)] {
            let mut weight = values(outputs * inputs, 2);
            if coarse {
                weight.iter_mut().for_each(|x| *x = f32::from_bits(x.to_bits() & 0xFFFF_0000));
            }
            let weight = Packed::matrix(&weight, outputs, inputs);
            let bias = values(outputs, 3);
            let run = |portable: bool| {
                let mut out = vec![f32::NAN; rows * outputs];
                let job = Product {
                    a: a.as_ptr(),
                    group: rows,
                    group_stride: 0,
                    row_stride: inputs,
                    tap_stride: 0,
                    weight: &weight,
                    bias: Some(&bias),
                    residual: None,
                    out: out.as_mut_ptr(),
                    rows: 0..rows,
                    panels: 0..weight.panels(),
                };
                // SAFETY: operands have the sizes named.
                unsafe { if portable { matmul::product::<Plain>(&job) } else { product(&job) } };
                out
            };
            close(&run(true), &run(false));
        }
    }

    #[test]
    fn portable_attention_and_elementwise_loops_agree_with_those_picked() {
        let (dim, count) = (76, 21);
        let (q, keys, held) = (values(dim, 4), values(dim * count, 5), values(dim * count, 6));
        let runs = [Run { keys: keys.as_ptr(), values: held.as_ptr(), rows: count }];
        let mut scores = vec![0.0; count];
        let mut outs = [vec![0.0; dim], vec![0.0; dim]];
        // SAFETY: the run has `count` rows of `dim` values.
        unsafe {
            attend::attend::<Plain>(&q, &runs, 0, dim, 0.3, &mut scores, &mut outs[0]);
            super::attend(&q, &runs, 0, dim, 0.3, &mut scores, &mut outs[1]);
        }
        close(&outs[0], &outs[1]);
        let mut both = [q.clone(), q.clone()];
        elementwise::layer_norm::<Plain>(&mut both[0], &keys[..dim], &held[..dim], 1e-5);
        layer_norm(&mut both[1], &keys[..dim], &held[..dim], 1e-5);
        elementwise::activate::<Plain>(Activation::GeluErf, &mut both[0]);
        activate(Activation::GeluErf, &mut both[1]);
        elementwise::snake_in_place::<Plain>(&mut both[0], &keys[..dim], &held[..dim]);
        snake_in_place(&mut both[1], &keys[..dim], &held[..dim]);
        close(&both[0], &both[1]);
    }
}
