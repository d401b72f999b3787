//! Reading one op: its name and the attributes between the name and the operands.
//!
//! Some ops take their dtype or backend from the declared type, which stands at the end of the line: they are kept as a [`Draft`] until
//! that is read. Names that take attributes are listed in [`read`] alone; elementwise ops come from their table.

use std::sync::Arc;

use smallvec::SmallVec;

use super::cursor::{Cursor, brief};
use super::lex::{Kind, Token};
use crate::{
    Attribute, Axes, Code, Custom, Diagnostic, Direction, HostData, Literal, Loc, Op, Precision, ReduceKind, ScanKind,
    ScatterKind, TensorType, op_rows,
};

/// An op that may still lack what its declared type says.
pub(super) enum Draft<'t> {
    Ready(Op),
    Literal(Token<'t>),
    Elements(Vec<Token<'t>>),
    Blob(Token<'t>),
    Iota { axis: usize },
    Pad { low: SmallVec<[usize; 4]>, high: SmallVec<[usize; 4]>, value: Token<'t> },
    Custom { name: Arc<str>, attributes: Vec<(Arc<str>, Attribute)> },
}

/// Reads an op's name and attributes.
pub(super) fn read<'t>(cursor: &mut Cursor<'t>) -> Result<Draft<'t>, Diagnostic> {
    let word = cursor.word("the name of an op")?;
    let op = match word.text {
        "input" => return Err(undeclared_input(cursor, word)),
        "literal" => return Ok(Draft::Literal(cursor.literal()?)),
        "constant" => return constant(cursor),
        "iota" => return Ok(Draft::Iota { axis: setting(cursor, "axis", "an axis")? }),
        "random_bits" => {
            Op::RandomBits { shape: cursor.shape()?, stream: setting(cursor, "stream", "a stream's number")? }
        }
        "cast" => Op::Cast(cursor.dtype()?),
        "bitcast" => Op::Bitcast(cursor.dtype()?),
        "select" => Op::Select,
        "reshape" => Op::Reshape(cursor.shape()?),
        "permute" => Op::Permute(cursor.indices("an axis")?),
        "broadcast" => Op::Broadcast(cursor.shape()?),
        "slice" => slice(cursor)?,
        "pad" => return pad(cursor),
        "concat" => Op::Concat { axis: setting(cursor, "axis", "an axis")? },
        "matmul" => Op::MatMul { precision: precision(cursor) },
        "gather" => {
            let (axis, batch) = indexed(cursor)?;
            Op::Gather { axis, batch }
        }
        "transfer" => Op::Transfer(cursor.backend()?),
        "stop_gradient" => Op::StopGradient,
        "mark" => Op::Mark,
        "barrier" => Op::Barrier,
        "custom" => return custom(cursor),
        name => dotted_or_elementwise(cursor, name, word.loc)?,
    };
    Ok(Draft::Ready(op))
}

fn dotted_or_elementwise(cursor: &mut Cursor<'_>, name: &str, loc: Loc) -> Result<Op, Diagnostic> {
    if let Some(kind) = name.strip_prefix("reduce.")
        && let Some(kind) = ReduceKind::ALL.into_iter().find(|known| known.name() == kind)
    {
        return Ok(Op::Reduce { kind, axes: axes(cursor)? });
    }
    if let Some(kind) = name.strip_prefix("scan.")
        && let Some(kind) = ScanKind::ALL.into_iter().find(|known| known.name() == kind)
    {
        let axis = setting(cursor, "axis", "an axis")?;
        let direction = if cursor.take_word("reverse") { Direction::Reverse } else { Direction::Forward };
        return Ok(Op::Scan { kind, axis, direction });
    }
    if let Some(kind) = name.strip_prefix("scatter.")
        && let Some(kind) = ScatterKind::ALL.into_iter().find(|known| known.name() == kind)
    {
        let (axis, batch) = indexed(cursor)?;
        return Ok(Op::Scatter { kind, axis, batch });
    }
    match name.parse() {
        Ok(scalar) => Ok(Op::Scalar(scalar)),
        Err(()) => Err(unknown_op(name, loc)),
    }
}

fn unknown_op(name: &str, loc: Loc) -> Diagnostic {
    let diagnostic = Diagnostic::new(Code::K0802, format!("unknown op `{}`", brief(name))).at(loc).label("not an op");
    match nearest(name) {
        Some(known) => diagnostic.help(format!("did you mean `{known}`?")),
        None => diagnostic.help("`kiln ops` lists all ops"),
    }
}

/// The op whose name differs in the fewest letters, at most two.
fn nearest(name: &str) -> Option<String> {
    let (distance, _, nearest) = op_rows()
        .iter()
        .map(|row| row.name().into_owned())
        .map(|known| (known.len().abs_diff(name.len()), known))
        .filter(|(difference, _)| *difference <= 2)
        .map(|(difference, known)| (edit_distance(known.as_bytes(), name.as_bytes()), difference, known))
        .min()?;
    (distance <= 2 && distance < nearest.len()).then_some(nearest)
}

/// Levenshtein's distance, row by row.
fn edit_distance(a: &[u8], b: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

fn undeclared_input(cursor: &mut Cursor<'_>, word: Token<'_>) -> Diagnostic {
    let name = cursor.name("the input's name").unwrap_or_default();
    Diagnostic::new(Code::K0108, format!("graph reads undeclared input tensor {name}"))
        .at(word.loc)
        .label("inputs are declared in the graph's first line")
}

fn precision(cursor: &mut Cursor<'_>) -> Precision {
    if cursor.take_word("tf32") {
        Precision::Tf32
    } else if cursor.take_word("wide") {
        Precision::Wide
    } else {
        Precision::Full
    }
}

/// `name=number`.
fn setting<T: std::str::FromStr>(cursor: &mut Cursor<'_>, name: &str, expected: &str) -> Result<T, Diagnostic> {
    if !cursor.take_word(name) {
        return Err(cursor.unexpected(&format!("`{name}=`")));
    }
    cursor.mark('=')?;
    cursor.integer(expected)
}

/// `name=[numbers]`.
fn list_setting<T: std::str::FromStr>(cursor: &mut Cursor<'_>, name: &str) -> Result<Vec<T>, Diagnostic> {
    if !cursor.take_word(name) {
        return Err(cursor.unexpected(&format!("`{name}=`")));
    }
    cursor.mark('=')?;
    cursor.list(|cursor| cursor.integer("an integer"))
}

fn axes(cursor: &mut Cursor<'_>) -> Result<Axes, Diagnostic> {
    let loc = cursor.loc();
    let given = cursor.indices("an axis")?;
    let axes = Axes::from_indices(given.iter().copied());
    if axes.len() == given.len() {
        return Ok(axes);
    }
    let message = format!("an axis is given twice in {given:?}");
    Err(Diagnostic::new(Code::K0304, message).at(loc).label("each axis once"))
}

/// `axis=1 batch=1`; no batch axes where they are left out.
fn indexed(cursor: &mut Cursor<'_>) -> Result<(usize, usize), Diagnostic> {
    let axis = setting(cursor, "axis", "an axis")?;
    let batch = if cursor.is_word("batch") { setting(cursor, "batch", "a number of axes")? } else { 0 };
    Ok((axis, batch))
}

fn slice(cursor: &mut Cursor<'_>) -> Result<Op, Diagnostic> {
    let starts: SmallVec<[usize; 4]> = list_setting(cursor, "starts")?.into();
    let sizes = list_setting::<usize>(cursor, "sizes")?.into();
    let steps = if cursor.is_word("steps") {
        list_setting(cursor, "steps")?.into()
    } else {
        SmallVec::from_elem(1, starts.len())
    };
    Ok(Op::Slice { starts, sizes, steps })
}

fn pad<'t>(cursor: &mut Cursor<'t>) -> Result<Draft<'t>, Diagnostic> {
    let low = list_setting(cursor, "low")?.into();
    let high = list_setting(cursor, "high")?.into();
    cursor.keyword("value")?;
    cursor.mark('=')?;
    Ok(Draft::Pad { low, high, value: cursor.literal()? })
}

fn constant<'t>(cursor: &mut Cursor<'t>) -> Result<Draft<'t>, Diagnostic> {
    match cursor.peek().kind {
        Kind::Hash => Ok(Draft::Blob(cursor.next())),
        Kind::Mark('[') => Ok(Draft::Elements(cursor.list(Cursor::literal)?)),
        Kind::Value
        | Kind::Word
        | Kind::Number
        | Kind::Text
        | Kind::OpenText
        | Kind::Mark(_)
        | Kind::Unknown
        | Kind::End => Err(cursor.unexpected("elements in `[ ]` or the `#` hash of the data")),
    }
}

fn custom<'t>(cursor: &mut Cursor<'t>) -> Result<Draft<'t>, Diagnostic> {
    let name = cursor.name("the custom op's name")?.into();
    let mut attributes = Vec::new();
    if cursor.take_mark('{') && !cursor.take_mark('}') {
        loop {
            let name = cursor.name("an attribute's name")?;
            cursor.mark(':')?;
            attributes.push((name.into(), attribute(cursor)?));
            if cursor.take_mark('}') {
                break;
            }
            if !cursor.take_mark(',') {
                return Err(cursor.unexpected("`,` or `}`"));
            }
        }
    }
    Ok(Draft::Custom { name, attributes })
}

fn attribute(cursor: &mut Cursor<'_>) -> Result<Attribute, Diagnostic> {
    match cursor.peek().kind {
        Kind::Text => Ok(Attribute::Text(cursor.name("a text")?.into())),
        Kind::Mark('[') => Ok(Attribute::Ints(cursor.list(|cursor| cursor.integer("an integer"))?)),
        Kind::Word => {
            let dtype = cursor.dtype()?;
            let token = cursor.literal()?;
            Ok(Attribute::Number(Literal::parse(dtype, token.text).map_err(|diagnostic| diagnostic.at(token.loc))?))
        }
        Kind::Value | Kind::Number | Kind::OpenText | Kind::Hash | Kind::Mark(_) | Kind::Unknown | Kind::End => {
            Err(cursor.unexpected("a number with its dtype (`f32 0.5`), integers in `[ ]`, or a text"))
        }
    }
}

impl Draft<'_> {
    /// The op, now that the declared types are known. They stand at `loc`.
    pub(super) fn finish(
        self,
        types: &[TensorType],
        loc: Loc,
        blob: &dyn Fn(u64) -> Option<HostData>,
    ) -> Result<Op, Diagnostic> {
        let one = |name: &str| match types {
            [ty] => Ok(ty),
            types => {
                let message = format!("`{name}` has one result, {} types are declared", types.len());
                Err(Diagnostic::new(Code::K0803, message).at(loc).label("one type here"))
            }
        };
        let number = |ty: &TensorType, token: Token<'_>| {
            Literal::parse(ty.dtype, token.text).map_err(|diagnostic| diagnostic.at(token.loc))
        };
        match self {
            Draft::Ready(op) => Ok(op),
            Draft::Literal(token) => {
                let ty = one("literal")?;
                Ok(Op::Literal { value: number(ty, token)?, backend: ty.backend })
            }
            Draft::Elements(tokens) => {
                let ty = one("constant")?;
                let elements: Vec<Literal> =
                    tokens.iter().map(|&token| number(ty, token)).collect::<Result<_, Diagnostic>>()?;
                let data = HostData::from_literals(ty.dtype, &ty.shape, &elements).ok_or_else(|| {
                    let message = format!("constant of {} elements is declared {ty}", elements.len());
                    Diagnostic::new(Code::K0806, message).at(loc).label("this type has another number of elements")
                })?;
                Ok(Op::Constant { data, backend: ty.backend })
            }
            Draft::Blob(token) => {
                let ty = one("constant")?;
                Ok(Op::Constant { data: find_blob(token, ty, blob)?, backend: ty.backend })
            }
            Draft::Iota { axis } => Ok(Op::Iota { ty: one("iota")?.clone(), axis }),
            Draft::Pad { low, high, value } => Ok(Op::Pad { low, high, value: number(one("pad")?, value)? }),
            Draft::Custom { name, attributes } => {
                Ok(Op::Custom(Custom { name, attributes, results: types.into(), body: None }))
            }
        }
    }
}

fn find_blob(
    token: Token<'_>,
    ty: &TensorType,
    blob: &dyn Fn(u64) -> Option<HostData>,
) -> Result<HostData, Diagnostic> {
    let digits = &token.text[1..];
    let hash = u64::from_str_radix(digits, 16).ok().filter(|_| digits.len() == 16).ok_or_else(|| {
        Diagnostic::new(Code::K0801, format!("expected the 16 hexadecimal digits of a hash, found `{}`", brief(digits)))
            .at(token.loc)
            .label("as in `#0123456789abcdef`")
    })?;
    let wrong = |message: String| Diagnostic::new(Code::K0806, message).at(token.loc).label("data of this constant");
    match blob(hash) {
        None => Err(wrong(format!("data of constant #{hash:016x} is missing"))
            .help("large constants lie beside the text; load both, or write the elements in `[ ]`")),
        Some(data) if data.content_hash() != hash => {
            let found = data.content_hash();
            Err(wrong(format!("data of constant #{hash:016x} is different: its hash is #{found:016x}")))
        }
        Some(data) if data.dtype() != ty.dtype || *data.shape() != ty.shape => {
            let found = format!("{}{}", data.dtype(), data.shape());
            Err(wrong(format!("data of constant #{hash:016x} is {found}, declared {}{}", ty.dtype, ty.shape)))
        }
        Some(data) => Ok(data),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_in_a_name_is_recognised() {
        assert_eq!(nearest("reduce.mx").as_deref(), Some("reduce.max"));
        assert_eq!(nearest("mattmul").as_deref(), Some("matmul"));
        assert_eq!(nearest("convolution"), None);
    }
}
