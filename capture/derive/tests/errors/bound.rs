extern crate kiln_ir as kiln;

use kiln_derive::Tree;

#[derive(Tree)]
struct Adam<M: kiln_ir::tree::HasLeaf> {
    moments: M,
    step: M::Leaf,
}

#[derive(Tree)]
struct Scaled<T>
where
    T: Clone,
{
    value: T,
}

fn main() {}
