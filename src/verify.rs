//! Comparing what kernels compute with what they should: [`verify`], and `jit(..).verify()`.
//!
//! The reference interpreter computes the whole graph op by op on the user's own data; each kernel is then run by itself on the very operands
//! that it has there, so the first wrong kernel is told and not what follows from it. Today's kernels to verify are those of custom ops, which
//! are the user's own: their bodies are what they must agree with.
//!
//! - a result may differ by a part of the largest element (the op's tolerance, or what the dtype suggests); integers, bools and the places of
//!   NaN agree exactly;
//! - all elements of a result are written, and the same operands give the same bits.

use kiln_ir::{Code, Custom, CustomBehaviour, DType, Diagnostic, Graph, HostData, Literal, Node, Op};
use kiln_passes::{Options, inline};
use kiln_runtime::reference::evaluate_all_with;
use kiln_runtime::{Array, run_cpu_function};

use crate::compiled::Program;
use crate::{CustomOps, Result};

/// Whether calls compare kernels with their oracles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verify {
    /// They do not.
    Off,
    /// Before each run.
    On,
}

/// Compares the kernels that a program uses with their oracles, on these arguments in declared order.
///
/// # Errors
///
/// K0706 for the first kernel that computes something else, K0705 where one fails, and whatever evaluating the graph raises.
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
    Verifier::new(graph, &customs)?.check(&arguments.iter().collect::<Vec<_>>())
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
pub(crate) struct Verifier {
    graph: Graph,
    customs: CustomOps,
}

impl Verifier {
    pub(crate) fn new(graph: &Graph, customs: &CustomOps) -> Result<Verifier> {
        // Bodies of ops that have no kernel may call ops that have one.
        let options = Options { customs: customs.clone(), ..Options::default() };
        Ok(Verifier { graph: inline(graph, &options)?, customs: customs.clone() })
    }

    /// K0706 for the first kernel that is wrong on these arguments.
    pub(crate) fn check(&self, arguments: &[&Array]) -> Result<()> {
        let kernels = self.graph.nodes.iter().any(|node| self.kernel(node).is_some());
        if !kernels {
            return Ok(());
        }
        let inputs: kiln_ir::Result<Vec<HostData>> = arguments.iter().map(|array| array.to_host()).collect();
        let values = evaluate_all_with(&self.graph, &inputs?, &self.customs)?;
        for (index, node) in self.graph.nodes.iter().enumerate() {
            let Some((custom, behaviour)) = self.kernel(node) else { continue };
            let operands = node.operands.iter().map(|value| values[value.node.index()][value.result as usize].clone());
            let operands: Vec<HostData> = operands.collect();
            let run = |background| run_cpu_function(behaviour, node.loc, &operands, &custom.results, background);
            // Bytes that no kernel writes show through, each time others.
            let (first, second) = (run(0)?, run(1)?);
            if let Some(found) = difference(&first, &second, Some(0.0)) {
                let reason = format!("{found} in a second run: not all is written, or not the same each time");
                return Err(told(custom, node, &operands, reason).into());
            }
            if let Some(found) = difference(&first, &values[index], behaviour.tolerance) {
                return Err(told(custom, node, &operands, format!("{found} by its body")).into());
            }
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
