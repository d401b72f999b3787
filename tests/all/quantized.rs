//! Quantized tensors: products are exact in `i32`, and what quantization loses is bounded.

use kiln::prelude::*;
use kiln_ir::Code;
use proptest::prelude::*;

use crate::under_test::device;

/// Numbers of all sizes around zero, the same in every run.
fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) as f32 / (1u64 << 31) as f32) * 2.0 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

fn array(device: &Device, shape: &[usize], seed: u64) -> Array {
    Array::from_vec(device, numbers(shape.iter().product(), seed), shape).unwrap()
}

/// Values, scales and the exact product of two quantized matrices.
type Parts = ((Array, Array, Array), (Array, Array));

fn product(device: &Device, x: &[usize], w: &[usize]) -> Parts {
    let f = jit(device, |(x, w): (Tensor, Tensor)| {
        let (x, w) = (x.quantize(), w.quantize_along(-1));
        ((q_matmul_values(&x, &w), x.values.clone(), w.values.clone()), (q_matmul(&x, &w), &x.scale * &w.scale))
    });
    f.call((array(device, x, 1), array(device, w, 2))).unwrap()
}

/// The product of `i8` matrices by its definition.
fn exact(x: &[i8], w: &[i8], [batch, m, k, n]: [usize; 4]) -> Vec<i32> {
    let mut sums = vec![0; batch * m * n];
    for (at, sum) in sums.iter_mut().enumerate() {
        let (matrix, i, j) = (at / (m * n), at / n % m, at % n);
        *sum = (0..k).map(|t| i32::from(x[(matrix * m + i) * k + t]) * i32::from(w[(matrix * k + t) * n + j])).sum();
    }
    sums
}

proptest! {
    #![proptest_config(crate::seeded(40))]

    #[test]
    fn products_of_values_are_exact_on_every_backend(batch in 1usize..3, m in 1usize..40, k in 1usize..90, n in 1usize..40) {
        let (x, w) = ([batch, m, k], [batch, k, n]);
        for device in [device(), Device::reference()] {
            let ((sums, x, w), (floats, scale)) = product(&device, &x, &w);
            let expected = exact(&x.to_vec().unwrap(), &w.to_vec().unwrap(), [batch, m, k, n]);
            prop_assert_eq!(sums.to_vec::<i32>().unwrap(), expected.clone());
            let scale: Vec<f32> = scale.to_vec().unwrap();
            for (at, (float, sum)) in floats.to_vec::<f32>().unwrap().into_iter().zip(expected).enumerate() {
                prop_assert_eq!(float, sum as f32 * scale[at % n]);
            }
        }
    }
}

#[test]
fn large_products_are_exact_on_all_cores() {
    let (m, k, n) = (130, 517, 101);
    let ((sums, x, w), _) = product(&device(), &[m, k], &[k, n]);
    assert_eq!(sums.to_vec::<i32>().unwrap(), exact(&x.to_vec().unwrap(), &w.to_vec().unwrap(), [1, m, k, n]));
}

/// What comes back after quantization, with the scales.
fn round_trip(x: &Array, axis: Option<isize>) -> (Vec<f32>, Vec<f32>) {
    let f = jit(&device(), move |x: Tensor| {
        let q = axis.map_or_else(|| x.quantize(), |axis| x.quantize_along(axis));
        (q.dequantize(), q.scale)
    });
    let (back, scale) = f.call(x).unwrap();
    (back.to_vec().unwrap(), scale.to_vec().unwrap())
}

#[test]
fn an_element_is_off_by_half_a_scale_at_most() {
    let device = device();
    for (shape, seed) in [([7usize, 5], 3), ([64, 3], 4), ([1, 1], 5)] {
        let x = array(&device, &shape, seed);
        for axis in [None, Some(0), Some(1)] {
            let (back, scale) = round_trip(&x, axis);
            for (at, (x, back)) in x.to_vec::<f32>().unwrap().iter().zip(back).enumerate() {
                let scale = match axis {
                    None => scale[0],
                    Some(0) => scale[at / shape[1]],
                    Some(_) => scale[at % shape[1]],
                };
                assert!((x - back).abs() <= scale * 0.500_001, "{x} {back} {scale}");
            }
        }
    }
}

#[test]
fn channels_of_different_size_lose_less_with_a_scale_each() {
    let device = device();
    let sizes = [1000.0f32, 1.0, 0.001];
    let x: Vec<f32> = numbers(60, 6).into_iter().enumerate().map(|(at, x)| x * sizes[at % 3]).collect();
    let array = Array::from_vec(&device, x.clone(), [20, 3]).unwrap();
    let worst = |back: &[f32]| {
        let relative = |at: usize| (x[at] - back[at]).abs() / sizes[at % 3];
        (0..60).map(relative).fold(0.0, f32::max)
    };
    let (whole, channels) = (worst(&round_trip(&array, None).0), worst(&round_trip(&array, Some(1)).0));
    assert!(channels < 0.01 && whole > 50.0 * channels, "{whole} {channels}");
}

#[test]
fn zeros_and_extremes_keep_their_values() {
    let device = device();
    assert_eq!(round_trip(&Array::new(&device, [0.0f32, -0.0]).unwrap(), None), (vec![0.0, 0.0], vec![1.0]));
    let (back, _) = round_trip(&Array::new(&device, [127.0f32, -127.0, 64.0]).unwrap(), None);
    assert_eq!(back, [127.0, -127.0, 64.0]);
}

#[test]
fn quantized_weights_are_kept_and_fed_as_one_argument() {
    let device = device();
    let w = jit(&device, |w: Tensor| w.quantize_along(1)).call(array(&device, &[8, 3], 7)).unwrap();
    let f = jit(&device, |(x, w): (Tensor, QTensor<Tensor>)| q_matmul(&x.quantize(), &w));
    let (x, plain) = (array(&device, &[4, 8], 8), array(&device, &[8, 3], 7));
    let near =
        jit(&device, |(x, w): (Tensor, Tensor)| x.matmul(&w)).call((&x, &plain)).unwrap().to_vec::<f32>().unwrap();
    let product = f.call((&x, &w)).unwrap().to_vec::<f32>().unwrap();
    product.iter().zip(near).for_each(|(a, b)| assert!((a - b).abs() < 0.05, "{a} {b}"));
}

#[test]
fn mistakes_are_told_by_their_codes() {
    let codes = |program: &dyn Fn(&Scope) -> Tensor| {
        let captured = CaptureDevice::new(Backend::Cpu).capture_scope(|scope| program(scope));
        captured.map(|_| ()).map_err(|errors| errors.codes())
    };
    let input = |scope: &Scope, name: &str| scope.input(name, DType::F32, [4, 4]);
    let elsewhere = |scope: &Scope| {
        let w = scope.on(Backend::Wgpu).input("w", DType::F32, [4, 4]).quantize();
        q_matmul(&input(scope, "x").quantize(), &w)
    };
    assert_eq!(codes(&elsewhere), Err(vec![Code::K0207]));
    let along_the_sum = |scope: &Scope| q_matmul(&input(scope, "x").quantize_along(1), &input(scope, "w").quantize());
    assert_eq!(codes(&along_the_sum), Err(vec![Code::K0312]));
    let of_integers = |scope: &Scope| scope.input("x", DType::I32, [3]).quantize().scale;
    assert_eq!(codes(&of_integers), Err(vec![Code::K0401]));
    let no_axis = |scope: &Scope| input(scope, "x").quantize_along(2).dequantize();
    assert_eq!(codes(&no_axis), Err(vec![Code::K0304]));
    let tracked = |scope: &Scope| {
        let w = input(scope, "w").quantize();
        value_and_grad(&w, |w| w.dequantize().sum(..)).0
    };
    assert_eq!(codes(&tracked), Err(vec![Code::K0502]));
    let floats = |scope: &Scope| {
        let x = input(scope, "x");
        x.matmul_with(&x, kiln_ir::Precision::Wide)
    };
    assert_eq!(codes(&floats), Err(vec![Code::K0404]));
}

#[test]
fn a_quantized_product_from_other_backends_is_told_whole() {
    let errors = CaptureDevice::new(Backend::Cpu)
        .capture_scope(|scope| {
            let x = scope.input("x", DType::F32, [2, 3]).quantize();
            let w = scope.on(Backend::Cuda).input("w", DType::F32, [3, 4]).quantize();
            q_matmul(&x, &w)
        })
        .unwrap_err();
    insta::assert_snapshot!(errors);
}
