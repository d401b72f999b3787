//! Faults that gradients of systems of this kind really have had: each as a kind, not as a single case.

use kiln_ir::grad::{grad, vjp};
use kiln_ir::{
    Axes, Backend, Code, DType, Diagnostic, GraphBuilder, Op, Precision, ReduceKind, ScalarOp, ScatterKind, Shape,
    Value,
};
use smallvec::smallvec;

use super::{LOC, data, derivatives, gradients, run, text_gradients, ty};

type Made = Result<Value, Diagnostic>;

fn sum(b: &mut GraphBuilder, x: Value) -> Made {
    let axes = Axes::all(b.ty(x).shape.rank());
    let kept = b.reduce(ReduceKind::Sum, axes, x, LOC)?;
    b.reshape(kept, &Shape::scalar(), LOC)
}

fn mul(b: &mut GraphBuilder, x: Value, y: Value) -> Made {
    b.scalar(ScalarOp::Mul, &[x, y], LOC)
}

fn add(b: &mut GraphBuilder, x: Value, y: Value) -> Made {
    b.scalar(ScalarOp::Add, &[x, y], LOC)
}

/// Elements `start..` of a vector.
fn part(b: &mut GraphBuilder, x: Value, start: usize, size: usize) -> Made {
    b.value(Op::Slice { starts: smallvec![start], sizes: [size].into(), steps: smallvec![1] }, &[x], LOC)
}

fn pow(b: &mut GraphBuilder, x: Value, exponent: f64) -> Made {
    let exponent = b.full_like(x, exponent, LOC)?;
    b.scalar(ScalarOp::Pow, &[x, exponent], LOC)
}

#[test]
fn the_gradient_of_a_broadcast_operand_is_summed_to_its_shape() {
    let numbers = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
    for shape in [&[3][..], &[1, 3]] {
        let found = gradients(DType::F32, &[(&[2, 3], &numbers), (shape, &[10.0, 20.0, 30.0])], |b, x| {
            let wide = b.broadcast(x[1], &[2, 3].into(), LOC)?;
            let product = mul(b, x[0], wide)?;
            mul(b, product, product)
        });
        assert_eq!(found[0], [200.0, 1600.0, 5400.0, 800.0, 4000.0, 10800.0]);
        assert_eq!(found[1], [340.0, 1160.0, 2700.0]);
    }
    for shape in [&[][..], &[1], &[1, 1]] {
        let found = gradients(DType::F64, &[(shape, &[1.0])], |b, x| {
            let exp = b.scalar(ScalarOp::Exp, x, LOC)?;
            let wide = b.broadcast(exp, &[1, 1000].into(), LOC)?;
            let (all, one) = (sum(b, wide)?, sum(b, exp)?);
            add(b, all, one)
        });
        assert!((found[0][0] - 1001.0 * std::f64::consts::E).abs() < 1e-9);
    }
}

#[test]
fn the_gradient_through_an_expansion_counts_the_copies_that_are_used() {
    let of = |function: fn(&mut GraphBuilder, Value) -> Made| {
        gradients(DType::F32, &[(&[], &[3.0])], |b, x| {
            let wide = b.broadcast(x[0], &[100].into(), LOC)?;
            function(b, wide)
        })
        .concat()
    };
    assert_eq!(of(|b, y| part(b, y, 0, 1)), [1.0]);
    assert_eq!(of(|_, y| Ok(y)), [100.0]);
    assert_eq!(of(|b, y| part(b, y, 10, 4)), [4.0]);
    let product = of(|b, y| {
        let (first, second) = (part(b, y, 0, 1)?, part(b, y, 1, 1)?);
        mul(b, first, second)
    });
    assert_eq!(product, [6.0]);
}

/// `select(x > 0, f(x), x)`.
fn where_positive(b: &mut GraphBuilder, x: Value, f: impl Fn(&mut GraphBuilder, Value) -> Made) -> Made {
    let zero = b.full_like(x, 0.0, LOC)?;
    let positive = b.scalar(ScalarOp::Gt, &[x, zero], LOC)?;
    let inside = f(b, x)?;
    b.value(Op::Select, &[positive, inside, x], LOC)
}

#[test]
fn a_branch_that_is_not_taken_never_poisons_the_gradient() {
    let root = gradients(DType::F32, &[(&[2], &[-1.0, 4.0])], |b, x| {
        where_positive(b, x[0], |b, x| b.scalar(ScalarOp::Sqrt, &[x], LOC))
    });
    assert_eq!(root, [[1.0, 0.25]]);
    // Every function with a pole or an edge, and every way for the argument to get there.
    for &op in &[
        ScalarOp::Sqrt,
        ScalarOp::Rsqrt,
        ScalarOp::Recip,
        ScalarOp::Log,
        ScalarOp::Log2,
        ScalarOp::Log1p,
        ScalarOp::Asin,
        ScalarOp::Acosh,
        ScalarOp::Atanh,
        ScalarOp::Exp,
        ScalarOp::Sinh,
        ScalarOp::Tanh,
        ScalarOp::Sin,
        ScalarOp::Abs,
    ] {
        for x in [0.0, -0.0, -1.0, -4.0, f64::NEG_INFINITY, f64::NAN] {
            let found = gradients(DType::F32, &[(&[], &[x])], |b, x| {
                where_positive(b, x[0], |b, x| {
                    let inner = b.scalar(op, &[x], LOC)?;
                    let twice = mul(b, inner, inner)?;
                    b.scalar(ScalarOp::Div, &[twice, x], LOC)
                })
            });
            assert_eq!(found, [[1.0]], "{op} at {x}");
        }
    }
    let quotient = gradients(DType::F32, &[(&[], &[1.0])], |b, x| {
        let zero = b.full_like(x[0], 0.0, LOC)?;
        let never = b.scalar(ScalarOp::Gt, &[zero, x[0]], LOC)?;
        let quotient = b.scalar(ScalarOp::Div, &[x[0], zero], LOC)?;
        b.value(Op::Select, &[never, quotient, x[0]], LOC)
    });
    assert_eq!(quotient, [[1.0]]);
    let exponential = gradients(DType::F32, &[(&[], &[100.0])], |b, x| {
        let zero = b.full_like(x[0], 0.0, LOC)?;
        let one = b.full_like(x[0], 1.0, LOC)?;
        let below = b.scalar(ScalarOp::Le, &[x[0], zero], LOC)?;
        let (exp, line) = (b.scalar(ScalarOp::Exp, x, LOC)?, add(b, one, x[0])?);
        b.value(Op::Select, &[below, exp, line], LOC)
    });
    assert_eq!(exponential, [[1.0]]);
}

#[test]
fn a_branch_that_is_not_taken_never_poisons_higher_derivatives() {
    let found = derivatives(3, -1.0, |b, x| where_positive(b, x, |b, x| b.scalar(ScalarOp::Sqrt, &[x], LOC)));
    assert_eq!(found, [1.0, 0.0, 0.0]);
    let found = derivatives(3, 4.0, |b, x| where_positive(b, x, |b, x| b.scalar(ScalarOp::Sqrt, &[x], LOC)));
    assert!(found.iter().zip([0.25, -1.0 / 32.0, 3.0 / 256.0]).all(|(a, b)| (a - b).abs() < 1e-15), "{found:?}");
}

#[test]
fn guarding_a_gradient_that_happens_to_be_zero_keeps_its_derivative() {
    // (where(x > -1, x * x, 0))^2 has the gradient 4 x^3, 0 at 0 through products with 0; its fourth derivative is 24.
    let found = derivatives(5, 0.0, |b, x| {
        let bound = b.full_like(x, -1.0, LOC)?;
        let inside = b.scalar(ScalarOp::Gt, &[x, bound], LOC)?;
        let (square, zero) = (mul(b, x, x)?, b.full_like(x, 0.0, LOC)?);
        let kept = b.value(Op::Select, &[inside, square, zero], LOC)?;
        mul(b, kept, kept)
    });
    assert_eq!(found, [0.0, 0.0, 0.0, 24.0, 0.0]);
}

#[test]
fn clamp_and_maximum_hide_an_overflow_or_a_singular_point_behind_them() {
    let clamped = gradients(DType::F32, &[(&[2], &[-1.0, 100.0])], |b, x| {
        let exp = b.scalar(ScalarOp::Exp, x, LOC)?;
        let (low, high) = (b.full_like(exp, f64::NEG_INFINITY, LOC)?, b.full_like(exp, 1.0, LOC)?);
        b.scalar(ScalarOp::Clamp, &[exp, low, high], LOC)
    });
    assert!((clamped[0][0] - (-1f64).exp()).abs() < 1e-7, "{clamped:?}");
    assert_eq!(clamped[0][1], 0.0);
    for dtype in [DType::F32, DType::F64] {
        let norm = gradients(dtype, &[(&[2], &[0.0, 0.0])], |b, x| {
            let squares = mul(b, x[0], x[0])?;
            let total = sum(b, squares)?;
            let norm = b.scalar(ScalarOp::Sqrt, &[total], LOC)?;
            let floor = b.full_like(norm, 1e-10, LOC)?;
            b.scalar(ScalarOp::Max, &[norm, floor], LOC)
        });
        assert_eq!(norm, [[0.0, 0.0]]);
    }
}

#[test]
fn an_element_that_is_not_read_has_gradient_zero_whatever_it_is() {
    let found = gradients(DType::F32, &[(&[3], &[0.0, 4.0, f64::NAN])], |b, x| {
        let root = b.scalar(ScalarOp::Sqrt, x, LOC)?;
        part(b, root, 1, 1)
    });
    assert_eq!(found, [[0.0, 0.25, 0.0]]);
    let gathered = gradients(DType::F32, &[(&[3], &[0.0, 4.0, f64::NAN])], |b, x| {
        let root = b.scalar(ScalarOp::Sqrt, x, LOC)?;
        let index = b.constant(data(DType::I32, &[1], &[1.0]), Backend::Cpu, LOC)?;
        b.value(Op::Gather { axis: 0, batch: 0 }, &[root, index], LOC)
    });
    assert_eq!(gathered, [[0.0, 0.25, 0.0]]);
}

#[test]
fn ties_of_a_maximum_share_a_gradient_of_one_also_where_a_half_cannot_count_them() {
    let few = gradients(DType::F32, &[(&[3], &[2.0, 2.0, 1.0])], |b, x| sum_of_max(b, x[0]));
    assert_eq!(few, [[0.5, 0.5, 0.0]]);
    for dtype in [DType::F16, DType::BF16, DType::F32] {
        let many = gradients(dtype, &[(&[70_000], &[1.0; 70_000])], |b, x| sum_of_max(b, x[0]));
        assert!(many[0].iter().all(|&g| (g * 70_000.0 - 1.0).abs() < 5e-3), "{dtype} {}", many[0][0]);
    }
}

fn sum_of_max(b: &mut GraphBuilder, x: Value) -> Made {
    b.reduce(ReduceKind::Max, Axes::all(1), x, LOC)
}

#[test]
fn powers_at_zero_and_of_negative_bases_have_their_true_gradients() {
    let base = |x: f64, exponent: f64| derivatives(1, x, |b, x| pow(b, x, exponent))[0];
    assert_eq!(base(0.0, 2.0), 0.0);
    assert_eq!(base(0.0, 1.0), 1.0);
    assert_eq!(base(0.0, 0.0), 0.0);
    assert_eq!(base(-2.0, 3.0), 12.0);
    assert_eq!(base(0.0, 0.5), f64::INFINITY);
    // The same where the exponent is an argument, which the graph does not know.
    let both = |x: f64, y: f64| {
        gradients(DType::F64, &[(&[], &[x]), (&[], &[y])], |b, x| b.scalar(ScalarOp::Pow, x, LOC)).concat()
    };
    assert_eq!(both(0.0, 2.0), [0.0, 0.0]);
    assert_eq!(both(0.0, 1.0), [1.0, 0.0]);
    assert_eq!(both(0.0, 0.0), [0.0, 0.0]);
    assert_eq!(both(-2.0, 3.0)[0], 12.0);
    assert!(both(-2.0, 3.0)[1].is_nan(), "a power of a negative base has no gradient in its exponent");
    // (a - b)^2 where a = b.
    let square = gradients(DType::F32, &[(&[], &[3.0]), (&[], &[3.0])], |b, x| {
        let difference = b.scalar(ScalarOp::Sub, x, LOC)?;
        pow(b, difference, 2.0)
    });
    assert_eq!(square.concat(), [0.0, 0.0]);
    for exponent in [2.0, 3.0, 4.0] {
        let found = derivatives(4, 0.0, |b, x| pow(b, x, exponent));
        let mut expected = [0.0; 4];
        expected[exponent as usize - 1] = (1..=exponent as usize).product::<usize>() as f64;
        assert_eq!(found, expected, "x^{exponent}");
    }
}

#[test]
fn the_gradient_of_an_operand_that_nobody_asks_about_is_not_computed() {
    let mut b = GraphBuilder::new("f");
    let x = b.input("x", ty(DType::F32, &[3]), LOC).unwrap();
    let y = b.input("y", ty(DType::F32, &[3]), LOC).unwrap();
    let power = b.scalar(ScalarOp::Pow, &[x, y], LOC).unwrap();
    let seed = b.full_like(power, 1.0, LOC).unwrap();
    let before = b.nodes().len();
    vjp(&mut b, &[power], &[seed], &[x]).unwrap();
    assert!(b.nodes()[before..].iter().all(|node| node.op != Op::Scalar(ScalarOp::Log)));
}

#[test]
fn repeated_indices_add_up_and_batches_do_not_mix() {
    let vector = gradients(DType::F32, &[(&[3], &[0.0; 3]), (&[3], &[1.0, 10.0, 100.0])], |b, x| {
        let indices = b.constant(data(DType::I32, &[3], &[0.0, 0.0, 2.0]), Backend::Cpu, LOC)?;
        let read = b.value(Op::Gather { axis: 0, batch: 0 }, &[x[0], indices], LOC)?;
        mul(b, read, x[1])
    });
    assert_eq!(vector[0], [11.0, 0.0, 100.0]);
    for copies in [1, 3] {
        let numbers = vec![0.0; 6 * copies];
        let found = gradients(DType::F32, &[(&[copies * 2, 3], &numbers)], |b, x| {
            let indices = [0.0, 0.0, 2.0, 1.0].repeat(copies);
            let indices = b.constant(data(DType::I32, &[copies * 2, 2], &indices), Backend::Cpu, LOC)?;
            b.value(Op::Gather { axis: 1, batch: 1 }, &[x[0], indices], LOC)
        });
        assert_eq!(found, [[2.0, 0.0, 0.0, 0.0, 1.0, 1.0].repeat(copies)]);
        let scattered = gradients(
            DType::F32,
            &[(&[copies, 3], &vec![0.0; 3 * copies]), (&[copies], &vec![1.0; copies])],
            |b, x| {
                let indices = b.constant(data(DType::I32, &[copies], &vec![1.0; copies]), Backend::Cpu, LOC)?;
                let y =
                    b.value(Op::Scatter { kind: ScatterKind::Add, axis: 1, batch: 1 }, &[x[0], indices, x[1]], LOC)?;
                mul(b, y, y)
            },
        );
        assert_eq!(scattered[0], [0.0, 2.0, 0.0].repeat(copies));
        assert_eq!(scattered[1], vec![2.0; copies]);
    }
}

#[test]
fn transposed_and_expanded_operands_get_their_gradients_in_the_right_places() {
    let numbers = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
    let product = |b: &mut GraphBuilder, x: Value| {
        let column = b.constant(data(DType::F32, &[2, 1], &[1.0, 10.0]), Backend::Cpu, LOC)?;
        let y = b.value(Op::MatMul { precision: Precision::Full }, &[x, column], LOC)?;
        mul(b, y, y)
    };
    let transposed = gradients(DType::F32, &[(&[2, 3], &numbers)], |b, x| {
        let turned = b.permute(x[0], &[1, 0], LOC)?;
        product(b, turned)
    });
    assert_eq!(transposed, [[82.0, 104.0, 126.0, 820.0, 1040.0, 1260.0]]);
    let plain = gradients(DType::F32, &[(&[3, 2], &[1.0, 4.0, 2.0, 5.0, 3.0, 6.0])], |b, x| product(b, x[0]));
    assert_eq!(plain, [[82.0, 820.0, 104.0, 1040.0, 126.0, 1260.0]]);
    let expanded = gradients(DType::F32, &[(&[1, 2], &[1.0, 2.0])], |b, x| {
        let wide = b.broadcast(x[0], &[2, 2].into(), LOC)?;
        product(b, wide)
    });
    assert_eq!(expanded, [[84.0, 840.0]]);
}

#[test]
fn a_stopped_gradient_stays_stopped_also_when_equal_nodes_are_merged() {
    let stop = |b: &mut GraphBuilder, x: Value| b.value(Op::StopGradient, &[x], LOC);
    let one_more = |b: &mut GraphBuilder, x: Value| {
        let one = b.full_like(x, 1.0, LOC)?;
        add(b, x, one)
    };
    assert_eq!(
        derivatives(1, 3.0, |b, x| {
            let held = stop(b, x)?;
            mul(b, x, held)
        }),
        [3.0]
    );
    assert_eq!(
        derivatives(1, 3.0, |b, x| {
            let held = stop(b, x)?;
            mul(b, held, held)
        }),
        [0.0]
    );
    // x + 1 under the stop is the same expression as x + 1 outside; merging them must not merge their gradients.
    for interning in [false, true] {
        let mut b = if interning { GraphBuilder::interning("f") } else { GraphBuilder::new("f") };
        let x = b.input("x", ty(DType::F32, &[]), LOC).unwrap();
        let (a, c) = (one_more(&mut b, x).unwrap(), one_more(&mut b, x).unwrap());
        let held = stop(&mut b, c).unwrap();
        let y = mul(&mut b, a, held).unwrap();
        let dx = grad(&mut b, y, &[x], LOC).unwrap()[0];
        let graph = b.finish([("dx", dx)]).unwrap();
        let merged = kiln_ir::rebuild(&graph, |_, _, _| Ok(None)).unwrap();
        for graph in [graph, merged] {
            assert_eq!(run(&graph, &[data(DType::F32, &[], &[3.0])]).concat(), [4.0]);
        }
    }
}

#[test]
fn comparisons_and_roundings_pass_no_gradient_and_integers_are_refused() {
    let masked = gradients(DType::F32, &[(&[2], &[-2.0, 3.0])], |b, x| {
        let zero = b.full_like(x[0], 0.0, LOC)?;
        let negative = b.scalar(ScalarOp::Lt, &[x[0], zero], LOC)?;
        let mask = b.cast(negative, DType::F32, LOC)?;
        mul(b, x[0], mask)
    });
    assert_eq!(masked, [[1.0, 0.0]]);
    for op in [ScalarOp::Floor, ScalarOp::Ceil, ScalarOp::Round, ScalarOp::Trunc, ScalarOp::Sign] {
        assert_eq!(gradients(DType::F32, &[(&[2], &[1.5, -2.5])], |b, x| b.scalar(op, x, LOC)), [[0.0, 0.0]], "{op}");
    }
    let place = gradients(DType::F32, &[(&[2], &[1.5, -2.5])], |b, x| {
        let place = b.reduce(ReduceKind::ArgMax, Axes::one(0), x[0], LOC)?;
        b.cast(place, DType::F32, LOC)
    });
    assert_eq!(place, [[0.0, 0.0]]);
    let unused = gradients(DType::F32, &[(&[2], &[1.0, 2.0]), (&[3], &[1.0, 2.0, 3.0])], |_, x| Ok(x[0]));
    assert_eq!(unused, [vec![1.0, 1.0], vec![0.0, 0.0, 0.0]]);
    for dtype in DType::ALL.into_iter().filter(|dtype| !dtype.is_float()) {
        let mut b = GraphBuilder::new("f");
        let n = b.input("n", ty(dtype, &[]), LOC).unwrap();
        let y = b.cast(n, DType::F32, LOC).unwrap();
        let refused = grad(&mut b, y, &[n], LOC).unwrap_err();
        assert_eq!(refused.code, Code::K0502);
        assert!(refused.to_string().contains("\"n\""), "{refused}");
    }
}

#[test]
fn derivatives_of_derivatives_are_right_also_where_one_is_constant() {
    let cube = |b: &mut GraphBuilder, x: Value| {
        let square = mul(b, x, x)?;
        mul(b, square, x)
    };
    assert_eq!(derivatives(5, 2.0, cube), [12.0, 12.0, 6.0, 0.0, 0.0]);
    assert_eq!(derivatives(3, 2.0, |b, x| add(b, x, x)), [2.0, 0.0, 0.0]);
    assert_eq!(derivatives(4, 0.0, |b, x| b.scalar(ScalarOp::Sin, &[x], LOC)), [1.0, 0.0, -1.0, 0.0]);
    let rectified_square = |orders: usize, x: f64| {
        derivatives(orders, x, |b, x| {
            let zero = b.full_like(x, 0.0, LOC)?;
            let below = b.scalar(ScalarOp::Le, &[x, zero], LOC)?;
            let relu = b.value(Op::Select, &[below, zero, x], LOC)?;
            mul(b, relu, relu)
        })
    };
    assert_eq!(rectified_square(2, -1.0), [0.0, 0.0]);
    assert_eq!(rectified_square(2, 2.0), [4.0, 2.0]);
}

#[test]
fn several_outputs_that_depend_on_each_other_add_their_gradients() {
    let mut b = GraphBuilder::new("f");
    let x = b.input("x", ty(DType::F64, &[]), LOC).unwrap();
    let y = mul(&mut b, x, x).unwrap();
    let z = pow(&mut b, y, 3.0).unwrap();
    let one = b.full_like(x, 1.0, LOC).unwrap();
    let mut named = Vec::new();
    // Asked twice, the answer is the same; seeds may come in any order, an output may come twice.
    for (name, outputs) in [("a", vec![y, z]), ("b", vec![z, y]), ("c", vec![y, y]), ("d", vec![])] {
        let seeds = vec![one; outputs.len()];
        named.push((name, vjp(&mut b, &outputs, &seeds, &[x]).unwrap()[0]));
    }
    let graph = b.finish(named).unwrap();
    assert_eq!(run(&graph, &[data(DType::F64, &[], &[2.0])]).concat(), [196.0, 196.0, 8.0, 0.0]);
    for x in [1.0, 2.0, 3.0] {
        assert_eq!(derivatives(1, x, |b, x| mul(b, x, x)), [2.0 * x]);
    }
}

#[test]
fn a_value_that_is_broadcast_against_more_axes_gets_every_use() {
    let found = gradients(DType::F32, &[(&[3, 3], &[1.0; 9])], |b, x| {
        let ones = b.full(&ty(DType::F32, &[3, 3, 3]), kiln_ir::Literal::one(DType::F32), LOC)?;
        let wide = b.broadcast(x[0], &[3, 3, 3].into(), LOC)?;
        let y = add(b, wide, ones)?;
        mul(b, y, y)
    });
    assert_eq!(found, [[12.0; 9]]);
}

#[test]
fn an_update_that_was_dropped_has_no_gradient() {
    for kind in ScatterKind::ALL {
        let found = gradients(DType::F32, &[(&[1], &[0.0]), (&[2], &[5.0, 7.0])], |b, x| {
            let ids = b.constant(data(DType::I32, &[2], &[0.0, -1.0]), Backend::Cpu, LOC)?;
            b.value(Op::Scatter { kind, axis: 0, batch: 0 }, &[x[0], ids, x[1]], LOC)
        });
        assert_eq!(found[1], [1.0, 0.0], "{kind:?}");
    }
}

#[test]
fn every_row_has_its_own_gradient() {
    let numbers: Vec<f64> = (0..16).map(f64::from).collect();
    let found = gradients(DType::F32, &[(&[4, 4], &numbers)], |b, x| {
        let column =
            |start: usize| Op::Slice { starts: smallvec![0, start], sizes: [4, 1].into(), steps: smallvec![1, 1] };
        let (first, third) = (b.value(column(0), x, LOC)?, b.value(column(2), x, LOC)?);
        b.scalar(ScalarOp::Sub, &[first, third], LOC)
    });
    assert_eq!(found, [[1.0, 0.0, -1.0, 0.0].repeat(4)]);
}

#[test]
fn a_target_that_is_an_expansion_gets_the_sum_of_its_rows() {
    let text = r#"kiln 1
graph @expanded(%0 "x": f32[2] @cpu, %1 "u": f32[3, 2] @cpu) {
  %2 = broadcast [3, 2] %0 : f32[3, 2] @cpu
  %3 = mul %2, %2 : f32[3, 2] @cpu
  return %3 "y"
}
"#;
    let found = text_gradients(text, &[data(DType::F32, &[2], &[1.0, 2.0]), data(DType::F32, &[3, 2], &[0.0; 6])]);
    assert_eq!(found, [vec![6.0, 12.0], vec![0.0; 6]]);
}
