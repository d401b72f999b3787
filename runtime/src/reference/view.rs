//! Ops that only say where each element of the result is found, and iota, which only counts places.

use kiln_ir::{Literal, Shape, TensorType};
use ndarray::{ArrayD, Axis, IxDyn, Slice};
use smallvec::SmallVec;

use super::tensor::Tensor;

/// Each element's index along `axis`, as a number of the type's dtype: integers wrap, floats round.
pub(super) fn iota(ty: &TensorType, axis: usize) -> Tensor {
    Tensor::from_fn(ty.dtype, &ty.shape, |index| Literal::from_i128(ty.dtype, index[axis] as i128))
}

/// The same elements in row-major order under another shape.
pub(super) fn reshape(x: &Tensor, shape: &Shape) -> Tensor {
    Tensor::from_elements(x.dtype, shape, x.elements())
}

/// Axis `i` of the result is axis `permutation[i]` of the operand.
pub(super) fn permute(x: &Tensor, permutation: &[usize]) -> Tensor {
    Tensor::new(x.dtype, x.bits.clone().permuted_axes(IxDyn(permutation)))
}

/// Axes aligned at the end; an extent of 1 is repeated.
pub(super) fn broadcast(x: &Tensor, shape: &Shape) -> Tensor {
    let spread = x.bits.broadcast(&shape[..]).expect("the shapes were checked");
    Tensor::new(x.dtype, spread.to_owned())
}

/// Element `i` of an axis is element `start + i * step` of the operand's.
pub(super) fn slice(x: &Tensor, starts: &[usize], sizes: &Shape, steps: &[i64]) -> Tensor {
    Tensor::from_fn(x.dtype, sizes, |index| {
        let place = |axis: usize| (starts[axis] as i64 + index[axis] as i64 * steps[axis]) as usize;
        x.at(&(0..index.len()).map(place).collect::<SmallVec<[usize; 8]>>())
    })
}

/// The operand in a frame filled with `value`.
pub(super) fn pad(x: &Tensor, low: &[usize], high: &[usize], value: Literal) -> Tensor {
    let shape: Vec<usize> = (0..low.len()).map(|axis| low[axis] + x.shape()[axis] + high[axis]).collect();
    let mut bits = ArrayD::from_elem(shape, value.bits());
    bits.slice_each_axis_mut(|part| {
        let start = low[part.axis.index()];
        Slice::from(start..start + x.shape()[part.axis.index()])
    })
    .assign(&x.bits);
    Tensor::new(x.dtype, bits)
}

/// The operands one after another along `axis`.
pub(super) fn concat(operands: &[Tensor], axis: usize) -> Tensor {
    let mut shape = operands[0].shape().to_vec();
    shape[axis] = operands.iter().map(|operand| operand.shape()[axis]).sum();
    let mut bits = ArrayD::zeros(shape);
    let mut start = 0;
    for operand in operands {
        let end = start + operand.shape()[axis];
        bits.slice_axis_mut(Axis(axis), Slice::from(start..end)).assign(&operand.bits);
        start = end;
    }
    Tensor::new(operands[0].dtype, bits)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{apply, assert_floats, assert_ints, floats, ints, vector};
    use kiln_ir::{Backend, DType, HostData, Literal, Op, TensorType};

    fn counting(shape: &[usize]) -> HostData {
        let count: usize = shape.iter().product();
        ints(DType::I32, shape, &(0..count as i128).collect::<Vec<_>>())
    }

    fn slice(starts: &[usize], sizes: &[usize], steps: &[i64]) -> Op {
        Op::Slice { starts: starts.into(), sizes: sizes.into(), steps: steps.into() }
    }

    #[test]
    fn iota_counts_along_its_axis_and_wraps() {
        let iota = |dtype, shape: &[usize], axis| {
            apply(Op::Iota { ty: TensorType::new(dtype, shape, Backend::NdArray), axis }, &[])
        };
        assert_ints(&iota(DType::I64, &[2, 3], 1), &[0, 1, 2, 0, 1, 2]);
        assert_ints(&iota(DType::I64, &[2, 3], 0), &[0, 0, 0, 1, 1, 1]);
        assert_eq!(iota(DType::U8, &[258], 0).element(257), Literal::from_i128(DType::U8, 1));
        assert_eq!(iota(DType::BF16, &[258], 0).element(257), Literal::from_i128(DType::BF16, 256));
    }

    #[test]
    fn a_full_slice_of_a_reshaped_and_permuted_view_keeps_its_order() {
        let x = apply(Op::Reshape([1, 2, 2, 3].into()), &[counting(&[12])]);
        let x = apply(Op::Permute([0, 3, 1, 2].as_slice().into()), &[x]);
        let x = apply(slice(&[0; 4], &[1, 3, 2, 2], &[1; 4]), &[x]);
        assert_ints(&x, &[0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11]);
    }

    #[test]
    fn a_slice_takes_steps_of_either_sign() {
        let x = counting(&[2, 5]);
        assert_ints(&apply(slice(&[1, 4], &[2, 3], &[-1, -2]), std::slice::from_ref(&x)), &[9, 7, 5, 4, 2, 0]);
        assert_ints(&apply(slice(&[0, 1], &[1, 2], &[1, 3]), std::slice::from_ref(&x)), &[1, 4]);
        assert_ints(&apply(slice(&[0, 0], &[2, 0], &[1, 1]), &[x]), &[]);
    }

    #[test]
    fn nine_axes_are_reversed() {
        let x = counting(&[2, 1, 1, 1, 1, 1, 1, 1, 3]);
        let reversed: Vec<usize> = (0..9).rev().collect();
        assert_ints(&apply(Op::Permute(reversed.into()), &[x]), &[0, 3, 1, 4, 2, 5]);
    }

    #[test]
    fn broadcasting_aligns_axes_at_the_end() {
        let x = ints(DType::I32, &[2, 1], &[1, 2]);
        assert_ints(&apply(Op::Broadcast([2, 2, 3].into()), &[x]), &[1, 1, 1, 2, 2, 2, 1, 1, 1, 2, 2, 2]);
        assert_floats(&apply(Op::Broadcast([3].into()), &[floats(DType::F32, &[], &[-0.0])]), &[-0.0; 3]);
        assert_floats(&apply(Op::Broadcast([0, 1].into()), &[vector(&[1.0])]), &[]);
    }

    #[test]
    fn padding_surrounds_even_nothing() {
        let frame = |low: &[usize], high: &[usize]| {
            let value = Literal::from_i128(DType::I32, 9);
            Op::Pad { low: low.into(), high: high.into(), value }
        };
        let x = ints(DType::I32, &[1, 2], &[1, 2]);
        assert_ints(&apply(frame(&[1, 0], &[0, 2]), &[x]), &[9, 9, 9, 9, 1, 2, 9, 9]);
        assert_ints(&apply(frame(&[1], &[2]), &[ints(DType::I32, &[0], &[])]), &[9, 9, 9]);
    }

    #[test]
    fn concat_joins_along_any_axis_empty_ones_too() {
        let a = ints(DType::I32, &[2, 1], &[1, 2]);
        let b = ints(DType::I32, &[2, 2], &[3, 4, 5, 6]);
        let nothing = ints(DType::I32, &[2, 0], &[]);
        assert_ints(&apply(Op::Concat { axis: 1 }, &[a.clone(), nothing, b]), &[1, 3, 4, 2, 5, 6]);
        assert_ints(&apply(Op::Concat { axis: 0 }, &[a.clone(), a]), &[1, 2, 1, 2]);
    }

    #[test]
    fn a_scalar_and_one_by_one_reshape_into_each_other() {
        let scalar = apply(Op::Reshape([].into()), &[floats(DType::F32, &[1, 1], &[4.0])]);
        assert_floats(&scalar, &[4.0]);
        assert_floats(&apply(Op::Reshape([1, 1].into()), &[scalar]), &[4.0]);
        assert_floats(&apply(Op::Reshape([3, 0].into()), &[floats(DType::F32, &[0, 7], &[])]), &[]);
    }
}
