//! Calling a custom op's CPU function: whatever it does, an error or a panic included, comes back as a result.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use kiln_ir::custom::{CpuFunction, View, ViewMut};
use kiln_ir::{Code, CustomBehaviour, DType, Diagnostic, HostData, Loc, Shape, TensorType};

/// Calls a function. K0705 at the op's line where it gives an error or panics; what it has written is then not to be used.
pub(crate) fn call(
    function: &CpuFunction,
    name: &str,
    loc: Loc,
    operands: Vec<View<'_>>,
    results: Vec<ViewMut<'_>>,
) -> Result<(), Diagnostic> {
    let types: Vec<String> = operands.iter().map(|operand| format!("{operand:?}")).collect();
    // A function that panics leaves half-written results behind, which nobody is given.
    let reason = match catch_unwind(AssertUnwindSafe(|| function(operands, results))) {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(error)) => format!("its CPU function says: {error}"),
        Err(payload) => format!("its CPU function panicked: {}", text(&*payload)),
    };
    let failed = Diagnostic::new(Code::K0705, format!("custom op `{name}` failed")).at(loc).in_op(name).label(reason);
    let operands = types.into_iter().enumerate();
    Err(operands.fold(failed, |failed, (index, ty)| failed.note(format!("operand {index}"), ty, "", Loc::Unknown)))
}

fn text(payload: &(dyn Any + Send)) -> &str {
    let owned = payload.downcast_ref::<String>().map(String::as_str);
    owned.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("it does not say why")
}

/// Runs a custom op's CPU function on host data by itself, outside of any plan. The results' bytes are `background` before it writes to them.
///
/// Errors: K0209 where the op has no CPU function, K0705 where that fails.
pub fn run_cpu_function(
    behaviour: &CustomBehaviour,
    loc: Loc,
    operands: &[HostData],
    results: &[TensorType],
    background: u8,
) -> Result<Vec<HostData>, Diagnostic> {
    let Some(function) = &behaviour.cpu else {
        let message = format!("Backend not supported for custom op `{}`", behaviour.name);
        return Err(Diagnostic::new(Code::K0209, message).at(loc).label("it has no CPU function"));
    };
    let operands: Vec<HostTensor> = operands.iter().map(HostTensor::from_host).collect();
    let results = results.iter().map(|ty| {
        let mut result = HostTensor::zeroed(ty.dtype, ty.shape.clone());
        result.bytes_mut().fill(background);
        result
    });
    let mut results: Vec<HostTensor> = results.collect();
    let views = operands.iter().map(HostTensor::view).collect();
    call(function, &behaviour.name, loc, views, results.iter_mut().map(HostTensor::view_mut).collect())?;
    Ok(results.iter().map(HostTensor::to_host).collect())
}

/// Memory for one tensor on the host, aligned for every element type.
struct HostTensor {
    dtype: DType,
    shape: Shape,
    words: Vec<u64>,
}

impl HostTensor {
    fn zeroed(dtype: DType, shape: Shape) -> HostTensor {
        let words = vec![0; (shape.num_elements() * dtype.size()).div_ceil(8)];
        HostTensor { dtype, shape, words }
    }

    fn from_host(data: &HostData) -> HostTensor {
        let mut tensor = HostTensor::zeroed(data.dtype(), data.shape().clone());
        tensor.bytes_mut().copy_from_slice(data.bytes());
        tensor
    }

    fn to_host(&self) -> HostData {
        HostData::new(self.dtype, &self.shape, self.bytes()).expect("a tensor has the bytes of its type")
    }

    fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.shape.num_elements() * self.dtype.size()]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        let bytes = self.shape.num_elements() * self.dtype.size();
        &mut bytemuck::cast_slice_mut(&mut self.words)[..bytes]
    }

    fn view(&self) -> View<'_> {
        View::new(self.dtype, &self.shape, self.bytes())
    }

    fn view_mut(&mut self) -> ViewMut<'_> {
        let bytes = self.shape.num_elements() * self.dtype.size();
        ViewMut::new(self.dtype, &self.shape, &mut bytemuck::cast_slice_mut(&mut self.words)[..bytes])
    }
}
