//! Random differentiable programs: marks and `value_and_grad` give the same bits, of first and of second order and nested in each other, and
//! the CPU agrees with the reference about them.

use kiln_capture::{CaptureDevice, Tensor, concat, layer_norm, value_and_grad};
use kiln_ir::{Backend, DType, Graph, HostData};
use kiln_runtime::reference::evaluate;
use proptest::prelude::*;

use crate::check::check;
use crate::data::{Source, Values, tensor};
use crate::seeded;
use crate::under_test::tried;

const SHAPE: [usize; 2] = [2, 3];

/// A scalar loss of two tensors: each step makes one more tensor of those so far.
fn loss(w: &Tensor, v: &Tensor, steps: &[(u8, u8, u8)]) -> Tensor {
    let mut made = vec![w.clone(), v.clone()];
    for &(op, a, b) in steps {
        let (x, y) = (made[a as usize % made.len()].clone(), made[b as usize % made.len()].clone());
        made.push(match op % 14 {
            0 => &x + &y,
            1 => (&x - y).tanh(),
            2 => (&x * 0.5) * y.sin(),
            3 => x / (y.square() + 1.0),
            4 => x.softmax(1),
            5 => x.sigmoid() * y.sum_keepdim(0),
            6 => x.matmul(&y.transpose()).tanh().matmul(&x),
            7 => concat(&[&x, &y], 1).slice(1, 2..5),
            8 => layer_norm(&x, Some(&y.at(0, 0)), None, 1e-3),
            9 => x.log_softmax(0) * 0.1,
            10 => x.reshape([3, 2]).transpose().cos(),
            11 => x.detach() * y,
            12 => value_and_grad(&x, |x| (x * &y).sin().sum(..)).1,
            _ => x.cumsum(1).tanh(),
        });
    }
    let last = made.last().expect("two were there at the start");
    (last * w + last.square() * v).mean(..)
}

/// How gradients are taken.
#[derive(Clone, Copy, Debug)]
enum Way {
    Marks,
    Function,
    /// The first gradient by marks, the second by `value_and_grad` around it.
    MarksInFunction,
    /// The first by `value_and_grad`, the second by marks.
    FunctionInMarks,
}

/// The gradients of a loss, and those of the sum of squares of these.
fn gradients(way: Way, w: &Tensor, v: &Tensor, steps: &[(u8, u8, u8)]) -> Vec<Tensor> {
    let model = [w.clone(), v.clone()];
    let by_function = |model: &[Tensor; 2]| value_and_grad(model, |[w, v]| loss(w, v, steps)).1;
    let by_marks = |model: &[Tensor; 2]| {
        let [w, v] = model.each_ref().map(Tensor::require_grad);
        loss(&w, &v, steps).backward().of(&[w, v])
    };
    let squares = |gradients: &[Tensor; 2]| gradients[0].square().sum(..) + gradients[1].square().sum(..);
    let first = match way {
        Way::Marks | Way::MarksInFunction => by_marks(&model),
        Way::Function | Way::FunctionInMarks => by_function(&model),
    };
    let second = match way {
        Way::Marks | Way::FunctionInMarks => {
            let outer = model.map(|tensor| tensor.require_grad());
            let first = if matches!(way, Way::Marks) { by_marks(&outer) } else { by_function(&outer) };
            squares(&first).backward().of(&outer)
        }
        Way::MarksInFunction => value_and_grad(&model, |model| squares(&by_marks(model))).1,
        Way::Function => value_and_grad(&model, |model| squares(&by_function(model))).1,
    };
    first.into_iter().chain(second).collect()
}

fn graph(way: Way, steps: &[(u8, u8, u8)]) -> Graph {
    let captured = CaptureDevice::new(Backend::Cpu).capture_scope(|scope| {
        let [w, v] = ["w", "v"].map(|name| scope.input(name, DType::F32, SHAPE));
        gradients(way, &w, &v, steps)
    });
    captured.expect("a sound program").graph
}

fn inputs() -> [HostData; 2] {
    let mut source = Source::new(7);
    [(); 2].map(|()| tensor(DType::F32, SHAPE, Values::NearOne, &mut source))
}

fn steps(longest: usize) -> impl Strategy<Value = Vec<(u8, u8, u8)>> {
    prop::collection::vec(any::<(u8, u8, u8)>(), 0..longest)
}

#[test]
fn every_way_to_take_gradients_gives_the_same_bits() {
    let inputs = inputs();
    proptest!(seeded(150), |(steps in steps(8))| {
        let run = |way| evaluate(&graph(way, &steps), &inputs).expect("the reference runs it");
        let expected = run(Way::Function);
        for way in [Way::Marks, Way::MarksInFunction, Way::FunctionInMarks] {
            assert!(run(way) == expected, "{way:?}: {steps:?}");
        }
    });
}

#[test]
fn the_cpu_agrees_about_gradients_of_marked_tensors() {
    proptest!(seeded(tried(12)), |(steps in steps(5))| {
        check(&graph(Way::Marks, &steps), &inputs());
    });
}
