//! Byte-level BPE (GPT-2, LLaMA 3, Qwen, SmolLM): text is cut into words, a word into bytes, bytes are merged.

use hashbrown::HashMap;

use super::merge::{Merge, Merger, NO_ID};
use super::pre_tokenizer::PreTokenizer;
use super::vocabulary::{TokenKind, Vocabulary};
use crate::error::{Error, ErrorKind, Result};

/// GPT-2's printable character of every byte: itself where it is printable Latin-1, else counted up from U+0100.
const ALPHABET: [char; 256] = alphabet();

const fn is_printable(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF)
}

const fn alphabet() -> [char; 256] {
    let mut characters = ['\0'; 256];
    let mut byte = 0;
    let mut beyond = 0x100;
    while byte < 256 {
        characters[byte] = if is_printable(byte as u8) {
            byte as u8 as char
        } else {
            beyond += 1;
            match char::from_u32(beyond - 1) {
                Some(character) => character,
                None => unreachable!(),
            }
        };
        byte += 1;
    }
    characters
}

/// The byte of a character of [`ALPHABET`].
fn byte_of(character: char) -> Option<u8> {
    /// Bytes in the order in which `ALPHABET` gives them characters from U+0100 on.
    const BEYOND: [u8; 68] = {
        let mut bytes = [0; 68];
        let (mut byte, mut count) = (0, 0);
        while byte < 256 {
            if !is_printable(byte as u8) {
                bytes[count] = byte as u8;
                count += 1;
            }
            byte += 1;
        }
        bytes
    };
    match u8::try_from(character) {
        Ok(byte) => is_printable(byte).then_some(byte),
        Err(_) => BEYOND.get(character as usize - 0x100).copied(),
    }
}

/// Appends the bytes that `piece` spells. A piece with a character outside the alphabet spells itself.
pub(super) fn append_bytes(piece: &str, bytes: &mut Vec<u8>) {
    let start = bytes.len();
    for character in piece.chars() {
        let Some(byte) = byte_of(character) else {
            bytes.truncate(start);
            bytes.extend_from_slice(piece.as_bytes());
            return;
        };
        bytes.push(byte);
    }
}

/// The piece that spells `bytes`.
fn spell(bytes: &[u8]) -> String {
    bytes.iter().map(|&byte| ALPHABET[usize::from(byte)]).collect()
}

/// Encodes text without special tokens.
pub(super) struct ByteLevelBpe {
    pre_tokenizer: PreTokenizer,
    /// Token of each single byte; a vocabulary may lack bytes that its training text lacked.
    byte_ids: [u32; 256],
    merges: HashMap<(u32, u32), Merge>,
}

impl ByteLevelBpe {
    /// `merges` are pairs of pieces separated by a space, best first; `field` names them in errors.
    pub(super) fn new(
        vocabulary: &Vocabulary,
        merges: &[String],
        pre_tokenizer: PreTokenizer,
        field: &str,
    ) -> Result<Self> {
        let byte_ids = std::array::from_fn(|byte| {
            let mut buffer = [0; 4];
            vocabulary.id(ALPHABET[byte].encode_utf8(&mut buffer)).unwrap_or(NO_ID)
        });
        let respelled = respelled_user_defined(vocabulary);
        let id = |piece: &str| vocabulary.id(piece).or_else(|| respelled.get(piece).copied());
        let mut table = HashMap::with_capacity(merges.len());
        let mut merged = String::new();
        for (priority, merge) in (0u32..).zip(merges) {
            let malformed =
                |what: &str| Error::new(ErrorKind::Malformed, format!("{field}[{priority}] is {merge:?}, {what}"));
            let (left, right) = merge
                .split_once(' ')
                .filter(|(left, right)| !left.is_empty() && !right.is_empty() && !right.contains(' '))
                .ok_or_else(|| malformed("expected two pieces separated by one space"))?;
            merged.clear();
            merged.push_str(left);
            merged.push_str(right);
            let known = |piece| id(piece).ok_or_else(|| malformed(&format!("but no token is {piece:?}")));
            let merge = Merge { priority, id: known(&merged)? };
            table.entry((known(left)?, known(right)?)).or_insert(merge);
        }
        Ok(Self { pre_tokenizer, byte_ids, merges: table })
    }

    /// Appends the tokens of `text`. A byte without a token is left out, as the models' own tokenizers do.
    pub(super) fn encode(&self, vocabulary: &Vocabulary, text: &str, merger: &mut Merger, tokens: &mut Vec<u32>) {
        self.pre_tokenizer.split(text, &mut |word| {
            if self.pre_tokenizer.keeps_known_words()
                && let Some(id) = vocabulary.id(&spell(word.as_bytes()))
            {
                tokens.push(id);
                return;
            }
            merger.clear();
            for (position, byte) in (0u32..).zip(word.bytes()) {
                let id = self.byte_ids[usize::from(byte)];
                if id != NO_ID {
                    merger.push(id, position, position + 1);
                }
            }
            let find = |left: &super::merge::Symbol, right: &super::merge::Symbol| {
                self.merges.get(&(left.id, right.id)).copied()
            };
            tokens.extend(merger.merge(find).map(|symbol| symbol.id));
        });
    }
}

/// Ids of user-defined tokens by their byte-level spelling: GGUF stores them as plain text, merges do not.
fn respelled_user_defined(vocabulary: &Vocabulary) -> HashMap<String, u32> {
    let respelled = |id| (spell(vocabulary.piece(id).as_bytes()), id);
    vocabulary.of_kind(TokenKind::UserDefined).map(respelled).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alphabet_has_every_byte_once() {
        for byte in 0..=255u8 {
            assert_eq!(byte_of(ALPHABET[usize::from(byte)]), Some(byte));
        }
        assert_eq!(ALPHABET[usize::from(b' ')], 'Ġ');
        assert_eq!(ALPHABET[usize::from(b'\n')], 'Ċ');
        assert_eq!(byte_of(' '), None);
        assert_eq!(byte_of('中'), None);
    }

    #[test]
    fn a_piece_outside_the_alphabet_spells_itself() {
        let mut bytes = Vec::new();
        append_bytes("Ġa", &mut bytes);
        append_bytes("a b", &mut bytes);
        assert_eq!(bytes, b" aa b");
    }
}
