//! A text that is put together of constants, functions and an entry point.

use std::fmt::Write as _;
use std::sync::Arc;

use kiln_ir::cuda::{CudaArgument, CudaText};
use kiln_ir::gpu::{GpuMemory, WarpTile};
use kiln_ir::kernel::{Access, AttentionKernel, BufferIndex, KeyLimit};
use kiln_ir::{DType, Diagnostic};

use super::super::builder::{Function, IndexWidth};
use super::super::functions::Functions;
use super::super::loops::{blocks, width_for};
use super::super::module::SHARED;
use super::super::types::in_memory;

/// What is an instruction of the device each.
const WARP: &str = include_str!("warp.cu");

/// Types that a text without functions needs as well, as CubeCL writes them.
const TYPES: [&str; 3] =
    ["typedef unsigned int uint32_t;", "typedef unsigned short uint16_t;", "typedef unsigned long long int uint64_t;"];

const TILE: &str = include_str!("tile.cu");

/// What a block of warps does not walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owned {
    Rows,
    Keys,
}

/// A text under construction.
pub(super) struct Text<'a> {
    pub(super) kernel: &'a AttentionKernel,
    entry: String,
    head: Vec<String>,
    functions: Functions,
    body: String,
    /// Bytes of shared memory.
    pub(super) shared_bytes: u32,
    arguments: Vec<CudaArgument>,
    /// The entry point's parameters.
    parameters: Vec<String>,
    threads: u32,
}

impl<'a> Text<'a> {
    /// An empty text for blocks of so many warps. What it is for makes its entry point's name.
    pub(super) fn new(kernel: &'a AttentionKernel, entry: &str, purpose: &str, warps: u32) -> Text<'a> {
        let memory = |index: usize| CudaArgument::Memory(GpuMemory::Buffer(BufferIndex(index as u32)));
        let mut functions = Functions::default();
        let pair = if kernel.dtype == DType::F16 { "f16" } else { "bf16" };
        for name in [format!("{pair}_pair"), "max_f32".to_owned()] {
            functions.need(&name).expect("the function is in the table");
        }
        let mut text = Text {
            kernel,
            entry: format!("{entry}_{purpose}"),
            head: TYPES.map(str::to_owned).to_vec(),
            functions,
            body: String::new(),
            shared_bytes: 0,
            arguments: (0..kernel.buffers.len()).map(memory).collect(),
            parameters: Vec::new(),
            threads: 32 * warps,
        };
        text.parameters.push(text.parameters());
        text.push(&WARP.replace("DTYPE", pair));
        let all: Vec<String> = (0..kernel.buffers.len()).map(|index| format!("v{index}")).collect();
        let own: Vec<String> = (0..kernel.batch.len()).map(|axis| format!("batch{axis}")).collect();
        let listed: String = own.iter().map(|name| format!(", {name}")).collect();
        let names = [
            ("EACH(at, count)", "_Pragma(\"unroll\") for (int at = 0; at < (count); at++)".to_owned()),
            ("PACKED(x, y)", format!("{pair}_pair(x, y)")),
            ("MINUS_INFINITY", "__uint_as_float(0xff800000u)".to_owned()),
            ("NOT_A_NUMBER", "__uint_as_float(0x7fc00000u)".to_owned()),
            ("ENTRY", text.entry.clone()),
            ("PARAMETERS", text.parameters()),
            ("BUFFERS", all.join(", ")),
            ("BATCH_PARAMETERS", text.batch_parameters()),
            ("BATCH", listed),
            ("BATCH_POINT", text.batch_point()),
            (
                "FILL(to, copy, first, rows, columns)",
                "EACH(turn, ((rows) * (columns) / 8 + THREADS - 1) / THREADS) { \
                 int const at = turn * THREADS + int(threadIdx.x); \
                 if ((rows) * (columns) / 8 % THREADS == 0 || at < (rows) * (columns) / 8) { \
                 copy((to) + at / ((columns) / 8) * ((columns) + 8) + at % ((columns) / 8) * 8, BUFFERS BATCH, \
                 (first) + at / ((columns) / 8), at % ((columns) / 8) * 8); } }"
                    .to_owned(),
            ),
        ];
        for (name, meaning) in names {
            let _ = writeln!(text.body, "#define {name} {meaning}");
        }
        let index = text.index();
        let _ = writeln!(text.body, "typedef {index} index_t;");
        text.constant("THREADS", text.threads as usize);
        for (name, extent) in [("QUERIES", kernel.queries), ("KEYS", kernel.keys)] {
            text.constant(name, extent);
        }
        for (name, extent) in [("DEPTH", kernel.depth), ("WIDTH", kernel.width)] {
            let padded = padded(extent);
            text.constant(name, padded as usize);
            text.constant(&format!("{name}_PITCH"), padded as usize + 8);
        }
        text
    }

    /// How element indices are held.
    pub(super) fn width(&self) -> IndexWidth {
        let kernel = self.kernel;
        let longest = kernel.queries.max(kernel.keys);
        width_for(&kernel.buffers, &[&kernel.batch[..], &[longest, kernel.depth.max(kernel.width)]].concat())
    }

    /// The name of an element index's type.
    pub(super) fn index(&self) -> &'static str {
        match self.width() {
            IndexWidth::Narrow => "uint32_t",
            IndexWidth::Wide => "uint64_t",
        }
    }

    /// All buffers, as parameters.
    pub(super) fn parameters(&self) -> String {
        let one = |(index, buffer): (usize, &kiln_ir::kernel::Buffer)| {
            let constant = if buffer.access == Access::Read { " const" } else { "" };
            format!("{}{constant} *const __restrict__ v{index}", in_memory(buffer.dtype).name())
        };
        self.kernel.buffers.iter().enumerate().map(one).collect::<Vec<_>>().join(", ")
    }

    /// A point of the batch, as parameters after others.
    pub(super) fn batch_parameters(&self) -> String {
        (0..self.kernel.batch.len()).map(|axis| format!(", {} const batch{axis}", self.index())).collect()
    }

    /// The point of the batch from its number, `matrix`.
    fn batch_point(&self) -> String {
        let extents = &self.kernel.batch;
        let one = |axis: usize| {
            let inner: usize = extents[axis + 1..].iter().product();
            let outer = if axis == 0 { String::new() } else { format!(" % {}", extents[axis]) };
            format!("index_t const batch{axis} = matrix / {inner}{outer};")
        };
        (0..extents.len()).map(one).collect::<Vec<_>>().join(" ")
    }

    /// Defines a number.
    pub(super) fn constant(&mut self, name: &str, value: usize) {
        let _ = writeln!(self.body, "static constexpr int {name} = {value};");
    }

    /// Defines what a block of warps owns and walks, and which keys are seen.
    pub(super) fn tile(&mut self, tile: WarpTile, owned: Owned, limit: Option<KeyLimit>) {
        self.constant("TILES", tile.fragments as usize);
        self.constant("ROWS", tile.own() as usize);
        self.constant("STEP", tile.step as usize);
        let [own, walked, point] = match owned {
            Owned::Rows => ["QUERIES", "KEYS", "own, walked"],
            Owned::Keys => ["KEYS", "QUERIES", "walked, own"],
        };
        let _ = writeln!(self.body, "#define OWN {own}\n#define WALKED {walked}\n#define POINT(own, walked) {point}");
        self.constant("LIMITED", usize::from(limit.is_some()));
        let seen = match limit {
            None => "return KEYS;".to_owned(),
            Some(KeyLimit { offset, row, column, .. }) => format!(
                "long long const at = -({offset}ll + {row}ll * row); \
                 long long const last = at / {column}ll - (at % {column}ll < 0 ? 1 : 0); \
                 return last < 0 ? 0 : last >= KEYS ? KEYS : int(last) + 1;"
            ),
        };
        let _ = writeln!(self.body, "static __device__ __forceinline__ int keys_seen(int row) {{ {seen} }}");
        self.push(TILE);
    }

    /// Adds what stands as it is.
    pub(super) fn push(&mut self, part: &str) {
        self.body.push_str(part);
    }

    /// Adds a function.
    pub(super) fn add(&mut self, function: Function) {
        let Function { head, text, functions } = function;
        for line in head {
            if !self.head.contains(&line) {
                self.head.push(line);
            }
        }
        self.functions.join(&functions);
        self.body.push_str(&text);
    }

    /// Adds a parameter that points to one of the program's own buffers.
    pub(super) fn scratch(&mut self, number: u32, parameter: &str) {
        self.arguments.push(CudaArgument::Memory(GpuMemory::Scratch(number)));
        self.parameters.push(parameter.to_owned());
    }

    /// The text with its entry point, to be launched in so many blocks.
    pub(super) fn finish(mut self, entry_point: &str, groups: usize) -> Result<CudaText, Diagnostic> {
        let _ = writeln!(self.body, "#define ENTRY_PARAMETERS {}", self.parameters.join(", "));
        self.body.push_str(entry_point);
        let mut source = String::new();
        for line in &self.head {
            source.push_str(line);
            source.push('\n');
        }
        source.push_str(&self.functions.text());
        source.push_str(SHARED);
        source.push_str(&self.body);
        Ok(CudaText {
            source: Arc::from(source),
            entry: Arc::from(self.entry),
            blocks: [blocks(groups as u64)?, 1, 1],
            threads: [self.threads, 1, 1],
            shared_bytes: self.shared_bytes,
            arguments: self.arguments,
        })
    }
}

/// An extent in whole fragments.
pub(super) fn padded(extent: usize) -> u32 {
    extent.max(1).next_multiple_of(16) as u32
}
