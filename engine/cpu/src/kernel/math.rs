//! Elementary functions on one value, written so that loops over them vectorise: no branches, no calls.
//! Coefficients are our own least-squares fits at Chebyshev nodes. Errors are those of the tests below.

use super::lanes::Lanes;

/// 1.5 * 2^23: adding and subtracting it rounds to the nearest whole number.
const ROUND: f32 = 12_582_912.0;
const LN2_HI: f32 = 0.693_115_23;
const LN2_LO: f32 = 3.194_618_3e-5;
/// Pi in three parts, the first two short enough for exact products with small whole numbers.
const PI_A: f32 = 3.140_625;
const PI_B: f32 = 9.675_026e-4;
const PI_C: f32 = 1.509_958e-7;

#[inline(always)]
fn poly<L: Lanes, const N: usize>(x: f32, coefficients: [f32; N]) -> f32 {
    let mut sum = coefficients[N - 1];
    let mut i = N - 1;
    while i > 0 {
        i -= 1;
        sum = L::fma1(sum, x, coefficients[i]);
    }
    sum
}

/// `(2^n, e^r - 1)` with `x = n ln 2 + r`; saturates outside the range of normal numbers.
#[inline(always)]
fn exp_parts<L: Lanes>(x: f32) -> (f32, f32) {
    let x = x.clamp(-87.0, 88.0);
    let rounded = L::fma1(x, std::f32::consts::LOG2_E, ROUND);
    let n = rounded - ROUND;
    let r = L::fma1(n, -LN2_LO, L::fma1(n, -LN2_HI, x));
    let tail = poly::<L, 5>(r, [0.5, 1.666_657_6e-1, 4.166_646_3e-2, 8.363_336e-3, 1.393_388_5e-3]);
    let less_one = L::fma1(r * r, tail, r);
    // The lowest bits of `rounded` are n itself: shifted into the exponent, they make 2^n.
    let power = (rounded.to_bits() << 23).wrapping_add(1.0f32.to_bits());
    (f32::from_bits(power), less_one)
}

/// `e^x`; at most 88, at least -87.
#[inline(always)]
pub(crate) fn exp<L: Lanes>(x: f32) -> f32 {
    let (power, less_one) = exp_parts::<L>(x);
    L::fma1(power, less_one, power)
}

/// `e^x - 1`.
#[inline(always)]
pub(crate) fn exp_m1<L: Lanes>(x: f32) -> f32 {
    let (power, less_one) = exp_parts::<L>(x);
    L::fma1(power, less_one, power - 1.0)
}

#[inline(always)]
pub(crate) fn sigmoid<L: Lanes>(x: f32) -> f32 {
    1.0 / (1.0 + exp::<L>(-x))
}

#[inline(always)]
pub(crate) fn silu<L: Lanes>(x: f32) -> f32 {
    x / (1.0 + exp::<L>(-x))
}

/// `sin(x)^2`; whole multiples of pi fall away before the polynomial.
#[inline(always)]
pub(crate) fn sin_squared<L: Lanes>(x: f32) -> f32 {
    let n = L::fma1(x, std::f32::consts::FRAC_1_PI, ROUND) - ROUND;
    let r = L::fma1(n, -PI_C, L::fma1(n, -PI_B, L::fma1(n, -PI_A, x)));
    let tail = poly::<L, 6>(
        r * r,
        [1.0, -1.666_666_6e-1, 8.333_331e-3, -1.984_083_7e-4, 2.752_400_6e-6, -2.386_665_8e-8],
    );
    let sine = r * tail;
    sine * sine
}

#[inline(always)]
pub(crate) fn tanh<L: Lanes>(x: f32) -> f32 {
    // Beyond 20 the quotient is 1.
    let t = exp_m1::<L>(2.0 * x.abs().min(20.0));
    (t / (t + 2.0)).copysign(x)
}

#[inline(always)]
pub(crate) fn erf<L: Lanes>(x: f32) -> f32 {
    let small = x * poly::<L, 7>(
        x * x,
        [
            std::f32::consts::FRAC_2_SQRT_PI,
            -3.761_262_7e-1,
            1.128_359_7e-1,
            -2.685_432_9e-2,
            5.189_312e-3,
            -8.018_855e-4,
            7.882_497e-5,
        ],
    );
    // ln erfc on [1, 4.1]; beyond, erf rounds to 1.
    let log_rest = poly::<L, 8>(
        x.abs().min(4.1),
        [
            -8.970_153e-4,
            -1.125_421_3,
            -6.398_418_5e-1,
            -1.027_260_1e-1,
            2.235_065e-2,
            -3.364_998_6e-3,
            3.073_445_6e-4,
            -1.270_462_8e-5,
        ],
    );
    let large = 1.0 - exp::<L>(log_rest);
    if x.abs() < 1.0 { small } else { large.copysign(x) }
}

#[inline(always)]
pub(crate) fn gelu_erf<L: Lanes>(x: f32) -> f32 {
    0.5 * x * (1.0 + erf::<L>(x * std::f32::consts::FRAC_1_SQRT_2))
}

#[inline(always)]
pub(crate) fn elu<L: Lanes>(x: f32) -> f32 {
    if x > 0.0 { x } else { exp_m1::<L>(x) }
}

#[cfg(test)]
mod tests {
    use super::super::lanes::Plain;
    use super::*;

    fn worst(range: (f32, f32), ours: fn(f32) -> f32, exact: fn(f64) -> f64, floor: f64) -> f64 {
        (0..=200_000)
            .map(|i| range.0 + (range.1 - range.0) * i as f32 / 200_000.0)
            .map(|x| {
                let want = exact(f64::from(x));
                (f64::from(ours(x)) - want).abs() / want.abs().max(floor)
            })
            .fold(0.0, f64::max)
    }

    fn check(error: f64, bound: f64) {
        assert!(error < bound, "{error} is not below {bound}");
    }

    #[test]
    fn exp_and_its_relatives_are_right_to_the_last_bits() {
        check(worst((-87.0, 88.0), exp::<Plain>, f64::exp, 0.0), 2e-7);
        check(worst((-20.0, 1.0), exp_m1::<Plain>, f64::exp_m1, 1e-30), 3e-7);
        check(worst((-20.0, 20.0), sigmoid::<Plain>, |x| 1.0 / (1.0 + (-x).exp()), 0.0), 3e-7);
        check(worst((-10.0, 10.0), tanh::<Plain>, f64::tanh, 1e-30), 5e-7);
    }

    #[test]
    fn sin_squared_holds_for_large_arguments() {
        check(worst((-4.0, 4.0), sin_squared::<Plain>, |x| x.sin().powi(2), 1.0), 6e-7);
        check(worst((-3_000.0, 3_000.0), sin_squared::<Plain>, |x| x.sin().powi(2), 1.0), 6e-7);
    }

    #[test]
    fn erf_matches_its_integral() {
        /// Composite Simpson rule of 2/sqrt(pi) exp(-t^2).
        fn integral(x: f64) -> f64 {
            let steps = 400;
            let h = x / f64::from(steps);
            let f = |t: f64| (-t * t).exp();
            let inner: f64 =
                (1..steps).map(|i| f(f64::from(i) * h) * if i % 2 == 1 { 4.0 } else { 2.0 }).sum();
            (f(0.0) + inner + f(x)) * h / 3.0 * std::f64::consts::FRAC_2_SQRT_PI
        }
        for i in -5_000..=5_000 {
            let x = i as f32 / 1_000.0;
            let error = (f64::from(erf::<Plain>(x)) - integral(f64::from(x))).abs();
            assert!(error < 2.5e-7, "erf({x}) is off by {error}");
        }
        assert_eq!(erf::<Plain>(9.0), 1.0);
    }
}
