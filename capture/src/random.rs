//! Random numbers: a key is a value, and every draw has a stream of its own.
//!
//! A [`Key`] is two words that come in as an argument (or from [`Scope::key`]). Drawing *consumes* it, so using a key twice needs a `.clone()`
//! that can be seen; [`Key::split`] makes new ones. Whatever the keys are, no two draws recorded in one capture share a stream of the
//! generator, and what a draw gives depends neither on what else is computed nor on the order of execution.

use std::sync::Arc;

use kiln_ir::tree::{Family, HasLeaf, Leaf, Structure, Tree, With};
use kiln_ir::{Code, DType, Diagnostic, HostData, Literal, Op, Shape};

use crate::captured::Notice;
use crate::data::Scalar;
use crate::operand::Operand;
use crate::session::{Session, record};
use crate::{Scope, Tensor, composite, frame};

/// The key of random draws: `u32[2]`, as a tensor in a capture and as data outside. It is a tree, so state may hold it.
///
/// ```
/// use kiln_capture::{CaptureDevice, Key};
/// use kiln_ir::{Backend, DType};
///
/// let captured = CaptureDevice::new(Backend::Cpu).capture_scope(|scope| {
///     let key = Key::new(&scope.input("key", DType::U32, [2]));
///     let [weights, next] = key.split();
///     (weights.normal([784, 10]), next)
/// })?;
/// assert_eq!(captured.graph.outputs.len(), 2);
/// # Ok::<(), kiln_ir::Diagnostics>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Key<T = Tensor> {
    bits: T,
}

impl<T> Key<T> {
    /// A key around its two words.
    pub fn from_bits(bits: T) -> Key<T> {
        Key { bits }
    }

    /// The two words.
    pub fn bits(&self) -> &T {
        &self.bits
    }

    /// The two words.
    pub fn into_bits(self) -> T {
        self.bits
    }
}

impl<F: Family> Family for Key<F> {
    type Of<L: Leaf> = Key<F::Of<L>>;
}

impl<T: HasLeaf> HasLeaf for Key<T> {
    type Leaf = T::Leaf;
}

impl<L: Leaf, T: Tree<L>> Tree<L> for Key<T> {
    type Family = Key<T::Family>;

    fn describe(&self, structure: &mut Structure) {
        self.bits.describe(structure);
    }

    fn visit<'a>(&'a self, visit: &mut dyn FnMut(&'a L)) {
        self.bits.visit(visit);
    }

    fn visit_mut<'a>(&'a mut self, visit: &mut dyn FnMut(&'a mut L)) {
        self.bits.visit_mut(visit);
    }

    fn try_map<U: Leaf, E>(self, map: &mut dyn FnMut(L) -> Result<U, E>) -> Result<With<Self, L, U>, E> {
        Ok(Key { bits: self.bits.try_map(map)? })
    }

    fn try_map_ref<U: Leaf, E>(&self, map: &mut dyn FnMut(&L) -> Result<U, E>) -> Result<With<Self, L, U>, E> {
        Ok(Key { bits: self.bits.try_map_ref(map)? })
    }
}

impl Key {
    /// A key from a tensor. K0312 where it is not `u32[2]`.
    #[track_caller]
    pub fn new(bits: &Tensor) -> Key {
        let bits = record(&[bits], |state, values, _| {
            let ty = state.builder.ty(values[0]);
            if ty.dtype == DType::U32 && ty.shape[..] == [2] {
                return Ok(values[0]);
            }
            let message = format!("a random key is u32[2], got {}{}", ty.dtype, ty.shape);
            Err(state.builder.note(Diagnostic::new(Code::K0312, message).in_op("key"), "key", values[0]))
        });
        Key { bits }
    }

    /// `N` new keys; this one is used up.
    #[track_caller]
    pub fn split<const N: usize>(self) -> [Key; N] {
        let keys = self.draw(Shape::from([N, 2]));
        let mut split = Vec::with_capacity(N);
        for index in 0..N {
            split.push(Key { bits: keys.at(0, index as isize) });
        }
        split.try_into().expect("N keys were made")
    }

    /// `count` new keys, for a number that is not known to the compiler.
    #[track_caller]
    pub fn split_into(self, count: usize) -> Vec<Key> {
        let keys = self.draw(Shape::from([count, 2]));
        let mut split = Vec::with_capacity(count);
        for index in 0..count {
            split.push(Key { bits: keys.at(0, index as isize) });
        }
        split
    }

    /// Random words, `u32`.
    #[track_caller]
    pub fn random_bits(self, shape: impl Into<Shape>) -> Tensor {
        self.draw(shape.into())
    }

    #[track_caller]
    fn draw(self, shape: Shape) -> Tensor {
        record(&[&self.bits], |state, values, loc| {
            let stream = state.streams;
            state.streams += 1;
            state.builder.value(Op::RandomBits { shape, stream }, values, loc)
        })
    }

    /// Numbers from 0 up to but not including 1, `f32`, in steps of 2^-24.
    #[track_caller]
    pub fn uniform(self, shape: impl Into<Shape>) -> Tensor {
        let shape = shape.into();
        let bits = self.bits.clone();
        composite("uniform", &[&bits], || unit(&self.draw(shape)))
    }

    /// Numbers between two bounds, `f32`.
    #[track_caller]
    pub fn uniform_between(self, low: impl Into<Scalar>, high: impl Into<Scalar>, shape: impl Into<Shape>) -> Tensor {
        let (low, high, shape) = (low.into(), high.into(), shape.into());
        let bits = self.bits.clone();
        composite("uniform", &[&bits], || {
            let low = bits.number(low, DType::F32);
            let width = bits.number(high, DType::F32) - &low;
            unit(&self.draw(shape)) * width + low
        })
    }

    /// Numbers of the standard normal distribution, `f32`, by the method of Box and Muller; beyond 6.6 none occur.
    #[track_caller]
    pub fn normal(self, shape: impl Into<Shape>) -> Tensor {
        let shape = shape.into();
        let bits = self.bits.clone();
        composite("normal", &[&bits], || {
            let pairs: Shape = [2].iter().chain(&shape[..]).copied().collect();
            let words = self.draw(pairs);
            // From 2^-32 to 1: never 0, whose logarithm is infinite.
            let radius = (words.at(0, 0).cast(DType::F32) + 1.0) * (-32f64).exp2();
            let angle = unit(&words.at(0, 1)) * std::f64::consts::TAU;
            (radius.log() * -2.0).sqrt() * angle.cos()
        })
    }

    /// Truth values that hold with a probability: a number, or a tensor that broadcasts to the shape.
    #[track_caller]
    pub fn bernoulli(self, probability: impl Into<Operand>, shape: impl Into<Shape>) -> Tensor {
        let (probability, shape) = (probability.into(), shape.into());
        let bits = self.bits.clone();
        composite("bernoulli", &[&bits], || unit(&self.draw(shape)).lt(probability))
    }
}

/// The upper 24 bits of each word as a number below 1, exact in `f32`.
fn unit(words: &Tensor) -> Tensor {
    (words >> 8).cast(DType::F32) * (-24f64).exp2()
}

impl Scope {
    /// A key that is baked into the graph: from [`CaptureDevice::seed`](crate::CaptureDevice::seed), or of seed 0. Every run of the graph draws
    /// the same numbers from it; feed a [`Key`] as an argument for new ones.
    #[track_caller]
    pub fn key(&self) -> Key {
        let session: &Arc<Session> = self.session();
        let seed = session.seed.unwrap_or(0);
        let words = [seed as u32, (seed >> 32) as u32].map(|word| Literal::from_i128(DType::U32, i128::from(word)));
        let data = HostData::from_literals(DType::U32, [2], &words).expect("two words");
        let loc = frame::here();
        let bits = self.constant(data);
        let text = format!("the key of seed {seed} is baked: every run draws the same numbers from it");
        if session.is_open() {
            session.lock().notices.push(Notice { text, loc });
        }
        Key { bits }
    }
}
