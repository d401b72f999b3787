//! WGSL texts that are not ours: the kernels of custom ops, parsed and held against the op that they belong to.
//!
//! What is looked at: the text is valid; the entry point is a compute shader; binding `i` of group 0 is a storage buffer, an array of the
//! element type that operand or result `i` has; results can be written to. What a dtype of WGSL's lacks is not judged here.

use kiln_ir::custom::WgslKernel;
use kiln_ir::{Code, DType, Diagnostic, TensorType};
use naga::valid::{Capabilities, ValidationFlags, Validator};
use naga::{AddressSpace, GlobalVariable, Module, Scalar, ShaderStage, StorageAccess, TypeInner};

/// Checks the text of a custom op's kernel for operands and results of these types. K0211 says what does not fit, with the place in the text
/// where it is not even WGSL.
pub fn check_wgsl(
    op: &str,
    kernel: &WgslKernel,
    operands: &[TensorType],
    results: &[TensorType],
) -> Result<(), Diagnostic> {
    let misfit = |reason: String| {
        let message = format!("kernel of custom op `{op}` does not fit its declaration");
        Diagnostic::new(Code::K0211, message).in_op(op).label(format!("for Wgpu: {reason}"))
    };
    let module = naga::front::wgsl::parse_str(&kernel.source).map_err(|error| {
        misfit(format!("the text is not WGSL: {}", error.emit_to_string(&kernel.source).trim_end()))
    })?;
    Validator::new(ValidationFlags::all(), Capabilities::all()).validate(&module).map_err(|error| {
        misfit(format!("the text is not valid: {}", error.emit_to_string(&kernel.source).trim_end()))
    })?;
    let is_entry = |entry: &&naga::EntryPoint| entry.name == kernel.entry && entry.stage == ShaderStage::Compute;
    if module.entry_points.iter().find(is_entry).is_none() {
        return Err(misfit(format!("the text has no compute entry point `{}`", kernel.entry)));
    }
    for (index, ty) in operands.iter().chain(results).enumerate() {
        let use_ = if index < operands.len() { Use::Operand } else { Use::Result };
        if let Some(reason) = binding(&module, index, ty, use_) {
            return Err(misfit(reason));
        }
    }
    Ok(())
}

/// What a kernel does with a buffer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Operand,
    Result,
}

/// What is wrong with a binding, in words.
fn binding(module: &Module, index: usize, ty: &TensorType, use_: Use) -> Option<String> {
    let is_bound = |variable: &&GlobalVariable| {
        variable.binding.as_ref().is_some_and(|at| at.group == 0 && at.binding as usize == index)
    };
    let Some(variable) = module.global_variables.iter().map(|(_, variable)| variable).find(is_bound) else {
        return Some(format!("the text has no `@group(0) @binding({index})`"));
    };
    let AddressSpace::Storage { access } = variable.space else {
        return Some(format!("binding {index} is no storage buffer"));
    };
    if use_ == Use::Result && !access.contains(StorageAccess::STORE) {
        return Some(format!("binding {index} is a result and cannot be written to: it must be `read_write`"));
    }
    let wanted = scalar(ty.dtype)?;
    let found = match module.types[variable.ty].inner {
        TypeInner::Array { base, .. } => element(module, base),
        _ => None,
    };
    (found != Some(wanted))
        .then(|| format!("binding {index} is not an array of {0}, and the op has {0}{1} there", ty.dtype, ty.shape))
}

/// The scalar of an array's element; of a vector's components as well, which lie in memory like so many scalars.
fn element(module: &Module, ty: naga::Handle<naga::Type>) -> Option<Scalar> {
    match module.types[ty].inner {
        TypeInner::Scalar(scalar) | TypeInner::Atomic(scalar) | TypeInner::Vector { scalar, .. } => Some(scalar),
        _ => None,
    }
}

fn scalar(dtype: DType) -> Option<Scalar> {
    match dtype {
        DType::F32 => Some(Scalar::F32),
        DType::F16 => Some(Scalar::F16),
        DType::I32 => Some(Scalar::I32),
        DType::U32 => Some(Scalar::U32),
        DType::F64 | DType::BF16 | DType::I8 | DType::U8 | DType::I64 | DType::Bool => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kiln_ir::Backend;

    fn ty(dtype: DType) -> TensorType {
        TensorType::new(dtype, [64], Backend::Wgpu)
    }

    fn checked(bindings: &str, dtypes: [DType; 2]) -> Result<(), String> {
        let text = format!("{bindings}\n@compute @workgroup_size(64) fn main() {{ }}");
        let kernel = WgslKernel::new(text, "main", [1, 1, 1]);
        let checked = check_wgsl("double", &kernel, &[ty(dtypes[0])], &[ty(dtypes[1])]);
        checked.map_err(|diagnostic| {
            assert_eq!(diagnostic.code, Code::K0211);
            diagnostic.label.expect("it says what does not fit")
        })
    }

    const READ: &str = "@group(0) @binding(0) var<storage, read> x: array<f32>;";
    const WRITE: &str = "@group(0) @binding(1) var<storage, read_write> y: array<vec4<f32>>;";

    #[test]
    fn a_text_that_fits_passes() {
        assert_eq!(checked(&format!("{READ}{WRITE}"), [DType::F32, DType::F32]), Ok(()));
    }

    #[test]
    fn element_types_are_those_of_the_op() {
        let told = checked(&format!("{READ}{WRITE}"), [DType::I32, DType::F32]).unwrap_err();
        assert_eq!(told, "for Wgpu: binding 0 is not an array of i32, and the op has i32[64] there");
        assert!(checked(&format!("{READ}{WRITE}"), [DType::F32, DType::U32]).is_err());
    }

    #[test]
    fn results_can_be_written_and_all_is_bound() {
        let read_only = WRITE.replace("read_write", "read");
        assert!(checked(&format!("{READ}{read_only}"), [DType::F32; 2]).unwrap_err().contains("must be `read_write`"));
        assert!(checked(READ, [DType::F32; 2]).unwrap_err().contains("no `@group(0) @binding(1)`"));
    }

    #[test]
    fn what_is_not_wgsl_is_told_with_its_place() {
        let kernel = WgslKernel::new("fn main() { let x = ; }", "main", [1, 1, 1]);
        let diagnostic = check_wgsl("double", &kernel, &[], &[]).unwrap_err();
        assert!(diagnostic.label.as_ref().is_some_and(|label| label.contains("1:21")), "{diagnostic}");
        let other = WgslKernel::new("@compute @workgroup_size(1) fn main() {}", "other", [1, 1, 1]);
        assert!(check_wgsl("double", &other, &[], &[]).is_err());
    }
}
