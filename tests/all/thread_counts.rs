//! The number of threads changes the time a plan takes, and no bit of its results.

use kiln::prelude::*;
use kiln_ir::HostData;
use kiln_passes::Options;
use kiln_runtime::reference::evaluate;
use rayon::ThreadPoolBuilder;

use crate::compiled::Compiled;
use kiln_runtime::reference::tolerance::agree;

/// What a pool of so many threads makes of it.
fn with_threads(threads: usize, compiled: &Compiled, inputs: &[HostData]) -> Vec<HostData> {
    let pool = ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    pool.install(|| compiled.run(inputs))
}

fn numbers(shape: &[usize]) -> HostData {
    let count = shape.iter().product();
    let values: Vec<f32> = (0..count).map(|i: usize| ((i * 7919) % 1009) as f32 / 150.0 - 3.3).collect();
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
    HostData::new(DType::F32, shape, bytes).unwrap()
}

/// Captures a function of one matrix and compares its results on 1, 2 and 5 threads, bit by bit, and with the reference.
#[track_caller]
fn same_on_any_number_of_threads(shape: [usize; 2], function: impl FnOnce(&Tensor) -> Tensor) {
    let captured =
        CaptureDevice::new(Backend::Cpu).capture_scope(|scope| function(&scope.input("x", DType::F32, shape))).unwrap();
    let compiled = Compiled::new(&captured.graph, &Options::default());
    let inputs = [numbers(&shape)];
    let alone = with_threads(1, &compiled, &inputs);
    for threads in [2, 5] {
        assert!(with_threads(threads, &compiled, &inputs) == alone, "{threads} threads");
    }
    let expected = &evaluate(&captured.graph, &inputs).unwrap()[0];
    for (expected, actual) in expected.elements().zip(alone[0].elements()) {
        let bound = 2e-5 * (1.0 + expected.to_f64().abs());
        assert!(agree(expected, actual, bound), "{actual:?} instead of {expected:?}");
    }
}

#[test]
fn a_chain_is_the_same_on_any_number_of_threads() {
    same_on_any_number_of_threads([700, 701], |x| (x * 0.5 + 1.0).tanh() * x.sigmoid());
}

#[test]
fn rows_are_the_same_on_any_number_of_threads() {
    same_on_any_number_of_threads([301, 1031], |x| x.softmax(-1));
}

#[test]
fn columns_are_the_same_on_any_number_of_threads() {
    same_on_any_number_of_threads([1031, 301], |x| x.softmax(0));
}

#[test]
fn a_sum_over_all_is_the_same_on_any_number_of_threads() {
    same_on_any_number_of_threads([1031, 613], |x| x.sum(..));
}

#[test]
fn a_transposed_product_with_an_epilogue_is_the_same_on_any_number_of_threads() {
    same_on_any_number_of_threads([257, 300], |x| (x.matmul(&x.transpose()) * 0.01).tanh() + 1.0);
}

#[test]
fn a_product_in_blocks_of_rows_is_the_same_on_any_number_of_threads() {
    same_on_any_number_of_threads([256, 300], |x| (x.matmul(&x.transpose()) * 0.01).tanh() + x.sum(1).unsqueeze(1));
}

#[test]
fn products_of_a_batch_in_blocks_of_rows_are_the_same_on_any_number_of_threads() {
    same_on_any_number_of_threads([256, 300], |x| {
        let x = x.reshape([2, 128, 300]);
        (x.matmul(&x.permute([0, 2, 1])) * 0.01).tanh() - x.mean(-1).unsqueeze(1)
    });
}

#[test]
fn a_running_sum_is_the_same_on_any_number_of_threads() {
    same_on_any_number_of_threads([203, 1501], |x| x.cumsum(1));
}
