//! What a capture does as a whole: scopes, poison, collected mistakes.

use kiln_ir::tree::Tree;
use kiln_ir::{Backend, Code, DType, Op, ScalarOp};

use crate::{CaptureDevice, Key, Scope, Tensor, concat};

fn cpu() -> CaptureDevice {
    CaptureDevice::new(Backend::Cpu)
}

fn codes(body: impl FnOnce(&Scope) -> Tensor) -> Vec<Code> {
    cpu().capture_scope(body).map_or_else(|errors| errors.codes(), |_| Vec::new())
}

#[test]
fn three_mistakes_in_one_scope_give_three_diagnostics() {
    let codes = codes(|scope| {
        let x = scope.input("x", DType::F32, [2, 3]);
        let y = scope.input("y", DType::F32, [4, 5]);
        let bad = &x + &y;
        let also_bad = x.matmul(&y);
        let worse = x.sum(7);
        bad.exp() + also_bad.sum(..) + worse
    });
    assert_eq!(codes, [Code::K0302, Code::K0301, Code::K0304]);
}

#[test]
fn a_question_that_poison_cannot_answer_ends_the_scope_with_its_mistakes() {
    let codes = codes(|scope| {
        let x = scope.input("x", DType::F32, [2, 3]);
        let bad = x.matmul(&x);
        assert_eq!(bad.shape()[1], 3, "never reached");
        bad
    });
    assert_eq!(codes, [Code::K0301]);
}

#[test]
fn a_device_works_again_after_a_mistake_and_after_a_panic() {
    let device = cpu();
    let body = |scope: &Scope| scope.input("x", DType::F32, [2]).sum(3);
    assert!(device.capture_scope(body).is_err());
    let panicking = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        device.capture_scope(|_| -> Tensor { std::panic::panic_any("the user's own") })
    }));
    assert!(panicking.is_err());
    assert!(device.capture_scope(|scope| scope.input("x", DType::F32, [2]).exp()).is_ok());
}

#[test]
fn a_second_scope_on_a_device_is_refused_and_the_first_goes_on() {
    let device = cpu();
    let captured = device
        .capture_scope(|scope| {
            let inner = device.capture_scope(|_| ());
            assert_eq!(inner.map(|_| ()).map_err(|errors| errors.codes()), Err(vec![Code::K0104]));
            scope.input("x", DType::F32, [2]).exp()
        })
        .expect("the outer scope is sound");
    assert_eq!(captured.graph.nodes.len(), 2);
}

#[test]
fn a_node_carries_the_line_of_the_user_also_inside_a_composite() {
    let captured =
        cpu().capture_scope(|scope| scope.input("x", DType::F32, [2, 3]).softmax(1)).expect("a sound capture");
    let line = captured.graph.nodes[0].loc.line_column().map(|(line, _)| line);
    for node in &captured.graph.nodes {
        assert_eq!(node.loc.line_column().map(|(line, _)| line), line, "{}", node.op.name());
        assert!(node.loc.to_string().contains("tests.rs"), "{}", node.loc);
    }
}

#[test]
fn literals_take_the_dtype_of_the_tensor_beside_them() {
    let captured = cpu()
        .capture_scope(|scope| {
            let x = scope.input("x", DType::F16, [2]);
            let y = scope.input("y", DType::U8, [2]);
            (1.0 - x * 2.0 + 1, y % 3 + 2.0)
        })
        .expect("all of them fit");
    let dtypes: Vec<DType> = captured.graph.outputs.iter().map(|o| captured.graph.ty(o.value).dtype).collect();
    assert_eq!(dtypes, [DType::F16, DType::U8]);
}

#[test]
fn literals_that_do_not_fit_are_mistakes() {
    let codes = codes(|scope| {
        let (u, i) = (scope.input("u", DType::U8, [2]), scope.input("i", DType::I32, [2]));
        let (h, b) = (scope.input("h", DType::F16, [2]), scope.input("b", DType::Bool, [2]));
        let _mistakes = (&u + 300, &u - -1, i * 0.5, h + 1e6, b.eq(1));
        u
    });
    assert_eq!(codes, [Code::K0406; 5]);
}

#[test]
fn an_element_on_another_backend_is_named_by_its_position() {
    let errors = cpu()
        .capture_scope(|scope| {
            let (a, b) = (scope.input("a", DType::F32, [2]), scope.input("b", DType::F32, [2]));
            concat(&[&a, &b, &scope.on(Backend::Cuda).input("c", DType::F32, [2])], 0)
        })
        .expect_err("c is elsewhere");
    assert_eq!(errors.codes(), [Code::K0202]);
    assert!(errors.to_string().contains("element 2 of `concat` is on Cuda"), "{errors}");
}

#[test]
fn outputs_are_named_as_in_the_tree() {
    let captured = cpu()
        .capture_scope(|scope| {
            let x = scope.input("x", DType::F32, [2]);
            scope.output("marked", &x);
            (x.exp(), vec![x.log(), x.sin()])
        })
        .expect("a sound capture");
    let names: Vec<&str> = captured.graph.outputs.iter().map(|output| &*output.name).collect();
    assert_eq!(names, ["marked", "0", "1.0", "1.1"]);
}

#[test]
fn a_ticket_of_a_complete_scope_is_refused_by_a_later_one() {
    let mut escaped = None;
    let device = cpu();
    device.capture_scope(|scope| escaped = Some(scope.input("x", DType::F32, [2]))).map(|_| ()).expect("sound");
    let escaped = escaped.expect("it escaped");
    let again = device.capture_scope(|scope| scope.input("x", DType::F32, [2]) + &escaped);
    assert_eq!(again.map(|_| ()).map_err(|errors| errors.codes()), Err(vec![Code::K0105]));
    let alone = device.capture_scope(|_| escaped.exp());
    assert_eq!(alone.map(|_| ()).map_err(|errors| errors.codes()), Err(vec![Code::K0105]));
}

#[test]
#[should_panic(expected = "error[K0105]: capture scope is already complete")]
fn a_ticket_used_after_its_scope_panics_where_nothing_can_collect() {
    let mut escaped = None;
    cpu().capture_scope(|scope| escaped = Some(scope.input("x", DType::F32, [2]))).map(|_| ()).expect("sound");
    let _never = escaped.expect("it escaped").exp();
}

#[test]
fn a_vector_and_a_batch_multiply_by_numpys_rules() {
    let captured = cpu()
        .capture_scope(|scope| {
            let v = scope.input("v", DType::F32, [4]);
            let m = scope.input("m", DType::F32, [4, 5]);
            let b = scope.input("b", DType::F32, [7, 1, 3, 4]);
            let shapes = [v.matmul(&v), v.matmul(&m), b.matmul(&v), b.matmul(&m)].map(|t| t.shape().to_vec());
            assert_eq!(shapes, [vec![], vec![5], vec![7, 1, 3], vec![7, 1, 3, 5]]);
            b.matmul(&scope.input("c", DType::F32, [2, 4, 6]))
        })
        .expect("all fit");
    assert_eq!(captured.graph.ty(captured.graph.outputs[0].value).shape[..], [7, 2, 3, 6]);
}

#[test]
fn mistakes_show_the_users_operands_and_not_their_broadcasts() {
    let errors = cpu()
        .capture_scope(|scope| scope.input("x", DType::F32, [32, 10]) + scope.input("b", DType::I32, [10]))
        .expect_err("dtypes differ");
    let text = errors.to_string();
    assert!(text.contains("f32[32, 10] @cpu") && text.contains("i32[10] @cpu"), "{text}");
    assert_eq!(errors.codes(), [Code::K0402]);
}

#[test]
fn negative_constant_indices_count_from_the_end() {
    let captured = cpu()
        .capture_scope(|scope| scope.input("x", DType::F32, [4]).take(0, &scope.constant([-1, 0])))
        .expect("both are in range");
    let constant = captured.graph.nodes.iter().rev().find_map(|node| match &node.op {
        Op::Constant { data, .. } => Some(data.elements().map(|e| e.to_i128()).collect::<Vec<_>>()),
        _ => None,
    });
    assert_eq!(constant, Some(vec![3, 0]));
}

#[test]
fn methods_follow_an_operator_with_a_number_on_either_side() {
    let codes = codes(|scope| {
        let x = scope.input("x", DType::F32, [2]);
        let lr = 0.5f32;
        (1.0 - &x).exp() + (&x * 2.0).log() + (2 * &x).sin() + (&x + 1).cos() + &x * lr + (x % lr).tan()
    });
    assert_eq!(codes, []);
}

#[test]
fn every_row_of_the_op_table_has_a_method() {
    let captured = cpu()
        .capture_scope(|scope| {
            let (x, i) = (scope.input("x", DType::F32, [2]), scope.input("i", DType::I32, [2]));
            let float = [
                x.neg(),
                x.abs(),
                x.sign(),
                x.floor(),
                x.ceil(),
                x.round(),
                x.trunc(),
                x.sqrt(),
                x.rsqrt(),
                x.recip(),
                x.exp(),
                x.exp2(),
                x.expm1(),
                x.log(),
                x.log2(),
                x.log1p(),
                x.sin(),
                x.cos(),
                x.tan(),
                x.asin(),
                x.acos(),
                x.atan(),
                x.sinh(),
                x.cosh(),
                x.tanh(),
                x.asinh(),
                x.acosh(),
                x.atanh(),
                x.erf(),
                x.sigmoid(),
                x.add(&x),
                x.sub(&x),
                x.mul(&x),
                x.div(&x),
                x.rem(&x),
                x.maximum(&x),
                x.minimum(&x),
                x.pow(&x),
                x.atan2(&x),
                x.clamp(0, 1),
            ];
            let truth =
                [x.is_nan(), x.is_inf(), x.is_finite(), x.eq(&x), x.ne(&x), x.lt(&x), x.le(&x), x.gt(&x), x.ge(&x)];
            let int = [!&i, &i & &i, &i | 1, &i ^ &i, &i << &i, &i >> 2];
            (float.to_vec(), truth.to_vec(), int.to_vec())
        })
        .expect("all of them take these operands");
    let recorded = |op: ScalarOp| captured.graph.nodes.iter().any(|node| node.op == Op::Scalar(op));
    let missing: Vec<&ScalarOp> = ScalarOp::ALL.iter().filter(|&&op| !recorded(op)).collect();
    assert!(missing.is_empty(), "no method records {missing:?}");
}

#[test]
fn threads_may_record_into_one_scope_and_into_scopes_of_their_own() {
    let shared = cpu()
        .capture_scope(|scope| {
            let x = scope.input("x", DType::F32, [2]);
            std::thread::scope(|threads| {
                let recorders: Vec<_> = (0..4)
                    .map(|_| {
                        threads.spawn(|| {
                            let own = cpu().capture_scope(|scope| {
                                let y = scope.input("y", DType::F32, [3]);
                                (0..50).fold(y, |y, _| y.exp())
                            });
                            assert_eq!(own.expect("a sound capture").graph.nodes.len(), 51);
                            (0..50).fold(x.clone(), |x, _| x.sin())
                        })
                    })
                    .collect();
                recorders.into_iter().map(|recorder| recorder.join().expect("it ends")).collect::<Vec<Tensor>>()
            })
        })
        .expect("a sound capture");
    assert_eq!(shared.graph.nodes.len(), 1 + 4 * 50);
    assert_eq!(kiln_ir::verify(&shared.graph), Ok(()));
}

#[test]
fn a_thread_that_goes_on_after_the_end_of_a_scope_is_told_so() {
    let device = cpu();
    for _ in 0..20 {
        let mut late = Vec::new();
        let captured = device.capture_scope(|scope| {
            let x = scope.input("x", DType::F32, [2]);
            let ops: [fn(&Tensor) -> Tensor; 2] = [Tensor::exp, |x| crate::grad(x, |x| x.square().sum(..))];
            for op in ops {
                let x = x.clone();
                late.push(std::thread::spawn(move || {
                    loop {
                        op(&x);
                        std::thread::yield_now();
                    }
                }));
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
            x.sin()
        });
        assert!(captured.is_ok());
        for thread in late {
            let payload = thread.join().map(|_: ()| ()).expect_err("it never ends by itself");
            let text = payload.downcast_ref::<String>().expect("a formatted text");
            assert!(text.starts_with("error[K0105]: capture scope is already complete"), "{text}");
        }
    }
}

#[test]
fn a_key_is_a_tree_of_its_two_words() {
    let captured = cpu()
        .capture_scope(|scope| {
            let state = (Key::new(&scope.input("key", DType::U32, [2])), scope.input("x", DType::F32, [1]));
            assert_eq!(state.names(), ["0", "1"]);
            let (key, x) = state;
            let [draw, next] = key.split();
            (next, x + draw.uniform([1]))
        })
        .expect("a sound capture");
    let types: Vec<String> = captured.graph.outputs.iter().map(|o| captured.graph.ty(o.value).to_string()).collect();
    assert_eq!(types, ["u32[2] @cpu", "f32[1] @cpu"]);
}

#[test]
fn two_captures_of_one_program_print_the_same() {
    let program = |scope: &Scope| {
        let x = scope.input("x", DType::F32, [4, 3]);
        crate::value_and_grad(&x, |x| x.softmax(1).log().mean(..))
    };
    let text = || cpu().capture_scope(program).expect("a sound capture").graph.to_string();
    assert_eq!(text(), text());
}

#[test]
fn a_long_chain_of_ops_is_recorded_without_recursion() {
    let captured = std::thread::Builder::new()
        .stack_size(256 * 1024)
        .spawn(|| cpu().capture_scope(|scope| (0..10_000).fold(scope.input("x", DType::F32, []), |x, _| x.exp())))
        .expect("a thread starts")
        .join()
        .expect("it does not overflow");
    assert_eq!(captured.expect("a sound capture").graph.nodes.len(), 10_001);
}

#[test]
fn baked_numbers_and_tensors_are_listed_with_their_lines() {
    let captured = cpu()
        .capture_scope(|scope| scope.input("x", DType::F32, [2]) * 0.5 + scope.constant([1.0, 2.0]))
        .expect("a sound capture");
    let baked: Vec<String> = captured.baked().iter().map(|baked| format!("{} {}", baked.ty, baked.text)).collect();
    assert_eq!(baked.len(), 2);
    assert_eq!(baked[0], "f32[] @cpu 0.5");
    assert!(baked[1].starts_with("f32[2] @cpu HostData"), "{}", baked[1]);
    assert!(captured.baked().iter().all(|baked| baked.loc.to_string().contains("tests.rs")));
}

#[test]
fn debug_says_what_a_ticket_is_and_where_its_data_is_to_be_had() {
    let mut kept = None;
    let device = cpu();
    device
        .capture_scope(|scope| {
            let x = scope.input("x", DType::F32, [32, 10]);
            assert_eq!(
                format!("{x:?}"),
                "%0 f32[32, 10] @cpu (a ticket without data: return it from the capture, or `.tap(..)` it)"
            );
            kept = Some(x);
        })
        .map(|_| ())
        .expect("a sound capture");
    assert_eq!(
        format!("{:?}", kept.expect("it escaped")),
        "%0 f32[32, 10] @cpu (a ticket of a complete capture: its data is in the results of the compiled graph)"
    );
}

#[test]
fn a_scope_kept_beyond_its_end_declares_nothing_more() {
    let device = cpu();
    let mut kept = None;
    device.capture_scope(|scope| kept = Some(scope.clone())).map(|_| ()).expect("a sound capture");
    let kept = kept.expect("it escaped");
    let errors = device.capture_scope(|_| kept.input("x", DType::F32, [2])).map(|_| ());
    assert_eq!(errors.map_err(|errors| errors.codes()), Err(vec![Code::K0105]));
    let marked = device.capture_scope(|scope| kept.output("y", &scope.input("x", DType::F32, [2]))).map(|_| ());
    assert_eq!(marked.map_err(|errors| errors.codes()), Err(vec![Code::K0105]));
}

#[test]
fn numbers_may_be_baked_in_any_dtype_that_holds_them() {
    let codes = codes(|scope| {
        let sound = scope.constant_of(DType::F64, [2], [0.1, 0.2]);
        let exact: Vec<f64> = sound.try_data().expect("it is known").elements().map(|x| x.to_f64()).collect();
        assert_eq!(exact, [0.1, 0.2]);
        scope.constant_of(DType::U8, [1], [256]);
        scope.constant_of(DType::F32, [3], [1.0]);
        scope.constant([[1].to_vec(), vec![1, 2]])
    });
    assert_eq!(codes, [Code::K0406, Code::K0303, Code::K0303]);
}

#[test]
fn fail_fast_reports_a_stale_operand_of_a_composite() {
    let mut kept = None;
    let device = cpu();
    device.capture_scope(|scope| kept = Some(scope.input("x", DType::F32, [2]))).map(|_| ()).expect("sound");
    device.fail_fast();
    let stale = kept.expect("it escaped");
    let failing = std::panic::AssertUnwindSafe(|| device.capture_scope(|_| stale.softmax(0)).map(|_| ()));
    let payload = std::panic::catch_unwind(failing).expect_err("it fails at once");
    let text = payload.downcast_ref::<String>().expect("a formatted text");
    assert!(text.starts_with("error[K0105]"), "{text}");
}

#[test]
fn a_selection_between_numbers_has_their_dtype_and_beside_a_tensor_its_own() {
    let captured = cpu()
        .capture_scope(|scope| {
            let (mask, x) = (scope.input("mask", DType::Bool, [2]), scope.input("x", DType::F16, [2]));
            let numbers = (mask.select(1.0, 0), mask.select(1, 0.5), mask.select(1, 0), mask.select(true, false));
            (numbers, mask.select(&x, 0), mask.select(1, &x))
        })
        .expect("all of them fit");
    let dtypes: Vec<DType> = captured.graph.outputs.iter().map(|o| captured.graph.ty(o.value).dtype).collect();
    assert_eq!(dtypes, [DType::F32, DType::F32, DType::I32, DType::Bool, DType::F16, DType::F16]);
}
