//! Graphs in files: the text form, with large constants in a safetensors file beside it.
//!
//! `step.kiln` holds the text; `step.safetensors` holds the constants that the text gives by their hash, one tensor each, named by its 16
//! hexadecimal digits. A graph without large constants is one file.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use kiln_capture::source_text;
use kiln_ir::{
    Code, Color, DType, Diagnostic, Diagnostics, Graph, HostData, INLINE_ELEMENTS, Locations, Rendering, TextStyle,
    parse_with,
};
use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize};

/// The text of a graph as it was found in a file, and the data beside it.
///
/// ```
/// use kiln::graph_file::{GraphFile, write_graph};
/// # let directory = std::env::temp_dir().join(format!("kiln-doc-{}", std::process::id()));
/// # std::fs::create_dir_all(&directory).unwrap();
/// let path = directory.join("double.kiln");
/// let text = "kiln 1\ngraph @f(%0 \"x\": f32[3] @cpu) {\n  %1 = add %0, %0 : f32[3] @cpu\n  return %1 \"y\"\n}\n";
/// write_graph(&path, &kiln_ir::parse(text)?)?;
/// let graph = GraphFile::read(&path)?.graph()?;
/// assert_eq!(graph.to_string(), text);
/// # std::fs::remove_dir_all(&directory).unwrap();
/// # Ok::<(), kiln_ir::Diagnostics>(())
/// ```
#[derive(Clone, Debug)]
pub struct GraphFile {
    name: String,
    text: String,
    blobs: HashMap<u64, HostData>,
}

impl GraphFile {
    /// Reads a text and the data beside it, if there is any. K1001 where a file cannot be read, K1002 where it holds something else.
    pub fn read(path: &Path) -> Result<GraphFile, Diagnostics> {
        let bytes = fs::read(path).map_err(|error| unreadable(path, &error))?;
        let text = String::from_utf8(bytes)
            .map_err(|_| Diagnostic::new(Code::K1002, format!("{} is no text in UTF-8", path.display())))?;
        let beside = data_path(path);
        let blobs = if beside.exists() { read_blobs(&beside)? } else { HashMap::new() };
        Ok(GraphFile { name: path.display().to_string(), text, blobs })
    }

    /// A text that came from elsewhere, under a name for its diagnostics.
    pub fn from_text(name: impl Into<String>, text: impl Into<String>) -> GraphFile {
        GraphFile { name: name.into(), text: text.into(), blobs: HashMap::new() }
    }

    /// The text as it was found.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The graph. The diagnostics are those of [`kiln_ir::parse_with`].
    pub fn graph(&self) -> Result<Graph, Diagnostics> {
        parse_with(&self.text, &|hash| self.blobs.get(&hash).cloned())
    }

    /// Diagnostics about this text, each with the line it means.
    pub fn render(&self, diagnostics: &Diagnostics) -> String {
        self.rendered(diagnostics, Color::Plain)
    }

    /// As [`GraphFile::render`], with the escape codes that colour it on a terminal.
    pub fn render_colored(&self, diagnostics: &Diagnostics) -> String {
        self.rendered(diagnostics, Color::Ansi)
    }

    fn rendered(&self, diagnostics: &Diagnostics, color: Color) -> String {
        let source = |file: &str| if file == self.name { Some(self.text.clone()) } else { source_text(file) };
        diagnostics.render_as(&Rendering { source: &source, text_file: &self.name, color })
    }

    /// The text of a graph that stands beside the same data: a constant is given by its hash if all large ones are there, else in full.
    pub fn print(&self, graph: &Graph, locations: Locations) -> String {
        let is_here = graph.blobs().iter().all(|blob| self.blobs.contains_key(&blob.content_hash()));
        let inline_elements = if is_here { INLINE_ELEMENTS } else { usize::MAX };
        graph.text(TextStyle { locations, inline_elements }).to_string()
    }
}

/// Writes a graph: its text to `path`, large constants to the safetensors file beside it. K1001 where a file cannot be written.
pub fn write_graph(path: &Path, graph: &Graph) -> Result<(), Diagnostics> {
    let blobs = graph.blobs();
    if !blobs.is_empty() {
        let names = blobs.iter().map(|blob| format!("{:016x}", blob.content_hash()));
        let views = blobs.iter().map(|blob| TensorView::new(stored(blob.dtype()), blob.shape().to_vec(), blob.bytes()));
        let tensors: Vec<(String, TensorView<'_>)> =
            names.zip(views).map(|(name, view)| (name, view.expect("the bytes of a tensor fit its shape"))).collect();
        let beside = data_path(path);
        let bytes = serialize(tensors, None)
            .map_err(|error| Diagnostic::new(Code::K1001, format!("cannot write {}: {error}", beside.display())))?;
        fs::write(&beside, bytes).map_err(|error| unwritable(&beside, &error))?;
    }
    fs::write(path, graph.to_string()).map_err(|error| unwritable(path, &error))?;
    Ok(())
}

/// Where the large constants of a text lie.
fn data_path(path: &Path) -> PathBuf {
    path.with_extension("safetensors")
}

fn read_blobs(path: &Path) -> Result<HashMap<u64, HostData>, Diagnostics> {
    let bytes = fs::read(path).map_err(|error| unreadable(path, &error))?;
    let something_else = |what: String| Diagnostic::new(Code::K1002, format!("{} {what}", path.display()));
    let tensors =
        SafeTensors::deserialize(&bytes).map_err(|error| something_else(format!("is no safetensors file: {error}")))?;
    let mut blobs = HashMap::new();
    for (name, view) in tensors.iter() {
        // Other tensors may lie there too.
        let (Ok(hash), Some(dtype)) = (u64::from_str_radix(name, 16), loaded(view.dtype())) else { continue };
        let data = HostData::new(dtype, view.shape(), view.data())
            .ok_or_else(|| something_else(format!("gives tensor {name} too few or too many bytes")))?;
        blobs.insert(hash, data);
    }
    Ok(blobs)
}

pub(crate) fn stored(dtype: DType) -> Dtype {
    match dtype {
        DType::F32 => Dtype::F32,
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::BF16,
        DType::F64 => Dtype::F64,
        DType::I8 => Dtype::I8,
        DType::U8 => Dtype::U8,
        DType::I32 => Dtype::I32,
        DType::U32 => Dtype::U32,
        DType::I64 => Dtype::I64,
        DType::Bool => Dtype::BOOL,
    }
}

pub(crate) fn loaded(dtype: Dtype) -> Option<DType> {
    DType::ALL.into_iter().find(|&known| stored(known) == dtype)
}

pub(crate) fn unreadable(path: &Path, error: &std::io::Error) -> Diagnostic {
    Diagnostic::new(Code::K1001, format!("cannot read {}: {error}", path.display()))
}

pub(crate) fn unwritable(path: &Path, error: &std::io::Error) -> Diagnostic {
    Diagnostic::new(Code::K1001, format!("cannot write {}: {error}", path.display()))
}
