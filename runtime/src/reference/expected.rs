//! What a graph gives, and how far a backend may be from it.
//!
//! The bounds of single ops are written down ([`super::tolerance`]). In a graph errors add up, and where a float is compared or rounded to an
//! integer they may jump. How far is found by experiment: the reference evaluates the graph a few times more, each intermediate moved by as
//! much as is allowed there. An element of an output may differ by a small multiple of what that does to it. Where it makes a number an
//! infinity or changes an integer, the element stands at an edge and may be anything.

use std::collections::HashMap;

use kiln_ir::{
    Backend, DType, Diagnostic, Graph, GraphBuilder, HostData, Literal, Loc, Node, NodeId, Op, ScalarOp, TensorType,
    Value,
};

use super::evaluate;
use super::tolerance::{agree, bounds, ulp};

/// Evaluations with moved intermediates.
const TRIALS: u64 = 4;

/// How many times the largest deviation that was seen in these is allowed.
const MARGIN: f64 = 4.0;

/// What the reference says of a graph's outputs.
#[derive(Clone, Debug)]
pub struct Expected {
    /// The outputs, in order.
    pub outputs: Vec<HostData>,
    /// For each element of each, by how much it may differ; infinite at an edge.
    pub bounds: Vec<Vec<f64>>,
}

/// The first element that is further off than it may be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Difference {
    /// Which output.
    pub output: usize,
    /// Which of its elements, in row-major order.
    pub element: usize,
    /// What the reference says.
    pub expected: Literal,
    /// What was found.
    pub found: Literal,
    /// By how much they may differ.
    pub bound: f64,
    /// How many of this output's elements are off.
    pub count: usize,
}

impl Expected {
    /// Evaluates a graph without custom ops.
    ///
    /// # Errors
    ///
    /// Those of [`evaluate`].
    ///
    /// ```
    /// use kiln_ir::{HostData, DType, Literal, parse};
    /// use kiln_runtime::reference::Expected;
    /// let graph = parse("kiln 1\ngraph @f(%0 \"x\": f32[] @cpu) {\n  %1 = exp %0 : f32[] @cpu\n  return %1 \"y\"\n}\n")?;
    /// let number = |x: f64| HostData::from_literals(DType::F32, [], &[Literal::from_f64(DType::F32, x)]).unwrap();
    /// let expected = Expected::of(&graph, &[number(1.0)])?;
    /// assert_eq!(expected.difference(&[number(2.7182817)]), None);
    /// assert_eq!(expected.difference(&[number(2.71)]).unwrap().count, 1);
    /// # Ok::<(), kiln_ir::Diagnostics>(())
    /// ```
    pub fn of(graph: &Graph, inputs: &[HostData]) -> Result<Expected, Diagnostic> {
        let outputs = evaluate(graph, inputs)?;
        let exact = evaluate_moved(graph, inputs, None)?;
        let mut bounds: Vec<Vec<f64>> = exact.outputs_bounds;
        if exact.any_freedom {
            for trial in 0..TRIALS {
                let moved = evaluate_moved(graph, inputs, Some(trial))?.outputs;
                for ((bounds, expected), moved) in bounds.iter_mut().zip(&outputs).zip(&moved) {
                    widen(bounds, expected, moved, MARGIN);
                }
            }
        }
        Ok(Expected { outputs, bounds })
    }

    /// What a device of wgpu may give: WGSL lets an implementation leave products unrounded where they are added to, and take the smallest numbers
    /// for zeros.
    #[must_use]
    pub fn as_wgsl(mut self) -> Expected {
        for (bounds, output) in self.bounds.iter_mut().zip(&self.outputs) {
            if !output.dtype().is_float() {
                continue;
            }
            let smallest = ulp(output.dtype(), 0.0) / ulp(output.dtype(), 1.0);
            for (bound, element) in bounds.iter_mut().zip(output.elements()) {
                *bound += 4.0 * ulp(output.dtype(), element.to_f64()) + smallest;
            }
        }
        self
    }

    /// Where results are not what they should be; `None` where all of them agree.
    pub fn difference(&self, results: &[HostData]) -> Option<Difference> {
        (0..self.outputs.len().min(results.len())).find_map(|output| self.difference_in(output, &results[output]))
    }

    /// Where one output is not what it should be.
    pub fn difference_in(&self, output: usize, found: &HostData) -> Option<Difference> {
        let pairs = || self.outputs[output].elements().zip(found.elements()).zip(&self.bounds[output]).enumerate();
        let is_off = |&(_, ((expected, found), bound)): &(usize, ((Literal, Literal), &f64))| {
            !bound.is_infinite() && !agree(expected, found, *bound)
        };
        let (element, ((expected, found), &bound)) = pairs().find(is_off)?;
        Some(Difference { output, element, expected, found, bound, count: pairs().filter(is_off).count() })
    }
}

/// Adds to each bound what moving did to the element; an infinity where it changed its kind.
pub fn widen(bounds: &mut [f64], expected: &HostData, moved: &HostData, margin: f64) {
    for ((bound, expected), moved) in bounds.iter_mut().zip(expected.elements()).zip(moved.elements()) {
        if expected == moved {
            continue;
        }
        let deviation = (expected.to_f64() - moved.to_f64()).abs();
        let both_nan = expected.to_f64().is_nan() && moved.to_f64().is_nan();
        if both_nan {
            continue;
        }
        // An edge, or so near to one that a comparison would say nothing.
        let vague = !expected.dtype().is_float()
            || !deviation.is_finite()
            || deviation > 0.1 * expected.to_f64().abs().max(0.01);
        *bound = if vague { f64::INFINITY } else { bound.max(margin * deviation) };
    }
}

struct Moved {
    outputs: Vec<HostData>,
    /// What is allowed at each output on operands that are exact.
    outputs_bounds: Vec<Vec<f64>>,
    /// Whether any value that other nodes read may differ at all.
    any_freedom: bool,
}

/// Evaluates node by node; in a trial each float result is moved by as much as it may differ, up or down at random.
fn evaluate_moved(graph: &Graph, inputs: &[HostData], trial: Option<u64>) -> Result<Moved, Diagnostic> {
    let mut signs = Signs::new(trial.unwrap_or(0));
    let mut values: HashMap<Value, HostData> = graph.inputs.iter().copied().zip(inputs.iter().cloned()).collect();
    let mut own: HashMap<Value, Vec<f64>> = HashMap::new();
    let mut any_freedom = false;
    let mut used = vec![false; graph.nodes.len()];
    graph.nodes.iter().flat_map(|node| &node.operands).for_each(|operand| used[operand.node.index()] = true);
    let computed = graph.nodes.iter().enumerate().filter(|(_, node)| !matches!(node.op, Op::Input { .. }));
    for (index, node) in computed {
        let operands: Vec<HostData> = node.operands.iter().map(|operand| values[operand].clone()).collect();
        let mut results = apply(node, &operands)?;
        let lent: Vec<&HostData> = operands.iter().collect();
        let mut bounds = bounds(&node.op, &lent, &results);
        for (result, (data, bounds)) in results.iter_mut().zip(&mut bounds).enumerate() {
            let value = Value { node: NodeId(index as u32), result: result as u32 };
            let loose = unrounded(&node.op, &lent, data).unwrap_or_else(|| vec![0.0; bounds.len()]);
            let reaches: Vec<f64> = bounds.iter().zip(&loose).map(|(&bound, &loose)| bound.max(loose)).collect();
            any_freedom |= used[index] && reaches.iter().any(|&reach| reach > f64::MIN_POSITIVE);
            if trial.is_some() {
                *data = moved(data, &reaches, &mut signs);
            }
            values.insert(value, data.clone());
            own.insert(value, std::mem::take(bounds));
        }
    }
    let zeros = |value: Value| vec![0.0; graph.ty(value).shape.num_elements()];
    Ok(Moved {
        outputs: graph.outputs.iter().map(|output| values[&output.value].clone()).collect(),
        outputs_bounds: graph
            .outputs
            .iter()
            .map(|output| own.get(&output.value).cloned().unwrap_or_else(|| zeros(output.value)))
            .collect(),
        any_freedom,
    })
}

/// Signs in which nothing repeats (SplitMix64), the same on every machine.
pub struct Signs(u64);

impl Signs {
    /// Those of a number.
    pub fn new(seed: u64) -> Signs {
        Signs(seed)
    }

    fn sign(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        if (z ^ (z >> 31)).is_multiple_of(2) { 1.0 } else { -1.0 }
    }
}

/// Data with each float moved by its reach, up or down.
pub fn moved(data: &HostData, reaches: &[f64], signs: &mut Signs) -> HostData {
    let elements: Vec<Literal> = data
        .elements()
        .zip(reaches)
        .map(|(element, &reach)| {
            if reach <= f64::MIN_POSITIVE || !element.dtype().is_float() {
                return element;
            }
            Literal::from_f64(element.dtype(), element.to_f64() + signs.sign() * reach)
        })
        .collect();
    HostData::from_literals(data.dtype(), data.shape(), &elements).expect("as many elements as before")
}

/// How far each element of a result may be from what a kernel goes on with instead, unrounded: a product in a fused multiply-add, and a
/// 16-bit matrix product in its epilogue. `None` where the op's results are always rounded.
fn unrounded(op: &Op, operands: &[&HostData], result: &HostData) -> Option<Vec<f64>> {
    let dtype = result.dtype();
    match op {
        Op::Scalar(ScalarOp::Mul) if dtype.is_float() => {
            let pairs = operands[0].elements().zip(operands[1].elements()).zip(result.elements());
            let exact = |x: f64, y: f64, product: f64| x.mul_add(y, -product) == 0.0 || !product.is_finite();
            let reach = |x: f64, y: f64, product: f64| if exact(x, y, product) { 0.0 } else { ulp(dtype, product) };
            Some(pairs.map(|((x, y), product)| reach(x.to_f64(), y.to_f64(), product.to_f64())).collect())
        }
        Op::MatMul { .. } if matches!(dtype, DType::F16 | DType::BF16) => {
            Some(result.elements().map(|element| ulp(dtype, element.to_f64())).collect())
        }
        _ => None,
    }
}

/// A node's results on given operands.
pub fn apply(node: &Node, operands: &[HostData]) -> Result<Vec<HostData>, Diagnostic> {
    // Any backend will do for operands: a transfer goes from wherever they are.
    let backend = node.types.first().map_or(Backend::Cpu, |ty| ty.backend);
    let mut b = GraphBuilder::new("one op");
    let mut inputs = Vec::new();
    for (index, data) in operands.iter().enumerate() {
        let ty = TensorType::new(data.dtype(), data.shape(), backend);
        inputs.push(b.input(format!("x{index}"), ty, Loc::Unknown)?);
    }
    let id = b.add(node.op.clone(), &inputs, Loc::Unknown)?;
    let results: Vec<_> =
        (0..node.types.len()).map(|r| (format!("y{r}"), Value { node: id, result: r as u32 })).collect();
    evaluate(&b.finish(results)?, operands)
}
