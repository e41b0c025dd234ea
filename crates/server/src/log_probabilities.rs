//! Log probabilities of tokens, in the formats of `/v1/chat/completions` and `/v1/completions`.

use std::fmt::Write;

use serde::Serialize;
use serde_json::{Map, Value};
use triad_engine::LogProbabilities;
use triad_model::tokenizer::{TokenKind, Tokenizer};
use utoipa::ToSchema;

/// Log probabilities of the tokens of a message.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(crate) struct ChatLogProbabilities {
    pub(crate) content: Vec<ChatToken>,
}

/// A token with its log probability, and the most likely tokens at its position.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChatToken {
    #[serde(flatten)]
    token: TokenProbability,
    top_logprobs: Vec<TokenProbability>,
}

/// A token with the model's own log probability, before temperature and penalties.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TokenProbability {
    /// The token's text. U+FFFD replaces a part of a character.
    token: String,
    /// The natural logarithm of the probability.
    logprob: f64,
    /// The bytes of the token's text.
    bytes: Vec<u8>,
}

impl ChatLogProbabilities {
    pub(crate) fn new(tokenizer: &Tokenizer, tokens: &[LogProbabilities]) -> Self {
        let probability = |(token, logprob): (u32, f32)| {
            let bytes = bytes(tokenizer, token);
            TokenProbability {
                token: String::from_utf8_lossy(&bytes).into_owned(),
                logprob: logprob.into(),
                bytes,
            }
        };
        let content = tokens.iter().map(|one| ChatToken {
            token: probability((one.token, one.log_probability)),
            top_logprobs: one.likeliest.iter().copied().map(probability).collect(),
        });
        Self {
            content: content.collect(),
        }
    }
}

/// Log probabilities of the tokens of a text, starting with the prompt's first token if `echo` is set. All arrays have
/// one entry per token.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(crate) struct TextLogProbabilities {
    /// The tokens' texts, or `bytes:\xe2\x80` for parts of characters.
    pub(crate) tokens: Vec<String>,
    /// The natural logarithms of the probabilities; null for the first token of a prompt.
    pub(crate) token_logprobs: Vec<Option<f64>>,
    /// The most likely tokens at each position and the chosen one, by their texts.
    pub(crate) top_logprobs: Vec<Option<Map<String, Value>>>,
    /// The offset of each token in characters.
    pub(crate) text_offset: Vec<usize>,
}

impl TextLogProbabilities {
    /// Adds a token without a probability.
    pub(crate) fn push_unknown(&mut self, tokenizer: &Tokenizer, token: u32, offset: usize) {
        self.tokens.push(name(tokenizer, token));
        self.token_logprobs.push(None);
        self.top_logprobs.push(None);
        self.text_offset.push(offset);
    }

    /// Appends the tokens of `more`.
    pub(crate) fn append(&mut self, mut more: Self) {
        self.tokens.append(&mut more.tokens);
        self.token_logprobs.append(&mut more.token_logprobs);
        self.top_logprobs.append(&mut more.top_logprobs);
        self.text_offset.append(&mut more.text_offset);
    }

    /// Adds tokens, the first of which starts at `offset` in the text. It becomes that of the next token.
    pub(crate) fn extend(
        &mut self,
        tokenizer: &Tokenizer,
        tokens: &[LogProbabilities],
        offset: &mut TextOffset,
    ) {
        for one in tokens {
            let mut likeliest = Map::new();
            for (token, log_probability) in &one.likeliest {
                // If two tokens have the same text, keep the more likely one, which comes first.
                likeliest
                    .entry(name(tokenizer, *token))
                    .or_insert_with(|| (*log_probability).into());
            }
            // As in OpenAI's API, the chosen token is there even if it is not among the most likely.
            likeliest
                .entry(name(tokenizer, one.token))
                .or_insert_with(|| one.log_probability.into());
            self.tokens.push(name(tokenizer, one.token));
            self.token_logprobs.push(Some(one.log_probability.into()));
            self.top_logprobs.push(Some(likeliest));
            self.text_offset
                .push(offset.push(&tokenizer.bytes(one.token)));
        }
    }
}

/// A position in a text, in characters. Bytes that form no character are U+FFFD in the text, as
/// [`String::from_utf8_lossy`] has them.
#[derive(Clone, Debug, Default)]
pub(crate) struct TextOffset {
    characters: usize,
    /// The bytes of a character that is not complete.
    open: Vec<u8>,
}

impl TextOffset {
    /// Moves over the bytes of a token. Returns where the token starts.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> usize {
        let start = self.characters + usize::from(!self.open.is_empty());
        self.open.extend_from_slice(bytes);
        let text = std::mem::take(&mut self.open);
        let mut chunks = text.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            self.characters += chunk.valid().chars().count();
            let rest = chunk.invalid();
            let is_open = str::from_utf8(rest).is_err_and(|error| error.error_len().is_none());
            if is_open && chunks.peek().is_none() {
                self.open = rest.to_vec();
            } else if !rest.is_empty() {
                self.characters += 1;
            }
        }
        start
    }
}

/// Returns the bytes of a token's text, or the name of a control token.
fn bytes(tokenizer: &Tokenizer, token: u32) -> Vec<u8> {
    match tokenizer.token_kind(token) {
        TokenKind::Control => tokenizer
            .piece(token)
            .unwrap_or_default()
            .as_bytes()
            .to_vec(),
        _ => tokenizer.bytes(token),
    }
}

/// Returns the text of a token in OpenAI's format.
fn name(tokenizer: &Tokenizer, token: u32) -> String {
    String::from_utf8(bytes(tokenizer, token)).unwrap_or_else(|error| {
        error
            .as_bytes()
            .iter()
            .fold("bytes:".to_owned(), |mut name, byte| {
                // Writing to a `String` doesn't fail.
                let _ = write!(name, "\\x{byte:02x}");
                name
            })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_starts_where_the_text_of_the_bytes_before_it_ends() {
        let tokens: [&[u8]; 10] = [
            b"h",
            "é".as_bytes(),
            &[0xf0, 0x9f],
            &[0x98, 0x80],
            b" ",
            &[0xa9],
            &[0x91],
            &[0xe2],
            b">",
            "ü".as_bytes(),
        ];
        let mut offset = TextOffset::default();
        let starts = tokens.map(|token| offset.push(token));
        // The second half of a character starts after the first one, which is a character of the text by then.
        assert_eq!(starts, [0, 1, 2, 3, 3, 4, 5, 6, 7, 8]);
        let text = String::from_utf8_lossy(&tokens.concat()).into_owned();
        let last = text.char_indices().nth(starts[9]).unwrap().0;
        assert_eq!(&text[last..], "ü");
    }
}
