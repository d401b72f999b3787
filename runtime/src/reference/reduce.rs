//! Reductions and scans: each result from a line of operand elements, in index order.
//!
//! Floats are accumulated in `f64`, sums with what their roundings lose, and rounded once to the dtype for each result. Integers wrap: `i64` arithmetic that wraps, cut to the
//! dtype's width at the end, gives what wrapping at that width at every step would.

use kiln_ir::{Axes, DType, Direction, Literal, ReduceKind, ScalarOp, ScanKind};
use ndarray::{ArcArray, Axis, IxDyn};

use super::tensor::Tensor;

/// How two elements become one.
#[derive(Clone, Copy)]
pub(super) enum Combine {
    Sum,
    Product,
    Largest,
    Smallest,
}

/// Reduces over `axes`, which stay with extent 1.
pub(super) fn reduce(x: &Tensor, kind: ReduceKind, axes: &Axes) -> Tensor {
    let shape: Vec<usize> =
        x.shape().iter().enumerate().map(|(axis, &extent)| if axes.contains(&axis) { 1 } else { extent }).collect();
    let (lines, length) = lines_over(x, axes);
    let lines = lines.as_slice().expect("lines are dense");
    let dtype = if kind.is_arg() { DType::I32 } else { x.dtype };
    let count = shape.iter().product();
    let line = |index: usize| &lines[index * length..(index + 1) * length];
    let results = (0..count).map(|index| {
        let elements = line(index).iter().map(|&bits| Literal::from_bits(x.dtype, bits));
        match kind {
            ReduceKind::Sum => fold(Combine::Sum, x.dtype, elements),
            ReduceKind::Prod => fold(Combine::Product, x.dtype, elements),
            ReduceKind::Max => fold(Combine::Largest, x.dtype, elements),
            ReduceKind::Min => fold(Combine::Smallest, x.dtype, elements),
            ReduceKind::ArgMax => arg(ScalarOp::Gt, elements),
            ReduceKind::ArgMin => arg(ScalarOp::Lt, elements),
        }
    });
    Tensor::from_elements(dtype, &shape, results)
}

/// The elements, dense, with the reduced axes innermost, and how many each result is made from.
fn lines_over(x: &Tensor, axes: &Axes) -> (ArcArray<u64, IxDyn>, usize) {
    let kept = (0..x.shape().len()).filter(|axis| !axes.contains(axis));
    let order: Vec<usize> = kept.chain(axes.iter().copied()).collect();
    let lines = x.bits.clone().permuted_axes(IxDyn(&order));
    let dense = if lines.is_standard_layout() { lines } else { lines.as_standard_layout().into_owned().into_shared() };
    (dense, axes.iter().map(|&axis| x.shape()[axis]).product())
}

fn fold(combine: Combine, dtype: DType, elements: impl Iterator<Item = Literal>) -> Literal {
    let mut running = Running::new(combine, dtype);
    elements.for_each(|element| running.take(element));
    running.value()
}

/// The index of the first NaN, or of the first element that none other beats.
pub(super) fn arg(beats: ScalarOp, elements: impl Iterator<Item = Literal>) -> Literal {
    let is_nan = |element: Literal| element.dtype().is_float() && element.to_f64().is_nan();
    let mut best: Option<(usize, Literal)> = None;
    for (index, element) in elements.enumerate() {
        let better = match best {
            None => true,
            Some((_, leader)) if is_nan(leader) => false,
            Some((_, leader)) => is_nan(element) || beats.eval(&[element, leader]) == Some(Literal::one(DType::Bool)),
        };
        if better {
            best = Some((index, element));
        }
    }
    let (index, _) = best.expect("an arg reduction over nothing was refused");
    Literal::from_i128(DType::I32, index as i128)
}

/// Running results along `axis`, inclusive, from the end that `direction` names.
pub(super) fn scan(x: &Tensor, kind: ScanKind, axis: usize, direction: Direction) -> Tensor {
    let combine = match kind {
        ScanKind::Sum => Combine::Sum,
        ScanKind::Prod => Combine::Product,
        ScanKind::Max => Combine::Largest,
        ScanKind::Min => Combine::Smallest,
    };
    let mut bits: ArcArray<u64, IxDyn> = x.bits.clone();
    for mut lane in bits.lanes_mut(Axis(axis)) {
        if direction == Direction::Reverse {
            lane.invert_axis(Axis(0));
        }
        let mut running = Running::new(combine, x.dtype);
        for place in &mut lane {
            running.take(Literal::from_bits(x.dtype, *place));
            *place = running.value().bits();
        }
    }
    Tensor::new(x.dtype, bits)
}

/// An accumulator. `value` may be asked for at any time; it rounds, the accumulator does not.
pub(super) struct Running {
    combine: Combine,
    dtype: DType,
    state: State,
}

enum State {
    /// Nothing yet, of what has no value for nothing: the largest and smallest number.
    Nothing,
    /// A value, and what its roundings have lost so far (of sums).
    Float(f64, f64),
    Int(i64),
}

impl Running {
    pub(super) fn new(combine: Combine, dtype: DType) -> Running {
        let start = match combine {
            Combine::Sum => Some(Literal::zero(dtype)),
            Combine::Product => Some(Literal::one(dtype)),
            // Of no bools: not any; all.
            Combine::Largest => (dtype == DType::Bool).then_some(Literal::zero(dtype)),
            Combine::Smallest => (dtype == DType::Bool).then_some(Literal::one(dtype)),
        };
        Running { combine, dtype, state: start.map_or(State::Nothing, State::from) }
    }

    pub(super) fn take(&mut self, element: Literal) {
        self.add_state(State::from(element));
    }

    fn add_state(&mut self, next: State) {
        self.state = match (&self.state, next) {
            (State::Float(x, lost), State::Float(y, _)) => {
                let result = self.combine.floats(*x, y);
                State::Float(result, lost + self.combine.lost(*x, y, result))
            }
            (State::Int(x), State::Int(y)) => State::Int(self.combine.ints(*x, y)),
            (_, first) => first,
        };
    }

    /// Takes a product that is not rounded before it is added. The operands are of one dtype.
    pub(super) fn take_product(&mut self, x: Literal, y: Literal) {
        let product = match (State::from(x), State::from(y)) {
            (State::Float(x, _), State::Float(y, _)) => State::Float(x * y, 0.0),
            (State::Int(x), State::Int(y)) => State::Int(x.wrapping_mul(y)),
            (x, _) => x,
        };
        self.add_state(product);
    }

    /// Whether it has no value.
    pub(super) fn is_nothing(&self) -> bool {
        matches!(self.state, State::Nothing)
    }

    /// The result so far, rounded.
    pub(super) fn value(&self) -> Literal {
        match self.state {
            State::Float(float, lost) if lost != 0.0 && float.is_finite() => {
                Literal::from_f64(self.dtype, float + lost)
            }
            State::Float(float, _) => Literal::from_f64(self.dtype, float),
            State::Int(int) => Literal::from_i128(self.dtype, i128::from(int)),
            State::Nothing => unreachable!("the largest of nothing was refused when the graph was built"),
        }
    }
}

impl From<Literal> for State {
    fn from(element: Literal) -> State {
        match element.dtype().is_float() {
            true => State::Float(element.to_f64(), 0.0),
            false => State::Int(element.to_i128() as i64),
        }
    }
}

impl Combine {
    /// What rounding took from a sum of two, exactly. Long sums of `f64` stay right to the last place by it.
    fn lost(self, x: f64, y: f64, sum: f64) -> f64 {
        match self {
            Combine::Sum if x.abs() >= y.abs() => (x - sum) + y,
            Combine::Sum => (y - sum) + x,
            Combine::Product | Combine::Largest | Combine::Smallest => 0.0,
        }
    }

    fn floats(self, x: f64, y: f64) -> f64 {
        match self {
            Combine::Sum => x + y,
            Combine::Product => x * y,
            Combine::Largest => by_the_table(ScalarOp::Max, x, y),
            Combine::Smallest => by_the_table(ScalarOp::Min, x, y),
        }
    }

    fn ints(self, x: i64, y: i64) -> i64 {
        match self {
            Combine::Sum => x.wrapping_add(y),
            Combine::Product => x.wrapping_mul(y),
            Combine::Largest => x.max(y),
            Combine::Smallest => x.min(y),
        }
    }
}

/// NaN if either is, and -0 below +0.
fn by_the_table(op: ScalarOp, x: f64, y: f64) -> f64 {
    let float = op.row().float.expect("max and min take floats");
    float(x, y, 0.0)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{apply, assert_floats, assert_ints, floats, ints, vector};
    use super::*;
    use kiln_ir::{Backend, GraphBuilder, HostData, Loc, Op, TensorType};

    const NAN: f64 = f64::NAN;
    const INF: f64 = f64::INFINITY;

    fn over(kind: ReduceKind, axis: usize, x: HostData) -> HostData {
        apply(Op::Reduce { kind, axes: Axes::one(axis) }, &[x])
    }

    fn running(kind: ScanKind, direction: Direction, x: HostData) -> HostData {
        apply(Op::Scan { kind, axis: 0, direction }, &[x])
    }

    #[test]
    fn nan_wins_a_maximum_and_a_minimum() {
        let v = || vector(&[1.0, NAN, 3.0, -2.0]);
        assert_floats(&over(ReduceKind::Max, 0, v()), &[NAN]);
        assert_floats(&over(ReduceKind::Min, 0, v()), &[NAN]);
        assert_floats(&over(ReduceKind::Max, 0, vector(&[-INF, NAN])), &[NAN]);
        assert_floats(&over(ReduceKind::Max, 0, vector(&[-INF, -INF])), &[-INF]);
        assert_floats(&over(ReduceKind::Max, 0, vector(&[-0.0, 0.0])), &[0.0]);
        assert_floats(&over(ReduceKind::Min, 0, vector(&[0.0, -0.0])), &[-0.0]);
    }

    #[test]
    fn an_arg_reduction_gives_the_first_nan_else_the_first_extreme() {
        let arg = |kind, values: &[f64]| over(kind, 0, vector(values)).element(0).to_i128();
        assert_eq!(arg(ReduceKind::ArgMax, &[NAN, 1.0, NAN]), 0);
        assert_eq!(arg(ReduceKind::ArgMax, &[1.0, NAN, 3.0]), 1);
        assert_eq!(arg(ReduceKind::ArgMin, &[1.0, NAN, NAN]), 1);
        assert_eq!(arg(ReduceKind::ArgMax, &[1.0, 3.0, 3.0, 2.0]), 1);
        assert_eq!(arg(ReduceKind::ArgMin, &[2.0, 0.0, 0.0]), 1);
        assert_eq!(arg(ReduceKind::ArgMax, &[-0.0, 0.0]), 0);
        for length in [4, 511, 512, 513, 1025] {
            let mut row = vec![0.0; length];
            (row[0], row[length - 1]) = (7.0, 7.0);
            assert_eq!(arg(ReduceKind::ArgMax, &row), 0);
        }
        assert_ints(
            &over(ReduceKind::ArgMax, 0, ints(DType::I64, &[2], &[i128::from(i64::MAX) - 1, i128::from(i64::MAX)])),
            &[1],
        );
    }

    #[test]
    fn an_arg_reduction_of_a_permuted_sum_sees_its_order() {
        let x = floats(DType::F32, &[2, 3], &[1.0, 5.0, 2.0, 9.0, 0.0, 4.0]);
        let s = over(ReduceKind::Sum, 1, apply(Op::Permute([1, 0].as_slice().into()), &[x]));
        assert_floats(&s, &[10.0, 5.0, 6.0]);
        assert_ints(&over(ReduceKind::ArgMax, 0, s), &[0]);
    }

    #[test]
    fn sums_run_over_any_axes_and_over_none() {
        let x = floats(DType::F32, &[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        assert_floats(&over(ReduceKind::Sum, 1, x.clone()), &[6.0, 15.0]);
        assert_floats(&over(ReduceKind::Sum, 0, x.clone()), &[5.0, 7.0, 9.0]);
        let sum = |axes: Axes| apply(Op::Reduce { kind: ReduceKind::Sum, axes }, std::slice::from_ref(&x));
        assert_floats(&sum(Axes::all(2)), &[21.0]);
        assert_floats(&sum(Axes::default()), &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let cube = ints(DType::I32, &[2, 2, 2], &[1, 2, 3, 4, 5, 6, 7, 8]);
        let outer = Op::Reduce { kind: ReduceKind::Sum, axes: Axes::from_indices([0, 2]) };
        assert_ints(&apply(outer, &[cube]), &[14, 22]);
    }

    #[test]
    fn nothing_sums_to_zero_and_multiplies_to_one() {
        let nothing = || floats(DType::F16, &[2, 0], &[]);
        assert_floats(&over(ReduceKind::Sum, 1, nothing()), &[0.0, 0.0]);
        assert_floats(&over(ReduceKind::Prod, 1, nothing()), &[1.0, 1.0]);
        assert_floats(&over(ReduceKind::Max, 0, nothing()), &[]);
        let no_bools = || ints(DType::Bool, &[0], &[]);
        assert_ints(&over(ReduceKind::Max, 0, no_bools()), &[0]);
        assert_ints(&over(ReduceKind::Min, 0, no_bools()), &[1]);
    }

    #[test]
    fn bools_reduce_to_any_and_all() {
        let x = || ints(DType::Bool, &[2, 2], &[0, 1, 1, 1]);
        assert_ints(&over(ReduceKind::Max, 1, x()), &[1, 1]);
        assert_ints(&over(ReduceKind::Min, 1, x()), &[0, 1]);
    }

    #[test]
    fn narrow_floats_are_accumulated_wide() {
        assert_floats(&over(ReduceKind::Sum, 0, floats(DType::F16, &[4096], &[1.0; 4096])), &[4096.0]);
        assert_floats(&over(ReduceKind::Sum, 0, floats(DType::BF16, &[512], &[1.0; 512])), &[512.0]);
        assert_floats(&over(ReduceKind::Sum, 0, floats(DType::F16, &[2], &[65504.0; 2])), &[INF]);
        let x = floats(DType::F16, &[3], &[65504.0, 65504.0, -65504.0]);
        assert_floats(&over(ReduceKind::Sum, 0, x), &[65504.0]);
    }

    #[test]
    fn two_to_the_25_ones_are_all_counted() {
        let mut b = GraphBuilder::new("count");
        let ty = TensorType::new(DType::F32, [1 << 25], Backend::NdArray);
        let ones = b.full(&ty, Literal::one(DType::F32), Loc::Unknown).unwrap();
        let sum = b.reduce(ReduceKind::Sum, Axes::one(0), ones, Loc::Unknown).unwrap();
        let graph = b.finish([("sum", sum)]).unwrap();
        assert_floats(&super::super::evaluate(&graph, &[]).unwrap()[0], &[33_554_432.0]);
    }

    #[test]
    fn long_sums_of_f64_are_right_to_the_last_place() {
        let tenths = floats(DType::F64, &[1000], &[0.1; 1000]);
        assert_floats(&over(ReduceKind::Sum, 0, tenths), &[100.0]);
        let cancelling = floats(DType::F64, &[3], &[1e100, 1.0, -1e100]);
        assert_floats(&over(ReduceKind::Sum, 0, cancelling), &[1.0]);
    }

    #[test]
    fn integer_reductions_wrap_at_their_width() {
        assert_ints(&over(ReduceKind::Sum, 0, ints(DType::U8, &[300], &[1; 300])), &[44]);
        assert_ints(&over(ReduceKind::Sum, 0, ints(DType::I32, &[300], &[1; 300])), &[300]);
        assert_ints(&over(ReduceKind::Prod, 0, ints(DType::I32, &[2], &[65536; 2])), &[0]);
        let multiples = [0, 1_500_000_000, 3_000_000_000, 4_500_000_000];
        assert_ints(&over(ReduceKind::Sum, 0, ints(DType::I64, &[4], &multiples)), &[9_000_000_000]);
        let max = i128::from(i64::MAX);
        assert_ints(&over(ReduceKind::Sum, 0, ints(DType::I64, &[2], &[max; 2])), &[-2]);
        assert_ints(&over(ReduceKind::Prod, 0, ints(DType::I64, &[2], &[max; 2])), &[1]);
        assert_ints(&over(ReduceKind::Max, 0, ints(DType::U32, &[2], &[1, u32::MAX.into()])), &[u32::MAX.into()]);
    }

    #[test]
    fn running_sums_keep_infinity_and_go_both_ways() {
        let forward = |x| running(ScanKind::Sum, Direction::Forward, x);
        assert_floats(&forward(vector(&[INF; 4])), &[INF; 4]);
        assert_floats(&forward(vector(&[])), &[]);
        for length in [1, 127, 128, 129, 1025] {
            let counting: Vec<f64> = (1..=length).map(f64::from).collect();
            let last = f64::from(length * (length + 1) / 2);
            let ahead = forward(vector(&counting));
            assert_eq!(ahead.element(length as usize - 1).to_f64(), last);
            let back = running(ScanKind::Sum, Direction::Reverse, vector(&counting));
            assert_eq!(
                (back.element(0).to_f64(), back.element(length as usize - 1).to_f64()),
                (last, f64::from(length))
            );
        }
        assert_ints(&forward(ints(DType::I8, &[3], &[100, 100, 1])), &[100, -56, -55]);
    }

    #[test]
    fn a_running_sum_goes_along_a_middle_axis() {
        let x = floats(DType::F32, &[2, 3, 4, 5], &[1.0; 120]);
        let sums = apply(Op::Scan { kind: ScanKind::Sum, axis: 1, direction: Direction::Forward }, &[x]);
        for index in 0..120 {
            assert_eq!(sums.element(index).to_f64(), (index / 20 % 3 + 1) as f64);
        }
    }

    #[test]
    fn a_long_running_sum_does_not_drift() {
        let sums = running(ScanKind::Sum, Direction::Forward, floats(DType::F32, &[72_000], &[0.01; 72_000]));
        assert!((sums.element(71_999).to_f64() - 720.0).abs() < 720.0 * 1e-6);
    }

    #[test]
    fn running_extremes_keep_nan_from_its_place_on() {
        let x = || vector(&[1.0, NAN, 3.0]);
        assert_floats(&running(ScanKind::Max, Direction::Forward, x()), &[1.0, NAN, NAN]);
        assert_floats(&running(ScanKind::Min, Direction::Reverse, x()), &[NAN, NAN, 3.0]);
        let product = running(ScanKind::Prod, Direction::Forward, vector(&[2.0, 3.0, -1.0]));
        assert_floats(&product, &[2.0, 6.0, -6.0]);
    }
}
