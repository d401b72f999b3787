//! Random programs with mistakes planted in them: nothing panics, and exactly the planted mistakes are told, in order.
//!
//! A program is a list of steps. Valid steps work on tensors that came out well. A planted mistake takes such tensors and goes wrong in one
//! way only, so the mistakes are independent of each other; what it gives is poison, and further steps use poison in every way they can,
//! which must say nothing.

use std::sync::Arc;

use kiln_capture::{
    CaptureDevice, Gradients, Mask, Scope, Tensor, attention, concat, cross_entropy, embedding, layer_norm, linear,
    mse, stack, value_and_grad, value_and_grad_aux,
};
use kiln_ir::{Backend, Code, DType, verify};
use proptest::prelude::*;

use crate::seeded;

/// One step: what is done, and on which of the tensors so far.
#[derive(Clone, Copy, Debug)]
enum Step {
    Valid { op: u8, a: u8, b: u8 },
    Mistake { kind: u8, a: u8, b: u8 },
    Echo { op: u8, a: u8, b: u8 },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        5 => any::<(u8, u8, u8)>().prop_map(|(op, a, b)| Step::Valid { op, a, b }),
        3 => any::<(u8, u8, u8)>().prop_map(|(kind, a, b)| Step::Mistake { kind, a, b }),
        2 => any::<(u8, u8, u8)>().prop_map(|(op, a, b)| Step::Echo { op, a, b }),
    ];
    prop::collection::vec(step, 1..40)
}

/// Whether lists with some tracked elements are a mistake.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Lists {
    Promoting,
    Strict,
}

/// A program while it is recorded.
struct Program<'s> {
    device: &'s CaptureDevice,
    scope: &'s Scope,
    lists: Lists,
    /// Floats that came out well, all of shape `[2, 3]`, on any backend.
    sound: Vec<Tensor>,
    poison: Vec<Tensor>,
    names: usize,
    planted: Vec<Code>,
    /// A ticket of a capture that is complete.
    stale: &'s Tensor,
}

impl Program<'_> {
    fn name(&mut self) -> String {
        self.names += 1;
        format!("input {}", self.names)
    }

    /// A new input.
    fn input<const N: usize>(&mut self, backend: Backend, dtype: DType, shape: [usize; N]) -> Tensor {
        let name = self.name();
        self.scope.on(backend).input(&name, dtype, shape)
    }

    fn like(&mut self, x: &Tensor) -> Tensor {
        self.input(x.backend(), DType::F32, [2, 3])
    }

    fn elsewhere(&mut self, x: &Tensor) -> Tensor {
        self.input(other(x.backend()), DType::F32, [2, 3])
    }

    fn pick(&self, index: u8) -> Tensor {
        self.sound[index as usize % self.sound.len()].clone()
    }

    /// Tensors that may be joined: in a strict capture all of them are tracked, or none.
    fn fellow(&mut self, x: &Tensor) -> Tensor {
        let y = self.like(x);
        if self.lists == Lists::Strict && x.is_tracked() { Tensor::from_inner(&y) } else { y }
    }

    fn valid(&mut self, op: u8, a: u8, b: u8) {
        let x = self.pick(a);
        let y = self.pick(b).to(x.backend());
        let made = match op % 16 {
            0 => x.exp() - &y,
            1 => (&x * 0.5).maximum(1.0 - &y),
            2 => x.softmax(1) + y.sum_keepdim(0),
            3 => concat(&[&x, &self.fellow(&x)], 1).slice(1, 1..4),
            4 => stack(&[&x, &x, &self.fellow(&x)], 0).at(0, 2),
            5 => linear(&x, &self.input(x.backend(), DType::F32, [3, 3]), None) + &y,
            6 => layer_norm(&x, Some(&y.at(0, 1)), None, 1e-5),
            7 => x.to(other(x.backend())),
            8 => x.detach() * y,
            9 => x.require_grad(),
            10 => self.trained(&x, &y),
            11 => value_and_grad(&x, |x| (x * &y).tanh().sum(..)).1,
            12 => value_and_grad_aux(&x, |x| (mse(x, &y), x.gt(0.0).select(x, &y))).0.1,
            13 => attention(&x, &x, &y, Mask::Causal),
            14 => x.reshape([3, 2]).transpose().powi(2) / 3.0,
            _ => value_and_grad(&y, |y| value_and_grad(y, |y| (y * &x).square().sum(..)).1.sum(..)).1,
        };
        assert!(!made.is_poisoned(), "a valid step went wrong");
        self.sound.push(made);
    }

    /// A step of descent by marks.
    fn trained(&mut self, x: &Tensor, y: &Tensor) -> Tensor {
        let w = x.detach().require_grad();
        let mut gradients = (&w * y.detach()).square().sum(..).backward();
        let clipped = w.grad(&gradients).clamp(-1.0, 1.0);
        w.grad_replace(&mut gradients, clipped);
        w.inner() - w.grad_remove(&mut gradients) * 0.1
    }

    /// Goes wrong once, in one way.
    fn mistake(&mut self, kind: u8, a: u8, b: u8) {
        let x = self.pick(a);
        let here = x.backend();
        let (code, made) = match kind % 41 {
            0 => (Code::K0201, &x + self.elsewhere(&x)),
            1 => (Code::K0201, x.clamp(-1.0, self.elsewhere(&x))),
            2 => (Code::K0201, x.clamp(self.like(&x), self.elsewhere(&x))),
            3 => (Code::K0201, self.input(other(here), DType::Bool, [3]).select(&x, 0.0)),
            4 => (Code::K0201, x.matmul(&self.input(other(here), DType::F32, [3, 2]))),
            5 => (Code::K0201, x.take(0, &self.input(other(here), DType::I32, [2]))),
            6 => {
                let w = x.detach().require_grad();
                let mut gradients = w.sum(..).backward();
                w.grad_replace(&mut gradients, self.elsewhere(&x));
                (Code::K0201, w.grad(&gradients))
            }
            7 => (Code::K0202, concat(&[&x, &self.elsewhere(&x), &x], 0)),
            8 => (Code::K0202, stack(&[&self.elsewhere(&x).detach(), &x, &x], b as isize % 3)),
            9 => (Code::K0203, concat(&[&x, &x, &self.elsewhere(&x).require_grad()], 0)),
            10 => (Code::K0203, stack(&[&x, &self.elsewhere(&x).require_grad().exp(), &x], 0)),
            11 => (Code::K0204, linear(&x, &self.input(other(here), DType::F32, [3, 4]), None)),
            12 => (Code::K0204, attention(&x, &self.elsewhere(&x), &x, Mask::None)),
            13 => (Code::K0204, embedding(&x, &self.input(other(here), DType::I32, [5]))),
            14 => (Code::K0204, cross_entropy(&x, &self.input(other(here), DType::I32, [2]))),
            15 => (Code::K0204, mse(&x, &self.elsewhere(&x))),
            16 => {
                let (weight, bias) = (self.input(here, DType::F32, [3, 4]), self.input(other(here), DType::F32, [4]));
                (Code::K0205, linear(&x, &weight, Some(&bias)))
            }
            17 => (Code::K0205, attention(&x, &x, &x, Mask::Added(self.input(other(here), DType::F32, [2, 2])))),
            18 => (Code::K0205, layer_norm(&x, Some(&self.input(other(here), DType::F32, [3])), None, 1e-5)),
            19 => (Code::K0301, x.matmul(&self.input(here, DType::F32, [2, 3]))),
            20 => (Code::K0302, &x * self.input(here, DType::F32, [2, 4])),
            21 => (Code::K0303, x.reshape([5, -1])),
            22 => (Code::K0304, x.sum(b as isize % 5 + 2)),
            23 => (Code::K0304, x.softmax(-3)),
            24 => (Code::K0305, concat(&[&x, &self.fellow(&x).reshape([3, 2])], 0)),
            25 => (Code::K0308, x.slice(1, 2..5)),
            26 => (Code::K0311, x.take(1, &self.scope.on(here).constant([0, 3]))),
            27 => (Code::K0312, if b.is_multiple_of(2) { concat(&[], 0) } else { stack(&[], 0) }),
            28 => (Code::K0402, &x + self.input(here, DType::I32, [2, 3])),
            29 => (Code::K0401, self.input(here, DType::I32, [2, 3]).softmax(1)),
            30 => (Code::K0403, !&x),
            31 => (Code::K0406, self.input(here, DType::U8, [3]) + 300),
            32 => (Code::K0105, &x + self.stale),
            33 => (Code::K0105, linear(self.stale, self.stale, None)),
            34 => (Code::K0107, {
                let name = self.name();
                self.scope.input(&name, DType::F32, [2]);
                self.scope.on(other(here)).input(&name, DType::F32, [2])
            }),
            35 => (Code::K0502, self.input(here, DType::I32, [3]).require_grad()),
            36 => {
                let w = x.detach();
                (Code::K0503, w.grad(&w.square().sum(..).backward()))
            }
            37 => (Code::K0504, Tensor::from_inner(x.require_grad())),
            38 => {
                let w = x.detach().require_grad();
                let hidden = w.exp();
                (Code::K0507, hidden.grad(&hidden.sum(..).backward()))
            }
            39 => {
                let mut kept = None;
                let gradient = value_and_grad(&x, |x| {
                    kept = Some(x.sin());
                    x.square().sum(..)
                });
                (Code::K0508, gradient.1 + kept.expect("the loss was called"))
            }
            _ => {
                let w = x.detach().require_grad();
                let bits = w.bitcast(DType::I32).bitcast(DType::F32);
                (Code::K0505, w.grad(&bits.sum(..).backward()))
            }
        };
        assert!(made.is_poisoned(), "{code} gives poison");
        self.planted.push(code);
        self.poison.push(made);
    }

    /// Untracked beside tracked in a list: a mistake in strict captures alone.
    fn unlike_elements(&mut self, a: u8) {
        let x = self.pick(a).require_grad();
        let joined = concat(&[&x, &self.like(&x)], 0);
        match self.lists {
            Lists::Promoting => self.sound.push(joined.slice(0, 1..3)),
            Lists::Strict => {
                self.planted.push(Code::K0506);
                self.poison.push(joined);
            }
        }
    }

    /// Goes wrong where no tensor comes of it.
    fn mistake_of_the_scope(&mut self, kind: u8, a: u8) {
        let x = self.pick(a);
        let code = if kind.is_multiple_of(2) {
            let name = self.name();
            self.scope.output(&name, &x);
            self.scope.output(&name, &x);
            Code::K0107
        } else {
            self.device.seed(u64::from(a));
            Code::K0103
        };
        self.planted.push(code);
    }

    /// Uses poison, which says nothing.
    fn echo(&mut self, op: u8, a: u8, b: u8) {
        let Some(bad) = self.poison.get(b as usize % self.poison.len().max(1)).cloned() else { return };
        let x = self.pick(a);
        let y = self.elsewhere(&x);
        let gradients = |loss: &Tensor| -> Gradients { loss.backward() };
        let made = match op % 16 {
            0 => bad.exp(),
            1 => &bad + &x,
            2 => x.clamp(&bad, &y),
            3 => concat(&[&x, &bad, &y], 7),
            4 => stack(&[&bad, &y, &x], 0),
            5 => linear(&x, &bad, Some(&y)),
            6 => attention(&bad, &y, &x, Mask::Allowed(x.gt(0.0))),
            7 => layer_norm(&y, Some(&x), Some(&bad), 1e-5),
            8 => bad.softmax(9).reshape([5, 5]).sum(3).at(4, 4),
            9 => value_and_grad(&bad, |bad| (bad * &x).sum(..)).1,
            10 => value_and_grad(&x, |x| (x * &bad).sum(..)).1,
            11 => bad.require_grad().inner(),
            12 => Tensor::from_inner(bad.cast(DType::I32)).to(Backend::Cuda),
            13 => x.require_grad().grad(&gradients(&bad)),
            14 => {
                let w = x.detach().require_grad();
                let mut gradients = w.sum(..).backward();
                w.grad_replace(&mut gradients, &bad);
                w.grad(&gradients)
            }
            _ => bad.one_hot(3, DType::F32).cumsum(8).tril(0).mean(..),
        };
        assert!(made.is_poisoned(), "what is made of poison is poison");
        self.poison.push(made);
    }
}

fn other(backend: Backend) -> Backend {
    match backend {
        Backend::NdArray => Backend::Cpu,
        Backend::Cpu => Backend::Wgpu,
        Backend::Wgpu => Backend::Cuda,
        Backend::Cuda => Backend::NdArray,
    }
}

/// Records a program, and compares what is told with what was planted.
fn check(device: &CaptureDevice, lists: Lists, stale: &Tensor, steps: &[Step]) {
    let mut planted = Vec::new();
    let captured = device.capture_scope(|scope| {
        let mut program = Program {
            device,
            scope,
            lists,
            sound: Vec::new(),
            poison: Vec::new(),
            names: 0,
            planted: Vec::new(),
            stale,
        };
        for backend in Backend::ALL {
            let x = program.input(backend, DType::F32, [2, 3]);
            program.sound.push(x);
        }
        for &step in steps {
            match step {
                Step::Valid { op, a, b } => program.valid(op, a, b),
                Step::Mistake { kind: 0..12, a, .. } => program.unlike_elements(a),
                Step::Mistake { kind: kind @ 12..16, a, .. } => program.mistake_of_the_scope(kind, a),
                Step::Mistake { kind, a, b } => program.mistake(kind, a, b),
                Step::Echo { op, a, b } => program.echo(op, a, b),
            }
        }
        planted = std::mem::take(&mut program.planted);
        program.sound
    });
    match captured {
        Ok(captured) => {
            assert_eq!(planted, [], "all of them are told");
            assert_eq!(verify(&captured.graph), Ok(()));
        }
        Err(errors) => {
            assert_eq!(errors.codes(), planted, "{errors}");
            assert!(errors.iter().all(|error| !error.loc.is_unknown()), "each has its line: {errors}");
        }
    }
}

fn stale() -> Tensor {
    let mut kept = None;
    let first =
        CaptureDevice::new(Backend::Cpu).capture_scope(|scope| kept = Some(scope.input("x", DType::F32, [2, 3])));
    assert!(first.is_ok());
    kept.expect("it was declared")
}

/// Programs on one device: what went before leaves no trace.
#[track_caller]
fn fuzz(lists: Lists) {
    let device = CaptureDevice::new(Backend::Cpu);
    if lists == Lists::Strict {
        device.strict();
    }
    let (device, stale) = (Arc::new(device), stale());
    proptest!(seeded(1500), |(steps in steps())| {
        check(&device, lists, &stale, &steps);
    });
}

#[test]
fn exactly_the_planted_mistakes_are_told() {
    fuzz(Lists::Promoting);
}

#[test]
fn exactly_the_planted_mistakes_are_told_in_strict_captures() {
    fuzz(Lists::Strict);
}

#[test]
fn each_mistake_alone_is_told_once() {
    let (device, stale) = (CaptureDevice::new(Backend::Cpu), stale());
    for kind in 0..=255 {
        let echoes = (0..16).map(|op| Step::Echo { op, a: op, b: op });
        let steps: Vec<Step> = std::iter::once(Step::Mistake { kind, a: kind, b: kind }).chain(echoes).collect();
        check(&device, Lists::Promoting, &stale, &steps);
    }
}

#[test]
fn a_program_without_mistakes_is_captured() {
    let (device, stale) = (CaptureDevice::new(Backend::Cpu), stale());
    for op in 0..16 {
        check(&device, Lists::Strict, &stale, &[Step::Valid { op, a: 1, b: 2 }, Step::Valid { op, a: 4, b: 4 }]);
    }
}
