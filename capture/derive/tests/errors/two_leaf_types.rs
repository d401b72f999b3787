extern crate kiln_ir as kiln;

use kiln_derive::Tree;
use kiln_ir::tree::Tree;

struct Tensor;
kiln_ir::leaf!(Tensor);

struct Array;
kiln_ir::leaf!(Array);

#[derive(Tree)]
struct Mixed<T, U> {
    one: T,
    other: U,
}

fn main() {
    let mixed = Mixed { one: Tensor, other: Array };
    Tree::<Tensor>::names(&mixed);
}
