//! The matrix product, by its definition.

use kiln_ir::{DType, Literal};

use super::tensor::Tensor;

/// `[..batch, m, k]` times `[..batch, k, n]`. Floats accumulate in `f64` and are rounded once, integers wrap, at the width
/// of the result.
pub(super) fn matmul(lhs: &Tensor, rhs: &Tensor, dtype: DType) -> Tensor {
    let rank = lhs.shape().len();
    let (m, k, n) = (lhs.shape()[rank - 2], lhs.shape()[rank - 1], rhs.shape()[rank - 1]);
    let mut shape = lhs.shape().to_vec();
    shape[rank - 1] = n;
    let batch: usize = shape[..rank - 2].iter().product();
    let size = Extents { batch, m, k, n };
    if dtype.is_float() {
        let sums = products(&size, &lhs.floats(), &rhs.floats(), |sum, x, y| sum + x * y);
        Tensor::from_elements(dtype, &shape, sums.into_iter().map(|sum| Literal::from_f64(dtype, sum)))
    } else {
        let sums = products(&size, &lhs.ints(), &rhs.ints(), |sum: i64, x, y| sum.wrapping_add(x.wrapping_mul(y)));
        Tensor::from_elements(dtype, &shape, sums.into_iter().map(|sum| Literal::from_i128(dtype, i128::from(sum))))
    }
}

struct Extents {
    batch: usize,
    m: usize,
    k: usize,
    n: usize,
}

/// Each sum runs over `k` in index order; the loops are nested so that the innermost one runs along rows.
fn products<T: Copy + Default>(size: &Extents, lhs: &[T], rhs: &[T], add_product: impl Fn(T, T, T) -> T) -> Vec<T> {
    let &Extents { batch, m, k, n } = size;
    let mut sums = vec![T::default(); batch * m * n];
    for matrix in 0..batch {
        for i in 0..m {
            let row = &mut sums[(matrix * m + i) * n..][..n];
            for inner in 0..k {
                let x = lhs[(matrix * m + i) * k + inner];
                for (sum, &y) in row.iter_mut().zip(&rhs[(matrix * k + inner) * n..][..n]) {
                    *sum = add_product(*sum, x, y);
                }
            }
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::super::tests::{apply, assert_floats, assert_ints, floats, ints};
    use kiln_ir::{DType, HostData, Op, Precision};

    fn matmul(lhs: HostData, rhs: HostData) -> HostData {
        apply(Op::MatMul { precision: Precision::Full }, &[lhs, rhs])
    }

    #[test]
    fn reversed_and_repeated_rows_multiply_as_they_read() {
        let flip =
            Op::Slice { starts: [1, 0].as_slice().into(), sizes: [2, 2].into(), steps: [-1, 1].as_slice().into() };
        let a = apply(flip, &[floats(DType::F32, &[2, 2], &[1.0, 2.0, 3.0, 4.0])]);
        assert_floats(&matmul(a, floats(DType::F32, &[2, 1], &[1.0, 10.0])), &[43.0, 21.0]);
        let rows = apply(Op::Broadcast([2, 2].into()), &[floats(DType::F32, &[1, 2], &[1.0, 10.0])]);
        assert_floats(&matmul(rows, floats(DType::F32, &[2, 1], &[1.0, 1.0])), &[11.0, 11.0]);
    }

    #[test]
    fn batches_are_multiplied_one_by_one() {
        let lhs = ints(DType::I64, &[2, 1, 2], &[1, 2, 3, 4]);
        let rhs = ints(DType::I64, &[2, 2, 1], &[5, 6, 7, 1 << 40]);
        assert_ints(&matmul(lhs, rhs), &[17, 21 + (4 << 40)]);
    }

    #[test]
    fn an_empty_inner_extent_gives_zeros() {
        assert_floats(&matmul(floats(DType::F16, &[2, 0], &[]), floats(DType::F16, &[0, 1], &[])), &[0.0, 0.0]);
        assert_floats(&matmul(floats(DType::F16, &[0, 2], &[]), floats(DType::F16, &[2, 1], &[1.0; 2])), &[]);
    }

    #[test]
    fn products_are_accumulated_wide_and_integers_wrap() {
        let ones = || floats(DType::F16, &[1, 4096], &[1.0; 4096]);
        let column = apply(Op::Permute([1, 0].as_slice().into()), &[ones()]);
        assert_floats(&matmul(ones(), column), &[4096.0]);
        let lhs = ints(DType::U8, &[1, 2], &[200, 100]);
        assert_ints(&matmul(lhs, ints(DType::U8, &[2, 1], &[2, 1])), &[(500i128) % 256]);
    }
}
