//! Arrays as text: the type and the first elements.

use std::fmt;

use kiln_ir::Literal;

use super::Array;

/// How many elements are shown.
const SHOWN: usize = 8;

impl Array {
    /// Element `index` in row-major order, which must exist.
    fn element(&self, index: usize) -> Literal {
        let size = self.dtype().size();
        let mut word = [0; 8];
        word[..size].copy_from_slice(&self.storage.bytes()[index * size..][..size]);
        Literal::from_bits(self.dtype(), u64::from_le_bytes(word))
    }
}

/// `f32[2, 3] @cpu [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]`; past eight elements an ellipsis.
impl fmt::Debug for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_lost() {
            return f.write_str("<lost>");
        }
        write!(f, "{} [", self.ty)?;
        let count = self.shape().num_elements();
        for index in 0..count.min(SHOWN) {
            let separator = if index == 0 { "" } else { ", " };
            write!(f, "{separator}{}", self.element(index))?;
        }
        f.write_str(if count > SHOWN { ", ..]" } else { "]" })
    }
}
