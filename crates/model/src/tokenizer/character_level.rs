//! BPE of characters by a list of merges (Gemma 4): spaces become `▁`, only line breaks end a word, and a character
//! without a piece is spelled in bytes.

use super::limit::Limit;
use super::merge::{Merger, NO_ID};
use super::merge_table::MergeTable;
use super::pre_tokenizer::PreTokenizer;
use super::vocabulary::{TokenKind, VISIBLE_SPACE, Vocabulary, byte_of_piece};
use crate::error::Result;

/// Encodes text without special tokens.
pub(super) struct CharacterBpe {
    pre_tokenizer: PreTokenizer,
    byte_ids: [u32; 256],
    merges: MergeTable,
}

impl CharacterBpe {
    /// Creates the encoder; errors use `field` as the name of `merges`.
    pub(super) fn new(
        vocabulary: &Vocabulary,
        merges: &[String],
        pre_tokenizer: PreTokenizer,
        field: &str,
    ) -> Result<Self> {
        let mut byte_ids = [NO_ID; 256];
        for id in vocabulary.of_kind(TokenKind::Byte) {
            if let Some(byte) = byte_of_piece(vocabulary.piece(id)) {
                byte_ids[usize::from(byte)] = id;
            }
        }
        let merges = MergeTable::new(merges, |piece| vocabulary.id(piece), field)?;
        Ok(Self {
            pre_tokenizer,
            byte_ids,
            merges,
        })
    }

    /// Returns whether every byte has a token.
    pub(super) fn keeps_all(&self) -> bool {
        !self.byte_ids.contains(&NO_ID)
    }

    /// Appends the tokens of `text`. Omits a byte without a token, as llama.cpp does.
    pub(super) fn encode(
        &self,
        vocabulary: &Vocabulary,
        text: &str,
        limit: &Limit,
        merger: &mut Merger,
        tokens: &mut Vec<u32>,
    ) {
        let mut space = [0; 4];
        let text = text.replace(' ', VISIBLE_SPACE.encode_utf8(&mut space));
        self.pre_tokenizer.split(&text, &mut |word| {
            if limit.ends(tokens.len()) {
                return;
            }
            // A run of line breaks may be a token that no merges lead to.
            if word.starts_with('\n')
                && let Some(id) = vocabulary.id(word)
            {
                tokens.push(id);
                return;
            }
            merger.clear();
            for (start, character) in word.char_indices() {
                let end = start + character.len_utf8();
                let id = vocabulary.id(&word[start..end]).unwrap_or(NO_ID);
                merger.push(id, start as u32, end as u32);
            }
            for symbol in self.merges.merge(merger, limit) {
                if symbol.id != NO_ID {
                    tokens.push(symbol.id);
                    continue;
                }
                let bytes = word[symbol.start as usize..symbol.end as usize].bytes();
                let ids = bytes.map(|byte| self.byte_ids[usize::from(byte)]);
                tokens.extend(ids.filter(|id| *id != NO_ID));
            }
        });
    }
}
