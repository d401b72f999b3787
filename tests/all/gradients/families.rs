//! Every family of ops besides the elementwise ones: finite differences over shapes, and their special places.

use kiln_ir::{
    Axes, Backend, Custom, DType, Direction, GraphBuilder, Literal, Op, Precision, ReduceKind, ScalarOp, ScanKind,
    ScatterKind, Shape, Value,
};
use smallvec::smallvec;

use super::difference::agrees;
use super::{LOC, data, gradients, run, ty};

const SHAPES: &[&[usize]] = &[&[], &[0], &[1], &[7], &[3, 1], &[1, 3], &[2, 3, 4], &[3, 0, 2]];

fn i32s(b: &mut GraphBuilder, shape: &[usize], numbers: &[f64]) -> Value {
    b.constant(data(DType::I32, shape, numbers), Backend::Cpu, LOC).unwrap()
}

/// Every set of axes of a rank.
fn axis_sets(rank: usize) -> impl Iterator<Item = Axes> {
    (0..1usize << rank).map(move |set| Axes::from_indices((0..rank).filter(move |axis| set >> axis & 1 == 1)))
}

#[test]
fn reductions_equal_finite_differences() {
    for kind in [ReduceKind::Sum, ReduceKind::Prod, ReduceKind::Max, ReduceKind::Min] {
        for &shape in SHAPES {
            for axes in axis_sets(shape.len()) {
                let empty = axes.iter().any(|&axis| shape[axis] == 0);
                if empty && matches!(kind, ReduceKind::Max | ReduceKind::Min) {
                    continue;
                }
                let name = format!("{} of {shape:?} over {axes:?}", kind.name());
                agrees(&name, 2, &[(shape, 0.5..1.5)], |b, x| b.reduce(kind, axes.clone(), x[0], LOC));
            }
        }
    }
}

#[test]
fn scans_equal_finite_differences() {
    for kind in ScanKind::ALL {
        for direction in [Direction::Forward, Direction::Reverse] {
            for &shape in SHAPES {
                for axis in 0..shape.len() {
                    let name = format!("{} of {shape:?} along {axis} {direction:?}", kind.name());
                    agrees(&name, 2, &[(shape, 0.5..1.5)], |b, x| b.value(Op::Scan { kind, axis, direction }, x, LOC));
                }
            }
        }
    }
}

#[test]
fn products_are_right_where_elements_are_zero() {
    for numbers in [[0.0, 2.0, 3.0], [2.0, 0.0, 3.0], [0.0, 2.0, 0.0], [0.0, 0.0, 0.0]] {
        let [a, b, c] = numbers;
        let product =
            gradients(DType::F64, &[(&[3], &numbers)], |g, x| g.reduce(ReduceKind::Prod, Axes::all(1), x[0], LOC));
        assert_eq!(product, [[b * c, a * c, a * b]]);
        // The sum of a, a b, a b c.
        for direction in [Direction::Forward, Direction::Reverse] {
            let running = gradients(DType::F64, &[(&[3], &numbers)], |g, x| {
                g.value(Op::Scan { kind: ScanKind::Prod, axis: 0, direction }, x, LOC)
            });
            let expected = match direction {
                Direction::Forward => [1.0 + b + b * c, a + a * c, a * b],
                Direction::Reverse => [b * c, a * c + c, 1.0 + b + a * b],
            };
            assert_eq!(running, [expected], "{numbers:?} {direction:?}");
        }
    }
}

#[test]
fn second_derivatives_of_products_are_right_where_elements_are_zero() {
    // d/dx of (w . d prod / dx) with w = (1, 1, 1): each is the sum of the other two.
    for numbers in [[0.0, 2.0, 3.0], [0.0, 0.0, 3.0], [0.0, 0.0, 0.0]] {
        let [a, b, c] = numbers;
        for op in [
            Op::Reduce { kind: ReduceKind::Prod, axes: Axes::all(1) },
            Op::Scan { kind: ScanKind::Prod, axis: 0, direction: Direction::Forward },
        ] {
            let found = gradients(DType::F64, &[(&[3], &numbers)], |g, x| {
                let y = g.value(op.clone(), x, LOC)?;
                let last = g.ty(y).shape[0] - 1;
                let y =
                    g.value(Op::Slice { starts: smallvec![last], sizes: [1].into(), steps: smallvec![1] }, &[y], LOC)?;
                let seed = g.full_like(y, 1.0, LOC)?;
                Ok(kiln_ir::grad::vjp(g, &[y], &[seed], x)?[0])
            });
            assert_eq!(found, [[b + c, a + c, a + b]], "{numbers:?} {op:?}");
        }
    }
}

#[test]
fn ties_of_reductions_and_running_maxima_are_split_evenly() {
    let numbers = [2.0, 2.0, 1.0, 2.0];
    let maximum = gradients(DType::F64, &[(&[4], &numbers)], |b, x| b.reduce(ReduceKind::Max, Axes::all(1), x[0], LOC));
    assert_eq!(maximum, [[1.0 / 3.0, 1.0 / 3.0, 0.0, 1.0 / 3.0]]);
    let running = gradients(DType::F64, &[(&[4], &numbers)], |b, x| {
        b.value(Op::Scan { kind: ScanKind::Max, axis: 0, direction: Direction::Forward }, x, LOC)
    });
    let expected = [1.0 + 0.5 + 0.5 + 1.0 / 3.0, 0.5 + 0.5 + 1.0 / 3.0, 0.0, 1.0 / 3.0];
    assert!(running[0].iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12), "{running:?}");
}

#[test]
fn the_gradient_of_a_maximum_that_is_nan_still_sums_to_one() {
    let found =
        gradients(DType::F32, &[(&[2], &[1.0, f64::NAN])], |b, x| b.reduce(ReduceKind::Max, Axes::all(1), x[0], LOC));
    assert_eq!(found, [[0.5, 0.5]]);
}

#[test]
fn reshape_permute_and_broadcast_equal_finite_differences() {
    agrees("reshape", 2, &[(&[2, 3, 4], -1.0..1.0)], |b, x| b.reshape(x[0], &[4, 6].into(), LOC));
    agrees("reshape of a scalar", 2, &[(&[], -1.0..1.0)], |b, x| b.reshape(x[0], &[1, 1].into(), LOC));
    agrees("permute", 2, &[(&[2, 3, 4], -1.0..1.0)], |b, x| b.permute(x[0], &[2, 0, 1], LOC));
    for (from, to) in [
        (&[][..], &[3, 2][..]),
        (&[1], &[5]),
        (&[1, 3], &[2, 3]),
        (&[3, 1], &[2, 3, 4]),
        (&[1], &[0]),
        (&[2, 1, 3], &[5, 2, 4, 3]),
        (&[1, 1], &[1, 1, 1]),
        (&[3], &[0, 3]),
    ] {
        let to = Shape::from(to);
        agrees(&format!("{from:?} to {to}"), 2, &[(from, -1.0..1.0)], |b, x| {
            let wide = b.broadcast(x[0], &to, LOC)?;
            b.scalar(ScalarOp::Mul, &[wide, wide], LOC)
        });
    }
}

#[test]
fn slices_with_every_step_equal_finite_differences() {
    for extent in [1usize, 5, 7] {
        for step in [-7i64, -3, -2, -1, 1, 2, 3, 7] {
            for start in 0..extent {
                let room = if step > 0 { extent - 1 - start } else { start };
                for size in 0..=(room / step.unsigned_abs() as usize + 1) {
                    let name = format!("{size} of {extent} from {start} by {step}");
                    agrees(&name, 1, &[(&[extent], -1.0..1.0)], |b, x| {
                        let slice =
                            Op::Slice { starts: smallvec![start], sizes: [size].into(), steps: smallvec![step] };
                        let part = b.value(slice, x, LOC)?;
                        b.scalar(ScalarOp::Exp, &[part], LOC)
                    });
                }
            }
        }
    }
    agrees("several axes", 2, &[(&[5, 2, 7], -1.0..1.0)], |b, x| {
        let slice = Op::Slice { starts: smallvec![4, 0, 1], sizes: [2, 2, 3].into(), steps: smallvec![-2, 1, 2] };
        let part = b.value(slice, x, LOC)?;
        b.scalar(ScalarOp::Exp, &[part], LOC)
    });
}

#[test]
fn pad_and_concat_equal_finite_differences() {
    agrees("pad", 2, &[(&[2, 3], -1.0..1.0)], |b, x| {
        let value = Literal::from_f64(DType::F64, 0.5);
        let wide = b.value(Op::Pad { low: smallvec![1, 0], high: smallvec![0, 2], value }, x, LOC)?;
        b.scalar(ScalarOp::Exp, &[wide], LOC)
    });
    agrees("concat", 2, &[(&[2, 3], -1.0..1.0), (&[2, 0], -1.0..1.0), (&[2, 1], -1.0..1.0)], |b, x| {
        let joined = b.value(Op::Concat { axis: 1 }, &[x[0], x[1], x[2], x[0]], LOC)?;
        b.scalar(ScalarOp::Exp, &[joined], LOC)
    });
}

#[test]
fn matrix_products_equal_finite_differences() {
    for (batch, m, k, n) in [
        (&[][..], 2, 3, 4),
        (&[2], 3, 2, 1),
        (&[2, 2], 1, 3, 2),
        (&[], 0, 3, 2),
        (&[], 2, 0, 3),
        (&[0], 2, 2, 2),
        (&[], 1, 1, 1),
    ] {
        let lhs = [batch, &[m, k]].concat();
        let rhs = [batch, &[k, n]].concat();
        agrees(&format!("{lhs:?} by {rhs:?}"), 2, &[(&lhs, -1.0..1.0), (&rhs, -1.0..1.0)], |b, x| {
            let product = b.value(Op::MatMul { precision: Precision::Full }, x, LOC)?;
            b.scalar(ScalarOp::Sin, &[product], LOC)
        });
    }
}

#[test]
fn gather_equals_finite_differences_with_repeats_batches_and_indices_outside() {
    let inside = [2.0, 0.0, 0.0, 1.0];
    let outside = [-3.0, 9.0, 2.0, 2.0];
    for indices in [inside, outside] {
        agrees("rows", 2, &[(&[3, 2], -1.0..1.0)], |b, x| {
            let indices = i32s(b, &[4], &indices);
            let read = b.value(Op::Gather { axis: 0, batch: 0 }, &[x[0], indices], LOC)?;
            b.scalar(ScalarOp::Exp, &[read], LOC)
        });
        agrees("batched", 2, &[(&[2, 2, 3, 2], -1.0..1.0)], |b, x| {
            let indices = i32s(b, &[2, 2], &indices);
            let read = b.value(Op::Gather { axis: 2, batch: 1 }, &[x[0], indices], LOC)?;
            b.scalar(ScalarOp::Exp, &[read], LOC)
        });
        agrees("one index per row", 2, &[(&[4, 3], -1.0..1.0)], |b, x| {
            let indices = i32s(b, &[4], &indices);
            let read = b.value(Op::Gather { axis: 1, batch: 1 }, &[x[0], indices], LOC)?;
            b.scalar(ScalarOp::Exp, &[read], LOC)
        });
    }
    agrees("no indices", 1, &[(&[3], -1.0..1.0)], |b, x| {
        let indices = i32s(b, &[0], &[]);
        b.value(Op::Gather { axis: 0, batch: 0 }, &[x[0], indices], LOC)
    });
    agrees("no elements", 1, &[(&[0, 2], -1.0..1.0)], |b, x| {
        let indices = i32s(b, &[0], &[]);
        b.value(Op::Gather { axis: 0, batch: 0 }, &[x[0], indices], LOC)
    });
}

#[test]
fn scatters_equal_finite_differences_with_repeats_batches_and_indices_outside() {
    let cases = [[2.0, 0.0, 0.0, 1.0], [-1.0, 2.0, 2.0, 3.0], [0.0, 0.0, 0.0, 0.0], [5.0, 5.0, -1.0, 7.0]];
    for kind in ScatterKind::ALL {
        for indices in cases {
            let name = |what: &str| format!("{} {what} at {indices:?}", kind.name());
            let scatter = |axis, batch| Op::Scatter { kind, axis, batch };
            let exp = |b: &mut GraphBuilder, y: Value| b.scalar(ScalarOp::Exp, &[y], LOC);
            agrees(&name("rows"), 2, &[(&[3, 2], -1.0..1.0), (&[4, 2], -1.0..1.0)], |b, x| {
                let indices = i32s(b, &[4], &indices);
                let y = b.value(scatter(0, 0), &[x[0], indices, x[1]], LOC)?;
                exp(b, y)
            });
            agrees(&name("a table of indices"), 2, &[(&[2, 3], -1.0..1.0), (&[2, 2, 2], -1.0..1.0)], |b, x| {
                let indices = i32s(b, &[2, 2], &indices);
                let y = b.value(scatter(1, 0), &[x[0], indices, x[1]], LOC)?;
                exp(b, y)
            });
            agrees(&name("batched"), 2, &[(&[2, 2, 3, 1], -1.0..1.0), (&[2, 2, 2, 1], -1.0..1.0)], |b, x| {
                let indices = i32s(b, &[2, 2], &indices);
                let y = b.value(scatter(2, 1), &[x[0], indices, x[1]], LOC)?;
                exp(b, y)
            });
            agrees(&name("one index per row"), 2, &[(&[4, 3], -1.0..1.0), (&[4], -1.0..1.0)], |b, x| {
                let indices = i32s(b, &[4], &indices);
                let y = b.value(scatter(1, 1), &[x[0], indices, x[1]], LOC)?;
                exp(b, y)
            });
        }
        agrees("nothing to write", 1, &[(&[3], -1.0..1.0), (&[0], -1.0..1.0)], |b, x| {
            let indices = i32s(b, &[0], &[]);
            b.value(Op::Scatter { kind, axis: 0, batch: 0 }, &[x[0], indices, x[1]], LOC)
        });
        agrees("nowhere to write", 1, &[(&[0], -1.0..1.0), (&[2], -1.0..1.0)], |b, x| {
            let indices = i32s(b, &[2], &[0.0, 1.0]);
            b.value(Op::Scatter { kind, axis: 0, batch: 0 }, &[x[0], indices, x[1]], LOC)
        });
    }
}

#[test]
fn indices_of_every_integer_dtype_are_clamped_and_dropped_alike() {
    for dtype in DType::ALL.into_iter().filter(|dtype| dtype.is_int()) {
        let last = if dtype.is_signed() { -1.0 } else { 200.0 };
        let indices =
            |b: &mut GraphBuilder| b.constant(data(dtype, &[3], &[1.0, last, 100.0]), Backend::Cpu, LOC).unwrap();
        let end = if dtype.is_signed() { 0 } else { 2 };
        let read = gradients(DType::F32, &[(&[3], &[1.0, 2.0, 3.0])], |b, x| {
            let indices = indices(b);
            b.value(Op::Gather { axis: 0, batch: 0 }, &[x[0], indices], LOC)
        });
        let mut expected = [0.0, 1.0, 1.0];
        expected[end] += 1.0;
        assert_eq!(read, [expected], "{dtype}");
        for kind in ScatterKind::ALL {
            let written = gradients(DType::F32, &[(&[3], &[0.0; 3]), (&[3], &[5.0; 3])], |b, x| {
                let indices = indices(b);
                b.value(Op::Scatter { kind, axis: 0, batch: 0 }, &[x[0], indices, x[1]], LOC)
            });
            assert_eq!(written[1], [1.0, 0.0, 0.0], "{dtype} {kind:?}");
        }
    }
    // 300 places are more than an 8-bit index can name.
    let wide = gradients(DType::F32, &[(&[300], &[0.0; 300]), (&[2], &[5.0; 2])], |b, x| {
        let indices = b.constant(data(DType::U8, &[2], &[255.0, 0.0]), Backend::Cpu, LOC)?;
        b.value(Op::Scatter { kind: ScatterKind::Add, axis: 0, batch: 0 }, &[x[0], indices, x[1]], LOC)
    });
    assert_eq!(wide[1], [1.0, 1.0]);
}

#[test]
fn a_tie_of_a_scattered_maximum_is_split_evenly() {
    let found = gradients(DType::F64, &[(&[2], &[5.0, 1.0]), (&[4], &[5.0, 5.0, 2.0, 2.0])], |b, x| {
        let indices = i32s(b, &[4], &[0.0, 0.0, 1.0, 1.0]);
        b.value(Op::Scatter { kind: ScatterKind::Max, axis: 0, batch: 0 }, &[x[0], indices, x[1]], LOC)
    });
    let third = 1.0 / 3.0;
    assert_eq!(found, [vec![third, 0.0], vec![third, third, 0.5, 0.5]]);
}

#[test]
fn select_cast_transfer_mark_and_barrier_equal_finite_differences() {
    agrees("select", 2, &[(&[6], -1.0..1.0), (&[6], -1.0..1.0)], |b, x| {
        let condition = b.scalar(ScalarOp::Gt, &[x[0], x[1]], LOC)?;
        let (sin, exp) = (b.scalar(ScalarOp::Sin, &[x[0]], LOC)?, b.scalar(ScalarOp::Exp, &[x[1]], LOC)?);
        b.value(Op::Select, &[condition, sin, exp], LOC)
    });
    agrees("transfer", 2, &[(&[3], -1.0..1.0)], |b, x| {
        let there = b.value(Op::Transfer(Backend::Cuda), x, LOC)?;
        let there = b.scalar(ScalarOp::Exp, &[there], LOC)?;
        b.value(Op::Transfer(Backend::Cpu), &[there], LOC)
    });
    for op in [Op::Mark, Op::Barrier] {
        agrees("copy", 2, &[(&[3], -1.0..1.0)], |b, x| {
            let copy = b.value(op.clone(), x, LOC)?;
            b.scalar(ScalarOp::Exp, &[copy], LOC)
        });
    }
}

#[test]
fn a_gradient_through_casts_comes_back_in_the_dtype_of_its_value() {
    for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
        let found = gradients(dtype, &[(&[2], &[1.5, -3.0])], |b, x| {
            let wide = b.cast(x[0], DType::F32, LOC)?;
            let square = b.scalar(ScalarOp::Mul, &[wide, wide], LOC)?;
            b.cast(square, DType::BF16, LOC)
        });
        assert_eq!(found, [[3.0, -6.0]], "{dtype}");
    }
    let blocked = gradients(DType::F32, &[(&[2], &[1.5, -3.0])], |b, x| {
        let whole = b.cast(x[0], DType::I32, LOC)?;
        let back = b.cast(whole, DType::F32, LOC)?;
        b.scalar(ScalarOp::Mul, &[back, x[0]], LOC)
    });
    assert_eq!(blocked, [[1.0, -3.0]]);
}

/// A custom op `y = sin(a) * b` with a second result `exp(b)`, its body on another backend than it is used on.
fn custom(shape: &[usize]) -> Op {
    let mut body = GraphBuilder::new("body");
    let parts = |b: &mut GraphBuilder| {
        let on_cuda = |shape: &[usize]| kiln_ir::TensorType::new(DType::F64, shape, Backend::Cuda);
        let a = b.input("a", on_cuda(shape), LOC)?;
        let c = b.input("b", on_cuda(shape), LOC)?;
        let sin = b.scalar(ScalarOp::Sin, &[a], LOC)?;
        Ok::<_, kiln_ir::Diagnostic>([b.scalar(ScalarOp::Mul, &[sin, c], LOC)?, b.scalar(ScalarOp::Exp, &[c], LOC)?])
    };
    let [first, second] = parts(&mut body).unwrap();
    let body = body.finish([("first", first), ("second", second)]).unwrap();
    let results = smallvec![ty(DType::F64, shape), ty(DType::F64, shape)];
    Op::Custom(Custom { name: "twist".into(), attributes: Vec::new(), results, body: Some(body.into()) })
}

#[test]
fn a_custom_op_is_differentiated_through_its_body() {
    for used in [&[0][..], &[1], &[0, 1]] {
        agrees(&format!("results {used:?}"), 3, &[(&[3], -1.0..1.0), (&[3], -1.0..1.0)], |b, x| {
            let node = b.add(custom(&[3]), x, LOC)?;
            let results: Vec<Value> = used.iter().map(|&result| Value { node, result }).collect();
            b.value(Op::Concat { axis: 0 }, &results, LOC)
        });
    }
    agrees("one value for both operands", 2, &[(&[3], -1.0..1.0)], |b, x| {
        let node = b.add(custom(&[3]), &[x[0], x[0]], LOC)?;
        Ok(Value { node, result: 0 })
    });
}

#[test]
fn a_custom_op_used_twice_is_differentiated_twice_also_when_equal_nodes_are_merged() {
    for mut b in [GraphBuilder::new("f"), GraphBuilder::interning("f")] {
        let x = b.input("x", ty(DType::F64, &[]), LOC).unwrap();
        let y = b.value(custom(&[]), &[x, x], LOC).unwrap();
        let z = b.value(custom(&[]), &[y, y], LOC).unwrap();
        let w = b.value(custom(&[]), &[x, x], LOC).unwrap();
        let total = b.scalar(ScalarOp::Add, &[z, w], LOC).unwrap();
        let mut value = total;
        for _ in 0..2 {
            value = kiln_ir::grad::grad(&mut b, value, &[x], LOC).unwrap()[0];
        }
        let graph = b.finish([("d", value)]).unwrap();
        // f(x) = x sin x, of which f(f(x)) + f(x) is differentiated twice.
        let (x, f) = (0.7f64, |x: f64| x * x.sin());
        let (first, second) = (|x: f64| x.sin() + x * x.cos(), |x: f64| 2.0 * x.cos() - x * x.sin());
        let expected = second(f(x)) * first(x).powi(2) + first(f(x)) * second(x) + second(x);
        let found = run(&graph, &[data(DType::F64, &[], &[x])])[0][0];
        assert!((found - expected).abs() < 1e-12, "{found} {expected}");
    }
}

#[test]
fn a_gradient_may_be_taken_with_regard_to_values_on_the_way() {
    let mut b = GraphBuilder::new("f");
    let x = b.input("x", ty(DType::F32, &[]), LOC).unwrap();
    let h = b.scalar(ScalarOp::Mul, &[x, x], LOC).unwrap();
    let y = b.scalar(ScalarOp::Mul, &[h, x], LOC).unwrap();
    let found = kiln_ir::grad::grad(&mut b, y, &[x, h, y], LOC).unwrap();
    let graph = b.finish([("x", found[0]), ("h", found[1]), ("y", found[2])]).unwrap();
    assert_eq!(run(&graph, &[data(DType::F32, &[], &[2.0])]).concat(), [12.0, 2.0, 1.0]);
}
