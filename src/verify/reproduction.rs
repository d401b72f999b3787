//! A kernel that computes something else than it should, as a folder that shows it again: the part of a graph that it computes
//! (`kernel.kiln`, with large constants beside it), its operands (`inputs.safetensors`) and what it gave (`found.safetensors`).
//!
//! `kiln run FOLDER` compiles the graph, runs it on the operands, and shows its results beside the reference's and those that were found.

use std::fmt;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use kiln_ir::{Backend, Code, Diagnostic, Diagnostics, Graph, HostData, Locations, TextStyle};
use kiln_passes::{Options, compile};
use kiln_runtime::reference::Expected;
use kiln_runtime::{Argument, Array, Device, Executable};
use safetensors::tensor::{SafeTensors, TensorView, serialize};

use super::kernels::in_words;
use crate::graph_file::{GraphFile, loaded, stored, unreadable, unwritable};

/// The graph's text.
const GRAPH: &str = "kernel.kiln";
/// The operands.
const INPUTS: &str = "inputs.safetensors";
/// What the kernel gave where it was found.
const FOUND: &str = "found.safetensors";

/// A kernel's part of a graph with its operands and what it gave for them.
#[derive(Clone, Debug, PartialEq)]
pub struct Reproduction {
    /// What the kernel is to compute.
    pub graph: Graph,
    /// One tensor for each argument of the graph.
    pub inputs: Vec<HostData>,
    /// What was found, one tensor for each of the graph's results.
    pub found: Vec<HostData>,
}

/// Where a reproduction is written: in the system's folder for temporary files, named by its contents.
pub(super) fn place(reproduction: &Reproduction) -> PathBuf {
    let mut hasher = DefaultHasher::new();
    reproduction.graph.hash(&mut hasher);
    reproduction.inputs.iter().for_each(|input| input.content_hash().hash(&mut hasher));
    std::env::temp_dir().join(format!("kiln-K0707-{:016x}", hasher.finish()))
}

impl Reproduction {
    /// Of a graph with as many inputs as it has arguments, and as many tensors found as it has results.
    pub fn new(graph: Graph, inputs: Vec<HostData>, found: Vec<HostData>) -> Reproduction {
        Reproduction { graph, inputs, found }
    }

    /// Writes the folder. K1001 where a file cannot be written.
    pub fn write(&self, folder: &Path) -> Result<(), Diagnostics> {
        fs::create_dir_all(folder).map_err(|error| unwritable(folder, &error))?;
        let style = TextStyle { locations: Locations::Omitted, inline_elements: usize::MAX };
        let graph = folder.join(GRAPH);
        fs::write(&graph, self.graph.text(style).to_string()).map_err(|error| unwritable(&graph, &error))?;
        let names = (0..self.inputs.len()).map(|index| self.graph.input_name(index).unwrap_or("?"));
        write_tensors(&folder.join(INPUTS), names.zip(&self.inputs))?;
        let names = self.graph.outputs.iter().map(|output| &*output.name);
        write_tensors(&folder.join(FOUND), names.zip(&self.found))
    }

    /// Reads a folder. K1001 where a file cannot be read, K1002 where it holds something else, and what the graph's text raises.
    pub fn read(folder: &Path) -> Result<Reproduction, Diagnostics> {
        let graph = GraphFile::read(&folder.join(GRAPH))?.graph()?;
        let names = (0..graph.inputs.len()).map(|index| graph.input_name(index).unwrap_or("?"));
        let inputs = read_tensors(&folder.join(INPUTS), names)?;
        let found = read_tensors(&folder.join(FOUND), graph.outputs.iter().map(|output| &*output.name))?;
        Ok(Reproduction { graph, inputs, found })
    }

    /// Compiles the graph, runs it on the operands, and compares. The graph is moved to the CPU where it is elsewhere.
    ///
    /// # Errors
    ///
    /// What compiling, running and evaluating raise.
    pub fn compare(&self, options: &Options) -> Result<Comparison, Diagnostics> {
        let graph = self.graph.retarget(Backend::Cpu)?;
        let device = Device::of(Backend::Cpu)?;
        let executable = Executable::new(compile(&graph, options)?, &device)?;
        let arguments = self.inputs.iter().map(|input| Array::new(&device, input).map(Argument::Borrowed));
        let results = executable.run(arguments.collect::<Result<_, _>>()?)?;
        let computed = results.iter().map(Array::to_host).collect::<Result<Vec<HostData>, _>>()?;
        let expected = Expected::of(&graph, &self.inputs)?;
        Ok(Comparison { reproduction: self.clone(), expected, computed })
    }
}

/// What a kernel gives now, what it gave, and what it should.
#[derive(Clone, Debug)]
pub struct Comparison {
    reproduction: Reproduction,
    /// What the reference says.
    pub expected: Expected,
    /// What the compiled graph gives.
    pub computed: Vec<HostData>,
}

impl Comparison {
    /// Whether the compiled graph gives what it should.
    pub fn agrees(&self) -> bool {
        self.expected.difference(&self.computed).is_none()
    }
}

/// For each result whether it agrees, now and where it was found, and the first elements of all three.
impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, output) in self.reproduction.graph.outputs.iter().enumerate() {
            let expected = &self.expected.outputs[index];
            writeln!(f, "{}: {}{}", output.name, expected.dtype(), expected.shape())?;
            let found = &self.reproduction.found[index];
            for (what, data) in [("reference", expected), ("now", &self.computed[index]), ("found", found)] {
                let shown: Vec<String> = data.elements().take(8).map(|element| element.to_string()).collect();
                let more = if data.shape().num_elements() > shown.len() { ", .." } else { "" };
                writeln!(f, "  {what:9} {}{more}", shown.join(", "))?;
            }
            for (what, data) in [("now", &self.computed[index]), ("found", found)] {
                match self.expected.difference_in(index, data) {
                    Some(difference) => {
                        writeln!(f, "  {what}: {}", in_words(&output.name, &self.expected, &difference))?
                    }
                    None => writeln!(f, "  {what}: agrees with the reference")?,
                }
            }
        }
        Ok(())
    }
}

fn write_tensors<'a>(path: &Path, tensors: impl Iterator<Item = (&'a str, &'a HostData)>) -> Result<(), Diagnostics> {
    let views = tensors.map(|(name, data)| {
        let view = TensorView::new(stored(data.dtype()), data.shape().to_vec(), data.bytes());
        (name.to_owned(), view.expect("the bytes of a tensor fit its shape"))
    });
    let bytes = serialize(views.collect::<Vec<_>>(), None)
        .map_err(|error| Diagnostic::new(Code::K1001, format!("cannot write {}: {error}", path.display())))?;
    fs::write(path, bytes).map_err(|error| unwritable(path, &error).into())
}

fn read_tensors<'a>(path: &Path, names: impl Iterator<Item = &'a str>) -> Result<Vec<HostData>, Diagnostics> {
    let bytes = fs::read(path).map_err(|error| unreadable(path, &error))?;
    let wrong = |what: String| Diagnostic::new(Code::K1002, format!("{} {what}", path.display()));
    let tensors =
        SafeTensors::deserialize(&bytes).map_err(|error| wrong(format!("is no safetensors file: {error}")))?;
    let read = names.map(|name| {
        let view = tensors.tensor(name).map_err(|_| wrong(format!("has no tensor `{name}`")))?;
        let dtype =
            loaded(view.dtype()).ok_or_else(|| wrong(format!("holds `{name}` in a dtype that Kiln has not")))?;
        HostData::new(dtype, view.shape(), view.data()).ok_or_else(|| wrong(format!("gives `{name}` too few bytes")))
    });
    Ok(read.collect::<Result<_, Diagnostic>>()?)
}
