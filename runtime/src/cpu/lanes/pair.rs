//! Two of `+ - *` on `f32` in one loop.
//!
//! A strip interpreter reads and writes a strip for every instruction; where the result of one of these is read only by the next, its strip
//! is spared. Each of the two rounds as it would alone: nothing is contracted.

use std::marker::PhantomData;

use kiln_ir::ScalarOp;

use super::{Lane, LaneLoop, wide_loop};
use crate::cpu::vmath::Isa;

/// The first of two operations.
trait First {
    fn first(a: f32, b: f32) -> f32;
}

/// The second one: of the first one's result and another operand.
trait Second {
    fn second(first: f32, c: f32) -> f32;
}

struct Sum;
struct Difference;
/// The second operand less the first.
struct Reverse;
struct Product;

macro_rules! parts {
    ($($part:ident: $bound:ident::$name:ident = |$a:ident, $b:ident| $value:expr;)*) => {$(
        impl $bound for $part {
            #[inline(always)]
            fn $name($a: f32, $b: f32) -> f32 { $value }
        }
    )*};
}

parts! {
    Sum: First::first = |a, b| a + b;
    Difference: First::first = |a, b| a - b;
    Product: First::first = |a, b| a * b;
    Sum: Second::second = |first, c| first + c;
    Difference: Second::second = |first, c| first - c;
    Reverse: Second::second = |first, c| c - first;
    Product: Second::second = |first, c| first * c;
}

struct Pair<A, B>(PhantomData<(A, B)>);

impl<A: First, B: Second> Lane for Pair<A, B> {
    type A = f32;
    type B = f32;
    type C = f32;
    type Out = f32;
    #[inline(always)]
    fn lane(a: f32, b: f32, c: f32) -> f32 {
        B::second(A::first(a, b), c)
    }
}

/// The first one's result times itself.
struct Square<A>(PhantomData<A>);

impl<A: First> Lane for Square<A> {
    type A = f32;
    type B = f32;
    type C = ();
    type Out = f32;
    #[inline(always)]
    fn lane(a: f32, b: f32, (): ()) -> f32 {
        let first = A::first(a, b);
        first * first
    }
}

/// Where the first one's result stands among the second one's operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cpu) enum Stands {
    Left,
    Right,
    /// It is both.
    Both,
}

/// What a pair is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cpu) enum Arithmetic {
    Add,
    Sub,
    Mul,
}

impl Arithmetic {
    /// The op as part of a pair, if it may be one.
    pub(in crate::cpu) fn of(op: ScalarOp) -> Option<Arithmetic> {
        let parts =
            [(ScalarOp::Add, Arithmetic::Add), (ScalarOp::Sub, Arithmetic::Sub), (ScalarOp::Mul, Arithmetic::Mul)];
        parts.into_iter().find(|&(part, _)| part == op).map(|(_, arithmetic)| arithmetic)
    }
}

/// The loop of `second(first(a, b), c)`, or of `second(c, first(a, b))`, or of `second` of `first(a, b)` and itself; `None` where there is none.
pub(in crate::cpu) fn pair(first: Arithmetic, second: Arithmetic, stands: Stands, isa: Isa) -> Option<LaneLoop> {
    match first {
        Arithmetic::Add => with_first::<Sum>(second, stands, isa),
        Arithmetic::Sub => with_first::<Difference>(second, stands, isa),
        Arithmetic::Mul => with_first::<Product>(second, stands, isa),
    }
}

fn with_first<A: First>(second: Arithmetic, stands: Stands, isa: Isa) -> Option<LaneLoop> {
    match (second, stands) {
        (Arithmetic::Add, Stands::Left | Stands::Right) => Some(wide_loop::<Pair<A, Sum>>(isa)),
        (Arithmetic::Sub, Stands::Left) => Some(wide_loop::<Pair<A, Difference>>(isa)),
        (Arithmetic::Sub, Stands::Right) => Some(wide_loop::<Pair<A, Reverse>>(isa)),
        (Arithmetic::Mul, Stands::Left | Stands::Right) => Some(wide_loop::<Pair<A, Product>>(isa)),
        (Arithmetic::Mul, Stands::Both) => Some(wide_loop::<Square<A>>(isa)),
        (Arithmetic::Add | Arithmetic::Sub, Stands::Both) => None,
    }
}
