//! Steps replayed as one CUDA graph: never stale, whatever moves between calls. These tests need a device.

use kiln::prelude::*;
use kiln_capture::value_and_grad;
use kiln_runtime::{Argument, Executable};

use kiln::Options;

const ROWS: usize = 16;
const FEATURES: usize = 12;
const HIDDEN: usize = 24;
const LEAVES: usize = 7;

/// How runs are handed over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    /// As they are: the first launch by launch, the others as a graph.
    Usual,
    /// Launch by launch.
    OneByOne,
}

/// One step of Adam on a network with a hidden layer: state (two weights, their moments, a count), data, labels, learning rate; the new state and the
/// loss.
struct Trainer {
    executable: Executable,
    device: Device,
    way: Way,
}

type State = Vec<Array>;

impl Trainer {
    fn new(way: Way) -> Trainer {
        let device = Device::cuda(0).unwrap_or_else(|error| panic!("these tests need a device: {error}"));
        let captured = CaptureDevice::new(Backend::Cuda)
            .capture_scope(|scope| {
                let shapes = [[FEATURES, HIDDEN], [HIDDEN, 1]];
                let leaf = |name: &str, at: usize| scope.input(&format!("{name}{at}"), DType::F32, shapes[at]);
                let weights = [leaf("w", 0), leaf("w", 1)];
                let means = [leaf("m", 0), leaf("m", 1)];
                let squares = [leaf("v", 0), leaf("v", 1)];
                let count = scope.input("count", DType::F32, [1, 1]);
                let x = scope.input("x", DType::F32, [ROWS, FEATURES]);
                let labels = scope.input("labels", DType::F32, [ROWS, 1]);
                let rate = scope.input("rate", DType::F32, [1, 1]);
                let both = (weights[0].clone(), weights[1].clone());
                let (loss, (first, second)) = value_and_grad(&both, |(first, second)| {
                    (x.matmul(first).tanh().matmul(second) - &labels).square().mean(..)
                });
                let next = &count + 1.0;
                let mut outputs = (Vec::new(), Vec::new(), Vec::new());
                for (at, gradient) in [first, second].iter().enumerate() {
                    let mean = &means[at] * 0.9 + gradient * 0.1;
                    let square = &squares[at] * 0.99 + gradient.square() * 0.01;
                    let step = &mean / (square.sqrt() + 1e-6) * (&rate / (&next * 0.01 + 1.0));
                    outputs.0.push(&weights[at] - step);
                    outputs.1.push(mean);
                    outputs.2.push(square);
                }
                (outputs, next, loss)
            })
            .unwrap();
        let options = Options { donate: (0..LEAVES).map(|leaf| (leaf, leaf)).collect(), ..Options::default() };
        let executable = kiln::compile_with(&captured, &options, &device).unwrap().into();
        Trainer { executable, device, way }
    }

    fn array(&self, seed: usize, shape: [usize; 2]) -> Array {
        let number = |at: usize| ((at * 7919 + seed * 104_729) % 1009) as f32 / 504.5 - 1.0;
        let numbers: Vec<f32> = (0..shape[0] * shape[1]).map(number).collect();
        Array::from_slice(&self.device, &numbers, shape).unwrap()
    }

    fn state(&self, seed: usize) -> State {
        let mut state = vec![self.array(seed, [FEATURES, HIDDEN]), self.array(seed + 1, [HIDDEN, 1])];
        for shape in [[FEATURES, HIDDEN], [HIDDEN, 1]].repeat(2) {
            state.push(Array::zeros(&self.device, DType::F32, shape).unwrap());
        }
        state.push(Array::new(&self.device, [[0.0f32]]).unwrap());
        state
    }

    fn rate(&self, rate: f32) -> Array {
        Array::new(&self.device, [[rate]]).unwrap()
    }

    fn step(&self, state: State, x: &Array, labels: &Array, rate: &Array) -> (State, Array) {
        let donated = state.into_iter().map(Argument::Donated);
        let lent = [x, labels, rate].into_iter().map(|array| Argument::Borrowed(array.clone()));
        let arguments = donated.chain(lent).collect();
        let mut results = match self.way {
            Way::Usual => self.executable.run(arguments).unwrap(),
            Way::OneByOne => self.executable.try_run_timed(arguments).map_err(|error| error.diagnostics).unwrap().0,
        };
        let loss = results.pop().unwrap();
        (results, loss)
    }
}

/// The bits of a state.
fn bits(state: &[Array]) -> Vec<u32> {
    state.iter().flat_map(|array| array.to_vec::<f32>().unwrap()).map(f32::to_bits).collect()
}

/// What a program gives both ways.
fn both_ways<T: PartialEq + std::fmt::Debug>(program: impl Fn(&Trainer) -> T, replays: std::ops::RangeInclusive<u64>) {
    let usual = Trainer::new(Way::Usual);
    let (given, expected) = (program(&usual), program(&Trainer::new(Way::OneByOne)));
    assert_eq!(given, expected);
    let statistics = usual.executable.statistics();
    assert!(replays.contains(&statistics.replays), "{statistics:?}");
}

#[test]
fn two_hundred_steps_with_a_schedule_of_learning_rates() {
    let program = |trainer: &Trainer| {
        let (x, labels) = (trainer.array(3, [ROWS, FEATURES]), trainer.array(4, [ROWS, 1]));
        let mut state = trainer.state(1);
        let mut losses = Vec::new();
        for step in 0..200 {
            let rate = trainer.rate(0.05 / (1.0 + step as f32 * 0.1));
            let (next, loss) = trainer.step(state, &x, &labels, &rate);
            state = next;
            losses.push(loss.item::<f32>().unwrap().to_bits());
        }
        assert!(f32::from_bits(losses[199]) < 0.5 * f32::from_bits(losses[0]), "it learns");
        (bits(&state), losses)
    };
    both_ways(program, 199..=199);
}

#[test]
fn batches_that_are_somewhere_else_each_time() {
    let program = |trainer: &Trainer| {
        let batches: Vec<_> =
            (0..20).map(|at| (trainer.array(at, [ROWS, FEATURES]), trainer.array(at + 30, [ROWS, 1]))).collect();
        let rate = trainer.rate(0.01);
        let mut state = trainer.state(1);
        for round in 0..60 {
            let (x, labels) = &batches[round * 7 % 20];
            state = trainer.step(state, x, labels, &rate).0;
        }
        bits(&state)
    };
    both_ways(program, 58..=59);
}

#[test]
fn two_states_in_turn() {
    let program = |trainer: &Trainer| {
        let (x, labels) = (trainer.array(3, [ROWS, FEATURES]), trainer.array(4, [ROWS, 1]));
        let rate = trainer.rate(0.01);
        let mut states = [trainer.state(1), trainer.state(5)];
        for _ in 0..10 {
            for state in &mut states {
                *state = trainer.step(std::mem::take(state), &x, &labels, &rate).0;
            }
        }
        states.map(|state| bits(&state))
    };
    both_ways(program, 15..=19);
}

#[test]
fn a_state_restored_in_between() {
    let program = |trainer: &Trainer| {
        let (x, labels) = (trainer.array(3, [ROWS, FEATURES]), trainer.array(4, [ROWS, 1]));
        let rate = trainer.rate(0.01);
        let mut state = trainer.state(1);
        let mut kept = Vec::new();
        for step in 0..30 {
            if step == 10 {
                kept = state.iter().map(|array| array.to_device(&Device::cpu()).unwrap()).collect();
            }
            if step == 20 {
                state = kept.iter().map(|array: &Array| array.to_device(&trainer.device).unwrap()).collect();
            }
            state = trainer.step(state, &x, &labels, &rate).0;
        }
        bits(&state)
    };
    both_ways(program, 25..=29);
}

#[test]
fn results_that_are_kept_are_not_written_again() {
    let program = |trainer: &Trainer| {
        let (x, labels) = (trainer.array(3, [ROWS, FEATURES]), trainer.array(4, [ROWS, 1]));
        let rate = trainer.rate(0.05);
        let mut state = trainer.state(1);
        let mut kept = Vec::new();
        for _ in 0..8 {
            let (next, loss) = trainer.step(state, &x, &labels, &rate);
            state = next;
            kept.push(loss);
        }
        let kept = bits(&kept);
        assert!(kept.windows(2).all(|two| two[0] != two[1]), "each step has its own loss");
        kept
    };
    both_ways(program, 6..=7);
}

#[test]
fn a_state_that_somebody_else_holds_is_copied_and_not_written() {
    let program = |trainer: &Trainer| {
        let (x, labels) = (trainer.array(3, [ROWS, FEATURES]), trainer.array(4, [ROWS, 1]));
        let rate = trainer.rate(0.05);
        let mut state = trainer.state(1);
        let mut held = Vec::new();
        for step in 0..12 {
            if step % 3 == 2 {
                held.push(state.clone());
            }
            state = trainer.step(state, &x, &labels, &rate).0;
        }
        (bits(&state), held.iter().map(|state| bits(state)).collect::<Vec<_>>())
    };
    both_ways(program, 1..=11);
}

/// An argument and a result that a product of the library reads and writes itself.
#[test]
fn operands_and_results_of_products_move() {
    let device = Device::cuda(0).unwrap();
    let run = jit(&device, |(x, w, v): (Tensor, Tensor, Tensor)| (x.matmul(&w), x.matmul(&v).tanh()));
    let plain = jit(&Device::cpu(), |(x, w, v): (Tensor, Tensor, Tensor)| (x.matmul(&w), x.matmul(&v).tanh()));
    let array = |seed: usize, device: &Device| {
        let numbers: Vec<f32> = (0..64 * 64).map(|at| ((at * 31 + seed * 17) % 13) as f32 - 6.0).collect();
        Array::from_slice(device, &numbers, [64, 64]).unwrap()
    };
    let (w, v) = (array(1, &device), array(2, &device));
    let (host_w, host_v) = (array(1, &Device::cpu()), array(2, &Device::cpu()));
    let mut kept = Vec::new();
    for seed in 0..10 {
        let x = array(seed + 5, &device);
        kept.push((run.call((&x, &w, &v)).unwrap(), x));
    }
    for (seed, ((product, other), _)) in kept.iter().enumerate() {
        let (first, second) = plain.call((&array(seed + 5, &Device::cpu()), &host_w, &host_v)).unwrap();
        // Sums of small whole numbers are exact.
        assert_eq!(product.to_vec::<f32>().unwrap(), first.to_vec::<f32>().unwrap());
        let close = |(a, b): (f32, f32)| (a - b).abs() < 1e-6;
        let second = second.to_vec::<f32>().unwrap();
        assert!(other.to_vec::<f32>().unwrap().into_iter().zip(second).all(close));
    }
}

#[test]
fn threads_share_a_step() {
    let trainer = Trainer::new(Way::Usual);
    let alone = Trainer::new(Way::OneByOne);
    let run = |trainer: &Trainer, seed: usize| {
        let (x, labels) = (trainer.array(seed, [ROWS, FEATURES]), trainer.array(seed + 9, [ROWS, 1]));
        let rate = trainer.rate(0.01);
        let mut state = trainer.state(seed);
        for _ in 0..20 {
            state = trainer.step(state, &x, &labels, &rate).0;
        }
        bits(&state)
    };
    let given: Vec<_> = std::thread::scope(|scope| {
        let trainer = &trainer;
        let threads: Vec<_> = (0..4).map(|seed| scope.spawn(move || run(trainer, seed))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for (seed, given) in given.into_iter().enumerate() {
        assert_eq!(given, run(&alone, seed), "state {seed}");
    }
}
