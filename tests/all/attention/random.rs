//! Random shapes, spellings and numbers: forward and backward as the reference has them, on one thread and on two.

use kiln::prelude::*;
use kiln_capture::{Mask, attention, value_and_grad_aux};
use kiln_ir::{HostData, Literal};
use proptest::prelude::*;

use super::{agrees_on, arguments, attentions, capture, plan_of};

/// How one case is written.
#[derive(Clone, Copy, Debug)]
struct Spelling {
    scale: Scale,
    mask: Given,
    keys: Keys,
    dtype: DType,
}

#[derive(Clone, Copy, Debug)]
enum Scale {
    None,
    Query,
    Key,
    After,
    Divided,
}

#[derive(Clone, Copy, Debug)]
enum Given {
    Nothing,
    Added,
    PerBatch,
    Selected,
    Causal,
}

#[derive(Clone, Copy, Debug)]
enum Keys {
    Transposed,
    Crosswise,
    PermutedHeads,
}

fn spellings() -> impl Strategy<Value = Spelling> {
    let scale = prop::sample::select(vec![Scale::None, Scale::Query, Scale::Key, Scale::After, Scale::Divided]);
    let mask =
        prop::sample::select(vec![Given::Nothing, Given::Added, Given::PerBatch, Given::Selected, Given::Causal]);
    let keys = prop::sample::select(vec![Keys::Transposed, Keys::Crosswise, Keys::PermutedHeads]);
    let dtype = prop::sample::select(vec![DType::F32, DType::F32, DType::BF16, DType::F16, DType::F64]);
    (scale, mask, keys, dtype).prop_map(|(scale, mask, keys, dtype)| Spelling { scale, mask, keys, dtype })
}

#[derive(Clone, Copy, Debug)]
struct Extents {
    batch: usize,
    heads: usize,
    queries: usize,
    keys: usize,
    depth: usize,
    width: usize,
}

fn extents(rows: std::ops::Range<usize>) -> impl Strategy<Value = Extents> {
    (0..3usize, 1..4usize, rows.clone(), rows, 1..81usize, 1..81usize)
        .prop_map(|(batch, heads, queries, keys, depth, width)| Extents { batch, heads, queries, keys, depth, width })
}

fn spelled(scope: &Scope, parts: &[Tensor], spelling: Spelling, e: Extents) -> Tensor {
    let (mut q, mut k, v) = (parts[0].clone(), parts[1].clone(), parts[2].clone());
    match spelling.scale {
        Scale::Query => q = q * 0.3,
        Scale::Key => k = k * 0.3,
        Scale::None | Scale::After | Scale::Divided => {}
    }
    let mut scores = match spelling.keys {
        Keys::Transposed | Keys::PermutedHeads => q.matmul(&k.transpose()),
        Keys::Crosswise => k.matmul(&q.transpose()).transpose(),
    };
    match spelling.scale {
        Scale::After => scores = scores * 0.3,
        Scale::Divided => scores = scores / 3.5,
        Scale::None | Scale::Query | Scale::Key => {}
    }
    scores = match spelling.mask {
        Given::Nothing => scores,
        Given::Added => scores + scope.input("mask", spelling.dtype, [e.queries, e.keys]),
        Given::PerBatch => scores + scope.input("mask", spelling.dtype, [e.batch, 1, e.queries, e.keys]),
        Given::Selected => {
            let mask = scope.input("mask", DType::Bool, [e.queries, e.keys]);
            mask.select(scores, f64::NEG_INFINITY)
        }
        Given::Causal => {
            let mask = scope.tril_mask(e.queries, e.keys, e.keys as i32 - e.queries as i32);
            mask.select(scores, f64::NEG_INFINITY)
        }
    };
    scores.softmax(-1).matmul(&v)
}

fn part(scope: &Scope, name: &str, rows: usize, columns: usize, spelling: Spelling, e: Extents) -> Tensor {
    match spelling.keys {
        Keys::PermutedHeads => {
            scope.input(name, spelling.dtype, [e.batch, rows, e.heads, columns]).permute([0, 2, 1, 3])
        }
        Keys::Transposed | Keys::Crosswise => scope.input(name, spelling.dtype, [e.batch, e.heads, rows, columns]),
    }
}

fn parts(scope: &Scope, spelling: Spelling, e: Extents) -> Vec<Tensor> {
    vec![
        part(scope, "q", e.queries, e.depth, spelling, e),
        part(scope, "k", e.keys, e.depth, spelling, e),
        part(scope, "v", e.keys, e.width, spelling, e),
    ]
}

/// Captures a case, checks that it is recognised where there is anything to compute, and compares.
fn check(spelling: Spelling, e: Extents, seed: u64, backward: bool) {
    let captured = capture(|scope| {
        let parts = parts(scope, spelling, e);
        if !backward {
            return vec![spelled(scope, &parts, spelling, e)];
        }
        let g = part(scope, "g", e.queries, e.width, spelling, e);
        let loss = |parts: &Vec<Tensor>| {
            let out = spelled(scope, parts, spelling, e);
            ((&out * &g).cast(DType::F32).sum(..), out)
        };
        let ((_, out), mut gradients) = value_and_grad_aux(&parts, loss);
        gradients.push(out);
        gradients
    });
    if e.batch > 0 && e.keys > 1 {
        let plan = plan_of(&captured);
        assert_eq!(attentions(&plan), 1 + usize::from(backward), "{spelling:?} {e:?}\n{plan}");
    }
    agrees_on(&captured.graph, &arguments(&captured.graph, seed));
}

proptest! {
    #![proptest_config(crate::seeded(crate::under_test::tried(60)))]

    #[test]
    fn forward(spelling in spellings(), e in extents(1..40), seed in any::<u64>()) {
        check(spelling, e, seed, false);
    }

    #[test]
    fn backward(spelling in spellings(), e in extents(1..40), seed in any::<u64>()) {
        check(spelling, e, seed, true);
    }
}

proptest! {
    #![proptest_config(crate::seeded(8))]

    #[test]
    fn across_blocks_of_rows(spelling in spellings(), e in extents(120..300), seed in any::<u64>()) {
        let e = Extents { batch: 1, heads: 1 + e.heads / 3, depth: 1 + e.depth / 4, width: 1 + e.width / 4, ..e };
        let spelling = Spelling { dtype: DType::F32, ..spelling };
        check(spelling, e, seed, false);
        check(spelling, e, seed, true);
    }
}

/// Replaces one element of an argument.
fn with(mut inputs: Vec<HostData>, argument: usize, element: usize, number: f64) -> Vec<HostData> {
    let data = &inputs[argument];
    let mut elements: Vec<Literal> = data.elements().collect();
    elements[element] = Literal::from_f64(data.dtype(), number);
    inputs[argument] = HostData::from_literals(data.dtype(), data.shape(), &elements).unwrap();
    inputs
}

#[test]
fn nan_and_infinity_go_where_the_reference_has_them() {
    for mask in [Mask::None, Mask::Causal] {
        let captured = capture(|scope| {
            let [q, k, v, g] = ["q", "k", "v", "g"].map(|name| scope.input(name, DType::F32, [2, 140, 6]));
            value_and_grad(&vec![q, k, v], |p| (attention(&p[0], &p[1], &p[2], mask) * &g).sum(..)).1
        });
        for argument in 0..4 {
            for number in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e38] {
                // In the first rows, where few see it, and in the last, which few see.
                for element in [3, 6 * 135 + 2] {
                    let inputs = with(arguments(&captured.graph, 3), argument, element, number);
                    agrees_on(&captured.graph, &inputs);
                }
            }
        }
    }
}

#[test]
fn a_query_that_sees_no_key_is_nan_as_the_reference_has_it() {
    let captured = capture(|scope| {
        let [q, k, v, g] = ["q", "k", "v", "g"].map(|name| scope.input(name, DType::F32, [2, 5, 6]));
        let mask = scope.input("mask", DType::Bool, [5, 5]);
        value_and_grad(&vec![q, k, v], |p| (attention(&p[0], &p[1], &p[2], Mask::Allowed(mask)) * &g).sum(..))
    });
    let mut inputs = arguments(&captured.graph, 5);
    for element in 10..15 {
        inputs = with(inputs, 4, element, 0.0);
    }
    agrees_on(&captured.graph, &inputs);
}
