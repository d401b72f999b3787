//! What may be handed to a custom op: tensors by value or by reference, alone, in tuples, lists and options, or a struct of them.

use kiln_ir::tree::{Tree, With};

use crate::Tensor;

/// Arguments for a custom op that takes `A`.
///
/// | the op takes | it is called with |
/// |---|---|
/// | `Tensor` | `Tensor`, `&Tensor` |
/// | a struct that derives `ExtensionType` | a reference to it |
/// | tuples, arrays, `Vec`, `Option` | the same of what their parts are called with |
/// | numbers, `bool`, `&'static str`, `String` | themselves: they become attributes of the op |
#[diagnostic::on_unimplemented(
    message = "a custom op that takes `{A}` cannot be called with `{Self}`",
    note = "a tensor is given by value or by reference; a struct of tensors by reference"
)]
pub trait Arguments<A> {
    /// The arguments by value. Tickets are cheap to clone.
    fn arguments(self) -> A;
}

impl<M: Tree<Tensor>> Arguments<M> for &M {
    fn arguments(self) -> M {
        let arguments: With<M, Tensor, Tensor> = self.map_ref(Tensor::clone);
        arguments
    }
}

impl Arguments<Tensor> for Tensor {
    fn arguments(self) -> Tensor {
        self
    }
}

impl<A, X: Arguments<A>> Arguments<Vec<A>> for Vec<X> {
    fn arguments(self) -> Vec<A> {
        self.into_iter().map(X::arguments).collect()
    }
}

impl<A, X: Arguments<A>, const N: usize> Arguments<[A; N]> for [X; N] {
    fn arguments(self) -> [A; N] {
        self.map(X::arguments)
    }
}

impl<A, X: Arguments<A>> Arguments<Option<A>> for Option<X> {
    fn arguments(self) -> Option<A> {
        self.map(X::arguments)
    }
}

macro_rules! plain {
    ($($plain:ty)*) => {$(
        impl Arguments<$plain> for $plain {
            fn arguments(self) -> $plain {
                self
            }
        }
    )*};
}

plain! { bool i8 i16 i32 i64 isize u8 u16 u32 u64 usize f32 f64 char String &'static str }

macro_rules! tuples {
    ($($($part:ident $given:ident $name:ident)+;)+) => {$(
        impl<$($part, $given: Arguments<$part>),+> Arguments<($($part,)+)> for ($($given,)+) {
            fn arguments(self) -> ($($part,)+) {
                let ($($name,)+) = self;
                ($($name.arguments(),)+)
            }
        }
    )+};
}

tuples! {
    A Xa a;
    A Xa a B Xb b;
    A Xa a B Xb b C Xc c;
    A Xa a B Xb b C Xc c D Xd d;
    A Xa a B Xb b C Xc c D Xd d E Xe e;
    A Xa a B Xb b C Xc c D Xd d E Xe e F Xf f;
    A Xa a B Xb b C Xc c D Xd d E Xe e F Xf f G Xg g;
    A Xa a B Xb b C Xc c D Xd d E Xe e F Xf f G Xg g H Xh h;
}
