//! `jit`: a function of tensors, compiled when it is called.

use std::marker::PhantomData;

use kiln_capture::Tensor;
use kiln_ir::Loc;
use kiln_ir::tree::{Family, Hole, Structure, Tree, With};
use kiln_passes::{Options, Policy};
use kiln_runtime::{Argument, Array, Device};

use crate::cache::{CacheStatistics, Signature};
use crate::compiled::{Check, Compiler, Entry, Parts, Ready, capture, hollow, named};
use crate::verify::Verify;
use crate::{Feed, Profile, Report, Result};

/// A function of tensors that is captured and compiled once for each signature it is called with. Made by [`jit`].
///
/// Calls from several threads at once are fine.
pub struct Jit<A, O: Tree<Tensor>, F> {
    compiler: Compiler<With<O, Tensor, Hole>>,
    function: F,
    types: PhantomData<fn(A) -> O>,
}

/// Compiles `function` for `device` at its first call with each signature: structure, shapes and element types of the arguments.
///
/// ```
/// use kiln::prelude::*;
/// let device = Device::reference();
/// let scale = jit(&device, |(x, factor): (Tensor, Tensor)| x * factor);
/// let x = Array::new(&device, [1.0f32, 2.0])?;
/// assert_eq!(scale.call((&x, 10.0))?.to_vec::<f32>()?, [10.0, 20.0]);
/// assert_eq!(scale.call((&x, 0.5))?.to_vec::<f32>()?, [0.5, 1.0]);
/// assert_eq!(scale.cache().misses, 1);
/// # Ok::<(), kiln::Error>(())
/// ```
pub fn jit<A, O, F>(device: &Device, function: F) -> Jit<A, O, F>
where
    A: Tree<Tensor>,
    O: Tree<Tensor>,
    F: Fn(A) -> O,
{
    Jit { compiler: Compiler::new("jit", device), function, types: PhantomData }
}

impl<A, O, F> Jit<A, O, F>
where
    A: Tree<Tensor>,
    O: Tree<Tensor>,
    F: Fn(A) -> O,
{
    /// Runs the function on data. What may stand for a ticket is told by [`Feed`].
    ///
    /// # Errors
    ///
    /// All mistakes recorded while capturing; K0701 for an array on another device; K0704 where there is no memory; K0705 where a
    /// custom op's function fails; K0706 and K0707 with [`Jit::verify`]; K1004 with [`Jit::check_finite`]. A call that fails leaves nothing behind.
    #[track_caller]
    pub fn call<I: Feed<A>>(&self, arguments: I) -> Result<With<O, Tensor, Array>> {
        let loc = Loc::caller();
        self.run(arguments, loc).map_err(|error| error.called_at(loc))
    }

    fn run<I: Feed<A>>(&self, arguments: I, loc: Loc) -> Result<With<O, Tensor, Array>> {
        let (entry, arrays) = self.prepared(arguments, loc)?;
        if let Some(verifier) = &entry.verifier {
            verifier.check(&arrays.iter().collect::<Vec<_>>())?;
        }
        let results = entry.executable.run(arrays.into_iter().map(Argument::Borrowed).collect())?;
        let own = entry.executable.outputs().len() - entry.extras();
        let extras = self.compiler.split(&entry, results, own)?;
        self.compiler.show(&entry, &extras.taps);
        Ok(filled::<O>(&entry.template, extras.results))
    }

    /// The compiled capture for these arguments, and their arrays.
    fn prepared<I: Feed<A>>(&self, arguments: I, loc: Loc) -> Result<Ready<With<O, Tensor, Hole>>> {
        let mut structure = Structure::default();
        arguments.describe(&mut structure);
        let mut arrays = Vec::new();
        arguments.arrays(&self.compiler.device, &mut arrays)?;
        let mut signature = Signature { state: Structure::default(), arguments: structure, types: Vec::new() };
        signature.types = self.compiler.types(&arrays.iter().collect::<Vec<_>>(), || signature.names())?;
        let entry = self.compiler.entry(signature, |signature| self.capture(signature, &arguments, loc))?;
        Ok((entry, arrays))
    }

    /// Times the function on these arguments, kernel by kernel: the medians of `runs` runs.
    ///
    /// ```
    /// use kiln::prelude::*;
    /// let device = Device::cpu();
    /// let f = jit(&device, |x: Tensor| x.matmul(&x).softmax(1));
    /// let profile = f.profile(Array::from_vec(&device, vec![0.01f32; 64 * 64], [64, 64])?, 5)?;
    /// println!("{profile}");
    /// assert_eq!(profile.kernels.len(), f.report().launches());
    /// # Ok::<(), kiln::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Jit::call`].
    #[track_caller]
    pub fn profile<I: Feed<A>>(&self, arguments: I, runs: usize) -> Result<Profile> {
        let loc = Loc::caller();
        let timed = || {
            let (entry, arrays) = self.prepared(arguments, loc)?;
            Ok(Profile { report: self.report(), ..crate::profile(&entry.executable, &arrays, runs)? })
        };
        timed().map_err(|error: crate::Error| error.called_at(loc))
    }

    fn capture<I: Feed<A>>(
        &self,
        signature: &Signature,
        arguments: &I,
        loc: Loc,
    ) -> Result<Entry<With<O, Tensor, Hole>>> {
        let body = |inputs: Vec<Tensor>| {
            let mut inputs = inputs.into_iter();
            (self.function)(arguments.tickets(&mut || inputs.next().expect("one input is declared for each leaf")))
        };
        let parts = Parts { state: |_| Structure::default(), outputs: |results: &O| named(results, "out") };
        capture(&self.compiler, signature, loc, 0, body, hollow, parts)
    }

    /// Names the function in reports and in its graph.
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

    /// Computes matrix products of `f32` as a policy says, and everything else, results included, as before.
    ///
    /// ```
    /// use kiln::prelude::*;
    /// let device = Device::cpu();
    /// let product = |(x, y): (Tensor, Tensor)| x.matmul(&y);
    /// let (full, mixed) = (jit(&device, product), jit(&device, product).mixed_precision(Policy::bf16()));
    /// let (x, y) = (Array::new(&device, [[1.0f32 + 1.0 / 1024.0]])?, Array::new(&device, [[512.0f32]])?);
    /// assert_eq!(full.call((&x, &y))?.item::<f32>()?, 512.5);
    /// // `bf16` has no number between 1 and 1 + 1/128.
    /// assert_eq!(mixed.call((&x, &y))?.item::<f32>()?, 512.0);
    /// # Ok::<(), kiln::Error>(())
    /// ```
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
    /// Where no way is found, calls raise K0704 before anything runs, with the largest tensors and their lines.
    ///
    /// ```
    /// use kiln::prelude::*;
    /// let device = Device::cpu();
    /// let f = jit(&device, |x: Tensor| (x.exp() * 2.0).sum(..)).max_bytes(1 << 20);
    /// assert_eq!(f.call(&Array::zeros(&device, DType::F32, [8])?)?.item::<f32>()?, 16.0);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[must_use]
    pub fn max_bytes(mut self, bytes: usize) -> Self {
        self.compiler.options.max_bytes = Some(bytes);
        self
    }

    /// Shows every value that the function [taps](Tensor::tap) to `tap`, after each call. Without a callback taps cost nothing. The callback
    /// must not call the function itself.
    ///
    /// ```
    /// use kiln::prelude::*;
    /// use std::sync::{Arc, Mutex};
    /// let seen = Arc::new(Mutex::new(Vec::new()));
    /// let log = seen.clone();
    /// let f = jit(&Device::reference(), |x: Tensor| x.exp().tap("h") * 2.0)
    ///     .on_tap(move |name, array| log.lock().unwrap().push(format!("{name}: {array:?}")));
    /// f.call(0.0)?;
    /// assert_eq!(*seen.lock().unwrap(), ["h: f32[] @ndarray [1.0]"]);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[must_use]
    pub fn on_tap(mut self, tap: impl FnMut(&str, &Array) + Send + 'static) -> Self {
        self.compiler.set_tap(Box::new(tap));
        self
    }

    /// Looks after each call for the first op that made a NaN or an infinity from finite numbers, and raises K1004 with its line.
    /// Slow: every intermediate value is looked at.
    #[must_use]
    pub fn check_finite(mut self) -> Self {
        self.compiler.check = Check::Finite;
        self
    }

    /// Compares every kernel with the reference interpreter before each run, on the data of the call, each on the reference's own operands.
    /// K0707 names the first that computes something else than its part of the graph, and the folder that shows it again; K0706 the first of
    /// a custom op that computes something else than its body. Slow: the reference computes everything beside, some of it several times.
    #[must_use]
    pub fn verify(mut self) -> Self {
        self.compiler.verify = Verify::On;
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

    /// What the last used capture was compiled to, and how the cache has done.
    pub fn report(&self) -> Report {
        self.compiler.report()
    }
}

/// A template with arrays at its leaves.
pub(crate) fn filled<O: Tree<Tensor>>(template: &With<O, Tensor, Hole>, arrays: Vec<Array>) -> With<O, Tensor, Array> {
    let filled = template.with_leaves(arrays);
    filled.expect("a run gives one array for each leaf of the results")
}

impl<T> Entry<T> {
    /// How many results are not the closure's own.
    pub(crate) fn extras(&self) -> usize {
        self.taps.len() + self.watch.as_ref().map_or(0, crate::finite::Watch::flags)
    }
}

/// The member of a tree's family that holds arrays.
pub(crate) type Data<T> = <<T as Tree<Tensor>>::Family as Family>::Of<Array>;
