//! SentencePiece's map of characters: a table that replaces sequences of characters, such as those of Unicode's
//! compatibility forms.
//!
//! The map is `[bytes of the trie: u32, the trie, texts that end in 0]`. The trie is a double array: a node is a place in
//! it, and the node that follows a byte is at the node's offset, combined with the byte by "exclusive or".

use crate::error::{Error, ErrorKind, Result};

/// Maximum bytes that replace a sequence of characters: a longer text would lengthen every text that is encoded. Those of
/// real maps have up to 33.
const LONGEST: usize = 1024;

/// A map of characters.
pub(super) struct Charsmap {
    trie: Vec<u32>,
    texts: Vec<u8>,
}

impl Charsmap {
    /// Reads a map; `None` if it is empty. Errors use `field` as its name.
    pub(super) fn new(bytes: &[u8], field: &str) -> Result<Option<Self>> {
        if bytes.is_empty() {
            return Ok(None);
        }
        let parts = bytes
            .split_first_chunk::<4>()
            .and_then(|(length, rest)| rest.split_at_checked(u32::from_le_bytes(*length) as usize));
        let (trie, texts) = parts
            .filter(|(trie, _)| !trie.is_empty() && trie.len().is_multiple_of(4))
            .ok_or_else(|| {
                let message = format!("field `{field}` is shorter than it states");
                Error::new(ErrorKind::Malformed, message)
            })?;
        // A replacement may start within another one, but not reach over its end.
        let longest = texts.split(|byte| *byte == 0).map(<[u8]>::len).max();
        if let Some(longest) = longest.filter(|longest| *longest > LONGEST) {
            let message = format!(
                "field `{field}` replaces characters by a text of {longest} bytes, expected at most {LONGEST}"
            );
            return Err(Error::new(ErrorKind::Malformed, message));
        }
        let units = trie.chunks_exact(4);
        Ok(Some(Self {
            trie: units
                .map(|unit| u32::from_le_bytes([unit[0], unit[1], unit[2], unit[3]]))
                .collect(),
            texts: texts.to_vec(),
        }))
    }

    /// Returns the length of the longest sequence at the start of `text` that the map has, and its replacement.
    pub(super) fn replacement(&self, text: &str) -> Result<Option<(usize, &str)>> {
        let Some((length, place)) = self.longest(text.as_bytes()) else {
            return Ok(None);
        };
        let replacement = self.texts.get(place..).and_then(|texts| {
            let end = texts.iter().position(|byte| *byte == 0)?;
            std::str::from_utf8(&texts[..end]).ok()
        });
        match replacement {
            Some(replacement) if text.is_char_boundary(length) => Ok(Some((length, replacement))),
            _ => Err(Error::new(
                ErrorKind::Tokenizer,
                "the tokenizer's map of characters is malformed: it has no replacement where it states one",
            )),
        }
    }

    fn longest(&self, text: &[u8]) -> Option<(usize, usize)> {
        let mut longest = None;
        let mut place = offset(*self.trie.first()?);
        for (index, byte) in text.iter().enumerate() {
            place ^= usize::from(*byte);
            let Some(&unit) = self.trie.get(place) else {
                break;
            };
            // The label of a value has its highest bit set, and is no byte.
            if unit & (1 << 31 | 0xFF) != u32::from(*byte) {
                break;
            }
            place ^= offset(unit);
            if unit >> 8 & 1 == 1 {
                let value = self.trie.get(place)? & !(1 << 31);
                longest = Some((index + 1, value as usize));
            }
        }
        longest
    }
}

/// Returns the offset of a node's children.
fn offset(unit: u32) -> usize {
    ((unit >> 10) << ((unit & 1 << 9) >> 6)) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a map that replaces `a` by `text`, which starts at `place` among the texts.
    fn of_one(place: u32, text: &[u8]) -> Vec<u8> {
        let mut trie = vec![0u32; 512];
        trie[0] = 256 << 10;
        trie[256 ^ usize::from(b'a')] = u32::from(b'a') | 1 << 8 | 3 << 10;
        trie[256 ^ usize::from(b'a') ^ 3] = place | 1 << 31;
        let mut map = (trie.len() as u32 * 4).to_le_bytes().to_vec();
        map.extend(trie.iter().flat_map(|unit| unit.to_le_bytes()));
        map.extend(text);
        map
    }

    #[test]
    fn a_sequence_is_replaced_and_others_are_not() {
        let map = Charsmap::new(&of_one(0, "é\0".as_bytes()), "map")
            .unwrap()
            .unwrap();
        assert_eq!(map.replacement("ab").unwrap(), Some((1, "é")));
        for text in ["b", "", "\0", "天"] {
            assert_eq!(map.replacement(text).unwrap(), None);
        }
    }

    #[test]
    fn a_replacement_has_at_most_1024_bytes() {
        let of = |count: usize| {
            Charsmap::new(&of_one(0, &[&vec![b'e'; count][..], b"\0"].concat()), "map")
        };
        let map = of(1024).unwrap().unwrap();
        assert_eq!(map.replacement("a").unwrap().unwrap().1.len(), 1024);
        let error = of(1025).err().unwrap().to_string();
        assert!(error.contains("`map`") && error.contains("1025"), "{error}");
    }

    #[test]
    fn a_map_that_is_cut_off_or_has_no_text_is_an_error() {
        let whole = of_one(0, b"e\0");
        for length in 1..1 + 4 * 512 {
            assert!(Charsmap::new(&whole[..length], "map").is_err());
        }
        assert!(Charsmap::new(&[], "map").unwrap().is_none());
        for map in [of_one(0, b"e"), of_one(9, b"e\0"), of_one(0, b"\xFF\0")] {
            let map = Charsmap::new(&map, "map").unwrap().unwrap();
            assert!(map.replacement("a").is_err());
        }
    }
}
