//! Trees: user types whose leaves are tensors (the field calls them pytrees).
//!
//! A model, an optimizer's state or a tuple of arguments is one value to its user and a row of
//! tensors to a compiled step. [`Tree`] is the way between the two: the leaves in a fixed order,
//! their names, and the same tree with other leaves in their place, so that one struct holds
//! tickets inside a capture and data outside.
//!
//! - [`Tree<L>`](Tree) says that a type is a tree *of `L`*. `()` and plain data (numbers, `bool`,
//!   strings) hold no leaves and so are trees of every leaf type: they go anywhere, alone or beside
//!   tensors, and their values are part of the tree's [`Structure`].
//! - [`Leaf`] marks the leaf types. A crate declares its own with [`leaf!`](crate::leaf).
//! - [`Family`] is what a tree is apart from its leaves, and [`With`] names the member of a tree's
//!   family that has other leaves. Both directions are known to the type checker: a tree of `L` with
//!   its leaves mapped to `U` and back to `L` has the type it began with, in generic code too.
//! - [`Structure`] describes a tree's shape as a value; two equal structures have leaves that
//!   correspond one to one.
//!
//! Most trees come from `#[derive(Tree)]`; containers are in `containers`, plain data in `plain`.
//! Nothing here knows what a leaf is, and nothing builds a name before it is asked for.

mod containers;
mod fixed;
mod plain;
mod structure;

use std::convert::Infallible;

pub use fixed::Fixed;
pub use plain::{Plain, StaticValue};
pub use structure::{Held, Mismatch, Place, Structure};

/// The tree `M`, of leaves `L`, with leaves `U` in their place.
///
/// ```
/// use kiln_ir::tree::With;
/// # struct Ticket; kiln_ir::leaf!(Ticket);
/// # struct Data; kiln_ir::leaf!(Data);
/// let data: With<(Ticket, Vec<Ticket>), Ticket, Data> = (Data, vec![Data]);
/// let data: (Data, Vec<Data>) = data;
/// ```
pub type With<M, L, U> = <<M as Tree<L>>::Family as Family>::Of<U>;

/// What a tree is apart from its leaves.
///
/// A family is written as the tree itself with a [`Hole`] for every leaf: that of `Vec<Tensor>` is
/// `Vec<Hole>`.
///
/// ```
/// use kiln_ir::tree::{Family, Hole};
/// # struct Ticket; kiln_ir::leaf!(Ticket);
/// let tree: <Vec<Hole> as Family>::Of<Ticket> = vec![Ticket, Ticket];
/// # let _: Vec<Ticket> = tree;
/// ```
pub trait Family: Sized {
    /// The member of this family with leaves `L`.
    type Of<L: Leaf>: Tree<L, Family = Self>;
}

/// A type that stands at the leaves of trees. Declared with [`leaf!`](crate::leaf), never by hand.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a leaf type",
    note = "the leaves of trees are `Tensor` inside a capture and `Array` outside"
)]
pub trait Leaf: Tree<Self, Family = Hole> + HasLeaf<Leaf = Self> {}

/// The place of a leaf, and the leaf that holds nothing.
///
/// ```
/// use kiln_ir::tree::{Hole, Tree};
/// # struct Ticket; kiln_ir::leaf!(Ticket);
/// let shape: Vec<Hole> = vec![Ticket, Ticket].map(|_| Hole);
/// assert_eq!(shape, [Hole, Hole]);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Hole;

impl Family for Hole {
    type Of<L: Leaf> = L;
}

crate::leaf!(Hole);

/// Trees that have one leaf type, and name it.
///
/// `()` and plain data have none; a tuple or a struct takes that of its first part. A container that
/// holds a tree and a leaf beside it can find the leaf's type by default:
///
/// ```
/// use kiln_ir::tree::LeafOf;
/// # struct Ticket; kiln_ir::leaf!(Ticket);
/// struct Momentum<M, T = LeafOf<M>> { velocity: M, step: T }
///
/// let state: Momentum<Vec<Ticket>> = Momentum { velocity: vec![Ticket], step: Ticket };
/// ```
#[diagnostic::on_unimplemented(
    message = "the leaf type of `{Self}` cannot be told from its type",
    note = "a tuple or a struct takes the leaf type of its first part: put the tensors first"
)]
pub trait HasLeaf {
    /// The type of the leaves.
    type Leaf: Leaf;
}

/// The leaf type of the tree `M`, from [`HasLeaf`].
pub type LeafOf<M> = <M as HasLeaf>::Leaf;

/// A value made of leaves `L` in a fixed order.
///
/// Derive it: `#[derive(Tree)]` makes every type parameter of a struct or an enum a tree (a tensor
/// is the smallest), so `struct Linear<T> { weight: T, bias: Option<T> }` is a tree of `Tensor` when
/// `T` is `Tensor` and of `Array` when `T` is `Array`. The required methods below are what the derive
/// writes; the provided ones are what a user calls.
///
/// ```
/// use kiln_ir::tree::Tree;
/// # #[derive(Debug, PartialEq)] struct Ticket(u32); kiln_ir::leaf!(Ticket);
/// # #[derive(Debug, PartialEq)] struct Data(f32); kiln_ir::leaf!(Data);
/// let tree = (Ticket(0), vec![Ticket(1), Ticket(2)], "plain data");
///
/// assert_eq!(tree.names(), ["0", "1.0", "1.1"]);
/// assert_eq!(tree.leaves(), [&Ticket(0), &Ticket(1), &Ticket(2)]);
/// assert_eq!(tree.structure().to_string(), r#"(*, [*, *], "plain data")"#);
///
/// let data = tree.map(|ticket| Data(ticket.0 as f32));
/// assert_eq!(data, (Data(0.0), vec![Data(1.0), Data(2.0)], "plain data"));
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a tree of `{L}`",
    label = "neither holds leaves of type `{L}` nor is plain data",
    note = "a struct that holds tensors takes their type as a parameter and derives `Tree`: `struct Linear<T> {{ weight: T }}`",
    note = "plain data is a number, a bool, a string, a type that derives `Tree`, or a field marked `#[tree(static)]`"
)]
pub trait Tree<L: Leaf>: Sized {
    /// This type apart from its leaves.
    type Family: Family<Of<L> = Self>;

    /// Appends this tree's description to `structure`.
    fn describe(&self, structure: &mut Structure);

    /// Hands every leaf to `visit`, in order.
    fn visit<'a>(&'a self, visit: &mut dyn FnMut(&'a L));

    /// Hands every leaf to `visit` to be changed, in order.
    fn visit_mut<'a>(&'a mut self, visit: &mut dyn FnMut(&'a mut L));

    /// The tree with every leaf replaced by what `map` makes of it; the first error ends it.
    fn try_map<U: Leaf, E>(self, map: &mut dyn FnMut(L) -> Result<U, E>) -> Result<With<Self, L, U>, E>;

    /// [`try_map`](Tree::try_map) that leaves this tree where it is. Plain data is cloned.
    fn try_map_ref<U: Leaf, E>(&self, map: &mut dyn FnMut(&L) -> Result<U, E>) -> Result<With<Self, L, U>, E>;

    /// The shape of this tree, with the values of its plain data.
    ///
    /// ```
    /// use kiln_ir::tree::Tree;
    /// # struct Ticket; kiln_ir::leaf!(Ticket);
    /// let with = (Ticket, Some(Ticket)).structure();
    /// let without = (Ticket, None::<Ticket>).structure();
    /// assert_ne!(with, without);
    /// assert_eq!(without.to_string(), "(*, None)");
    /// ```
    fn structure(&self) -> Structure {
        let mut structure = Structure::default();
        self.describe(&mut structure);
        structure
    }

    /// The leaves' names, in order: the fields, indices and keys on the way, joined by dots. A tree
    /// that is one leaf names it "".
    ///
    /// ```
    /// use kiln_ir::tree::Tree;
    /// # struct Ticket; kiln_ir::leaf!(Ticket);
    /// assert_eq!(vec![(Ticket, Ticket), (Ticket, Ticket)].names(), ["0.0", "0.1", "1.0", "1.1"]);
    /// ```
    fn names(&self) -> Vec<String> {
        self.structure().names()
    }

    /// The leaves, in order.
    ///
    /// ```
    /// use kiln_ir::tree::Tree;
    /// # #[derive(Debug, PartialEq)] struct Ticket(u32); kiln_ir::leaf!(Ticket);
    /// assert_eq!((Ticket(1), [Ticket(2)]).leaves(), [&Ticket(1), &Ticket(2)]);
    /// ```
    fn leaves<'a>(&'a self) -> Vec<&'a L>
    where
        L: 'a,
    {
        let mut leaves = Vec::new();
        self.visit(&mut |leaf| leaves.push(leaf));
        leaves
    }

    /// The leaves to be changed, in order.
    ///
    /// ```
    /// use kiln_ir::tree::Tree;
    /// # #[derive(Debug, PartialEq)] struct Ticket(u32); kiln_ir::leaf!(Ticket);
    /// let mut tree = (Ticket(1), [Ticket(2)]);
    /// for leaf in tree.leaves_mut() {
    ///     leaf.0 += 10;
    /// }
    /// assert_eq!(tree, (Ticket(11), [Ticket(12)]));
    /// ```
    fn leaves_mut<'a>(&'a mut self) -> Vec<&'a mut L>
    where
        L: 'a,
    {
        let mut leaves = Vec::new();
        self.visit_mut(&mut |leaf| leaves.push(leaf));
        leaves
    }

    /// The leaves by value, in order.
    ///
    /// ```
    /// use kiln_ir::tree::Tree;
    /// # #[derive(Debug, PartialEq)] struct Ticket(u32); kiln_ir::leaf!(Ticket);
    /// assert_eq!((Ticket(1), Some(Ticket(2))).into_leaves(), [Ticket(1), Ticket(2)]);
    /// ```
    fn into_leaves(self) -> Vec<L> {
        let mut leaves = Vec::new();
        self.map(|leaf| {
            leaves.push(leaf);
            Hole
        });
        leaves
    }

    /// The tree with every leaf replaced by what `map` makes of it, in order.
    ///
    /// ```
    /// use kiln_ir::tree::Tree;
    /// # struct Ticket(u32); kiln_ir::leaf!(Ticket);
    /// # #[derive(Debug, PartialEq)] struct Data(u32); kiln_ir::leaf!(Data);
    /// assert_eq!((Ticket(7), true).map(|ticket| Data(ticket.0)), (Data(7), true));
    /// ```
    fn map<U: Leaf>(self, mut map: impl FnMut(L) -> U) -> With<Self, L, U> {
        let Ok(tree) = self.try_map(&mut |leaf| Ok::<U, Infallible>(map(leaf)));
        tree
    }

    /// [`map`](Tree::map) that leaves this tree where it is. Plain data is cloned.
    ///
    /// ```
    /// use kiln_ir::tree::Tree;
    /// # struct Ticket(u32); kiln_ir::leaf!(Ticket);
    /// # #[derive(Debug, PartialEq)] struct Data(u32); kiln_ir::leaf!(Data);
    /// let tickets = [Ticket(7), Ticket(8)];
    /// assert_eq!(tickets.map_ref(|ticket| Data(ticket.0)), [Data(7), Data(8)]);
    /// ```
    fn map_ref<U: Leaf>(&self, mut map: impl FnMut(&L) -> U) -> With<Self, L, U> {
        let Ok(tree) = self.try_map_ref(&mut |leaf| Ok::<U, Infallible>(map(leaf)));
        tree
    }

    /// Maps this tree's leaves together with those of `other`, a tree of the same family.
    ///
    /// # Errors
    ///
    /// The first difference, if the two structures are not equal; plain data counts.
    ///
    /// ```
    /// use kiln_ir::tree::Tree;
    /// # #[derive(Debug, PartialEq)] struct Data(f32); kiln_ir::leaf!(Data);
    /// let (model, gradients) = (vec![Data(1.0), Data(2.0)], vec![Data(0.5), Data(0.5)]);
    /// let model = model.zip_map(gradients, |weight, gradient| Data(weight.0 - gradient.0))?;
    /// assert_eq!(model, [Data(0.5), Data(1.5)]);
    ///
    /// let error = model.zip_map(vec![Data(0.5)], |weight, _| weight).unwrap_err();
    /// assert_eq!(error.to_string(), "expected a list of 2, found a list of 1");
    /// # Ok::<(), kiln_ir::tree::Mismatch>(())
    /// ```
    fn zip_map<O, V, U>(self, other: O, mut map: impl FnMut(L, V) -> U) -> Result<With<Self, L, U>, Mismatch>
    where
        O: Tree<V, Family = Self::Family>,
        V: Leaf,
        U: Leaf,
    {
        self.structure().matches(&other.structure())?;
        let mut others = other.into_leaves().into_iter();
        Ok(self.map(|leaf| map(leaf, others.next().expect(ONE_TO_ONE))))
    }

    /// [`zip_map`](Tree::zip_map) that leaves both trees where they are.
    ///
    /// # Errors
    ///
    /// The first difference, if the two structures are not equal; plain data counts.
    ///
    /// ```
    /// use kiln_ir::tree::Tree;
    /// # #[derive(Debug, PartialEq)] struct Data(f32); kiln_ir::leaf!(Data);
    /// let (a, b) = ((Data(1.0), Data(2.0)), (Data(3.0), Data(4.0)));
    /// assert_eq!(a.zip_map_ref(&b, |a, b| Data(a.0 + b.0))?, (Data(4.0), Data(6.0)));
    /// # Ok::<(), kiln_ir::tree::Mismatch>(())
    /// ```
    fn zip_map_ref<O, V, U>(&self, other: &O, mut map: impl FnMut(&L, &V) -> U) -> Result<With<Self, L, U>, Mismatch>
    where
        O: Tree<V, Family = Self::Family>,
        V: Leaf,
        U: Leaf,
    {
        self.structure().matches(&other.structure())?;
        let mut others = other.leaves().into_iter();
        Ok(self.map_ref(|leaf| map(leaf, others.next().expect(ONE_TO_ONE))))
    }

    /// A tree of this structure with `leaves` in the places of its own.
    ///
    /// # Errors
    ///
    /// A mismatch that names the first leaf left without a value, or that says there are too many.
    ///
    /// ```
    /// use kiln_ir::tree::Tree;
    /// # struct Ticket; kiln_ir::leaf!(Ticket);
    /// # #[derive(Debug, PartialEq)] struct Data(u32); kiln_ir::leaf!(Data);
    /// let tree = (Ticket, vec![Ticket]);
    /// assert_eq!(tree.with_leaves([Data(1), Data(2)])?, (Data(1), vec![Data(2)]));
    ///
    /// let error = tree.with_leaves([Data(1)]).unwrap_err();
    /// assert_eq!(error.to_string(), "`1.0`: expected a leaf, found the end of the leaves");
    /// # Ok::<(), kiln_ir::tree::Mismatch>(())
    /// ```
    fn with_leaves<U: Leaf>(&self, leaves: impl IntoIterator<Item = U>) -> Result<With<Self, L, U>, Mismatch> {
        let mut leaves = leaves.into_iter();
        let mut taken = 0;
        let tree = self.try_map_ref(&mut |_| {
            let leaf = leaves.next().ok_or(())?;
            taken += 1;
            Ok(leaf)
        });
        match (tree, leaves.next()) {
            (Ok(tree), None) => Ok(tree),
            (Ok(_), Some(_)) => {
                Err(Mismatch { path: String::new(), expected: format!("{taken} leaves"), found: "more".into() })
            }
            (Err(()), _) => Err(Mismatch {
                path: self.names().swap_remove(taken),
                expected: "a leaf".into(),
                found: "the end of the leaves".into(),
            }),
        }
    }
}

const ONE_TO_ONE: &str = "equal structures have equally many leaves";

/// Declares leaf types: `kiln_ir::leaf!(Tensor);` makes `Tensor` a [`Leaf`](crate::tree::Leaf), the
/// tree of one leaf, itself.
///
/// ```
/// use kiln_ir::tree::Tree;
///
/// #[derive(Debug, PartialEq)]
/// struct Ticket(u32);
/// kiln_ir::leaf!(Ticket);
///
/// assert_eq!(Ticket(3).leaves(), [&Ticket(3)]);
/// assert_eq!(Ticket(3).names(), [""]);
/// ```
#[macro_export]
macro_rules! leaf {
    (for<$life:lifetime> $($leaf:ty),+ $(,)?) => {$(
        $crate::leaf!(@one [$life] $leaf);
    )+};
    (@one [$($life:lifetime)?] $leaf:ty) => {
        impl<$($life)?> $crate::tree::Leaf for $leaf {}

        impl<$($life)?> $crate::tree::HasLeaf for $leaf {
            type Leaf = $leaf;
        }

        impl<$($life)?> $crate::tree::Tree<$leaf> for $leaf {
            type Family = $crate::tree::Hole;

            fn describe(&self, structure: &mut $crate::tree::Structure) {
                structure.leaf();
            }

            fn visit<'a>(&'a self, visit: &mut dyn ::core::ops::FnMut(&'a $leaf)) {
                visit(self);
            }

            fn visit_mut<'a>(&'a mut self, visit: &mut dyn ::core::ops::FnMut(&'a mut $leaf)) {
                visit(self);
            }

            fn try_map<U: $crate::tree::Leaf, E>(
                self,
                map: &mut dyn ::core::ops::FnMut($leaf) -> ::core::result::Result<U, E>,
            ) -> ::core::result::Result<U, E> {
                map(self)
            }

            fn try_map_ref<U: $crate::tree::Leaf, E>(
                &self,
                map: &mut dyn ::core::ops::FnMut(&$leaf) -> ::core::result::Result<U, E>,
            ) -> ::core::result::Result<U, E> {
                map(self)
            }
        }
    };
    ($($leaf:ty),+ $(,)?) => {$(
        $crate::leaf!(@one [] $leaf);
    )+};
}

#[cfg(test)]
mod tests;
