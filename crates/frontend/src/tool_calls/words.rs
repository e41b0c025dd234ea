//! The words of a format in grammars: as text, or as the control tokens of a vocabulary.

use triad_model::tokenizer::Tokenizer;

use super::format::control_word;

/// The words that are control tokens of a vocabulary. A grammar names such a token by its number, because it has no
/// text; other words are text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Words {
    tokens: Vec<(&'static str, u32)>,
}

/// The words that grammars of calls have.
const OF_GRAMMARS: [&str; 4] = ["<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]"];

impl Words {
    /// Finds the words in a vocabulary.
    pub fn new(tokenizer: &Tokenizer) -> Self {
        let token = |word: &'static str| Some((word, control_word(tokenizer, word)?));
        Self {
            tokens: OF_GRAMMARS.into_iter().filter_map(token).collect(),
        }
    }

    /// Returns the control token of `word`.
    pub(super) fn token(&self, word: &str) -> Option<u32> {
        let found = self.tokens.iter().find(|(name, _)| *name == word);
        found.map(|(_, token)| *token)
    }

    /// Returns the control tokens.
    pub fn tokens(&self) -> impl Iterator<Item = u32> {
        self.tokens.iter().map(|(_, token)| *token)
    }

    /// Returns `word` with the text `before` and `after` it as a sequence of a Lark grammar.
    pub(super) fn lark(&self, before: &str, word: &str, after: &str) -> String {
        let quoted = |text: &str| serde_json::Value::from(text).to_string();
        let Some(token) = self.token(word) else {
            return quoted(&format!("{before}{word}{after}"));
        };
        let mut sequence = format!("<[{token}]>");
        if !before.is_empty() {
            sequence = format!("{} {sequence}", quoted(before));
        }
        if !after.is_empty() {
            sequence = format!("{sequence} {}", quoted(after));
        }
        sequence
    }
}
