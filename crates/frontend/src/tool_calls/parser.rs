//! Parses an answer while it is generated. Text is returned as soon as it cannot be the beginning of a call, a call as
//! soon as it is complete. Text that begins like a call but is not one is returned unchanged.

use triad_engine::Model;

use super::{AnswerPart, Tool, ToolCall, ToolFormat, bodies, python};
use crate::error::Result;

const PYTHON_TAG: &str = "<|python_tag|>";
/// The words around calls in Python's syntax of Llama 4.
const PYTHON_WORDS: [&str; 2] = ["<|python_start|>", "<|python_end|>"];
/// The word before Phi-4's calls, which is not a token.
const FUNCTOOLS: &str = "functools";
/// Openings of code blocks with calls, and their end.
const CODE: [&str; 3] = ["```tool_code", "```python", "```json"];
const CODE_END: &str = "```";

/// The position of the parser in an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// At the beginning, where an answer that is a call as a whole begins.
    Start,
    /// In text.
    Text,
    /// After the format's opening word.
    Call,
    /// In an answer that begins like calls; the parser waits for its end.
    Whole,
    /// After a call, where white space is dropped.
    Between,
}

/// A parser for one answer.
#[derive(Debug)]
pub struct ToolCallParser {
    format: ToolFormat,
    /// The functions that the model may call, which tell the types of arguments.
    tools: Vec<Tool>,
    state: State,
    /// Text that is not returned yet.
    pending: String,
}

impl ToolCallParser {
    /// Creates a parser for a new answer.
    pub fn new(format: ToolFormat) -> Self {
        Self {
            format,
            tools: Vec::new(),
            state: State::Start,
            pending: String::new(),
        }
    }

    /// Creates a parser for an answer of `model` that may call `tools`. Also returns the control tokens whose names the
    /// text of the answer has to contain ([`GenerateOptions::spelled`](triad_engine::GenerateOptions::spelled)).
    ///
    /// # Errors
    /// If the model has no tokenizer.
    pub fn for_model(model: &Model, tools: &[Tool]) -> Result<(Self, Vec<u32>)> {
        let (format, spelled) = ToolFormat::of_answers(model)?;
        Ok((Self::new(format).with_tools(tools), spelled))
    }

    /// Uses the schemas of `tools` for formats whose arguments have no types of their own.
    #[must_use]
    pub fn with_tools(self, tools: &[Tool]) -> Self {
        Self {
            tools: tools.to_vec(),
            ..self
        }
    }

    /// Returns the format of calls with words around them. Where a format has none, it is that of Hermes, which
    /// grammars of all formats may have.
    fn marked(&self) -> ToolFormat {
        match self.format.marks() {
            Some(_) => self.format,
            None => ToolFormat::Hermes,
        }
    }

    /// Returns the words around calls.
    fn words(&self) -> (&'static str, &'static str) {
        let marks = self.marked().marks();
        marks.map_or(("", ""), |marks| (marks.open, marks.close))
    }

    /// Adds text of the answer. Returns the parts that are complete.
    pub fn push(&mut self, text: &str) -> Vec<AnswerPart> {
        self.pending.push_str(text);
        let mut parts = Vec::new();
        while self.advance(&mut parts) {}
        merged(parts)
    }

    /// Returns the remaining parts after the end of the answer.
    pub fn finish(mut self) -> Vec<AnswerPart> {
        let mut parts = Vec::new();
        let rest = std::mem::take(&mut self.pending);
        let calls = match self.state {
            // Models forget the closing word, and some formats have none.
            State::Call => bodies::calls(self.marked(), &rest, &self.tools),
            State::Whole | State::Start => whole(self.format, &rest),
            State::Text | State::Between => None,
        };
        match calls {
            Some(calls) => parts.extend(calls.into_iter().map(AnswerPart::Call)),
            None if self.state == State::Call => {
                parts.push(AnswerPart::Text(format!("{}{rest}", self.words().0)));
            }
            None if self.state == State::Between && rest.trim().is_empty() => {}
            None => parts.push(AnswerPart::Text(rest)),
        }
        merged(parts)
    }

    /// Makes one step. Returns whether another one may follow.
    fn advance(&mut self, parts: &mut Vec<AnswerPart>) -> bool {
        match self.state {
            State::Start => {
                let begin = self.pending.trim_start();
                if begin.is_empty() {
                    return false;
                }
                let (is_whole, may_be) = begins_whole(self.format, begin);
                if may_be && !is_whole {
                    return false;
                }
                self.state = if is_whole { State::Whole } else { State::Text };
                true
            }
            State::Whole => false,
            State::Between => {
                let rest = self.pending.trim_start().to_owned();
                self.pending = rest;
                if !self.pending.is_empty() {
                    self.state = State::Text;
                }
                !self.pending.is_empty()
            }
            State::Text => {
                let (open, _) = self.words();
                if let Some(place) = self.pending.find(open) {
                    let rest = self.pending.split_off(place + open.len());
                    self.pending.truncate(place);
                    parts.push(AnswerPart::Text(std::mem::replace(&mut self.pending, rest)));
                    self.state = State::Call;
                    return true;
                }
                let kept = self.pending.len() - beginning_at_end(&self.pending, open);
                let rest = self.pending.split_off(kept);
                parts.push(AnswerPart::Text(std::mem::replace(&mut self.pending, rest)));
                false
            }
            State::Call => {
                let (open, close) = self.words();
                let Some(place) = (!close.is_empty())
                    .then(|| self.pending.find(close))
                    .flatten()
                else {
                    return false;
                };
                // The closing word within a string of the arguments does not end the call.
                let mut end = place;
                let calls = loop {
                    let body = &self.pending[..end];
                    if !bodies::is_unclosed(self.marked(), body) {
                        break bodies::calls(self.marked(), body, &self.tools);
                    }
                    match self.pending[end + close.len()..].find(close) {
                        Some(next) => end += close.len() + next,
                        None => return false,
                    }
                };
                let rest = self.pending.split_off(end + close.len());
                let call = std::mem::replace(&mut self.pending, rest);
                match calls {
                    Some(calls) => {
                        parts.extend(calls.into_iter().map(AnswerPart::Call));
                        self.state = State::Between;
                    }
                    None => {
                        parts.push(AnswerPart::Text(format!("{open}{call}")));
                        self.state = State::Text;
                    }
                }
                true
            }
        }
    }
}

/// Merges neighbouring texts, and drops empty ones.
fn merged(parts: Vec<AnswerPart>) -> Vec<AnswerPart> {
    let mut merged: Vec<AnswerPart> = Vec::new();
    for part in parts {
        match (merged.last_mut(), part) {
            (_, AnswerPart::Text(text)) if text.is_empty() => {}
            (Some(AnswerPart::Text(before)), AnswerPart::Text(text)) => before.push_str(&text),
            (_, part) => merged.push(part),
        }
    }
    merged
}

/// Returns the number of bytes at the end of `text` that are a beginning of `word`.
pub(super) fn beginning_at_end(text: &str, word: &str) -> usize {
    let longest = text.len().min(word.len() - 1);
    (1..=longest)
        .rev()
        .find(|length| text.as_bytes().ends_with(&word.as_bytes()[..*length]))
        .unwrap_or(0)
}

/// Returns whether an answer with the beginning `begin` is parsed as a whole, and whether it may become such an answer
/// with more text.
fn begins_whole(format: ToolFormat, begin: &str) -> (bool, bool) {
    let words: &[&str] = match format {
        ToolFormat::Llama3 => &[PYTHON_TAG, "{", "[{", CODE[2]],
        ToolFormat::Mistral => &["[{"],
        ToolFormat::Python => &["[", CODE[0], CODE[1], CODE[2], "{", PYTHON_WORDS[0]],
        ToolFormat::Phi4 => &[FUNCTOOLS],
        _ => &[],
    };
    let is_whole = words.iter().any(|word| begin.starts_with(word));
    (is_whole, words.iter().any(|word| word.starts_with(begin)))
}

/// Returns the calls of an answer that consists of calls; `None` if it does not.
fn whole(format: ToolFormat, text: &str) -> Option<Vec<ToolCall>> {
    let text = text.trim();
    let text = CODE
        .iter()
        .find_map(|code| text.strip_prefix(code))
        .map_or(text, |code| {
            code.trim_end().strip_suffix(CODE_END).unwrap_or(code)
        });
    let text = text.trim();
    match format {
        ToolFormat::Llama3 => bodies::several(text.strip_prefix(PYTHON_TAG).unwrap_or(text), ';'),
        ToolFormat::Mistral => bodies::several(text, ';'),
        ToolFormat::Phi4 => bodies::several(text.strip_prefix(FUNCTOOLS)?, ';'),
        ToolFormat::Python => {
            let text = text.strip_prefix(PYTHON_WORDS[0]).unwrap_or(text);
            let text = text.strip_suffix(PYTHON_WORDS[1]).unwrap_or(text);
            python::calls(text).or_else(|| bodies::several(text, ';'))
        }
        _ => None,
    }
}
