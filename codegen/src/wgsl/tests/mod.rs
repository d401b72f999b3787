//! Texts are valid WGSL, for devices with and without each feature, and read as they should.

pub(crate) mod forms;
pub(crate) mod ops;
pub(crate) mod ordered;
pub(crate) mod products;

use kiln_ir::gpu::{Dispatch, GpuProgram, GpuTarget, LoopSchedule, Schedule, Support};
use kiln_ir::kernel::{
    Access, Address, Affine, Block, Buffer, BufferIndex, Fold, Instruction, Kernel, LoopKernel, Operation, Reg, Stage,
    Store,
};
use kiln_ir::{DType, ReduceKind, ScalarOp};
use naga::valid::{Capabilities, ValidationFlags, Validator};

/// A device with everything.
pub(crate) const FULL: GpuTarget = GpuTarget {
    f16: Support::Present,
    f64: Support::Present,
    i64: Support::Present,
    fma: Support::Present,
    subgroup: Some((32, 32)),
    bindings: 64,
    ..GpuTarget::WEBGPU
};

/// Panics where a text is not valid on its target, with the text.
#[track_caller]
pub(crate) fn validate(dispatch: &Dispatch, target: &GpuTarget) {
    let source = &dispatch.source;
    let module = naga::front::wgsl::parse_str(source)
        .unwrap_or_else(|error| panic!("{}\n{source}", error.emit_to_string(source)));
    let mut capabilities = Capabilities::default();
    capabilities.set(Capabilities::SHADER_FLOAT16, target.f16.is_present());
    capabilities.set(Capabilities::FLOAT64, target.f64.is_present());
    capabilities.set(Capabilities::SHADER_INT64, target.i64.is_present());
    capabilities.set(Capabilities::SUBGROUP, target.subgroup.is_some());
    let mut validator = Validator::new(ValidationFlags::all(), capabilities);
    validator
        .subgroup_stages(naga::valid::ShaderStages::COMPUTE)
        .subgroup_operations(naga::valid::SubgroupOperationSet::all());
    validator.validate(&module).unwrap_or_else(|error| panic!("{}\n{source}", error.emit_to_string(source)));
    let entry =
        module.entry_points.iter().find(|entry| entry.name == *dispatch.entry).expect("the entry point is there");
    assert!(entry.workgroup_size[0] <= target.workgroup_size);
    assert_eq!(
        module.global_variables.iter().filter(|(_, variable)| variable.binding.is_some()).count(),
        dispatch.bindings.len()
    );
}

/// The program, valid, and the same when it is made again.
#[track_caller]
pub(crate) fn program(kernel: &Kernel, schedule: &Schedule, target: &GpuTarget) -> GpuProgram {
    let program = super::program(kernel, schedule, target).unwrap_or_else(|error| panic!("{error:?}"));
    program.dispatches.iter().for_each(|dispatch| validate(dispatch, target));
    assert_eq!(super::program(kernel, schedule, target).as_ref(), Ok(&program));
    program
}

/// All texts of a program.
pub(crate) fn text(program: &GpuProgram) -> String {
    let one = |dispatch: &Dispatch| {
        format!("// workgroups {:?}, bindings {:?}\n{}", dispatch.workgroups, dispatch.bindings, dispatch.source)
    };
    program.dispatches.iter().map(one).collect::<Vec<_>>().join("\n")
}

pub(crate) fn points(workgroup: u32, width: u32) -> LoopSchedule {
    LoopSchedule::Points { workgroup, width }
}

pub(crate) fn team(lanes: u32, teams: u32, width: u32) -> LoopSchedule {
    LoopSchedule::Team { lanes, teams, width }
}

pub(crate) fn affine(offset: i64, strides: &[i64]) -> Affine {
    Affine { offset, strides: strides.iter().copied().collect() }
}

/// A kernel under construction.
pub(crate) struct Build {
    pub(crate) kernel: LoopKernel,
    block: Block,
    registers: u32,
}

impl Build {
    pub(crate) fn new(outer: &[usize], inner: &[usize]) -> Build {
        let kernel = LoopKernel {
            buffers: Vec::new(),
            outer: outer.iter().copied().collect(),
            inner: inner.iter().copied().collect(),
            stages: Vec::new(),
        };
        Build { kernel, block: Block::default(), registers: 0 }
    }

    pub(crate) fn buffer(&mut self, dtype: DType, len: usize, access: Access) -> BufferIndex {
        self.kernel.buffers.push(Buffer { dtype, len, access });
        BufferIndex(self.kernel.buffers.len() as u32 - 1)
    }

    pub(crate) fn emit(&mut self, dtype: DType, operation: Operation) -> Reg {
        let result = Reg(self.registers);
        self.registers += 1;
        self.block.instructions.push(Instruction { result, dtype, operation });
        result
    }

    pub(crate) fn load(&mut self, buffer: BufferIndex, strides: &[i64]) -> Reg {
        let dtype = self.kernel.buffers[buffer.0 as usize].dtype;
        let address = Address { affine: affine(0, strides), ..Address::default() };
        self.emit(dtype, Operation::Load { buffer, address, bounds: Vec::new() })
    }

    pub(crate) fn scalar(&mut self, op: ScalarOp, dtype: DType, operands: &[Reg]) -> Reg {
        self.emit(dtype, Operation::Scalar(op, operands.iter().copied().collect()))
    }

    pub(crate) fn store(&mut self, buffer: BufferIndex, strides: &[i64], value: Reg) {
        self.block.stores.push(Store { buffer, address: affine(0, strides), value });
    }

    pub(crate) fn point(&mut self) {
        let block = std::mem::take(&mut self.block);
        self.kernel.stages.push(Stage::Point(block));
    }

    pub(crate) fn each(&mut self) {
        let block = std::mem::take(&mut self.block);
        self.kernel.stages.push(Stage::Each(block));
    }

    pub(crate) fn fold(&mut self, kind: ReduceKind, value: Reg, accumulate: DType, dtype: DType) -> Reg {
        let result = Reg(self.registers);
        self.registers += 1;
        let folds = vec![Fold { kind, value, accumulate, result, dtype }];
        let block = std::mem::take(&mut self.block);
        self.kernel.stages.push(Stage::Fold { block, folds });
        result
    }

    pub(crate) fn kernel(self) -> Kernel {
        Kernel::Loop(self.kernel)
    }
}
