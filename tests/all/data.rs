//! Data for tests: numbers that are easy, numbers at the edges of their dtype, and indices.

use kiln_ir::{DType, HostData, Literal, Shape};

/// What the numbers are like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Values {
    /// Floats of either sign up to 4, small integers of either sign.
    Tame,
    /// Floats near 1 and -1, integers from 1 to 3: products of many stay in range.
    NearOne,
    /// Every special number of the dtype, numbers of every magnitude, and tame ones.
    Edges,
    /// Integers from just below 0 to just above `extent`.
    Indices {
        /// The extent they index.
        extent: usize,
    },
}

/// Random numbers (SplitMix64), the same on every machine.
pub(crate) struct Source(u64);

impl Source {
    pub(crate) fn new(seed: u64) -> Source {
        Source(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, count: usize) -> usize {
        (self.next() % count as u64) as usize
    }

    /// From -1 up to 1.
    fn signed_unit(&mut self) -> f64 {
        (self.next() >> 10) as f64 / f64::powi(2.0, 53) - 1.0
    }
}

/// A tensor of such values.
pub(crate) fn tensor(dtype: DType, shape: impl Into<Shape>, values: Values, source: &mut Source) -> HostData {
    let shape = shape.into();
    let elements: Vec<Literal> = (0..shape.num_elements()).map(|_| number(dtype, values, source)).collect();
    HostData::from_literals(dtype, shape, &elements).expect("one element each")
}

fn number(dtype: DType, values: Values, source: &mut Source) -> Literal {
    let float = dtype.is_float();
    match values {
        Values::Tame if float => Literal::from_f64(dtype, 4.0 * source.signed_unit()),
        Values::Tame => Literal::from_i128(dtype, source.below(13) as i128 - if dtype.is_signed() { 6 } else { 0 }),
        Values::NearOne if float => {
            let unit = source.signed_unit();
            Literal::from_f64(dtype, 1f64.copysign(unit) + unit / 16.0)
        }
        Values::NearOne => Literal::from_i128(dtype, 1 + source.below(3) as i128),
        Values::Indices { extent } => Literal::from_i128(dtype, source.below(extent + 4) as i128 - 2),
        Values::Edges => {
            let edges = edges(dtype);
            match source.below(3) {
                0 => edges[source.below(edges.len())],
                1 if float => {
                    let exponent = 80.0 * source.signed_unit();
                    Literal::from_f64(dtype, source.signed_unit() * exponent.exp2())
                }
                1 => Literal::from_bits(dtype, source.next()),
                _ => number(dtype, Values::Tame, source),
            }
        }
    }
}

/// The special numbers of a dtype.
pub(crate) fn edges(dtype: DType) -> Vec<Literal> {
    if let Some((low, high)) = dtype.int_range() {
        return [low, low + 1, 0, 1, 2, 7, -1, high - 1, high].map(|value| Literal::from_i128(dtype, value)).to_vec();
    }
    if dtype == DType::Bool {
        return vec![Literal::zero(dtype), Literal::one(dtype)];
    }
    let largest = kiln_runtime::reference::tolerance::largest(dtype);
    let least = kiln_runtime::reference::tolerance::ulp(dtype, 0.0);
    let values =
        [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, -8.0, 1e-3, 10.0, 100.0, -100.0, 88.5, -104.0, 1e4];
    let ends = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, largest, -largest, least, -least, 1000.0 * least];
    values.into_iter().chain(ends).map(|value| Literal::from_f64(dtype, value)).collect()
}
