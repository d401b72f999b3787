//! Vector mathematics: exp, log, sin, tanh, erf and their kin over strips of numbers.
//!
//! What comes in is a strip, a slice that stays in the first-level cache, and what goes out is a strip of the same
//! length. There is no allocation, no table and no state. Each f32 function is one branch-free kernel in plain Rust,
//! compiled for each instruction set ([`Isa`]) in a loop that the compiler turns into vector code.
//!
//! What holds for every f32 function, on every instruction set:
//!
//! - the error is at most [`UnaryMath::max_ulp`], for all f32: subnormal arguments and results count as any others;
//! - infinities, zeros with their signs and domain errors (NaN) come out as in C; NaN in gives NaN out, save where C
//!   says otherwise (`pow(x, 0)`, `pow(1, y)`); sign and payload of a NaN are unspecified;
//! - a lane's bits depend on its value alone, neither on its place in the strip nor on its neighbours: a value computed
//!   again, in a strip of another length, is the same value. Other instruction sets may round differently.
//!
//! The f64 forms are scalar functions in a loop, within 2 ulp.
//!
//! - `isa.rs`: which instruction set; `strip.rs`: the loops; `op.rs`: the table of functions
//! - `lane.rs`: what kernels are made of; the others: the kernels by family

mod double;
mod error_function;
mod exponential;
mod hyperbolic;
mod inverse_trigonometric;
mod isa;
mod lane;
mod logarithm;
mod op;
mod power;
mod strip;
mod trigonometric;

#[cfg(test)]
mod tests;

pub use isa::Isa;
/// What the `f32` functions are made of, for code that takes the same steps.
pub(in crate::cpu) mod coefficients {
    pub(in crate::cpu) use super::error_function::{FAR as ERF_FAR, NEAR as ERF_NEAR};
    pub(in crate::cpu) use super::exponential::{EXP, EXP2, LN_2_HIGH, LN_2_LOW};
    pub(in crate::cpu) use super::hyperbolic::TANH;
    pub(in crate::cpu) use super::lane::ROUND;
    pub(in crate::cpu) use super::logarithm::LOG;
}
pub(in crate::cpu) use isa::Level;
pub use op::{BinaryMath, UnaryMath};

/// `output[i] = op(input[i])`, within `op.max_ulp()`.
///
/// # Panics
///
/// Where the lengths differ.
///
/// ```
/// use kiln_runtime::cpu::vmath::{Isa, UnaryMath, unary_f32};
/// let mut powers = [0.0; 3];
/// unary_f32(Isa::best(), UnaryMath::Exp2, &[-1.0, 0.0, 10.0], &mut powers);
/// assert_eq!(powers, [0.5, 1.0, 1024.0]);
/// ```
pub fn unary_f32(isa: Isa, op: UnaryMath, input: &[f32], output: &mut [f32]) {
    op::unary_f32(isa, op, input, output);
}

/// `values[i] = op(values[i])`, the same bits as [`unary_f32`].
pub fn unary_f32_in_place(isa: Isa, op: UnaryMath, values: &mut [f32]) {
    strip::in_place(values, |_, input, output| op::unary_f32(isa, op, input, output));
}

/// `output[i] = op(left[i], right[i])`, within `op.max_ulp()`.
///
/// # Panics
///
/// Where the lengths differ.
pub fn binary_f32(isa: Isa, op: BinaryMath, left: &[f32], right: &[f32], output: &mut [f32]) {
    op::binary_f32(isa, op, left, right, output);
}

/// `left[i] = op(left[i], right[i])`, the same bits as [`binary_f32`].
///
/// # Panics
///
/// Where the lengths differ.
pub fn binary_f32_in_place(isa: Isa, op: BinaryMath, left: &mut [f32], right: &[f32]) {
    assert_eq!(left.len(), right.len(), "a strip's operands have the same lanes");
    strip::in_place(left, |start, copy, output| {
        op::binary_f32(isa, op, copy, &right[start..start + copy.len()], output);
    });
}

/// `output[i] = op(input[i])` in f64, within 2 ulp.
///
/// # Panics
///
/// Where the lengths differ.
pub fn unary_f64(op: UnaryMath, input: &[f64], output: &mut [f64]) {
    assert_eq!(input.len(), output.len(), "a strip's operand and result have the same lanes");
    let function = op::unary_f64(op);
    for (y, x) in output.iter_mut().zip(input) {
        *y = function(*x);
    }
}

/// `values[i] = op(values[i])` in f64, the same bits as [`unary_f64`].
pub fn unary_f64_in_place(op: UnaryMath, values: &mut [f64]) {
    let function = op::unary_f64(op);
    for x in values {
        *x = function(*x);
    }
}

/// `output[i] = op(left[i], right[i])` in f64, within 2 ulp.
///
/// # Panics
///
/// Where the lengths differ.
pub fn binary_f64(op: BinaryMath, left: &[f64], right: &[f64], output: &mut [f64]) {
    assert_eq!(left.len(), output.len(), "a strip's left operand and result have the same lanes");
    assert_eq!(right.len(), output.len(), "a strip's right operand and result have the same lanes");
    let function = op::binary_f64(op);
    for ((z, x), y) in output.iter_mut().zip(left).zip(right) {
        *z = function(*x, *y);
    }
}

/// `left[i] = op(left[i], right[i])` in f64, the same bits as [`binary_f64`].
///
/// # Panics
///
/// Where the lengths differ.
pub fn binary_f64_in_place(op: BinaryMath, left: &mut [f64], right: &[f64]) {
    assert_eq!(left.len(), right.len(), "a strip's operands have the same lanes");
    let function = op::binary_f64(op);
    for (x, y) in left.iter_mut().zip(right) {
        *x = function(*x, *y);
    }
}
