//! Reads and checks a GGUF file: magic, version, counts, metadata, tensor table, then the data section.
//!
//! The bytes are untrusted. A count is compared with the remaining bytes before it is used, and a tensor's place with
//! the file's length before it is returned, so the result of [`read`] is safe to use.

use std::collections::BTreeMap;
use std::ops::Range;

use super::MAGIC;
use super::cursor::Cursor;
use super::metadata::{Metadata, Value};
use super::types::{ValueType, ggml_type_name};
use crate::error::{Error, ErrorKind, Result};
use crate::tensor::{Format, TensorInfo};

/// Alignment of tensor data in a file that does not state one.
const DEFAULT_ALIGNMENT: usize = 32;
/// Largest alignment accepted: that of the largest memory pages in use.
const MAX_ALIGNMENT: usize = 1 << 16;
/// Maximum bytes of a metadata key, as GGUF defines it.
const MAX_KEY_BYTES: usize = (1 << 16) - 1;
/// Maximum bytes of a tensor name, as GGUF defines it.
const MAX_NAME_BYTES: usize = 64;
/// Maximum number of dimensions of a tensor, as GGML defines it.
const MAX_DIMENSIONS: u32 = 4;
/// Bytes of key, type and value of the smallest pair: an empty key's length, a type, one byte.
const SMALLEST_PAIR: usize = 8 + 4 + 1;
/// Bytes of name, dimensions, type and offset of the smallest table entry: an empty name's length, one dimension.
const SMALLEST_TENSOR: usize = 8 + 4 + 8 + 4 + 8;

/// Offset of the number of tensors: after magic and version.
const TENSOR_COUNT: Range<usize> = 8..16;

/// The header of a GGUF file: metadata and tensors.
#[derive(Clone, Debug)]
pub struct Gguf {
    /// Version of the format: 2 or 3.
    pub version: u32,
    /// The metadata.
    pub metadata: Metadata,
    /// The tensors by name; [`TensorInfo::file`] is 0.
    pub tensors: BTreeMap<String, TensorInfo>,
    /// The first byte after the metadata.
    metadata_end: usize,
}

impl Gguf {
    /// Returns a file with the same metadata and no tensors; `bytes` is the content of the file that was read.
    ///
    /// # Panics
    /// If `bytes` is shorter than that file.
    pub fn without_tensors(&self, bytes: &[u8]) -> Vec<u8> {
        let mut head = bytes[..self.metadata_end].to_vec();
        head[TENSOR_COUNT].fill(0);
        head
    }
}

/// Reads the head of the GGUF file with the content `bytes`, and checks that every tensor is inside it.
///
/// # Errors
/// [`ErrorKind::Malformed`] if the bytes violate the format, [`ErrorKind::Unsupported`] for another version, byte order
/// or tensor type. The message names the field, its value and the expected value.
pub fn read(bytes: &[u8]) -> Result<Gguf> {
    let mut cursor = Cursor::new(bytes);
    let version = read_version(&mut cursor)?;
    let tensor_count = cursor.count(SMALLEST_TENSOR, "number of tensors")?;
    let pair_count = cursor.count(SMALLEST_PAIR, "number of metadata fields")?;

    let mut metadata = Metadata::default();
    for _ in 0..pair_count {
        read_pair(&mut cursor, &mut metadata)?;
    }
    let metadata_end = cursor.position();
    let alignment = alignment(&metadata)?;
    let entries = (0..tensor_count)
        .map(|_| TableEntry::read(&mut cursor))
        .collect::<Result<Vec<_>>>()?;

    let padding = cursor.position().next_multiple_of(alignment) - cursor.position();
    if !entries.is_empty() {
        cursor.take(padding, "padding before the tensor data")?;
    }
    let tensors = place(entries, cursor.position(), bytes.len(), alignment)?;
    Ok(Gguf {
        version,
        metadata,
        tensors,
        metadata_end,
    })
}

fn malformed(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Malformed, message)
}

fn read_version(cursor: &mut Cursor) -> Result<u32> {
    let magic: [u8; 4] = cursor.array("magic")?;
    if magic != MAGIC {
        return Err(malformed(format!(
            "not a GGUF file: it starts with \"{}\", expected \"GGUF\"",
            magic.escape_ascii()
        )));
    }
    let version = cursor.u32("version")?;
    match version {
        2 | 3 => Ok(version),
        _ if matches!(version.swap_bytes(), 1..=3) => Err(Error::new(
            ErrorKind::Unsupported,
            "byte order of this GGUF file is big-endian, expected little-endian",
        )),
        _ => Err(Error::new(
            ErrorKind::Unsupported,
            format!("GGUF version is {version}, expected 2 or 3"),
        )),
    }
}

fn read_pair(cursor: &mut Cursor, metadata: &mut Metadata) -> Result<()> {
    let key = cursor.string("metadata key")?;
    if key.len() > MAX_KEY_BYTES {
        return Err(malformed(format!(
            "a metadata key has {} bytes, expected at most {MAX_KEY_BYTES}",
            key.len()
        )));
    }
    let what = format!("metadata field {key:?}");
    let value_type = read_value_type(cursor, &what)?;
    let value = if value_type == ValueType::Array {
        let element_type = read_value_type(cursor, &what)?;
        let count = cursor.count(element_type.smallest(), &format!("length of {what}"))?;
        read_array(cursor, element_type, count, &what)?
    } else {
        read_value(cursor, value_type, &what)?
    };
    match metadata.insert(key, value) {
        None => Ok(()),
        Some(_) => Err(malformed(format!("{what} occurs twice"))),
    }
}

fn read_value_type(cursor: &mut Cursor, what: &str) -> Result<ValueType> {
    let id = cursor.u32(&format!("type of {what}"))?;
    ValueType::from_id(id)
        .ok_or_else(|| malformed(format!("type of {what} is {id}, expected 0 to 12")))
}

fn read_value(cursor: &mut Cursor, value_type: ValueType, what: &str) -> Result<Value> {
    Ok(match value_type {
        ValueType::F32 => Value::Float(f32::from_le_bytes(cursor.array(what)?).into()),
        ValueType::F64 => Value::Float(f64::from_le_bytes(cursor.array(what)?)),
        ValueType::Bool => Value::Bool(read_bool(cursor, what)?),
        ValueType::String => Value::String(cursor.string(what)?.to_owned()),
        ValueType::Array => {
            return Err(malformed(format!(
                "{what} holds arrays in an array, expected plain values"
            )));
        }
        integer => Value::Integer(read_integer(cursor, integer, what)?),
    })
}

fn read_array(
    cursor: &mut Cursor,
    element_type: ValueType,
    count: usize,
    what: &str,
) -> Result<Value> {
    let elements = 0..count;
    Ok(match element_type {
        ValueType::F32 => Value::Floats(
            elements
                .map(|_| cursor.array(what).map(f32::from_le_bytes))
                .collect::<Result<_>>()?,
        ),
        ValueType::F64 => Value::Floats(
            elements
                .map(|_| {
                    cursor
                        .array(what)
                        .map(|bytes| f64::from_le_bytes(bytes) as f32)
                })
                .collect::<Result<_>>()?,
        ),
        ValueType::Bool => Value::Bools(
            elements
                .map(|_| read_bool(cursor, what))
                .collect::<Result<_>>()?,
        ),
        ValueType::String => Value::Strings(
            elements
                .map(|_| cursor.string(what).map(str::to_owned))
                .collect::<Result<_>>()?,
        ),
        ValueType::Array => {
            return Err(malformed(format!(
                "{what} holds arrays in an array, expected plain values"
            )));
        }
        integer => Value::Integers(
            elements
                .map(|_| {
                    let value = read_integer(cursor, integer, what)?;
                    i64::try_from(value).map_err(|_| {
                        malformed(format!(
                            "{what} holds {value}, expected at most {}",
                            i64::MAX
                        ))
                    })
                })
                .collect::<Result<_>>()?,
        ),
    })
}

fn read_bool(cursor: &mut Cursor, what: &str) -> Result<bool> {
    match cursor.array::<1>(what)?[0] {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(malformed(format!(
            "{what} holds the boolean {other}, expected 0 or 1"
        ))),
    }
}

fn read_integer(cursor: &mut Cursor, value_type: ValueType, what: &str) -> Result<i128> {
    Ok(match value_type {
        ValueType::U8 => u8::from_le_bytes(cursor.array(what)?).into(),
        ValueType::I8 => i8::from_le_bytes(cursor.array(what)?).into(),
        ValueType::U16 => u16::from_le_bytes(cursor.array(what)?).into(),
        ValueType::I16 => i16::from_le_bytes(cursor.array(what)?).into(),
        ValueType::U32 => u32::from_le_bytes(cursor.array(what)?).into(),
        ValueType::I32 => i32::from_le_bytes(cursor.array(what)?).into(),
        ValueType::U64 => u64::from_le_bytes(cursor.array(what)?).into(),
        ValueType::I64 => i64::from_le_bytes(cursor.array(what)?).into(),
        ValueType::F32
        | ValueType::F64
        | ValueType::Bool
        | ValueType::String
        | ValueType::Array => {
            unreachable!("read_value and read_array handle the other types")
        }
    })
}

fn alignment(metadata: &Metadata) -> Result<usize> {
    let key = "general.alignment";
    let alignment = metadata.integer(key)?.unwrap_or(DEFAULT_ALIGNMENT);
    if (8..=MAX_ALIGNMENT).contains(&alignment) && alignment.is_power_of_two() {
        Ok(alignment)
    } else {
        Err(malformed(format!(
            "metadata field {key:?} is {alignment}, expected a power of two from 8 to {MAX_ALIGNMENT}"
        )))
    }
}

/// One entry of the tensor table, with its place relative to the data section.
struct TableEntry {
    name: String,
    shape: Vec<usize>,
    format: Format,
    offset: u64,
    length: usize,
}

impl TableEntry {
    fn read(cursor: &mut Cursor) -> Result<Self> {
        let name = cursor.string("tensor name")?;
        if name.len() > MAX_NAME_BYTES {
            return Err(malformed(format!(
                "the tensor name at byte {} has {} bytes, expected at most {MAX_NAME_BYTES}",
                cursor.position() - name.len(),
                name.len()
            )));
        }
        let what = format!("tensor {name:?}");
        let dimensions = cursor.u32(&format!("number of dimensions of {what}"))?;
        if !(1..=MAX_DIMENSIONS).contains(&dimensions) {
            return Err(malformed(format!(
                "{what} has {dimensions} dimensions, expected 1 to {MAX_DIMENSIONS}"
            )));
        }
        let mut shape = (0..dimensions)
            .map(|_| {
                let size = cursor.u64(&format!("dimensions of {what}"))?;
                usize::try_from(size)
                    .map_err(|_| malformed(format!("{what} has a dimension of {size}: too large")))
            })
            .collect::<Result<Vec<_>>>()?;
        // GGUF writes the innermost dimension first.
        shape.reverse();
        let format = read_format(cursor, &what)?;
        let offset = cursor.u64(&format!("offset of {what}"))?;
        let length = tensor_bytes(&shape, format, &what)?;
        Ok(Self {
            name: name.to_owned(),
            shape,
            format,
            offset,
            length,
        })
    }
}

fn read_format(cursor: &mut Cursor, what: &str) -> Result<Format> {
    let id = cursor.u32(&format!("type of {what}"))?;
    if let Some(format) = Format::from_ggml_type(id) {
        return Ok(format);
    }
    let read = Format::ALL.map(Format::name).join(", ");
    Err(match ggml_type_name(id) {
        Some(name) => Error::new(
            ErrorKind::Unsupported,
            format!("{what} has type {name}, expected one of {read}"),
        ),
        None => Error::new(
            ErrorKind::Unsupported,
            format!("{what} has the unknown type {id}, expected one of {read}"),
        ),
    })
}

fn tensor_bytes(shape: &[usize], format: Format, what: &str) -> Result<usize> {
    if shape.contains(&0) {
        return Err(malformed(format!(
            "{what} has shape {shape:?}, expected no dimension of 0"
        )));
    }
    let columns = shape.last().copied().unwrap_or(1);
    let block = format.block_elements();
    if !columns.is_multiple_of(block) {
        return Err(malformed(format!(
            "{what} has rows of {columns} elements, expected a multiple of {block} in format {format}"
        )));
    }
    let elements = shape
        .iter()
        .try_fold(1usize, |product, &size| product.checked_mul(size));
    elements
        .and_then(|elements| format.bytes_for(elements))
        .ok_or_else(|| {
            malformed(format!(
                "{what} has shape {shape:?}: more bytes than can be addressed"
            ))
        })
}

/// Assigns every tensor its place in the file: aligned, inside the file, and disjoint.
fn place(
    entries: Vec<TableEntry>,
    data_start: usize,
    file_length: usize,
    alignment: usize,
) -> Result<BTreeMap<String, TensorInfo>> {
    let mut tensors = BTreeMap::new();
    for TableEntry {
        name,
        shape,
        format,
        offset,
        length,
    } in entries
    {
        if !offset.is_multiple_of(alignment as u64) {
            return Err(malformed(format!(
                "tensor {name:?} has offset {offset}, expected a multiple of {alignment}"
            )));
        }
        let start = usize::try_from(offset)
            .ok()
            .and_then(|offset| data_start.checked_add(offset));
        let end = start
            .and_then(|start| start.checked_add(length))
            .filter(|&end| end <= file_length);
        let (Some(start), Some(end)) = (start, end) else {
            let data_length = file_length - data_start;
            return Err(malformed(format!(
                "tensor {name:?} has {length} bytes at offset {offset}, but the tensor data ends at offset \
                 {data_length}: the file is truncated or its table is wrong"
            )));
        };
        let info = TensorInfo {
            name: name.clone(),
            shape,
            format,
            file: 0,
            bytes: start..end,
        };
        if let Some(first) = tensors.insert(name, info) {
            return Err(malformed(format!("tensor {:?} occurs twice", first.name)));
        }
    }
    let mut by_place: Vec<&TensorInfo> = tensors.values().collect();
    by_place.sort_by_key(|info| info.bytes.start);
    for pair in by_place.windows(2) {
        if pair[1].bytes.start < pair[0].bytes.end {
            return Err(malformed(format!(
                "tensors {:?} and {:?} overlap",
                pair[0].name, pair[1].name
            )));
        }
    }
    Ok(tensors)
}
