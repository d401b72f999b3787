//! Each launch of a plan held against the part of the graph that it computes.

use std::path::PathBuf;

use kiln_ir::kernel::Kernel;
use kiln_ir::plan::{Launch, Plan};
use kiln_ir::{Backend, Code, Diagnostic, HostData, Loc, Value};
use kiln_passes::{Isolated, Options, Traced};
use kiln_runtime::reference::{Difference, Expected};
use kiln_runtime::{Argument, Array, Device, Executable};

use super::reproduction::{Reproduction, place};
use crate::Result;

/// The launches of a plan, each by itself.
#[derive(Debug)]
pub(super) struct Launches {
    name: String,
    device: Device,
    launches: Vec<OneLaunch>,
}

#[derive(Debug)]
enum OneLaunch {
    /// A kernel of Kiln's.
    Own(Box<Own>),
    /// A custom op's, by its first result, with what runs it on a GPU.
    Custom(Value, Option<Box<Own>>),
}

#[derive(Debug)]
struct Own {
    launch: Launch,
    alone: Isolated,
    executable: Executable,
}

impl Launches {
    pub(super) fn new(traced: &Traced, options: &Options, device: &Device) -> Result<Launches> {
        let one = |(number, launch): (usize, &Launch)| -> Result<OneLaunch> {
            let alone = traced.isolate(number)?;
            let is_custom = matches!(&*launch.kernel, Kernel::Custom(_));
            let custom = alone.results.first().copied().filter(|_| is_custom);
            // On the CPU a user's function runs by itself, so that bytes that it does not write show.
            if let (Some(result), Backend::Cpu) = (custom, device.backend()) {
                return Ok(OneLaunch::Custom(result, None));
            }
            let executable = of_plan(alone.plan.clone(), options, device)?;
            let own = Box::new(Own { launch: launch.clone(), alone, executable });
            Ok(match custom {
                Some(result) => OneLaunch::Custom(result, Some(own)),
                None => OneLaunch::Own(own),
            })
        };
        let launches = traced.plan.launches().enumerate().map(one).collect::<Result<_>>()?;
        Ok(Launches { name: traced.plan.name.to_string(), device: device.clone(), launches })
    }

    /// K0707 for the first launch that is wrong where the graph's values are these, by node and result; `custom` judges a custom op's, by
    /// its first result, with what runs it on a GPU.
    pub(super) fn check(
        &self,
        values: &[Vec<HostData>],
        custom: impl Fn(Value, Option<Alone<'_>>) -> Result<()>,
    ) -> Result<()> {
        for (number, launch) in self.launches.iter().enumerate() {
            match launch {
                OneLaunch::Custom(result, None) => custom(*result, None)?,
                OneLaunch::Custom(result, Some(own)) => {
                    custom(*result, Some(&|| run(own, &operands(own, values), &self.device)))?;
                }
                OneLaunch::Own(own) => self.check_own(number, own, values)?,
            }
        }
        Ok(())
    }

    fn check_own(&self, number: usize, own: &Own, values: &[Vec<HostData>]) -> Result<()> {
        let operands = operands(own, values);
        let found = run(own, &operands, &self.device)?;
        let mut expected = Expected::of(&own.alone.graph, &operands)?;
        if self.device.backend() == Backend::Wgpu {
            expected = expected.as_wgsl();
        }
        match expected.difference(&found) {
            None => Ok(()),
            Some(difference) => Err(self.told(number, own, &operands, found, &expected, difference).into()),
        }
    }

    fn told(
        &self,
        number: usize,
        own: &Own,
        operands: &[HostData],
        found: Vec<HostData>,
        expected: &Expected,
        difference: Difference,
    ) -> Diagnostic {
        let graph = &own.alone.graph;
        let output = &graph.outputs[difference.output];
        let message = format!("kernel {number} of `{}` differs from the reference", self.name);
        let loc = graph.node(output.value).loc;
        let reason = in_words(&output.name, expected, &difference);
        let mut diagnostic =
            Diagnostic::new(Code::K0707, message).at(loc).in_op(own.launch.kernel.form().name()).label(reason);
        for (index, &operand) in graph.inputs.iter().enumerate() {
            let name = graph.input_name(index).unwrap_or("?").to_owned();
            let loc = graph.node(operand).loc;
            let made = if loc == Loc::Unknown { "" } else { "made" };
            diagnostic = diagnostic.note(name, graph.ty(operand).to_string(), made, loc);
        }
        let reproduction = Reproduction::new(graph.clone(), operands.to_vec(), found);
        match written(&reproduction) {
            Ok(folder) => diagnostic.help(format!(
                "this is a mistake of Kiln's: please report it, with {folder}, which `kiln run` shows again",
                folder = folder.display()
            )),
            Err(_) => {
                diagnostic.help(format!("this is a mistake of Kiln's: please report it, with this graph:\n{graph}"))
            }
        }
    }
}

/// Runs a launch by itself.
pub(super) type Alone<'a> = &'a dyn Fn() -> Result<Vec<HostData>>;

/// The values that a launch reads.
fn operands(own: &Own, values: &[Vec<HostData>]) -> Vec<HostData> {
    own.alone.operands.iter().map(|value| values[value.node.index()][value.result as usize].clone()).collect()
}

/// A plan of this device's, ready to run.
fn of_plan(plan: Plan, options: &Options, device: &Device) -> Result<Executable> {
    #[cfg(feature = "wgpu")]
    if device.backend() == Backend::Wgpu {
        return crate::gpu::of_plan(plan, &options.customs, device);
    }
    Ok(Executable::with_customs(plan, &options.customs, device)?)
}

/// Runs a launch by itself. Operands that are written over may have other shapes there than they have in the graph.
fn run(own: &Own, operands: &[HostData], device: &Device) -> Result<Vec<HostData>> {
    let arguments = own.executable.inputs().iter().zip(&own.alone.arguments).map(|((_, ty), &operand)| {
        let shaped = HostData::new(ty.dtype, ty.shape.clone(), operands[operand].bytes().to_vec());
        Ok(Argument::Borrowed(Array::new(device, shaped.expect("as many elements"))?))
    });
    let results = own.executable.run(arguments.collect::<Result<_>>()?)?;
    Ok(results.iter().map(Array::to_host).collect::<std::result::Result<_, _>>()?)
}

/// `element [1, 2] of `y` is 2.5, and 2.0 by the reference, where 1e-7 is allowed`, and how many others there are.
pub(super) fn in_words(output: &str, expected: &Expected, difference: &Difference) -> String {
    let data = &expected.outputs[difference.output];
    let mut rest = difference.element;
    let mut place: Vec<usize> = data.shape().iter().rev().map(|&extent| (rest % extent, rest /= extent).0).collect();
    place.reverse();
    let Difference { expected, found, bound, count, .. } = difference;
    let allowed = if *bound > f64::MIN_POSITIVE { format!(", where {bound:.1e} is allowed") } else { String::new() };
    let others = if *count > 1 {
        format!("; so are {} of {} elements", count, data.shape().num_elements())
    } else {
        String::new()
    };
    format!("element {place:?} of `{output}` is {found}, and {expected} by the reference{allowed}{others}")
}

fn written(reproduction: &Reproduction) -> Result<PathBuf> {
    let folder = place(reproduction);
    reproduction.write(&folder)?;
    Ok(folder)
}
