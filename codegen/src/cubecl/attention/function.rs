//! Blocks of a kernel as functions of its text, each evaluated at two neighbours: a lane of a warp holds such pairs of a product.
//!
//! A function takes all buffers, two numbers by reference, and the first of the two points, whose coordinate along their axis is even. What a
//! block is given is in the numbers before, what it makes is in them afterwards.

use kiln_ir::kernel::{Block, Buffer, Reg};
use kiln_ir::{DType, Diagnostic};

use super::super::block::{Scope, block, stores};
use super::super::builder::{Builder, Function, IndexWidth, Term, Ty};
use super::super::loops::bind;
use super::super::scalar;
use super::super::space::Point;
use super::super::types::Number;

/// What a function's two numbers are.
#[derive(Clone, Copy, Debug)]
pub(super) enum Numbers {
    /// The same at two neighbours along an axis: one register before, rounded to its dtype, another after.
    Pair { given: Option<(Reg, DType)>, made: Option<Reg>, along: usize },
    /// Two registers of a row, before.
    GivenRow([Reg; 2]),
    /// Two registers of a row, after.
    MadeRow([Reg; 2]),
}

/// The names of the two numbers.
const NAMES: [&str; 2] = ["first", "second"];

/// A block as a function, over a space of these extents.
pub(super) fn function(
    name: &str,
    part: &Block,
    numbers: Numbers,
    buffers: &[Buffer],
    extents: &[usize],
    width: IndexWidth,
) -> Result<Function, Diagnostic> {
    let mut b = Builder::new(name, 32, width);
    let bounds = bind(&mut b, buffers);
    let names = coordinates(extents.len(), numbers);
    let at: Vec<Term> = names.iter().map(|name| b.expression(Ty::Index, name, &[])).collect();
    let point = Point::new(at, extents.to_vec());
    let given = |b: &mut Builder, place: usize| b.expression(Ty::F32, NAMES[place], &[]);
    let mut scope = Scope::default();
    match numbers {
        Numbers::GivenRow(regs) => {
            for (place, reg) in regs.into_iter().enumerate() {
                let number = Number::one(given(&mut b, place), DType::F32);
                scope.define(reg, number);
            }
            block(&mut b, &bounds, &mut scope, part, &point)?;
            stores(&mut b, &bounds, &scope, part, &point)?;
        }
        Numbers::MadeRow(regs) => {
            block(&mut b, &bounds, &mut scope, part, &point)?;
            for (name, reg) in NAMES.iter().zip(regs) {
                let made = scope.value(reg)?.lane(0).clone();
                b.statement(&format!("{name} = $0;"), &[made]);
            }
        }
        Numbers::Pair { given: reg, made, along } => {
            if extents[along].is_multiple_of(2) {
                let point = point.with_lanes(along, 2);
                if let Some((reg, dtype)) = reg {
                    let lanes = (0..2).map(|place| {
                        let term = given(&mut b, place);
                        scalar::narrow(&mut b, term, dtype)
                    });
                    let lanes = lanes.collect();
                    scope.define(reg, Number { lanes, dtype });
                }
                block(&mut b, &bounds, &mut scope, part, &point)?;
                stores(&mut b, &bounds, &scope, part, &point)?;
                if let Some(made) = made {
                    let made = scope.value(made)?.clone();
                    for (place, name) in NAMES.iter().enumerate() {
                        b.statement(&format!("{name} = $0;"), &[made.lane(place).clone()]);
                    }
                }
            } else {
                for (place, name) in NAMES.iter().enumerate() {
                    let mut point = point.clone();
                    if place == 1 {
                        let second = [point.axes[along].clone()];
                        let inside = b.expression(Ty::Bool, &format!("$0 + 1 < {}", extents[along]), &second);
                        b.open_if(&inside);
                        point.axes[along] = b.expression(Ty::Index, "$0 + 1", &second);
                    }
                    let mut scope = Scope::default();
                    if let Some((reg, dtype)) = reg {
                        let term = given(&mut b, place);
                        let term = scalar::narrow(&mut b, term, dtype);
                        scope.define(reg, Number::one(term, dtype));
                    }
                    block(&mut b, &bounds, &mut scope, part, &point)?;
                    stores(&mut b, &bounds, &scope, part, &point)?;
                    if let Some(made) = made {
                        let made = scope.value(made)?.lane(0).clone();
                        b.statement(&format!("{name} = $0;"), &[made]);
                    }
                    if place == 1 {
                        b.close();
                    }
                }
            }
        }
    }
    let index = b.type_name(Ty::Index);
    let own = NAMES.iter().map(|name| format!("float &{name}"));
    let parameters: Vec<String> = own.chain(names.iter().map(|name| format!("{index} {name}"))).collect();
    b.function(&parameters)
}

/// The names of a point's coordinates.
fn coordinates(axes: usize, numbers: Numbers) -> Vec<String> {
    let own: &[&str] = match numbers {
        Numbers::Pair { .. } => &["row", "column"],
        Numbers::GivenRow(_) | Numbers::MadeRow(_) => &["row"],
    };
    let batch = (0..axes - own.len()).map(|axis| format!("batch{axis}"));
    batch.chain(own.iter().map(|name| (*name).to_owned())).collect()
}
