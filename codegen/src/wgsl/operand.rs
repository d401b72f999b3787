//! Operands of products as functions of their text: four elements at a place, zeros beyond the matrix.

use kiln_ir::gpu::{Along, Fill};
use kiln_ir::kernel::{Block, Instruction, MatrixOperand, Operation, Reg};
use kiln_ir::{DType, Diagnostic};

use super::block::{Scope, block};
use super::module::Module;
use super::ranges::Ranges;
use super::space::Point;
use super::types::Held;
use super::writer::Writer;

/// Which axes of a matrix may be left when it is fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Guards {
    /// The row may be one that the matrix does not have.
    pub(super) rows: bool,
    /// The column may be.
    pub(super) columns: bool,
}

/// Four neighbouring elements of an operand.
#[derive(Clone, Debug)]
pub(super) struct Fetch<'a> {
    /// The function's name.
    pub(super) name: &'a str,
    /// What makes an element, over the batch, rows, columns.
    pub(super) operand: &'a MatrixOperand,
    /// The dtype of an element.
    pub(super) dtype: DType,
    /// How sums hold it.
    pub(super) held: Held,
    /// Extents of the batch, rows and columns.
    pub(super) extents: &'a [usize],
    /// 0 where the four lie along rows, one below the other; 1 along columns.
    pub(super) axis: usize,
    /// How many are made at once.
    pub(super) width: u32,
    /// Where zeros may have to be given.
    pub(super) guards: Guards,
}

/// The axis of an operand along which four elements lie: 0 rows, 1 columns. `kept` is the axis that the result keeps.
pub(super) fn axis_of(fill: Fill, kept: usize) -> usize {
    match fill.along {
        Along::Kept => kept,
        Along::Summed => 1 - kept,
    }
}

impl Fetch<'_> {
    /// The neighbours for which the block is printed, as [`Module::plan_vectors`] wants them.
    pub(super) fn lanes(&self) -> Option<super::space::Lanes> {
        let axis = self.extents.len() - 2 + self.axis;
        (self.width == 4).then_some(super::space::Lanes { axis, width: 4 })
    }

    /// Prints the function: of the coordinates of the batch, a row and a column.
    pub(super) fn print(&self, module: &mut Module<'_>) -> Result<(), Diagnostic> {
        let batch = self.extents.len() - 2;
        let mut axes: Vec<String> = (0..batch).map(|axis| format!("p{axis}")).collect();
        axes.extend(["row".to_owned(), "column".to_owned()]);
        let parameters: Vec<String> = axes.iter().map(|axis| format!("{axis}: i32")).collect();
        let parameters = parameters.join(", ");
        let four = self.held.wide(4);
        let point = Point::new(axes.clone(), self.extents).with_lanes(batch + self.axis, self.width);
        let (name, ty) = if self.width == 4 {
            (self.name.to_owned(), four.clone())
        } else {
            (format!("{}_one", self.name), self.held.name().to_owned())
        };
        let mut w = Writer::body();
        if let Some(outside) = self.outside() {
            w.open(format!("if {outside}"));
            w.line(format!("return {ty}();"));
            w.close();
        }
        let made = self.block();
        let mut scope = Scope::new(Ranges::of([(&made.block, self.extents, &[][..])].into_iter(), &[made.value]));
        block(module, &mut scope, &mut w, &made.block, &point)?;
        w.line(format!("return {};", scope.value(made.value)?.held_as(self.held).splat(self.width)));
        module.function(format!("fn {name}({parameters}) -> {ty} {{\n{}}}\n", w.text()));
        if self.width == 1 {
            let element = |step: usize| {
                let mut at = axes.clone();
                if step > 0 {
                    let moved = &mut at[batch + self.axis];
                    moved.push_str(&format!(" + {step}"));
                }
                format!("{name}({})", at.join(", "))
            };
            let elements: Vec<String> = (0..4).map(element).collect();
            let text = format!(
                "fn {}({parameters}) -> {four} {{\n    return {four}({});\n}}\n",
                self.name,
                elements.join(", ")
            );
            module.function(text);
        }
        Ok(())
    }

    /// The block, ending in an element as sums hold it.
    fn block(&self) -> MatrixOperand {
        if Held::of(self.dtype) == self.held {
            return self.operand.clone();
        }
        let mut made = self.operand.clone();
        let value = fresh(&[&made.block], 0);
        let dtype = dtype_of(self.held);
        made.block.instructions.push(Instruction { result: value, dtype, operation: Operation::Cast(made.value) });
        MatrixOperand { value, ..made }
    }

    fn outside(&self) -> Option<String> {
        let batch = self.extents.len() - 2;
        let rows = self.guards.rows.then(|| format!("row >= {}", self.extents[batch]));
        let columns = self.guards.columns.then(|| format!("column >= {}", self.extents[batch + 1]));
        let tests: Vec<String> = rows.into_iter().chain(columns).collect();
        (!tests.is_empty()).then(|| tests.join(" || "))
    }
}

/// The dtype whose numbers are held so and need no rounding.
pub(super) fn dtype_of(held: Held) -> DType {
    match held {
        Held::F32 => DType::F32,
        Held::F64 => DType::F64,
        Held::I32 => DType::I32,
        Held::U32 => DType::U32,
        Held::I64 => DType::I64,
        Held::Bool => DType::Bool,
    }
}

/// The `number`th register that none of these blocks defines or reads.
pub(super) fn fresh(blocks: &[&Block], number: u32) -> Reg {
    let mut most = 0;
    for block in blocks {
        for instruction in &block.instructions {
            most = most.max(instruction.result.0);
            super::ranges::operands(&instruction.operation, &mut |reg| most = most.max(reg.0));
        }
        most = block.stores.iter().map(|store| store.value.0).max().unwrap_or(0).max(most);
    }
    Reg(most + 1 + number)
}
