//! Takes an answer apart while it comes: text is passed on as soon as it cannot be the beginning of a call, a call when it
//! is whole. What begins as a call and is none is text, unchanged.

use serde_json::Value;

use super::{AnswerPart, ToolCall, ToolFormat, python};

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
/// Control tokens as text; where they have none, an answer that begins as a call is one.
const MISTRAL: &str = "[TOOL_CALLS]";
const MISTRAL_ARGUMENTS: &str = "[ARGS]";
const PYTHON_TAG: &str = "<|python_tag|>";
/// A block of code with calls, and its end.
const CODE: [&str; 3] = ["```tool_code", "```python", "```json"];
const CODE_END: &str = "```";

/// Where in an answer the parser is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// At its beginning, where whole answers that are calls begin.
    Start,
    /// In text.
    Text,
    /// Behind [`OPEN`].
    Call,
    /// In an answer that begins as calls do; its whole text is waited for.
    Whole,
    /// Behind a call, where space is dropped.
    Between,
}

/// Takes one answer apart.
#[derive(Debug)]
pub struct ToolCallParser {
    format: ToolFormat,
    state: State,
    /// What has come and is not passed on.
    pending: String,
}

impl ToolCallParser {
    /// For an answer at its beginning.
    pub fn new(format: ToolFormat) -> Self {
        Self {
            format,
            state: State::Start,
            pending: String::new(),
        }
    }

    /// Takes more of the answer; the parts that are whole.
    pub fn push(&mut self, text: &str) -> Vec<AnswerPart> {
        self.pending.push_str(text);
        let mut parts = Vec::new();
        while self.advance(&mut parts) {}
        merged(parts)
    }

    /// What is left behind the end of the answer.
    pub fn finish(mut self) -> Vec<AnswerPart> {
        let mut parts = Vec::new();
        let rest = std::mem::take(&mut self.pending);
        let calls = match self.state {
            // The closing word is one that models forget.
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

    /// One step; whether there may be another.
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
                // The word in a text of the arguments is not the end of the call.
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

/// Whether the JSON in `text` ends within a text: then what follows may be a part of it.
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

/// Neighbouring texts as one, none of them empty.
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

/// Bytes at the end of `text` that `word` begins with.
pub(super) fn beginning_at_end(text: &str, word: &str) -> usize {
    let longest = text.len().min(word.len() - 1);
    (1..=longest)
        .rev()
        .find(|length| text.as_bytes().ends_with(&word.as_bytes()[..*length]))
        .unwrap_or(0)
}

/// Whether an answer that begins with `begin` is waited for as a whole, and whether it may be one with more text.
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

/// The calls that are a whole answer; `None` if it is none.
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

/// Values of JSON behind each other, `separator` or space between them, all of them calls.
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
