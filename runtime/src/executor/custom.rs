//! A custom op's CPU function as a step of a plan.

use kiln_ir::custom::{CpuFunction, View, ViewMut, unsupported};
use kiln_ir::kernel::{CustomKernel, CustomTensor};
use kiln_ir::plan::Launch;
use kiln_ir::{Backend, Custom, CustomOps, DType, Diagnostic, Loc, Shape};

use crate::cpu::RawBuffer;
use crate::custom::call;

/// A launch of a custom kernel with its function found.
pub(super) struct CustomStep {
    name: String,
    function: CpuFunction,
    operands: Vec<Bound>,
    results: Vec<Bound>,
    loc: Loc,
}

/// A tensor of the launch, in a buffer of the plan.
struct Bound {
    buffer: usize,
    dtype: DType,
    shape: Shape,
}

impl CustomStep {
    /// Finds the function. K0209 where there is none.
    pub(super) fn new(kernel: &CustomKernel, launch: &Launch, customs: &CustomOps) -> Result<CustomStep, Diagnostic> {
        let loc = launch.locs.first().copied().unwrap_or(Loc::Unknown);
        let behaviour = customs.find(&kernel.name, &kernel.attributes);
        let Some(function) = behaviour.and_then(|behaviour| behaviour.cpu.clone()) else {
            let (name, attributes) = (kernel.name.clone(), kernel.attributes.clone());
            let custom = Custom { name, attributes, results: [].into_iter().collect(), body: None };
            return Err(unsupported(&custom, Backend::Cpu, customs).at(loc));
        };
        let bound = |tensor: &CustomTensor| Bound {
            buffer: launch.buffers[tensor.buffer.0 as usize].0 as usize,
            dtype: tensor.dtype,
            shape: tensor.shape.clone(),
        };
        Ok(CustomStep {
            name: kernel.name.to_string(),
            function,
            operands: kernel.operands.iter().map(bound).collect(),
            results: kernel.results.iter().map(bound).collect(),
            loc,
        })
    }

    /// Runs the function on buffers of this run. K0705 where it fails.
    pub(super) fn run(&self, addresses: &[RawBuffer]) -> Result<(), Diagnostic> {
        let operands = self.operands.iter().map(|operand| {
            let RawBuffer { data, bytes } = addresses[operand.buffer];
            // SAFETY: a buffer of this run, of its type's size (checked when the plan was), alive until the run ends; nothing writes to it
            // while the function runs, since a custom kernel's results are in buffers of their own.
            View::new(operand.dtype, &operand.shape, unsafe { std::slice::from_raw_parts(data, bytes) })
        });
        let results = self.results.iter().map(|result| {
            let RawBuffer { data, bytes } = addresses[result.buffer];
            // SAFETY: as above, and no other view of this memory exists: results have buffers of their own, and no other kernel runs.
            let bytes = unsafe { std::slice::from_raw_parts_mut(data, bytes) };
            // What a function leaves unwritten must not depend on what was in this memory before.
            bytes.fill(0);
            ViewMut::new(result.dtype, &result.shape, bytes)
        });
        call(&self.function, &self.name, self.loc, operands.collect(), results.collect())
    }
}
