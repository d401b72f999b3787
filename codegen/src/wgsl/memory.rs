//! Loads and stores of a kernel's buffers.
//!
//! Elements of 32 and 64 bits are array elements. Narrower ones are packed in words: a buffer's own functions, printed at the end of the text,
//! take one out (`load_b0`) or change its bits (`store_b0`), and read or write whole words where the invocation owns them (`load_b0x4`). Changing
//! some bits of a word that others change too takes two atomic operations, each of which leaves the others' bits alone.

use kiln_ir::gpu::GpuTarget;
use kiln_ir::kernel::{Address, Affine, Block, Buffer, BufferIndex, Operation};
use kiln_ir::{Code, DType, Diagnostic};

use super::block::Value;
use super::functions::Functions;
use super::space::{Lanes, Point};
use super::types::{Held, Lies};

/// A buffer as one text sees it.
#[derive(Clone, Debug)]
pub(super) struct Bound {
    name: String,
    dtype: DType,
    lies: Lies,
    /// Elements of a vector of the declaration; 1 where it is an array of scalars.
    vector: u32,
    pub(super) used: bool,
    pub(super) written: bool,
    /// Whether single packed elements are stored.
    atomic: bool,
    /// How many elements are loaded and stored at once by functions of the buffer's own.
    loads: Vec<u32>,
    stores: Vec<u32>,
}

impl Bound {
    /// K0601 where the target has no such elements, K0603 where there are too many to count.
    pub(super) fn new(index: usize, buffer: &Buffer, target: &GpuTarget) -> Result<Bound, Diagnostic> {
        if (buffer.len as u64).saturating_mul(buffer.dtype.size() as u64) > 1 << 32 {
            let message = format!("a buffer of {} elements is too large for this GPU", buffer.len);
            return Err(Diagnostic::new(Code::K0603, message).label("a kernel can address 2^32 bytes of a buffer"));
        }
        Ok(Bound {
            name: format!("b{index}"),
            dtype: buffer.dtype,
            lies: Lies::of(buffer.dtype, target)?,
            vector: 1,
            used: false,
            written: false,
            atomic: false,
            loads: Vec::new(),
            stores: Vec::new(),
        })
    }

    /// Declares the buffer as vectors of `width` elements.
    pub(super) fn set_vector(&mut self, width: u32) {
        self.vector = width;
    }

    /// Whether the buffer may be declared as vectors: elements of 16 or 32 bits that are array elements.
    fn can_be_vectors(&self) -> bool {
        matches!(self.lies, Lies::Native(_)) && self.dtype.size() <= 4
    }

    /// One element, at an index.
    pub(super) fn load(&mut self, index: &str) -> String {
        self.used = true;
        match self.lies {
            Lies::Native(ty) => {
                let element = match self.vector {
                    1 => format!("{}[{index}]", self.name),
                    width => format!("{}[({index}) / {width}][({index}) % {width}]", self.name),
                };
                if ty == "f16" { format!("f32({element})") } else { element }
            }
            Lies::Packed(_) => {
                add(&mut self.loads, 1);
                format!("load_{}({index})", self.name)
            }
        }
    }

    /// `width` elements from an index on that is a multiple of `width`; `None` where they cannot be loaded at once.
    fn load_vector(&mut self, index: &str, width: u32) -> Option<String> {
        let text = match self.lies {
            Lies::Native(ty) if self.vector == width => {
                let vector = format!("{}[{}]", self.name, divided(index, width));
                if ty == "f16" { format!("vec{width}<f32>({vector})") } else { vector }
            }
            Lies::Packed(in_word) if width.is_multiple_of(in_word) => {
                add(&mut self.loads, width);
                format!("load_{}x{width}({index})", self.name)
            }
            Lies::Native(_) | Lies::Packed(_) => return None,
        };
        self.used = true;
        Some(text)
    }

    /// The statement that stores one element.
    pub(super) fn store(&mut self, index: &str, value: &str) -> String {
        (self.used, self.written) = (true, true);
        match self.lies {
            Lies::Native("f16") => format!("{}[{index}] = f16({value});", self.name),
            Lies::Native(_) => format!("{}[{index}] = {value};", self.name),
            Lies::Packed(_) => {
                self.atomic = true;
                add(&mut self.stores, 1);
                format!("store_{}({index}, {value});", self.name)
            }
        }
    }

    /// The statement that stores `width` elements from an index on that is a multiple of `width`.
    fn store_vector(&mut self, index: &str, value: &str, width: u32) -> Option<String> {
        let text = match self.lies {
            Lies::Native(ty) if self.vector == width => {
                let value = if ty == "f16" { format!("vec{width}<f16>({value})") } else { value.to_owned() };
                format!("{}[{}] = {value};", self.name, divided(index, width))
            }
            Lies::Packed(in_word) if width.is_multiple_of(in_word) => {
                add(&mut self.stores, width);
                format!("store_{}x{width}({index}, {value});", self.name)
            }
            Lies::Native(_) | Lies::Packed(_) => return None,
        };
        (self.used, self.written) = (true, true);
        Some(text)
    }

    /// The element type in the declaration.
    pub(super) fn declared(&self) -> String {
        match (self.lies, self.vector) {
            (Lies::Native(ty), 1) => ty.to_owned(),
            (Lies::Native(ty), width) => format!("vec{width}<{ty}>"),
            (Lies::Packed(_), _) if self.atomic => "atomic<u32>".to_owned(),
            (Lies::Packed(_), _) => "u32".to_owned(),
        }
    }

    /// Whether the declaration must be writable: atomics are.
    pub(super) fn writable(&self) -> bool {
        self.written || self.atomic
    }

    /// The buffer's own functions.
    pub(super) fn functions(&self, functions: &mut Functions) -> Vec<String> {
        let Lies::Packed(in_word) = self.lies else { return Vec::new() };
        let loads = self.loads.iter().map(|&width| self.load_function(functions, in_word, width)).collect::<Vec<_>>();
        let stores = self.stores.iter().map(|&width| self.store_function(functions, in_word, width));
        loads.into_iter().chain(stores).collect()
    }

    fn word(&self, index: &str) -> String {
        if self.atomic { format!("atomicLoad(&{}[{index}])", self.name) } else { format!("{}[{index}]", self.name) }
    }

    fn load_function(&self, functions: &mut Functions, in_word: u32, width: u32) -> String {
        let (name, held) = (&self.name, Held::of(self.dtype));
        let shift = in_word.trailing_zeros();
        let (last, bits) = (in_word - 1, 32 / in_word);
        if width == 1 {
            let word = self.word(&format!("i >> {shift}u"));
            let value = unpack(functions, self.dtype, &format!("({word} >> ((i & {last}u) * {bits}u))"));
            return format!(
                "fn load_{name}(element: i32) -> {} {{\n    let i = u32(element);\n    return {value};\n}}\n",
                held.name()
            );
        }
        let ty = held.wide(width);
        let mut text =
            format!("fn load_{name}x{width}(element: i32) -> {ty} {{\n    let i = u32(element) >> {shift}u;\n");
        let mut values = Vec::new();
        for word in 0..width / in_word {
            let at = if word == 0 { "i".to_owned() } else { format!("i + {word}u") };
            text.push_str(&format!("    let w{word} = {};\n", self.word(&at)));
            for place in 0..in_word {
                let shifted = if place == 0 { format!("w{word}") } else { format!("(w{word} >> {}u)", place * bits) };
                values.push(unpack(functions, self.dtype, &shifted));
            }
        }
        text.push_str(&format!("    return {ty}({});\n}}\n", values.join(", ")));
        text
    }

    fn store_function(&self, functions: &mut Functions, in_word: u32, width: u32) -> String {
        let (name, held) = (&self.name, Held::of(self.dtype));
        let shift = in_word.trailing_zeros();
        let (last, bits) = (in_word - 1, 32 / in_word);
        let mask = u32::MAX >> (32 - bits);
        if width == 1 {
            let value = pack(functions, self.dtype, "value");
            return format!(
                "fn store_{name}(element: i32, value: {}) {{\n    let i = u32(element);\n    let shift = (i & {last}u) * {bits}u;\n    \
                 atomicAnd(&{name}[i >> {shift}u], ~({mask:#x}u << shift));\n    \
                 atomicOr(&{name}[i >> {shift}u], {value} << shift);\n}}\n",
                held.name()
            );
        }
        let mut text = format!(
            "fn store_{name}x{width}(element: i32, value: {}) {{\n    let i = u32(element) >> {shift}u;\n",
            held.wide(width)
        );
        for word in 0..width / in_word {
            let at = if word == 0 { "i".to_owned() } else { format!("i + {word}u") };
            let parts = (0..in_word).map(|place| {
                let value = pack(functions, self.dtype, &format!("value[{}]", word * in_word + place));
                if place == 0 { value } else { format!("({value} << {}u)", place * bits) }
            });
            let whole = parts.collect::<Vec<_>>().join(" | ");
            if self.atomic {
                text.push_str(&format!("    atomicStore(&{name}[{at}], {whole});\n"));
            } else {
                text.push_str(&format!("    {name}[{at}] = {whole};\n"));
            }
        }
        text.push_str("}\n");
        text
    }
}

/// The number in the low bits of a word.
fn unpack(functions: &mut Functions, dtype: DType, word: &str) -> String {
    match dtype {
        DType::U8 => format!("({word} & 0xffu)"),
        DType::Bool => format!("({word} & 0xffu) != 0u"),
        DType::I8 => format!("(bitcast<i32>({word} << 24u) >> 24u)"),
        DType::BF16 => format!("bitcast<f32>({word} << 16u)"),
        DType::F16 => {
            functions.need("f16_of_bits");
            format!("f16_of_bits({word})")
        }
        DType::F32 | DType::F64 | DType::I32 | DType::U32 | DType::I64 => word.to_owned(),
    }
}

/// A number's bits in memory, as a `u32` without others.
fn pack(functions: &mut Functions, dtype: DType, value: &str) -> String {
    match dtype {
        DType::U8 => value.to_owned(),
        DType::Bool => format!("u32({value})"),
        DType::I8 => format!("(u32({value}) & 0xffu)"),
        DType::BF16 => format!("(bitcast<u32>({value}) >> 16u)"),
        DType::F16 => {
            functions.need("bits_of_f16");
            format!("bits_of_f16({value})")
        }
        DType::F32 | DType::F64 | DType::I32 | DType::U32 | DType::I64 => value.to_owned(),
    }
}

fn add(list: &mut Vec<u32>, width: u32) {
    if !list.contains(&width) {
        list.push(width);
        list.sort_unstable();
    }
}

/// An index divided by a vector's width; negative ones do not occur.
fn divided(index: &str, width: u32) -> String {
    match index.parse::<u64>() {
        Ok(number) => (number / u64::from(width)).to_string(),
        Err(_) if index.contains(' ') => format!("({index}) / {width}"),
        Err(_) => format!("{index} / {width}"),
    }
}

/// Whether neighbouring points access neighbouring elements, the first of which has an index that is a multiple of the width.
pub(super) fn is_vector(affine: &Affine, computed: &[i64], lanes: Lanes) -> bool {
    let width = i64::from(lanes.width);
    let aligned = |value: &i64| value % width == 0;
    affine.stride(lanes.axis) == 1
        && aligned(&affine.offset)
        && affine.strides.iter().enumerate().all(|(axis, stride)| axis == lanes.axis || aligned(stride))
        && computed.iter().all(aligned)
}

/// Declares as vectors what all stores and at least one access of these blocks see so. Blocks come with the neighbours that they are printed
/// for.
pub(super) fn plan_vectors(bound: &mut [Bound], lens: &[usize], blocks: &[(&Block, Option<Lanes>)]) {
    for (index, (bound, &len)) in bound.iter_mut().zip(lens).enumerate() {
        let Some(width) = blocks.iter().filter_map(|(_, lanes)| lanes.map(|lanes| lanes.width)).max() else { return };
        if !bound.can_be_vectors() || len == 0 || !len.is_multiple_of(width as usize) {
            continue;
        }
        let mine = |buffer: BufferIndex| buffer.0 as usize == index;
        let (mut some, mut all_stores) = (false, true);
        for (block, lanes) in blocks {
            let fits = |affine: &Affine, computed: &[i64]| {
                lanes.is_some_and(|lanes| lanes.width == width && is_vector(affine, computed, lanes))
            };
            for instruction in &block.instructions {
                if let Operation::Load { buffer, address, .. } = &instruction.operation
                    && mine(*buffer)
                {
                    some |= fits(&address.affine, &strides(address));
                }
            }
            for store in block.stores.iter().filter(|store| mine(store.buffer)) {
                let is_vector = fits(&store.address, &[]);
                some |= is_vector;
                all_stores &= is_vector;
            }
        }
        if some && all_stores {
            bound.set_vector(width);
        }
    }
}

fn strides(address: &Address) -> Vec<i64> {
    address.computed.iter().map(|(_, stride)| *stride).collect()
}

/// A load at each of the point's neighbours, without bounds. `computed` are the registers of the address, `lane` limits it to one neighbour.
pub(super) fn load(
    bound: &mut Bound,
    address: &Address,
    computed: &[&Value],
    point: &Point,
    lane: Option<u32>,
) -> Value {
    let held = Held::of(bound.dtype);
    let element = |lane: u32| {
        let terms: Vec<(String, i64)> =
            computed.iter().zip(&address.computed).map(|(value, (_, stride))| (value.index(lane), *stride)).collect();
        let offset = address.affine.offset + point.lane_stride(&address.affine) * i64::from(lane);
        point.sum(offset, &address.affine, &terms)
    };
    if let Some(lane) = lane {
        return Value::new(bound.load(&element(lane)), held, 1);
    }
    let varies = point.lane_stride(&address.affine) != 0 || computed.iter().any(|value| value.width > 1);
    let Some(lanes) = point.lanes.filter(|_| varies) else {
        return Value::new(bound.load(&element(0)), held, 1);
    };
    if computed.iter().all(|value| value.width == 1)
        && is_vector(&address.affine, &strides(address), lanes)
        && let Some(text) = bound.load_vector(&element(0), lanes.width)
    {
        return Value::new(text, held, lanes.width);
    }
    let parts: Vec<String> = (0..lanes.width).map(|lane| bound.load(&element(lane))).collect();
    Value::new(format!("{}({})", held.wide(lanes.width), parts.join(", ")), held, lanes.width)
}

/// The statements of a store at each of the point's neighbours.
pub(super) fn store(bound: &mut Bound, address: &Affine, value: &Value, point: &Point) -> Vec<String> {
    let Some(lanes) = point.lanes else {
        return vec![bound.store(&point.affine(address, 0), &value.text)];
    };
    if is_vector(address, &[], lanes)
        && let Some(text) = bound.store_vector(&point.affine(address, 0), &value.splat(lanes.width), lanes.width)
    {
        return vec![text];
    }
    (0..lanes.width).map(|lane| bound.store(&point.affine(address, lane), &value.component(lane))).collect()
}
