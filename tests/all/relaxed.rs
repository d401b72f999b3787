//! What backends may leave out or do less exactly than the reference: the one list, by name.
//!
//! Each row names what is relaxed, on which backend, and why. Whatever is not here holds everywhere.

use kiln_ir::{Backend, Code, DType, Diagnostic, Graph, Literal, Op};

use crate::under_test::{backend, device};

/// Whether a backend may refuse a graph as it does. K0601 alone, and only for what is listed:
///
/// - *64-bit numbers*, where the device has none: WGSL has no type for them.
/// - *functions of `f64`*: WGSL has none, and arithmetic alone makes none that are as exact as `f64` is.
pub(crate) fn may_refuse(graph: &Graph, refusal: &Diagnostic) -> bool {
    let Some(target) = device().target().cloned() else { return false };
    let lacks = |dtype: DType| !target.has(dtype);
    let functions = graph.nodes.iter().any(|node| {
        let of_f64 = node.operands.first().is_some_and(|&operand| graph.ty(operand).dtype == DType::F64);
        of_f64 && matches!(node.op, Op::Scalar(op) if op.row().exactness == kiln_ir::Exactness::Approximate)
    });
    let narrow = graph.nodes.iter().any(|node| node.types.iter().any(|ty| lacks(ty.dtype)));
    refusal.code == Code::K0601 && (functions || narrow)
}

/// Whether two elements that differ may, on the backend under test:
///
/// - *denormals* (WGSL): a device may take the smallest numbers for zeros, in what it reads and in what it writes.
pub(crate) fn may_differ(expected: Literal, found: Literal) -> bool {
    match backend() {
        Backend::NdArray | Backend::Cpu | Backend::Cuda => false,
        Backend::Wgpu => {
            let smallest = match expected.dtype() {
                DType::F32 | DType::BF16 => f64::from(f32::MIN_POSITIVE),
                DType::F64 => f64::MIN_POSITIVE,
                DType::F16 => 6.103_515_625e-5,
                DType::I8 | DType::U8 | DType::I32 | DType::U32 | DType::I64 | DType::Bool => return false,
            };
            expected.to_f64().abs() <= smallest && found.to_f64().abs() <= smallest
        }
    }
}
