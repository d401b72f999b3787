//! Matrix products, scans and scatters.

use kiln_ir::kernel::{
    Block, Buffer, BufferIndex, Kernel, MatMulKernel, MatrixOperand, Operation, Reg, ScanKernel, ScatterKernel,
};
use kiln_ir::{DType, Direction, Literal, Precision, ScalarOp, ScanKind, ScatterKind};

use super::build::{Numbers, Writer, affine, both, filled, input, output};
use super::check;
use crate::cpu::{Prepared, RawBuffer};

const NUMBERS: [DType; 9] =
    [DType::F32, DType::F64, DType::F16, DType::BF16, DType::I8, DType::U8, DType::I32, DType::U32, DType::I64];

/// What stands round a product.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Around {
    Nothing,
    Bias,
    Prologue,
}

pub(super) fn matmul(
    dtype: DType,
    batch: usize,
    [m, n, k]: [usize; 3],
    transposed: bool,
    around: Around,
) -> MatMulKernel {
    let (im, in_, ik) = (m as i64, n as i64, k as i64);
    let left = if transposed { affine(0, &[im * ik, 1, im]) } else { affine(0, &[im * ik, ik, 1]) };
    // The right operand is shared by the batch.
    let right = if transposed { affine(0, &[0, 1, ik]) } else { affine(0, &[0, in_, 1]) };
    let mut lhs = Writer::default();
    let mut left_value = lhs.load(dtype, 0, left);
    if around == Around::Prologue {
        left_value = lhs.scalar(dtype, ScalarOp::Neg, &[left_value]);
    }
    let mut rhs = Writer::from(10);
    let right_value = rhs.load(dtype, 1, right);
    let product = Reg(20);
    let mut epilogue = Writer::from(21);
    let mut value = product;
    let mut buffers: Vec<Buffer> = vec![input(dtype, batch * m * k), input(dtype, k * n)];
    if around == Around::Bias {
        buffers.push(input(dtype, n));
        let bias = epilogue.load(dtype, 2, affine(0, &[0, 0, 1]));
        value = epilogue.scalar(dtype, ScalarOp::Add, &[product, bias]);
    }
    epilogue.store(buffers.len() as u32, affine(0, &[im * in_, in_, 1]), value);
    buffers.push(output(dtype, batch * m * n));
    MatMulKernel {
        buffers,
        batch: [batch].as_slice().into(),
        m,
        n,
        k,
        dtype,
        accumulate: dtype.accumulator(),
        precision: Precision::Full,
        lhs: MatrixOperand { block: lhs.block, value: left_value },
        rhs: MatrixOperand { block: rhs.block, value: right_value },
        product,
        epilogue: epilogue.block,
    }
}

#[test]
fn matrix_products_of_every_dtype_and_layout_agree() {
    for dtype in NUMBERS {
        for extents in [[1, 1, 1], [3, 5, 7], [16, 16, 16], [1, 20, 33], [20, 1, 9], [33, 40, 17]] {
            for batch in [1, 3] {
                for transposed in [false, true] {
                    for around in [Around::Nothing, Around::Bias, Around::Prologue] {
                        let kernel = Kernel::MatMul(matmul(dtype, batch, extents, transposed, around));
                        check(&kernel, &filled(&kernel, &mut Numbers(2)));
                    }
                }
            }
        }
    }
}

#[test]
fn a_large_product_agrees() {
    let kernel = Kernel::MatMul(matmul(DType::F32, 1, [130, 120, 110], false, Around::Bias));
    check(&kernel, &filled(&kernel, &mut Numbers(4)));
}

#[test]
fn a_product_over_nothing_is_zero_even_where_memory_held_nan() {
    for around in [Around::Nothing, Around::Bias, Around::Prologue] {
        for extents in [[3, 4, 0], [3, 0, 4], [0, 3, 4]] {
            let kernel = Kernel::MatMul(matmul(DType::F32, 2, extents, false, around));
            check(&kernel, &filled(&kernel, &mut Numbers(2)));
        }
    }
    for extents in [[5, 6, 7], [16, 16, 0], [40, 40, 40], [1, 30, 8], [30, 1, 8], [1, 1, 1]] {
        for transposed in [false, true] {
            let kernel = Kernel::MatMul(matmul(DType::F32, 1, extents, transposed, Around::Nothing));
            let mut buffers = filled(&kernel, &mut Numbers(2));
            buffers[2].fill(Literal::from_f64(DType::F32, f64::NAN));
            check(&kernel, &buffers);
        }
    }
}

#[test]
fn nan_and_infinity_go_through_a_product() {
    let kernel = Kernel::MatMul(matmul(DType::F32, 1, [20, 20, 20], false, Around::Nothing));
    let mut buffers = filled(&kernel, &mut Numbers(2));
    buffers[0][45] = Literal::from_f64(DType::F32, f64::NAN);
    buffers[1][3] = Literal::from_f64(DType::F32, f64::INFINITY);
    buffers[0][100] = Literal::from_f64(DType::F32, 0.0);
    check(&kernel, &buffers);
}

fn scan(kind: ScanKind, direction: Direction, dtype: DType, outer: &[usize], extent: usize, strides: &[i64]) -> Kernel {
    let mut writer = Writer::default();
    let x = writer.load(dtype, 0, affine(0, strides));
    let value = writer.scalar(dtype, ScalarOp::Neg, &[x]);
    let len = outer.iter().product::<usize>() * extent;
    Kernel::Scan(ScanKernel {
        buffers: vec![input(dtype, len), output(dtype, len)],
        outer: outer.into(),
        extent,
        kind,
        direction,
        accumulate: dtype.accumulator(),
        block: writer.block,
        value,
        dtype,
        output: BufferIndex(1),
        address: affine(0, strides),
    })
}

#[test]
fn scans_of_every_kind_run_from_either_end_along_any_axis() {
    for dtype in NUMBERS {
        for kind in ScanKind::ALL {
            for direction in [Direction::Forward, Direction::Reverse] {
                for (outer, extent) in [(3, 5), (1, 1), (40, 3), (2, 3000), (300, 33)] {
                    let (o, e) = (outer as i64, extent as i64);
                    for strides in [[e, 1], [1, o]] {
                        let kernel = scan(kind, direction, dtype, &[outer], extent, &strides);
                        let mut buffers = filled(&kernel, &mut Numbers(8));
                        if dtype.is_float() && kind == ScanKind::Max {
                            let middle = buffers[0].len() / 2;
                            buffers[0][middle] = Literal::from_f64(dtype, f64::NAN);
                        }
                        if dtype == DType::F16 && kind == ScanKind::Prod {
                            buffers[0].fill(Literal::from_f64(dtype, -1.0));
                        }
                        check(&kernel, &buffers);
                    }
                }
            }
        }
    }
}

#[test]
fn a_running_sum_of_ones_counts_past_the_digits_of_f32() {
    let extent = (1 << 24) + 3;
    let kernel = scan(ScanKind::Sum, Direction::Forward, DType::F32, &[], extent, &[1]);
    let (mut ones, mut sums) = (vec![-1f32; extent], vec![0f32; extent]);
    let raw = |values: &mut [f32]| RawBuffer { data: values.as_mut_ptr().cast(), bytes: size_of_val(values) };
    Prepared::new(&kernel).run(&[raw(&mut ones), raw(&mut sums)]);
    assert_eq!(sums[extent - 1], extent as f32);
}

/// Updates `[before, indices, after]` into a target `[before, extent, after]`.
fn scatter(kind: ScatterKind, dtype: DType, [before, indices, after]: [usize; 3], extent: usize) -> Kernel {
    let (i, a, e) = (indices as i64, after as i64, extent as i64);
    let mut writer = Writer::default();
    let small = writer.load(DType::I32, 0, affine(0, &[0, 1, 0]));
    let modulus = writer.number(DType::I32, (extent + 2) as f64);
    let wrapped = writer.scalar(DType::I32, ScalarOp::Rem, &[small, modulus]);
    let index = writer.push(DType::I64, Operation::Cast(wrapped));
    let update = writer.load(dtype, 1, affine(0, &[i * a, a, 1]));
    let target = both(dtype, before * extent * after);
    Kernel::Scatter(ScatterKernel {
        buffers: vec![input(DType::I32, indices), input(dtype, before * indices * after), target],
        space: [before, indices, after].as_slice().into(),
        ordered: 1..2,
        kind,
        block: Block { stores: Vec::new(), ..writer.block },
        index,
        update,
        extent,
        output: BufferIndex(2),
        address: affine(0, &[e * a, 0, 1]),
        stride: a,
    })
}

#[test]
fn scatters_of_every_kind_meet_duplicates_in_order() {
    for dtype in NUMBERS {
        for kind in ScatterKind::ALL {
            for (shape, extent) in [
                ([1, 9, 1], 4),
                ([2, 30, 3], 5),
                ([1, 50, 300], 7),
                ([3, 2000, 1], 11),
                ([40, 3, 1], 2),
                ([2, 0, 3], 4),
            ] {
                let kernel = scatter(kind, dtype, shape, extent);
                check(&kernel, &filled(&kernel, &mut Numbers(6)));
            }
        }
    }
}

#[test]
fn the_largest_update_stays_and_nan_wins() {
    let kernel = scatter(ScatterKind::Max, DType::F32, [1, 40, 2], 3);
    let mut buffers = filled(&kernel, &mut Numbers(6));
    buffers[1][5] = Literal::from_f64(DType::F32, f64::NAN);
    buffers[2][2] = Literal::from_f64(DType::F32, f64::NAN);
    check(&kernel, &buffers);
}
