//! Kernels run in strips and point by point give the same.

mod build;
mod interpret;
mod loops;
mod random;
mod single;

use kiln_ir::kernel::{Access, Kernel};
use kiln_ir::{DType, Literal};

use super::{Prepared, RawBuffer};
use interpret::{Elements, interpret};

/// The bytes of elements, in memory aligned for any of them.
fn to_memory(elements: &Elements, dtype: DType) -> Vec<u64> {
    let mut memory = vec![0u64; (elements.len() * dtype.size()).div_ceil(8)];
    let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut memory);
    for (place, element) in bytes.chunks_exact_mut(dtype.size()).zip(elements) {
        assert_eq!(element.dtype(), dtype);
        place.copy_from_slice(&element.to_le_bytes().0[..dtype.size()]);
    }
    memory
}

fn from_memory(memory: &[u64], dtype: DType, len: usize) -> Elements {
    let bytes: &[u8] = bytemuck::cast_slice(memory);
    let element = |bytes: &[u8]| {
        let mut bits = [0; 8];
        bits[..bytes.len()].copy_from_slice(bytes);
        Literal::from_bits(dtype, u64::from_le_bytes(bits))
    };
    bytes.chunks_exact(dtype.size()).take(len).map(element).collect()
}

/// Runs a kernel in strips.
fn run(kernel: &Kernel, buffers: &mut [Elements]) {
    let prepared = Prepared::new(kernel);
    for _ in 0..2 {
        let mut memory: Vec<Vec<u64>> = kernel
            .buffers()
            .iter()
            .zip(&*buffers)
            .map(|(buffer, elements)| to_memory(elements, buffer.dtype))
            .collect();
        let raw: Vec<RawBuffer> = memory
            .iter_mut()
            .zip(kernel.buffers())
            .map(|(memory, buffer)| RawBuffer {
                data: memory.as_mut_ptr().cast(),
                bytes: buffer.len * buffer.dtype.size(),
            })
            .collect();
        prepared.run(&raw);
        let results: Vec<Elements> = kernel
            .buffers()
            .iter()
            .zip(&memory)
            .map(|(buffer, memory)| from_memory(memory, buffer.dtype, buffer.len))
            .collect();
        // What is updated in place was used up by the first run: the second must find it fresh.
        let fresh = kernel.buffers().iter().any(|buffer| buffer.access == Access::ReadWrite);
        buffers.iter_mut().zip(results).for_each(|(buffer, result)| *buffer = result);
        if fresh {
            break;
        }
    }
}

/// Whether a float result is near enough, for rounding in another order and for transcendental functions.
fn near(result: Literal, expected: Literal) -> bool {
    let (x, y) = (result.to_f64(), expected.to_f64());
    let tolerance = match result.dtype() {
        DType::F64 => 1e-12,
        DType::F16 => 2e-3,
        DType::BF16 => 1.6e-2,
        _ => 2e-6,
    };
    let zeros_agree = x != 0.0 || y != 0.0 || x.is_sign_negative() == y.is_sign_negative();
    (x.is_nan() && y.is_nan())
        || (x == y && zeros_agree)
        || (x != y && (x - y).abs() <= tolerance * x.abs().max(y.abs()).max(1e-6))
}

/// Holds a kernel's results to the interpreter's.
#[track_caller]
fn check(kernel: &Kernel, buffers: &[Elements]) {
    let (mut expected, mut results) = (buffers.to_vec(), buffers.to_vec());
    interpret(kernel, &mut expected);
    run(kernel, &mut results);
    for (index, buffer) in kernel.buffers().iter().enumerate() {
        for place in 0..buffer.len {
            let (result, wanted) = (results[index][place], expected[index][place]);
            let agree = if buffer.dtype.is_float() { near(result, wanted) } else { result == wanted };
            assert!(agree, "buffer {index} element {place}: {result:?}, expected {wanted:?}\n{kernel:?}");
        }
    }
}
