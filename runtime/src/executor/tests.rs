//! Plans made by hand: what the passes promise, the executor keeps; what they get wrong, it refuses.

use std::sync::Arc;

use kiln_ir::kernel::{
    Access, Address, Affine, Block, Buffer, BufferIndex, Instruction, Kernel, LoopKernel, Operation, Reg, Stage, Store,
};
use kiln_ir::plan::{BufferId, Launch, Plan, PlanBuffer, Source, Step, Traffic};
use kiln_ir::{Backend, Code, DType, HostData, Literal, Loc, ScalarOp, TensorType};

use super::*;

const LENGTH: usize = 100;

fn ty() -> TensorType {
    TensorType::new(DType::F32, [LENGTH], Backend::Cpu)
}

fn along() -> Affine {
    Affine { offset: 0, strides: [1].as_slice().into() }
}

/// `y = x + 1`, from one buffer to another or in place.
fn increment(result: Access) -> Arc<Kernel> {
    let buffer = |access| Buffer { dtype: DType::F32, len: LENGTH, access };
    let (buffers, to) = match result {
        Access::ReadWrite => (vec![buffer(Access::ReadWrite)], BufferIndex(0)),
        Access::Read | Access::Write => (vec![buffer(Access::Read), buffer(Access::Write)], BufferIndex(1)),
    };
    let address = Address { affine: along(), ..Address::default() };
    let load = Operation::Load { buffer: BufferIndex(0), address, bounds: Vec::new() };
    let instruction = |result, operation| Instruction { result: Reg(result), dtype: DType::F32, operation };
    let instructions = vec![
        instruction(0, load),
        instruction(1, Operation::Literal(Literal::one(DType::F32))),
        instruction(2, Operation::Scalar(ScalarOp::Add, [Reg(0), Reg(1)].as_slice().into())),
    ];
    let stores = vec![Store { buffer: to, address: along(), value: Reg(2) }];
    let stages = vec![Stage::Point(Block { instructions, stores })];
    Arc::new(Kernel::Loop(LoopKernel {
        buffers,
        outer: [LENGTH].as_slice().into(),
        inner: [].as_slice().into(),
        stages,
    }))
}

fn launch(kernel: Arc<Kernel>, buffers: &[u32]) -> Step {
    let buffers = buffers.iter().map(|&id| BufferId(id)).collect();
    Step::Launch(Launch { kernel, buffers, locs: Vec::new(), bytes: Traffic::default(), flops: 0 })
}

fn plan(buffers: Vec<(Source, Option<usize>)>, results: &[u32], slots: Vec<usize>, steps: Vec<Step>) -> Plan {
    let inputs = buffers.iter().filter(|(source, _)| matches!(source, Source::Input(_))).count();
    Plan {
        name: "plan".into(),
        backend: Backend::Cpu,
        inputs: (0..inputs).map(|input| (format!("in.{input}").into(), ty())).collect(),
        outputs: results.iter().enumerate().map(|(output, _)| (format!("out.{output}").into(), ty())).collect(),
        buffers: buffers
            .into_iter()
            .map(|(source, donated_to)| PlanBuffer { source, ty: ty(), donated_to, loc: Loc::caller() })
            .collect(),
        results: results.iter().map(|&id| BufferId(id)).collect(),
        slots,
        steps,
        ledger: Vec::new(),
        recomputed: Vec::new(),
        scratch: Vec::new(),
    }
}

/// The argument, one more, in the argument's memory if it is lent.
fn in_place() -> Plan {
    let buffers = vec![(Source::Input(0), Some(0)), (Source::Output(0), None)];
    plan(buffers, &[1], Vec::new(), vec![launch(increment(Access::ReadWrite), &[1])])
}

fn row(device: &Device, number: f32) -> Array {
    Array::new(device, [number; LENGTH]).unwrap()
}

fn floats(array: &Array) -> Vec<f32> {
    array.to_vec().unwrap()
}

#[test]
fn the_last_handle_lends_its_memory() {
    let device = Device::cpu();
    let executable = Executable::new(in_place(), &device).unwrap();
    let argument = row(&device, 1.0);
    let place = argument.storage().host().map(crate::buffer::Storage::shared_pointer);
    let results = executable.run(vec![Argument::Donated(argument)]).unwrap();
    assert_eq!(floats(&results[0]), [2.0; LENGTH]);
    assert_eq!(results[0].storage().host().map(crate::buffer::Storage::shared_pointer), place);
    assert!(executable.statistics().copied.is_empty());
}

#[test]
fn a_shared_argument_is_copied_and_counted() {
    let device = Device::cpu();
    let executable = Executable::new(in_place(), &device).unwrap();
    let argument = row(&device, 1.0);
    let kept = argument.clone();
    let results = executable.run(vec![Argument::Donated(argument)]).unwrap();
    assert_eq!((floats(&results[0]), floats(&kept)), (vec![2.0; LENGTH], vec![1.0; LENGTH]));
    assert_eq!(executable.statistics().to_string(), "leaf `in.0` was copied: another handle lives\n");
}

#[test]
fn a_borrowed_argument_is_never_written_and_not_counted() {
    let device = Device::cpu();
    let executable = Executable::new(in_place(), &device).unwrap();
    let argument = row(&device, 1.0);
    let results = executable.run(vec![Argument::from(&argument)]).unwrap();
    assert_eq!((floats(&results[0]), floats(&argument)), (vec![2.0; LENGTH], vec![1.0; LENGTH]));
    assert!(executable.statistics().copied.is_empty());
}

#[test]
fn slots_are_reused_between_runs_and_results_are_not() {
    let device = Device::cpu();
    let buffers = vec![(Source::Input(0), None), (Source::Slot(0), None), (Source::Output(0), None)];
    let steps = vec![launch(increment(Access::Write), &[0, 1]), launch(increment(Access::Write), &[1, 2])];
    let executable = Executable::new(plan(buffers, &[2], vec![LENGTH * 4], steps), &device).unwrap();
    let first = executable.run(vec![row(&device, 0.0).into()]).unwrap();
    let second = executable.run(vec![row(&device, 5.0).into()]).unwrap();
    assert_eq!((floats(&first[0]), floats(&second[0])), (vec![2.0; LENGTH], vec![7.0; LENGTH]));
    let warm = device.memory().allocations;
    drop(second);
    executable.run(vec![row(&device, 9.0).into()]).unwrap();
    assert_eq!(device.memory().allocations, warm);
}

#[test]
fn equal_kernels_are_prepared_once() {
    let device = Device::cpu();
    let buffers = vec![(Source::Input(0), None), (Source::Slot(0), None), (Source::Output(0), None)];
    let steps = vec![launch(increment(Access::Write), &[0, 1]), launch(increment(Access::Write), &[1, 2])];
    let program =
        Program::new(plan(buffers, &[2], vec![LENGTH * 4], steps), Programs::None, &kiln_ir::CustomOps::new(), &device)
            .unwrap();
    assert_eq!(program.num_kernels(), 1);
}

#[test]
fn results_may_be_arguments_constants_or_each_other() {
    let device = Device::cpu();
    let constant = HostData::from_literals(DType::F32, [LENGTH], &[Literal::one(DType::F32); LENGTH]).unwrap();
    let buffers = vec![(Source::Input(0), None), (Source::Constant(constant), None), (Source::Output(2), None)];
    let steps = vec![launch(increment(Access::Write), &[0, 2])];
    let executable = Executable::new(plan(buffers, &[0, 1, 2, 2], Vec::new(), steps), &device).unwrap();
    let results = executable.run(vec![Argument::Donated(row(&device, 7.0))]).unwrap();
    let numbers: Vec<f32> = results.iter().map(|result| floats(result)[0]).collect();
    assert_eq!(numbers, [7.0, 1.0, 8.0, 8.0]);
    assert!(results[2].shares_memory_with(&results[3]));
}

#[test]
fn arguments_that_do_not_fit_come_back_with_every_mistake() {
    let device = Device::cpu();
    let executable = Executable::new(in_place(), &device).unwrap();
    let wrong = |argument: Array| executable.try_run(vec![Argument::Donated(argument)]).unwrap_err();
    let error = wrong(Array::new(&device, [1.0f32; 3]).unwrap());
    assert_eq!(error.diagnostics.codes(), [Code::K0701]);
    assert_eq!(error.diagnostics.first().message, "argument `in.0`: expected f32[100] @cpu, got f32[3] @cpu");
    assert_eq!(floats(error.arguments[0].array()), [1.0; 3]);
    assert_eq!(wrong(Array::new(&Device::reference(), [1.0f32; LENGTH]).unwrap()).diagnostics.codes(), [Code::K0701]);
    assert_eq!(wrong(Array::placeholder(&device).unwrap()).diagnostics.codes(), [Code::K0703]);
    assert_eq!(executable.run(Vec::new()).unwrap_err().codes(), [Code::K0701]);
}

#[test]
fn out_of_memory_names_the_largest_buffers_and_gives_the_arguments_back() {
    let device = Device::cpu();
    let executable = Executable::new(in_place(), &device).unwrap();
    let argument = row(&device, 1.0);
    let kept = argument.clone();
    device.set_memory_limit(512);
    let error = executable.try_run(vec![Argument::Donated(argument)]).unwrap_err();
    let text = error.diagnostics.to_string();
    assert_eq!(error.diagnostics.codes(), [Code::K0704]);
    assert!(text.contains("asked for 400 bytes for result `out.0`"), "{text}");
    assert!(text.contains("f32[100] @cpu (400 bytes)   made at runtime/src/executor/tests.rs"), "{text}");
    assert!(error.arguments[0].array().shares_memory_with(&kept));
}

#[test]
fn a_plan_that_contradicts_itself_is_refused() {
    let device = Device::cpu();
    let refused = |plan: Plan| assert_eq!(Executable::new(plan, &device).unwrap_err().codes(), [Code::K0901]);
    let out = || (Source::Output(0), None);
    let slot = || vec![(Source::Input(0), None), (Source::Slot(0), None), out()];
    let step = || vec![launch(increment(Access::Write), &[0, 1]), launch(increment(Access::Write), &[1, 2])];
    refused(plan(slot(), &[2], vec![LENGTH], step()));
    refused(plan(slot(), &[1], vec![LENGTH * 4], step()));
    refused(plan(slot(), &[2], vec![LENGTH * 4], vec![launch(increment(Access::Write), &[0])]));
    refused(plan(slot(), &[2], vec![LENGTH * 4], vec![launch(increment(Access::Write), &[0, 9])]));
    let twice = vec![(Source::Input(0), Some(0)), (Source::Input(1), Some(0)), out()];
    refused(plan(twice, &[2], Vec::new(), vec![launch(increment(Access::ReadWrite), &[2])]));
    let lent_and_kept = vec![(Source::Input(0), Some(0)), out()];
    refused(plan(lent_and_kept, &[0], Vec::new(), Vec::new()));
}

#[test]
fn a_backend_that_is_not_here_lists_those_that_are() {
    let device = Device::cpu();
    for backend in [Backend::Wgpu, Backend::Cuda, Backend::NdArray] {
        let error = Executable::new(Plan { backend, ..in_place() }, &device).unwrap_err();
        assert_eq!(error.codes(), [Code::K0208]);
        let told = match crate::available().contains(&backend) && backend != Backend::NdArray {
            true => "cannot run on device cpu",
            false => "available here: NdArray, Cpu",
        };
        assert!(error.to_string().contains(told), "{error}");
    }
    assert_eq!(Executable::new(in_place(), &Device::reference()).unwrap_err().codes(), [Code::K0208]);
}
