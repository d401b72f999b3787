//! What is there on NVIDIA's GPUs alone: the driver, texts of custom ops, products by a library. These tests need such a device.
//!
//! Everything else holds there as it does on the CPU, and is tested by the same tests (see `under_test`).

use kiln::prelude::*;
use kiln_ir::{Code, Precision};

fn gpu() -> Device {
    Device::cuda(0).unwrap_or_else(|error| panic!("the tests of this feature need a device: {error}"))
}

/// Numbers between -1 and 1 that repeat after a prime.
fn numbers(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|at| ((at * 7919 + seed * 104_729) % 1009) as f32 / 504.5 - 1.0).collect()
}

#[test]
fn what_is_written_to_a_device_is_read_back() {
    let device = gpu();
    for length in [0, 1, 3, 4, 5, 1000, 1 << 20] {
        let bytes: Vec<u8> = (0..length).map(|at| (at * 7 % 251) as u8).collect();
        let array = Array::from_slice(&device, &bytes, [length]).unwrap();
        assert_eq!(array.to_vec::<u8>().unwrap(), bytes);
        assert_eq!(array.to_device(&Device::cpu()).unwrap().to_vec::<u8>().unwrap(), bytes);
    }
    // Also where the memory has been another's before.
    drop(Array::from_slice(&device, &[1f32; 100], [100]).unwrap());
    assert_eq!(Array::zeros(&device, DType::F32, [100]).unwrap().to_vec::<f32>().unwrap(), [0.0; 100]);
}

#[test]
fn a_device_that_is_open_is_opened_once() {
    let (first, second) = (gpu(), gpu());
    assert_eq!(first, second);
    assert_ne!(first, Device::cpu());
    assert_eq!(first.to_string(), "cuda");
    assert!(first.hardware().is_some_and(|name| !name.is_empty()));
}

#[test]
fn k0708_a_device_that_is_not_there_is_refused_with_those_that_are() {
    let error = Device::cuda(99).unwrap_err();
    assert_eq!(error.code, Code::K0708);
    assert!(error.help[0].starts_with("found: cuda:0 is "), "{error}");
}

#[test]
fn k0704_more_memory_than_there_is_is_refused_and_the_device_goes_on() {
    let device = gpu();
    let error = Array::zeros(&device, DType::F32, [1 << 42]).unwrap_err();
    assert_eq!(error.codes(), [Code::K0704]);
    device.check().unwrap();
    assert_eq!(Array::new(&device, [1.0f32]).unwrap().item::<f32>().unwrap(), 1.0);
}

#[test]
fn a_custom_op_runs_its_own_text() {
    let device = gpu();
    let halved = opaque_op("halved", |x: &TensorType| Ok(x.clone())).cuda(|x, _| {
        let count = x.shape.num_elements();
        let text = format!(
            "extern \"C\" __global__ void halved(const float* x, float* y) {{
                 unsigned at = blockIdx.x * blockDim.x + threadIdx.x;
                 if (at < {count}u) y[at] = 0.5f * x[at];
             }}"
        );
        CudaKernel::new(text, "halved", [count.div_ceil(256) as u32, 1, 1], [256, 1, 1])
    });
    let run = jit(&device, move |x: Tensor| halved.call(x));
    for round in 0..3 {
        let x = numbers(1000, round);
        let y = run.call(Array::from_slice(&device, &x, [1000]).unwrap()).unwrap().to_vec::<f32>().unwrap();
        assert!(x.iter().zip(&y).all(|(x, y)| 0.5 * x == *y));
    }
}

#[test]
fn a_text_that_does_not_compile_is_told_with_the_compilers_words() {
    let device = gpu();
    let wrong = opaque_op("wrong", |x: &TensorType| Ok(x.clone())).cuda(|_, _| {
        let text = "extern \"C\" __global__ void wrong(const float* x, float* y) { y[0] = z; }";
        CudaKernel::new(text, "wrong", [1, 1, 1], [32, 1, 1])
    });
    let run = jit(&device, move |x: Tensor| wrong.call(x));
    let error = run.call(Array::new(&device, [1.0f32]).unwrap()).unwrap_err();
    assert!(error.to_string().contains("identifier \"z\" is undefined"), "{error}");
    device.check().unwrap();
}

/// Products of matrices that lie in memory in every way that a library can be told of, held against sums in `f64`.
#[test]
fn products_by_a_library_are_right_however_matrices_lie() {
    let device = gpu();
    for (seed, &[batch, m, k, n]) in
        [[1, 1, 1, 1], [1, 4, 6, 8], [1, 1, 7, 5], [1, 5, 7, 1], [3, 17, 33, 9], [2, 64, 128, 32]].iter().enumerate()
    {
        let (x, w) = (numbers(batch * m * k, seed), numbers(batch * k * n, seed + 50));
        let expected = |transposed: [bool; 2], at: usize| -> f64 {
            let (b, i, j) = (at / (m * n), at / n % m, at % n);
            let lhs = |i, p| if transposed[0] { x[b * m * k + p * m + i] } else { x[b * m * k + i * k + p] };
            let rhs = |p, j| if transposed[1] { w[b * k * n + j * k + p] } else { w[b * k * n + p * n + j] };
            (0..k).map(|p| f64::from(lhs(i, p)) * f64::from(rhs(p, j))).sum()
        };
        for transposed in [[false, false], [true, false], [false, true], [true, true]] {
            let run = jit(&device, move |(x, w): (Tensor, Tensor)| {
                let x = if transposed[0] { x.permute([0, 2, 1]) } else { x };
                let w = if transposed[1] { w.permute([0, 2, 1]) } else { w };
                x.matmul(&w)
            });
            let x_shape = if transposed[0] { [batch, k, m] } else { [batch, m, k] };
            let w_shape = if transposed[1] { [batch, n, k] } else { [batch, k, n] };
            let x = Array::from_slice(&device, &x, x_shape).unwrap();
            let w = Array::from_slice(&device, &w, w_shape).unwrap();
            let y = run.call((&x, &w)).unwrap().to_vec::<f32>().unwrap();
            for (at, &y) in y.iter().enumerate() {
                let expected = expected(transposed, at);
                let close = 1e-6 * (k as f64 + 1.0);
                assert!((f64::from(y) - expected).abs() < close, "{transposed:?} {m}x{k}x{n} at {at}: {y} {expected}");
            }
        }
    }
}

#[test]
fn products_of_every_float_are_rounded_once() {
    let device = gpu();
    let (m, k, n) = (32, 64, 48);
    let (x, w) = (numbers(m * k, 1), numbers(k * n, 2));
    for (dtype, precision, close) in [
        (DType::F64, Precision::Full, 1e-12),
        (DType::F32, Precision::Full, 1e-5),
        (DType::F32, Precision::Tf32, 5e-2),
        (DType::F16, Precision::Full, 2e-2),
        (DType::BF16, Precision::Full, 1.5e-1),
    ] {
        let rounded = |numbers: &[f32]| -> Vec<f64> {
            let cpu = Device::cpu();
            let array = Array::from_slice(&cpu, numbers, [numbers.len()]).unwrap();
            let there = jit(&cpu, move |x: Tensor| x.cast(dtype).cast(DType::F64));
            there.call(&array).unwrap().to_vec::<f64>().unwrap()
        };
        let (exact_x, exact_w) = (rounded(&x), rounded(&w));
        let array = |numbers: &[f32], shape: [usize; 2]| {
            let cpu = Device::cpu();
            let cast = jit(&cpu, move |x: Tensor| x.cast(dtype));
            let cast = cast.call(Array::from_slice(&cpu, numbers, shape).unwrap()).unwrap();
            cast.to_device(&device).unwrap()
        };
        let run = jit(&device, move |(x, w): (Tensor, Tensor)| x.matmul_with(&w, precision));
        let y = run.call((&array(&x, [m, k]), &array(&w, [k, n]))).unwrap().to_device(&Device::cpu()).unwrap();
        let y = jit(&Device::cpu(), |y: Tensor| y.cast(DType::F64)).call(&y).unwrap().to_vec::<f64>().unwrap();
        for (at, y) in y.iter().enumerate() {
            let sum: f64 = (0..k).map(|p| exact_x[at / n * k + p] * exact_w[p * n + at % n]).sum();
            assert!((y - sum).abs() < close, "{dtype} {precision:?} at {at}: {y} {sum}");
        }
    }
}

#[test]
fn true_f32_products_do_not_lose_bits_to_tf32() {
    let device = gpu();
    let run = jit(&device, |(x, w): (Tensor, Tensor)| x.matmul(&w));
    // 1 + 2^-20 has more bits than TF32 keeps.
    let x = vec![1.0 + (-20f32).exp2(); 64 * 64];
    let identity: Vec<f32> = (0..64 * 64).map(|at| if at / 64 == at % 64 { 1.0 } else { 0.0 }).collect();
    let array = |numbers: &[f32]| Array::from_slice(&device, numbers, [64, 64]).unwrap();
    assert_eq!(run.call((&array(&x), &array(&identity))).unwrap().to_vec::<f32>().unwrap(), x);
}

#[test]
fn a_bias_is_added_by_the_library() {
    let device = gpu();
    let run = jit(&device, |(x, w, b): (Tensor, Tensor, Tensor)| x.matmul(&w) + b);
    let array = |numbers: &[f32], shape: &[usize]| Array::from_slice(&device, numbers, shape).unwrap();
    let (x, w, b) = (numbers(24, 1), numbers(48, 2), numbers(8, 3));
    let y = run.call((&array(&x, &[4, 6]), &array(&w, &[6, 8]), &array(&b, &[8]))).unwrap().to_vec::<f32>().unwrap();
    for (at, y) in y.iter().enumerate() {
        let sum: f32 = (0..6).map(|p| x[at / 8 * 6 + p] * w[p * 8 + at % 8]).sum();
        assert!((y - sum - b[at % 8]).abs() < 1e-5);
    }
}

#[test]
fn a_profile_is_by_the_devices_clock_and_holds_kernels_to_its_own_copy() {
    let device = gpu();
    let ceilings = device.ceilings().expect("there is memory to measure with");
    assert!(ceilings.bytes_per_second > 1e11 && ceilings.flops_per_second > 1e12, "{ceilings:?}");
    // Measured once.
    assert_eq!(device.ceilings(), Some(ceilings));
    let negate = jit(&device, |x: Tensor| -x);
    let profile = negate.profile(Array::zeros(&device, DType::F32, [1 << 26]).unwrap(), 9).unwrap();
    let kernel = profile.kernels[0];
    assert_eq!((profile.kernels.len(), kernel.bottleneck), (1, kiln::Bottleneck::Memory));
    // A map of 512 MiB moves about what a copy moves, and its time holds no wait of the host's.
    assert!((0.5..1.2).contains(&kernel.of_ceiling), "{kernel:?}");
}
