//! Operands on their way into shared memory: 16 bytes at a time by copies that run beside what is computed, where an operand lies so in
//! memory; else element by element, as its block makes them.

use std::fmt::Write as _;

use kiln_ir::kernel::{Affine, AttentionKernel, AttentionSpace, MatrixOperand};
use kiln_ir::{DType, Diagnostic};

use super::function::{Numbers, function};
use super::text::Text;

/// Elements that are copied at once.
const CHUNK: i64 = 8;

/// Defines `copy_NAME`, which fills 8 elements of a row; those beyond the operand are 0.
pub(super) fn copy(
    text: &mut Text<'_>,
    name: &str,
    operand: &MatrixOperand,
    space: AttentionSpace,
) -> Result<(), Diagnostic> {
    let kernel = text.kernel;
    let extents = kernel.extents(space);
    let [.., rows, columns] = extents[..] else { unreachable!("a matrix has rows and columns") };
    let mut own = String::new();
    let (parameters, batch) = (text.parameters(), text.batch_parameters());
    let index = text.index();
    let _ = writeln!(
        own,
        "static __device__ __forceinline__ void copy_{name}(uint16_t *to, {parameters}{batch}, {index} row, {index} column) {{"
    );
    match plain(kernel, operand, &extents) {
        Some((buffer, affine)) => {
            let _ = writeln!(own, "    bool const inside = row < {rows} && column < {columns};");
            let at = place(affine, kernel.batch.len(), index);
            let _ = writeln!(own, "    copy16(to, {buffer} + (inside ? {at} : 0), inside);");
        }
        None => {
            let made = Numbers::Pair { given: None, made: Some(operand.value), along: extents.len() - 1 };
            let element =
                function(&format!("make_{name}"), &operand.block, made, &kernel.buffers, &extents, text.width())?;
            text.add(element);
            let _ = writeln!(own, "    EACH(pair, 4) {{");
            let _ = writeln!(own, "        float first = 0.0f, second = 0.0f;");
            let test = format!("row < {rows} && column + 2 * pair < {columns}");
            let point = "row, column + 2 * pair";
            let _ = writeln!(own, "        if ({test}) {{ make_{name}(BUFFERS, first, second BATCH, {point}); }}");
            let _ = writeln!(own, "        reinterpret_cast<uint32_t *>(to)[pair] = PACKED(first, second);");
            let _ = writeln!(own, "    }}");
        }
    }
    own.push_str("}\n");
    text.push(&own);
    Ok(())
}

/// The buffer of an operand that lies in rows of whole chunks, and where.
fn plain<'a>(kernel: &AttentionKernel, operand: &'a MatrixOperand, extents: &[usize]) -> Option<(String, &'a Affine)> {
    let (buffer, affine) = operand.plain()?;
    let last = extents.len() - 1;
    let is_16_bit = matches!(kernel.buffers[buffer.0 as usize].dtype, DType::F16 | DType::BF16);
    let whole = |number: i64| number % CHUNK == 0;
    let aligned = whole(affine.offset)
        && (0..last).all(|axis| extents[axis] == 1 || whole(affine.stride(axis)))
        && whole(extents[last] as i64);
    (is_16_bit && affine.stride(last) == 1 && aligned).then(|| (format!("v{}", buffer.0), affine))
}

/// The map as an expression over the names of a point.
fn place(affine: &Affine, batch: usize, index: &str) -> String {
    let names = (0..batch).map(|axis| format!("batch{axis}")).chain(["row".to_owned(), "column".to_owned()]);
    let terms = names.enumerate().filter_map(|(axis, name)| match affine.stride(axis) {
        0 => None,
        stride => Some(format!("{name} * {index}({stride})")),
    });
    let terms: Vec<String> = terms.chain([format!("{index}({})", affine.offset)]).collect();
    terms.join(" + ")
}
