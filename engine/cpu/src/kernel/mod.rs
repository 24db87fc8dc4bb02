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
