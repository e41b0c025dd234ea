//! Parses an answer while it is generated. Text is returned as soon as it cannot be the beginning of a call, a call as
//! soon as it is complete. Text that begins like a call but is not one is returned unchanged.

use serde_json::Value;

use super::{AnswerPart, ToolCall, ToolFormat, python};

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
/// The control token as text. An answer of a format without this token is a call if it begins like one.
const MISTRAL: &str = "[TOOL_CALLS]";
const MISTRAL_ARGUMENTS: &str = "[ARGS]";
const PYTHON_TAG: &str = "<|python_tag|>";
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
    /// After [`OPEN`].
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
    state: State,
    /// Text that is not returned yet.
    pending: String,
}

impl ToolCallParser {
    /// Creates a parser for a new answer.
    pub fn new(format: ToolFormat) -> Self {
        Self {
            format,
            state: State::Start,
            pending: String::new(),
        }
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
            // Models forget the closing word.
            State::Call => parse_json(&rest).and_then(|value| ToolCall::all_from_json(&value)),
            State::Whole | State::Start => whole(self.format, &rest),
            State::Text | State::Between => None,
        };
        match calls {
            Some(calls) => parts.extend(calls.into_iter().map(AnswerPart::Call)),
            None if self.state == State::Call => {
                parts.push(AnswerPart::Text(format!("{OPEN}{rest}")));
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
                if let Some(place) = self.pending.find(OPEN) {
                    let rest = self.pending.split_off(place + OPEN.len());
                    self.pending.truncate(place);
                    parts.push(AnswerPart::Text(std::mem::replace(&mut self.pending, rest)));
                    self.state = State::Call;
                    return true;
                }
                let kept = self.pending.len() - beginning_at_end(&self.pending, OPEN);
                let rest = self.pending.split_off(kept);
                parts.push(AnswerPart::Text(std::mem::replace(&mut self.pending, rest)));
                false
            }
            State::Call => {
                let Some(place) = self.pending.find(CLOSE) else {
                    return false;
                };
                // The closing word within a string of the arguments does not end the call.
                let mut end = place;
                let calls = loop {
                    let calls = parse_json(&self.pending[..end])
                        .and_then(|value| ToolCall::all_from_json(&value));
                    let next = || {
                        self.pending[end + CLOSE.len()..]
                            .find(CLOSE)
                            .map(|next| end + CLOSE.len() + next)
                    };
                    match (calls, next()) {
                        (None, Some(next)) if is_unclosed(&self.pending[..end]) => end = next,
                        (None, None) if is_unclosed(&self.pending[..end]) => return false,
                        (calls, _) => break calls,
                    }
                };
                let rest = self.pending.split_off(end + CLOSE.len());
                let call = std::mem::replace(&mut self.pending, rest);
                match calls {
                    Some(calls) => {
                        parts.extend(calls.into_iter().map(AnswerPart::Call));
                        self.state = State::Between;
                    }
                    None => {
                        parts.push(AnswerPart::Text(format!("{OPEN}{call}")));
                        self.state = State::Text;
                    }
                }
                true
            }
        }
    }
}

/// Returns whether the JSON in `text` ends within a string, so that the following text may be part of it.
fn is_unclosed(text: &str) -> bool {
    let (mut is_in_text, mut is_escaped) = (false, false);
    for byte in text.bytes() {
        (is_in_text, is_escaped) = match byte {
            _ if is_escaped => (is_in_text, false),
            b'\\' => (is_in_text, is_in_text),
            b'"' => (!is_in_text, false),
            _ => (is_in_text, false),
        };
    }
    is_in_text
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
        ToolFormat::Hermes => &[],
        ToolFormat::Llama3 => &[PYTHON_TAG, "{", "[{", CODE[2]],
        ToolFormat::Mistral => &[MISTRAL, "[{"],
        ToolFormat::Python => &["[", CODE[0], CODE[1], CODE[2], "{"],
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
        ToolFormat::Hermes => None,
        ToolFormat::Llama3 => several(text.strip_prefix(PYTHON_TAG).unwrap_or(text), ';'),
        ToolFormat::Mistral => mistral(text),
        ToolFormat::Python => python::calls(text).or_else(|| several(text, ';')),
    }
}

fn mistral(text: &str) -> Option<Vec<ToolCall>> {
    let Some(calls) = text.strip_prefix(MISTRAL) else {
        return several(text, ';');
    };
    if !calls.contains(MISTRAL_ARGUMENTS) {
        return several(calls, ';');
    }
    let one = |call: &str| {
        let (name, arguments) = call.split_once(MISTRAL_ARGUMENTS)?;
        let arguments = parse_json(arguments).filter(Value::is_object)?;
        Some(ToolCall {
            name: name.trim().to_owned(),
            arguments: arguments.to_string(),
        })
    };
    calls.split(MISTRAL).map(one).collect()
}

/// Parses consecutive JSON values with `separator` or white space between them. Returns `None` if one is not a call.
fn several(text: &str, separator: char) -> Option<Vec<ToolCall>> {
    let (mut calls, mut rest) = (Vec::new(), text.trim());
    while !rest.is_empty() {
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
        calls.extend(ToolCall::all_from_json(&values.next()?.ok()?)?);
        rest = rest[values.byte_offset()..]
            .trim_start()
            .trim_start_matches(separator)
            .trim_start();
    }
    (!calls.is_empty()).then_some(calls)
}

fn parse_json(text: &str) -> Option<Value> {
    serde_json::from_str(text.trim()).ok()
}
