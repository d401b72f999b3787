//! Products of blocks: what a workgroup multiplies in workgroup memory and sums in registers.
//!
//! A workgroup makes a tile of a result, `extents[0]` rows by `extents[1]` columns; an invocation has some rows and columns of it, and the
//! sums where they cross (`sum_0_0`, `sum_0_1`, ...: a row and four columns each). In a step, pieces of both operands are fetched into
//! registers (`lhs_0`, `rhs_0`, ...), put into workgroup memory, and multiplied by all:
//!
//! ```text
//! fetch(0)
//! for each step { put; barrier; fetch(next); multiply; barrier }
//! ```
//!
//! Pieces lie in vectors of four, either along the summed axis (one row of vectors for each position of the kept axis, padded so that
//! neighbours are in different banks), or along the kept one. Which of its positions an invocation has follows from that: neighbours read
//! what lies side by side.

use kiln_ir::Diagnostic;
use kiln_ir::gpu::{Along, Fill, Tile};

use super::types::Held;
use super::writer::Writer;

/// The components of a vector.
pub(super) const PARTS: [&str; 4] = ["x", "y", "z", "w"];

/// The type of a product's elements and sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sum(pub(super) Held);

impl Sum {
    /// `sum + a * b`; `f32` alone is sure to have `fma`.
    pub(super) fn add(self, sum: &str, a: &str, b: &str) -> String {
        match self.0 {
            Held::F32 => format!("fma({a}, {b}, {sum})"),
            Held::F64 | Held::I32 | Held::U32 | Held::I64 | Held::Bool => format!("{sum} + {a} * {b}"),
        }
    }

    fn vector(self) -> String {
        self.0.wide(4)
    }
}

/// One operand of a product of blocks, by the axis that the result keeps of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Side {
    /// What its pieces are called.
    pub(super) name: &'static str,
    /// The number of an invocation among those that share the axis.
    pub(super) id: &'static str,
    /// Positions of the tile along it.
    pub(super) extent: u32,
    /// Of which an invocation has so many.
    pub(super) count: u32,
    /// How much of the summed axis a piece has.
    pub(super) depth: u32,
    /// Along which axis vectors lie.
    pub(super) along: Along,
}

impl Side {
    /// Invocations that share the axis.
    pub(super) fn sharers(&self) -> u32 {
        self.extent / self.count
    }

    /// Vectors of workgroup memory.
    pub(super) fn vectors(&self) -> u32 {
        match self.along {
            Along::Summed => self.extent * self.pitch(),
            Along::Kept => self.depth * self.extent / 4,
        }
    }

    /// Vectors from one position of the kept axis to the next, where they lie along the other. Odd, for the banks.
    fn pitch(&self) -> u32 {
        (self.depth / 4) | 1
    }

    /// Position in the tile of one of an invocation's elements.
    pub(super) fn position(&self, element: u32) -> String {
        let (scale, first) = match self.along {
            Along::Summed => (1, element * self.sharers()),
            Along::Kept if self.count.is_multiple_of(4) => (4, element / 4 * 4 * self.sharers() + element % 4),
            Along::Kept => (self.count, element),
        };
        sum(&times(self.id, scale), first)
    }

    /// Where vector number `number` of a piece comes from, along the kept and the summed axis, and its place in workgroup memory.
    fn place(&self, number: &str) -> [String; 3] {
        match self.along {
            Along::Summed => {
                let row = self.depth / 4;
                let (kept, at) = (quotient(number, row), remainder(number, row));
                let place = format!("{} + {at}", times(&kept, self.pitch()));
                [kept, times(&at, 4), place]
            }
            Along::Kept => {
                let row = self.extent / 4;
                [times(&remainder(number, row), 4), quotient(number, row), number.to_owned()]
            }
        }
    }
}

/// What is multiplied from the left.
#[derive(Clone, Copy, Debug)]
pub(super) enum Left<'a> {
    /// The left side's own pieces.
    Pieces,
    /// A matrix of numbers in workgroup memory.
    Matrix {
        /// Its name.
        name: &'a str,
        /// Elements from one step along the kept axis to the next.
        kept: u32,
        /// And along the summed one.
        summed: u32,
        /// Where the piece begins along the summed axis.
        first: &'a str,
        /// How its numbers are held.
        held: Held,
    },
}

/// A product of blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Product {
    /// Invocations of the workgroup, all of which fetch.
    pub(super) workgroup: u32,
    /// What is summed, and multiplied.
    pub(super) number: Sum,
    /// What sums are called.
    pub(super) sums: &'static str,
    /// The left operand.
    pub(super) lhs: Side,
    /// The right operand.
    pub(super) rhs: Side,
}

impl Product {
    /// The product that a tile says, with operands called `lhs` and `rhs`.
    pub(super) fn new(workgroup: u32, number: Sum, tile: Tile, fills: [Fill; 2]) -> Product {
        let side = |axis: usize, name, id| Side {
            name,
            id,
            extent: tile.extents[axis],
            count: tile.registers[axis],
            depth: tile.depth,
            along: fills[axis].along,
        };
        Product { workgroup, number, sums: "sum", lhs: side(0, "lhs", "down"), rhs: side(1, "rhs", "across") }
    }

    /// Which of the tile's positions this invocation has.
    pub(super) fn ids(&self, w: &mut Writer) {
        w.line(format!("let {} = {};", self.rhs.id, remainder("local", self.rhs.sharers())));
        w.line(format!("let {} = {};", self.lhs.id, quotient("local", self.rhs.sharers())));
    }

    /// Sums of nothing.
    pub(super) fn declare(&self, w: &mut Writer) {
        for name in self.sums() {
            w.line(format!("var {name} = {}();", self.number.vector()));
        }
    }

    /// All sums, row by row.
    pub(super) fn sums(&self) -> Vec<String> {
        let vectors = self.rhs.count / 4;
        (0..self.lhs.count).flat_map(|row| (0..vectors).map(move |four| (row, four))).map(|at| self.sum(at)).collect()
    }

    fn sum(&self, (row, four): (u32, u32)) -> String {
        format!("{}_{row}_{four}", self.sums)
    }

    /// Fetches pieces of an operand into registers; `call` writes what fetches four elements at a position of the kept and of the summed axis,
    /// both counted from the piece's first. `declare` is `var` the first time, nothing later.
    pub(super) fn fetch(&self, w: &mut Writer, side: &Side, declared: Declared, call: &dyn Fn(&str, &str) -> String) {
        self.each_vector(side, |name, number, guard| {
            let [kept, summed, _] = side.place(number);
            let fetched = call(&kept, &summed);
            match (declared, guard) {
                (Declared::Here, None) => w.line(format!("var {name} = {fetched};")),
                (Declared::Before, None) => w.line(format!("{name} = {fetched};")),
                (_, Some(guard)) => {
                    if declared == Declared::Here {
                        w.line(format!("var {name} = {}();", self.number.vector()));
                    }
                    w.open(format!("if {guard}"));
                    w.line(format!("{name} = {fetched};"));
                    w.close();
                }
            }
        });
    }

    /// Puts fetched pieces into workgroup memory, a barrier before and after which is the caller's.
    pub(super) fn put(&self, w: &mut Writer, side: &Side) {
        self.each_vector(side, |name, number, guard| {
            let [_, _, place] = side.place(number);
            let put = format!("{}_tile[{place}] = {name};", side.name);
            match guard {
                None => w.line(put),
                Some(guard) => {
                    w.open(format!("if {guard}"));
                    w.line(put);
                    w.close();
                }
            }
        });
    }

    fn each_vector(&self, side: &Side, mut each: impl FnMut(&str, &str, Option<&str>)) {
        let count = side.extent * side.depth / 4;
        for part in 0..count.div_ceil(self.workgroup) {
            let number = sum("local", part * self.workgroup);
            let guard = ((part + 1) * self.workgroup > count).then(|| format!("{number} < {count}"));
            let number = if part == 0 { number } else { format!("({number})") };
            each(&format!("{}_{part}", side.name), &number, guard.as_deref());
        }
    }

    /// Multiplies what is in workgroup memory and adds it to the sums.
    pub(super) fn multiply(&self, w: &mut Writer, left: Left<'_>) {
        w.open(format!("for (var four = 0; four < {}; four++)", self.rhs.depth / 4));
        let lhs = self.read_left(w, left);
        let rhs = self.read_right(w);
        for (step, rhs) in rhs.iter().enumerate() {
            for (row, lhs) in lhs.iter().enumerate() {
                for (four, rhs) in rhs.iter().enumerate() {
                    let sum = self.sum((row as u32, four as u32));
                    let factor = format!("{}({})", self.number.vector(), lhs[step]);
                    w.line(format!("{sum} = {};", self.number.add(&sum, &factor, rhs)));
                }
            }
        }
        w.close();
    }

    /// For each own row, the elements of four steps.
    fn read_left(&self, w: &mut Writer, left: Left<'_>) -> Vec<[String; 4]> {
        let side = &self.lhs;
        let rows = 0..side.count;
        match (left, side.along) {
            (Left::Matrix { name, kept, summed, first, held }, _) => {
                let own = self.number.0;
                for row in rows.clone() {
                    let position = times(&format!("({})", side.position(row)), kept);
                    let begin = format!("{position} + ({first} + four * 4) * {summed}");
                    w.line(format!("let a_{row} = {begin};"));
                    for step in 0..4 {
                        let element = format!("{name}[{}]", sum(&format!("a_{row}"), step * summed));
                        let element = if held == own { element } else { format!("{}({element})", own.name()) };
                        w.line(format!("let a_{row}_{step} = {element};"));
                    }
                }
                rows.map(|row| std::array::from_fn(|step| format!("a_{row}_{step}"))).collect()
            }
            (Left::Pieces, Along::Summed) => {
                for row in rows.clone() {
                    let position = times(&format!("({})", side.position(row)), side.pitch());
                    w.line(format!("let a_{row} = {}_tile[{position} + four];", side.name));
                }
                rows.map(|row| PARTS.map(|part| format!("a_{row}.{part}"))).collect()
            }
            (Left::Pieces, Along::Kept) if side.count.is_multiple_of(4) => {
                self.read_kept(w, side, "a");
                rows.map(|row| std::array::from_fn(|step| format!("a_{step}_{}.{}", row / 4, PARTS[row as usize % 4])))
                    .collect()
            }
            (Left::Pieces, Along::Kept) => {
                for row in rows.clone() {
                    w.line(format!("let at_{row} = {};", side.position(row)));
                    for step in 0..4 {
                        let vectors = side.extent / 4;
                        let place = format!("(four * 4 + {step}) * {vectors} + at_{row} / 4");
                        w.line(format!("let a_{row}_{step} = {}_tile[{place}][at_{row} % 4];", side.name));
                    }
                }
                rows.map(|row| std::array::from_fn(|step| format!("a_{row}_{step}"))).collect()
            }
        }
    }

    /// For each of four steps, the own columns, four by four.
    fn read_right(&self, w: &mut Writer) -> [Vec<String>; 4] {
        let side = &self.rhs;
        let fours = 0..side.count / 4;
        match side.along {
            Along::Kept => {
                self.read_kept(w, side, "b");
                std::array::from_fn(|step| fours.clone().map(|four| format!("b_{step}_{four}")).collect())
            }
            Along::Summed => {
                for column in 0..side.count {
                    let position = times(&format!("({})", side.position(column)), side.pitch());
                    w.line(format!("let b_{column} = {}_tile[{position} + four];", side.name));
                }
                std::array::from_fn(|step| {
                    let gathered = |four: u32| {
                        let columns: Vec<String> =
                            (0..4).map(|column| format!("b_{}.{}", four * 4 + column, PARTS[step])).collect();
                        format!("{}({})", self.number.vector(), columns.join(", "))
                    };
                    fours.clone().map(gathered).collect()
                })
            }
        }
    }

    /// Vectors along the kept axis: of four steps, the own ones.
    fn read_kept(&self, w: &mut Writer, side: &Side, name: &str) {
        let (vectors, sharers) = (side.extent / 4, side.sharers());
        for step in 0..4 {
            for own in 0..side.count / 4 {
                let place = sum(
                    &format!("{} + {}", times(&format!("({})", sum("four * 4", step)), vectors), side.id),
                    own * sharers,
                );
                w.line(format!("let {name}_{step}_{own} = {}_tile[{place}];", side.name));
            }
        }
    }

    /// Walks the sums of this invocation, `width` neighbouring columns at a time: `row` and `column` are the position in the tile, `product` what
    /// was summed there. With a width of 4, columns lie along the kept axis.
    pub(super) fn each(
        &self,
        w: &mut Writer,
        width: u32,
        body: impl FnOnce(&mut Writer) -> Result<(), Diagnostic>,
    ) -> Result<(), Diagnostic> {
        let fours = self.rhs.count / 4;
        w.open(format!("for (var number = 0; number < {}; number++)", self.lhs.count * fours));
        w.line(format!("var four = {}();", self.number.vector()));
        w.open("switch number");
        let names = self.sums();
        for (number, name) in names.iter().enumerate() {
            let case = if number + 1 == names.len() { "default".to_owned() } else { format!("case {number}") };
            w.line(format!("{case}: {{ four = {name}; }}"));
        }
        w.close();
        w.line(format!("let row = {};", self.lhs.position_at(&quotient("number", fours))));
        let first = times(&remainder("number", fours), 4);
        if width == 4 {
            w.line(format!("let column = {};", self.rhs.position_at(&first)));
            w.line("let product = four;");
            body(w)?;
        } else {
            w.open("for (var component = 0; component < 4; component++)");
            w.line(format!("let column = {};", self.rhs.position_at(&format!("({first} + component)"))));
            w.line("let product = four[component];");
            body(w)?;
            w.close();
        }
        w.close();
        Ok(())
    }
}

impl Side {
    /// As [`Side::position`], of an element that is known when the text runs.
    fn position_at(&self, element: &str) -> String {
        match self.along {
            Along::Summed => format!("{} + {}", self.id, times(&format!("({element})"), self.sharers())),
            Along::Kept if self.count.is_multiple_of(4) => {
                let element = format!("({element})");
                let fours = times(&format!("({})", quotient(&element, 4)), 4 * self.sharers());
                format!("{} + {fours} + {}", times(self.id, 4), remainder(&element, 4))
            }
            Along::Kept => format!("{} + {element}", times(self.id, self.count)),
        }
    }
}

/// Whether the registers that pieces are fetched into are there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Declared {
    /// They are declared where they are fetched.
    Here,
    /// They are.
    Before,
}

/// `text * factor`.
pub(super) fn times(text: &str, factor: u32) -> String {
    match factor {
        1 => text.to_owned(),
        _ => format!("{text} * {factor}"),
    }
}

/// `text + term`.
pub(super) fn sum(text: &str, term: u32) -> String {
    match term {
        0 => text.to_owned(),
        _ => format!("{text} + {term}"),
    }
}

/// `text / divisor`.
pub(super) fn quotient(text: &str, divisor: u32) -> String {
    match divisor {
        1 => text.to_owned(),
        _ => format!("{text} / {divisor}"),
    }
}

/// `text % divisor`.
pub(super) fn remainder(text: &str, divisor: u32) -> String {
    match divisor {
        1 => "0".to_owned(),
        _ => format!("{text} % {divisor}"),
    }
}
