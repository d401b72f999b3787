//! The interpreter's tensors: one [`Literal`] an element, its bits in a `u64`.

use kiln_ir::{DType, HostData, Literal};
use ndarray::{ArcArray, ArrayD, Dimension, IxDyn};

/// A tensor of any dtype. Cloning shares the elements.
#[derive(Clone, Debug)]
pub(super) struct Tensor {
    /// Type of the elements.
    pub(super) dtype: DType,
    /// Bits of the elements, as [`Literal::bits`] gives them; in any memory order.
    pub(super) bits: ArcArray<u64, IxDyn>,
}

impl Tensor {
    /// A tensor from the bits of its elements.
    pub(super) fn new(dtype: DType, bits: impl Into<ArcArray<u64, IxDyn>>) -> Tensor {
        Tensor { dtype, bits: bits.into() }
    }

    /// A tensor from its elements in row-major order, as many as `shape` has.
    pub(super) fn from_elements(dtype: DType, shape: &[usize], elements: impl Iterator<Item = Literal>) -> Tensor {
        let bits = elements
            .map(|element| {
                debug_assert_eq!(element.dtype(), dtype);
                element.bits()
            })
            .collect();
        Tensor::new(dtype, ArrayD::from_shape_vec(shape, bits).expect("one element for each place"))
    }

    /// A tensor whose element at each index is given by a function.
    pub(super) fn from_fn(dtype: DType, shape: &[usize], element: impl Fn(&[usize]) -> Literal) -> Tensor {
        Tensor::new(dtype, ArrayD::from_shape_fn(shape, |index| element(index.slice()).bits()))
    }

    /// A tensor filled with one number.
    pub(super) fn filled(value: Literal, shape: &[usize]) -> Tensor {
        Tensor::new(value.dtype(), ArrayD::from_elem(shape, value.bits()))
    }

    /// From host data.
    pub(super) fn from_host(data: &HostData) -> Tensor {
        Tensor::from_elements(data.dtype(), data.shape(), data.elements())
    }

    /// To host data.
    pub(super) fn to_host(&self) -> HostData {
        let size = self.dtype.size();
        let mut bytes = Vec::with_capacity(self.bits.len() * size);
        for word in &self.bits {
            bytes.extend_from_slice(&word.to_le_bytes()[..size]);
        }
        HostData::new(self.dtype, self.shape(), bytes).expect("the bytes fit the shape")
    }

    /// Extents.
    pub(super) fn shape(&self) -> &[usize] {
        self.bits.shape()
    }

    /// The element at an index.
    pub(super) fn at(&self, index: &[usize]) -> Literal {
        Literal::from_bits(self.dtype, self.bits[index])
    }

    /// The elements in row-major order.
    pub(super) fn elements(&self) -> impl Iterator<Item = Literal> + '_ {
        self.bits.iter().map(|&bits| Literal::from_bits(self.dtype, bits))
    }

    /// The elements of a float tensor in row-major order.
    pub(super) fn floats(&self) -> Vec<f64> {
        self.elements().map(Literal::to_f64).collect()
    }

    /// The elements of an integer or bool tensor in row-major order. Every such dtype fits.
    pub(super) fn ints(&self) -> Vec<i64> {
        self.elements().map(|element| element.to_i128() as i64).collect()
    }
}
