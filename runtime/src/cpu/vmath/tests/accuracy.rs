//! Documented bounds against the f64 functions, over all f32 bit patterns by a prime stride and densely at hard points.

use crate::cpu::vmath::{BinaryMath, Isa, UnaryMath, binary_f32, op, unary_f32};

/// About 500 000 of the 2^32 patterns; prime, so that every exponent meets every kind of fraction.
const STRIDE: usize = 8_597;
/// The same for the tests of pairs.
const PAIR_STRIDE: usize = 1_000_003;

/// Where a kernel changes its formula, overflows, underflows or nearly cancels.
const HARD: &[f32] = &[
    0.0,
    f32::MIN_POSITIVE,
    1.0 / 1024.0,
    0.25,
    std::f32::consts::LN_2 / 2.0,
    std::f32::consts::FRAC_PI_8,
    0.414_213_57,
    0.5,
    0.6,
    std::f32::consts::FRAC_1_SQRT_2,
    std::f32::consts::FRAC_PI_4,
    0.92,
    1.0,
    std::f32::consts::SQRT_2,
    std::f32::consts::FRAC_PI_2,
    2.0,
    2.414_213_7,
    std::f32::consts::PI,
    4.0,
    9.01,
    10.05,
    17.33,
    87.34,
    88.72,
    89.42,
    103.97,
    126.0,
    128.0,
    149.0,
    150.0,
    355.0,
    32_768.0,
    1e6,
    // Nearer to a multiple of pi/2 than any other f32.
    16_367_173.0 * 4_722_366_482_869_645_213_696.0,
    f32::MAX,
];

/// The error of `got` in units of the last place of `exact`, or infinity where only one of them is NaN or infinite.
fn ulp_error(got: f32, exact: f64) -> f64 {
    let rounded = exact as f32;
    if got == rounded || (got.is_nan() && exact.is_nan()) {
        let lossless = got.is_nan() || got.is_infinite();
        return if lossless { 0.0 } else { (f64::from(got) - exact).abs() / ulp(rounded) };
    }
    if got.is_nan() || exact.is_nan() {
        return f64::INFINITY;
    }
    // An infinity stands for the first value that f32 lacks.
    let value = |x: f32| {
        if x.is_infinite() { 2f64.powi(128).copysign(f64::from(x)) } else { f64::from(x) }
    };
    let exact = if rounded.is_infinite() { value(rounded) } else { exact };
    (value(got) - exact).abs() / ulp(rounded)
}

fn ulp(x: f32) -> f64 {
    let exponent = ((x.to_bits() >> 23) & 0xff) as i32;
    2f64.powi(exponent.clamp(1, 254) - 150)
}

fn near_hard_points() -> impl Iterator<Item = f32> {
    HARD.iter()
        .flat_map(|x| (-1_000..1_000).map(|i| f32::from_bits(x.to_bits().wrapping_add_signed(i))))
        .flat_map(|x| [x, -x])
}

struct Worst {
    error: f64,
    text: String,
}

impl Worst {
    fn new() -> Worst {
        Worst { error: -1.0, text: String::new() }
    }

    fn see(&mut self, error: f64, text: impl FnOnce() -> String) {
        if error > self.error {
            *self = Worst { error, text: text() };
        }
    }
}

#[test]
fn unary_functions_keep_their_bound_over_all_f32() {
    let arguments: Vec<f32> = (0..=u32::MAX).step_by(STRIDE).map(f32::from_bits).chain(near_hard_points()).collect();
    let mut output = vec![0.0; arguments.len()];
    let mut broken = Vec::new();
    for &op in UnaryMath::ALL {
        let exact: Vec<f64> = arguments.iter().map(|x| op::unary_f64(op)(f64::from(*x))).collect();
        for &isa in Isa::available() {
            unary_f32(isa, op, &arguments, &mut output);
            let mut worst = Worst::new();
            for ((x, got), exact) in arguments.iter().zip(&output).zip(&exact) {
                worst.see(ulp_error(*got, *exact), || format!("{x:e}: {got:e}, exactly {exact:e}"));
            }
            let line = format!("{:8} {isa:8} {:.3} ulp at {}", op.name(), worst.error, worst.text);
            if worst.error > op.max_ulp() {
                broken.push(line);
            }
        }
    }
    assert!(broken.is_empty(), "beyond the documented bound:\n{}", broken.join("\n"));
}

/// Pairs of any two patterns, of two ordinary numbers, and of numbers whose power is in range.
fn pairs() -> Vec<(f32, f32)> {
    let patterns = (0..=u32::MAX).step_by(PAIR_STRIDE).map(f32::from_bits);
    let mut pairs = Vec::new();
    for (i, x) in patterns.enumerate() {
        let noise = (i as u32).wrapping_mul(0x9e37_79b9);
        let unit = f32::from_bits(0x3f80_0000 | (noise >> 9)) - 1.0;
        pairs.push((x, f32::from_bits(noise)));
        pairs.push((x, (unit - 0.5) * 8.0));
        pairs.push((unit * 4.0, (f32::from_bits(noise) % 64.0) - 32.0));
        // The power lies anywhere from underflow to overflow.
        let base = x.abs();
        pairs.push((base, (unit * 200.0 - 110.0) / base.ln()));
        // Near 1 the logarithm is all in the last bits.
        let near = 1.0 + (unit - 0.5) * 2f32.powi(-(i as i32 % 20));
        pairs.push((near, (unit * 200.0 - 110.0) / near.ln()));
        pairs.push((-(i as f32 % 33.0), (noise % 41) as f32 - 20.0));
        pairs.push((unit - 0.5, near));
        pairs.push((near, x));
    }
    for x in HARD.iter().flat_map(|x| [*x, -*x]) {
        pairs.extend(HARD.iter().flat_map(|y| [(x, *y), (x, -*y)]));
    }
    pairs
}

#[test]
fn binary_functions_keep_their_bound() {
    let (left, right): (Vec<f32>, Vec<f32>) = pairs().into_iter().unzip();
    let mut output = vec![0.0; left.len()];
    for &op in BinaryMath::ALL {
        for &isa in Isa::available() {
            binary_f32(isa, op, &left, &right, &mut output);
            let mut worst = Worst::new();
            for ((x, y), got) in left.iter().zip(&right).zip(&output) {
                let exact = op::binary_f64(op)(f64::from(*x), f64::from(*y));
                worst.see(ulp_error(*got, exact), || format!("({x:e}, {y:e}): {got:e}, exactly {exact:e}"));
            }
            let line = format!("{:8} {isa:8} {:.3} ulp at {}", op.name(), worst.error, worst.text);
            assert!(worst.error <= op.max_ulp(), "{line}");
        }
    }
}
