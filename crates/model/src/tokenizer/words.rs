//! The encoders of Triad's own, which encode text without special tokens.

use std::borrow::Cow;

use super::byte_level::ByteLevelBpe;
use super::character_level::CharacterBpe;
use super::limit::Limit;
use super::markers::{Fragment, Markers};
use super::merge::Merger;
use super::sentence_piece::SentencePiece;
use super::vocabulary::Vocabulary;
use crate::error::Result;

/// An encoder of text without special tokens.
pub(super) enum Words {
    ByteLevel(ByteLevelBpe),
    Characters(CharacterBpe),
    SentencePiece(SentencePiece),
}

impl Words {
    /// Returns whether every byte of a text is in one of its tokens, and no token stands for a run of any length.
    pub(super) fn keeps_all(&self) -> bool {
        match self {
            Self::ByteLevel(encoder) => encoder.keeps_all(),
            Self::Characters(encoder) => encoder.keeps_all(),
            Self::SentencePiece(encoder) => encoder.keeps_all(),
        }
    }

    /// Appends the tokens of `text`; no more than `limit` wants. `is_first` states whether a prompt starts with it.
    pub(super) fn encode(
        &self,
        vocabulary: &Vocabulary,
        (text, is_first): (&str, bool),
        limit: &Limit,
        merger: &mut Merger,
        tokens: &mut Vec<u32>,
    ) -> Result<()> {
        match self {
            Self::ByteLevel(encoder) => encoder.encode(vocabulary, text, limit, merger, tokens),
            Self::Characters(encoder) => encoder.encode(vocabulary, text, limit, merger, tokens),
            Self::SentencePiece(encoder) => {
                return encoder.encode(vocabulary, (text, is_first), limit, merger, tokens);
            }
        }
        Ok(())
    }

    /// Appends the tokens of a text that `markers` split, without the character `removed`.
    pub(super) fn encode_fragments(
        &self,
        (vocabulary, markers): (&Vocabulary, &Markers),
        (text, parse_special): (&str, bool),
        limit: &Limit,
        removed: Option<char>,
        tokens: &mut Vec<u32>,
    ) -> Result<()> {
        let (mut merger, mut outcome) = (Merger::default(), Ok(()));
        markers.split(text, parse_special, |fragment| match fragment {
            _ if outcome.is_err() => {}
            Fragment::Token {
                id,
                is_first,
                is_control,
            } => {
                // The space before a prompt stays, unless the prompt starts with a control token.
                if is_first && !is_control && self.prefixes_first() {
                    outcome = self.encode(vocabulary, ("", true), limit, &mut merger, tokens);
                }
                tokens.push(id);
            }
            Fragment::Text { text, is_first } => {
                let text = match removed {
                    Some(removed) => Cow::Owned(text.replace(removed, "")),
                    None => Cow::Borrowed(text),
                };
                let text = (&*text, is_first);
                outcome = self.encode(vocabulary, text, limit, &mut merger, tokens);
            }
        });
        outcome
    }

    /// Returns whether only the text with which a prompt starts gets a space before it.
    fn prefixes_first(&self) -> bool {
        matches!(self, Self::SentencePiece(encoder) if encoder.prefixes_first())
    }
}
