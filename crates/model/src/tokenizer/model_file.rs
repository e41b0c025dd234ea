//! SentencePiece's file `tokenizer.model`: pieces, their scores, and the rules of normalization.

use super::charsmap::Charsmap;
use super::protobuf::{Fields, Value};
use super::sentence_piece::Algorithm;
use super::vocabulary::{TokenKind, byte_of_piece, check_count};
use crate::error::{Error, ErrorKind, Result};

/// A piece of the vocabulary.
pub(super) struct Piece<'a> {
    pub(super) text: &'a str,
    pub(super) score: f32,
    pub(super) kind: TokenKind,
}

/// The content of the file.
pub(super) struct ModelFile<'a> {
    pub(super) pieces: Vec<Piece<'a>>,
    pub(super) algorithm: Algorithm,
    pub(super) charsmap: Option<Charsmap>,
    pub(super) adds_prefix: bool,
    pub(super) removes_extra_spaces: bool,
    /// Id of the piece for unknown text.
    pub(super) unknown: u32,
}

/// The fields of the file before they are checked, with SentencePiece's defaults.
struct Draft<'a> {
    pieces: Vec<Piece<'a>>,
    model_type: u64,
    treats_space_as_suffix: bool,
    has_byte_fallback: bool,
    charsmap: &'a [u8],
    adds_prefix: bool,
    removes_extra_spaces: bool,
    escapes_spaces: bool,
    has_denormalizer: bool,
}

impl<'a> ModelFile<'a> {
    /// Reads the content of a file.
    pub(super) fn read(bytes: &'a [u8]) -> Result<Self> {
        let mut draft = Draft {
            pieces: Vec::new(),
            model_type: 1,
            treats_space_as_suffix: false,
            has_byte_fallback: false,
            charsmap: &[],
            adds_prefix: true,
            removes_extra_spaces: true,
            escapes_spaces: true,
            has_denormalizer: false,
        };
        // Counted first: a piece takes more memory than its shortest form in the file.
        let mut count = 0;
        for field in Fields::new(bytes) {
            count += usize::from(field?.0 == 1);
        }
        check_count(count, "field `pieces`")?;
        draft.pieces.reserve_exact(count);
        for field in Fields::new(bytes) {
            match field? {
                (1, value) => {
                    let piece = piece(value.bytes("pieces")?, draft.pieces.len())?;
                    draft.pieces.push(piece);
                }
                (2, value) => draft.trainer(value.bytes("trainer_spec")?)?,
                (3, value) => draft.normalizer(value.bytes("normalizer_spec")?)?,
                (5, value) => draft.denormalizer(value.bytes("denormalizer_spec")?)?,
                _ => {}
            }
        }
        draft.check()
    }
}

impl<'a> Draft<'a> {
    fn trainer(&mut self, message: &[u8]) -> Result<()> {
        for field in Fields::new(message) {
            match field? {
                (3, value) => self.model_type = value.integer("trainer_spec.model_type")?,
                (24, value) => {
                    let name = "trainer_spec.treat_whitespace_as_suffix";
                    self.treats_space_as_suffix = value.bool(name)?;
                }
                (35, value) => self.has_byte_fallback = value.bool("trainer_spec.byte_fallback")?,
                _ => {}
            }
        }
        Ok(())
    }

    fn normalizer(&mut self, message: &'a [u8]) -> Result<()> {
        for field in Fields::new(message) {
            match field? {
                (2, value) => {
                    self.charsmap = value.bytes("normalizer_spec.precompiled_charsmap")?;
                }
                (3, value) => self.adds_prefix = value.bool("normalizer_spec.add_dummy_prefix")?,
                (4, value) => {
                    let name = "normalizer_spec.remove_extra_whitespaces";
                    self.removes_extra_spaces = value.bool(name)?;
                }
                (5, value) => {
                    self.escapes_spaces = value.bool("normalizer_spec.escape_whitespaces")?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn denormalizer(&mut self, message: &[u8]) -> Result<()> {
        for field in Fields::new(message) {
            if let (2, Value::Bytes(map)) = field? {
                self.has_denormalizer |= !map.is_empty();
            }
        }
        Ok(())
    }

    fn check(self) -> Result<ModelFile<'a>> {
        let unsupported = |message: String| Error::new(ErrorKind::Unsupported, message);
        let algorithm = match self.model_type {
            1 => Algorithm::Unigram,
            2 => Algorithm::Bpe,
            other => {
                let name = match other {
                    3 => "WORD",
                    4 => "CHAR",
                    _ => "unknown",
                };
                return Err(unsupported(format!(
                    "field `trainer_spec.model_type` is {other} ({name}); Triad supports UNIGRAM and BPE"
                )));
            }
        };
        for (is_so, field) in [
            (
                self.treats_space_as_suffix,
                "trainer_spec.treat_whitespace_as_suffix` is true",
            ),
            (
                !self.escapes_spaces,
                "normalizer_spec.escape_whitespaces` is false",
            ),
            (
                self.has_denormalizer,
                "denormalizer_spec.precompiled_charsmap` is not empty",
            ),
        ] {
            if is_so {
                return Err(unsupported(format!(
                    "field `{field}, which Triad does not support"
                )));
            }
        }
        let unknown = self.check_pieces(algorithm)?;
        Ok(ModelFile {
            algorithm,
            charsmap: Charsmap::new(self.charsmap, "normalizer_spec.precompiled_charsmap")?,
            adds_prefix: self.adds_prefix,
            removes_extra_spaces: self.removes_extra_spaces,
            pieces: self.pieces,
            unknown,
        })
    }

    /// Checks the kinds of the pieces; returns the id of the unknown piece.
    fn check_pieces(&self, algorithm: Algorithm) -> Result<u32> {
        let malformed = |message: String| Err(Error::new(ErrorKind::Malformed, message));
        let unsupported = |message: String| Err(Error::new(ErrorKind::Unsupported, message));
        let (mut unknown, mut bytes) = (None, [false; 256]);
        for (id, piece) in (0u32..).zip(&self.pieces) {
            match (piece.kind, byte_of_piece(piece.text)) {
                (TokenKind::Unknown, _) if unknown.is_some() => {
                    return malformed(format!("field `pieces`[{id}] is the second UNKNOWN piece"));
                }
                (TokenKind::Unknown, _) => unknown = Some(id),
                (TokenKind::Byte, Some(byte)) => bytes[usize::from(byte)] = true,
                (TokenKind::Byte, None) => {
                    return malformed(format!(
                        "field `pieces`[{id}] is the BYTE {:?}, expected <0x00> to <0xFF>",
                        piece.text
                    ));
                }
                (TokenKind::Unused, _) if algorithm == Algorithm::Bpe => {
                    return unsupported(format!(
                        "field `pieces`[{id}] is UNUSED, which Triad does not support for BPE"
                    ));
                }
                // Among equal sums of scores SentencePiece chooses by rounding, in another way for these pieces.
                (TokenKind::UserDefined, _) if algorithm == Algorithm::Unigram => {
                    return unsupported(format!(
                        "field `pieces`[{id}] is USER_DEFINED, which Triad does not support for UNIGRAM"
                    ));
                }
                _ => {}
            }
        }
        if bytes.contains(&true) != self.has_byte_fallback
            || bytes.contains(&true) && bytes.contains(&false)
        {
            return malformed(format!(
                "field `trainer_spec.byte_fallback` is {}, and {} of 256 bytes have pieces",
                self.has_byte_fallback,
                bytes.iter().filter(|has_piece| **has_piece).count()
            ));
        }
        match unknown {
            Some(unknown) => Ok(unknown),
            None => malformed("field `pieces` has no UNKNOWN piece".into()),
        }
    }
}

fn piece(message: &[u8], id: usize) -> Result<Piece<'_>> {
    let malformed =
        |what: String| Error::new(ErrorKind::Malformed, format!("field `pieces`[{id}] {what}"));
    let (mut text, mut score, mut kind) = ("", 0.0, 1);
    for field in Fields::new(message) {
        match field? {
            (1, value) => text = value.text("pieces.piece")?,
            (2, value) => score = value.float("pieces.score")?,
            (3, value) => kind = value.integer("pieces.type")?,
            _ => {}
        }
    }
    let kind = match kind {
        1 => TokenKind::Normal,
        2 => TokenKind::Unknown,
        3 => TokenKind::Control,
        4 => TokenKind::UserDefined,
        5 => TokenKind::Unused,
        6 => TokenKind::Byte,
        other => return Err(malformed(format!("has the type {other}, expected 1 to 6"))),
    };
    if text.is_empty() {
        return Err(malformed("has no text".into()));
    }
    Ok(Piece { text, score, kind })
}
