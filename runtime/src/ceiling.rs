//! What a device can do at best, measured: the speed of a copy and of a matrix product. Kernels are held to these.

use std::sync::OnceLock;
use std::time::Duration;

use gemm::Parallelism;
use rayon::prelude::*;
use web_time::Instant;

/// The best that a device does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ceilings {
    /// Bytes that a copy between buffers larger than the caches reads and writes in a second.
    pub bytes_per_second: f64,
    /// Floating-point operations in a second: of a matrix product, of `f32` on a CPU and of `bf16` on CUDA; on wgpu of multiplications and additions
    /// of `f32` between registers.
    pub flops_per_second: f64,
}

/// Floats of each side of the copy: 32 MiB.
const COPIED: usize = 8 << 20;
/// Extent of the product's matrices.
const SIDE: usize = 1024;
/// The best of so many tries counts.
const TRIES: usize = 5;

impl Ceilings {
    /// Those of this machine's CPU on the threads that kernels run on.
    pub(crate) fn of_cpu() -> Ceilings {
        static MEASURED: OnceLock<Ceilings> = OnceLock::new();
        *MEASURED.get_or_init(|| Ceilings { bytes_per_second: copy(), flops_per_second: product() })
    }
}

/// The shortest time of a few tries, in seconds; the first one, which touches fresh pages, is not among them.
pub(crate) fn best(mut work: impl FnMut()) -> f64 {
    work();
    let time = |_| {
        let begun = Instant::now();
        work();
        begun.elapsed()
    };
    (0..TRIES).map(time).min().unwrap_or_default().max(Duration::from_nanos(1)).as_secs_f64()
}

fn copy() -> f64 {
    let (from, mut to) = (vec![1f32; COPIED], vec![0f32; COPIED]);
    let part = COPIED.div_ceil(rayon::current_num_threads());
    let seconds = best(|| {
        to.par_chunks_mut(part).zip(from.par_chunks(part)).for_each(|(to, from)| to.copy_from_slice(from));
        std::hint::black_box(&mut to);
    });
    2.0 * (COPIED * size_of::<f32>()) as f64 / seconds
}

fn product() -> f64 {
    let (lhs, rhs, mut to) = (vec![0.5f32; SIDE * SIDE], vec![0.25f32; SIDE * SIDE], vec![0f32; SIDE * SIDE]);
    let row = SIDE as isize;
    let seconds = best(|| {
        // SAFETY: three dense square matrices of this side; the result is none of the operands.
        unsafe {
            gemm::gemm(
                SIDE,
                SIDE,
                SIDE,
                to.as_mut_ptr(),
                1,
                row,
                false,
                lhs.as_ptr(),
                1,
                row,
                rhs.as_ptr(),
                1,
                row,
                0f32,
                1f32,
                false,
                false,
                false,
                Parallelism::Rayon(0),
            );
        }
        std::hint::black_box(&mut to);
    });
    2.0 * (SIDE * SIDE * SIDE) as f64 / seconds
}

#[test]
fn a_machine_copies_and_multiplies_and_is_measured_once() {
    let first = Ceilings::of_cpu();
    assert!(first.bytes_per_second.is_finite() && first.bytes_per_second > 1e6);
    assert!(first.flops_per_second.is_finite() && first.flops_per_second > 1e6);
    assert_eq!(Ceilings::of_cpu(), first);
}
