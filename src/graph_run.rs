//! Running a graph that came from a text, with host data by name: what `kiln run` does.

use kiln_ir::{Backend, Code, Diagnostic, Diagnostics, Graph, HostData};
use kiln_passes::{Options, compile};
use kiln_runtime::{Argument, Array, Device, Executable};
use web_time::Instant;

use crate::compiled::executable;
use crate::{Error, Report};

/// What a run of a graph gave.
#[derive(Clone, Debug)]
pub struct GraphRun {
    /// The graph's outputs by name, in order.
    pub outputs: Vec<(String, HostData)>,
    /// Kernels, bytes, peak memory.
    pub report: Report,
}

/// Runs a graph once, on its own backend or on `backend`, where the whole graph is then moved.
///
/// # Errors
///
/// K0106 for data that no input takes, K0107 for data given twice, K0701 for an input without data or with data of another type, and
/// whatever compiling and running raise.
///
/// ```
/// use kiln::graph_run::run_graph;
/// use kiln::ir::{Backend, DType, HostData, Literal, parse};
/// let text = "kiln 1\ngraph @f(%0 \"x\": f32[] @cpu) {\n  %1 = add %0, %0 : f32[] @cpu\n  return %1 \"y\"\n}\n";
/// let x = HostData::from_literals(DType::F32, [], &[Literal::from_f64(DType::F32, 1.5)]).unwrap();
/// for backend in [Backend::Cpu, Backend::NdArray] {
///     let run = run_graph(&parse(text)?, &[("x".to_owned(), x.clone())], Some(backend))?;
///     assert_eq!(run.outputs[0].1.element(0).to_f64(), 3.0);
/// }
/// # Ok::<(), kiln_ir::Diagnostics>(())
/// ```
pub fn run_graph(
    graph: &Graph,
    data: &[(String, HostData)],
    backend: Option<Backend>,
) -> Result<GraphRun, Diagnostics> {
    let moved = backend.map(|backend| graph.retarget(backend)).transpose()?;
    let graph = moved.as_ref().unwrap_or(graph);
    let inputs = arranged(graph, data)?;
    let start = Instant::now();
    let (executable, device) = prepared(graph)?;
    let mut report = Report { name: graph.name.to_string(), compile_time: start.elapsed(), ..Report::default() };
    let arguments = inputs
        .into_iter()
        .map(|input| Array::new(&device, input).map(Argument::Donated))
        .collect::<Result<Vec<Argument>, Diagnostics>>()?;
    let results = executable.run(arguments)?;
    report.runs = 1;
    if let Some(plan) = executable.plan() {
        report.describe_plan(plan);
        report.describe_schedules(plan, &device);
    }
    let names = graph.outputs.iter().map(|output| output.name.to_string());
    let outputs = names
        .zip(results)
        .map(|(name, result)| Ok((name, result.to_host()?)))
        .collect::<Result<Vec<(String, HostData)>, Diagnostics>>()?;
    Ok(GraphRun { outputs, report })
}

/// What a graph compiles to, for its own backend or for `backend`; nothing runs, so no device is needed. A graph for the reference
/// interpreter, which has no kernels, is compiled for the CPU.
///
/// # Errors
///
/// Whatever compiling raises.
///
/// ```
/// use kiln::graph_run::report_graph;
/// use kiln::ir::parse;
/// let text = "kiln 1\ngraph @f(%0 \"x\": f32[8] @cpu) {\n  %1 = add %0, %0 : f32[8] @cpu\n  return %1 \"y\"\n}\n";
/// let report = report_graph(&parse(text)?, None)?;
/// assert_eq!((report.launches(), report.bytes(), report.flops()), (1, 64, 8));
/// # Ok::<(), kiln_ir::Diagnostics>(())
/// ```
pub fn report_graph(graph: &Graph, backend: Option<Backend>) -> Result<Report, Diagnostics> {
    let is_reference = graph.backends() == [Backend::NdArray];
    let backend = backend.filter(|&backend| backend != Backend::NdArray).or(is_reference.then_some(Backend::Cpu));
    let moved = backend.map(|backend| graph.retarget(backend)).transpose()?;
    let start = Instant::now();
    let plan = compile(moved.as_ref().unwrap_or(graph), &Options::default())?;
    Ok(Report { compile_time: start.elapsed(), ..Report::of_plan(&plan) })
}

/// The graph made to run on the one backend it lives on; the CPU where it has no nodes.
fn prepared(graph: &Graph) -> Result<(Executable, Device), Diagnostics> {
    let backends = graph.backends();
    if backends.iter().all(|&backend| backend == Backend::NdArray) && !backends.is_empty() {
        let device = Device::reference();
        return Ok((Executable::reference(graph.clone(), &device), device));
    }
    let device = Device::of(backends.first().copied().unwrap_or(Backend::Cpu))?;
    let executable = executable(graph, &Options::default(), &device).map_err(Error::into_diagnostics)?;
    Ok((executable, device))
}

/// The data of each input, in order. All that does not fit is reported.
fn arranged(graph: &Graph, data: &[(String, HostData)]) -> Result<Vec<HostData>, Diagnostics> {
    let names: Vec<&str> = (0..graph.inputs.len()).filter_map(|index| graph.input_name(index)).collect();
    let mut wrong = Vec::new();
    for (index, (name, _)) in data.iter().enumerate() {
        if !names.contains(&name.as_str()) {
            let message = format!("unknown graph input tensor {name}");
            let known = format!("inputs of @{}: {}", graph.name, names.join(", "));
            wrong.push(Diagnostic::new(Code::K0106, message).help(known));
        } else if data[..index].iter().any(|(before, _)| before == name) {
            wrong.push(Diagnostic::new(Code::K0107, format!("duplicate graph input tensor {name}")));
        }
    }
    let mut inputs = Vec::with_capacity(names.len());
    for (&input, name) in graph.inputs.iter().zip(&names) {
        let expected = graph.ty(input);
        match data.iter().find(|(given, _)| given == name) {
            None => {
                let message = format!("argument `{name}`: expected {expected}, got nothing");
                wrong.push(Diagnostic::new(Code::K0701, message).at(graph.node(input).loc).label("declared here"));
            }
            Some((_, given)) if given.dtype() != expected.dtype || *given.shape() != expected.shape => {
                let message = format!("argument `{name}`: expected {expected}, got {}{}", given.dtype(), given.shape());
                wrong.push(Diagnostic::new(Code::K0701, message).at(graph.node(input).loc).label("declared here"));
            }
            Some((_, given)) => inputs.push(given.clone()),
        }
    }
    Diagnostics::from_list(wrong).map_or(Ok(inputs), Err)
}
