//! Host data: a dense tensor's bytes, shared and content-hashed.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::{DType, Literal, Shape};

/// A dense row-major tensor in host memory, immutable and cheap to clone. Equality is by content, hashing by a stable content hash.
#[derive(Clone)]
pub struct HostData {
    dtype: DType,
    shape: Shape,
    bytes: Arc<[u8]>,
    hash: u64,
}

impl HostData {
    /// Wraps little-endian bytes. `None` where their number does not fit the shape. Bool bytes other than 0 are stored as 1.
    pub fn new(dtype: DType, shape: impl Into<Shape>, bytes: impl Into<Arc<[u8]>>) -> Option<HostData> {
        let (shape, mut bytes) = (shape.into(), bytes.into());
        if shape.checked_num_elements()?.checked_mul(dtype.size())? != bytes.len() {
            return None;
        }
        if dtype == DType::Bool && bytes.iter().any(|&byte| byte > 1) {
            bytes = bytes.iter().map(|&byte| u8::from(byte != 0)).collect();
        }
        let hash = content_hash(dtype, &shape, &bytes);
        Some(HostData { dtype, shape, bytes, hash })
    }

    /// A tensor from its elements in row-major order. `None` where their number or types do not fit.
    pub fn from_literals(dtype: DType, shape: impl Into<Shape>, elements: &[Literal]) -> Option<HostData> {
        let mut bytes = Vec::with_capacity(elements.len() * dtype.size());
        for element in elements {
            if element.dtype() != dtype {
                return None;
            }
            let (word, size) = element.to_le_bytes();
            bytes.extend_from_slice(&word[..size]);
        }
        HostData::new(dtype, shape, bytes)
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Extents.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The little-endian bytes, row-major.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Element `index` in row-major order. Panics past the end.
    pub fn element(&self, index: usize) -> Literal {
        let size = self.dtype.size();
        let mut word = [0; 8];
        word[..size].copy_from_slice(&self.bytes[index * size..(index + 1) * size]);
        Literal::from_bits(self.dtype, u64::from_le_bytes(word))
    }

    /// All elements in row-major order.
    pub fn elements(&self) -> impl ExactSizeIterator<Item = Literal> + '_ {
        (0..self.shape.num_elements()).map(|index| self.element(index))
    }

    /// A hash of type, shape and bytes that is the same on every machine and in every run.
    pub fn content_hash(&self) -> u64 {
        self.hash
    }
}

/// FNV-1a over 8-byte words, then the rest.
fn content_hash(dtype: DType, shape: &Shape, bytes: &[u8]) -> u64 {
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    let mix = |hash: u64, word: u64| (hash ^ word).wrapping_mul(PRIME).rotate_left(23);
    let mut hash = mix(0xcbf2_9ce4_8422_2325, dtype as u64);
    hash = shape.iter().fold(hash, |hash, &extent| mix(hash, extent as u64));
    let (words, rest) = bytes.as_chunks::<8>();
    hash = words.iter().fold(hash, |hash, word| mix(hash, u64::from_le_bytes(*word)));
    rest.iter().fold(hash, |hash, &byte| mix(hash, u64::from(byte)))
}

impl PartialEq for HostData {
    fn eq(&self, other: &HostData) -> bool {
        self.hash == other.hash && self.dtype == other.dtype && self.shape == other.shape && self.bytes == other.bytes
    }
}

impl Eq for HostData {}

impl Hash for HostData {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.hash.hash(state);
    }
}

impl fmt::Debug for HostData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostData({}{} #{:016x})", self.dtype, self.shape, self.hash)
    }
}
