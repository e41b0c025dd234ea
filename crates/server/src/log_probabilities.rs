//! Probabilities of tokens, in the forms of `/v1/chat/completions` and `/v1/completions`.

use std::fmt::Write;

use serde::Serialize;
use serde_json::{Map, Value};
use triad_engine::LogProbabilities;
use triad_model::tokenizer::{TokenKind, Tokenizer};
use utoipa::ToSchema;

/// Of the tokens of a message.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(crate) struct ChatLogProbabilities {
    pub(crate) content: Vec<ChatToken>,
}

/// A token with its probability, and the likeliest tokens of its place.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChatToken {
    #[serde(flatten)]
    token: TokenProbability,
    top_logprobs: Vec<TokenProbability>,
}

/// A token and how likely it is: the model's own probability, before temperature and penalties.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TokenProbability {
    /// Its text; U+FFFD for a part of a character.
    token: String,
    /// Natural logarithm of its probability.
    logprob: f64,
    /// Its bytes.
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

/// Of the tokens of a text, from the prompt's first one on if that is echoed. All have one entry a token.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(crate) struct TextLogProbabilities {
    /// Texts, or `bytes:\xe2\x80` for parts of characters.
    pub(crate) tokens: Vec<String>,
    /// Natural logarithms of their probabilities; null for the first token of a prompt.
    pub(crate) token_logprobs: Vec<Option<f64>>,
    /// The likeliest tokens of each place, by their texts.
    pub(crate) top_logprobs: Vec<Option<Map<String, Value>>>,
    /// Where the token begins, in characters.
    pub(crate) text_offset: Vec<usize>,
}

impl TextLogProbabilities {
    /// Adds a token of which no probability is known.
    pub(crate) fn push_unknown(&mut self, tokenizer: &Tokenizer, token: u32, offset: usize) {
        self.tokens.push(name(tokenizer, token));
        self.token_logprobs.push(None);
        self.top_logprobs.push(None);
        self.text_offset.push(offset);
    }

    /// Adds what follows.
    pub(crate) fn append(&mut self, mut more: Self) {
        self.tokens.append(&mut more.tokens);
        self.token_logprobs.append(&mut more.token_logprobs);
        self.top_logprobs.append(&mut more.top_logprobs);
        self.text_offset.append(&mut more.text_offset);
    }

    /// Adds tokens, of which the first begins at `offset` of the text; returns where the next one begins.
    pub(crate) fn extend(
        &mut self,
        tokenizer: &Tokenizer,
        tokens: &[LogProbabilities],
        mut offset: usize,
    ) -> usize {
        for one in tokens {
            let mut likeliest = Map::new();
            for (token, log_probability) in &one.likeliest {
                // Of two tokens with one text the likelier counts, which comes first.
                likeliest
                    .entry(name(tokenizer, *token))
                    .or_insert_with(|| (*log_probability).into());
            }
            self.tokens.push(name(tokenizer, one.token));
            self.token_logprobs.push(Some(one.log_probability.into()));
            self.top_logprobs.push(Some(likeliest));
            self.text_offset.push(offset);
            offset += characters(tokenizer, one.token);
        }
        offset
    }
}

/// Characters that begin in `token`.
pub(crate) fn characters(tokenizer: &Tokenizer, token: u32) -> usize {
    let is_begin = |byte: &&u8| (**byte as i8) >= -0x40;
    tokenizer.bytes(token).iter().filter(is_begin).count()
}

/// Bytes of a token; of a control token, its name.
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

/// The text of a token as OpenAI writes it.
fn name(tokenizer: &Tokenizer, token: u32) -> String {
    String::from_utf8(bytes(tokenizer, token)).unwrap_or_else(|error| {
        error
            .as_bytes()
            .iter()
            .fold("bytes:".to_owned(), |mut name, byte| {
                // Writing to a text doesn't fail.
                let _ = write!(name, "\\x{byte:02x}");
                name
            })
    })
}
