//! The adapter of a tokenizer for llguidance: a trie of the bytes of all tokens.

use std::sync::Arc;

use serde_json::Value;
use toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie, TokenizerEnv};
use triad_engine::Model;
use triad_model::tokenizer::{TokenKind, Tokenizer, TokenizerKind};

use crate::error::{Error, Result};

/// A type that owns a tokenizer.
pub trait HasTokenizer: Send + Sync + 'static {
    /// Returns the tokenizer.
    ///
    /// # Errors
    /// If there is none.
    fn tokenizer(&self) -> Result<&Tokenizer>;
}

impl HasTokenizer for Tokenizer {
    fn tokenizer(&self) -> Result<&Tokenizer> {
        Ok(self)
    }
}

impl HasTokenizer for Model {
    fn tokenizer(&self) -> Result<&Tokenizer> {
        Self::tokenizer(self).map_err(|error| Error::Tokenizer {
            problem: error.to_string(),
        })
    }
}

struct Tokens {
    tokenizer: Arc<dyn HasTokenizer>,
    trie: TokTrie,
}

/// Returns the token environment of the tokenizer of `owner`.
pub(crate) fn environment(owner: Arc<dyn HasTokenizer>) -> Result<TokEnv> {
    let tokenizer = owner.tokenizer()?;
    let Some(end) = tokenizer.end_tokens().first() else {
        return Err(Error::Tokenizer {
            problem: "its tokenizer has no end token".into(),
        });
    };
    let count = tokenizer.vocab_size() as u32;
    let words: Vec<_> = (0..count).map(|token| word(tokenizer, token)).collect();
    let trie =
        TokTrie::from(&TokRxInfo::new(count, *end), &words).with_eos_tokens(tokenizer.end_tokens());
    Ok(Arc::new(Tokens {
        tokenizer: owner,
        trie,
    }))
}

/// Maximum number of tokens in a vocabulary from another process: more than any model has.
const MAX_TOLD: u64 = 1 << 22;

/// Returns the token environment of a [vocabulary](crate::check::vocabulary) from another process. Tokens that it
/// leaves out have no text.
pub(crate) fn told(vocabulary: &Value) -> Option<TokEnv> {
    let count = vocabulary["count"]
        .as_u64()
        .filter(|count| *count <= MAX_TOLD)? as u32;
    let mut words = vec![Vec::new(); count as usize];
    let mut tell = |list: &str, word: fn(&Value) -> Option<Vec<u8>>| {
        for told in vocabulary[list].as_array()? {
            *words.get_mut(told[0].as_u64()? as usize)? = word(&told[1])?;
        }
        Some(())
    };
    tell("bytes", |byte| Some(vec![byte.as_u64()? as u8]))?;
    tell("names", |name| {
        Some([&[TokTrie::SPECIAL_TOKEN_MARKER], name.as_str()?.as_bytes()].concat())
    })?;
    let ends: Vec<_> = vocabulary["ends"]
        .as_array()?
        .iter()
        .filter_map(|end| Some(end.as_u64()? as u32))
        .collect();
    let info = TokRxInfo::new(count, *ends.first()?);
    let trie = TokTrie::from(&info, &words).with_eos_tokens(&ends);
    Some(Arc::new(ApproximateTokEnv::new(trie)))
}

/// Returns the bytes of `token`. For a control token it is the name, after a marker byte that no text contains.
fn word(tokenizer: &Tokenizer, token: u32) -> Vec<u8> {
    match tokenizer.token_kind(token) {
        TokenKind::Control => {
            let name = tokenizer.piece(token).unwrap_or_default();
            if name.is_empty() {
                Vec::new()
            } else {
                [&[TokTrie::SPECIAL_TOKEN_MARKER], name.as_bytes()].concat()
            }
        }
        _ => tokenizer.bytes(token),
    }
}

impl Tokens {
    /// Tokenizes `text` as the model was trained on it. Returns `None` if the tokens spell another text, which happens
    /// when a normalizer changes it.
    fn encode(&self, text: &str) -> Option<Vec<u32>> {
        let tokenizer = self.tokenizer.tokenizer().ok()?;
        let tokens = tokenizer.encode_part(text).ok()?;
        let bytes: Vec<u8> = tokens
            .iter()
            .flat_map(|token| tokenizer.bytes(*token))
            .collect();
        (bytes == text.as_bytes()).then_some(tokens)
    }
}

impl TokenizerEnv for Tokens {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<u32> {
        let encode = |text: &str| {
            self.encode(text)
                .unwrap_or_else(|| self.trie.greedy_tokenize(text.as_bytes()))
        };
        self.trie.tokenize_with_greedy_fallback(bytes, encode)
    }

    /// Returns whether tokens of a part of a text equal those of the whole text. SentencePiece adds a space before
    /// every text, so they differ there.
    fn tokenize_is_canonical(&self) -> bool {
        self.tokenizer
            .tokenizer()
            .is_ok_and(|tokenizer| tokenizer.kind() == TokenizerKind::ByteLevelBpe)
    }
}
