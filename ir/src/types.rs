//! Shapes and tensor types.

use std::fmt;
use std::ops::Deref;

use smallvec::SmallVec;

use crate::{Backend, DType};

/// The extents of a tensor, outermost axis first. Rank 0 is a scalar; an extent may be 0.
///
/// ```
/// use kiln_ir::Shape;
/// let shape = Shape::from([32, 10]);
/// assert_eq!(shape.num_elements(), 320);
/// assert_eq!(shape.to_string(), "[32, 10]");
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub struct Shape(SmallVec<[usize; 4]>);

impl Shape {
    /// The shape of a scalar.
    pub fn scalar() -> Shape {
        Shape::default()
    }

    /// Number of axes.
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// Product of the extents; 1 for a scalar.
    pub fn num_elements(&self) -> usize {
        self.0.iter().product()
    }

    /// Product of the extents, or `None` where it (or the product of the non-zero extents) passes `isize::MAX`.
    pub fn checked_num_elements(&self) -> Option<usize> {
        let nonzero = self.0.iter().filter(|&&e| e != 0);
        let product = nonzero.copied().try_fold(1usize, usize::checked_mul)?;
        isize::try_from(product).ok()?;
        Some(if self.0.contains(&0) { 0 } else { product })
    }

    /// Row-major strides in elements.
    pub fn strides(&self) -> SmallVec<[usize; 4]> {
        let mut strides = SmallVec::from_elem(1, self.rank());
        for axis in (1..self.rank()).rev() {
            strides[axis - 1] = strides[axis] * self.0[axis].max(1);
        }
        strides
    }

    /// This shape with one extent replaced. `axis` must be below the rank.
    pub fn with_extent(&self, axis: usize, extent: usize) -> Shape {
        let mut shape = self.clone();
        shape.0[axis] = extent;
        shape
    }
}

impl Deref for Shape {
    type Target = [usize];

    fn deref(&self) -> &[usize] {
        &self.0
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    fn from(extents: [usize; N]) -> Shape {
        Shape(extents.as_slice().into())
    }
}

impl From<&[usize]> for Shape {
    fn from(extents: &[usize]) -> Shape {
        Shape(extents.into())
    }
}

impl From<&Shape> for Shape {
    fn from(shape: &Shape) -> Shape {
        shape.clone()
    }
}

impl From<Vec<usize>> for Shape {
    fn from(extents: Vec<usize>) -> Shape {
        Shape(extents.into())
    }
}

impl<const N: usize> From<&[usize; N]> for Shape {
    fn from(extents: &[usize; N]) -> Shape {
        Shape(extents.as_slice().into())
    }
}

impl FromIterator<usize> for Shape {
    fn from_iter<I: IntoIterator<Item = usize>>(extents: I) -> Shape {
        Shape(extents.into_iter().collect())
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (axis, extent) in self.0.iter().enumerate() {
            let separator = if axis == 0 { "" } else { ", " };
            write!(f, "{separator}{extent}")?;
        }
        f.write_str("]")
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What a value of a graph is: extents, element type, and the backend it lives on. Prints `f32[32, 10] @cpu`.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct TensorType {
    /// Extents, outermost first.
    pub shape: Shape,
    /// Element type.
    pub dtype: DType,
    /// Where the value lives.
    pub backend: Backend,
}

crate::leaf!(TensorType);

impl TensorType {
    /// A tensor type from its parts.
    pub fn new(dtype: DType, shape: impl Into<Shape>, backend: Backend) -> TensorType {
        TensorType { shape: shape.into(), dtype, backend }
    }

    /// The same type with another shape.
    pub fn with_shape(&self, shape: impl Into<Shape>) -> TensorType {
        TensorType { shape: shape.into(), ..self.clone() }
    }

    /// The same type with another element type.
    pub fn with_dtype(&self, dtype: DType) -> TensorType {
        TensorType { dtype, ..self.clone() }
    }

    /// Bytes of the dense tensor.
    pub fn num_bytes(&self) -> usize {
        self.shape.num_elements() * self.dtype.size()
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{} @{}", self.dtype, self.shape, self.backend.keyword())
    }
}

impl fmt::Debug for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
