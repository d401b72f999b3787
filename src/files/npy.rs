//! `.npy`, numpy's file of one array: read and written to the format's specification (versions 1 to 3).
//!
//! What numpy has no dtype for, `bf16`, is written as numpy writes it with the ml_dtypes package: two opaque bytes (`|V2`) an element.

use std::fs;
use std::path::Path;

use kiln_ir::{Code, DType, Diagnostic, HostData, Shape};

const MAGIC: &[u8] = b"\x93NUMPY";

/// Reads an array. Big-endian and column-major files are turned into the order of memory.
///
/// # Errors
///
/// K1001 where the file cannot be read, K1002 where it is no `.npy`, or of a dtype that Kiln does not have.
///
/// ```
/// use kiln::files::{read_npy, write_npy};
/// use kiln::ir::{DType, HostData};
/// let path = std::env::temp_dir().join(format!("kiln-npy-{}.npy", std::process::id()));
/// let data = HostData::new(DType::I32, [2, 1], [1, 0, 0, 0, 255, 255, 255, 255]).unwrap();
/// write_npy(&path, &data)?;
/// assert_eq!(read_npy(&path)?, data);
/// # std::fs::remove_file(&path).unwrap();
/// # Ok::<(), kiln_ir::Diagnostic>(())
/// ```
pub fn read_npy(path: &Path) -> Result<HostData, Diagnostic> {
    let bytes = fs::read(path)
        .map_err(|error| Diagnostic::new(Code::K1001, format!("cannot read {}: {error}", path.display())))?;
    decode(&bytes).map_err(|why| Diagnostic::new(Code::K1002, format!("{}: {why}", path.display())))
}

/// Writes an array, row-major and little-endian. K1001 where the file cannot be written.
pub fn write_npy(path: &Path, data: &HostData) -> Result<(), Diagnostic> {
    fs::write(path, encode(data))
        .map_err(|error| Diagnostic::new(Code::K1001, format!("cannot write {}: {error}", path.display())))
}

fn encode(data: &HostData) -> Vec<u8> {
    let extents: Vec<String> = data.shape().iter().map(usize::to_string).collect();
    let comma = if extents.len() == 1 { "," } else { "" };
    let shape = format!("({}{comma})", extents.join(", "));
    let mut header = format!("{{'descr': '{}', 'fortran_order': False, 'shape': {shape}, }}", code(data.dtype()));
    // The elements begin at a multiple of 64, after the magic, two bytes of version and a length of two or four bytes.
    let long = header.len() + 64 > usize::from(u16::MAX);
    let before = MAGIC.len() + 2 + if long { 4 } else { 2 };
    let padding = (before + header.len() + 1).next_multiple_of(64) - (before + header.len() + 1);
    header.extend(std::iter::repeat_n(' ', padding));
    header.push('\n');
    let mut bytes = MAGIC.to_vec();
    if long {
        bytes.extend([2, 0]);
        bytes.extend((header.len() as u32).to_le_bytes());
    } else {
        bytes.extend([1, 0]);
        bytes.extend((header.len() as u16).to_le_bytes());
    }
    bytes.extend(header.as_bytes());
    bytes.extend(data.bytes());
    bytes
}

fn decode(bytes: &[u8]) -> Result<HostData, String> {
    let rest = bytes.strip_prefix(MAGIC).ok_or("is no .npy file")?;
    let (length, rest) = match rest {
        [1, _, a, b, rest @ ..] => (usize::from(u16::from_le_bytes([*a, *b])), rest),
        [2 | 3, _, a, b, c, d, rest @ ..] => (u32::from_le_bytes([*a, *b, *c, *d]) as usize, rest),
        [1..=3, ..] | [] => return Err("ends within its header".to_owned()),
        [version, ..] => return Err(format!("is .npy of version {version}, which is not known")),
    };
    let (header, elements) = rest.split_at_checked(length).ok_or("ends within its header")?;
    let header = std::str::from_utf8(header).map_err(|_| "has a header that is no text")?;
    let descriptor = text(field(header, "descr")?).ok_or("gives no plain dtype")?;
    let (dtype, order) = dtype(descriptor)?;
    let shape = extents(field(header, "shape")?).ok_or("gives no shape")?;
    let column_major = field(header, "fortran_order")?.starts_with("True");
    let size = dtype.size();
    let count = shape.checked_num_elements().ok_or("is too large")?;
    let elements = count.checked_mul(size).and_then(|bytes| elements.get(..bytes));
    let mut elements = elements.ok_or_else(|| format!("ends before its {count} elements"))?.to_vec();
    if order == Order::Big {
        elements.chunks_exact_mut(size).for_each(<[u8]>::reverse);
    }
    if column_major {
        elements = row_major(&elements, &shape, size);
    }
    HostData::new(dtype, shape, elements).ok_or_else(|| "is too large".to_owned())
}

/// What follows the name of a field in the header, a Python dictionary.
fn field<'h>(header: &'h str, name: &str) -> Result<&'h str, String> {
    let found =
        [format!("'{name}'"), format!("\"{name}\"")].iter().find_map(|quoted| header.split_once(quoted.as_str()));
    let value = found.and_then(|(_, rest)| rest.trim_start().strip_prefix(':'));
    value.map(str::trim_start).ok_or_else(|| format!("has no `{name}` in its header"))
}

/// The text between the quotes with which a value begins.
fn text(value: &str) -> Option<&str> {
    let quote = value.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
    value[1..].split_once(quote).map(|(text, _)| text)
}

fn extents(value: &str) -> Option<Shape> {
    let inside = value.strip_prefix('(')?.split_once(')')?.0;
    inside.split(',').map(str::trim).filter(|extent| !extent.is_empty()).map(|extent| extent.parse().ok()).collect()
}

/// The order of an element's bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    Little,
    Big,
}

fn code(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "<f4",
        DType::F16 => "<f2",
        DType::BF16 => "|V2",
        DType::F64 => "<f8",
        DType::I8 => "|i1",
        DType::U8 => "|u1",
        DType::I32 => "<i4",
        DType::U32 => "<u4",
        DType::I64 => "<i8",
        DType::Bool => "|b1",
    }
}

fn dtype(descriptor: &str) -> Result<(DType, Order), String> {
    let order = match descriptor.chars().next() {
        Some('>') => Order::Big,
        Some('=') if cfg!(target_endian = "big") => Order::Big,
        _ => Order::Little,
    };
    let kind = descriptor.trim_start_matches(['<', '>', '=', '|']);
    let known =
        DType::ALL.into_iter().find(|&dtype| &code(dtype)[1..] == kind || (kind == "?" && dtype == DType::Bool));
    known.map(|dtype| (dtype, order)).ok_or_else(|| {
        let names: Vec<&str> = DType::ALL.iter().map(|&dtype| &code(dtype)[1..]).collect();
        format!("has elements of type `{descriptor}`; Kiln has {}", names.join(", "))
    })
}

/// Elements that were laid out with the first axis running fastest, with the last axis running fastest.
fn row_major(elements: &[u8], shape: &Shape, size: usize) -> Vec<u8> {
    let mut strides = vec![1; shape.rank()];
    for axis in 1..shape.rank() {
        strides[axis] = strides[axis - 1] * shape[axis - 1].max(1);
    }
    let mut turned = Vec::with_capacity(elements.len());
    let mut index = vec![0; shape.rank()];
    for _ in 0..elements.len() / size {
        let place: usize = index.iter().zip(&strides).map(|(index, stride)| index * stride).sum();
        turned.extend_from_slice(&elements[place * size..(place + 1) * size]);
        for axis in (0..shape.rank()).rev() {
            index[axis] += 1;
            if index[axis] < shape[axis] {
                break;
            }
            index[axis] = 0;
        }
    }
    turned
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(header: &str, elements: &[u8]) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend([1, 0]);
        bytes.extend((header.len() as u16).to_le_bytes());
        bytes.extend(header.as_bytes());
        bytes.extend(elements);
        bytes
    }

    #[test]
    fn every_dtype_and_shape_comes_back() {
        for dtype in DType::ALL {
            for shape in [&[][..], &[1], &[0], &[3], &[2, 3], &[2, 0, 3], &[1, 2, 1, 4]] {
                let count: usize = shape.iter().product();
                let bytes: Vec<u8> = (0..count * dtype.size()).map(|byte| (byte % 2) as u8).collect();
                let data = HostData::new(dtype, shape, bytes).unwrap();
                let encoded = encode(&data);
                assert_eq!((encoded.len() - data.bytes().len()) % 64, 0);
                assert_eq!(decode(&encoded), Ok(data));
            }
        }
    }

    #[test]
    fn a_file_is_written_as_numpy_writes_it() {
        let data = HostData::new(DType::F32, [2], [0, 0, 128, 63, 0, 0, 0, 64]).unwrap();
        let header = format!("{:<117}\n", "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }");
        assert_eq!(encode(&data), file(&header, &[0, 0, 128, 63, 0, 0, 0, 64]));
    }

    #[test]
    fn other_orders_of_bytes_axes_and_fields_are_read() {
        let header = "{\"shape\":(2, 3),'fortran_order': True , 'descr':'>i4'}\n";
        let elements: Vec<u8> = [1i32, 4, 2, 5, 3, 6].iter().flat_map(|element| element.to_be_bytes()).collect();
        let read = decode(&file(header, &elements)).unwrap();
        assert_eq!(read.elements().map(|element| element.to_i128()).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn what_is_no_array_of_ours_is_refused() {
        let fields =
            |descr: &str, shape: &str| format!("{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}");
        let files = [
            Vec::new(),
            b"\x93NUMPY".to_vec(),
            b"\x93NUMPY\x01\x00".to_vec(),
            b"\x93NUMPY\x09\x00\x00\x00".to_vec(),
            b"PK\x03\x04".to_vec(),
            file("{}", &[]),
            file(&fields("'<u8'", "(1,)"), &[0; 8]),
            file(&fields("[('a', '<f4')]", "(1,)"), &[0; 8]),
            file(&fields("'<f4'", "(3,)"), &[0; 8]),
            file(&fields("'<f4'", "(-3,)"), &[0; 8]),
            file(&fields("'<f4'", "(18446744073709551615, 2)"), &[0; 8]),
            file(&fields("'<f4'", "3"), &[0; 12]),
        ];
        for bytes in files {
            assert!(decode(&bytes).is_err(), "{bytes:?}");
        }
    }
}
