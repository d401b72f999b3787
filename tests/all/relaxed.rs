//! What backends may leave out or do less exactly than the reference: the one list, by name.
//!
//! WGSL lets an implementation do more than others: each row is only relaxed on a device that makes use of it, which a probe finds out.
//!
//! | what | where | why |
//! |---|---|---|
//! | [64-bit numbers](may_refuse) | wgpu, devices without | WGSL has no types for them |
//! | [functions of `f64`](may_refuse) | wgpu | WGSL has none, and arithmetic alone makes none that are as exact |
//! | [denormals](flushes_denormals) | wgpu, devices that flush them | an implementation may take the smallest numbers for zeros |
//! | [NaN and infinity](ignores_nan) | wgpu, devices whose compiler ignores them | an implementation may assume that there are none |
//! | [contraction](contracts) | wgpu, devices whose compiler contracts | a product may not be rounded before it is added to, and a sum may be taken apart |
//!
//! Whatever is not here holds everywhere.

use std::sync::LazyLock;

use kiln_capture::Tensor;
use kiln_ir::{Backend, Code, DType, Diagnostic, Graph, HostData, Literal, Op};
use kiln_runtime::Array;

use crate::under_test::{backend, device};

/// Whether a backend may refuse a graph as it does: K0601 alone, for 64-bit numbers that the device lacks, or for functions of `f64`.
pub(crate) fn may_refuse(graph: &Graph, refusal: &Diagnostic) -> bool {
    let Some(target) = device().target().cloned() else { return false };
    let functions = graph.nodes.iter().any(|node| {
        let of_f64 = node.operands.first().is_some_and(|&operand| graph.ty(operand).dtype == DType::F64);
        of_f64 && matches!(node.op, Op::Scalar(op) if op.row().exactness == kiln_ir::Exactness::Approximate)
    });
    let lacking = graph.nodes.iter().any(|node| node.types.iter().any(|ty| !target.has(ty.dtype)));
    refusal.code == Code::K0601 && (functions || lacking)
}

/// What a function of one number gives for a number, on the backend under test.
fn probed(function: fn(Tensor) -> Tensor, x: f32) -> f32 {
    let x = Array::new(&device(), [x]).unwrap();
    kiln::jit(&device(), function).call(x).unwrap().to_vec::<f32>().unwrap()[0]
}

/// Whether the device takes the smallest numbers for zeros.
pub(crate) fn flushes_denormals() -> bool {
    static FLUSHES: LazyLock<bool> = LazyLock::new(|| backend() == Backend::Wgpu && probed(|x| x * 0.5, 4e-40) == 0.0);
    *FLUSHES
}

/// Whether the device's compiler takes it that there is no NaN.
// An infinity less itself is NaN, and that is asked.
#[allow(clippy::eq_op)]
pub(crate) fn ignores_nan() -> bool {
    static IGNORES: LazyLock<bool> = LazyLock::new(|| {
        let kept = |function| probed(function, f32::INFINITY).is_nan();
        backend() == Backend::Wgpu && !(kept(|x| &x - &x) && kept(|x| (&x - &x) + x))
    });
    *IGNORES
}

/// Whether the device's compiler leaves products unrounded where they are added to, or takes common factors out of sums.
pub(crate) fn contracts() -> bool {
    static CONTRACTS: LazyLock<bool> = LazyLock::new(|| {
        let captured = kiln_capture::CaptureDevice::new(backend()).capture_scope(|scope| {
            let x = scope.input("x", DType::F32, [64]);
            let (square, more) = (&x * &x, &x * 1.7);
            (x - &square, &square + &more, square, more)
        });
        let executable = kiln::compile(&captured.unwrap(), &device()).unwrap();
        // What is contracted here is the device's doing, not ours.
        assert!(
            !executable.plan().is_some_and(|plan| plan.to_string().contains("fma")),
            "the probe contracts by itself"
        );
        let numbers: Vec<f32> = (0..64).map(|at| 2.9 + at as f32 * 0.037).collect();
        let results = executable.run(vec![Array::new(&device(), numbers.clone()).unwrap().into()]).unwrap();
        let found = |result: usize| results[result].to_vec::<f32>().unwrap();
        let rounded: [Vec<f32>; 2] =
            [numbers.iter().map(|x| x - x * x).collect(), numbers.iter().map(|x| x * x + x * 1.7).collect()];
        backend() == Backend::Wgpu && rounded != [found(0), found(1)]
    });
    // A compiler that takes such freedom takes it where it likes: one program does not show all of it.
    *CONTRACTS || flushes_denormals()
}

/// The inputs of a check as the device can tell them apart: without denormals, where it flushes them.
pub(crate) fn inputs(inputs: &[HostData]) -> Vec<HostData> {
    if !flushes_denormals() {
        return inputs.to_vec();
    }
    let flushed = |element: Literal| match smallest(element.dtype()) {
        Some(smallest) if element.to_f64().abs() < smallest => Literal::zero(element.dtype()),
        Some(_) | None => element,
    };
    let one = |data: &HostData| {
        let elements: Vec<Literal> = data.elements().map(flushed).collect();
        HostData::from_literals(data.dtype(), data.shape(), &elements).unwrap()
    };
    inputs.iter().map(one).collect()
}

/// The smallest normal number of a dtype.
fn smallest(dtype: DType) -> Option<f64> {
    match dtype {
        DType::F32 | DType::BF16 => Some(f64::from(f32::MIN_POSITIVE)),
        DType::F64 => Some(f64::MIN_POSITIVE),
        DType::F16 => Some(6.103_515_625e-5),
        DType::I8 | DType::U8 | DType::I32 | DType::U32 | DType::I64 | DType::Bool => None,
    }
}

/// Whether two elements that differ may, by denormals, by NaN or by contraction.
pub(crate) fn may_differ(expected: Literal, found: Literal) -> bool {
    let (a, b) = (expected.to_f64(), found.to_f64());
    let Some(smallest) = smallest(expected.dtype()) else { return false };
    let both_small = flushes_denormals() && a.abs() <= smallest && b.abs() <= smallest;
    let lost = ignores_nan() && !a.is_finite();
    let ulps = 4.0 * kiln_runtime::reference::tolerance::ulp(expected.dtype(), a);
    let close = contracts() && (a - b).abs() <= ulps;
    both_small || lost || close
}
