//! What is there on GPUs alone: transfers inside one plan, limits of a browser, faults, adapters, texts of custom ops.
//!
//! Everything else holds there as it does on the CPU, and is tested by the same tests (see `under_test`).

use kiln::prelude::*;
use kiln_ir::Code;
use kiln_ir::plan::{Blocked, Step as PlanStep};
use kiln_runtime::{Adapter, WgpuOpening, WgpuOptions};

fn gpu() -> Device {
    Device::wgpu().unwrap_or_else(|error| panic!("the tests of this feature need a device: {error}"))
}

/// A device that no other test has.
fn own() -> Device {
    let options = WgpuOptions { opening: WgpuOpening::Own, ..WgpuOptions::default() };
    Device::wgpu_with(options).unwrap_or_else(|error| panic!("the tests of this feature need a device: {error}"))
}

#[test]
fn what_is_written_to_a_device_is_read_back() {
    let device = gpu();
    for length in [0, 1, 3, 4, 5, 1000] {
        let bytes: Vec<u8> = (0..length).map(|at| (at * 7 % 251) as u8).collect();
        let array = Array::from_slice(&device, &bytes, [length]).unwrap();
        assert_eq!(array.to_vec::<u8>().unwrap(), bytes);
        assert_eq!(array.to_device(&Device::cpu()).unwrap().to_vec::<u8>().unwrap(), bytes);
    }
    assert_eq!(Array::zeros(&device, DType::F16, [3]).unwrap().to_vec::<half::f16>().unwrap(), [half::f16::ZERO; 3]);
}

#[test]
fn a_device_that_is_open_is_opened_once() {
    let (first, second) = (gpu(), gpu());
    assert_eq!(first, second);
    assert_eq!(first.to_string(), "wgpu");
    assert!(first.adapter().is_some_and(|adapter| Adapter::all().contains(adapter)));
}

#[test]
fn a_device_of_ones_own_meets_no_other() {
    let (first, second) = (own(), own());
    assert!(first != second && first != gpu());
    let add = jit(&first, |(x, y): (Tensor, Tensor)| x + y);
    let [x, y] = [&first, &second].map(|device| Array::new(device, [1.0f32, 2.0]).unwrap());
    assert_eq!(add.call((&x, &x)).unwrap().to_vec::<f32>().unwrap(), [2.0, 4.0]);
    assert!(add.call((&x, &y)).is_err());
}

#[test]
fn scratch_memory_is_part_of_the_peak_that_is_told_beforehand() {
    let device = own();
    let captured = CaptureDevice::new(Backend::Wgpu)
        .capture_scope(|scope| scope.input("x", DType::F32, [1 << 20]).square().sum(..))
        .unwrap();
    let x = Array::ones(&device, DType::F32, [1 << 20]).unwrap();
    let executable = kiln::compile(&captured, &device).unwrap();
    let plan = executable.plan().unwrap();
    assert!(!plan.scratch.is_empty(), "{plan}");
    let before = device.memory();
    assert_eq!(before.used, before.peak_used, "nothing was freed before, so that the peak is the call's");
    let sum = executable.run(vec![(&x).into()]).unwrap();
    assert_eq!(sum[0].item::<f32>().unwrap(), 1_048_576.0);
    assert_eq!(device.memory().peak_used - before.used, plan.peak_bytes());
}

#[test]
fn a_profile_tells_which_part_of_the_devices_best_a_kernel_reaches_and_how_it_is_spread() {
    let device = own();
    let f = jit(&device, |(x, w): (Tensor, Tensor)| x.matmul(&w).softmax(1)).named("layer");
    let array = |shape: [usize; 2]| Array::ones(&device, DType::F32, shape).unwrap();
    let profile = f.profile((&array([64, 32]), &array([32, 16])), 3).unwrap();
    let ceilings = profile.ceilings.unwrap();
    assert!(ceilings.bytes_per_second > 1e6 && ceilings.flops_per_second > 1e6, "{ceilings:?}");
    assert_eq!(device.ceilings(), Some(ceilings), "measured once");
    assert!(profile.kernels.iter().all(|kernel| kernel.of_ceiling > 0.0), "{profile}");
    assert!(profile.report.kernels.iter().all(|kernel| kernel.schedule.is_some()));
    let told = profile.report.to_string();
    assert!(told.contains("spread over the GPU, by workgroup:\n    0  "), "{told}");
}

#[test]
fn a_wrong_kernel_is_told_and_right_ones_are_not() {
    let device = own();
    let three = |(x, w): (Tensor, Tensor)| x.matmul(&w).softmax(1).cumsum(0);
    let numbers = |shape: [usize; 2]| {
        let numbers = (0..shape[0] * shape[1]).map(|at| (at * 37 % 29) as f32 / 7.0 - 2.0);
        Array::from_vec(&device, numbers.collect::<Vec<f32>>(), shape).unwrap()
    };
    let (x, w) = (numbers([4, 6]), numbers([6, 3]));
    jit(&device, three).verify().call((&x, &w)).unwrap();
    for (launch, form) in [(0, "matmul"), (1, "row"), (2, "scan")] {
        let options = kiln::Options { fault: Some(launch), ..kiln::Options::default() };
        let error = jit(&device, three).named("three").options(options).verify().call((&x, &w)).unwrap_err();
        let told = error.into_diagnostics().iter().next().unwrap().clone();
        assert_eq!((told.code, told.op.as_deref()), (Code::K0707, Some(form)), "{told}");
        assert_eq!(told.message, format!("kernel {launch} of `three` differs from the reference"));
    }
}

#[test]
fn k0708_an_adapter_that_is_not_there_is_refused_with_those_that_are() {
    let error = Device::nth(Backend::Wgpu, 99).unwrap_err();
    assert_eq!(error.code, Code::K0708);
    assert!(error.help[0].starts_with("found: wgpu:0 is "), "{error}");
}

#[test]
fn memory_goes_back_to_its_pool() {
    let device = own();
    let array = Array::zeros(&device, DType::F32, [100_000]).unwrap();
    let held = device.memory();
    drop(array);
    assert_eq!(device.memory().used, held.used - 400_000);
    let error = Array::zeros(&device, DType::F32, [1 << 40]).unwrap_err();
    assert_eq!(error.codes(), [Code::K0704]);
}

#[test]
fn a_plan_crosses_to_the_cpu_and_back() {
    let device = gpu();
    let captured = CaptureDevice::new(Backend::Wgpu)
        .capture_scope(|scope| {
            let x = scope.input("x", DType::F32, [4]);
            let here = (&x * 2.0).to(Backend::Cpu);
            let there = (here.exp() + 1.0).to(Backend::Wgpu);
            (&there - &x, here)
        })
        .unwrap();
    let executable = kiln::compile(&captured, &device).unwrap();
    let plan = executable.plan().unwrap();
    assert_eq!(plan.backend, Backend::Wgpu);
    let copies = plan.steps.iter().filter(|step| matches!(step, PlanStep::Copy { .. })).count();
    assert_eq!((plan.launches().count(), copies), (3, 2));
    assert!(plan.ledger.iter().any(|edge| edge.blocked == Blocked::Transfer));
    for round in 0..3 {
        let numbers: Vec<f32> = (0..4).map(|at| (at + round) as f32 * 0.25).collect();
        let results = executable.run(vec![Array::new(&device, numbers.clone()).unwrap().into()]).unwrap();
        assert_eq!(results[1].device(), &Device::cpu());
        for (at, &x) in numbers.iter().enumerate() {
            let expected = (2.0 * x).exp() + 1.0 - x;
            assert!((results[0].to_vec::<f32>().unwrap()[at] - expected).abs() < 1e-5);
            assert_eq!(results[1].to_vec::<f32>().unwrap()[at], 2.0 * x);
        }
    }
}

#[test]
fn a_step_may_compute_a_part_of_itself_on_the_cpu() {
    let device = gpu();
    let step = step(&device, |w: Tensor, x: Tensor| {
        let loss = (&w * &x).to(Backend::Cpu).square().sum(..);
        (w * 0.5, loss)
    });
    let mut w = Array::new(&device, [1.0f32, 2.0, 3.0]).unwrap();
    let losses: Vec<f32> =
        (0..3).map(|_| step.call(&mut w, Array::new(&device, [1.0f32; 3]).unwrap()).unwrap().item().unwrap()).collect();
    assert_eq!(losses, [14.0, 3.5, 0.875]);
}

/// Quotients on the device, whichever way it comes by them, beside those of IEEE 754.
#[track_caller]
fn check_quotients(device: &Device, pairs: &[(f32, f32)]) {
    let (x, y): (Vec<f32>, Vec<f32>) = pairs.iter().copied().unzip();
    let divide = kiln::jit(device, |(x, y): (Tensor, Tensor)| x / y);
    let shape = [x.len()];
    let (of, by) = (Array::from_slice(device, &x, shape).unwrap(), Array::from_slice(device, &y, shape).unwrap());
    let found = divide.call((&of, &by)).unwrap().to_vec::<f32>().unwrap();
    for ((x, y), found) in pairs.iter().zip(found) {
        assert_eq!(found.to_bits(), (x / y).to_bits(), "{x:e} / {y:e} is {:e}, not {found:e}", x / y);
    }
}

#[test]
fn quotients_are_rounded_as_ieee_754_asks_with_every_device_limit() {
    let browser =
        kiln_runtime::WgpuOptions { limits: kiln_runtime::WgpuLimits::WebGpu, ..kiln_runtime::WgpuOptions::default() };
    let mut word = 1u64;
    let mut next = || {
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (word >> 32) as u32
    };
    // Exponents over most of their range, quotients among the normal numbers.
    let mut number = || f32::from_bits((next() & 0x807f_ffff) | ((77 + next() % 100) << 23));
    let mut pairs: Vec<(f32, f32)> = (0..1 << 18).map(|_| (number(), number())).collect();
    // Divisors with all bits set or nearly so, by powers of two and by others.
    for all_bits in [0x3fff_ffff, 0x3fff_fffe, 0x3fff_fffd, 0x407f_ffff, 0xbfff_ffff, 0x3f80_0001] {
        pairs.extend([1.0, 2.0, -0.5, 1.666_666_4, 0.0, -0.0, 3.0].map(|x| (x, f32::from_bits(all_bits))));
    }
    pairs.resize(pairs.len().next_multiple_of(4), (1.0, 3.0));
    for device in [gpu(), Device::wgpu_with(browser).unwrap()] {
        check_quotients(&device, &pairs);
        // One at a time, not four.
        check_quotients(&device, &pairs[..1001]);
    }
}
