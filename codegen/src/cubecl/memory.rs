//! Elements of buffers as registers, one at a time or neighbours in accesses of up to 16 bytes.
//!
//! Neighbours narrower than 32 bits are taken as words and picked apart; two 16-bit floats are rounded by one instruction.

use kiln_ir::DType;
use kiln_ir::kernel::{Address, Affine};

use super::builder::{Builder, Pointer, Term, Ty};
use super::scalar::call;
use super::space::Point;
use super::types::Number;

/// Bytes of the widest access.
const WIDEST: usize = 16;

/// A buffer as a text sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bound {
    /// Where it begins.
    pub(super) pointer: Pointer,
    /// What its elements are.
    pub(super) dtype: DType,
}

/// How many neighbours one access takes: the most that are aligned at every point and make 16 bytes.
fn access(affine: &Affine, computed: &[i64], point: &Point, dtype: DType) -> u32 {
    let Some(lanes) = point.lanes else { return 1 };
    if affine.stride(lanes.axis) != 1 {
        return 1;
    }
    let aligned = |width: i64| {
        let others = (0..point.axes.len()).filter(|&axis| axis != lanes.axis && point.extents[axis] > 1);
        affine.offset % width == 0
            && others.into_iter().all(|axis| affine.stride(axis) % width == 0)
            && computed.iter().all(|stride| stride % width == 0)
    };
    let mut width = lanes.width;
    while width > 1 && (width as usize * dtype.size() > WIDEST || !aligned(i64::from(width))) {
        width /= 2;
    }
    width
}

/// The elements at a point and its neighbours.
pub(super) fn load(b: &mut Builder, bound: Bound, address: &Address, computed: &[Number], point: &Point) -> Number {
    let strides: Vec<i64> = address.computed.iter().map(|(_, stride)| *stride).collect();
    let varies = point.lane_stride(&address.affine) != 0 || computed.iter().any(|index| index.lanes.len() > 1);
    if !varies {
        return load_at(b, bound, address, computed, point, 0);
    }
    let shared = computed.iter().all(|index| index.lanes.len() == 1);
    let width = if shared { access(&address.affine, &strides, point, bound.dtype) } else { 1 };
    let mut all = Number { lanes: Default::default(), dtype: bound.dtype };
    for first in (0..point.width()).step_by(width as usize) {
        if width == 1 {
            all.lanes.extend(load_at(b, bound, address, computed, point, first).lanes);
            continue;
        }
        let index = place(b, address, computed, point, first);
        all.lanes.extend(load_wide(b, bound, &index, width));
    }
    all
}

/// The element at one neighbour.
pub(super) fn load_at(
    b: &mut Builder,
    bound: Bound,
    address: &Address,
    computed: &[Number],
    point: &Point,
    lane: u32,
) -> Number {
    let index = place(b, address, computed, point, lane);
    Number::one(load_one(b, bound, &index), bound.dtype)
}

fn place(b: &mut Builder, address: &Address, computed: &[Number], point: &Point, lane: u32) -> Term {
    let more: Vec<(Term, i64)> = address
        .computed
        .iter()
        .zip(computed)
        .map(|((_, stride), index)| {
            let term = index.lane(lane as usize);
            let name = b.type_name(Ty::Index);
            (b.expression(Ty::Index, &format!("{name}($0)"), std::slice::from_ref(term)), *stride)
        })
        .collect();
    point.sum(b, &address.affine, lane, &more)
}

/// The element at an index, as registers hold it.
pub(super) fn load_one(b: &mut Builder, bound: Bound, index: &Term) -> Term {
    let raw = b.load(bound.pointer, index, 1).remove(0);
    widened(b, &raw, bound.dtype)
}

/// As [`load_one`], of an element that may have been stored since it was last loaded.
pub(super) fn load_again(b: &mut Builder, bound: Bound, index: &Term) -> Term {
    let raw = b.load_again(bound.pointer, index, 1).remove(0);
    widened(b, &raw, bound.dtype)
}

fn widened(b: &mut Builder, raw: &Term, dtype: DType) -> Term {
    let terms = std::slice::from_ref(raw);
    match dtype {
        DType::F16 => call(b, "f16_load", Ty::F32, terms),
        DType::BF16 => call(b, "bf16_load", Ty::F32, terms),
        DType::I8 => b.expression(Ty::I32, "int(int8_t($0))", terms),
        DType::U8 => b.expression(Ty::U32, "uint32_t($0)", terms),
        DType::Bool => b.expression(Ty::Bool, "$0 != 0", terms),
        DType::F32 | DType::F64 | DType::I32 | DType::U32 | DType::I64 => raw.clone(),
    }
}

/// The words that hold `bytes` bytes.
fn words(bytes: usize) -> (Ty, u32) {
    match bytes {
        1 => (Ty::U8, 1),
        2 => (Ty::U16, 1),
        _ => (Ty::U32, (bytes / 4) as u32),
    }
}

fn load_wide(b: &mut Builder, bound: Bound, index: &Term, width: u32) -> Vec<Term> {
    let size = bound.dtype.size();
    if size >= 4 {
        return b.load(bound.pointer, index, width);
    }
    let (word, count) = words(size * width as usize);
    let pointer = b.view(bound.pointer, word);
    let at = b.expression(Ty::Index, &format!("$0 / {}", word.size() / size), std::slice::from_ref(index));
    let loaded = b.load(pointer, &at, count);
    (0..width as usize)
        .map(|lane| {
            let bit = lane * size * 8;
            let (word, shift) = (loaded[bit / 32].clone(), bit % 32);
            let terms = std::slice::from_ref(&word);
            match bound.dtype {
                DType::BF16 if shift == 0 => b.expression(Ty::F32, "__uint_as_float($0 << 16)", terms),
                DType::BF16 => b.expression(Ty::F32, "__uint_as_float($0 & 0xffff0000u)", terms),
                dtype => {
                    let ty = if size == 2 { Ty::U16 } else { Ty::U8 };
                    let raw = b.expression(ty, &format!("{}($0 >> {shift})", ty.name()), terms);
                    widened(b, &raw, dtype)
                }
            }
        })
        .collect()
}

fn narrowed(b: &mut Builder, value: &Term, dtype: DType) -> Term {
    let terms = std::slice::from_ref(value);
    match dtype {
        DType::F16 => call(b, "f16_bits", Ty::U16, terms),
        DType::BF16 => call(b, "bf16_bits", Ty::U16, terms),
        DType::I8 | DType::U8 => b.expression(Ty::U8, "uint8_t($0)", terms),
        DType::Bool => b.expression(Ty::U8, "uint8_t($0 ? 1 : 0)", terms),
        DType::F32 | DType::F64 | DType::I32 | DType::U32 | DType::I64 => value.clone(),
    }
}

/// Stores an element at an index.
pub(super) fn store_one(b: &mut Builder, bound: Bound, index: &Term, value: &Term) {
    let raw = narrowed(b, value, bound.dtype);
    b.store(bound.pointer, index, &[raw]);
}

/// Stores the elements at a point and its neighbours.
pub(super) fn store(b: &mut Builder, bound: Bound, affine: &Affine, value: &Number, point: &Point) {
    if point.lane_stride(affine) == 0 {
        let index = point.affine(b, affine, 0);
        return store_one(b, bound, &index, value.lane(0));
    }
    let width = access(affine, &[], point, bound.dtype);
    for first in (0..point.width()).step_by(width as usize) {
        let index = point.affine(b, affine, first);
        let values: Vec<Term> = (first..first + width).map(|lane| value.lane(lane as usize).clone()).collect();
        match values.as_slice() {
            [value] => store_one(b, bound, &index, value),
            several => store_wide(b, bound, &index, several),
        }
    }
}

fn store_wide(b: &mut Builder, bound: Bound, index: &Term, values: &[Term]) {
    let size = bound.dtype.size();
    if size >= 4 {
        return b.store(bound.pointer, index, values);
    }
    let (word, _) = words(size * values.len());
    let per = word.size() / size;
    let pointer = b.view(bound.pointer, word);
    let at = b.expression(Ty::Index, &format!("$0 / {per}"), std::slice::from_ref(index));
    let packed: Vec<Term> = values.chunks(per).map(|parts| packed(b, parts, bound.dtype, word)).collect();
    b.store(pointer, &at, &packed);
}

fn packed(b: &mut Builder, parts: &[Term], dtype: DType, word: Ty) -> Term {
    match dtype {
        DType::F16 => return call(b, "f16_pair", Ty::U32, parts),
        DType::BF16 => return call(b, "bf16_pair", Ty::U32, parts),
        DType::I8 | DType::U8 | DType::Bool | DType::F32 | DType::F64 | DType::I32 | DType::U32 | DType::I64 => {}
    }
    let pieces: Vec<String> = (0..parts.len())
        .map(|place| {
            let byte = if dtype == DType::Bool {
                format!("(${place} ? 1u : 0u)")
            } else {
                format!("(uint32_t(${place}) & 255u)")
            };
            if place == 0 { byte } else { format!("({byte} << {})", 8 * place) }
        })
        .collect();
    b.expression(word, &format!("{}({})", word.name(), pieces.join(" | ")), parts)
}
