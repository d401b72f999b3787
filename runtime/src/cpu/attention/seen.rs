//! Keys that no query of a block sees, left out where what they would be multiplied with is finite, which is looked up in every run: then a
//! row that sees nothing is NaN all the same, since at least one key is never left out.

use kiln_ir::DType;
use kiln_ir::kernel::{AttentionKernel, KeyLimit};

/// Keys are left out by so many at a time, at least.
const STEP: usize = 64;
/// Into at most so many steps keys are cut.
const STEPS: usize = 8;

/// The limit of a kernel that has keys enough to leave some out.
pub(super) fn limit(kernel: &AttentionKernel) -> Option<KeyLimit> {
    if kernel.keys < 2 * STEP { None } else { KeyLimit::of(kernel) }
}

/// How many keys the queries from `first` to before `end` see, at most, in whole steps.
pub(super) fn seen(limit: &KeyLimit, first: usize, end: usize) -> usize {
    let most = limit.masked_from(first).max(limit.masked_from(end - 1));
    let step = limit.keys.div_ceil(STEPS).next_multiple_of(STEP);
    most.max(1).next_multiple_of(step).min(limit.keys)
}

/// The largest magnitude of some elements of `dtype`, `f32` or `f64`; `None` where one is no finite number.
///
/// # Safety
///
/// There are that many bytes of them, which nobody writes meanwhile.
pub(super) unsafe fn largest(data: *const u8, bytes: usize, dtype: DType) -> Option<f64> {
    let magnitude = match dtype {
        DType::F32 => {
            // SAFETY: the caller's.
            let elements = unsafe { std::slice::from_raw_parts(data.cast::<u32>(), bytes / 4) };
            // Without their sign, floats are ordered as their bits are, NaN above infinity.
            f64::from(f32::from_bits(elements.iter().fold(0, |most, bits| most.max(bits & 0x7fff_ffff))))
        }
        DType::F64 => {
            // SAFETY: the caller's.
            let elements = unsafe { std::slice::from_raw_parts(data.cast::<u64>(), bytes / 8) };
            f64::from_bits(elements.iter().fold(0, |most, bits| most.max(bits & 0x7fff_ffff_ffff_ffff)))
        }
        DType::F16 | DType::BF16 | DType::I8 | DType::U8 | DType::I32 | DType::U32 | DType::I64 | DType::Bool => {
            return None;
        }
    };
    magnitude.is_finite().then_some(magnitude)
}
