//! The bytes that a plan says its kernels move are those that an instrumented run sees: `run_plan_counted` runs every kernel point by point
//! and notes each element that is loaded or stored.

use kiln::prelude::*;
use kiln_capture::{CapturedGraph, Mask, Scope, attention, concat, layer_norm};
use kiln_ir::kernel::{Block, Kernel, Operation, Stage};
use kiln_ir::plan::{Plan, Traffic};
use kiln_ir::{Graph, HostData};
use kiln_passes::{Fusion, Options, Reuse, compile};
use kiln_runtime::reference::{Arguments, Walk, run_plan_counted};

use crate::data::{Source, Values, tensor};
use crate::random::{Config, cases};

/// Data for a graph: integers are small indices.
fn inputs(graph: &Graph) -> Vec<HostData> {
    let mut source = Source::new(11);
    let types = graph.inputs.iter().map(|&input| graph.ty(input));
    types.map(|ty| tensor(ty.dtype, &ty.shape, Values::NearOne, &mut source)).collect()
}

/// What each launch says and what was seen of it.
fn counted(plan: &Plan, inputs: &[HostData], arguments: Arguments) -> Vec<(Traffic, Traffic)> {
    let (_, seen) = run_plan_counted(plan, inputs, Walk::Forward, arguments).expect("a plan that keeps the rules");
    plan.launches().map(|launch| launch.bytes).zip(seen).collect()
}

#[track_caller]
fn agrees(graph: &Graph, options: &Options) {
    let plan = compile(graph, options).unwrap();
    for (index, (said, seen)) in counted(&plan, &inputs(graph), Arguments::Lent).into_iter().enumerate() {
        assert_eq!(said, seen, "launch {index} of\n{plan}");
    }
}

fn capture<R: kiln_ir::tree::Tree<Tensor>>(body: impl FnOnce(&Scope) -> R) -> CapturedGraph {
    CaptureDevice::new(Backend::Cpu).capture_scope(body).unwrap()
}

/// Fused, and one kernel per op.
#[track_caller]
fn agree<R: kiln_ir::tree::Tree<Tensor>>(body: impl FnOnce(&Scope) -> R) {
    let captured = capture(body);
    agrees(&captured.graph, &Options::default());
    agrees(&captured.graph, &Options { fusion: Fusion::Off, reuse: Reuse::Off, ..Options::default() });
}

fn matrix(scope: &Scope, name: &str, shape: [usize; 2]) -> Tensor {
    scope.input(name, DType::F32, shape)
}

#[test]
fn attention_and_its_gradient_move_what_they_say() {
    let three = |scope: &Scope| {
        vec![("q", 5), ("k", 7), ("v", 7)].into_iter().map(|(name, rows)| matrix(scope, name, [rows, 4])).collect()
    };
    agree(|scope| {
        let parts: Vec<Tensor> = three(scope);
        attention(&parts[0], &parts[1], &parts[2], Mask::Causal)
    });
    agree(|scope| {
        let weights = matrix(scope, "weights", [5, 4]);
        value_and_grad(&three(scope), |p: &Vec<Tensor>| {
            (attention(&p[0], &p[1], &p[2], Mask::Causal) * &weights).sum(..)
        })
    });
}

#[test]
fn softmax_and_its_gradient_move_what_they_say() {
    agree(|scope| matrix(scope, "x", [20, 12]).softmax(1));
    agree(|scope| {
        let weights = matrix(scope, "weights", [20, 12]);
        value_and_grad(&matrix(scope, "x", [20, 12]), |x| (x.log_softmax(1) * &weights).sum(..))
    });
}

#[test]
fn layer_norm_and_its_gradients_move_what_they_say() {
    agree(|scope| {
        let (weight, bias) = (scope.input("w", DType::F32, [12]), scope.input("b", DType::F32, [12]));
        let leaves = (matrix(scope, "x", [20, 12]), weight, bias);
        value_and_grad(&leaves, |(x, w, b)| layer_norm(x, Some(w), Some(b), 1e-5).square().sum(..))
    });
}

#[test]
fn reductions_over_any_axes_move_what_they_say() {
    agree(|scope| {
        let x = scope.input("x", DType::F32, [6, 5, 4]);
        vec![x.sum(0), x.max(1), x.mean(2), x.sum(..), x.argmax(1), x.sum_keepdim(1) * &x]
    });
}

#[test]
fn products_with_epilogue_transposes_and_batches_move_what_they_say() {
    agree(|scope| {
        let (x, w, b) = (matrix(scope, "x", [9, 7]), matrix(scope, "w", [5, 7]), scope.input("b", DType::F32, [5]));
        (x.matmul(&w.transpose()) + b).relu()
    });
    agree(|scope| {
        let (q, k) = (scope.input("q", DType::F32, [2, 3, 4, 6]), scope.input("k", DType::F32, [2, 1, 5, 6]));
        q.matmul(&k.broadcast_to([2, 3, 5, 6]).transpose()) * 0.5
    });
}

#[test]
fn views_move_what_they_say() {
    agree(|scope| {
        let (x, y) = (matrix(scope, "x", [8, 6]), matrix(scope, "y", [8, 4]));
        let joined = concat(&[&x, &y], 1);
        let halves = x.slice(1, 0..3) * x.slice(1, 3..6) + x.slice(1, 2..5);
        let shifted = x.pad(&[(1, 2), (0, 0)], 0.0).slice(0, 0..8) + &x + x.pad(&[(0, 0), (2, 0)], 0.0).slice(1, 0..6);
        let turned = x.flip(1) + x.reshape([6, 8]).transpose() + x.slice(0, 0..4).pad(&[(2, 2), (0, 0)], 1.0);
        (joined, halves, shifted, turned)
    });
}

#[test]
fn scans_move_what_they_say() {
    agree(|scope| matrix(scope, "x", [5, 9]).cumsum(1) + matrix(scope, "y", [5, 9]).exp().cumsum(0));
}

#[test]
fn a_training_step_with_adam_moves_what_it_says_in_place_and_not() {
    let (captured, options) = crate::fusion::training_step();
    agrees(&captured.graph, &Options::default());
    let plan = compile(&captured.graph, &options).unwrap();
    for (said, seen) in counted(&plan, &inputs(&captured.graph), Arguments::Donated) {
        assert_eq!(said, seen, "{plan}");
    }
}

#[test]
fn a_gather_reads_at_most_what_it_says_and_that_where_all_indices_differ() {
    let captured = capture(|scope| {
        let (table, ids) = (matrix(scope, "table", [10, 4]), scope.input("ids", DType::I32, [6]));
        table.take(0, &ids) * 2.0
    });
    let plan = compile(&captured.graph, &Options::default()).unwrap();
    let table = tensor(DType::F32, [10, 4], Values::Tame, &mut Source::new(1));
    let ids = |ids: [i64; 6]| {
        let ids = ids.map(|id| kiln_ir::Literal::from_i128(DType::I32, i128::from(id)));
        HostData::from_literals(DType::I32, [6], &ids).unwrap()
    };
    let read = |indices: [i64; 6]| {
        let counted = counted(&plan, &[table.clone(), ids(indices)], Arguments::Lent);
        let [(said, seen)] = counted[..] else { panic!("one kernel") };
        assert_eq!(said, Traffic { read: (6 * 4 + 6) * 4, written: 6 * 4 * 4 });
        assert_eq!(said.written, seen.written);
        seen.read
    };
    assert_eq!(read([3, 1, 4, 0, 5, 9]), (6 * 4 + 6) * 4);
    assert_eq!(read([3, 3, 3, 3, 3, 3]), (4 + 6) * 4);
}

#[test]
fn a_scatter_writes_at_most_what_it_says_and_that_where_all_indices_differ() {
    let captured = capture(|scope| {
        let (table, ids) = (matrix(scope, "table", [10, 4]), scope.input("ids", DType::I32, [6]));
        table.index_add(0, &ids, matrix(scope, "updates", [6, 4]))
    });
    let plan = compile(&captured.graph, &Options::default()).unwrap();
    let mut given = inputs(&captured.graph);
    let mut written = |indices: [i64; 6]| {
        let ids = indices.map(|id| kiln_ir::Literal::from_i128(DType::I32, i128::from(id)));
        given[1] = HostData::from_literals(DType::I32, [6], &ids).unwrap();
        let counted = counted(&plan, &given, Arguments::Lent);
        let [(said, seen)] = counted[..] else { panic!("one kernel") };
        // Updates, indices, and the elements that are added to.
        assert_eq!(said, Traffic { read: (6 * 4 + 6 + 6 * 4) * 4, written: 6 * 4 * 4 });
        seen
    };
    assert_eq!(written([3, 1, 4, 0, 5, 9]), Traffic { read: (6 * 4 + 6 + 6 * 4) * 4, written: 6 * 4 * 4 });
    assert_eq!(written([3, 3, 3, 3, 3, 12]).written, 4 * 4);
}

fn block(stage: &Stage) -> &Block {
    match stage {
        Stage::Point(block) | Stage::Each(block) | Stage::Fold { block, .. } => block,
    }
}

/// Whether where a kernel goes depends on what it finds.
fn follows_data(kernel: &Kernel) -> bool {
    let blocks: Vec<&Block> = match kernel {
        Kernel::Loop(kernel) => kernel.stages.iter().map(block).collect(),
        Kernel::Horizontal(kernel) => kernel.parts.iter().flat_map(|part| &part.kernel.stages).map(block).collect(),
        Kernel::MatMul(kernel) => vec![&kernel.lhs.block, &kernel.rhs.block, &kernel.epilogue],
        Kernel::Attention(kernel) => kernel.blocks().into_iter().map(|(block, ..)| block).collect(),
        Kernel::Scan(kernel) => vec![&kernel.block],
        Kernel::Scatter(_) => return true,
        Kernel::Custom(_) => return false,
    };
    let mut instructions = blocks.into_iter().flat_map(|block| &block.instructions);
    instructions.any(|instruction| match &instruction.operation {
        Operation::Load { address, .. } => !address.computed.is_empty(),
        _ => false,
    })
}

proptest::proptest! {
    #![proptest_config(crate::seeded(400))]

    #[test]
    fn random_graphs_move_what_they_say(
        case in cases(Config { steps: 30, max_elements: 80, ..Config::default() }),
        fused in proptest::bool::ANY,
    ) {
        let fusion = if fused { Fusion::On } else { Fusion::Off };
        let plan = compile(&case.graph, &Options { fusion, ..Options::default() }).expect("valid graphs compile");
        let found = counted(&plan, &case.inputs, Arguments::Lent);
        for (launch, (said, seen)) in plan.launches().zip(found) {
            if follows_data(&launch.kernel) {
                proptest::prop_assert!(said.read >= seen.read && said.written >= seen.written, "{said:?} {seen:?}\n{}", launch.kernel);
            } else {
                proptest::prop_assert_eq!(said, seen, "{}", launch.kernel);
            }
        }
    }
}
