extern crate kiln_ir as kiln;

use kiln_derive::Tree;

#[derive(Tree)]
struct Unknown<T> {
    #[tree(skip)]
    weight: T,
}

#[derive(Tree)]
struct StaticLeaf<T> {
    #[tree(static)]
    weight: T,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Padding;

#[derive(Tree)]
struct NoKey<T> {
    weight: T,
    #[tree(static)]
    padding: Padding,
}

fn main() {}
