//! Kernels as texts, checked without a device.

use kiln::Code;
use kiln::prelude::*;
use kiln_ir::custom::WgslKernel;
use kiln_ir::{Op, TensorType};

/// The WGSL text of the one custom op of a program for wgpu, with the types of its operands and results.
fn text_of(program: impl FnOnce(&Scope) -> Tensor) -> (WgslKernel, Vec<TensorType>, Vec<TensorType>) {
    let captured = CaptureDevice::new(Backend::Wgpu).capture_scope(|scope| program(scope)).unwrap();
    let graph = &captured.graph;
    let node = graph.nodes.iter().find(|node| matches!(node.op, Op::Custom(_))).unwrap();
    let Op::Custom(custom) = &node.op else { panic!("it is custom") };
    let operands: Vec<TensorType> = node.operands.iter().map(|&operand| graph.ty(operand).clone()).collect();
    let text = captured.customs.of(custom).unwrap().wgsl.clone().unwrap();
    (text(&operands, &custom.results), operands, custom.results.to_vec())
}

#[test]
fn the_text_of_the_example_is_valid_and_has_the_types_of_its_op() {
    let (kernel, operands, results) = text_of(|scope| {
        let (table, rows) = (scope.input("table", DType::F32, [5, 4]), scope.input("rows", DType::I32, [6]));
        super::example::lookup(&table, &rows, 0.5)
    });
    kiln_codegen::check_wgsl("lookup", &kernel, &operands, &results).unwrap();
    assert_eq!(kernel.workgroups, [1, 1, 1]);
    insta::assert_snapshot!(kernel.source.lines().map(str::trim_start).collect::<Vec<_>>().join("\n"));
    let other = [operands[0].with_dtype(DType::I32), operands[1].clone()];
    let misfit = kiln_codegen::check_wgsl("lookup", &kernel, &other, &results).unwrap_err();
    assert_eq!(misfit.code, Code::K0211);
}
