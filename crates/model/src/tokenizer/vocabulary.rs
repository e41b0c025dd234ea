//! The pieces of a vocabulary: their text, their kind, and their bytes.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

use super::byte_alphabet;
use crate::error::{Error, ErrorKind, Result};

/// More tokens than any model has; a larger vocabulary is refused before any allocation.
const MAX_TOKENS: usize = 1 << 22;

/// More bytes than any token has that a model was trained with. Grammars need the bound, and texts of tokens take memory.
const MAX_PIECE: usize = 1024;

/// The field of GGUF with the kinds of tokens.
pub(super) const TOKEN_TYPE: &str = "tokenizer.ggml.token_type";

/// The purpose of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenKind {
    /// A piece of text.
    Normal,
    /// Stands for text that the vocabulary cannot spell.
    Unknown,
    /// Controls the model (`<|im_start|>`); has no text of its own.
    Control,
    /// A text that is one token wherever it occurs.
    UserDefined,
    /// Padding of the table; never encoded.
    Unused,
    /// One byte of a character that has no piece: `<0x0A>`.
    Byte,
}

impl TokenKind {
    /// Returns the kind of the token `id`, which GGUF numbers.
    pub(super) fn of_gguf(id: usize, number: i64) -> Result<Self> {
        Ok(match number {
            // 0 means "undefined", which converters write for plain pieces.
            0 | 1 => Self::Normal,
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => {
                let message =
                    format!("metadata field `{TOKEN_TYPE}`[{id}] is {number}, expected 1 to 6");
                return Err(Error::new(ErrorKind::Malformed, message));
            }
        })
    }
}

/// The spelling of bytes in the text of a normal piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spelling {
    /// GPT-2's: one printable character per byte.
    ByteLevel,
    /// SentencePiece's: plain UTF-8 with `▁` for the space.
    SentencePiece,
    /// WordPiece's: plain UTF-8 with `##` before a piece that continues a word.
    WordPiece,
}

/// The mark of a piece of WordPiece that continues a word.
pub(super) const CONTINUES_WORD: &str = "##";
/// SentencePiece's visible space.
pub(super) const VISIBLE_SPACE: char = '▁';

/// Token ids, their pieces and kinds. All pieces are in one string; the index holds only ids.
pub(super) struct Vocabulary {
    text: String,
    /// The end of piece `i` in `text`; it starts where piece `i - 1` ends.
    ends: Vec<u32>,
    kinds: Vec<TokenKind>,
    spelling: Spelling,
    index: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

impl Vocabulary {
    /// Creates a vocabulary of `pieces` in the order of their ids. Errors use `field` as their origin.
    pub(super) fn new<'a>(
        pieces: impl ExactSizeIterator<Item = &'a str>,
        kinds: Vec<TokenKind>,
        spelling: Spelling,
        field: &str,
    ) -> Result<Self> {
        let malformed = |message: String| Error::new(ErrorKind::Malformed, message);
        let count = pieces.len();
        check_count(count, field)?;
        debug_assert_eq!(kinds.len(), count);
        let mut vocabulary = Self {
            text: String::new(),
            ends: Vec::with_capacity(count),
            kinds,
            spelling,
            index: HashTable::with_capacity(count),
            hasher: DefaultHashBuilder::default(),
        };
        for (id, piece) in pieces.enumerate() {
            if piece.len() > MAX_PIECE {
                let message = format!(
                    "{field}[{id}] has {} bytes, expected at most {MAX_PIECE}",
                    piece.len()
                );
                return Err(malformed(message));
            }
            vocabulary.text.push_str(piece);
            let end = u32::try_from(vocabulary.text.len())
                .map_err(|_| malformed(format!("{field} has more than 4 GiB of text")))?;
            vocabulary.ends.push(end);
        }
        for id in 0..count as u32 {
            let piece = vocabulary.piece(id);
            if piece.is_empty() || vocabulary.kind(id) == TokenKind::Unused {
                continue;
            }
            if let Some(first) = vocabulary.id(piece) {
                return Err(malformed(format!(
                    "{field} has {piece:?} twice, as tokens {first} and {id}"
                )));
            }
            let hash = vocabulary.hasher.hash_one(piece);
            vocabulary.index.insert_unique(hash, id, |_| {
                unreachable!("the index has room for every token")
            });
        }
        Ok(vocabulary)
    }

    /// Returns the number of ids.
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns the piece of `id` in the vocabulary's spelling; empty for an id without one.
    pub(super) fn piece(&self, id: u32) -> &str {
        let id = id as usize;
        let Some(&end) = self.ends.get(id) else {
            return "";
        };
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        &self.text[start as usize..end as usize]
    }

    /// Returns the kind of `id`; an id without a piece is unused.
    pub(super) fn kind(&self, id: u32) -> TokenKind {
        self.kinds
            .get(id as usize)
            .copied()
            .unwrap_or(TokenKind::Unused)
    }

    pub(super) fn set_kind(&mut self, id: u32, kind: TokenKind) {
        self.kinds[id as usize] = kind;
    }

    /// Returns the id of `piece`, unless it is unused.
    pub(super) fn id(&self, piece: &str) -> Option<u32> {
        self.index
            .find(self.hasher.hash_one(piece), |&id| self.piece(id) == piece)
            .copied()
    }

    /// Returns every id whose kind is `kind`.
    pub(super) fn of_kind(&self, kind: TokenKind) -> impl Iterator<Item = u32> {
        (0u32..)
            .zip(&self.kinds)
            .filter(move |(_, of_token)| **of_token == kind)
            .map(|(id, _)| id)
    }

    /// Returns the text that represents a control or user-defined token in a prompt.
    pub(super) fn marker(&self, id: u32) -> String {
        match self.spelling {
            Spelling::ByteLevel | Spelling::WordPiece => self.piece(id).to_owned(),
            Spelling::SentencePiece => self.piece(id).replace(VISIBLE_SPACE, " "),
        }
    }

    /// Appends the bytes that `id` represents: none for control, unused and unknown ids.
    pub(super) fn append_bytes(&self, id: u32, bytes: &mut Vec<u8>) {
        match (self.kind(id), self.spelling) {
            (TokenKind::Control | TokenKind::Unused | TokenKind::Unknown, _) => {}
            (TokenKind::Byte, _) => bytes.extend(byte_of_piece(self.piece(id))),
            (TokenKind::Normal, Spelling::ByteLevel) => {
                byte_alphabet::append_bytes(self.piece(id), bytes);
            }
            (TokenKind::UserDefined, Spelling::ByteLevel | Spelling::WordPiece) => {
                bytes.extend_from_slice(self.piece(id).as_bytes());
            }
            // A word begins with a space; pieces of one word have none between them.
            (TokenKind::Normal, Spelling::WordPiece) => {
                match self.piece(id).strip_prefix(CONTINUES_WORD) {
                    Some(rest) => bytes.extend_from_slice(rest.as_bytes()),
                    None => {
                        bytes.push(b' ');
                        bytes.extend_from_slice(self.piece(id).as_bytes());
                    }
                }
            }
            (TokenKind::Normal | TokenKind::UserDefined, Spelling::SentencePiece) => {
                bytes.extend_from_slice(self.marker(id).as_bytes());
            }
        }
    }
}

/// Refuses a number of tokens that no model has.
pub(super) fn check_count(count: usize, field: &str) -> Result<()> {
    if (1..=MAX_TOKENS).contains(&count) {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Malformed,
        format!("{field} has {count} tokens, expected 1 to {MAX_TOKENS}"),
    ))
}

/// Returns the byte that a piece such as `<0x0A>` represents.
pub(super) fn byte_of_piece(piece: &str) -> Option<u8> {
    let digits = piece.strip_prefix("<0x")?.strip_suffix('>')?;
    let is_byte = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_byte
        .then(|| u8::from_str_radix(digits, 16).ok())
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vocabulary(pieces: &[&str]) -> Result<Vocabulary> {
        let kinds = vec![TokenKind::Normal; pieces.len()];
        Vocabulary::new(
            pieces.iter().copied(),
            kinds,
            Spelling::ByteLevel,
            "`tokens`",
        )
    }

    #[test]
    fn every_piece_is_found_under_its_id() {
        let vocabulary = vocabulary(&["a", "", "bc"]).unwrap();
        assert_eq!(vocabulary.id("a"), Some(0));
        assert_eq!(vocabulary.id("bc"), Some(2));
        assert_eq!(vocabulary.id(""), None);
        assert_eq!(vocabulary.piece(2), "bc");
        assert_eq!(vocabulary.piece(3), "");
    }

    #[test]
    fn a_piece_that_occurs_twice_is_an_error_that_names_both_tokens() {
        let error = vocabulary(&["a", "b", "a"]).err().unwrap().to_string();
        assert_eq!(error, "`tokens` has \"a\" twice, as tokens 0 and 2");
    }

    #[test]
    fn a_token_that_no_model_was_trained_with_is_refused_by_its_length() {
        let pieces = |bytes: usize| ["a".to_owned(), "b".repeat(bytes)];
        let read = |pieces: [String; 2]| vocabulary(&[&pieces[0], &pieces[1]]).map(drop);
        read(pieces(MAX_PIECE)).unwrap();
        let error = read(pieces(MAX_PIECE + 1)).unwrap_err().to_string();
        assert_eq!(error, "`tokens`[1] has 1025 bytes, expected at most 1024");
    }

    #[test]
    fn a_vocabulary_without_tokens_is_an_error() {
        assert_eq!(vocabulary(&[]).err().unwrap().kind(), ErrorKind::Malformed);
    }

    #[test]
    fn only_two_hexadecimal_digits_spell_a_byte() {
        assert_eq!(byte_of_piece("<0x0A>"), Some(10));
        for piece in ["<0xA>", "<0x+1>", "<0x00A>", "0x0A", "<0xéa>"] {
            assert_eq!(byte_of_piece(piece), None, "{piece}");
        }
    }
}
