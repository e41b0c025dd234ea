//! safetensors: a JSON header, then the tensors' bytes.
//!
//! [`read_header`] checks one file's header; [`shards`] reads the index of a model that is cut into
//! several files. The header is parsed here and not by the `safetensors` crate, whose errors don't name
//! the tensor, which takes the last of two tensors of one name, and whose sum of sizes can overflow.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Component, Path};

use serde::de::{Error as _, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::error::{Error, ErrorKind, Result};
use crate::tensor::{Format, TensorInfo};

/// Longest header, as the format sets it.
const MAX_HEADER_BYTES: u64 = 100_000_000;
/// Entry of the header that holds remarks, not a tensor.
const REMARKS: &str = "__metadata__";

/// Reads the header of the safetensors file whose content is `bytes`, the `file`-th of its checkpoint:
/// the tensors by name, all of them inside the file and apart from each other.
///
/// # Errors
/// [`ErrorKind::Malformed`] where the bytes break the format, [`ErrorKind::Unsupported`] for a tensor
/// that is not F32, F16 or BF16. The message names the tensor, what it holds, what was expected.
pub fn read_header(bytes: &[u8], file: usize) -> Result<BTreeMap<String, TensorInfo>> {
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
    let Header(entries) =
        serde_json::from_slice(header).map_err(|error| malformed(format!("header is not valid: {error}")))?;

    let data_start = bytes.len() - rest.len() + header.len();
    let mut tensors = BTreeMap::new();
    for (name, entry) in entries {
        let info = entry.into_info(&name, file, data_start, bytes.len())?;
        tensors.insert(name, info);
    }
    check_coverage(&tensors, data_start, bytes.len())?;
    Ok(tensors)
}

fn malformed(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Malformed, message)
}

/// One tensor as the header states it.
#[derive(Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<usize>,
    /// First byte and the byte past the last one, counted from the header's end.
    data_offsets: (usize, usize),
}

impl Entry {
    fn into_info(self, name: &str, file: usize, data_start: usize, file_length: usize) -> Result<TensorInfo> {
        let what = format!("tensor {name:?}");
        let format = match self.dtype.as_str() {
            "F32" => Format::F32,
            "F16" => Format::F16,
            "BF16" => Format::Bf16,
            other => {
                let message = format!("{what} has type {other:?}, expected one of F32, F16, BF16");
                return Err(Error::new(ErrorKind::Unsupported, message));
            }
        };
        let elements = self.shape.iter().try_fold(1usize, |product, &size| product.checked_mul(size));
        let Some(length) = elements.and_then(|elements| format.bytes_for(elements)) else {
            return Err(malformed(format!("{what} has shape {:?}: more bytes than can be addressed", self.shape)));
        };
        let (start, end) = self.data_offsets;
        if end.checked_sub(start) != Some(length) {
            return Err(malformed(format!(
                "{what} has data_offsets [{start}, {end}], expected {length} bytes for shape {:?} in format {format}",
                self.shape
            )));
        }
        let data_length = file_length - data_start;
        if end > data_length {
            return Err(malformed(format!(
                "{what} has data_offsets [{start}, {end}], but the tensor data ends at {data_length}: the file is \
                 truncated or its header is wrong"
            )));
        }
        let bytes = data_start + start..data_start + end;
        Ok(TensorInfo { name: name.to_owned(), shape: self.shape, format, file, bytes })
    }
}

/// The header's tensors in their order; two of one name are an error.
struct Header(Vec<(String, Entry)>);

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(HeaderVisitor)
    }
}

struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = Header;

    fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
        let mut entries = Vec::new();
        let mut names = BTreeSet::new();
        while let Some(name) = map.next_key::<String>()? {
            if name == REMARKS {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            if !names.insert(name.clone()) {
                return Err(A::Error::custom(format_args!("tensor {name:?} is there twice")));
            }
            let entry = map.next_value().map_err(|error| A::Error::custom(format_args!("tensor {name:?}: {error}")))?;
            entries.push((name, entry));
        }
        Ok(Header(entries))
    }
}

/// The format allows neither gaps nor overlaps nor bytes after the last tensor.
fn check_coverage(tensors: &BTreeMap<String, TensorInfo>, data_start: usize, file_length: usize) -> Result<()> {
    let mut by_place: Vec<&TensorInfo> = tensors.values().collect();
    by_place.sort_by_key(|info| (info.bytes.start, info.bytes.end));
    let mut covered = data_start;
    for info in by_place {
        if info.bytes.start != covered {
            let problem = if info.bytes.start < covered { "overlaps the tensor before it" } else { "follows a gap" };
            return Err(malformed(format!(
                "tensor {:?} starts at data offset {}, expected {}: it {problem}",
                info.name,
                info.bytes.start - data_start,
                covered - data_start
            )));
        }
        covered = info.bytes.end;
    }
    if covered != file_length {
        let message = format!("{} bytes follow the last tensor, expected the file to end", file_length - covered);
        return Err(malformed(message));
    }
    Ok(())
}

/// What `model.safetensors.index.json` says: the files of a sharded model, and the place of every tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shards {
    /// Names of the files, all beside the index.
    pub files: Vec<String>,
    /// Position in `files` for every tensor by name.
    pub file_of: BTreeMap<String, usize>,
}

/// Reads the parsed content of `model.safetensors.index.json`.
///
/// # Errors
/// [`ErrorKind::Malformed`] if `weight_map` is not an object from tensors to names of files beside the
/// index: a name that leads out of the folder is refused.
pub fn shards(index: &serde_json::Value) -> Result<Shards> {
    let weight_map = index
        .get("weight_map")
        .and_then(|map| map.as_object())
        .ok_or_else(|| malformed("field `weight_map` is missing or of another type, expected an object"))?;
    let mut positions = BTreeMap::new();
    let mut files = Vec::new();
    let mut file_of = BTreeMap::new();
    for (tensor, shard) in weight_map {
        let shard = shard.as_str().filter(|name| is_file_name(name)).ok_or_else(|| {
            malformed(format!("`weight_map` puts tensor {tensor:?} in {shard}, expected the name of a file beside it"))
        })?;
        let position = *positions.entry(shard).or_insert_with(|| {
            files.push(shard.to_owned());
            files.len() - 1
        });
        file_of.insert(tensor.clone(), position);
    }
    Ok(Shards { files, file_of })
}

/// True for a name that stays in its folder on every system.
fn is_file_name(name: &str) -> bool {
    let mut components = Path::new(name).components();
    matches!((components.next(), components.next()), (Some(Component::Normal(_)), None))
        && !name.contains(['/', '\\', ':', '\0'])
}
