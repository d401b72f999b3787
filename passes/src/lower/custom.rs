//! A custom op with a kernel of its own: nothing to decide, all its tensors stand in memory as they are.

use kiln_ir::kernel::{Access, CustomKernel, CustomTensor, Kernel};
use kiln_ir::{Custom, Graph, Value};

use super::evaluate::Binding;
use super::results;

pub(super) fn custom(graph: &Graph, value: Value, op: &Custom, binding: &mut Binding) -> Kernel {
    let mut tensor = |value: Value, access: Access| {
        let ty = graph.ty(value);
        CustomTensor { buffer: binding.bind(graph, value, access), dtype: ty.dtype, shape: ty.shape.clone() }
    };
    let operands = graph.node(value).operands.iter().map(|&operand| tensor(operand, Access::Read)).collect();
    let results = results(graph, value).map(|result| tensor(result, Access::Write)).collect();
    Kernel::Custom(CustomKernel {
        name: op.name.clone(),
        attributes: op.attributes.clone(),
        buffers: std::mem::take(&mut binding.buffers),
        operands,
        results,
    })
}
