//! Blocks between two products with floats of 16 bits left as wide as they are summed: no instruction rounds on the way from one product to
//! the next but casts that the graph has.

use std::collections::HashSet;

use kiln_ir::DType;
use kiln_ir::kernel::{MatrixOperand, Operation, Reg};

/// What becomes of casts to fewer bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Casts {
    /// They round.
    Kept,
    /// They are left out: the product that follows rounds.
    Left,
}

/// The block of what is made of a register of a dtype, and the dtype in which it takes that.
pub(super) fn wide(made: &MatrixOperand, given: (Reg, DType), casts: Casts) -> (MatrixOperand, (Reg, DType)) {
    let (given, dtype) = given;
    let mut reached = HashSet::from([given]);
    let mut wide = made.clone();
    for instruction in &mut wide.block.instructions {
        if !instruction.operation.operands().iter().any(|reg| reached.contains(reg)) {
            continue;
        }
        reached.insert(instruction.result);
        let rounds = match instruction.operation {
            // Whose bits are looked at has as many as it says.
            Operation::Bitcast(_) => return (made.clone(), (given, dtype)),
            Operation::Cast(_) => casts == Casts::Left,
            Operation::Scalar(..)
            | Operation::Fma(..)
            | Operation::Select { .. }
            | Operation::Literal(_)
            | Operation::Index(_)
            | Operation::Load { .. }
            | Operation::Within(_)
            | Operation::Random { .. } => true,
        };
        if rounds && matches!(instruction.dtype, DType::F16 | DType::BF16) {
            // A load at a computed place reads as many bits as lie there.
            if !matches!(instruction.operation, Operation::Load { .. }) {
                instruction.dtype = DType::F32;
            }
        }
    }
    (wide, (given, DType::F32))
}
