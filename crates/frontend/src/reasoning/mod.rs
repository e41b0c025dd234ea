//! Reasoning of models: the words around it, and its separation from the answer.
//!
//! [`Reasoning::of_model`] finds the words that a model writes. A [`ReasoningReader`] separates an answer while it is
//! generated. A [`ReasoningConstraintFactory`] lets the reasoning pass before the answer that another factory constrains,
//! and bounds its tokens.

mod form;
#[cfg(test)]
mod tests;

pub use form::ReasoningConstraintFactory;

use triad_model::tokenizer::Tokenizer;

use crate::tool_calls::{ToolFormat, control_word};

/// The words around the reasoning of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reasoning {
    /// The word before it. The prompt may end with it.
    open: &'static str,
    /// The word after it.
    close: &'static str,
    /// Whether the answer is messages of several channels, as in [`ToolFormat::Harmony`].
    has_channels: bool,
}

/// The words of each family: Qwen3, DeepSeek-R1, GLM, SmolLM3 and most others; Magistral; Command A; Seed-OSS; EXAONE;
/// Gemma 4.
const WORDS: [(&str, &str); 6] = [
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<seed:think>", "</seed:think>"),
    ("<thought>", "</thought>"),
    ("<|channel>thought", "<channel|>"),
];
/// The control tokens of Gemma 4's words, which are longer than a token.
const OTHER_TOKENS: [&str; 1] = ["<|channel>"];

impl Reasoning {
    /// Finds the words in the source of the model's chat template, or as tokens of the vocabulary. Returns `None` for a
    /// model that has none.
    pub fn of_model(template: Option<&str>, tokenizer: &Tokenizer) -> Option<Self> {
        if ToolFormat::of_template(template) == ToolFormat::Harmony {
            return Some(Self {
                open: "<|channel|>analysis<|message|>",
                close: "<|channel|>final<|message|>",
                has_channels: true,
            });
        }
        let is_written = |word: &str| template.is_some_and(|template| template.contains(word));
        let is_token = |word: &str| tokenizer.id(word).is_some();
        let found = WORDS
            .into_iter()
            .find(|(open, close)| is_written(close) || (is_token(open) && is_token(close)));
        found.map(|(open, close)| Self {
            open,
            close,
            has_channels: false,
        })
    }

    /// Returns whether the answer is messages of several channels, which [`AnswerReader`] reads.
    ///
    /// [`AnswerReader`]: crate::tool_calls::AnswerReader
    pub fn has_channels(self) -> bool {
        self.has_channels
    }

    /// Returns the control tokens among the words. An answer is read with their names as a part of its text.
    pub fn control_words(self, tokenizer: &Tokenizer) -> Vec<u32> {
        if self.has_channels {
            return ToolFormat::Harmony.control_words(tokenizer);
        }
        let words = [self.open, self.close].into_iter().chain(OTHER_TOKENS);
        words
            .filter_map(|word| control_word(tokenizer, word))
            .collect()
    }

    /// Returns whether an answer that continues the message `prompt` begins within reasoning, because the message has
    /// opened it.
    pub fn is_open_after(self, prompt: &str) -> bool {
        let open = prompt.rfind(self.open);
        open.is_some_and(|open| !prompt[open..].contains(self.close))
    }

    /// Returns whether the text ends with the opening word and white space.
    pub fn opens_at_end_of(self, prompt: &str) -> bool {
        prompt.trim_end().ends_with(self.open)
    }

    /// Returns whether the text ends with the closing word and white space, as where a template ends the reasoning
    /// before it begins.
    pub fn closes_at_end_of(self, prompt: &str) -> bool {
        prompt.trim_end().ends_with(self.close)
    }
}

/// A piece of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReasoningDelta {
    /// More of the reasoning.
    Reasoning(String),
    /// More of the answer after it.
    Answer(String),
}

/// The position of a [`ReasoningReader`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// At the beginning, where the opening word may come.
    Start,
    /// At the beginning of the reasoning, where white space is dropped.
    Opened,
    Reasoning,
    /// After the closing word, where white space is dropped.
    Closed,
    Answer,
}

/// Separates the reasoning at the beginning of one answer from the rest. White space around both is dropped.
#[derive(Debug)]
pub struct ReasoningReader {
    words: Reasoning,
    state: State,
    /// Text that is not returned yet.
    pending: String,
}

impl ReasoningReader {
    /// Creates a reader for a new answer, which begins within reasoning if `is_open`.
    pub fn new(words: Reasoning, is_open: bool) -> Self {
        Self {
            words,
            state: if is_open { State::Opened } else { State::Start },
            pending: String::new(),
        }
    }

    /// Adds text of the answer. Returns its pieces.
    pub fn push(&mut self, text: &str) -> Vec<ReasoningDelta> {
        self.pending.push_str(text);
        let mut deltas = Vec::new();
        while self.advance(&mut deltas) {}
        deltas
    }

    /// Returns the remaining piece after the end of the answer.
    pub fn finish(self) -> Option<ReasoningDelta> {
        let delta = match self.state {
            State::Start | State::Answer => ReasoningDelta::Answer,
            State::Reasoning => ReasoningDelta::Reasoning,
            State::Opened | State::Closed => return None,
        };
        let rest = match self.state {
            State::Reasoning => self.pending.trim_end().to_owned(),
            _ => self.pending,
        };
        (!rest.is_empty()).then(|| delta(rest))
    }

    /// Removes and returns the first `end` bytes of the pending text.
    fn take(&mut self, end: usize) -> String {
        let rest = self.pending.split_off(end);
        std::mem::replace(&mut self.pending, rest)
    }

    fn drop_space(&mut self) -> bool {
        self.take(self.pending.len() - self.pending.trim_start().len());
        !self.pending.is_empty()
    }

    /// Makes one step. Returns whether another one may follow.
    fn advance(&mut self, deltas: &mut Vec<ReasoningDelta>) -> bool {
        let Reasoning { open, close, .. } = self.words;
        match self.state {
            State::Start => {
                let begin = self.pending.trim_start();
                if begin.starts_with(open) {
                    let end = self.pending.len() - begin.len() + open.len();
                    self.take(end);
                    self.state = State::Opened;
                } else if open.starts_with(begin) {
                    return false;
                } else {
                    self.state = State::Answer;
                }
                true
            }
            State::Opened => {
                if !self.drop_space() {
                    return false;
                }
                // Some models repeat the word that the prompt ends with.
                if self.pending.starts_with(open) {
                    self.take(open.len());
                    return true;
                }
                let may_repeat = open.starts_with(&self.pending);
                if !may_repeat {
                    self.state = State::Reasoning;
                }
                !may_repeat
            }
            State::Reasoning => {
                let found = self.pending.find(close);
                let end = found.unwrap_or_else(|| {
                    let begun = (1..close.len()).rev().find(|length| {
                        self.pending
                            .as_bytes()
                            .ends_with(&close.as_bytes()[..*length])
                    });
                    self.pending.len() - begun.unwrap_or(0)
                });
                let end = self.pending[..end].trim_end().len();
                let text = self.take(end);
                if !text.is_empty() {
                    deltas.push(ReasoningDelta::Reasoning(text));
                }
                if found.is_some() {
                    let end = self.pending.find(close).unwrap_or(0) + close.len();
                    self.take(end);
                    self.state = State::Closed;
                }
                found.is_some()
            }
            State::Closed => {
                let has_more = self.drop_space();
                if has_more {
                    self.state = State::Answer;
                }
                has_more
            }
            State::Answer => {
                let text = std::mem::take(&mut self.pending);
                if !text.is_empty() {
                    deltas.push(ReasoningDelta::Answer(text));
                }
                false
            }
        }
    }
}
