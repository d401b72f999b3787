//! Matrix products by cuBLASLt: described once, with an algorithm chosen once.
//!
//! The library counts along columns first, Kiln along rows. `result = lhs · rhs` is then `resultᵀ = rhsᵀ · lhsᵀ` in its eyes: a matrix whose rows
//! are dense is to it the transposed one, so that nothing is moved.
//!
//! Products of `f32` are true `f32` unless the kernel says `Tf32`; those of 16-bit floats are summed in `f32`.

use std::ffi::c_void;
use std::sync::{Mutex, OnceLock, PoisonError};

use cudarc::cublaslt::result::{self as lt, CublasError};
use cudarc::cublaslt::sys;
use kiln_ir::cuda::{Activation, Matrix, Product, ProductEpilogue};
use kiln_ir::{Code, DType, Diagnostic, Precision};

use super::library::{self, Needed};
use super::{Block, Cuda};

/// What an algorithm may use beside its operands. Products of a device run one after the other and share it.
const WORKSPACE: usize = 32 << 20;

/// A device's handle of the library.
#[derive(Default)]
pub(crate) struct Products {
    handle: OnceLock<Handle>,
    workspace: Mutex<Option<Block>>,
    /// One product may be several launches, with the workspace between them: no other thread's come in between.
    turn: Mutex<()>,
}

struct Handle(sys::cublasLtHandle_t);

// SAFETY: the library's handle may be used by any thread, and by several at once.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Products {
    fn handle(&self) -> Result<sys::cublasLtHandle_t, Diagnostic> {
        if let Some(handle) = self.handle.get() {
            return Ok(handle.0);
        }
        library::load(Needed::CublasLt)?;
        let made = lt::create_handle().map_err(|error| refused("opening cuBLASLt", error))?;
        if self.handle.set(Handle(made)).is_err() {
            // SAFETY: somebody was as quick; this one is nobody's.
            let _ = unsafe { lt::destroy_handle(made) };
        }
        Ok(self.handle.get().map_or(made, |handle| handle.0))
    }

    /// Gives the handle back; nothing may run any more.
    pub(super) fn free(&mut self) {
        if let Some(handle) = self.handle.take() {
            // SAFETY: taken out of its place, so that it is freed once.
            let _ = unsafe { lt::destroy_handle(handle.0) };
        }
    }

    fn workspace(&self, cuda: &Cuda) -> Result<u64, Diagnostic> {
        let mut workspace = self.workspace.lock().unwrap_or_else(PoisonError::into_inner);
        if workspace.is_none() {
            *workspace = cuda.make_block(WORKSPACE);
        }
        let block = workspace.as_ref().ok_or_else(|| {
            Diagnostic::new(Code::K0704, format!("out of memory: asked for {WORKSPACE} bytes for matrix products"))
        })?;
        Ok(block.pointer())
    }
}

/// A product, ready to be handed over.
pub(crate) struct PreparedProduct {
    description: sys::cublasLtMatmulDesc_t,
    layouts: [sys::cublasLtMatrixLayout_t; 3],
    algorithm: sys::cublasLtMatmulAlgo_t,
    handle: sys::cublasLtHandle_t,
    workspace: u64,
    workspace_bytes: usize,
    wide: Wide,
    /// Bytes from where each buffer begins: right operand, left operand, result, bias.
    offsets: [u64; 4],
    bias: bool,
}

// SAFETY: descriptions belong to this value alone, and are changed under the device's lock.
unsafe impl Send for PreparedProduct {}
// SAFETY: as above.
unsafe impl Sync for PreparedProduct {}

/// The type of the factors 1 and 0.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wide {
    F32,
    F64,
}

/// Where a product's buffers begin in one run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProductPointers {
    pub(crate) lhs: u64,
    pub(crate) rhs: u64,
    pub(crate) result: u64,
    pub(crate) bias: Option<u64>,
    /// Memory for the library's own use; the device's, which products one after the other share, where there is none.
    pub(crate) workspace: Option<u64>,
}

impl PreparedProduct {
    /// Describes a product and has the library choose how to make it.
    ///
    /// Errors: K0708 without the library, K0901 where it does not make such products.
    pub(crate) fn new(product: &Product, cuda: &Cuda) -> Result<PreparedProduct, Diagnostic> {
        let handle = cuda.products.handle()?;
        let workspace = cuda.products.workspace(cuda)?;
        Building::describe(product, handle, workspace)
            .map_err(|error| refused(&format!("a product of {}x{}x{}", product.m, product.k, product.n), error))
    }

    /// Bytes of memory that the library uses beside the operands.
    pub(crate) fn workspace_bytes(&self) -> usize {
        self.workspace_bytes
    }

    /// Hands it over to a stream of the device.
    pub(crate) fn run(
        &self,
        cuda: &Cuda,
        stream: cudarc::driver::sys::CUstream,
        pointers: ProductPointers,
    ) -> Result<(), CublasError> {
        let _turn = cuda.products.turn.lock().unwrap_or_else(PoisonError::into_inner);
        if cuda.context.bind_to_thread().is_err() {
            return Err(CublasError(sys::cublasStatus_t::CUBLAS_STATUS_EXECUTION_FAILED));
        }
        let [rhs, lhs, result, bias] = self.offsets;
        if let Some(pointer) = pointers.bias.filter(|_| self.bias) {
            let pointer = (pointer + bias) as *const c_void;
            set(self.description, sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &pointer)?;
        }
        let (one, zero) = (1f32, 0f32);
        let (one_wide, zero_wide) = (1f64, 0f64);
        let (alpha, beta): (*const c_void, *const c_void) = match self.wide {
            Wide::F32 => ((&raw const one).cast(), (&raw const zero).cast()),
            Wide::F64 => ((&raw const one_wide).cast(), (&raw const zero_wide).cast()),
        };
        let [a, b, d] = self.layouts;
        let to = (pointers.result + result) as *mut c_void;
        // SAFETY: descriptions made in `describe` for buffers of this shape, of which the caller holds the memory; the factors outlive the call,
        // which reads them.
        unsafe {
            lt::matmul(
                self.handle,
                self.description,
                alpha,
                beta,
                (pointers.rhs + rhs) as *const c_void,
                a,
                (pointers.lhs + lhs) as *const c_void,
                b,
                to,
                d,
                to,
                d,
                &raw const self.algorithm,
                pointers.workspace.unwrap_or(self.workspace) as *mut c_void,
                self.workspace_bytes,
                stream.cast(),
            )
        }
    }
}

impl Drop for PreparedProduct {
    fn drop(&mut self) {
        // SAFETY: made in `describe`, freed only here.
        unsafe {
            for layout in self.layouts {
                let _ = lt::destroy_matrix_layout(layout);
            }
            let _ = lt::destroy_matmul_desc(self.description);
        }
    }
}

/// A product while it is described; what was made is freed if the rest fails.
struct Building {
    description: sys::cublasLtMatmulDesc_t,
    layouts: Vec<sys::cublasLtMatrixLayout_t>,
}

impl Drop for Building {
    fn drop(&mut self) {
        // SAFETY: made by `describe`; what was handed on is no longer here.
        unsafe {
            for layout in self.layouts.drain(..) {
                let _ = lt::destroy_matrix_layout(layout);
            }
            if !self.description.is_null() {
                let _ = lt::destroy_matmul_desc(self.description);
            }
        }
    }
}

impl Building {
    fn describe(
        product: &Product,
        handle: sys::cublasLtHandle_t,
        workspace: u64,
    ) -> Result<PreparedProduct, CublasError> {
        use sys::cublasLtMatmulDescAttributes_t as Attribute;
        let (compute, scale, wide) = match (product.accumulate, product.precision) {
            (DType::F64, _) => (sys::cublasComputeType_t::CUBLAS_COMPUTE_64F, sys::cudaDataType::CUDA_R_64F, Wide::F64),
            (_, Precision::Tf32) => {
                (sys::cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32, sys::cudaDataType::CUDA_R_32F, Wide::F32)
            }
            (_, Precision::Full | Precision::Wide) => {
                (sys::cublasComputeType_t::CUBLAS_COMPUTE_32F, sys::cudaDataType::CUDA_R_32F, Wide::F32)
            }
        };
        let mut building =
            Building { description: lt::create_matmul_desc(compute, scale)?, layouts: Vec::with_capacity(3) };
        // Rows and columns in the library's eyes, and whether it is to transpose.
        let (rhs, transposed_rhs) = oriented(&product.rhs, product.k, product.n);
        let (lhs, transposed_lhs) = oriented(&product.lhs, product.m, product.k);
        for (attribute, transposed) in [
            (Attribute::CUBLASLT_MATMUL_DESC_TRANSA, transposed_rhs),
            (Attribute::CUBLASLT_MATMUL_DESC_TRANSB, transposed_lhs),
        ] {
            set(building.description, attribute, &transposed.operation())?;
        }
        let result = [product.n as u64, product.m as u64, product.result.row_stride.max(product.n) as u64];
        let (epilogue, bias) = epilogue(product.epilogue);
        set(building.description, Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, &(epilogue as u32))?;
        for ([rows, columns, leading], matrix) in [(rhs, &product.rhs), (lhs, &product.lhs), (result, &product.result)]
        {
            let layout = lt::create_matrix_layout(data_type(matrix.dtype)?, rows, columns, leading as i64)?;
            building.layouts.push(layout);
            if product.batch > 1 {
                use sys::cublasLtMatrixLayoutAttribute_t as Layout;
                set_layout(layout, Layout::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &(product.batch as i32))?;
                let stride = matrix.batch_stride as i64;
                set_layout(layout, Layout::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride)?;
            }
        }
        let offset = |offset: usize, dtype: DType| (offset * dtype.size()) as u64;
        let bias_offset = match product.epilogue {
            ProductEpilogue::Bias { offset: first, .. } => offset(first, product.result.dtype),
            ProductEpilogue::None | ProductEpilogue::Activation(_) => 0,
        };
        let of = |matrix: &Matrix| offset(matrix.offset, matrix.dtype);
        let offsets = [of(&product.rhs), of(&product.lhs), of(&product.result), bias_offset];
        let found = building.choose(handle, offsets)?;
        let layouts = [building.layouts[0], building.layouts[1], building.layouts[2]];
        building.layouts.clear();
        let description = std::mem::replace(&mut building.description, std::ptr::null_mut());
        Ok(PreparedProduct {
            description,
            layouts,
            algorithm: found.algo,
            handle,
            workspace,
            workspace_bytes: found.workspaceSize.min(WORKSPACE),
            wide,
            offsets,
            bias,
        })
    }

    /// The library's best guess for matrices that begin where these do.
    fn choose(
        &self,
        handle: sys::cublasLtHandle_t,
        offsets: [u64; 4],
    ) -> Result<sys::cublasLtMatmulHeuristicResult_t, CublasError> {
        use sys::cublasLtMatmulPreferenceAttributes_t as Wanted;
        let preference = lt::create_matmul_pref()?;
        let [rhs, lhs, result, _] = offsets.map(|offset| 1u32 << offset.trailing_zeros().min(8));
        let set = |attribute, value: *const c_void, bytes| {
            // SAFETY: the preference lives, and the value has so many bytes.
            unsafe { lt::set_matmul_pref_attribute(preference, attribute, value, bytes) }
        };
        let workspace = WORKSPACE;
        let [a, b, d] = [self.layouts[0], self.layouts[1], self.layouts[2]];
        let chosen = set(Wanted::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, (&raw const workspace).cast(), 8)
            .and_then(|()| set(Wanted::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, (&raw const rhs).cast(), 4))
            .and_then(|()| set(Wanted::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, (&raw const lhs).cast(), 4))
            .and_then(|()| set(Wanted::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, (&raw const result).cast(), 4))
            .and_then(|()| set(Wanted::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, (&raw const result).cast(), 4))
            .and_then(|()| {
                // SAFETY: all of them were made above and live.
                unsafe { lt::get_matmul_algo_heuristic(handle, self.description, a, b, d, d, preference) }
            });
        // SAFETY: made above, used by nobody any more.
        let _ = unsafe { lt::destroy_matmul_pref(preference) };
        chosen
    }
}

/// Whether the library is to transpose an operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Transposed {
    No,
    Yes,
}

impl Transposed {
    /// `CUBLAS_OP_N`, `CUBLAS_OP_T`.
    fn operation(self) -> i32 {
        match self {
            Transposed::No => 0,
            Transposed::Yes => 1,
        }
    }
}

/// Rows, columns and leading extent of a matrix of `rows` x `columns` in the library's eyes, and whether it is to transpose that so that it has the
/// transposed of ours.
fn oriented(matrix: &Matrix, rows: usize, columns: usize) -> ([u64; 3], Transposed) {
    if matrix.column_stride == 1 && (matrix.row_stride >= columns || rows == 1) {
        ([columns as u64, rows as u64, matrix.row_stride.max(columns) as u64], Transposed::No)
    } else {
        ([rows as u64, columns as u64, matrix.column_stride.max(rows) as u64], Transposed::Yes)
    }
}

fn epilogue(epilogue: ProductEpilogue) -> (sys::cublasLtEpilogue_t, bool) {
    use sys::cublasLtEpilogue_t as Lt;
    match epilogue {
        ProductEpilogue::None | ProductEpilogue::Activation(Activation::Identity) => {
            (Lt::CUBLASLT_EPILOGUE_DEFAULT, false)
        }
        ProductEpilogue::Activation(Activation::Relu) => (Lt::CUBLASLT_EPILOGUE_RELU, false),
        ProductEpilogue::Bias { activation: Activation::Identity, .. } => (Lt::CUBLASLT_EPILOGUE_BIAS, true),
        ProductEpilogue::Bias { activation: Activation::Relu, .. } => (Lt::CUBLASLT_EPILOGUE_RELU_BIAS, true),
    }
}

fn data_type(dtype: DType) -> Result<sys::cudaDataType, CublasError> {
    match dtype {
        DType::F32 => Ok(sys::cudaDataType::CUDA_R_32F),
        DType::F64 => Ok(sys::cudaDataType::CUDA_R_64F),
        DType::F16 => Ok(sys::cudaDataType::CUDA_R_16F),
        DType::BF16 => Ok(sys::cudaDataType::CUDA_R_16BF),
        DType::I8 | DType::U8 | DType::I32 | DType::U32 | DType::I64 | DType::Bool => {
            Err(CublasError(sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED))
        }
    }
}

fn set<T>(
    description: sys::cublasLtMatmulDesc_t,
    attribute: sys::cublasLtMatmulDescAttributes_t,
    value: &T,
) -> Result<(), CublasError> {
    // SAFETY: the description lives, and the value is read during the call.
    unsafe { lt::set_matmul_desc_attribute(description, attribute, std::ptr::from_ref(value).cast(), size_of::<T>()) }
}

fn set_layout<T>(
    layout: sys::cublasLtMatrixLayout_t,
    attribute: sys::cublasLtMatrixLayoutAttribute_t,
    value: &T,
) -> Result<(), CublasError> {
    // SAFETY: the layout lives, and the value is read during the call.
    unsafe { lt::set_matrix_layout_attribute(layout, attribute, std::ptr::from_ref(value).cast(), size_of::<T>()) }
}

fn refused(what: &str, error: CublasError) -> Diagnostic {
    Diagnostic::new(Code::K0901, format!("internal: {what}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kiln_ir::gpu::GpuMemory;

    fn matrix(row_stride: usize, column_stride: usize) -> Matrix {
        let memory = GpuMemory::Scratch(0);
        Matrix { memory, dtype: DType::F32, offset: 0, row_stride, column_stride, batch_stride: 0 }
    }

    #[test]
    fn dense_rows_are_the_librarys_columns() {
        assert_eq!(oriented(&matrix(7, 1), 3, 5), ([5, 3, 7], Transposed::No));
        assert_eq!(oriented(&matrix(1, 9), 3, 5), ([3, 5, 9], Transposed::Yes));
        // One row, or one column: whichever stride is real.
        assert_eq!(oriented(&matrix(1, 1), 1, 5), ([5, 1, 5], Transposed::No));
        assert_eq!(oriented(&matrix(1, 1), 5, 1), ([1, 5, 1], Transposed::No));
    }
}
