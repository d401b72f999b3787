//! What a device can do at best, measured: its own copy, and the library's product of `bf16`.

use kiln_ir::cuda::{Matrix, Product, ProductEpilogue};
use kiln_ir::gpu::GpuMemory;
use kiln_ir::{DType, Precision};

use super::{Cuda, PreparedProduct, ProductPointers};
use crate::Ceilings;

/// Extent of the product's matrices.
const SIDE: usize = 8192;
/// Bytes of one of them.
const MATRIX: usize = SIDE * SIDE * 2;
/// Bytes of each side of the copy: far more than a cache has.
const COPIED: usize = 2 * MATRIX;
/// The best of so many tries counts.
const TRIES: usize = 5;

impl Cuda {
    /// Those of this device, measured at the first call; `None` where there is no memory for it or the device is at fault.
    pub(crate) fn ceilings(&self) -> Option<Ceilings> {
        *self.ceilings.get_or_init(|| self.measured())
    }

    fn measured(&self) -> Option<Ceilings> {
        let (from, to) = (self.make_block(COPIED)?, self.make_block(COPIED)?);
        let (from, to) = (from.pointer(), to.pointer());
        self.fill(from);
        let copy = self.best(|| self.copy(from, to, COPIED))?;
        let dense = |memory| Matrix {
            memory: GpuMemory::Scratch(memory),
            dtype: DType::BF16,
            offset: 0,
            row_stride: SIDE,
            column_stride: 1,
            batch_stride: 0,
        };
        let product = Product {
            batch: 1,
            m: SIDE,
            n: SIDE,
            k: SIDE,
            accumulate: DType::F32,
            precision: Precision::Full,
            lhs: dense(0),
            rhs: dense(1),
            result: dense(2),
            epilogue: ProductEpilogue::None,
        };
        let prepared = PreparedProduct::new(&product, self).ok()?;
        let pointers =
            ProductPointers { lhs: from, rhs: from + MATRIX as u64, result: to, bias: None, workspace: None };
        let product = self.best(|| {
            if let Err(error) = prepared.run(self, self.stream.cu_stream(), pointers) {
                self.health.fail(format!("launching a product: {error}"));
            }
        })?;
        self.wait();
        self.health.check().ok()?;
        Some(Ceilings {
            bytes_per_second: 2.0 * COPIED as f64 / copy,
            flops_per_second: 2.0 * (SIDE * SIDE * SIDE) as f64 / product,
        })
    }

    /// Numbers between 1/2 and 1 of either sign, as products meet them: of equal numbers a device makes more in a second.
    fn fill(&self, at: u64) {
        let mut state = 1u32;
        let numbers: Vec<u16> = (0..COPIED / 32)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                0x3f00 | (state >> 16) as u16 & 0x807f
            })
            .collect();
        let part: &[u8] = bytemuck::cast_slice(&numbers);
        for offset in (0..COPIED).step_by(part.len()) {
            self.upload(at + offset as u64, part);
        }
    }

    /// The shortest time of a few tries, in seconds.
    fn best(&self, work: impl Fn()) -> Option<f64> {
        work();
        let mut best = f32::INFINITY;
        for _ in 0..TRIES {
            let begun = self.mark().ok()?;
            work();
            best = best.min(begun.elapsed_ms(&self.mark().ok()?).ok()?);
        }
        (best > 0.0).then(|| f64::from(best) / 1e3)
    }
}
