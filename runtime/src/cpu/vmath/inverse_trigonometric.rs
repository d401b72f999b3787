//! asin, acos, atan and atan2.
//!
//! All in f64, rounded once at the end: asin has a square-root singularity at 1 and atan2 a quotient of any size, both of
//! which cost more care in f32 than f64 costs time.

use super::lane::{MulAdd, polynomial_double, select, with_sign_of};
use std::f64::consts::{FRAC_PI_2, FRAC_PI_4, PI};

/// `(asin(x) / x - 1) / x^2` in x^2 for `|x| <= 1/2`, within 2^-46.
const ASIN: [f64; 10] = [
    0.16666666666564392,
    0.07500000027307273,
    0.04464283558781539,
    0.030382726037662674,
    0.022356588959580617,
    0.017538523153770236,
    0.012587940100183683,
    0.017879181767867864,
    -0.0073634262628360534,
    0.03164471650309895,
];
/// `(atan(x) / x - 1) / x^2` in x^2 for `|x| <= tan(pi/8)`, within 2^-44.
const ATAN: [f64; 8] = [
    -0.3333333333233205,
    0.19999999748205913,
    -0.14285695494975761,
    0.11110471289700084,
    -0.09079157444161177,
    0.07567198293488392,
    -0.058816066966361734,
    0.030697612925129215,
];

/// The angle in `[-pi/2, pi/2]` whose sine is x; NaN beyond `|x| = 1`.
#[inline(always)]
pub(super) fn asin<M: MulAdd>(x: f32) -> f32 {
    let (angle, far) = asin_half::<M>(f64::from(x.abs()));
    with_sign_of(select(far, FRAC_PI_2 - (angle + angle), angle), x)
}

/// The angle in `[0, pi]` whose cosine is x; NaN beyond `|x| = 1`.
#[inline(always)]
pub(super) fn acos<M: MulAdd>(x: f32) -> f32 {
    let (angle, far) = asin_half::<M>(f64::from(x.abs()));
    let negative = x < 0.0;
    let near_result = FRAC_PI_2 - select(negative, -angle, angle);
    let twice = angle + angle;
    select(far, select(negative, PI - twice, twice), near_result) as f32
}

/// asin(a) and false up to 1/2; beyond, where `asin(a) = pi/2 - 2 asin(sqrt((1 - a) / 2))`, that inner asin and true.
#[inline(always)]
fn asin_half<M: MulAdd>(a: f64) -> (f64, bool) {
    let far = a > 0.5;
    let square = select(far, (1.0 - a) * 0.5, a * a);
    let argument = select(far, square.sqrt(), a);
    (M::double(argument * square, polynomial_double::<M, 10>(square, ASIN), argument), far)
}

/// The angle in `[-pi/2, pi/2]` whose tangent is x.
#[inline(always)]
pub(super) fn atan<M: MulAdd>(x: f32) -> f32 {
    with_sign_of(atan_quotient::<M>(f64::from(x.abs()), 1.0), x)
}

/// The angle in `[-pi, pi]` of the point `(x, y)`, signed zeros and infinities as in C.
#[inline(always)]
pub(super) fn atan2<M: MulAdd>(y: f32, x: f32) -> f32 {
    // Comparisons are in f64 as well: a mask as wide as the numbers it selects needs no conversion.
    let wide = f64::from(x);
    let (rise, run) = (f64::from(y.abs()), wide.abs());
    let angle = atan_quotient::<M>(rise, run);
    // 0/0 is settled here; a NaN beside that 0 must stay.
    let angle = select((rise == 0.0) & !run.is_nan(), 0.0, angle);
    let angle = select((rise == f64::INFINITY) & (run == f64::INFINITY), FRAC_PI_4, angle);
    with_sign_of(select(wide.is_sign_negative(), PI - angle, angle), y)
}

/// The angle in `[0, pi/2]` of the point `(run, rise)`, neither of them negative; 0/0 and inf/inf are NaN.
#[inline(always)]
fn atan_quotient<M: MulAdd>(rise: f64, run: f64) -> f64 {
    const TAN_PI_8: f64 = 0.41421356237309503;
    const TAN_3_PI_8: f64 = 2.414213562373095;
    // Turning the point back by 0, pi/4 or pi/2 brings its angle within pi/8.
    let (low, high) = (rise <= run * TAN_PI_8, rise > run * TAN_3_PI_8);
    let numerator = select(low, rise, select(high, -run, rise - run));
    let denominator = select(low, run, select(high, rise, rise + run));
    let turned = select(low, 0.0, select(high, FRAC_PI_2, FRAC_PI_4));
    let t = numerator / denominator;
    let square = t * t;
    turned + M::double(t * square, polynomial_double::<M, 8>(square, ATAN), t)
}
