//! SentencePiece (LLaMA 1 and 2, Mistral, Gemma, Phi-3): spaces become `▁`; then pieces are merged by score (BPE) or
//! chosen for the highest sum of scores ([`unigram`](super::unigram)). A character without a piece is spelled in bytes.

use hashbrown::HashSet;

use super::limit::Limit;
use super::merge::{Merge, Merger, NO_ID, Symbol};
use super::normalizer::{Normalizer, Prefix};
use super::unigram;
use super::vocabulary::{TokenKind, VISIBLE_SPACE, Vocabulary, byte_of_piece};
use crate::error::{Error, ErrorKind, Result};

/// The algorithm that finds pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Algorithm {
    /// Merges the neighbours whose joint piece has the highest score, until no pair has a joint piece.
    Bpe,
    /// Selects the split of the text into pieces with the highest sum of scores.
    Unigram,
}

/// The treatment of spaces before the search for pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spaces {
    /// Whether a space is put before the text and after each special token.
    pub(super) prefix: bool,
    /// Whether runs of spaces become one, and those at both ends are removed.
    pub(super) remove_extra: bool,
}

impl Spaces {
    fn escape(&self, text: &str) -> String {
        let mut escaped = String::with_capacity(text.len() + text.len() / 4);
        if self.remove_extra {
            for word in text.split(' ').filter(|word| !word.is_empty()) {
                if self.prefix || !escaped.is_empty() {
                    escaped.push(VISIBLE_SPACE);
                }
                escaped.push_str(word);
            }
            return escaped;
        }
        if self.prefix {
            escaped.push(VISIBLE_SPACE);
        }
        escaped.extend(text.chars().map(|character| {
            if character == ' ' {
                VISIBLE_SPACE
            } else {
                character
            }
        }));
        escaped
    }
}

/// The changes to a text before the search for pieces.
enum Normalization {
    /// The changes that GGUF states; user-defined tokens are split off before.
    Spaces(Spaces),
    /// The changes of SentencePiece's own file; user-defined pieces are found in the normalized text.
    Full(Normalizer),
}

/// Encodes text without special tokens.
pub(super) struct SentencePiece {
    algorithm: Algorithm,
    normalization: Normalization,
    /// Score of each token; `NEG_INFINITY` for those that are never produced from text.
    scores: Vec<f32>,
    /// Characters that precede `▁` within a piece. After any other character, `▁` starts a new word.
    before_space: HashSet<char>,
    byte_ids: [u32; 256],
    unknown: Option<u32>,
    unigram: unigram::Limits,
}

impl SentencePiece {
    /// Creates the encoder of a GGUF file; errors use `field` as the name of `scores`.
    pub(super) fn new(
        vocabulary: &Vocabulary,
        algorithm: Algorithm,
        spaces: Spaces,
        scores: Vec<f32>,
        unknown: Option<u32>,
        field: &str,
    ) -> Result<Self> {
        let normalization = Normalization::Spaces(spaces);
        Self::build(
            vocabulary,
            (algorithm, normalization),
            scores,
            unknown,
            field,
        )
    }

    /// Creates the encoder of SentencePiece's own file; errors use `field` as the name of `scores`.
    pub(super) fn of_model_file(
        vocabulary: &Vocabulary,
        algorithm: Algorithm,
        normalizer: Normalizer,
        scores: Vec<f32>,
        unknown: u32,
        field: &str,
    ) -> Result<Self> {
        let normalization = Normalization::Full(normalizer);
        Self::build(
            vocabulary,
            (algorithm, normalization),
            scores,
            Some(unknown),
            field,
        )
    }

    fn build(
        vocabulary: &Vocabulary,
        (algorithm, normalization): (Algorithm, Normalization),
        mut scores: Vec<f32>,
        unknown: Option<u32>,
        field: &str,
    ) -> Result<Self> {
        let malformed = |message| Error::new(ErrorKind::Malformed, message);
        if scores.len() != vocabulary.len() {
            let message = format!(
                "{field} has {} values for {} tokens",
                scores.len(),
                vocabulary.len()
            );
            return Err(malformed(message));
        }
        if let Some(id) = scores.iter().position(|score| !score.is_finite()) {
            return Err(malformed(format!(
                "{field}[{id}] is {}, expected a finite number",
                scores[id]
            )));
        }
        let mut before_space = HashSet::new();
        let mut byte_ids = [NO_ID; 256];
        for (id, score) in (0u32..).zip(&mut scores) {
            let piece = vocabulary.piece(id);
            match vocabulary.kind(id) {
                TokenKind::Normal | TokenKind::UserDefined => {
                    let spaces = piece.match_indices(VISIBLE_SPACE);
                    before_space.extend(
                        spaces.filter_map(|(position, _)| piece[..position].chars().next_back()),
                    );
                }
                kind => {
                    *score = f32::NEG_INFINITY;
                    if let (TokenKind::Byte, Some(byte)) = (kind, byte_of_piece(piece)) {
                        byte_ids[usize::from(byte)] = id;
                    }
                }
            }
        }
        let unigram = unigram::Limits::new(vocabulary, &scores);
        Ok(Self {
            algorithm,
            normalization,
            scores,
            before_space,
            byte_ids,
            unknown,
            unigram,
        })
    }

    /// Returns whether only the text with which a prompt starts gets a space before it.
    pub(super) fn prefixes_first(&self) -> bool {
        match &self.normalization {
            Normalization::Spaces(_) => false,
            Normalization::Full(normalizer) => normalizer.prefix() == Prefix::First,
        }
    }

    /// Returns whether every byte of a text is in one of its tokens, and no token stands for a run of any length.
    pub(super) fn keeps_all(&self) -> bool {
        !self.byte_ids.contains(&NO_ID)
            && match &self.normalization {
                Normalization::Spaces(spaces) => !spaces.remove_extra,
                Normalization::Full(normalizer) => normalizer.keeps_all(),
            }
    }

    /// Appends the tokens of `text`; `is_first` states whether a prompt starts with it.
    pub(super) fn encode(
        &self,
        vocabulary: &Vocabulary,
        (text, is_first): (&str, bool),
        limit: &Limit,
        merger: &mut Merger,
        tokens: &mut Vec<u32>,
    ) -> Result<()> {
        let text = match &self.normalization {
            Normalization::Spaces(spaces) => spaces.escape(text),
            Normalization::Full(normalizer) => normalizer.normalize(text, is_first)?,
        };
        let mut unknown_before = false;
        let mut start = 0;
        let mut before = None;
        for (position, character) in text.char_indices() {
            // Merges never cross the start of a word. Sums of scores do: their rounding depends on it.
            let begins_word = self.algorithm == Algorithm::Bpe
                && character == VISIBLE_SPACE
                && before.is_some_and(|before| !self.before_space.contains(&before));
            if begins_word {
                self.encode_word(
                    vocabulary,
                    &text[start..position],
                    limit,
                    merger,
                    &mut unknown_before,
                    tokens,
                )?;
                start = position;
            }
            before = Some(character);
        }
        self.encode_word(
            vocabulary,
            &text[start..],
            limit,
            merger,
            &mut unknown_before,
            tokens,
        )
    }

    fn encode_word(
        &self,
        vocabulary: &Vocabulary,
        word: &str,
        limit: &Limit,
        merger: &mut Merger,
        unknown_before: &mut bool,
        tokens: &mut Vec<u32>,
    ) -> Result<()> {
        if limit.ends(tokens.len()) {
            return Ok(());
        }
        let mut push = |id, text: &str| {
            *unknown_before = if id == NO_ID {
                self.spell(text, *unknown_before, tokens)?
            } else {
                false
            };
            if id != NO_ID {
                tokens.push(id);
            }
            Ok(())
        };
        match self.algorithm {
            Algorithm::Unigram => {
                unigram::best_pieces(vocabulary, &self.scores, &self.unigram, (word, limit))
                    .into_iter()
                    .try_for_each(|(id, piece)| push(id.unwrap_or(NO_ID), piece))
            }
            Algorithm::Bpe => {
                merger.clear();
                let mut start = 0;
                while let Some(character) = word[start..].chars().next() {
                    let frozen = self.frozen(&word[start..]);
                    let end = start + frozen.unwrap_or(character.len_utf8());
                    let id = self.piece(vocabulary, &word[start..end]).unwrap_or(NO_ID);
                    merger.push(id, start as u32, end as u32);
                    start = end;
                }
                let is_frozen = |symbol: &Symbol| {
                    matches!(self.normalization, Normalization::Full(_))
                        && vocabulary.kind(symbol.id) == TokenKind::UserDefined
                };
                let find = |left: &Symbol, right: &Symbol| {
                    if is_frozen(left) || is_frozen(right) {
                        return None;
                    }
                    let id =
                        self.piece(vocabulary, &word[left.start as usize..right.end as usize])?;
                    Some(Merge {
                        priority: descending(self.scores[id as usize]),
                        id,
                    })
                };
                merger.merge(find, limit).try_for_each(|symbol| {
                    push(symbol.id, &word[symbol.start as usize..symbol.end as usize])
                })
            }
        }
    }

    /// Returns the length of the user-defined piece at the start of `text`, which is not merged.
    fn frozen(&self, text: &str) -> Option<usize> {
        match &self.normalization {
            Normalization::Spaces(_) => None,
            Normalization::Full(normalizer) => normalizer.user_defined(text),
        }
    }

    fn piece(&self, vocabulary: &Vocabulary, text: &str) -> Option<u32> {
        vocabulary
            .id(text)
            .filter(|&id| self.scores[id as usize] > f32::NEG_INFINITY)
    }

    /// Appends the byte tokens of `text`, or one unknown token for a whole run of text without a piece. Returns whether
    /// it is unknown.
    fn spell(&self, text: &str, unknown_before: bool, tokens: &mut Vec<u32>) -> Result<bool> {
        let ids = text.bytes().map(|byte| self.byte_ids[usize::from(byte)]);
        if ids.clone().all(|id| id != NO_ID) {
            tokens.extend(ids);
            return Ok(false);
        }
        let Some(unknown) = self.unknown else {
            let message = format!(
                "the vocabulary has neither a piece nor bytes for {text:?}, nor an unknown token"
            );
            return Err(Error::new(ErrorKind::Tokenizer, message));
        };
        if !unknown_before {
            tokens.push(unknown);
        }
        Ok(true)
    }
}

/// Returns an integer that decreases as `score` increases.
fn descending(score: f32) -> u32 {
    let bits = score.to_bits();
    let ascending = if score.is_sign_negative() {
        !bits
    } else {
        bits | 1 << 31
    };
    !ascending
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_higher_score_is_merged_first() {
        let scores = [f32::MAX, 1.5, 1.0, 0.0, -0.5, -1.0, -1000.0];
        assert!(
            scores
                .windows(2)
                .all(|pair| descending(pair[0]) < descending(pair[1]))
        );
    }
}
