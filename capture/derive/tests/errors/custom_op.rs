extern crate kiln_ir as kiln;

use kiln_capture::{CustomOp, Tensor, custom_op, opaque_op};
use kiln_derive::ExtensionType;
use kiln_ir::TensorType;

#[derive(ExtensionType)]
struct Pair<T> {
    left: T,
    right: T,
}

#[derive(ExtensionType)]
struct Twice<T> {
    x: T,
    pair: Pair<T>,
}

fn sum() -> CustomOp<Pair<Tensor>, Tensor> {
    custom_op("sum", |pair: &Pair<Tensor>| &pair.left + &pair.right)
}

fn a_tensor_where_a_struct_is_taken(x: &Tensor) -> Tensor {
    sum().call(x)
}

fn a_struct_by_value(x: Tensor) -> Tensor {
    sum().call(Pair { left: x.clone(), right: x })
}

fn a_list_as_the_result(x: &Tensor) -> Vec<Tensor> {
    custom_op("split", |x: &Tensor| vec![x.clone(), x.clone()]).call(x)
}

fn a_gradient_of_another_type() {
    let _ = sum().gradient(|pair, _, dy| pair.left.clone() * dy);
}

fn types_that_are_no_types() {
    let _ = opaque_op("same", |x: &TensorType| x.clone());
}

fn main() {}
