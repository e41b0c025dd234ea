//! Headers of safetensors files: the caller writes the header, then the tensors' bytes in their places.

use std::collections::BTreeMap;
use std::ops::Range;

use serde_json::{Map, Value, json};

use super::{Element, METADATA};

/// Alignment of the data after the header: a cache line, and the widest vector.
pub const ALIGNMENT: usize = 64;

/// A tensor to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// The type of its numbers.
    pub element: Element,
    /// Row-major, outermost dimension first.
    pub shape: Vec<usize>,
}

/// The first bytes of a file, and the place of each tensor in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The header with its length: the start of the file.
    pub header: Vec<u8>,
    /// Byte ranges in the file, consecutive, in the order of the entries.
    pub places: Vec<Range<usize>>,
}

impl Layout {
    /// Returns the layout of a file with these tensors in their order. The data starts at a multiple of [`ALIGNMENT`].
    ///
    /// # Panics
    /// If the total length exceeds `usize`.
    pub fn new(entries: &[Entry], metadata: &BTreeMap<String, String>) -> Self {
        let mut offset = 0usize;
        let mut offsets = Vec::with_capacity(entries.len());
        let mut object = Map::new();
        if !metadata.is_empty() {
            object.insert(METADATA.into(), json!(metadata));
        }
        for Entry {
            name,
            element,
            shape,
        } in entries
        {
            let end = element
                .bytes_of(shape)
                .and_then(|bytes| offset.checked_add(bytes))
                .expect("tensors are in memory");
            let entry =
                json!({"dtype": element.name(), "shape": shape, "data_offsets": [offset, end]});
            object.insert(name.clone(), entry);
            offsets.push(offset..end);
            offset = end;
        }
        let json = Value::Object(object).to_string();
        let start = (size_of::<u64>() + json.len()).next_multiple_of(ALIGNMENT);
        let mut header = ((start - size_of::<u64>()) as u64).to_le_bytes().to_vec();
        header.extend(json.as_bytes());
        // The format permits blanks after the header for this purpose.
        header.resize(start, b' ');
        let places = offsets
            .into_iter()
            .map(|bytes| start + bytes.start..start + bytes.end)
            .collect();
        Self { header, places }
    }

    /// Returns the bytes of the whole file.
    pub fn file_length(&self) -> usize {
        self.places
            .last()
            .map_or(self.header.len(), |last| last.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::safetensors::read;

    #[test]
    fn what_was_laid_out_is_read() {
        let entry = |name: &str, element, shape: &[usize]| Entry {
            name: name.into(),
            element,
            shape: shape.into(),
        };
        let entries = [
            entry("z", Element::I8, &[64, 2]),
            entry("a", Element::F32, &[3]),
            entry("empty", Element::U8, &[0]),
            entry("b", Element::Bf16, &[1, 5]),
        ];
        let metadata = BTreeMap::from([("key".to_owned(), "a \"value\"".to_owned())]);
        let layout = Layout::new(&entries, &metadata);
        assert_eq!(layout.places[0].start % ALIGNMENT, 0);
        let mut file = layout.header.clone();
        file.resize(layout.file_length(), 0);
        let header = read(
            &file,
            &[Element::I8, Element::F32, Element::U8, Element::Bf16],
        )
        .unwrap();
        assert_eq!(header.metadata, metadata);
        for (entry, place) in entries.iter().zip(&layout.places) {
            let tensor = &header.tensors[&entry.name];
            assert_eq!(
                (&tensor.element, &tensor.shape, &tensor.bytes),
                (&entry.element, &entry.shape, place)
            );
        }
    }
}
