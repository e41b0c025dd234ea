//! safetensors: a JSON header, then the tensors' bytes.
//!
//! [`read_model`] checks the header of a model's file, [`read`] that of any file; [`shards`] reads the index of a
//! model in several files; [`write`](mod@write) creates headers. The header is parsed here rather than by the
//! `safetensors` crate, whose errors don't name the tensor, which uses the last of two tensors with one name, and whose
//! sum of sizes can overflow.

pub mod write;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;
use std::path::{Component, Path};

use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::error::{Error, ErrorKind, Result};
use crate::tensor::{Format, TensorInfo};

/// Maximum bytes of a header, as the format defines it.
const MAX_HEADER_BYTES: u64 = 100_000_000;
/// Entry of the header that holds metadata rather than a tensor.
const METADATA: &str = "__metadata__";

/// The type of a tensor's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the names are the format's own")]
pub enum Element {
    F32,
    I32,
    U32,
    F16,
    Bf16,
    F8E4M3,
    I8,
    U8,
    I64,
}

impl Element {
    /// Every type that is read.
    pub const ALL: [Self; 9] = [
        Self::F32,
        Self::I32,
        Self::U32,
        Self::F16,
        Self::Bf16,
        Self::F8E4M3,
        Self::I8,
        Self::U8,
        Self::I64,
    ];
    /// The types of weights.
    pub const FLOATS: [Self; 3] = [Self::F32, Self::F16, Self::Bf16];

    /// Returns the name in headers.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::I32 => "I32",
            Self::U32 => "U32",
            Self::F16 => "F16",
            Self::Bf16 => "BF16",
            Self::F8E4M3 => "F8_E4M3",
            Self::I8 => "I8",
            Self::U8 => "U8",
            Self::I64 => "I64",
        }
    }

    /// Returns the bytes per number.
    pub fn bytes(self) -> usize {
        match self {
            Self::I64 => 8,
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::F8E4M3 | Self::I8 | Self::U8 => 1,
        }
    }

    /// Returns the format of a tensor of floats; `None` for another element type.
    pub(crate) fn format(self) -> Option<Format> {
        match self {
            Self::F32 => Some(Format::F32),
            Self::F16 => Some(Format::F16),
            Self::Bf16 => Some(Format::Bf16),
            _ => None,
        }
    }

    /// Returns the bytes of a tensor of this shape; `None` if they exceed `usize`.
    pub fn bytes_of(self, shape: &[usize]) -> Option<usize> {
        shape
            .iter()
            .try_fold(self.bytes(), |product, &size| product.checked_mul(size))
    }
}

/// Types of numbers that no weight may have, with the bytes per number.
const OTHER_TYPES: [(&str, usize); 13] = [
    ("BOOL", 1),
    ("I8", 1),
    ("U8", 1),
    ("F8_E4M3", 1),
    ("F8_E5M2", 1),
    ("I16", 2),
    ("U16", 2),
    ("I32", 4),
    ("U32", 4),
    ("I64", 8),
    ("U64", 8),
    ("F64", 8),
    ("C64", 8),
];

/// A tensor of a safetensors file: its length matches its shape and element type, and it is inside the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// The type of its numbers.
    pub element: Element,
    /// Row-major, outermost dimension first.
    pub shape: Vec<usize>,
    /// Byte range in the file.
    pub bytes: Range<usize>,
}

impl Tensor {
    /// Describes a tensor of floats of the `file`-th file; returns `None` for another element type.
    pub(crate) fn info(self, name: String, file: usize) -> Option<TensorInfo> {
        Some(TensorInfo {
            name,
            format: self.element.format()?,
            shape: self.shape,
            file,
            bytes: self.bytes,
        })
    }
}

/// The header of a safetensors file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// The tensors by name; they are disjoint.
    pub tensors: BTreeMap<String, Tensor>,
    /// The strings in `__metadata__`.
    pub metadata: BTreeMap<String, String>,
}

/// The shapes and types of tensors by name.
pub type OtherTypes = BTreeMap<String, (Vec<usize>, String)>;

/// Reads the header of a model's safetensors file with the content `bytes`: the tensors with `elements`, and the shapes
/// and types of the others, which no weight may have. All are inside the file and disjoint.
///
/// # Errors
/// [`ErrorKind::Malformed`] if the bytes violate the format, [`ErrorKind::Unsupported`] for a tensor of an unknown type.
/// The message names the tensor, its value and the expected value.
pub fn read_model(bytes: &[u8], elements: &[Element]) -> Result<(Header, OtherTypes)> {
    parse(bytes, elements, true)
}

/// Reads the header of the safetensors file with the content `bytes`, the `file`-th of its checkpoint, which may only
/// have tensors of floats.
///
/// # Errors
/// As for [`read_model`]; [`ErrorKind::Unsupported`] for a tensor that is not F32, F16 or BF16.
pub fn read_header(bytes: &[u8], file: usize) -> Result<BTreeMap<String, TensorInfo>> {
    let header = read(bytes, &Element::FLOATS)?;
    let info = |(name, tensor): (String, Tensor)| Some((name.clone(), tensor.info(name, file)?));
    Ok(header.tensors.into_iter().filter_map(info).collect())
}

/// Returns the error for a tensor of a type that is not read.
fn other_type(name: &str, data_type: &str, elements: &[Element]) -> Error {
    let read: Vec<_> = elements.iter().map(|element| element.name()).collect();
    let message = format!(
        "tensor {name:?} has type {data_type:?}, expected one of {}",
        read.join(", ")
    );
    Error::new(ErrorKind::Unsupported, message)
}

/// Returns the error for a weight of a type that no weight may have.
pub(crate) fn not_a_float(name: &str, data_type: &str) -> Error {
    other_type(name, data_type, &Element::FLOATS)
}

/// Reads the header of the safetensors file with the content `bytes`, whose tensors may only have `elements`.
///
/// # Errors
/// As for [`read_model`]; [`ErrorKind::Unsupported`] for a tensor of another element type.
pub fn read(bytes: &[u8], elements: &[Element]) -> Result<Header> {
    Ok(parse(bytes, elements, false)?.0)
}

/// Reads a header, and the shapes and types of tensors of other types than `elements` if there may be any.
fn parse(bytes: &[u8], elements: &[Element], allow_others: bool) -> Result<(Header, OtherTypes)> {
    let Some((length, rest)) = bytes.split_first_chunk() else {
        return Err(malformed(format!(
            "not a safetensors file: it has {} bytes, expected at least the 8 of the header's length",
            bytes.len()
        )));
    };
    let length = u64::from_le_bytes(*length);
    let header = usize::try_from(length)
        .ok()
        .filter(|_| length <= MAX_HEADER_BYTES)
        .and_then(|length| rest.get(..length))
        .ok_or_else(|| {
            malformed(format!(
                "header length is {length}, expected at most {MAX_HEADER_BYTES} and the {} bytes that follow: not a \
                 safetensors file, or truncated",
                rest.len()
            ))
        })?;
    let Entries { entries, metadata } = serde_json::from_slice(header)
        .map_err(|error| malformed(format!("header is not valid: {error}")))?;

    let data_start = bytes.len() - rest.len() + header.len();
    let (mut tensors, mut others, mut places) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
    for (name, entry) in entries {
        let (element, bytes) =
            entry.check(&name, elements, allow_others, data_start, bytes.len())?;
        places.push((name.clone(), bytes.clone()));
        match element {
            Some(element) => {
                let shape = entry.shape;
                let tensor = Tensor {
                    element,
                    shape,
                    bytes,
                };
                tensors.insert(name, tensor);
            }
            None => {
                others.insert(name, (entry.shape, entry.dtype));
            }
        }
    }
    check_coverage(places, data_start, bytes.len())?;
    Ok((Header { tensors, metadata }, others))
}

fn malformed(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Malformed, message)
}

/// One tensor as the header states it.
#[derive(Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<usize>,
    /// First byte and the byte after the last one, counted from the header's end.
    data_offsets: (usize, usize),
}

impl Entry {
    /// Returns the element type and the place; no type for one of [`OTHER_TYPES`], if there may be any.
    fn check(
        &self,
        name: &str,
        elements: &[Element],
        allow_others: bool,
        data_start: usize,
        file_length: usize,
    ) -> Result<(Option<Element>, Range<usize>)> {
        let what = format!("tensor {name:?}");
        let element = elements
            .iter()
            .copied()
            .find(|element| element.name() == self.dtype);
        let other = OTHER_TYPES
            .iter()
            .find(|(other, _)| allow_others && *other == self.dtype);
        let size = element.map(Element::bytes).or(other.map(|(_, size)| *size));
        let Some(size) = size else {
            return Err(other_type(name, &self.dtype, elements));
        };
        let length = self
            .shape
            .iter()
            .try_fold(size, |product, &size| product.checked_mul(size));
        let Some(length) = length else {
            return Err(malformed(format!(
                "{what} has shape {:?}: more bytes than can be addressed",
                self.shape
            )));
        };
        let (start, end) = self.data_offsets;
        if end.checked_sub(start) != Some(length) {
            return Err(malformed(format!(
                "{what} has data_offsets [{start}, {end}], expected {length} bytes for shape {:?} in format {}",
                self.shape, self.dtype
            )));
        }
        let data_length = file_length - data_start;
        if end > data_length {
            return Err(malformed(format!(
                "{what} has data_offsets [{start}, {end}], but the tensor data ends at {data_length}: the file is \
                 truncated or its header is wrong"
            )));
        }
        Ok((element, data_start + start..data_start + end))
    }
}

/// The header's tensors in their order; two with the same name are an error.
#[derive(Default)]
struct Entries {
    entries: Vec<(String, Entry)>,
    metadata: BTreeMap<String, String>,
}

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(EntriesVisitor)
    }
}

struct EntriesVisitor;

impl<'de> Visitor<'de> for EntriesVisitor {
    type Value = Entries;

    fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
        let mut header = Entries::default();
        let mut names = BTreeSet::new();
        while let Some(name) = map.next_key::<String>()? {
            if name == METADATA {
                // Metadata values of other types than strings are accepted and ignored.
                let metadata = map.next_value::<serde_json::Value>()?;
                let texts = metadata.as_object().into_iter().flatten();
                header.metadata = texts
                    .filter_map(|(name, text)| Some((name.clone(), text.as_str()?.to_owned())))
                    .collect();
                continue;
            }
            if !names.insert(name.clone()) {
                return Err(A::Error::custom(format_args!(
                    "tensor {name:?} occurs twice"
                )));
            }
            let entry = map
                .next_value()
                .map_err(|error| A::Error::custom(format_args!("tensor {name:?}: {error}")))?;
            header.entries.push((name, entry));
        }
        Ok(header)
    }
}

/// Checks the tensors' ranges: the format allows no gaps, no overlaps and no bytes after the last tensor.
fn check_coverage(
    mut by_place: Vec<(String, Range<usize>)>,
    data_start: usize,
    file_length: usize,
) -> Result<()> {
    by_place.sort_by_key(|(_, bytes)| (bytes.start, bytes.end));
    let mut covered = data_start;
    for (name, bytes) in by_place {
        if bytes.start != covered {
            let problem = if bytes.start < covered {
                "overlaps the tensor before it"
            } else {
                "follows a gap"
            };
            return Err(malformed(format!(
                "tensor {name:?} starts at data offset {}, expected {}: it {problem}",
                bytes.start - data_start,
                covered - data_start
            )));
        }
        covered = bytes.end;
    }
    if covered != file_length {
        let message = format!(
            "{} bytes follow the last tensor, expected the file to end",
            file_length - covered
        );
        return Err(malformed(message));
    }
    Ok(())
}

/// The content of `model.safetensors.index.json`: the files of a sharded model, and the file of every tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shards {
    /// Names of the files, all in the folder of the index.
    pub files: Vec<String>,
    /// Position in `files` for every tensor by name.
    pub file_of: BTreeMap<String, usize>,
}

/// Reads the parsed content of `model.safetensors.index.json`.
///
/// # Errors
/// [`ErrorKind::Malformed`] if `weight_map` is not an object from tensors to names of files in the folder of the index:
/// a name that leads out of the folder is refused.
pub fn shards(index: &serde_json::Value) -> Result<Shards> {
    let weight_map = index
        .get("weight_map")
        .and_then(|map| map.as_object())
        .ok_or_else(|| {
            malformed("field `weight_map` is missing or of another type, expected an object")
        })?;
    let mut positions = BTreeMap::new();
    let mut files = Vec::new();
    let mut file_of = BTreeMap::new();
    for (tensor, shard) in weight_map {
        let shard = shard.as_str().filter(|name| is_file_name(name)).ok_or_else(|| {
            malformed(format!("`weight_map` puts tensor {tensor:?} in {shard}, expected the name of a file next to it"))
        })?;
        let position = *positions.entry(shard).or_insert_with(|| {
            files.push(shard.to_owned());
            files.len() - 1
        });
        file_of.insert(tensor.clone(), position);
    }
    Ok(Shards { files, file_of })
}

/// Returns whether a name stays in its folder on every system.
fn is_file_name(name: &str) -> bool {
    let mut components = Path::new(name).components();
    matches!(
        (components.next(), components.next()),
        (Some(Component::Normal(_)), None)
    ) && !name.contains(['/', '\\', ':', '\0'])
}
