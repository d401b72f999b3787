//! Symmetric 8-bit quantization: a float tensor as `i8` values and `f32` scales, and products of such tensors.
//!
//! An element `x` becomes `round(x / scale)`, ties to even, in -127..=127; the scale is the largest magnitude divided by 127, of the whole
//! tensor or of each of its channels along one axis. What comes back differs from `x` by at most half a scale (and the rounding of `f32`). All of
//! it is made of ordinary ops, so scales fuse with what is around them; the product of the values is one op, summed in `i32`, exactly.

use kiln_ir::tree::{Family, HasLeaf, Leaf, Structure, Tree, With};
use kiln_ir::{Backend, Code, DType, Diagnostic, Precision, strays};

use crate::backends::Named;
use crate::{Tensor, composite};

/// The largest magnitude of a quantized value; -128 is left out, so that negation stays inside.
const LARGEST: f64 = 127.0;

/// A quantized tensor: `values * scale`. A tree of two leaves, so that weights are quantized once and kept.
///
/// ```
/// use kiln_capture::{q_matmul, CaptureDevice};
/// use kiln_ir::{Backend, DType};
/// CaptureDevice::new(Backend::Cpu).capture_scope(|scope| {
///     let x = scope.input("x", DType::F32, [32, 784]).quantize();
///     let w = scope.input("w", DType::F32, [784, 10]).quantize_along(1);
///     assert_eq!((w.values.dtype(), &w.scale.shape()[..]), (DType::I8, &[1, 10][..]));
///     q_matmul(&x, &w)
/// })?;
/// # Ok::<(), kiln_ir::Diagnostics>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct QTensor<T> {
    /// The numbers, `i8`.
    pub values: T,
    /// What they are multiplied by, `f32`: a scalar, or of the values' rank with extent 1 but along the channels' axis.
    pub scale: T,
    /// The axis along which each index has a scale of its own; `None` where there is one scale.
    pub axis: Option<usize>,
}

impl<F: Family> Family for QTensor<F> {
    type Of<L: Leaf> = QTensor<F::Of<L>>;
}

impl<M: HasLeaf> HasLeaf for QTensor<M> {
    type Leaf = M::Leaf;
}

impl<L: Leaf, M: Tree<L>> Tree<L> for QTensor<M> {
    type Family = QTensor<M::Family>;

    fn describe(&self, structure: &mut Structure) {
        structure.record("QTensor", 3);
        structure.field("values");
        self.values.describe(structure);
        structure.field("scale");
        self.scale.describe(structure);
        structure.field("axis");
        Tree::<L>::describe(&self.axis, structure);
    }

    fn visit<'a>(&'a self, visit: &mut dyn FnMut(&'a L)) {
        self.values.visit(visit);
        self.scale.visit(visit);
    }

    fn visit_mut<'a>(&'a mut self, visit: &mut dyn FnMut(&'a mut L)) {
        self.values.visit_mut(visit);
        self.scale.visit_mut(visit);
    }

    fn try_map<U: Leaf, E>(self, map: &mut dyn FnMut(L) -> Result<U, E>) -> Result<With<Self, L, U>, E> {
        let (values, scale) = (self.values.try_map(map)?, self.scale.try_map(map)?);
        Ok(QTensor { values, scale, axis: self.axis })
    }

    fn try_map_ref<U: Leaf, E>(&self, map: &mut dyn FnMut(&L) -> Result<U, E>) -> Result<With<Self, L, U>, E> {
        let (values, scale) = (self.values.try_map_ref(map)?, self.scale.try_map_ref(map)?);
        Ok(QTensor { values, scale, axis: self.axis })
    }
}

impl Tensor {
    /// The tensor as 8-bit integers with one scale. A float of any width; K0306 where it is empty.
    #[track_caller]
    pub fn quantize(&self) -> QTensor<Tensor> {
        quantized("quantize", self, None)
    }

    /// The tensor as 8-bit integers with a scale for each index along an axis (-1: the last), which suits channels of different size. K0304
    /// where it has no such axis.
    #[track_caller]
    pub fn quantize_along(&self, axis: isize) -> QTensor<Tensor> {
        quantized("quantize_along", self, Some(axis))
    }
}

#[track_caller]
fn quantized(name: &'static str, x: &Tensor, axis: Option<isize>) -> QTensor<Tensor> {
    let scale = composite(name, &[x], || {
        if !x.dtype().is_float() {
            let message = format!("Should be float, got {}", x.dtype().kind());
            let label = format!("`{name}` takes a float, this tensor is {}", x.dtype());
            let diagnostic =
                Diagnostic::new(Code::K0401, message).label(label).help("cast it with `.cast(DType::F32)`");
            return refused(&[("input", x)], diagnostic);
        }
        let magnitude = x.cast(DType::F32).abs();
        let largest = match axis {
            None => magnitude.max(..),
            Some(axis) => {
                let own = kiln_ir::normalize_axis(axis, x.rank());
                match own {
                    Err(diagnostic) => return refused(&[("input", x)], diagnostic),
                    Ok(own) => {
                        let others: Vec<isize> =
                            (0..x.rank()).filter(|&other| other != own).map(|other| other as isize).collect();
                        magnitude.max_keepdim(&others[..])
                    }
                }
            }
        };
        // Zeros alone are zeros at any scale.
        largest.gt(0.0).select(&largest / LARGEST, 1.0)
    });
    let values = composite(name, &[x, &scale], || {
        (x.cast(DType::F32) / &scale).round().clamp(-LARGEST, LARGEST).cast(DType::I8)
    });
    let axis = axis.filter(|_| !scale.is_poisoned()).and_then(|axis| kiln_ir::normalize_axis(axis, x.rank()).ok());
    QTensor { values, scale, axis }
}

impl QTensor<Tensor> {
    /// The values times their scales, `f32`.
    #[track_caller]
    pub fn dequantize(&self) -> Tensor {
        composite("dequantize", &[&self.values, &self.scale], || self.values.cast(DType::F32) * &self.scale)
    }

    fn parts<'a>(&'a self, [values, scale]: [&'a str; 2]) -> [(&'a str, &'a Tensor); 2] {
        [(values, &self.values), (scale, &self.scale)]
    }
}

/// The matrix product of two quantized tensors as `f32`: the product of the values, exact in `i32`, times both scales.
///
/// Leading axes are a batch, as in [`Tensor::matmul`]. K0207 where not all parts are on one backend, K0301 where the inner extents differ, K0312
/// where scales run along the axis that is summed over.
#[track_caller]
pub fn q_matmul(lhs: &QTensor<Tensor>, rhs: &QTensor<Tensor>) -> Tensor {
    checked("q_matmul", lhs, rhs, || {
        let product = lhs.values.matmul_with(&rhs.values, Precision::Wide).cast(DType::F32);
        product * (&lhs.scale * &rhs.scale)
    })
}

/// The matrix product of two quantized tensors' values, exact in `i32` for sums of up to 131071 products. Errors as [`q_matmul`].
#[track_caller]
pub fn q_matmul_values(lhs: &QTensor<Tensor>, rhs: &QTensor<Tensor>) -> Tensor {
    checked("q_matmul_values", lhs, rhs, || lhs.values.matmul_with(&rhs.values, Precision::Wide))
}

#[track_caller]
fn checked(name: &'static str, lhs: &QTensor<Tensor>, rhs: &QTensor<Tensor>, body: impl FnOnce() -> Tensor) -> Tensor {
    let [a, b] = lhs.parts(["lhs.values", "lhs.scale"]);
    let [c, d] = rhs.parts(["rhs.values", "rhs.scale"]);
    let parts = [a, b, c, d];
    composite(name, &parts.map(|(_, tensor)| tensor), || match mistake(lhs, rhs, &parts) {
        Some(diagnostic) => refused(&parts, diagnostic),
        None => body(),
    })
}

fn mistake(lhs: &QTensor<Tensor>, rhs: &QTensor<Tensor>, parts: &[(&str, &Tensor)]) -> Option<Diagnostic> {
    let backends: Vec<Backend> = parts.iter().map(|(_, tensor)| tensor.backend()).collect();
    if let Some(strays) = strays(&backends) {
        let roles: Vec<String> = parts.iter().map(|(role, _)| (*role).to_owned()).collect();
        let label = strays.label("q_matmul", &roles, &backends);
        let diagnostic = Diagnostic::new(Code::K0207, "q_matmul inputs are on different backends");
        return Some(diagnostic.label(label).help(strays.help()));
    }
    let summed = [(lhs, lhs.values.rank().checked_sub(1), "lhs"), (rhs, rhs.values.rank().checked_sub(2), "rhs")];
    let along = |(operand, summed, _): &&(&QTensor<Tensor>, Option<usize>, &str)| {
        operand.axis.is_some() && operand.axis == *summed && operand.scale.num_elements() > 1
    };
    let (operand, _, name) = summed.iter().find(along)?;
    let axis = operand.axis.unwrap_or_default();
    let message = format!("the scales of {name} run along axis {axis}, which is summed over");
    let fitting = if *name == "lhs" { "a row (its last but one axis)" } else { "a column (its last axis)" };
    Some(
        Diagnostic::new(Code::K0312, message)
            .label("a sum has one scale, or its terms cannot be added as integers")
            .help(format!("quantize {name} with one scale, or with one for {fitting}")),
    )
}

/// A mistake, with the operands by name.
#[track_caller]
fn refused(operands: &[(&str, &Tensor)], diagnostic: Diagnostic) -> Tensor {
    let named: Vec<Named> = operands.iter().map(|(name, tensor)| Named::required(name, tensor)).collect();
    super::mistake(&named, diagnostic)
}
