//! Comparing what kernels compute with what they should: [`verify`], `jit(..).verify()`, `step(..).verify()`, `compile(..)?.verify()`.
//!
//! The reference interpreter computes the whole graph op by op on the user's own data; each launch is then run by itself on the very operands
//! that it has there, so the first wrong kernel is told and not what follows from it.
//!
//! - The graph after the passes is held against the one that was captured, by what the reference gives for both: a rewrite that changes the
//!   program is told as such (K0707) and not as a kernel's mistake. Graphs with custom ops are left out: what their kernels may differ by is
//!   the user's to say.
//! - A kernel of Kiln's is held against the part of the graph that it computes, within the bounds of `runtime/src/reference/tolerance.rs`, and
//!   what those come to in that part. Where it differs (K0707) that part is written to a folder with its operands, which `kiln run` shows
//!   again (`reproduction.rs`).
//! - A kernel of a custom op, the user's own, is held against its body (K0706): a result may differ by a part of the largest element (the op's
//!   tolerance, or what the dtype suggests); integers, bools and the places of NaN agree exactly; all elements of a result are written, and the
//!   same operands give the same bits.

mod kernels;
pub mod reproduction;
mod rewrites;

use kiln_ir::{Backend, Code, Custom, CustomBehaviour, DType, Diagnostic, Graph, HostData, Literal, Node, Op};
use kiln_passes::{Options, compile_traced, inline};
use kiln_runtime::reference::evaluate_all_with;
use kiln_runtime::{Argument, Array, Device, Executable, run_cpu_function};

use crate::compiled::{Compiled, Program};
use crate::{CustomOps, Result};

/// Whether calls compare kernels with their oracles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verify {
    /// They do not.
    Off,
    /// Before each run.
    On,
}

/// Compares the kernels that a program is compiled to with the reference, on these arguments in declared order.
///
/// # Errors
///
/// K0707 where the passes changed what the graph computes, or for the first kernel that computes something else than its part of it, K0706 for the first custom op's that computes something
/// else than its body, K0705 where one fails, and whatever compiling and evaluating the graph raises.
///
/// ```
/// use kiln::prelude::*;
/// let halved = custom_op("halved", |x: &Tensor| x * 0.5).cpu(|x, y| {
///     let (x, y) = (x.as_slice::<f32>()?, y.as_mut_slice::<f32>()?);
///     y.iter_mut().zip(x).for_each(|(y, x)| *y = x / 2.0);
///     Ok(())
/// });
/// let captured = CaptureDevice::new(Backend::Cpu).capture_scope(|scope| {
///     halved.call(scope.input("x", DType::F32, [3]).exp())
/// })?;
/// kiln::verify(&captured, &[Array::new(&Device::cpu(), [0.0f32, 1.0, 2.0])?])?;
/// # Ok::<(), kiln::Error>(())
/// ```
pub fn verify<'a>(program: impl Into<Program<'a>>, arguments: &[Array]) -> Result<()> {
    let Program { graph, customs } = program.into();
    let options = Options { customs, ..Options::default() };
    let theirs = arguments.first().map(|array| array.device().clone());
    let device = theirs.filter(|device| device.backend() == Backend::Wgpu);
    let device = device.map_or_else(|| Device::of(Backend::Cpu), Ok)?;
    Verifier::new(graph, &options, &device)?.check(&arguments.iter().collect::<Vec<_>>())
}

/// A compiled graph whose kernels are compared with the reference before each run. Made by [`Compiled::verify`].
#[derive(Debug)]
pub struct Verified {
    executable: Executable,
    verifier: Verifier,
}

impl Compiled {
    /// The same, for runs that are verified: before each one every kernel is compared with the reference, on the data of the run.
    ///
    /// # Errors
    ///
    /// Those of [`compile`](crate::compile).
    ///
    /// ```
    /// use kiln::prelude::*;
    /// let captured = CaptureDevice::new(Backend::Cpu).capture_scope(|scope| {
    ///     scope.input("x", DType::F32, [2, 3]).softmax(1).sum(..)
    /// })?;
    /// let device = Device::cpu();
    /// let verified = kiln::compile(&captured, &device)?.verify()?;
    /// let results = verified.run(vec![Array::new(&device, [[0.0f32; 3]; 2])?.into()])?;
    /// assert_eq!(results[0].item::<f32>()?, 2.0);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    pub fn verify(self) -> Result<Verified> {
        let verifier = Verifier::new(&self.graph, &self.options, self.executable.device())?;
        Ok(Verified { executable: self.executable, verifier })
    }
}

impl Verified {
    /// Verifies the kernels on these arguments, then runs with them.
    ///
    /// # Errors
    ///
    /// Those of [`verify`] and of [`Executable::run`].
    pub fn run(&self, arguments: Vec<Argument>) -> Result<Vec<Array>> {
        self.verifier.check(&arguments.iter().map(Argument::array).collect::<Vec<_>>())?;
        Ok(self.executable.run(arguments)?)
    }

    /// What is run.
    pub fn executable(&self) -> &Executable {
        &self.executable
    }
}

/// Checks the WGSL texts of the custom ops in a program for wgpu: each is parsed, and its entry point, its bindings and their element types are
/// held against the op. Nothing runs, so no device is needed.
///
/// # Errors
///
/// K0211 for the first text that does not fit.
#[cfg(feature = "wgpu")]
pub fn check_kernels<'a>(program: impl Into<Program<'a>>) -> Result<()> {
    let Program { graph, customs } = program.into();
    for node in &graph.nodes {
        let Op::Custom(custom) = &node.op else { continue };
        let text = customs.of(custom).and_then(|behaviour| behaviour.wgsl.as_ref());
        let Some(text) = text.filter(|_| node.types.iter().any(|ty| ty.backend == kiln_ir::Backend::Wgpu)) else {
            continue;
        };
        let operands: Vec<_> = node.operands.iter().map(|&operand| graph.ty(operand).clone()).collect();
        let kernel = text(&operands, &custom.results);
        kiln_codegen::check_wgsl(&custom.name, &kernel, &operands, &custom.results)
            .map_err(|misfit| misfit.at(node.loc))?;
    }
    Ok(())
}

/// A graph whose kernels are compared.
#[derive(Debug)]
pub(crate) struct Verifier {
    /// The graph whose values the reference computes: after the passes where it was compiled, else with bodies in the place of ops that
    /// have no kernel.
    graph: Graph,
    /// As it was captured, where that can be held against what the passes made of it.
    captured: Option<Graph>,
    customs: CustomOps,
    /// The launches of what was compiled; `None` for the reference interpreter, which has none.
    launches: Option<kernels::Launches>,
}

impl Verifier {
    /// For a graph as it is compiled with these options for a device: the CPU, or a GPU of wgpu with nothing on the CPU beside it. Elsewhere only
    /// the CPU functions of custom ops are compared.
    pub(crate) fn new(graph: &Graph, options: &Options, device: &Device) -> Result<Verifier> {
        let customs = options.customs.clone();
        let backend = device.backend();
        if graph.backends() != [backend] || !matches!(backend, Backend::Cpu | Backend::Wgpu) {
            return Ok(Verifier { graph: inline(graph, options)?, captured: None, customs, launches: None });
        }
        let options = &match device.target() {
            #[cfg(feature = "wgpu")]
            Some(target) => crate::gpu::fitted(options, target),
            #[cfg(not(feature = "wgpu"))]
            Some(_) => options.clone(),
            None => options.clone(),
        };
        let traced = compile_traced(graph, options, &mut |_, _| {})?;
        // The CPU is one of its own: what is verified takes no memory of the user's.
        let device = if backend == Backend::Cpu { &Device::of(backend)? } else { device };
        let launches = kernels::Launches::new(&traced, options, device)?;
        let is_custom = graph.nodes.iter().any(|node| matches!(node.op, Op::Custom(_)));
        let captured = (!is_custom).then(|| graph.clone());
        Ok(Verifier { graph: traced.graph, captured, customs, launches: Some(launches) })
    }

    /// K0707 for wrong rewrites, K0707 or K0706 for the first kernel that is wrong on these arguments.
    pub(crate) fn check(&self, arguments: &[&Array]) -> Result<()> {
        let is_custom = self.graph.nodes.iter().any(|node| self.kernel(node).is_some());
        if !is_custom && self.launches.is_none() {
            return Ok(());
        }
        let inputs: kiln_ir::Result<Vec<HostData>> = arguments.iter().map(|array| array.to_host()).collect();
        let inputs = inputs?;
        let values = evaluate_all_with(&self.graph, &inputs, &self.customs)?;
        if let Some(captured) = &self.captured {
            rewrites::check(captured, &self.graph, &inputs, &values)?;
        }
        match &self.launches {
            Some(launches) => {
                launches.check(&values, |result, alone| self.check_custom(result.node.index(), &values, alone))
            }
            None => (0..self.graph.nodes.len()).try_for_each(|node| self.check_custom(node, &values, None)),
        }
    }

    /// K0706 where a node is run by a kernel of its own that is wrong: by what is `alone` on a GPU, else by a function on the CPU.
    fn check_custom(&self, index: usize, values: &[Vec<HostData>], alone: Option<kernels::Alone<'_>>) -> Result<()> {
        let node = &self.graph.nodes[index];
        let Op::Custom(custom) = &node.op else { return Ok(()) };
        let Some(behaviour) = self.customs.of(custom) else { return Ok(()) };
        let operands = node.operands.iter().map(|value| values[value.node.index()][value.result as usize].clone());
        let operands: Vec<HostData> = operands.collect();
        let (first, second) = match alone {
            Some(alone) => (alone()?, alone()?),
            None if behaviour.cpu.is_none() => return Ok(()),
            None => {
                let run = |background| run_cpu_function(behaviour, node.loc, &operands, &custom.results, background);
                // Bytes that no kernel writes show through, each time others.
                (run(0)?, run(1)?)
            }
        };
        if let Some(found) = difference(&first, &second, Some(0.0)) {
            let reason = format!("{found} in a second run: not all is written, or not the same each time");
            return Err(told(custom, node, &operands, reason).into());
        }
        if let Some(found) = difference(&first, &values[index], behaviour.tolerance) {
            return Err(told(custom, node, &operands, format!("{found} by its body")).into());
        }
        Ok(())
    }

    /// The op of a node that is run by a kernel of its own.
    fn kernel<'a>(&'a self, node: &'a Node) -> Option<(&'a Custom, &'a CustomBehaviour)> {
        let Op::Custom(custom) = &node.op else { return None };
        self.customs.of(custom).filter(|behaviour| behaviour.cpu.is_some()).map(|behaviour| (custom, behaviour))
    }
}

/// The first element that differs, in words: `element 3 of result 0 is 2.5, and 2`.
fn difference(kernel: &[HostData], oracle: &[HostData], tolerance: Option<f64>) -> Option<String> {
    kernel.iter().zip(oracle).enumerate().find_map(|(result, (kernel, oracle))| {
        let slack = tolerance.unwrap_or_else(|| usual(oracle.dtype()));
        let finite = |element: Literal| Some(element.to_f64().abs()).filter(|magnitude| magnitude.is_finite());
        let scale = oracle.elements().filter_map(finite).fold(0.0, f64::max);
        let agree = |a: Literal, b: Literal| a == b || near(a, b, slack * scale);
        let at = kernel.elements().zip(oracle.elements()).position(|(a, b)| !agree(a, b))?;
        let (a, b) = (kernel.element(at), oracle.element(at));
        Some(format!("element {at} of result {result} is {a}, and {b}"))
    })
}

fn near(a: Literal, b: Literal, slack: f64) -> bool {
    let (x, y) = (a.to_f64(), b.to_f64());
    a.dtype().is_float() && (x.is_nan() && y.is_nan() || x == y || (x - y).abs() <= slack)
}

/// How far floats of a dtype may be apart, as a part of the largest element.
fn usual(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 1e-12,
        DType::F32 => 1e-5,
        DType::F16 => 2e-3,
        DType::BF16 => 1.6e-2,
        DType::I8 | DType::U8 | DType::I32 | DType::U32 | DType::I64 | DType::Bool => 0.0,
    }
}

fn told(custom: &Custom, node: &Node, operands: &[HostData], reason: String) -> Diagnostic {
    let message = format!("kernel of custom op `{}` differs from its body", custom.name);
    let diagnostic = Diagnostic::new(Code::K0706, message).at(node.loc).in_op(&*custom.name).label(reason);
    let operands = operands.iter().enumerate();
    operands
        .fold(diagnostic, |diagnostic, (index, operand)| {
            let ty = format!("{}{}", operand.dtype(), operand.shape());
            diagnostic.note(format!("operand {index}"), ty, "", kiln_ir::Loc::Unknown)
        })
        .help("the body is what the op means; `.tolerance(relative)` says how exact its kernels are")
}
