//! Trees whose number of leaves is known from their type alone: they can be made from leaves, without a tree to begin with.

use super::{Family, Hole, Leaf};

/// A family all of whose members have the same leaves: a tensor, a tuple or an array of such, a struct that derives `ExtensionType`.
///
/// Lists, maps and options are none: how many leaves they have depends on the value.
///
/// ```
/// use kiln_ir::tree::{Fixed, Hole};
/// # #[derive(Debug, PartialEq)] struct Ticket(u32); kiln_ir::leaf!(Ticket);
/// let mut count = 0;
/// let pair = <(Hole, [Hole; 2])>::fill(&mut || {
///     count += 1;
///     Ticket(count)
/// });
/// assert_eq!(pair, (Ticket(1), [Ticket(2), Ticket(3)]));
/// ```
#[diagnostic::on_unimplemented(
    message = "the number of tensors in `{Self}` is not known from its type",
    note = "what a custom op gives is a tensor, a tuple or an array of tensors, or a struct that derives `ExtensionType`"
)]
pub trait Fixed: Family {
    /// The member with leaves from `next`, in order.
    fn fill<L: Leaf>(next: &mut dyn FnMut() -> L) -> Self::Of<L>;
}

impl Fixed for Hole {
    fn fill<L: Leaf>(next: &mut dyn FnMut() -> L) -> L {
        next()
    }
}

impl<F: Fixed, const N: usize> Fixed for [F; N] {
    fn fill<L: Leaf>(next: &mut dyn FnMut() -> L) -> [F::Of<L>; N] {
        std::array::from_fn(|_| F::fill(next))
    }
}

impl<F: Fixed> Fixed for Box<F> {
    fn fill<L: Leaf>(next: &mut dyn FnMut() -> L) -> Box<F::Of<L>> {
        Box::new(F::fill(next))
    }
}

macro_rules! tuples {
    ($($($part:ident)+;)+) => {$(
        impl<$($part: Fixed),+> Fixed for ($($part,)+) {
            fn fill<Any: Leaf>(next: &mut dyn FnMut() -> Any) -> ($($part::Of<Any>,)+) {
                ($($part::fill(next),)+)
            }
        }
    )+};
}

tuples! {
    A;
    A B;
    A B C;
    A B C D;
    A B C D E;
    A B C D E F;
}
