//! sin, cos and tan.
//!
//! The argument is brought into `[-pi/4, pi/4]` by taking off the nearest multiple `k pi/2`; two bits of k then say
//! which of sin and cos is wanted, with which sign. For moderate arguments pi/2 in a few parts is enough (Cody and
//! Waite); lanes beyond [`LIMIT`] need up to 200 bits of 2/pi and are done one by one in integers (Payne and Hanek).

use super::lane::{MulAdd, Native, polynomial, polynomial_double, round, round_double, select};

/// Beyond this magnitude a lane is reduced by [`reduce_beyond`].
pub(super) const LIMIT: f32 = 32_768.0;

/// pi/2 in three parts. With a fused multiply-add the first product leaves no error and the later ones only their own
/// rounding.
const HALF_PI: [f32; 3] = [std::f32::consts::FRAC_PI_2, -4.371_139e-8, -1.715_124_5e-15];
/// pi/2 in two parts; the first has 32 bits, so that its product with any k of interest is exact.
const HALF_PI_DOUBLE: [f64; 2] = [1.5707963267341256, 6.077100506506192e-11];

/// `(sin(r) / r - 1) / r^2` in r^2 for `|r| <= pi/4`, within 2^-27.
const SIN: [f32; 3] = [-1.666_665_5e-1, 8.332_099e-3, -1.950_362_8e-4];
/// `(cos(r) - 1 + r^2/2) / r^4` in r^2 for `|r| <= pi/4`, within 2^-32.
const COS: [f32; 3] = [4.166_665_3e-2, -1.388_765_2e-3, 2.446_350_1e-5];
/// `(sin(r) / r - 1) / r^2` in r^2 for `|r| <= pi/4`, within 2^-57.
const SIN_DOUBLE: [f64; 6] = [
    -0.1666666666666664,
    0.008333333333323624,
    -0.00019841269830108815,
    2.755731363850029e-6,
    -2.5050732378973106e-8,
    1.5894579741299458e-10,
];
/// `(cos(r) - 1) / r^2` in r^2 for `|r| <= pi/4`, within 2^-53.
const COS_DOUBLE: [f64; 6] = [
    -0.4999999999999963,
    0.04166666666652117,
    -0.0013888888872164373,
    2.480157893141298e-5,
    -2.7555256989093144e-7,
    2.063022064769933e-9,
];

/// An argument less its multiple of pi/2: `high + low` within `[-pi/4, pi/4]`, within half an ulp of `high`.
struct Reduced {
    high: f32,
    low: f32,
    /// The multiple taken off, modulo 4.
    quadrant: u32,
}

/// The sine of x radians, for `|x| <= LIMIT`, infinity and NaN.
#[inline(always)]
pub(super) fn sin<M: MulAdd>(x: f32) -> f32 {
    // The sine of -0 would come out as +0 through the reduction.
    select(x == 0.0, x, sin_reduced::<M>(&reduce::<M>(x)))
}

/// The cosine of x radians, for `|x| <= LIMIT`, infinity and NaN.
#[inline(always)]
pub(super) fn cos<M: MulAdd>(x: f32) -> f32 {
    let reduced = reduce::<M>(x);
    sin_reduced::<M>(&Reduced { quadrant: reduced.quadrant.wrapping_add(1), ..reduced })
}

/// The tangent of x radians, for `|x| <= LIMIT`, infinity and NaN.
#[inline(always)]
pub(super) fn tan<M: MulAdd>(x: f32) -> f32 {
    let (r, quadrant) = reduce_double::<M>(f64::from(x));
    select(x == 0.0, x, tan_reduced::<M>(r, quadrant))
}

/// The sine of a finite x beyond `LIMIT`.
pub(super) fn sin_beyond(x: f32) -> f32 {
    let (r, quadrant) = reduce_beyond(x);
    sin_reduced::<Native>(&round_reduced(r, quadrant))
}

/// The cosine of a finite x beyond `LIMIT`.
pub(super) fn cos_beyond(x: f32) -> f32 {
    let (r, quadrant) = reduce_beyond(x);
    sin_reduced::<Native>(&round_reduced(r, quadrant.wrapping_add(1)))
}

/// The tangent of a finite x beyond `LIMIT`.
pub(super) fn tan_beyond(x: f32) -> f32 {
    let (r, quadrant) = reduce_beyond(x);
    tan_reduced::<Native>(r, u64::from(quadrant))
}

#[inline(always)]
fn sin_reduced<M: MulAdd>(reduced: &Reduced) -> f32 {
    let &Reduced { high, low, quadrant } = reduced;
    let square = high * high;
    let sin = high + M::single(high * square, polynomial::<M, 3>(square, SIN), low);
    // The low part turns cos by -sin(high) * low.
    let correction = M::single(square * square, polynomial::<M, 3>(square, COS), -(high * low));
    let cos = M::single(square, -0.5, 1.0) + correction;
    let magnitude = select(quadrant & 1 == 0, sin, cos);
    f32::from_bits(magnitude.to_bits() ^ ((quadrant & 2) << 30))
}

#[inline(always)]
fn tan_reduced<M: MulAdd>(r: f64, quadrant: u64) -> f32 {
    let square = r * r;
    let sin = M::double(r * square, polynomial_double::<M, 6>(square, SIN_DOUBLE), r);
    let cos = M::double(square, polynomial_double::<M, 6>(square, COS_DOUBLE), 1.0);
    let even = quadrant & 1 == 0;
    // One quarter turn on, tan is -cos / sin.
    (select(even, sin, -cos) / select(even, cos, sin)) as f32
}

#[inline(always)]
fn reduce<M: MulAdd>(x: f32) -> Reduced {
    if !M::FUSED {
        let (r, quadrant) = reduce_double::<M>(f64::from(x));
        return round_reduced(r, quadrant as u32);
    }
    let (k, quadrant) = round(x * std::f32::consts::FRAC_2_PI);
    // Exact: x and k pi/2 lie within a factor of two, or k is 0, and the difference is a multiple of the ulp of either.
    let first = M::single(-k, HALF_PI[0], x);
    let high = M::single(-k, HALF_PI[1], first);
    // What rounding `high` loses is not worth its three instructions.
    Reduced { high, low: -k * HALF_PI[2], quadrant: quadrant as u32 }
}

/// The rest and the multiple's low bits, right for `|x| <= 2^20`.
#[inline(always)]
fn reduce_double<M: MulAdd>(x: f64) -> (f64, u64) {
    let (k, quadrant) = round_double(x * std::f64::consts::FRAC_2_PI);
    (M::double(-k, HALF_PI_DOUBLE[1], M::double(-k, HALF_PI_DOUBLE[0], x)), quadrant)
}

#[inline(always)]
fn round_reduced(r: f64, quadrant: u32) -> Reduced {
    let high = r as f32;
    Reduced { high, low: (r - f64::from(high)) as f32, quadrant }
}

/// The rest and the multiple, modulo 4, of any finite x with `|x| >= 1`, to the last bit of an f64.
fn reduce_beyond(x: f32) -> (f64, u32) {
    /// 2/pi: 64 zeros before the binary point and 256 bits after it.
    const TWO_OVER_PI: [u64; 5] =
        [0, 0xa2f9_836e_4e44_1529, 0xfc27_57d1_f534_ddc0, 0xdb62_9599_3c43_9041, 0xfe51_63ab_debb_c561];
    let bits = x.to_bits() & 0x7fff_ffff;
    // |x| = fraction * 2^exponent with a whole fraction below 2^24.
    let fraction = u128::from((bits & 0x007f_ffff) | 0x0080_0000);
    let exponent = (bits >> 23) as i32 - 150;
    // Bits of 2/pi that weigh 4 or more once multiplied by 2^exponent add whole turns only: the window begins after
    // them, and so the product, modulo 2^128, has its binary point 126 bits from the right.
    let start = (64 + exponent - 2) as usize;
    let window = |from: usize| {
        let (word, bit) = (from / 64, from % 64);
        let pair = (u128::from(TWO_OVER_PI[word]) << 64) | u128::from(TWO_OVER_PI[word + 1]);
        u128::from((pair << bit >> 64) as u64)
    };
    let turned = (fraction.wrapping_mul(window(start)) << 64).wrapping_add(fraction * window(start + 64));
    // What follows the binary point, read as signed, is the distance from the nearest quarter turn.
    let quadrant = (turned.wrapping_add(1 << 125) >> 126) as u32;
    let rest = (turned << 2) as i128;
    let r = rest as f64 * (std::f64::consts::FRAC_PI_2 / 2f64.powi(128));
    if x.is_sign_negative() { (-r, quadrant.wrapping_neg()) } else { (r, quadrant) }
}
