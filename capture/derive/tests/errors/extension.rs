extern crate kiln_ir as kiln;

use kiln_derive::ExtensionType;

#[derive(ExtensionType)]
enum Either<T> {
    Left { x: T },
    Right { x: T },
}

#[derive(ExtensionType)]
struct Nameless<T>(T, T);

#[derive(ExtensionType)]
struct Empty;

#[derive(ExtensionType)]
struct OfTickets {
    x: u32,
}

#[derive(ExtensionType)]
union Bits<T: Copy> {
    x: T,
}

fn main() {}
