//! The f64 forms: scalar functions in a loop, from std where it is exact to an ulp or two, else from libm.

/// 1 / sqrt(x).
pub(super) fn rsqrt(x: f64) -> f64 {
    1.0 / x.sqrt()
}

/// 1 / (1 + e^-x), with all its digits for large negative x too.
pub(super) fn sigmoid(x: f64) -> f64 {
    let small = (-x.abs()).exp();
    (if x < 0.0 { small } else { 1.0 }) / (1.0 + small)
}

/// The inverse hyperbolic cosine; NaN below 1, where libm has finite values for large negative arguments.
pub(super) fn acosh(x: f64) -> f64 {
    if x < 1.0 { f64::NAN } else { libm::acosh(x) }
}
