extern crate kiln_ir as kiln;

use kiln_derive::Tree;

#[derive(Tree)]
union Either<T: Copy> {
    one: T,
    other: u32,
}

fn main() {}
