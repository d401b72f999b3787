extern crate kiln_ir as kiln;

use kiln_derive::Tree;

struct Opaque;

#[derive(Tree)]
struct Layer<T> {
    weight: T,
    opaque: Opaque,
}

fn main() {}
