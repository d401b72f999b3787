//! From a closure to something that runs: capture, compile, executable. What [`jit`](crate::jit) and [`step`](crate::step) share.
//!
//! A [`Compiler`] belongs to one compiled function. For each signature it opens a capture on a private device, declares one named input
//! for each leaf, runs the closure once, and compiles what was recorded. Nothing is kept of an attempt that fails, and no lock is held
//! while user code runs, so a closure may panic, or call other compiled functions.

use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kiln_capture::{Baked, CaptureDevice, CapturedGraph, Notice, Scope, Tensor};
use kiln_ir::tree::{Hole, Structure, Tree, With};
use kiln_ir::{Backend, Code, CustomOps, Diagnostic, Graph, Loc, Result as IrResult, TensorType};
use kiln_passes::{Options, Policy};
use kiln_runtime::{Array, Device, Executable};
use web_time::Instant;

use crate::Result;
use crate::cache::{Cache, Signature, qualified};
use crate::dump;
use crate::finite::Watch;
use crate::report::Report;
use crate::reproduce::reproducible;
use crate::verify::{Verifier, Verify};

/// Called with each tapped value, by name, after every call.
pub(crate) type Tap = Box<dyn FnMut(&str, &Array) + Send>;

/// Whether a call looks for the first value that is not finite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Check {
    /// No.
    Nothing,
    /// Every float value of the graph.
    Finite,
}

/// Whether a step may write over its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Previous {
    /// It may: the state is given up.
    Overwrite,
    /// The state before the call stays as it is.
    Keep,
}

/// The part of a compiled function that does not depend on its closure's types. `T` is the template of its results.
pub(crate) struct Compiler<T> {
    pub(crate) name: String,
    pub(crate) device: Device,
    pub(crate) options: Options,
    /// What products are computed in, where that is not what was recorded.
    pub(crate) precision: Option<Policy>,
    pub(crate) check: Check,
    pub(crate) verify: Verify,
    pub(crate) previous: Previous,
    tap: Option<Mutex<Tap>>,
    cache: Mutex<Cache<Entry<T>>>,
}

/// One compiled capture.
pub(crate) struct Entry<T> {
    pub(crate) executable: Executable,
    /// The closure's results with nothing at their leaves.
    pub(crate) template: T,
    /// Names of the taps, whose values follow the closure's results.
    pub(crate) taps: Vec<Arc<str>>,
    /// What is watched, whose flags follow the taps.
    pub(crate) watch: Option<Watch>,
    /// What is compared with its oracle before each run.
    pub(crate) verifier: Option<Verifier>,
    pub(crate) baked: Vec<Baked>,
    pub(crate) notices: Vec<Notice>,
    pub(crate) captured_in: Duration,
    pub(crate) compiled_in: Duration,
}

/// A compiled capture and the arrays to run it on.
pub(crate) type Ready<T> = (Arc<Entry<T>>, Vec<Array>);

/// What a call does with the results beyond the closure's own.
pub(crate) struct Extras {
    pub(crate) results: Vec<Array>,
    pub(crate) taps: Vec<Array>,
}

impl<T> Compiler<T> {
    pub(crate) fn new(name: &str, device: &Device) -> Compiler<T> {
        Compiler {
            name: name.to_owned(),
            device: device.clone(),
            options: Options::default(),
            precision: None,
            check: Check::Nothing,
            verify: Verify::Off,
            previous: Previous::Overwrite,
            tap: None,
            cache: Mutex::new(Cache::new()),
        }
    }

    pub(crate) fn set_tap(&mut self, tap: Tap) {
        self.tap = Some(Mutex::new(tap));
    }

    pub(crate) fn cache(&self) -> MutexGuard<'_, Cache<Entry<T>>> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The entry for a signature; `capture` makes it where there is none.
    pub(crate) fn entry(
        &self,
        signature: Signature,
        capture: impl FnOnce(&Signature) -> Result<Entry<T>>,
    ) -> Result<Arc<Entry<T>>> {
        let known = self.cache().find(&signature);
        if let Some(entry) = known {
            return Ok(entry);
        }
        let entry = capture(&signature)?;
        let (entry, warning) = self.cache().insert(signature, entry);
        if let Some(warning) = warning {
            warn(&self.name, &warning);
        }
        Ok(entry)
    }

    /// Checks that arrays can be read by this device, and gives their types.
    pub(crate) fn types(&self, arrays: &[&Array], names: impl FnOnce() -> Vec<String>) -> IrResult<Vec<TensorType>> {
        self.device.check()?;
        let stray = arrays.iter().position(|array| array.is_lost() || *array.device() != self.device);
        match stray {
            None => Ok(arrays.iter().map(|array| array.ty().clone()).collect()),
            Some(leaf) => Err(unusable(arrays[leaf], &names()[leaf], &self.device).into()),
        }
    }

    /// Shows tapped values, by the callback that was set.
    pub(crate) fn show(&self, entry: &Entry<T>, taps: &[Array]) {
        let Some(tap) = &self.tap else { return };
        let mut tap = tap.lock().unwrap_or_else(PoisonError::into_inner);
        for (name, array) in entry.taps.iter().zip(taps) {
            tap(name, array);
        }
    }

    /// Splits what an executable gave, and raises K1004 where a watched value is not finite.
    pub(crate) fn split(&self, entry: &Entry<T>, mut results: Vec<Array>, own: usize) -> Result<Extras> {
        let flags = results.split_off(own + entry.taps.len());
        if let Some(watch) = &entry.watch {
            watch.judge(&flags)?;
        }
        let taps = results.split_off(own);
        Ok(Extras { results, taps })
    }

    /// How the function stands: its last used capture, and its cache.
    pub(crate) fn report(&self) -> Report {
        let (latest, statistics) = {
            let cache = self.cache();
            (cache.latest(), cache.statistics())
        };
        let mut report = Report { name: self.name.clone(), cache: statistics, ..Report::default() };
        if let Some(entry) = latest {
            report.describe(&entry);
        }
        report
    }
}

/// How the results of a closure are read.
pub(crate) struct Parts<R> {
    /// The structure of the state's next value.
    pub(crate) state: fn(&R) -> Structure,
    /// The leaves of the state, then those of what the caller gets, with their names.
    pub(crate) outputs: for<'a> fn(&'a R) -> Vec<(String, &'a Tensor)>,
}

/// Records a closure's run and compiles it. `loc` is the call that asks for it, where arguments are declared. `body` gets a ticket for each leaf of the signature, in order, and gives the results,
/// which `parts` reads.
pub(crate) fn capture<T, R>(
    compiler: &Compiler<T>,
    signature: &Signature,
    loc: Loc,
    state_leaves: usize,
    body: impl FnOnce(Vec<Tensor>) -> R,
    template: impl FnOnce(&R) -> T,
    parts: Parts<R>,
) -> Result<Entry<T>> {
    let begun = Instant::now();
    let open = CaptureDevice::new(compiler.device.backend()).begin_at(&compiler.name, loc)?;
    let inputs = declare(&open, signature, loc);
    let results = open.run(|_| body(inputs))?;
    let outputs = (parts.outputs)(&results);
    let mut captured = open.finish_with(&outputs)?;
    only_arguments(&captured.graph, signature)?;
    // What the closure marked as an output by hand stands first; the function has no place for it.
    let marked = captured.graph.outputs.len() - outputs.len();
    captured.graph.outputs.drain(..marked);
    let state = (parts.state)(&results);
    let template = template(&results);
    let (mut graph, taps) = match &compiler.tap {
        None => (captured.graph.clone(), Vec::new()),
        Some(_) => (captured.with_taps(), captured.taps.iter().map(|tap| tap.name.clone()).collect()),
    };
    if let Some(policy) = compiler.precision {
        graph = kiln_passes::mixed_precision(&graph, policy)?;
    }
    let watch = match compiler.check {
        Check::Nothing => None,
        Check::Finite => Some(Watch::add(&mut graph)?),
    };
    let captured_in = begun.elapsed();
    let mut customs = compiler.options.customs.clone();
    customs.join(&captured.customs)?;
    let pairs = if state == signature.state { donated(&graph, state_leaves) } else { Vec::new() };
    let begun = Instant::now();
    let options = Options { donate: pairs, customs, ..compiler.options.clone() };
    let executable = executable(&graph, &options, &compiler.device)?;
    let compiled_in = begun.elapsed();
    let verifier = match compiler.verify {
        Verify::Off => None,
        Verify::On => Some(Verifier::new(&graph, &options, &compiler.device)?),
    };
    let (baked, notices) = (captured.baked(), captured.notices);
    Ok(Entry { executable, template, taps, watch, verifier, baked, notices, captured_in, compiled_in })
}

/// What can be compiled: a [`CapturedGraph`], whose custom ops are known, a graph, or a graph with the custom ops that it names.
#[derive(Clone, Debug)]
pub struct Program<'a> {
    pub(crate) graph: &'a Graph,
    pub(crate) customs: CustomOps,
}

impl<'a> From<&'a CapturedGraph> for Program<'a> {
    fn from(captured: &'a CapturedGraph) -> Program<'a> {
        Program { graph: &captured.graph, customs: captured.customs.clone() }
    }
}

impl<'a> From<&'a Graph> for Program<'a> {
    fn from(graph: &'a Graph) -> Program<'a> {
        Program { graph, customs: CustomOps::new() }
    }
}

impl<'a> From<(&'a Graph, &CustomOps)> for Program<'a> {
    fn from((graph, customs): (&'a Graph, &CustomOps)) -> Program<'a> {
        Program { graph, customs: customs.clone() }
    }
}

/// What [`compile`] gives: an [`Executable`], and what it was made of.
#[derive(Debug)]
pub struct Compiled {
    pub(crate) executable: Executable,
    pub(crate) graph: Graph,
    pub(crate) options: Options,
}

impl Deref for Compiled {
    type Target = Executable;

    fn deref(&self) -> &Executable {
        &self.executable
    }
}

impl From<Compiled> for Executable {
    fn from(compiled: Compiled) -> Executable {
        compiled.executable
    }
}

/// Compiles a graph, captured or read from its text, for the device on whose backend its nodes are.
///
/// # Errors
///
/// K0208 where the graph is for another backend or nothing here runs it, K0209 for a custom op with neither a body nor a kernel for the
/// device, K0704 where its constants do not fit.
///
/// ```
/// use kiln::prelude::*;
/// let captured = CaptureDevice::new(Backend::Cpu).capture_scope(|scope| {
///     scope.input("x", DType::F32, [3]).exp().sum(..)
/// })?;
/// let device = Device::cpu();
/// let executable = kiln::compile(&captured, &device)?;
/// let results = executable.run(vec![Array::new(&device, [0.0f32; 3])?.into()])?;
/// assert_eq!(results[0].item::<f32>()?, 3.0);
/// # Ok::<(), kiln::Error>(())
/// ```
pub fn compile<'a>(program: impl Into<Program<'a>>, device: &Device) -> Result<Compiled> {
    compile_with(program, &Options::default(), device)
}

/// [`compile`] with options: what is fused, what may be overwritten, limits and budgets.
///
/// # Errors
///
/// As [`compile`]; K0704 where a budget of bytes cannot be kept.
///
/// ```
/// use kiln::passes::Fusion;
/// use kiln::prelude::*;
/// let captured = CaptureDevice::new(Backend::Cpu).capture_scope(|scope| {
///     scope.input("x", DType::F32, [3]).exp().sqrt()
/// })?;
/// let options = kiln::Options { fusion: Fusion::Off, ..kiln::Options::default() };
/// let executable = kiln::compile_with(&captured, &options, &Device::cpu())?;
/// assert_eq!(executable.plan().unwrap().launches().count(), 2);
/// # Ok::<(), kiln::Error>(())
/// ```
pub fn compile_with<'a>(program: impl Into<Program<'a>>, options: &Options, device: &Device) -> Result<Compiled> {
    let Program { graph, customs } = program.into();
    let mut options = options.clone();
    options.customs.join(&customs)?;
    Ok(Compiled { executable: executable(graph, &options, device)?, graph: graph.clone(), options })
}

/// [`compile_with`] of a graph whose custom ops the options know.
pub(crate) fn executable(graph: &Graph, options: &Options, device: &Device) -> Result<Executable> {
    // Beside a GPU there is always the CPU.
    let beside = |backend| backend == Backend::Cpu && device.target().is_some();
    let elsewhere = |ty: &TensorType| ty.backend != device.backend() && !beside(ty.backend);
    if let Some(node) = graph.nodes.iter().find(|node| node.types.iter().any(elsewhere)) {
        let ty = node.types.iter().find(|&ty| elsewhere(ty)).unwrap_or(&node.types[0]);
        return Err(kiln_runtime::unsupported(ty.backend)
            .at(node.loc)
            .in_op(node.op.name())
            .label(format!("the graph has nodes on {}, the device is {device}", ty.backend))
            .note("first of them", ty.to_string(), "made", node.loc)
            .help(format!("a compiled graph runs on one backend: `graph.retarget(Backend::{})`", device.backend()))
            .into());
    }
    match device.backend() {
        Backend::NdArray => Ok(Executable::reference_with_customs(graph.clone(), &options.customs, device)),
        Backend::Cpu => {
            let ours = |diagnostic| reproducible(graph, options, diagnostic);
            let plan = dump::plan(graph, options).map_err(ours)?;
            Ok(Executable::with_customs(plan, &options.customs, device).map_err(|errors| errors.map(ours))?)
        }
        #[cfg(feature = "wgpu")]
        Backend::Wgpu => crate::gpu::executable(graph, options, device),
        #[cfg(not(feature = "wgpu"))]
        backend @ Backend::Wgpu => Err(kiln_runtime::unsupported(backend).into()),
        #[cfg(feature = "cuda")]
        Backend::Cuda => crate::cuda::executable(graph, options, device),
        #[cfg(not(feature = "cuda"))]
        backend @ Backend::Cuda => Err(kiln_runtime::unsupported(backend).into()),
    }
}

fn declare(scope: &Scope, signature: &Signature, loc: Loc) -> Vec<Tensor> {
    let names = signature.names();
    names.iter().zip(&signature.types).map(|(name, ty)| scope.declare_at(name, ty.clone(), loc)).collect()
}

/// K0108 where the closure declared an input by hand, which no caller would feed.
fn only_arguments(graph: &Graph, signature: &Signature) -> Result<()> {
    let Some(&stray) = graph.inputs.get(signature.types.len()) else { return Ok(()) };
    let name = graph.input_name(signature.types.len()).unwrap_or("?");
    Err(Diagnostic::new(Code::K0108, format!("graph reads undeclared input tensor {name}"))
        .at(graph.node(stray).loc)
        .label("a compiled function takes its arguments and no other inputs")
        .help("take it as an argument of the closure")
        .into())
}

/// The state's leaves that may be written over by what they become: those that keep their type.
fn donated(graph: &Graph, state_leaves: usize) -> Vec<(usize, usize)> {
    let kept = |&leaf: &usize| graph.ty(graph.inputs[leaf]) == graph.ty(graph.outputs[leaf].value);
    (0..state_leaves).filter(kept).map(|leaf| (leaf, leaf)).collect()
}

/// Leaves of a tree with the names that outputs have.
pub(crate) fn named<'a, R: Tree<Tensor>>(tree: &'a R, prefix: &str) -> Vec<(String, &'a Tensor)> {
    let names = tree.names().into_iter().map(|name| qualified(prefix, &name));
    names.zip(tree.leaves()).collect()
}

/// A tree with nothing at its leaves.
pub(crate) fn hollow<R: Tree<Tensor>>(tree: &R) -> With<R, Tensor, Hole> {
    tree.map_ref(|_| Hole)
}

fn unusable(array: &Array, name: &str, device: &Device) -> Diagnostic {
    if array.is_lost() {
        return Diagnostic::new(Code::K0703, format!("argument `{name}`: state was lost in a device fault"))
            .help("load a checkpoint, or make the state anew");
    }
    let message = format!("argument `{name}`: expected an array on device {device}, got one on {}", array.device());
    Diagnostic::new(Code::K0701, message).help("move it with `.to_device(&device)`").at(Loc::Unknown)
}

/// Said once per compiled function, and only where the user asked to be told.
#[allow(clippy::print_stderr)]
fn warn(name: &str, warning: &str) {
    if std::env::var_os("KILN_LOG").is_some() {
        eprintln!("kiln: `{name}`: {warning}");
    }
}
