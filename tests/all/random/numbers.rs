//! Data for the arguments of a graph.

use kiln_ir::{DType, Graph, HostData, Literal, TensorType};

/// What data is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Numbers {
    /// Floats between -2 and 2 with full mantissas; integers between -4 and 7 (not below 0 where unsigned).
    Plain,
    /// Floats `k / 8` between -2 and 2, which add and multiply exactly; integers as above.
    Dyadic,
    /// As `Plain`, with NaN, infinities, zeros of both signs, denormals, and the smallest and largest integers strewn in.
    Edgy,
}

/// A small generator of random numbers (SplitMix64): the same on every machine.
pub(super) struct Source(u64);

impl Source {
    pub(super) fn new(seed: u64) -> Source {
        Source(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(super) fn below(&mut self, count: usize) -> usize {
        (self.next() % count.max(1) as u64) as usize
    }

    /// Between 0 and 1.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Data for each argument of a graph.
pub(crate) fn inputs(graph: &Graph, numbers: Numbers, seed: u64) -> Vec<HostData> {
    let mut source = Source::new(seed);
    graph.inputs.iter().map(|&input| tensor(graph.ty(input), numbers, &mut source)).collect()
}

/// A tensor of a type.
pub(super) fn tensor(ty: &TensorType, numbers: Numbers, source: &mut Source) -> HostData {
    let elements: Vec<Literal> = (0..ty.shape.num_elements()).map(|_| number(ty.dtype, numbers, source)).collect();
    HostData::from_literals(ty.dtype, &ty.shape, &elements).expect("one element each")
}

/// One number of a dtype.
pub(super) fn number(dtype: DType, numbers: Numbers, source: &mut Source) -> Literal {
    if numbers == Numbers::Edgy && source.below(4) == 0 {
        return edge(dtype, source);
    }
    if dtype.is_float() {
        let value = match numbers {
            Numbers::Dyadic => (source.below(33) as f64 - 16.0) / 8.0,
            Numbers::Plain | Numbers::Edgy => 4.0 * source.unit() - 2.0,
        };
        return Literal::from_f64(dtype, value);
    }
    let value = source.below(12) as i128;
    match dtype {
        DType::Bool => Literal::from_i128(dtype, value % 2),
        dtype if dtype.is_signed() => Literal::from_i128(dtype, value - 4),
        dtype => Literal::from_i128(dtype, value),
    }
}

fn edge(dtype: DType, source: &mut Source) -> Literal {
    if let Some((low, high)) = dtype.int_range() {
        let edges = [low, high, low + 1, high - 1, 0, 1];
        return Literal::from_i128(dtype, edges[source.below(edges.len())]);
    }
    if dtype == DType::Bool {
        return Literal::from_i128(dtype, source.below(2) as i128);
    }
    // The smallest denormal and the largest finite number are made of bits.
    let infinity = Literal::from_f64(dtype, f64::INFINITY).bits();
    let edges = [
        Literal::from_f64(dtype, f64::NAN),
        Literal::from_f64(dtype, f64::INFINITY),
        Literal::from_f64(dtype, f64::NEG_INFINITY),
        Literal::from_f64(dtype, 0.0),
        Literal::from_f64(dtype, -0.0),
        Literal::from_f64(dtype, 1.0),
        Literal::from_bits(dtype, 1),
        Literal::from_bits(dtype, infinity - 1),
    ];
    edges[source.below(edges.len())]
}
