//! Kiln's intermediate representation: what a graph, a kernel and a plan *are*.
//!
//! This crate is plain data and rules over it: element types, shapes, ops with one typing rule each, graphs and the builder that checks
//! every node, the verifier, diagnostics with documented codes, gradients as a graph transform, the text form. It does no I/O, runs
//! nothing, and depends on no device crate. Recording is `kiln-capture`, deciding `kiln-passes`, printing `kiln-codegen`, doing
//! `kiln-runtime`.

mod backend;
mod build;
pub mod cuda;
pub mod custom;
mod diagnostic;
mod dtype;
pub mod gpu;
pub mod grad;
mod graph;
mod host;
pub mod kernel;
mod kernel_text;
mod literal;
mod loc;
mod op;
pub mod philox;
pub mod plan;
mod rebuild;
mod text;
pub mod tree;
mod types;
mod verify;

pub use backend::Backend;
pub use build::GraphBuilder;
pub use custom::{CustomBehaviour, CustomOps};
pub use diagnostic::{Code, Color, Diagnostic, Diagnostics, Note, Rendering, Result};
pub use dtype::{DType, Kind};
pub use graph::{Graph, Node, NodeId, Operands, Output, Value};
pub use host::HostData;
pub use literal::Literal;
pub use loc::Loc;
pub use op::{
    Attribute, Axes, Custom, DTypeRule, Direction, Exactness, FloatValue, IntValue, Op, OpRow, Precision, ReduceKind,
    ScalarOp, ScalarRow, ScanKind, ScatterKind, Standing, Strays, Symmetry, Types, infer, normalize_axis, op_rows,
    strays,
};
pub use rebuild::{Replacement, live_nodes, rebuild};
pub use text::{GraphText, INLINE_ELEMENTS, Locations, MAX_DEPTH, TextStyle, VERSION, has_comments, parse, parse_with};
pub use tree::{Leaf, Mismatch, Structure, Tree, With};
pub use types::{Shape, TensorType};
pub use verify::verify;
