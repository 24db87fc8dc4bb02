//! Eight `f32` side by side: AVX2 with FMA where the processor has it, plain arrays elsewhere.
//!
//! Every sum in this crate is kept per lane and folded in one fixed order, so that a result never depends
//! on how many rows or threads shared the work.

/// Values in one vector.
pub(crate) const LANES: usize = 8;

/// A vector of [`LANES`] values.
///
/// # Safety
/// `load` and `store` touch [`LANES`] values at the pointer; implementations that need processor features
/// may only be used where those were detected.
pub(crate) trait Lanes: Copy {
    fn splat(value: f32) -> Self;
    unsafe fn load(from: *const f32) -> Self;
    unsafe fn store(self, to: *mut f32);
    /// Two vectors of bf16 from [`LANES`] words: the first in the lower halves, the second in the upper.
    unsafe fn load_pair(from: *const u32) -> [Self; 2];
    /// `self + a * b`.
    fn fma(self, a: Self, b: Self) -> Self;
    fn add(self, other: Self) -> Self;
    /// All lanes, folded in halves.
    fn sum(self) -> f32;
    /// `a * b + c` for one value, rounded as `fma` rounds.
    fn fma1(a: f32, b: f32, c: f32) -> f32;
}

/// Whether the AVX2 bodies may run.
#[inline]
pub(crate) fn has_avx2() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma")
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        false
    }
}

/// Portable vector; the compiler vectorises it for the target's baseline.
#[derive(Clone, Copy)]
pub(crate) struct Plain([f32; LANES]);

impl Lanes for Plain {
    #[inline(always)]
    fn splat(value: f32) -> Self {
        Self([value; LANES])
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller vouches for LANES values.
        Self(unsafe { from.cast::<[f32; LANES]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: as above.
        unsafe { to.cast::<[f32; LANES]>().write_unaligned(self.0) }
    }

    #[inline(always)]
    unsafe fn load_pair(from: *const u32) -> [Self; 2] {
        // SAFETY: as above.
        let words = unsafe { from.cast::<[u32; LANES]>().read_unaligned() };
        [
            Self(words.map(|word| f32::from_bits(word << 16))),
            Self(words.map(|word| f32::from_bits(word & 0xFFFF_0000))),
        ]
    }

    #[inline(always)]
    fn fma(self, a: Self, b: Self) -> Self {
        Self(std::array::from_fn(|i| Self::fma1(a.0[i], b.0[i], self.0[i])))
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i] + other.0[i]))
    }

    #[inline(always)]
    fn sum(self) -> f32 {
        let [a, b, c, d, e, f, g, h] = self.0;
        ((a + e) + (c + g)) + ((b + f) + (d + h))
    }

    #[inline(always)]
    fn fma1(a: f32, b: f32, c: f32) -> f32 {
        // Without the instruction `mul_add` is a slow library call.
        if cfg!(any(target_arch = "aarch64", target_feature = "fma")) { a.mul_add(b, c) } else { a * b + c }
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) use x86::Avx2;

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{
        __m256, _mm_add_ps, _mm_add_ss, _mm_cvtss_f32, _mm_movehl_ps, _mm_shuffle_ps, _mm256_add_ps,
        _mm256_and_si256, _mm256_castps256_ps128, _mm256_castsi256_ps, _mm256_extractf128_ps,
        _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_loadu_si256, _mm256_set1_epi32, _mm256_set1_ps,
        _mm256_slli_epi32, _mm256_storeu_ps,
    };

    use super::Lanes;

    /// Only constructed inside functions compiled for AVX2 and FMA, which are only called after
    /// [`super::has_avx2`].
    #[derive(Clone, Copy)]
    pub(crate) struct Avx2(__m256);

    // SAFETY of every block below: the features are present, see the type; pointers are the caller's.
    impl Lanes for Avx2 {
        #[inline(always)]
        fn splat(value: f32) -> Self {
            Self(unsafe { _mm256_set1_ps(value) })
        }

        #[inline(always)]
        unsafe fn load(from: *const f32) -> Self {
            Self(unsafe { _mm256_loadu_ps(from) })
        }

        #[inline(always)]
        unsafe fn store(self, to: *mut f32) {
            unsafe { _mm256_storeu_ps(to, self.0) }
        }

        #[inline(always)]
        unsafe fn load_pair(from: *const u32) -> [Self; 2] {
            unsafe {
                let words = _mm256_loadu_si256(from.cast());
                let upper = _mm256_and_si256(words, _mm256_set1_epi32(0xFFFF_0000_u32 as i32));
                let lower = _mm256_slli_epi32::<16>(words);
                [Self(_mm256_castsi256_ps(lower)), Self(_mm256_castsi256_ps(upper))]
            }
        }

        #[inline(always)]
        fn fma(self, a: Self, b: Self) -> Self {
            Self(unsafe { _mm256_fmadd_ps(a.0, b.0, self.0) })
        }

        #[inline(always)]
        fn add(self, other: Self) -> Self {
            Self(unsafe { _mm256_add_ps(self.0, other.0) })
        }

        #[inline(always)]
        fn sum(self) -> f32 {
            unsafe {
                let four = _mm_add_ps(_mm256_castps256_ps128(self.0), _mm256_extractf128_ps::<1>(self.0));
                let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
                _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
            }
        }

        #[inline(always)]
        fn fma1(a: f32, b: f32, c: f32) -> f32 {
            a.mul_add(b, c)
        }
    }
}
