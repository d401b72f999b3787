//! Running compiled graphs.
//!
//! An [`Executable`] is made once from a [`Plan`] (or from a graph, for the reference interpreter) and run any number of times, from any
//! thread. Arguments come in as [`Argument`]s, results go out as arrays that belong to the caller: no later run writes into them.
//!
//! - Everything that can be known to be wrong is found before the first kernel is launched: number, types and devices of the arguments,
//!   memory for slots and results. A [`RunError`] gives the arguments back unchanged.
//! - A custom op's function may fail half-way (K0705). Arguments that had lent their memory to a result and were written over are then given
//!   back *lost*, the others unchanged: nothing half-new is ever seen.
//! - A donated argument whose handle is the last one lends its memory to the result it is paired with. Where another handle lives, the
//!   result gets memory of its own, and [`RunStatistics::copied`] names the argument.
//! - Slots and results come from the device's pool: a warm run asks the system for no memory.

#[cfg(feature = "cuda")]
mod after;
mod check;
#[cfg(feature = "cuda")]
mod cuda;
mod custom;
#[cfg(feature = "wgpu")]
mod gpu;
mod host;
mod layout;
mod memory;
#[cfg(feature = "cuda")]
mod replay;
mod signature;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kiln_ir::cuda::CudaProgram;
use kiln_ir::gpu::GpuProgram;
use kiln_ir::plan::Plan;
use kiln_ir::{Code, CustomOps, Diagnostic, Diagnostics, Graph, HostData, Result, TensorType};

use crate::{Array, Device, IntoArray, reference};
use layout::Program;
use signature::Signature;

/// One argument of a run.
#[derive(Clone, Debug)]
pub enum Argument {
    /// Only read; the caller's other handles see it unchanged.
    Borrowed(Array),
    /// Given away: its memory may become a result's, if this is its last handle.
    Donated(Array),
}

impl Argument {
    /// The array.
    pub fn array(&self) -> &Array {
        match self {
            Argument::Borrowed(array) | Argument::Donated(array) => array,
        }
    }

    /// The array by value.
    pub fn into_array(self) -> Array {
        match self {
            Argument::Borrowed(array) | Argument::Donated(array) => array,
        }
    }
}

impl From<Array> for Argument {
    fn from(array: Array) -> Argument {
        Argument::Borrowed(array)
    }
}

impl From<&Array> for Argument {
    fn from(array: &Array) -> Argument {
        Argument::Borrowed(array.clone())
    }
}

/// Why a run has no results, and the arguments.
pub struct RunError {
    /// What is wrong.
    pub diagnostics: Diagnostics,
    /// The arguments as they were given; those that a run has written over before it failed are [lost](Array::is_lost).
    pub arguments: Vec<Argument>,
}

impl fmt::Debug for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.diagnostics, f)
    }
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.diagnostics, f)
    }
}

impl std::error::Error for RunError {}

impl From<RunError> for Diagnostics {
    fn from(error: RunError) -> Diagnostics {
        error.diagnostics
    }
}

/// What an executable has done so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunStatistics {
    /// Completed runs.
    pub runs: u64,
    /// Of those, runs that were handed over to the device as one CUDA graph.
    pub replays: u64,
    /// Graphs that were made for them.
    pub recordings: u64,
    /// Donated arguments that could not be updated in place because another handle to them lived, with how often.
    pub copied: BTreeMap<Arc<str>, u64>,
}

/// One line for each argument that was copied.
impl fmt::Display for RunStatistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, times) in &self.copied {
            let often = if *times == 1 { String::new() } else { format!(" ({times} times)") };
            writeln!(f, "leaf `{name}` was copied: another handle lives{often}")?;
        }
        Ok(())
    }
}

/// The texts of a plan's launches, in order; none for a launch on the CPU beside.
#[derive(Clone, Copy, Debug)]
pub enum Programs<'a> {
    /// The backend runs no texts.
    None,
    /// WGSL.
    Wgsl(&'a [Option<Arc<GpuProgram>>]),
    /// CUDA C++.
    Cuda(&'a [Option<Arc<CudaProgram>>]),
}

/// A compiled graph on a device, ready to run.
pub struct Executable {
    device: Device,
    signature: Signature,
    code: Executed,
    statistics: Mutex<RunStatistics>,
}

/// What a run tells while it goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    /// The first step begins.
    Begun,
    /// A step is done.
    Done,
}

enum Executed {
    /// Kernels.
    Plan(Box<Program>),
    /// The graph itself, op by op.
    Reference(Box<(Graph, CustomOps)>),
}

impl Executable {
    /// Prepares a plan: constants are placed on the device, each distinct kernel is prepared once.
    ///
    /// # Errors
    ///
    /// K0208 where the plan's backend is not the device's or nothing here runs it, K0704 where its constants do not fit, K0901 where
    /// the plan contradicts itself.
    pub fn new(plan: Plan, device: &Device) -> Result<Executable> {
        Executable::with_customs(plan, &CustomOps::new(), device)
    }

    /// [`Executable::new`] of a plan that runs custom ops' own kernels. K0209 names one that is not among `customs`.
    pub fn with_customs(plan: Plan, customs: &CustomOps, device: &Device) -> Result<Executable> {
        Executable::with_programs(plan, Programs::None, customs, device)
    }

    /// [`Executable::with_customs`] for a backend that runs texts. K0708 where a library is missing that compiles or multiplies.
    pub fn with_programs(plan: Plan, programs: Programs, customs: &CustomOps, device: &Device) -> Result<Executable> {
        match plan.backend {
            kiln_ir::Backend::Cpu => {}
            kiln_ir::Backend::Wgpu if cfg!(feature = "wgpu") => {}
            kiln_ir::Backend::Cuda if cfg!(feature = "cuda") => {}
            kiln_ir::Backend::Wgpu | kiln_ir::Backend::Cuda | kiln_ir::Backend::NdArray => {
                return Err(crate::unsupported(plan.backend).into());
            }
        }
        if plan.backend != device.backend() {
            let told = format!("a plan for {} cannot run on device {device}", plan.backend);
            return Err(Diagnostic::new(Code::K0208, "unsupported dispatch backend").label(told).into());
        }
        let signature = Signature::new(plan.inputs.clone(), plan.outputs.clone());
        let program = Program::new(plan, programs, customs, device)?;
        Ok(Executable::with(device, signature, Executed::Plan(Box::new(program))))
    }

    /// Runs a graph by the reference interpreter instead: slow, and the definition of what is right.
    ///
    /// ```
    /// use kiln_ir::{Backend, DType, GraphBuilder, Loc, ScalarOp, TensorType};
    /// use kiln_runtime::{Array, Device, Executable};
    /// let mut b = GraphBuilder::new("double");
    /// let x = b.input("x", TensorType::new(DType::F32, [2], Backend::NdArray), Loc::Unknown)?;
    /// let y = b.scalar(ScalarOp::Add, &[x, x], Loc::Unknown)?;
    /// let device = Device::reference();
    /// let double = Executable::reference(b.finish([("y", y)])?, &device);
    /// let results = double.run(vec![Array::new(&device, [1.0f32, 2.5])?.into()])?;
    /// assert_eq!(results[0].to_vec::<f32>()?, [2.0, 5.0]);
    /// # Ok::<(), kiln_ir::Diagnostics>(())
    /// ```
    pub fn reference(graph: Graph, device: &Device) -> Executable {
        Executable::reference_with_customs(graph, &CustomOps::new(), device)
    }

    /// [`Executable::reference`] of a graph with custom ops: those without a body run by their CPU function.
    pub fn reference_with_customs(graph: Graph, customs: &CustomOps, device: &Device) -> Executable {
        let name = |index| Arc::from(graph.input_name(index).unwrap_or("?"));
        let inputs = graph.inputs.iter().enumerate();
        let inputs = inputs.map(|(index, &value)| (name(index), graph.ty(value).clone())).collect();
        let outputs = graph.outputs.iter();
        let outputs = outputs.map(|output| (output.name.clone(), graph.ty(output.value).clone())).collect();
        Executable::with(
            device,
            Signature::new(inputs, outputs),
            Executed::Reference(Box::new((graph, customs.clone()))),
        )
    }

    fn with(device: &Device, signature: Signature, code: Executed) -> Executable {
        Executable { device: device.clone(), signature, code, statistics: Mutex::default() }
    }

    /// Where it runs.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Names and types of the arguments, in order.
    pub fn inputs(&self) -> &[(Arc<str>, TensorType)] {
        &self.signature.inputs
    }

    /// Names and types of the results, in order.
    pub fn outputs(&self) -> &[(Arc<str>, TensorType)] {
        &self.signature.outputs
    }

    /// The plan, where kernels run.
    pub fn plan(&self) -> Option<&Plan> {
        match &self.code {
            Executed::Plan(program) => Some(program.plan()),
            Executed::Reference(_) => None,
        }
    }

    /// What it has done so far.
    pub fn statistics(&self) -> RunStatistics {
        let counted = self.statistics.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (replays, recordings) = match &self.code {
            Executed::Plan(program) => program.replayed(),
            Executed::Reference(_) => (0, 0),
        };
        RunStatistics { replays, recordings, ..counted }
    }

    /// Runs with the arguments in declared order and gives the results in declared order.
    ///
    /// # Errors
    ///
    /// [`Executable::try_run`] tells them, and gives the arguments back.
    pub fn run(&self, arguments: Vec<Argument>) -> Result<Vec<Array>> {
        self.try_run(arguments).map_err(|error| error.diagnostics)
    }

    /// [`Executable::run`] that gives the arguments back where it fails.
    ///
    /// # Errors
    ///
    /// K0701 for each argument that does not fit the signature, K0703 where one was lost, K0704 where there is no memory: then nothing was
    /// run. K0705 where a custom op's function fails.
    pub fn try_run(&self, arguments: Vec<Argument>) -> Result<Vec<Array>, RunError> {
        if let Err(diagnostics) = self.device.check().and_then(|()| self.signature.check(&arguments, &self.device)) {
            return Err(RunError { diagnostics, arguments });
        }
        let (results, copied) = match &self.code {
            Executed::Plan(program) => program.run(arguments, &self.device, &mut |_| {})?,
            Executed::Reference(program) => match self.interpret(&program.0, &program.1, &arguments) {
                Ok(results) => (results, Vec::new()),
                Err(diagnostics) => return Err(RunError { diagnostics, arguments }),
            },
        };
        self.count(&copied);
        Ok(results)
    }

    /// [`Executable::try_run`] that tells when each step of the plan was done, from the start of its first one. The reference interpreter has
    /// no steps.
    ///
    /// # Errors
    ///
    /// As [`Executable::try_run`].
    pub fn try_run_timed(&self, arguments: Vec<Argument>) -> Result<(Vec<Array>, Vec<Duration>), RunError> {
        let Executed::Plan(program) = &self.code else { return Ok((self.try_run(arguments)?, Vec::new())) };
        if let Err(diagnostics) = self.device.check().and_then(|()| self.signature.check(&arguments, &self.device)) {
            return Err(RunError { diagnostics, arguments });
        }
        let ((results, copied), done) = program.run_timed(arguments, &self.device)?;
        self.count(&copied);
        Ok((results, done))
    }

    fn interpret(&self, graph: &Graph, customs: &CustomOps, arguments: &[Argument]) -> Result<Vec<Array>> {
        let inputs: Result<Vec<HostData>> = arguments.iter().map(|argument| argument.array().to_host()).collect();
        let results = reference::evaluate_with(graph, &inputs?, customs)?;
        results.into_iter().map(|result| result.into_array(&self.device)).collect()
    }

    fn count(&self, copied: &[usize]) {
        let mut statistics = self.statistics.lock().unwrap_or_else(PoisonError::into_inner);
        statistics.runs += 1;
        for &input in copied {
            *statistics.copied.entry(self.signature.inputs[input].0.clone()).or_default() += 1;
        }
    }
}

impl fmt::Debug for Executable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Executable").field("device", &self.device).field("signature", &self.signature).finish()
    }
}

#[cfg(test)]
mod tests;
