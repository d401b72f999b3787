//! The ops as methods of [`Tensor`](crate::Tensor), by family. Each records one node, or few where the node's operands must be brought to
//! one shape first.

mod axes;
mod cast;
mod contract;
mod elementwise;
mod index;
mod join;
mod operators;
mod reduce;
mod slice;
mod view;

pub use axes::IntoAxes;
pub use join::{concat, stack, try_concat, try_stack};
pub(crate) use reduce::Keep;
pub use slice::{Part, Parts};
pub use view::IntoExtents;
