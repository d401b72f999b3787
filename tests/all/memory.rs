//! Memory is what the plan says before anything runs, and a warm call asks for none: neither the device's pool nor the system.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use kiln::optim::Adam;
use kiln::prelude::*;
use kiln::random::Random;
use kiln::{Report, nn::Linear};
use kiln_capture::{layer_norm, q_matmul};

/// The smallest tensor of these tests has so many bytes: whatever a call allocates beyond it could be one.
const TENSOR: usize = 16 << 10;

/// The system's allocator, which counts large allocations for each thread.
struct Counting;

thread_local! {
    static LARGE: Cell<u64> = const { Cell::new(0) };
}

fn count(bytes: usize) {
    if bytes >= TENSOR {
        // A thread that is ending has nothing to count any more.
        let _ = LARGE.try_with(|large| large.set(large.get() + 1));
    }
}

// SAFETY: every call is handed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size);
        // SAFETY: the caller's.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Threads that `work` runs on with all that it starts.
fn two_threads() -> rayon::ThreadPool {
    rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap()
}

/// How many allocations of tensor size `work` makes on these threads.
fn large_allocations(threads: &rayon::ThreadPool, work: &mut (impl FnMut() + Send)) -> u64 {
    threads.broadcast(|_| LARGE.set(0));
    threads.install(work);
    threads.broadcast(|_| LARGE.get()).into_iter().sum()
}

/// Calls until nothing is asked of the system any more. A thread that takes part in a kernel for the first time makes its scratch memory, so
/// that it may take a few calls; what every call allocates never stops.
#[track_caller]
fn warm_calls_allocate_nothing(device: &Device, mut call: impl FnMut() + Send) {
    let threads = two_threads();
    large_allocations(&threads, &mut call);
    let before = device.memory();
    let counts: Vec<u64> = (0..20).map(|_| large_allocations(&threads, &mut call)).collect();
    let after = device.memory();
    assert_eq!(after.allocations, before.allocations, "the pool asked the system for memory");
    assert!(after.reuses > before.reuses, "results and slots come from the pool");
    assert!(counts.contains(&0), "allocations of tensor size: {counts:?}");
}

#[test]
fn the_counting_allocator_counts() {
    let threads = two_threads();
    let allocate = |bytes: usize| large_allocations(&threads, &mut || drop(std::hint::black_box(vec![0u8; bytes])));
    assert_eq!((allocate(TENSOR), allocate(TENSOR - 1)), (1, 0));
}

fn numbers(device: &Device, seed: u64, shape: &[usize]) -> Array {
    let mut random = Random::new(seed);
    let numbers: Vec<f32> = (0..shape.iter().product()).map(|_| random.normal()).collect();
    Array::from_vec(device, numbers, shape).unwrap()
}

type Model<T> = Vec<Linear<T>>;
type State<T> = (Model<T>, Adam<Model<T>>);

fn training_state(device: &Device) -> State<Array> {
    let mut random = Random::new(1);
    let mut layer = |from, to| Linear::new(device, from, to, &mut random).unwrap();
    let model: Model<Array> = vec![layer(64, 128), layer(128, 64)];
    let adam = Adam::new(&model).unwrap();
    (model, adam)
}

fn train(state: State<Tensor>, (x, y, lr): (Tensor, Tensor, Tensor)) -> (State<Tensor>, Tensor) {
    let (model, adam) = state;
    let (loss, gradients) =
        value_and_grad(&model, |model| cross_entropy(&model[1].forward(&model[0].forward(&x).relu()), &y));
    (adam.step(model, gradients, &lr), loss)
}

/// What a first call takes at most beside what lived before, in bytes asked for.
fn seen(device: &Device, call: impl FnOnce()) -> usize {
    let before = device.memory();
    assert_eq!(before.used, before.peak_used, "nothing was freed before, so that the peak is the call's");
    call();
    device.memory().peak_used - before.used
}

#[test]
fn the_peak_that_is_told_beforehand_is_what_a_first_call_takes() {
    let programs: [fn(Tensor) -> Tensor; 4] = [
        |x| x.softmax(1).matmul(&x.transpose()).exp().sum(1),
        |x| layer_norm(&x.matmul(&x), None, None, 1e-5).matmul(&x),
        |x| value_and_grad(&x, |x| (x.matmul(&x.tanh()).cumsum(0) * x).sum(..)).1,
        |x| x.reshape([32, 128]).sum_keepdim(0) + 1.0,
    ];
    for program in programs {
        let captured = CaptureDevice::new(Backend::Cpu)
            .capture_scope(|scope| program(scope.input("x", DType::F32, [64, 64])))
            .unwrap();
        let device = Device::cpu();
        let x = numbers(&device, 1, &[64, 64]);
        let executable = kiln::compile(&captured, &device).unwrap();
        let told = Report::of_plan(executable.plan().unwrap()).peak_bytes;
        let taken = seen(&device, || drop(executable.run(vec![(&x).into()]).unwrap()));
        // Constants were placed when it was compiled.
        let constants = 0;
        assert_eq!(taken + constants, told, "{}", executable.plan().unwrap());
    }
}

#[test]
fn a_constant_is_part_of_the_peak() {
    let captured = CaptureDevice::new(Backend::Cpu)
        .capture_scope(|scope| {
            let table = HostData::from_literals(
                DType::F32,
                [4096],
                &(0..4096).map(|i| kiln::ir::Literal::from_f64(DType::F32, f64::from(i))).collect::<Vec<_>>(),
            );
            scope.input("x", DType::F32, [4096]) * scope.constant(table.unwrap())
        })
        .unwrap();
    let device = Device::cpu();
    let x = numbers(&device, 1, &[4096]);
    let before = device.memory().used;
    let executable = kiln::compile(&captured, &device).unwrap();
    let results = executable.run(vec![x.into()]).unwrap();
    assert_eq!(device.memory().peak_used - before, executable.plan().unwrap().peak_bytes());
    assert_eq!(executable.plan().unwrap().peak_bytes(), 2 * 4 * 4096);
    drop(results);
}

#[test]
fn a_step_in_place_takes_no_memory_for_its_state_and_one_beside_takes_all_of_it() {
    for keep in [false, true] {
        let device = Device::cpu();
        let mut state = training_state(&device);
        let (x, y) = (numbers(&device, 2, &[32, 64]), Array::from_vec(&device, vec![1i32; 32], [32]).unwrap());
        let lr = Array::new(&device, 1e-3f32).unwrap();
        let step = step(&device, train);
        let step = if keep { step.keep_previous() } else { step };
        // A step swaps its state for placeholders of one element while it runs.
        let taken = seen(&device, || drop(step.call(&mut state, (&x, &y, &lr)).unwrap()));
        let report = step.report();
        let plan_of_state: usize = report
            .memory
            .iter()
            .filter(|buffer| matches!(buffer.place, kiln::Place::InPlace { .. }))
            .map(kiln::Lifetime::bytes)
            .sum();
        assert!(plan_of_state >= 3 * (64 * 128 + 128 * 64) * 4, "the state is updated in place");
        let told = report.peak_bytes + if keep { plan_of_state } else { 0 };
        assert!((told..=told + 64).contains(&taken), "told {told}, taken {taken}");
    }
}

#[test]
fn warm_elementwise_and_row_kernels_allocate_nothing() {
    let device = Device::cpu();
    let x = numbers(&device, 1, &[512, 256]);
    let programs: [fn(Tensor) -> Tensor; 5] = [
        |x| (&x * 2.0).tanh() + x,
        |x| x.softmax(1),
        |x| layer_norm(&x.transpose(), None, None, 1e-5) + x.transpose(),
        |x| value_and_grad(&x, |x| x.log_softmax(0).square().sum(..)).1,
        |x| x.cumsum(0) * x.sum_keepdim(0) + x.max_keepdim(1),
    ];
    for program in programs {
        let f = jit(&device, program);
        warm_calls_allocate_nothing(&device, || drop(f.call(&x).unwrap()));
    }
}

#[test]
fn warm_gathers_and_scatters_allocate_nothing() {
    let device = Device::cpu();
    let table = numbers(&device, 1, &[512, 64]);
    let ids = Array::from_vec(&device, (0..256).map(|i| i * 7 % 512).collect::<Vec<i32>>(), [256]).unwrap();
    let f = jit(&device, |(table, ids): (Tensor, Tensor)| {
        let rows = table.take(0, &ids).exp();
        table.index_add(0, &ids, rows)
    });
    warm_calls_allocate_nothing(&device, || drop(f.call((&table, &ids)).unwrap()));
}

#[test]
fn a_warm_quantized_product_allocates_nothing() {
    let device = Device::cpu();
    let (a, b) = (numbers(&device, 1, &[256, 160]), numbers(&device, 2, &[160, 192]));
    let f = jit(&device, |(a, b): (Tensor, Tensor)| q_matmul(&a.quantize(), &b.quantize()));
    warm_calls_allocate_nothing(&device, || drop(f.call((&a, &b)).unwrap()));
}

/// The library that multiplies floats packs its operands into memory that it asks for anew in each call; nothing else may.
#[test]
fn a_warm_training_step_allocates_only_what_the_product_library_packs() {
    let device = Device::cpu();
    let mut state = training_state(&device);
    let (x, y) = (numbers(&device, 2, &[32, 64]), Array::from_vec(&device, vec![1i32; 32], [32]).unwrap());
    let step = step(&device, train);
    let mut call = || drop(step.call(&mut state, (&x, &y, 1e-3)).unwrap());
    (0..4).for_each(|_| call());
    let before = device.memory();
    LARGE.set(0);
    call();
    assert_eq!(device.memory().allocations, before.allocations, "the pool asked the system for memory");
    let products = step.report().kernels.iter().filter(|kernel| kernel.form == kiln::ir::kernel::Form::MatMul).count();
    assert!(LARGE.get() <= products as u64, "{} allocations by {products} products", LARGE.get());
}
