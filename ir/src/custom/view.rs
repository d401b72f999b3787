//! What a CPU function sees of its operands and results: shape, element type, elements.

use std::fmt;

use bytemuck::{CheckedBitPattern, NoUninit};
use half::{bf16, f16};

use crate::{DType, Shape};

/// A Rust type that stands for an element type: `f32`, `f64`, `f16`, `bf16`, `i8`, `u8`, `i32`, `u32`, `i64`, `bool`.
pub trait Number: NoUninit + CheckedBitPattern {
    /// The element type it stands for.
    const DTYPE: DType;
}

macro_rules! numbers {
    ($($number:ty => $dtype:ident)*) => {$(
        impl Number for $number {
            const DTYPE: DType = DType::$dtype;
        }
    )*};
}

numbers! { f32 => F32 f64 => F64 f16 => F16 bf16 => BF16 i8 => I8 u8 => U8 i32 => I32 u32 => U32 i64 => I64 bool => Bool }

/// An operand of a CPU function: a dense row-major tensor to be read.
#[derive(Clone, Copy)]
pub struct View<'a> {
    dtype: DType,
    shape: &'a Shape,
    bytes: &'a [u8],
}

/// A result of a CPU function: a dense row-major tensor to be written, zeroed at first.
pub struct ViewMut<'a> {
    dtype: DType,
    shape: &'a Shape,
    bytes: &'a mut [u8],
}

crate::leaf!(for<'v> View<'v>, ViewMut<'v>);

/// The elements were asked for as another type than theirs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrongElement {
    /// What they are.
    pub dtype: DType,
    /// What they were taken for.
    pub asked: DType,
}

impl fmt::Display for WrongElement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the elements are declared as {}, the kernel takes them for {}", self.dtype, self.asked)
    }
}

impl std::error::Error for WrongElement {}

impl<'a> View<'a> {
    /// A tensor of this type over its bytes. Panics where their number is not that of the type.
    ///
    /// ```
    /// use kiln_ir::{DType, Shape, custom::View};
    /// let (shape, numbers) = (Shape::from([2]), [1.5f32, 2.0]);
    /// let view = View::new(DType::F32, &shape, bytemuck::bytes_of(&numbers));
    /// assert_eq!(view.as_slice::<f32>().unwrap(), [1.5, 2.0]);
    /// assert!(view.as_slice::<i32>().is_err());
    /// ```
    pub fn new(dtype: DType, shape: &'a Shape, bytes: &'a [u8]) -> View<'a> {
        assert_eq!(bytes.len(), shape.num_elements() * dtype.size(), "a view has the bytes of its type");
        View { dtype, shape, bytes }
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Extents, outermost first.
    pub fn shape(&self) -> &'a Shape {
        self.shape
    }

    /// The elements, row-major. An error where `T` is not their type.
    pub fn as_slice<T: Number>(&self) -> Result<&'a [T], WrongElement> {
        let wrong = WrongElement { dtype: self.dtype, asked: T::DTYPE };
        if T::DTYPE != self.dtype {
            return Err(wrong);
        }
        // Kiln's own memory is aligned and holds valid elements.
        bytemuck::checked::try_cast_slice(self.bytes).map_err(|_| wrong)
    }
}

impl<'a> ViewMut<'a> {
    /// A tensor of this type over its bytes. Panics where their number is not that of the type.
    pub fn new(dtype: DType, shape: &'a Shape, bytes: &'a mut [u8]) -> ViewMut<'a> {
        assert_eq!(bytes.len(), shape.num_elements() * dtype.size(), "a view has the bytes of its type");
        ViewMut { dtype, shape, bytes }
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Extents, outermost first.
    pub fn shape(&self) -> &'a Shape {
        self.shape
    }

    /// The elements, row-major, to be written. An error where `T` is not their type.
    pub fn as_mut_slice<T: Number>(&mut self) -> Result<&mut [T], WrongElement> {
        let wrong = WrongElement { dtype: self.dtype, asked: T::DTYPE };
        if T::DTYPE != self.dtype {
            return Err(wrong);
        }
        bytemuck::checked::try_cast_slice_mut(self.bytes).map_err(|_| wrong)
    }
}

impl fmt::Debug for View<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.dtype, self.shape)
    }
}

impl fmt::Debug for ViewMut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.dtype, self.shape)
    }
}
