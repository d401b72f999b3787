//! Ways into an array: numbers, nested Rust arrays, vectors, slices, ndarrays, host data.

use half::{bf16, f16};
use kiln_ir::{HostData, Result, Shape, TensorType};
use ndarray::{ArrayBase, Data, Dimension};

use super::Array;
use crate::{Device, Element};

/// What an [`Array`] can be made from.
///
/// ```
/// use kiln_runtime::{Array, Device};
/// let device = Device::cpu();
/// assert_eq!(Array::new(&device, 3i64)?.shape().rank(), 0);
/// assert_eq!(Array::new(&device, vec![true, false])?.shape().to_string(), "[2]");
/// let columns = ndarray::array![[1.0f64, 2.0], [3.0, 4.0]].reversed_axes();
/// assert_eq!(Array::new(&device, &columns)?.to_vec::<f64>()?, [1.0, 3.0, 2.0, 4.0]);
/// # Ok::<(), kiln_ir::Diagnostics>(())
/// ```
pub trait IntoArray {
    /// The array, in `device`'s memory. K0704 where there is no memory for it.
    fn into_array(self, device: &Device) -> Result<Array>;
}

macro_rules! numbers {
    ($($ty:ty)*) => {$(
        impl IntoArray for $ty {
            #[track_caller]
            fn into_array(self, device: &Device) -> Result<Array> {
                Array::from_slice(device, &[self], Shape::scalar())
            }
        }
    )*};
}

numbers!(f32 f64 f16 bf16 i8 u8 i32 u32 i64 bool);

impl<T: Element, const N: usize> IntoArray for [T; N] {
    #[track_caller]
    fn into_array(self, device: &Device) -> Result<Array> {
        Array::from_slice(device, &self, [N])
    }
}

impl<T: Element, const N: usize, const M: usize> IntoArray for [[T; N]; M] {
    #[track_caller]
    fn into_array(self, device: &Device) -> Result<Array> {
        Array::from_slice(device, self.as_flattened(), [M, N])
    }
}

impl<T: Element, const N: usize, const M: usize, const L: usize> IntoArray for [[[T; N]; M]; L] {
    #[track_caller]
    fn into_array(self, device: &Device) -> Result<Array> {
        Array::from_slice(device, self.as_flattened().as_flattened(), [L, M, N])
    }
}

impl<T: Element> IntoArray for Vec<T> {
    #[track_caller]
    fn into_array(self, device: &Device) -> Result<Array> {
        self.as_slice().into_array(device)
    }
}

impl<T: Element> IntoArray for &[T] {
    #[track_caller]
    fn into_array(self, device: &Device) -> Result<Array> {
        Array::from_slice(device, self, [self.len()])
    }
}

impl<T: Element, S: Data<Elem = T>, D: Dimension> IntoArray for &ArrayBase<S, D> {
    #[track_caller]
    fn into_array(self, device: &Device) -> Result<Array> {
        match self.as_slice() {
            Some(elements) => Array::from_slice(device, elements, self.shape()),
            None => {
                let elements: Vec<T> = self.iter().copied().collect();
                Array::from_slice(device, &elements, self.shape())
            }
        }
    }
}

impl<T: Element, S: Data<Elem = T>, D: Dimension> IntoArray for ArrayBase<S, D> {
    #[track_caller]
    fn into_array(self, device: &Device) -> Result<Array> {
        (&self).into_array(device)
    }
}

impl IntoArray for &HostData {
    #[track_caller]
    fn into_array(self, device: &Device) -> Result<Array> {
        let ty = TensorType::new(self.dtype(), self.shape(), device.backend());
        Array::from_bytes(device, ty, self.bytes())
    }
}

impl IntoArray for HostData {
    #[track_caller]
    fn into_array(self, device: &Device) -> Result<Array> {
        (&self).into_array(device)
    }
}
