//! What may be passed to a compiled function: data for every ticket of its argument tree.
//!
//! A closure takes tickets (`(Mlp<Tensor>, Tensor, Tensor)`); its caller has arrays, models of arrays, and plain Rust numbers. [`Feed`]
//! says which may stand for which. Numbers are *fed*: they become rank-0 arguments, so another number never means another compilation,
//! and no number is ever stale. Where a closure's argument is itself a number, a bool or a string (`eps: f32` and not `eps: Tensor`),
//! the value decides which graph is captured and is part of the signature.

use half::{bf16, f16};
use kiln_capture::Tensor;
use kiln_ir::tree::{Structure, Tree, With};
use kiln_ir::{Code, Diagnostic, Literal, Shape};
use kiln_runtime::{Array, Device};

/// Data for an argument tree `A` of tickets.
///
/// | argument | may be fed by |
/// |---|---|
/// | `Tensor` | `Array`, `&Array`; `f32`, `f64`, `f16`, `bf16`, `i8`, `u8`, `i32`, `u32`, `i64`, `bool` (as rank 0: `f32` and `i32` for unsuffixed and wide numbers) |
/// | `Model<Tensor>` | `&Model<Array>`: it is not moved |
/// | `()`, tuples, arrays, `Vec`, `Option` | the same of what feeds their parts |
/// | numbers, `bool`, `char`, `String` | themselves, by value: another value is another capture |
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be fed where the compiled function takes `{A}`",
    note = "a `Tensor` is fed by `Array`, `&Array` or a number; a model of tensors by a reference to the model of arrays"
)]
pub trait Feed<A> {
    /// Appends the structure of the tree it stands for.
    fn describe(&self, structure: &mut Structure);

    /// Appends the data of the tree's leaves, in order. K0406 for a number that does not fit its dtype, K0704 where there is no memory.
    fn arrays(&self, device: &Device, arrays: &mut Vec<Array>) -> Result<(), Diagnostic>;

    /// The tree with tickets from `next` in the places of its leaves.
    fn tickets(&self, next: &mut dyn FnMut() -> Tensor) -> A;
}

/// A model, a state, an array: any tree of arrays, by reference.
impl<M: Tree<Array>> Feed<With<M, Array, Tensor>> for &M {
    fn describe(&self, structure: &mut Structure) {
        (*self).describe(structure);
    }

    fn arrays(&self, _: &Device, arrays: &mut Vec<Array>) -> Result<(), Diagnostic> {
        self.visit(&mut |array| arrays.push(array.clone()));
        Ok(())
    }

    fn tickets(&self, next: &mut dyn FnMut() -> Tensor) -> With<M, Array, Tensor> {
        self.map_ref(|_| next())
    }
}

impl Feed<Tensor> for Array {
    fn describe(&self, structure: &mut Structure) {
        structure.leaf();
    }

    fn arrays(&self, _: &Device, arrays: &mut Vec<Array>) -> Result<(), Diagnostic> {
        arrays.push(self.clone());
        Ok(())
    }

    fn tickets(&self, next: &mut dyn FnMut() -> Tensor) -> Tensor {
        next()
    }
}

fn scalar(literal: Literal, device: &Device, arrays: &mut Vec<Array>) -> Result<(), Diagnostic> {
    match Array::full(device, literal, Shape::scalar()) {
        Ok(array) => arrays.push(array),
        Err(errors) => return Err(errors.first().clone()),
    }
    Ok(())
}

/// Numbers of a dtype of their own.
macro_rules! numbers {
    ($($number:ty)*) => {$(
        impl Feed<Tensor> for $number {
            fn describe(&self, structure: &mut Structure) {
                structure.leaf();
            }

            fn arrays(&self, device: &Device, arrays: &mut Vec<Array>) -> Result<(), Diagnostic> {
                scalar(kiln_runtime::Element::literal(*self), device, arrays)
            }

            fn tickets(&self, next: &mut dyn FnMut() -> Tensor) -> Tensor {
                next()
            }
        }
    )*};
}

numbers!(f32 f16 bf16 i8 u8 i32 u32 bool);

/// Unsuffixed and wide numbers: `f32` and `i32`, as everywhere beside tensors.
macro_rules! wide_numbers {
    ($($number:ty => $narrow:ident, $literal:expr;)*) => {$(
        impl Feed<Tensor> for $number {
            fn describe(&self, structure: &mut Structure) {
                structure.leaf();
            }

            fn arrays(&self, device: &Device, arrays: &mut Vec<Array>) -> Result<(), Diagnostic> {
                let narrow: fn($number) -> Option<Literal> = $literal;
                let literal = narrow(*self).ok_or_else(|| {
                    Diagnostic::new(Code::K0406, format!("{self} does not fit {}", stringify!($narrow)))
                        .label(format!("a `{}` is fed as `{}`", stringify!($number), stringify!($narrow)))
                        .help(format!("feed `Array::new(&device, {self}_{})`", stringify!($number)))
                })?;
                scalar(literal, device, arrays)
            }

            fn tickets(&self, next: &mut dyn FnMut() -> Tensor) -> Tensor {
                next()
            }
        }
    )*};
}

wide_numbers! {
    f64 => f32, |wide| {
        let narrow = wide as f32;
        (narrow.is_finite() || !wide.is_finite()).then(|| kiln_runtime::Element::literal(narrow))
    };
    i64 => i32, |wide| i32::try_from(wide).ok().map(kiln_runtime::Element::literal);
    usize => i32, |wide| i32::try_from(wide).ok().map(kiln_runtime::Element::literal);
}

/// Plain data: part of the signature.
macro_rules! plain {
    ($($plain:ty)*) => {$(
        impl Feed<$plain> for $plain {
            fn describe(&self, structure: &mut Structure) {
                <$plain as Tree<Array>>::describe(self, structure);
            }

            fn arrays(&self, _: &Device, _: &mut Vec<Array>) -> Result<(), Diagnostic> {
                Ok(())
            }

            fn tickets(&self, _: &mut dyn FnMut() -> Tensor) -> $plain {
                self.clone()
            }
        }
    )*};
}

plain!(f32 f64 i8 u8 i32 u32 i64 usize bool char String);

impl<A, I: Feed<A>> Feed<Vec<A>> for Vec<I> {
    fn describe(&self, structure: &mut Structure) {
        structure.list(self.len());
        self.iter().for_each(|part| part.describe(structure));
    }

    fn arrays(&self, device: &Device, arrays: &mut Vec<Array>) -> Result<(), Diagnostic> {
        self.iter().try_for_each(|part| part.arrays(device, arrays))
    }

    fn tickets(&self, next: &mut dyn FnMut() -> Tensor) -> Vec<A> {
        self.iter().map(|part| part.tickets(next)).collect()
    }
}

impl<A, I: Feed<A>, const N: usize> Feed<[A; N]> for [I; N] {
    fn describe(&self, structure: &mut Structure) {
        structure.list(N);
        self.iter().for_each(|part| part.describe(structure));
    }

    fn arrays(&self, device: &Device, arrays: &mut Vec<Array>) -> Result<(), Diagnostic> {
        self.iter().try_for_each(|part| part.arrays(device, arrays))
    }

    fn tickets(&self, next: &mut dyn FnMut() -> Tensor) -> [A; N] {
        std::array::from_fn(|index| self[index].tickets(next))
    }
}

impl<A, I: Feed<A>> Feed<Option<A>> for Option<I> {
    fn describe(&self, structure: &mut Structure) {
        match self {
            None => structure.none(),
            Some(part) => {
                structure.some();
                part.describe(structure);
            }
        }
    }

    fn arrays(&self, device: &Device, arrays: &mut Vec<Array>) -> Result<(), Diagnostic> {
        self.iter().try_for_each(|part| part.arrays(device, arrays))
    }

    fn tickets(&self, next: &mut dyn FnMut() -> Tensor) -> Option<A> {
        self.as_ref().map(|part| part.tickets(next))
    }
}

impl Feed<()> for () {
    fn describe(&self, structure: &mut Structure) {
        <() as Tree<Array>>::describe(self, structure);
    }

    fn arrays(&self, _: &Device, _: &mut Vec<Array>) -> Result<(), Diagnostic> {
        Ok(())
    }

    fn tickets(&self, _: &mut dyn FnMut() -> Tensor) {}
}

macro_rules! tuples {
    ($($count:literal: $($argument:ident $part:ident $index:tt),+;)*) => {$(
        impl<$($argument, $part: Feed<$argument>),+> Feed<($($argument,)+)> for ($($part,)+) {
            fn describe(&self, structure: &mut Structure) {
                structure.tuple($count);
                $(self.$index.describe(structure);)+
            }

            fn arrays(&self, device: &Device, arrays: &mut Vec<Array>) -> Result<(), Diagnostic> {
                $(self.$index.arrays(device, arrays)?;)+
                Ok(())
            }

            fn tickets(&self, next: &mut dyn FnMut() -> Tensor) -> ($($argument,)+) {
                ($(self.$index.tickets(next),)+)
            }
        }
    )*};
}

tuples! {
    1: A0 I0 0;
    2: A0 I0 0, A1 I1 1;
    3: A0 I0 0, A1 I1 1, A2 I2 2;
    4: A0 I0 0, A1 I1 1, A2 I2 2, A3 I3 3;
    5: A0 I0 0, A1 I1 1, A2 I2 2, A3 I3 3, A4 I4 4;
    6: A0 I0 0, A1 I1 1, A2 I2 2, A3 I3 3, A4 I4 4, A5 I5 5;
    7: A0 I0 0, A1 I1 1, A2 I2 2, A3 I3 3, A4 I4 4, A5 I5 5, A6 I6 6;
    8: A0 I0 0, A1 I1 1, A2 I2 2, A3 I3 3, A4 I4 4, A5 I5 5, A6 I6 6, A7 I7 7;
}
