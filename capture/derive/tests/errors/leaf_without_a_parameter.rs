extern crate kiln_ir as kiln;

use kiln_derive::Tree;

struct Tensor;
kiln_ir::leaf!(Tensor);

#[derive(Tree)]
struct Layer {
    weight: Tensor,
}

fn main() {}
