//! Map, reduce and row kernels: edges that random kernels seldom meet.

use kiln_ir::kernel::{Access, Block, Kernel, LoopKernel, Operation, Stage};
use kiln_ir::{DType, Literal, ReduceKind, ScalarOp};

use super::build::{Numbers, Writer, affine, filled, floats, input, loops, output};
use super::interpret::Elements;
use super::{check, run};
use crate::cpu::reuse::Reuse;
use crate::cpu::{Prepared, RawBuffer};

/// A reduction of a `[rows, columns]` matrix over its columns, or over its rows.
pub(super) fn reduction(kind: ReduceKind, dtype: DType, rows: usize, columns: usize, over_rows: bool) -> Kernel {
    let mut writer = Writer::default();
    let (outer, inner, strides) =
        if over_rows { (columns, rows, [1, columns as i64]) } else { (rows, columns, [columns as i64, 1]) };
    let x = writer.load(dtype, 0, affine(0, &strides));
    let result = if kind.is_arg() { DType::I32 } else { dtype };
    let (stage, results) = writer.folds(&[(kind, x, dtype.accumulator(), result)]);
    let mut last = Writer::from(100);
    last.store(1, affine(0, &[1]), results[0]);
    let buffers = [input(dtype, rows * columns), output(result, outer)];
    loops(&buffers, &[outer], &[inner], vec![stage, last.point()])
}

fn reduce(kind: ReduceKind, values: Elements, rows: usize, columns: usize, over_rows: bool) -> Elements {
    let dtype = values[0].dtype();
    let kernel = reduction(kind, dtype, rows, columns, over_rows);
    let mut buffers = vec![values, vec![Literal::zero(kernel.buffers()[1].dtype); kernel.buffers()[1].len]];
    run(&kernel, &mut buffers);
    buffers.pop().unwrap()
}

#[test]
fn every_reduction_of_every_dtype_agrees_in_rows_and_columns() {
    for dtype in DType::ALL {
        for kind in ReduceKind::ALL {
            if dtype == DType::Bool && !matches!(kind, ReduceKind::Max | ReduceKind::Min) {
                continue;
            }
            for (rows, columns) in [(1, 1), (3, 5), (40, 33), (2, 700), (700, 2), (300, 300)] {
                for over_rows in [false, true] {
                    let kernel = reduction(kind, dtype, rows, columns, over_rows);
                    check(&kernel, &filled(&kernel, &mut Numbers(7)));
                }
            }
        }
    }
}

#[test]
fn ones_sum_exactly_in_rows_columns_and_all() {
    const ALL: usize = 1 << 25;
    let mut ones = vec![1f32; ALL];
    for (rows, columns, over_rows, each) in
        [(1, ALL, false, ALL), (ALL, 1, true, ALL), (ALL / 2, 2, true, ALL / 2), (2, ALL / 2, false, ALL / 2)]
    {
        let kernel = reduction(ReduceKind::Sum, DType::F32, rows, columns, over_rows);
        let mut sums = vec![0f32; kernel.buffers()[1].len];
        let raw = |values: &mut [f32]| RawBuffer { data: values.as_mut_ptr().cast(), bytes: size_of_val(values) };
        Prepared::new(&kernel).run(&[raw(&mut ones), raw(&mut sums)]);
        assert_eq!(sums, vec![each as f32; sums.len()]);
    }
}

#[test]
fn nan_and_the_larger_zero_win_wherever_they_stand() {
    for length in [2, 31, 32, 33, 1000] {
        for place in [0, length / 2, length - 1] {
            for over_rows in [false, true] {
                let shape = if over_rows { (length, 1) } else { (1, length) };
                let reduce = |kind, values: &[f32]| reduce(kind, floats(values), shape.0, shape.1, over_rows)[0];
                let mut values = vec![-0.0; length];
                values[place] = 0.0;
                assert_eq!(reduce(ReduceKind::Max, &values).bits(), 0);
                assert_eq!(reduce(ReduceKind::Min, &values).to_f64().to_bits(), (-0.0f64).to_bits());
                values[place] = f32::NAN;
                values[length / 2] = f32::INFINITY;
                if values[place].is_nan() {
                    assert!(reduce(ReduceKind::Max, &values).to_f64().is_nan());
                    assert!(reduce(ReduceKind::Min, &values).to_f64().is_nan());
                    assert_eq!(reduce(ReduceKind::ArgMax, &values).to_i128(), place as i128);
                    assert_eq!(reduce(ReduceKind::ArgMin, &values).to_i128(), place as i128);
                }
            }
        }
    }
}

#[test]
fn an_empty_inner_space_gives_identities_and_an_empty_outer_one_nothing() {
    for over_rows in [false, true] {
        let (rows, columns) = if over_rows { (0, 3) } else { (3, 0) };
        for (kind, identity) in [(ReduceKind::Sum, 0.0), (ReduceKind::Prod, 1.0)] {
            for dtype in [DType::F32, DType::F16, DType::I32, DType::F64] {
                let kernel = reduction(kind, dtype, rows, columns, over_rows);
                let mut buffers = vec![Vec::new(), vec![Literal::from_f64(dtype, 9.0); 3]];
                run(&kernel, &mut buffers);
                assert_eq!(buffers[1], vec![Literal::from_f64(dtype, identity); 3]);
            }
        }
        let kernel = reduction(ReduceKind::Sum, DType::F32, columns, rows, over_rows);
        run(&kernel, &mut [Vec::new(), Vec::new()]);
    }
}

#[test]
fn all_casts_agree() {
    let specials = [f64::NAN, f64::INFINITY, -0.0, 0.5, -1.5, 255.5, 65519.9, 65520.0, 1e-7, -3e9, 1e19, 2.5e-45];
    for from in DType::ALL {
        let mut elements: Elements = specials.iter().map(|&value| Literal::from_f64(from, value)).collect();
        elements.extend(Numbers(3).elements(from, 60));
        let len = elements.len();
        for to in DType::ALL {
            let mut writer = Writer::default();
            let x = writer.load(from, 0, affine(0, &[1]));
            let y = writer.push(to, Operation::Cast(x));
            writer.store(1, affine(0, &[1]), y);
            let kernel = loops(&[input(from, len), output(to, len)], &[len], &[], vec![writer.point()]);
            check(&kernel, &[elements.clone(), vec![Literal::zero(to); len]]);
        }
    }
}

#[test]
fn every_op_of_every_dtype_agrees_with_its_table_row() {
    let specials = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0, 0.0, 1.0, -1.0, 0.75, -2.5, 3.0, 20.0, -0.1];
    for &op in ScalarOp::ALL {
        for dtype in DType::ALL {
            let Some(result) = op.result_dtype(dtype) else { continue };
            let mut numbers = Numbers(op as u64);
            let mut operand = || -> Elements {
                let special = (0..40).map(|_| Literal::from_f64(dtype, numbers.pick(&specials))).collect::<Vec<_>>();
                [special, numbers.elements(dtype, 60)].concat()
            };
            let operands: Vec<Elements> = (0..op.arity()).map(|_| operand()).collect();
            let len = operands[0].len();
            let mut writer = Writer::default();
            let loaded: Vec<_> =
                (0..op.arity()).map(|index| writer.load(dtype, index as u32, affine(0, &[1]))).collect();
            let y = writer.scalar(result, op, &loaded);
            writer.store(op.arity() as u32, affine(0, &[1]), y);
            let mut buffers = vec![input(dtype, len); op.arity()];
            buffers.push(output(result, len));
            let kernel = loops(&buffers, &[len], &[], vec![writer.point()]);
            check(&kernel, &[operands, vec![vec![Literal::zero(result); len]]].concat());
        }
    }
}

fn softmax(rows: usize, columns: usize) -> LoopKernel {
    let at = affine(0, &[columns as i64, 1]);
    let mut writer = Writer::default();
    let x = writer.load(DType::F32, 0, at.clone());
    let (largest, most) = writer.folds(&[(ReduceKind::Max, x, DType::F32, DType::F32)]);
    let mut writer = Writer::from(10);
    let x = writer.load(DType::F32, 0, at.clone());
    let shifted = writer.scalar(DType::F32, ScalarOp::Sub, &[x, most[0]]);
    let power = writer.scalar(DType::F32, ScalarOp::Exp, &[shifted]);
    let (sum, total) = writer.folds(&[(ReduceKind::Sum, power, DType::F32, DType::F32)]);
    let mut writer = Writer::from(20);
    let x = writer.load(DType::F32, 0, at.clone());
    let shifted = writer.scalar(DType::F32, ScalarOp::Sub, &[x, most[0]]);
    let power = writer.scalar(DType::F32, ScalarOp::Exp, &[shifted]);
    let share = writer.scalar(DType::F32, ScalarOp::Div, &[power, total[0]]);
    writer.store(1, at, share);
    let len = rows * columns;
    LoopKernel {
        buffers: vec![input(DType::F32, len), output(DType::F32, len)],
        outer: [rows].into_iter().collect(),
        inner: [columns].into_iter().collect(),
        stages: vec![largest, sum, writer.each()],
    }
}

#[test]
fn softmax_rows_of_any_length_agree() {
    for (rows, columns) in [(1, 1), (5, 10), (100, 10), (3, 255), (3, 256), (2, 5000), (40, 5000), (300, 64)] {
        let kernel = Kernel::Loop(softmax(rows, columns));
        check(&kernel, &filled(&kernel, &mut Numbers(5)));
    }
}

fn block(stage: &Stage) -> &Block {
    let (Stage::Point(block) | Stage::Each(block) | Stage::Fold { block, .. }) = stage;
    block
}

#[test]
fn a_softmax_takes_each_exponential_once() {
    let reuse = Reuse::of(&softmax(40, 5000));
    let instructions: Vec<usize> = reuse.stages.iter().map(|stage| block(stage).instructions.len()).collect();
    assert_eq!((instructions, reuse.kept.len()), (vec![1, 3, 1], 1));
}

#[test]
fn what_is_cheap_is_computed_again() {
    let mut kernel = softmax(40, 5000);
    for stage in &mut kernel.stages {
        let (Stage::Point(block) | Stage::Each(block) | Stage::Fold { block, .. }) = stage;
        for instruction in &mut block.instructions {
            if let Operation::Scalar(op @ ScalarOp::Exp, _) = &mut instruction.operation {
                *op = ScalarOp::Neg;
            }
        }
    }
    assert_eq!(Reuse::of(&kernel).kept.len(), 0);
}

#[test]
fn what_is_read_from_a_buffer_that_is_written_is_not_kept() {
    let mut kernel = softmax(40, 5000);
    kernel.buffers[0].access = Access::ReadWrite;
    assert_eq!(Reuse::of(&kernel).kept.len(), 0);
}

#[test]
fn transposes_of_any_extent_agree() {
    for dtype in [DType::F32, DType::F16, DType::U8, DType::F64] {
        for (rows, columns) in [(1, 1), (7, 9), (8, 8), (33, 65), (300, 40), (257, 300)] {
            let mut writer = Writer::default();
            let x = writer.load(dtype, 0, affine(0, &[1, rows as i64]));
            writer.store(1, affine(0, &[columns as i64, 1]), x);
            let buffers = [input(dtype, rows * columns), output(dtype, rows * columns)];
            let kernel = loops(&buffers, &[rows, columns], &[], vec![writer.point()]);
            check(&kernel, &filled(&kernel, &mut Numbers(9)));
        }
    }
}

#[test]
fn results_too_large_for_the_caches_are_whole() {
    // Rows of an odd number of elements, stored upside down: every row starts at another place of a vector.
    const ROWS: usize = 2050;
    const COLUMNS: usize = 4099;
    let (rows, columns) = (ROWS as i64, COLUMNS as i64);
    let mut writer = Writer::default();
    let x = writer.load(DType::F32, 0, affine(0, &[columns, 1]));
    let y = writer.scalar(DType::F32, ScalarOp::Neg, &[x]);
    writer.store(1, affine((rows - 1) * columns, &[-columns, 1]), y);
    let buffers = [input(DType::F32, ROWS * COLUMNS), output(DType::F32, ROWS * COLUMNS)];
    let kernel = loops(&buffers, &[ROWS, COLUMNS], &[], vec![writer.point()]);
    let mut x: Vec<f32> = (0..ROWS * COLUMNS).map(|index| index as f32).collect();
    let mut y = vec![0f32; ROWS * COLUMNS];
    let raw = |values: &mut [f32]| RawBuffer { data: values.as_mut_ptr().cast(), bytes: size_of_val(values) };
    Prepared::new(&kernel).run(&[raw(&mut x), raw(&mut y)]);
    for (below, above) in x.chunks(COLUMNS).zip(y.chunks(COLUMNS).rev()) {
        assert!(below.iter().zip(above).all(|(x, y)| *y == -x));
    }
}

#[test]
fn random_draws_are_the_philox_words() {
    let mut writer = Writer::default();
    let low = writer.load(DType::U32, 0, affine(0, &[]));
    let high = writer.load(DType::U32, 0, affine(1, &[]));
    let index = writer.push(DType::I64, Operation::Index(affine(3, &[1])));
    let word = writer.push(DType::U32, Operation::Random { key: [low, high], stream: 4, index });
    writer.store(1, affine(0, &[1]), word);
    let kernel = loops(&[input(DType::U32, 2), output(DType::U32, 999)], &[999], &[], vec![writer.point()]);
    check(&kernel, &filled(&kernel, &mut Numbers(1)));
}
