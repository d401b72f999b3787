//! Arrays as text: the type and the first elements.

use std::fmt;

use kiln_ir::{DType, Literal};

use super::Array;

/// How many elements are shown.
const SHOWN: usize = 8;

/// Element `index` in row-major order of these bytes, which must exist.
fn element(dtype: DType, bytes: &[u8], index: usize) -> Literal {
    let size = dtype.size();
    let mut word = [0; 8];
    word[..size].copy_from_slice(&bytes[index * size..][..size]);
    Literal::from_bits(dtype, u64::from_le_bytes(word))
}

/// `f32[2, 3] @cpu [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]`; past eight elements an ellipsis.
impl fmt::Debug for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ok(bytes) = self.bytes() else { return f.write_str("<lost>") };
        write!(f, "{} [", self.ty)?;
        let count = self.shape().num_elements();
        for index in 0..count.min(SHOWN) {
            let separator = if index == 0 { "" } else { ", " };
            write!(f, "{separator}{}", element(self.dtype(), bytes, index))?;
        }
        f.write_str(if count > SHOWN { ", ..]" } else { "]" })
    }
}
