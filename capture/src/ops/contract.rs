//! Matrix products.

use kiln_ir::{Code, Diagnostic, GraphBuilder, Loc, Op, Precision, Shape, Value};

use crate::operand::{check_matrices, join};
use crate::session::{record, record_as};
use crate::{Tensor, composite};

impl Tensor {
    /// The matrix product of the last two axes, numpy's rules: leading axes are a batch and broadcast; a vector on the left is a row, on
    /// the right a column, and its axis is gone from the result. K0301 where the inner extents differ.
    ///
    /// ```
    /// # use kiln_capture::CaptureDevice; use kiln_ir::{Backend, DType};
    /// # CaptureDevice::new(Backend::Cpu).capture_scope(|scope| {
    /// let x = scope.input("x", DType::F32, [8, 32, 784]);
    /// let w = scope.input("w", DType::F32, [784, 10]);
    /// assert_eq!(x.matmul(&w).shape()[..], [8, 32, 10]);
    /// # })?; Ok::<(), kiln_ir::Diagnostics>(())
    /// ```
    #[track_caller]
    pub fn matmul(&self, rhs: &Tensor) -> Tensor {
        self.matmul_with(rhs, Precision::Full)
    }

    /// [`Tensor::matmul`] with the exactness that is needed.
    #[track_caller]
    pub fn matmul_with(&self, rhs: &Tensor, precision: Precision) -> Tensor {
        record(&[self, rhs], |state, values, loc| {
            matmul(&mut state.builder, values[0], values[1], Op::MatMul { precision }, loc)
        })
    }

    /// The sum of the products of two vectors' elements.
    #[track_caller]
    pub fn dot(&self, rhs: &Tensor) -> Tensor {
        record_as("dot", &[self, rhs], |state, values, loc| {
            let op = Op::MatMul { precision: Precision::Full };
            for &value in values {
                let rank = state.builder.ty(value).shape.rank();
                if rank != 1 {
                    let diagnostic = Diagnostic::new(Code::K0309, format!("expected rank 1, got {rank}"))
                        .label("`dot` takes vectors")
                        .help("`.matmul(..)` multiplies matrices");
                    return Err(state.builder.explain(diagnostic, &op, values, loc));
                }
            }
            matmul(&mut state.builder, values[0], values[1], op, loc)
        })
    }

    /// The products of every element of one vector with every element of another: `[m]` and `[n]` give `[m, n]`.
    #[track_caller]
    pub fn outer(&self, rhs: &Tensor) -> Tensor {
        composite("outer", &[self, rhs], || self.flatten().unsqueeze(1) * rhs.flatten().unsqueeze(0))
    }
}

fn matmul(builder: &mut GraphBuilder, lhs: Value, rhs: Value, op: Op, loc: Loc) -> Result<Value, Diagnostic> {
    check_matrices(builder, &op, [lhs, rhs], loc)?;
    let (a, b) = (builder.ty(lhs).shape.clone(), builder.ty(rhs).shape.clone());
    let shapes = match Shapes::of(&a, &b) {
        Ok(shapes) => shapes,
        Err(diagnostic) => return Err(builder.explain(diagnostic, &op, &[lhs, rhs], loc)),
    };
    let lhs = builder.reshape(lhs, &shapes.lhs_matrix, loc)?;
    let rhs = builder.reshape(rhs, &shapes.rhs_matrix, loc)?;
    let lhs = builder.broadcast(lhs, &shapes.lhs, loc)?;
    let rhs = builder.broadcast(rhs, &shapes.rhs, loc)?;
    let product = builder.value(op, &[lhs, rhs], loc)?;
    builder.reshape(product, &shapes.result, loc)
}

/// The shapes on the way from the user's operands to the product.
struct Shapes {
    /// Operands with at least two axes.
    lhs_matrix: Shape,
    rhs_matrix: Shape,
    /// Operands with the common batch.
    lhs: Shape,
    rhs: Shape,
    /// The product without the axes that vectors brought in.
    result: Shape,
}

impl Shapes {
    fn of(a: &Shape, b: &Shape) -> Result<Shapes, Diagnostic> {
        if a.rank() == 0 || b.rank() == 0 {
            let message = format!("matmul of {a} and {b}: both need at least 1 axis");
            return Err(Diagnostic::new(Code::K0309, message).help("a scalar multiplies with `*`"));
        }
        let lhs_matrix = if a.rank() == 1 { Shape::from([1, a[0]]) } else { a.clone() };
        let rhs_matrix = if b.rank() == 1 { Shape::from([b[0], 1]) } else { b.clone() };
        let (l, r) = (lhs_matrix.rank(), rhs_matrix.rank());
        let (k, rhs_k) = (lhs_matrix[l - 1], rhs_matrix[r - 2]);
        if k != rhs_k {
            return Err(inner_extents_differ(a, b, k, rhs_k));
        }
        let Some(batch) = join(&lhs_matrix[..l - 2], &rhs_matrix[..r - 2]) else {
            let message = format!("batch extents of {a} and {b} do not broadcast");
            return Err(Diagnostic::new(Code::K0302, message).label(format!(
                "all axes but the last two are a batch: {} and {}",
                Shape::from(&lhs_matrix[..l - 2]),
                Shape::from(&rhs_matrix[..r - 2])
            )));
        };
        let (m, n) = (lhs_matrix[l - 2], rhs_matrix[r - 1]);
        let with = |rest: &[usize]| -> Shape { batch.iter().chain(rest).copied().collect() };
        let result = match (a.rank(), b.rank()) {
            (1, 1) => batch.clone(),
            (1, _) => with(&[n]),
            (_, 1) => with(&[m]),
            _ => with(&[m, n]),
        };
        Ok(Shapes { lhs: with(&[m, k]), rhs: with(&[k, n]), lhs_matrix, rhs_matrix, result })
    }
}

fn inner_extents_differ(a: &Shape, b: &Shape, k: usize, rhs_k: usize) -> Diagnostic {
    let message = format!("matrix product of {a} and {b}: inner extents {k} and {rhs_k} differ");
    let meets = if b.rank() == 1 { "the only one" } else { "the last but one" };
    let diagnostic = Diagnostic::new(Code::K0301, message)
        .label(format!("the last axis of lhs ({k}) meets {meets} of rhs ({rhs_k})"));
    let transposed = b.rank() >= 2 && b[b.rank() - 1] == k;
    if transposed {
        return diagnostic.help("rhs fits when transposed: `.matmul(&rhs.transpose())`");
    }
    if a.rank() >= 2 && a[a.rank() - 2] == rhs_k {
        return diagnostic.help("lhs fits when transposed: `lhs.transpose().matmul(..)`");
    }
    let wanted = if b.rank() == 1 { format!("[{k}]") } else { format!("[.., {k}, {}]", b[b.rank() - 1]) };
    diagnostic.help(format!("rhs would fit with shape {wanted}"))
}
