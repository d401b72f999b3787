//! Real data on a device.
//!
//! An [`Array`] is a dense row-major tensor whose bytes are shared: `clone` is cheap and gives another handle to the same memory.
//! Nobody writes into memory that has a second handle: a step that is given an array to update in place copies it first where a clone
//! lives. What is *recorded* in a capture is no array: that is a `Tensor`, which holds no data.

mod from;
mod show;

use std::sync::Arc;

use kiln_ir::{Code, DType, Diagnostic, HostData, Kind, Literal, Loc, Result, Shape, TensorType};

use crate::buffer::Contents;
use crate::memory::Memory;
use crate::pool::OutOfMemory;
use crate::{Device, Element};

pub use from::IntoArray;

/// A dense row-major tensor of numbers in a device's memory.
///
/// ```
/// use kiln_runtime::{Array, Device};
/// let device = Device::cpu();
/// let array = Array::new(&device, [[1.0f32, 2.0], [3.0, 4.0]])?;
/// assert_eq!(array.shape().to_string(), "[2, 2]");
/// assert_eq!(array.to_vec::<f32>()?, [1.0, 2.0, 3.0, 4.0]);
/// assert_eq!(format!("{array:?}"), "f32[2, 2] @cpu [1.0, 2.0, 3.0, 4.0]");
/// # Ok::<(), kiln_ir::Diagnostics>(())
/// ```
#[derive(Clone)]
pub struct Array {
    storage: Arc<Memory>,
    ty: TensorType,
    device: Device,
    condition: Condition,
}

kiln_ir::leaf!(Array);

/// Whether an array still holds what it says.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Condition {
    Whole,
    /// Stands in the place of state that was being updated in place when its step broke off.
    Lost,
}

impl Array {
    /// An array from a number, nested Rust arrays, a `Vec`, a slice, an ndarray of any rank and layout, or [`HostData`].
    ///
    /// # Errors
    ///
    /// K0704 where there is no memory for it.
    pub fn new(device: &Device, data: impl IntoArray) -> Result<Array> {
        data.into_array(device)
    }

    /// An array from its elements in row-major order.
    ///
    /// # Errors
    ///
    /// K0303 where their number is not that of the shape, K0704 where there is no memory for them.
    ///
    /// ```
    /// use kiln_runtime::{Array, Device};
    /// let device = Device::cpu();
    /// let array = Array::from_slice(&device, &[1i32, 2, 3, 4, 5, 6], [2, 3])?;
    /// assert_eq!(array.to_ndarray::<i32>()?[[1, 0]], 4);
    /// assert!(Array::from_slice(&device, &[1i32], [2]).is_err());
    /// # Ok::<(), kiln_ir::Diagnostics>(())
    /// ```
    #[track_caller]
    pub fn from_slice<T: Element>(device: &Device, elements: &[T], shape: impl Into<Shape>) -> Result<Array> {
        let ty = TensorType::new(T::DTYPE, shape, device.backend());
        if ty.shape.checked_num_elements() != Some(elements.len()) {
            return Err(wrong_count(&ty.shape, elements.len()).into());
        }
        Array::from_bytes(device, ty, bytemuck::cast_slice(elements))
    }

    /// [`Array::from_slice`] from a vector.
    #[track_caller]
    pub fn from_vec<T: Element>(device: &Device, elements: Vec<T>, shape: impl Into<Shape>) -> Result<Array> {
        Array::from_slice(device, &elements, shape)
    }

    /// An array filled with zeros (`false` for bool).
    #[track_caller]
    pub fn zeros(device: &Device, dtype: DType, shape: impl Into<Shape>) -> Result<Array> {
        Array::allocate(device, TensorType::new(dtype, shape, device.backend()), Contents::Zero)
    }

    /// An array filled with ones (`true` for bool).
    #[track_caller]
    pub fn ones(device: &Device, dtype: DType, shape: impl Into<Shape>) -> Result<Array> {
        Array::full(device, Literal::one(dtype), shape)
    }

    /// An array filled with one number.
    #[track_caller]
    pub fn full(device: &Device, value: Literal, shape: impl Into<Shape>) -> Result<Array> {
        let ty = TensorType::new(value.dtype(), shape, device.backend());
        Array::filled(device, ty, |bytes| {
            let (word, size) = value.to_le_bytes();
            bytes.chunks_exact_mut(size).for_each(|element| element.copy_from_slice(&word[..size]));
        })
    }

    #[track_caller]
    fn from_bytes(device: &Device, ty: TensorType, bytes: &[u8]) -> Result<Array> {
        Array::filled(device, ty, |to| to.copy_from_slice(bytes))
    }

    #[track_caller]
    fn filled(device: &Device, ty: TensorType, fill: impl FnOnce(&mut [u8])) -> Result<Array> {
        let mut storage = Array::memory(device, &ty, Contents::Any)?;
        storage.fill(ty.num_bytes(), fill);
        Ok(Array::from_storage(device, ty, storage))
    }

    #[track_caller]
    fn allocate(device: &Device, ty: TensorType, contents: Contents) -> Result<Array> {
        let storage = Array::memory(device, &ty, contents)?;
        Ok(Array::from_storage(device, ty, storage))
    }

    #[track_caller]
    fn memory(device: &Device, ty: &TensorType, contents: Contents) -> Result<Memory> {
        let bytes = ty.shape.checked_num_elements().and_then(|elements| elements.checked_mul(ty.dtype.size()));
        let storage = device.acquire(bytes.unwrap_or(usize::MAX), contents);
        // A closure has no caller but its own line.
        let loc = Loc::caller();
        Ok(storage.map_err(|refused| out_of_memory(ty, refused).at(loc))?)
    }

    pub(crate) fn from_storage(device: &Device, ty: TensorType, storage: Memory) -> Array {
        Array::from_shared(device, ty, Arc::new(storage))
    }

    pub(crate) fn from_shared(device: &Device, ty: TensorType, storage: Arc<Memory>) -> Array {
        Array { storage, ty, device: device.clone(), condition: Condition::Whole }
    }

    /// What stands in a state while a step updates it, and stays there if the step breaks off half-way: reading it is K0703.
    pub fn placeholder(device: &Device) -> Result<Array> {
        let array = Array::zeros(device, DType::Bool, [0])?;
        Ok(Array { condition: Condition::Lost, ..array })
    }

    /// What stands in the place of an array that a run has written over before it failed.
    pub(crate) fn lost(device: &Device, ty: TensorType, remains: Memory) -> Array {
        Array { condition: Condition::Lost, ..Array::from_storage(device, ty, remains) }
    }

    pub(crate) fn storage(&self) -> &Arc<Memory> {
        &self.storage
    }

    pub(crate) fn into_storage(self) -> Arc<Memory> {
        self.storage
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.ty.dtype
    }

    /// Extents, outermost first.
    pub fn shape(&self) -> &Shape {
        &self.ty.shape
    }

    /// Shape, element type and backend.
    pub fn ty(&self) -> &TensorType {
        &self.ty
    }

    /// Where it lives.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Whether a step that failed half-way has destroyed the contents (reading them is K0703), or its device is at fault (K0702).
    pub fn is_lost(&self) -> bool {
        self.condition == Condition::Lost || self.device.is_broken()
    }

    /// Whether both are handles to the same memory.
    pub fn shares_memory_with(&self, other: &Array) -> bool {
        Arc::ptr_eq(&self.storage, &other.storage)
    }

    /// The little-endian bytes, row-major. What lies on a GPU is brought to the host at the first reading.
    ///
    /// # Errors
    ///
    /// K0703 where the array [is lost](Array::is_lost), K0702 where its device is at fault.
    #[track_caller]
    pub fn bytes(&self) -> Result<&[u8]> {
        // A closure has no caller but its own line.
        let loc = Loc::caller();
        self.device.healthy().map_err(|fault| fault.at(loc))?;
        match self.condition {
            Condition::Whole => Ok(self.storage.read().map_err(|fault| fault.at(loc))?),
            Condition::Lost => Err(Diagnostic::new(Code::K0703, "state was lost in a device fault")
                .at(loc)
                .label("a step that updated this array in place broke off before its end")
                .help("load a checkpoint, or keep a clone of the state across the step")
                .into()),
        }
    }

    /// Has the bytes brought to the host, so that reading them afterwards does not wait. Where nobody may wait, in a page of a browser, this is
    /// how an array on a GPU is read; elsewhere it is done by reading.
    ///
    /// # Errors
    ///
    /// K0702 where the device is at fault.
    pub async fn fetch(&self) -> Result<()> {
        Ok(self.storage.fetch().await?)
    }

    /// The elements, row-major.
    ///
    /// # Errors
    ///
    /// K0401, K0402, K0403 or K0404 where `T` is not the array's element type; K0703 where the array [is lost](Array::is_lost).
    #[track_caller]
    pub fn as_slice<T: Element>(&self) -> Result<&[T]> {
        let bytes = self.bytes()?;
        if T::DTYPE != self.dtype() {
            return Err(wrong_dtype(T::DTYPE, &self.ty).into());
        }
        Ok(bytemuck::checked::cast_slice(bytes))
    }

    /// A copy of the elements, row-major. Errors as [`Array::as_slice`].
    #[track_caller]
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        Ok(self.as_slice()?.to_vec())
    }

    /// A copy as an ndarray. Errors as [`Array::as_slice`].
    #[track_caller]
    pub fn to_ndarray<T: Element>(&self) -> Result<ndarray::ArrayD<T>> {
        let elements = self.to_vec()?;
        Ok(ndarray::ArrayD::from_shape_vec(self.shape().to_vec(), elements)
            .expect("an array has as many elements as its shape says"))
    }

    /// The one element of an array that has exactly one, whatever its rank.
    ///
    /// # Errors
    ///
    /// K0303 where there are more or none; else as [`Array::as_slice`].
    ///
    /// ```
    /// use kiln_runtime::{Array, Device};
    /// let loss = Array::new(&Device::cpu(), 0.5f32)?;
    /// assert_eq!(loss.item::<f32>()?, 0.5);
    /// # Ok::<(), kiln_ir::Diagnostics>(())
    /// ```
    #[track_caller]
    pub fn item<T: Element>(&self) -> Result<T> {
        match self.as_slice()? {
            [element] => Ok(*element),
            elements => Err(Diagnostic::new(Code::K0303, format!("expected one element, got {}", elements.len()))
                .at(Loc::caller())
                .label(format!("this array is {}", self.ty))
                .help("read all elements with `.to_vec()`")
                .into()),
        }
    }

    /// A copy on the host.
    ///
    /// # Errors
    ///
    /// K0703 where the array [is lost](Array::is_lost).
    #[track_caller]
    pub fn to_host(&self) -> Result<HostData> {
        let bytes = self.bytes()?;
        Ok(HostData::new(self.dtype(), self.shape(), bytes).expect("an array has as many bytes as its type says"))
    }

    /// The same array on another device: a copy, or another handle where it already lives there.
    ///
    /// # Errors
    ///
    /// K0704 where there is no memory for it, K0703 where it [is lost](Array::is_lost).
    #[track_caller]
    pub fn to_device(&self, device: &Device) -> Result<Array> {
        if *device == self.device && !self.is_lost() {
            return Ok(self.clone());
        }
        let ty = TensorType { backend: device.backend(), ..self.ty.clone() };
        Array::from_bytes(device, ty, self.bytes()?)
    }

    /// The same elements under another shape, in the same memory.
    ///
    /// # Errors
    ///
    /// K0303 where the numbers of elements differ.
    #[track_caller]
    pub fn reshape(&self, shape: impl Into<Shape>) -> Result<Array> {
        let shape = shape.into();
        if shape.checked_num_elements() != Some(self.shape().num_elements()) {
            return Err(wrong_count(&shape, self.shape().num_elements()).into());
        }
        Ok(Array { ty: self.ty.with_shape(shape), ..self.clone() })
    }
}

#[track_caller]
fn wrong_count(shape: &Shape, found: usize) -> Diagnostic {
    let expected = shape.checked_num_elements().map_or_else(|| "too many to address".to_owned(), |n| n.to_string());
    Diagnostic::new(Code::K0303, format!("shape {shape} has {expected} elements, got {found}")).at(Loc::caller())
}

/// An array of type `ty` read as `wanted`.
#[track_caller]
fn wrong_dtype(wanted: DType, ty: &TensorType) -> Diagnostic {
    let code = match wanted.kind() {
        _ if wanted.kind() == ty.dtype.kind() => Code::K0402,
        Kind::Float => Code::K0401,
        Kind::Bool => Code::K0403,
        Kind::Int => Code::K0404,
    };
    let message = match code {
        Code::K0402 => format!("dtypes differ: {wanted} and {}", ty.dtype),
        _ => format!("Should be {}, got {}", wanted.kind(), ty.dtype.kind()),
    };
    Diagnostic::new(code, message)
        .at(Loc::caller())
        .label(format!("this array is {ty}, read as {wanted}"))
        .help(format!("read it as {}, or cast where it is computed, with `.cast(DType::{wanted:?})`", ty.dtype))
}

pub(crate) fn out_of_memory(what: &TensorType, refused: OutOfMemory) -> Diagnostic {
    let asked = match refused.asked {
        usize::MAX => "more bytes than can be addressed".to_owned(),
        asked => format!("{asked} bytes"),
    };
    Diagnostic::new(Code::K0704, format!("out of memory: asked for {asked}, {} available", refused.available))
        .label(format!("memory for {what}"))
        .help("let go of arrays that are not needed, or raise the limit with `device.set_memory_limit(bytes)`")
}

#[cfg(test)]
mod tests;
