//! Plain data in trees: what a step is compiled for, not what it is fed.
//!
//! A layer's `eps` or an activation's name decides which graph is captured, so its value is part of
//! the tree's structure: another value is another capture. Equal means *equal bits*, so a NaN finds
//! its capture again and `0.0` and `-0.0`, which may compute different results, never share one.

use std::any::Any;
use std::fmt::{self, Debug, Display, Formatter};
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::sync::Arc;

use super::{Family, Leaf, Structure, Tree, With};
use crate::{Backend, DType};

/// A value of plain data inside a [`Structure`].
///
/// ```
/// use kiln_ir::tree::Plain;
///
/// assert_eq!(Plain::from(f32::NAN), Plain::from(f32::NAN));
/// assert_ne!(Plain::from(0.0_f32), Plain::from(-0.0_f32));
/// assert_eq!(Plain::from("relu").to_string(), "\"relu\"");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Plain {
    /// A truth value.
    Bool(bool),
    /// A signed integer of any width.
    Signed(i64),
    /// An unsigned integer of any width.
    Unsigned(u64),
    /// The bits of an `f32`.
    F32(u32),
    /// The bits of an `f64`.
    F64(u64),
    /// A character.
    Char(char),
    /// A string known at compile time.
    Str(&'static str),
    /// A string.
    Text(Box<str>),
    /// A value of any other type: one of Kiln's, or of a field marked `#[tree(static)]`.
    Value(Arc<dyn StaticValue>),
}

impl Plain {
    /// A value of any other type.
    ///
    /// ```
    /// use kiln_ir::tree::Plain;
    /// use std::time::Duration;
    ///
    /// let second = Plain::value(&Duration::from_secs(1));
    /// assert_eq!(second, Plain::value(&Duration::from_secs(1)));
    /// assert_ne!(second, Plain::value(&Duration::from_secs(2)));
    /// assert_eq!(second.to_string(), "1s");
    /// ```
    pub fn value<T: StaticValue + Clone>(value: &T) -> Plain {
        Plain::Value(Arc::new(value.clone()))
    }
}

impl Display for Plain {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Plain::Bool(value) => Debug::fmt(value, out),
            Plain::Signed(value) => Debug::fmt(value, out),
            Plain::Unsigned(value) => Debug::fmt(value, out),
            Plain::F32(bits) => Debug::fmt(&f32::from_bits(*bits), out),
            Plain::F64(bits) => Debug::fmt(&f64::from_bits(*bits), out),
            Plain::Char(value) => Debug::fmt(value, out),
            Plain::Str(value) => Debug::fmt(value, out),
            Plain::Text(value) => Debug::fmt(value, out),
            Plain::Value(value) => Debug::fmt(value, out),
        }
    }
}

/// What a field marked `#[tree(static)]` must be: `Eq`, `Hash`, `Debug`, `Send`, `Sync` and
/// `'static`. Every such type has it; the field's type is `Clone` besides.
pub trait StaticValue: Any + Debug + Send + Sync {
    /// Whether `other` has the same type and value.
    fn is_same(&self, other: &dyn StaticValue) -> bool;

    /// Feeds the type and the value to `hasher`.
    fn feed(&self, hasher: &mut dyn Hasher);
}

impl<T: Any + Eq + Hash + Debug + Send + Sync> StaticValue for T {
    fn is_same(&self, other: &dyn StaticValue) -> bool {
        let other: &dyn Any = other;
        other.downcast_ref::<T>() == Some(self)
    }

    fn feed(&self, mut hasher: &mut dyn Hasher) {
        self.type_id().hash(&mut hasher);
        self.hash(&mut hasher);
    }
}

impl PartialEq for dyn StaticValue {
    fn eq(&self, other: &Self) -> bool {
        self.is_same(other)
    }
}

impl Eq for dyn StaticValue {}

impl Hash for dyn StaticValue {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.feed(hasher);
    }
}

/// Implements `Tree` for types that [`Plain`] knows. Each is its own family.
macro_rules! plain {
    ($($ty:ty => |$value:ident| $plain:expr;)+) => {$(
        impl From<$ty> for Plain {
            fn from($value: $ty) -> Plain {
                $plain
            }
        }

        impl Family for $ty {
            type Of<L: Leaf> = $ty;
        }

        impl<L: Leaf> Tree<L> for $ty {
            type Family = $ty;

            fn describe(&self, structure: &mut Structure) {
                structure.plain(self.clone());
            }

            fn visit<'a>(&'a self, _: &mut dyn FnMut(&'a L)) {}

            fn visit_mut<'a>(&'a mut self, _: &mut dyn FnMut(&'a mut L)) {}

            fn try_map<U: Leaf, E>(
                self,
                _: &mut dyn FnMut(L) -> Result<U, E>,
            ) -> Result<$ty, E> {
                Ok(self)
            }

            fn try_map_ref<U: Leaf, E>(
                &self,
                _: &mut dyn FnMut(&L) -> Result<U, E>,
            ) -> Result<$ty, E> {
                Ok(self.clone())
            }
        }
    )+};
}

plain! {
    bool => |value| Plain::Bool(value);
    i8 => |value| Plain::Signed(value.into());
    i16 => |value| Plain::Signed(value.into());
    i32 => |value| Plain::Signed(value.into());
    i64 => |value| Plain::Signed(value);
    isize => |value| Plain::Signed(value as i64);
    u8 => |value| Plain::Unsigned(value.into());
    u16 => |value| Plain::Unsigned(value.into());
    u32 => |value| Plain::Unsigned(value.into());
    u64 => |value| Plain::Unsigned(value);
    usize => |value| Plain::Unsigned(value as u64);
    f32 => |value| Plain::F32(value.to_bits());
    f64 => |value| Plain::F64(value.to_bits());
    char => |value| Plain::Char(value);
    &'static str => |value| Plain::Str(value);
    String => |value| Plain::Text(value.into());
    DType => |value| Plain::value(&value);
    Backend => |value| Plain::value(&value);
}

impl<F: Family> Family for PhantomData<F> {
    type Of<L: Leaf> = PhantomData<F::Of<L>>;
}

impl<L: Leaf, M: Tree<L>> Tree<L> for PhantomData<M> {
    type Family = PhantomData<M::Family>;

    fn describe(&self, structure: &mut Structure) {
        structure.tuple(0);
    }

    fn visit<'a>(&'a self, _: &mut dyn FnMut(&'a L)) {}

    fn visit_mut<'a>(&'a mut self, _: &mut dyn FnMut(&'a mut L)) {}

    fn try_map<U: Leaf, E>(self, _: &mut dyn FnMut(L) -> Result<U, E>) -> Result<With<Self, L, U>, E> {
        Ok(PhantomData)
    }

    fn try_map_ref<U: Leaf, E>(&self, _: &mut dyn FnMut(&L) -> Result<U, E>) -> Result<With<Self, L, U>, E> {
        Ok(PhantomData)
    }
}
