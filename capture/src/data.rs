//! Numbers written in Rust: data that is baked into a graph, and weak scalars that take the dtype of the tensor beside them.

use kiln_ir::{Code, DType, Diagnostic, HostData, Kind, Literal, Op, Shape};

/// Data that [`Scope::constant`](crate::Scope::constant) takes.
pub trait IntoData {
    /// The data. K0303 where rows differ in length.
    fn into_data(self) -> Result<HostData, Diagnostic>;
}

impl IntoData for HostData {
    fn into_data(self) -> Result<HostData, Diagnostic> {
        Ok(self)
    }
}

impl IntoData for &HostData {
    fn into_data(self) -> Result<HostData, Diagnostic> {
        Ok(self.clone())
    }
}

/// Numbers, alone or nested in arrays and vectors, one axis a level.
pub trait Nested {
    /// Element type of the numbers.
    const DTYPE: DType;

    /// The shape, as the first element of each level gives it.
    fn shape(&self, shape: &mut Vec<usize>);

    /// Appends the numbers in row-major order. False where a level's length differs from `shape`.
    fn append(&self, shape: &[usize], elements: &mut Vec<Literal>) -> bool;
}

macro_rules! numbers {
    ($($number:ty, $dtype:ident, $literal:expr;)*) => {$(
        impl Nested for $number {
            const DTYPE: DType = DType::$dtype;

            fn shape(&self, _shape: &mut Vec<usize>) {}

            fn append(&self, shape: &[usize], elements: &mut Vec<Literal>) -> bool {
                let literal: fn($number) -> Literal = $literal;
                elements.push(literal(*self));
                shape.is_empty()
            }
        }

        impl IntoData for $number {
            fn into_data(self) -> Result<HostData, Diagnostic> {
                data(&self)
            }
        }
    )*};
}

// f64 is left out so that an unsuffixed 1.0 is an f32, as everywhere in Kiln.
numbers! {
    f32, F32, |x| Literal::from_f64(DType::F32, f64::from(x));
    i8, I8, |x| Literal::from_i128(DType::I8, i128::from(x));
    u8, U8, |x| Literal::from_i128(DType::U8, i128::from(x));
    i32, I32, |x| Literal::from_i128(DType::I32, i128::from(x));
    u32, U32, |x| Literal::from_i128(DType::U32, i128::from(x));
    i64, I64, |x| Literal::from_i128(DType::I64, i128::from(x));
    bool, Bool, |x| Literal::from_i128(DType::Bool, i128::from(x));
}

fn shape_of_list<T: Nested>(list: &[T], shape: &mut Vec<usize>) {
    shape.push(list.len());
    if let Some(first) = list.first() {
        first.shape(shape);
    }
}

fn append_list<T: Nested>(list: &[T], shape: &[usize], elements: &mut Vec<Literal>) -> bool {
    shape.split_first().is_some_and(|(&extent, rest)| {
        extent == list.len() && list.iter().all(|element| element.append(rest, elements))
    })
}

macro_rules! lists {
    ($([$($generics:tt)*] $list:ty;)*) => {$(
        impl<T: Nested, $($generics)*> Nested for $list {
            const DTYPE: DType = T::DTYPE;

            fn shape(&self, shape: &mut Vec<usize>) {
                shape_of_list(&self[..], shape);
            }

            fn append(&self, shape: &[usize], elements: &mut Vec<Literal>) -> bool {
                append_list(&self[..], shape, elements)
            }
        }

        impl<T: Nested, $($generics)*> IntoData for $list {
            fn into_data(self) -> Result<HostData, Diagnostic> {
                data(&self)
            }
        }
    )*};
}

lists! {
    [const N: usize] [T; N];
    [const N: usize] &[T; N];
    [] &[T];
    [] Vec<T>;
    [] &Vec<T>;
}

fn data<T: Nested>(numbers: &T) -> Result<HostData, Diagnostic> {
    let (mut shape, mut elements) = (Vec::new(), Vec::new());
    numbers.shape(&mut shape);
    if !numbers.append(&shape, &mut elements) {
        let message = "the rows of a constant differ in length";
        return Err(Diagnostic::new(Code::K0303, message).in_op("constant").help("pad the shorter rows"));
    }
    Ok(HostData::from_literals(T::DTYPE, Shape::from(shape), &elements).expect("one element for each place"))
}

/// The data of an op that has it: a constant or a literal.
pub(crate) fn data_of(op: &Op) -> Option<HostData> {
    if let Op::Constant { data, .. } = op {
        return Some(data.clone());
    }
    if let Op::Literal { value, .. } = op {
        return HostData::from_literals(value.dtype(), [], &[*value]);
    }
    None
}

/// A number written in Rust beside a tensor. It is weak: it takes the tensor's dtype.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scalar {
    /// Written as a float.
    Float(f64),
    /// Written as an integer.
    Int(i64),
    /// A truth value.
    Bool(bool),
}

impl Scalar {
    /// The number in a dtype. K0406 where it does not fit: a fraction or an integer out of range for an integer dtype, a finite number
    /// beyond the largest of a float dtype, a number for `bool` or the reverse.
    pub(crate) fn literal(self, dtype: DType) -> Result<Literal, Diagnostic> {
        let misfit = |help: String| {
            let message = format!("{} does not fit {dtype}", self.text());
            Err(Diagnostic::new(Code::K0406, message)
                .label(format!("a number beside a tensor takes the tensor's dtype, {dtype}"))
                .help(help))
        };
        let cast = |wanted: &str| misfit(format!("cast the tensor first: `.cast(DType::{wanted})`"));
        match (self, dtype.kind()) {
            (Scalar::Bool(value), Kind::Bool) => Ok(Literal::from_i128(dtype, i128::from(value))),
            (Scalar::Bool(_), Kind::Float | Kind::Int) => cast("Bool"),
            (Scalar::Int(_), Kind::Bool) => cast("I32"),
            (Scalar::Float(_), Kind::Bool) => cast("F32"),
            (Scalar::Int(value), Kind::Int) => integer(dtype, i128::from(value)).map_or_else(|| cast("I64"), Ok),
            (Scalar::Float(value), Kind::Int) => {
                let whole = value.fract() == 0.0 && value.abs() < 1e30;
                let fitting = if whole { integer(dtype, value as i128) } else { None };
                fitting.map_or_else(|| cast("F32"), Ok)
            }
            (Scalar::Int(value), Kind::Float) => float(dtype, value as f64).map_or_else(|| cast("F32"), Ok),
            (Scalar::Float(value), Kind::Float) => match float(dtype, value) {
                Some(literal) => Ok(literal),
                None => misfit("write `f32::INFINITY` where an infinity is meant".to_owned()),
            },
        }
    }

    /// The dtype of the number where no tensor stands beside it.
    pub(crate) fn default_dtype(self) -> DType {
        match self {
            Scalar::Float(_) => DType::F32,
            Scalar::Int(_) => DType::I32,
            Scalar::Bool(_) => DType::Bool,
        }
    }

    fn text(self) -> String {
        match self {
            Scalar::Float(value) => format!("{value:?}"),
            Scalar::Int(value) => value.to_string(),
            Scalar::Bool(value) => value.to_string(),
        }
    }
}

fn integer(dtype: DType, value: i128) -> Option<Literal> {
    let (low, high) = dtype.int_range()?;
    (low..=high).contains(&value).then(|| Literal::from_i128(dtype, value))
}

fn float(dtype: DType, value: f64) -> Option<Literal> {
    let literal = Literal::from_f64(dtype, value);
    (literal.to_f64().is_finite() || !value.is_finite()).then_some(literal)
}

macro_rules! scalars {
    ($($number:ty => $variant:ident($inner:ty);)*) => {$(
        impl From<$number> for Scalar {
            fn from(value: $number) -> Scalar {
                Scalar::$variant(<$inner>::from(value))
            }
        }
    )*};
}

scalars! {
    f32 => Float(f64);
    f64 => Float(f64);
    i8 => Int(i64);
    u8 => Int(i64);
    i32 => Int(i64);
    u32 => Int(i64);
    i64 => Int(i64);
    bool => Bool(bool);
}
