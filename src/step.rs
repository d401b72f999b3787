//! `step`: a function that takes a state and gives the next one, updated in place.

use std::marker::PhantomData;

use kiln_capture::Tensor;
use kiln_ir::Loc;
use kiln_ir::tree::{Hole, Structure, Tree, With};
use kiln_passes::{Options, Policy};
use kiln_runtime::{Argument, Array, Device};

use crate::cache::{CacheStatistics, Signature};
use crate::compiled::{Check, Compiler, Entry, Parts, Previous, Ready, capture, hollow, named};
use crate::jit::{Data, filled};
use crate::profile::profile_step;
use crate::verify::Verify;
use crate::{Feed, Profile, Report, Result};

type Templates<S, O> = (With<S, Tensor, Hole>, With<O, Tensor, Hole>);

/// A training step: a function of a state and arguments that gives the next state and results. Made by [`step`].
pub struct Step<S: Tree<Tensor>, A, O: Tree<Tensor>, F> {
    compiler: Compiler<Templates<S, O>>,
    function: F,
    types: PhantomData<fn(S, A) -> O>,
}

/// Compiles `function` for `device` at its first call with each signature. The state given to [`Step::call`] is replaced by the one that
/// the function returns, in the same memory where its arrays have no other handle.
///
/// ```
/// use kiln::prelude::*;
/// let device = Device::reference();
/// let counter = step(&device, |count: Tensor, by: Tensor| {
///     let next = count + by;
///     (next.clone(), next * 10.0)
/// });
/// let mut count = Array::new(&device, [0.0f32])?;
/// for expected in [10.0, 20.0, 30.0] {
///     let shown = counter.call(&mut count, 1.0)?;
///     assert_eq!(shown.item::<f32>()?, expected);
/// }
/// assert_eq!(count.item::<f32>()?, 3.0);
/// # Ok::<(), kiln::Error>(())
/// ```
pub fn step<S, A, O, F>(device: &Device, function: F) -> Step<S, A, O, F>
where
    S: Tree<Tensor>,
    A: Tree<Tensor>,
    O: Tree<Tensor>,
    F: Fn(S, A) -> (S, O),
{
    Step { compiler: Compiler::new("step", device), function, types: PhantomData }
}

impl<S, A, O, F> Step<S, A, O, F>
where
    S: Tree<Tensor>,
    A: Tree<Tensor>,
    O: Tree<Tensor>,
    F: Fn(S, A) -> (S, O),
{
    /// Runs the step: `state` becomes the next state, the results are returned.
    ///
    /// # Errors
    ///
    /// As [`Jit::call`](crate::Jit::call), and K0703 where the state was lost. On any of them the state is as it was, but for K0705: leaves that
    /// had been written over before a custom op failed are lost.
    #[track_caller]
    pub fn call<I: Feed<A>>(&self, state: &mut Data<S>, arguments: I) -> Result<With<O, Tensor, Array>> {
        let loc = Loc::caller();
        self.run(state, arguments, loc).map_err(|error| error.called_at(loc))
    }

    fn run<I: Feed<A>>(&self, state: &mut Data<S>, arguments: I, loc: Loc) -> Result<With<O, Tensor, Array>> {
        let (entry, arrays) = self.prepared(state, arguments, loc)?;
        if let Some(verifier) = &entry.verifier {
            verifier.check(&state.leaves().into_iter().chain(&arrays).collect::<Vec<_>>())?;
        }
        match (self.compiler.previous, self.compiler.check) {
            (Previous::Overwrite, Check::Nothing) => self.run_in_place(&entry, state, arrays),
            (Previous::Keep, _) | (_, Check::Finite) => self.run_beside(&entry, state, arrays),
        }
    }

    /// The compiled capture for this state and these arguments, and the arguments' arrays.
    fn prepared<I: Feed<A>>(&self, state: &Data<S>, arguments: I, loc: Loc) -> Result<Ready<Templates<S, O>>> {
        let mut structure = Structure::default();
        arguments.describe(&mut structure);
        let mut arrays = Vec::new();
        arguments.arrays(&self.compiler.device, &mut arrays)?;
        let mut signature = Signature { state: state.structure(), arguments: structure, types: Vec::new() };
        let leaves: Vec<&Array> = state.leaves().into_iter().chain(&arrays).collect();
        signature.types = self.compiler.types(&leaves, || signature.names())?;
        let entry = self.compiler.entry(signature, |signature| self.capture(signature, state, &arguments, loc))?;
        Ok((entry, arrays))
    }

    /// Times the step, kernel by kernel: the medians of `runs` runs on a copy of the state, which is updated in place from run to run as it
    /// would be in training. The state itself stays as it is.
    ///
    /// ```
    /// use kiln::prelude::*;
    /// let device = Device::cpu();
    /// let counter = step(&device, |count: Tensor, by: Tensor| (count + by, ()));
    /// let mut count = Array::new(&device, [0.0f32; 100])?;
    /// let profile = counter.profile(&count, 1.0, 5)?;
    /// println!("{profile}");
    /// profile.save_trace(std::env::temp_dir().join("counter.json"))?;
    /// assert_eq!(count.to_vec::<f32>()?, [0.0; 100]);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Step::call`]; the state is as it was.
    #[track_caller]
    pub fn profile<I: Feed<A>>(&self, state: &Data<S>, arguments: I, runs: usize) -> Result<Profile> {
        let loc = Loc::caller();
        let timed = || {
            let (entry, arrays) = self.prepared(state, arguments, loc)?;
            profile_step(&entry.executable, self.report(), &state.leaves(), &arrays, runs)
        };
        timed().map_err(|error: crate::Error| error.called_at(loc))
    }

    /// Lends the state's arrays to the run; they are put back where nothing was run.
    fn run_in_place(
        &self,
        entry: &Entry<Templates<S, O>>,
        state: &mut Data<S>,
        arrays: Vec<Array>,
    ) -> Result<With<O, Tensor, Array>> {
        let placeholder = Array::placeholder(&self.compiler.device)?;
        let mut arguments = Vec::new();
        state.visit_mut(&mut |leaf| arguments.push(Argument::Donated(std::mem::replace(leaf, placeholder.clone()))));
        arguments.extend(arrays.into_iter().map(Argument::Borrowed));
        match entry.executable.try_run(arguments) {
            Ok(results) => self.commit(entry, state, results),
            Err(error) => {
                let mut lent = error.arguments.into_iter();
                state.visit_mut(&mut |leaf| {
                    let array = lent.next().expect("a run that failed gives its arguments back");
                    *leaf = array.into_array();
                });
                Err(error.diagnostics.into())
            }
        }
    }

    /// Runs with the state's memory untouched, so that it can still be what it was.
    fn run_beside(
        &self,
        entry: &Entry<Templates<S, O>>,
        state: &mut Data<S>,
        arrays: Vec<Array>,
    ) -> Result<With<O, Tensor, Array>> {
        let leaves = state.leaves().into_iter().cloned().chain(arrays);
        let results = entry.executable.run(leaves.map(Argument::Borrowed).collect())?;
        self.commit(entry, state, results)
    }

    fn commit(
        &self,
        entry: &Entry<Templates<S, O>>,
        state: &mut Data<S>,
        results: Vec<Array>,
    ) -> Result<With<O, Tensor, Array>> {
        let own = entry.executable.outputs().len() - entry.extras();
        let extras = self.compiler.split(entry, results, own)?;
        let mut next = extras.results;
        let out = next.split_off(entry.template.0.leaves().len());
        *state = filled::<S>(&entry.template.0, next);
        self.compiler.show(entry, &extras.taps);
        Ok(filled::<O>(&entry.template.1, out))
    }

    fn capture<I: Feed<A>>(
        &self,
        signature: &Signature,
        state: &Data<S>,
        arguments: &I,
        loc: Loc,
    ) -> Result<Entry<Templates<S, O>>> {
        let body = |inputs: Vec<Tensor>| {
            let mut inputs = inputs.into_iter();
            let mut next = || inputs.next().expect("one input is declared for each leaf");
            let state = state.map_ref(|_| next());
            (self.function)(state, arguments.tickets(&mut next))
        };
        let parts = Parts { state: |(state, _): &(S, O)| state.structure(), outputs };
        let template = |(state, out): &(S, O)| (hollow(state), hollow(out));
        capture(&self.compiler, signature, loc, signature.state.leaf_count(), body, template, parts)
    }

    /// Names the step in reports and in its graph.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        name.clone_into(&mut self.compiler.name);
        self
    }

    /// Compiles with other options than the default ones.
    #[must_use]
    pub fn options(mut self, options: Options) -> Self {
        self.compiler.options = options;
        self
    }

    /// Computes matrix products of `f32` as a policy says, forward and backward, and everything else as before: weights are masters in `f32`,
    /// of which a rounded copy is made once a step; norms, softmax, losses and the optimizer are computed in `f32`.
    /// With [`Policy::f16`] gradients want a [`LossScale`](crate::optim::LossScale). `docs/mixed-precision.md` shows both.
    #[must_use]
    pub fn mixed_precision(mut self, policy: Policy) -> Self {
        self.compiler.precision = Some(policy);
        self
    }

    /// Lets a compiled capture use so many bytes at most beside its arguments (intermediate values, constants and results). Values are computed again
    /// where they are wanted late until it fits: activations in the backward part of a training step, say. The report names them.
    ///
    /// # Errors
    ///
    /// Where no way is found, calls raise K0704 before anything runs, with the largest tensors and their lines; the state is as it was.
    #[must_use]
    pub fn max_bytes(mut self, bytes: usize) -> Self {
        self.compiler.options.max_bytes = Some(bytes);
        self
    }

    /// Shows every value that the step [taps](Tensor::tap) to `tap`, after each call. Without a callback taps cost nothing. The callback
    /// must not call the function itself.
    #[must_use]
    pub fn on_tap(mut self, tap: impl FnMut(&str, &Array) + Send + 'static) -> Self {
        self.compiler.set_tap(Box::new(tap));
        self
    }

    /// Looks after each call for the first op that made a NaN or an infinity from finite numbers, and raises K1004 with its line; the
    /// state is then as it was before the call. Slow: every intermediate value is looked at, and the state is not updated in place.
    #[must_use]
    pub fn check_finite(mut self) -> Self {
        self.compiler.check = Check::Finite;
        self
    }

    /// Compares every kernel with the reference interpreter before each run, as [`Jit::verify`](crate::Jit::verify). Where one differs nothing
    /// is run, and the state is as it was.
    #[must_use]
    pub fn verify(mut self) -> Self {
        self.compiler.verify = Verify::On;
        self
    }

    /// Never writes over the state's arrays: each call makes new ones, so a fault on the device half-way loses nothing.
    #[must_use]
    pub fn keep_previous(mut self) -> Self {
        self.compiler.previous = Previous::Keep;
        self
    }

    /// Keeps at most so many captures, the least recently used given up first; 64 at the start.
    #[must_use]
    pub fn cache_limit(self, captures: usize) -> Self {
        self.compiler.cache().set_capacity(captures);
        self
    }

    /// Warns (once, in the report; on standard error too if `KILN_LOG` is set) after so many recompilations; 16 at the start.
    #[must_use]
    pub fn warn_after(self, recompilations: usize) -> Self {
        self.compiler.cache().set_warn_after(recompilations);
        self
    }

    /// Gives up all captures.
    pub fn clear_cache(&self) {
        self.compiler.cache().clear();
    }

    /// How the cache has done, and why there were misses.
    pub fn cache(&self) -> CacheStatistics {
        self.compiler.cache().statistics()
    }

    /// What the last used capture was compiled to, what was copied, and how the cache has done.
    pub fn report(&self) -> Report {
        self.compiler.report()
    }
}

/// The leaves of the next state, then those of the results.
fn outputs<S: Tree<Tensor>, O: Tree<Tensor>>((state, out): &(S, O)) -> Vec<(String, &Tensor)> {
    let mut outputs = named(state, "state");
    outputs.extend(named(out, "out"));
    outputs
}
