//! Byte-level BPE (GPT-2, LLaMA 3, Qwen, SmolLM): text is split into words and words into bytes, and bytes are merged.

use hashbrown::HashMap;

use super::byte_alphabet::{ALPHABET, spell};
use super::limit::Limit;
use super::merge::{Merger, NO_ID};
use super::merge_table::MergeTable;
use super::pre_tokenizer::PreTokenizer;
use super::vocabulary::{TokenKind, Vocabulary};
use crate::error::Result;

/// Encodes text without special tokens.
pub(super) struct ByteLevelBpe {
    pre_tokenizer: PreTokenizer,
    /// Token of each single byte; a vocabulary may lack bytes that its training text did not contain.
    byte_ids: [u32; 256],
    merges: MergeTable,
}

impl ByteLevelBpe {
    /// Creates the encoder. `merges` are pairs of pieces separated by a space, best first; errors use `field` as their
    /// name.
    pub(super) fn new(
        vocabulary: &Vocabulary,
        merges: &[String],
        pre_tokenizer: PreTokenizer,
        field: &str,
    ) -> Result<Self> {
        let byte_ids = std::array::from_fn(|byte| {
            let mut buffer = [0; 4];
            vocabulary
                .id(ALPHABET[byte].encode_utf8(&mut buffer))
                .unwrap_or(NO_ID)
        });
        let respelled = respelled_user_defined(vocabulary);
        let id = |piece: &str| {
            vocabulary
                .id(piece)
                .or_else(|| respelled.get(piece).copied())
        };
        let merges = MergeTable::new(merges, id, field)?;
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

    /// Appends the tokens of `text`. Omits a byte without a token, as the models' own tokenizers do.
    pub(super) fn encode(
        &self,
        vocabulary: &Vocabulary,
        text: &str,
        limit: &Limit,
        merger: &mut Merger,
        tokens: &mut Vec<u32>,
    ) {
        self.pre_tokenizer.split(text, &mut |word| {
            if limit.ends(tokens.len()) {
                return;
            }
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
            let symbols = self.merges.merge(merger, limit);
            tokens.extend(symbols.map(|symbol| symbol.id));
        });
    }
}

/// Returns the ids of user-defined tokens by their byte-level spelling: GGUF stores them as plain text, merges do not.
fn respelled_user_defined(vocabulary: &Vocabulary) -> HashMap<String, u32> {
    let respelled = |id| (spell(vocabulary.piece(id).as_bytes()), id);
    vocabulary
        .of_kind(TokenKind::UserDefined)
        .map(respelled)
        .collect()
}
