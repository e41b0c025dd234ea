//! Parses an answer and the arguments of its calls while it is generated.

use super::harmony::HarmonyReader;
use super::{AnswerDelta, AnswerPart, Tool, ToolCallParser, ToolFormat};

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
/// The word between the name and the arguments of Mistral's calls.
const SEPARATOR: &str = "[ARGS]";
/// Quotes before the arguments of a call: around `name`, the function's name, and `arguments` or `parameters`.
const QUOTES: usize = 6;

/// The constraint of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerForm {
    /// No constraint.
    Any,
    /// The constraint of [`grammar`](super::grammar).
    Calls,
    /// The constraint of [`grammar_of_text_and_calls`](super::grammar_of_text_and_calls).
    TextAndCalls,
    /// The constraint of [`grammar_of_json_or_calls`](super::grammar_of_json_or_calls).
    JsonOrCalls,
}

/// A parser that splits one answer into text, names of functions and pieces of arguments.
///
/// In an answer with a constraint, a call is detected as soon as its name is complete, and its arguments are returned
/// piece by piece. In other answers, arguments are returned as a whole.
#[derive(Debug)]
pub struct AnswerReader(Reader);

#[derive(Debug)]
enum Reader {
    AnyAnswer(ToolCallParser),
    Formed(FormedReader),
    Harmony(HarmonyReader),
}

impl AnswerReader {
    /// Creates a reader for a new answer.
    pub fn new(format: ToolFormat, form: AnswerForm) -> Self {
        Self::with_tools(format, form, &[])
    }

    /// Creates a reader for a new answer that may call `tools`. Their schemas tell the types of arguments in formats
    /// that have no types of their own.
    pub fn with_tools(format: ToolFormat, form: AnswerForm, tools: &[Tool]) -> Self {
        Self(match (form, format) {
            (AnswerForm::Any, ToolFormat::Harmony) => Reader::Harmony(HarmonyReader::new(true)),
            (AnswerForm::Any, format) => {
                Reader::AnyAnswer(ToolCallParser::new(format).with_tools(tools))
            }
            (form, format) => Reader::Formed(FormedReader::new(format, form)),
        })
    }

    /// Creates a reader for an answer of [`ToolFormat::Harmony`] that may not call functions.
    pub fn of_channels() -> Self {
        Self(Reader::Harmony(HarmonyReader::new(false)))
    }

    /// Adds text of the answer. Returns its pieces.
    pub fn push(&mut self, text: &str) -> Vec<AnswerDelta> {
        match &mut self.0 {
            Reader::AnyAnswer(parser) => deltas(parser.push(text)),
            Reader::Formed(reader) => reader.push(text),
            Reader::Harmony(reader) => reader.push(text),
        }
    }

    /// Returns the remaining pieces after the end of the answer. A call that was cut off before its arguments is
    /// dropped.
    pub fn finish(self) -> Vec<AnswerDelta> {
        match self.0 {
            Reader::AnyAnswer(parser) => deltas(parser.finish()),
            Reader::Harmony(reader) => reader.finish(),
            Reader::Formed(reader) => match reader.state {
                // With other constraints it is the beginning of a call.
                State::Text if reader.form == AnswerForm::TextAndCalls => {
                    some(AnswerDelta::Text, reader.pending)
                        .into_iter()
                        .collect()
                }
                _ => Vec::new(),
            },
        }
    }
}

fn deltas(parts: Vec<AnswerPart>) -> Vec<AnswerDelta> {
    let delta = |part| match part {
        AnswerPart::Text(text) => vec![AnswerDelta::Text(text)],
        AnswerPart::Call(call) => vec![
            AnswerDelta::Call(call.name),
            AnswerDelta::Arguments(call.arguments),
        ],
    };
    parts.into_iter().flat_map(delta).collect()
}

fn some(delta: fn(String) -> AnswerDelta, text: String) -> Option<AnswerDelta> {
    (!text.is_empty()).then(|| delta(text))
}

/// The position of a [`FormedReader`] in an answer.
#[derive(Debug)]
enum State {
    /// At the beginning of JSON or calls.
    Start,
    /// In JSON.
    Json,
    /// In text.
    Text,
    /// After a call, where white space is dropped.
    Between,
    /// In a call, before its arguments.
    Head,
    Arguments(Depth),
    /// After the arguments of a call.
    Tail,
}

/// The depth in the braces and brackets of an object.
#[derive(Debug, Default)]
struct Depth {
    depth: usize,
    is_in_text: bool,
    is_escaped: bool,
}

impl Depth {
    /// Returns whether the object ends with `byte`.
    fn ends_with(&mut self, byte: u8) -> bool {
        match byte {
            _ if self.is_escaped => self.is_escaped = false,
            b'\\' => self.is_escaped = self.is_in_text,
            b'"' => self.is_in_text = !self.is_in_text,
            _ if self.is_in_text => {}
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => {
                self.depth = self.depth.saturating_sub(1);
                return self.depth == 0;
            }
            _ => {}
        }
        false
    }
}

/// A parser for answers with a constraint: it only has to find the positions of their parts.
#[derive(Debug)]
struct FormedReader {
    form: AnswerForm,
    /// Whether calls are between [`OPEN`] and [`CLOSE`]; otherwise the whole answer is calls.
    is_marked: bool,
    state: State,
    /// Text that is not returned yet.
    pending: String,
}

impl FormedReader {
    fn new(format: ToolFormat, form: AnswerForm) -> Self {
        let is_marked = !matches!(format, ToolFormat::Llama3 | ToolFormat::Mistral);
        let state = match form {
            _ if !is_marked => State::Head,
            AnswerForm::JsonOrCalls => State::Start,
            _ => State::Text,
        };
        Self {
            form,
            is_marked,
            state,
            pending: String::new(),
        }
    }

    fn push(&mut self, text: &str) -> Vec<AnswerDelta> {
        self.pending.push_str(text);
        let mut deltas = Vec::new();
        while self.advance(&mut deltas) {}
        deltas
    }

    /// Removes and returns the first `end` bytes of the pending text.
    fn take(&mut self, end: usize) -> String {
        let rest = self.pending.split_off(end);
        std::mem::replace(&mut self.pending, rest)
    }

    /// Returns the name of a call whose name is outside of JSON, and the place of its arguments.
    fn named(&self) -> Option<(String, usize)> {
        let separator = self.pending.find(SEPARATOR)?;
        let head = &self.pending[..separator];
        let arguments = separator + self.pending[separator..].find('{')?;
        let name = head.rsplit(']').next().unwrap_or(head).trim();
        (!head.contains('"')).then(|| (name.to_owned(), arguments))
    }

    /// Makes one step. Returns whether another one may follow.
    fn advance(&mut self, deltas: &mut Vec<AnswerDelta>) -> bool {
        match &mut self.state {
            State::Start => {
                match self.pending.bytes().next() {
                    None => return false,
                    // JSON does not begin with `<`.
                    Some(b'<') => self.state = State::Text,
                    Some(_) => self.state = State::Json,
                }
                true
            }
            State::Json => {
                deltas.extend(some(AnswerDelta::Text, self.take(self.pending.len())));
                false
            }
            State::Text => match self.pending.find(OPEN) {
                Some(place) => {
                    deltas.extend(some(AnswerDelta::Text, self.take(place)));
                    self.take(OPEN.len());
                    self.state = State::Head;
                    true
                }
                None => {
                    let kept = super::parser::beginning_at_end(&self.pending, OPEN);
                    deltas.extend(some(
                        AnswerDelta::Text,
                        self.take(self.pending.len() - kept),
                    ));
                    false
                }
            },
            State::Between => {
                self.take(self.pending.len() - self.pending.trim_start().len());
                if !self.pending.is_empty() {
                    self.state = State::Text;
                }
                !self.pending.is_empty()
            }
            State::Head => {
                if let Some((name, arguments)) = self.named() {
                    deltas.push(AnswerDelta::Call(name));
                    self.take(arguments);
                    self.state = State::Arguments(Depth::default());
                    return true;
                }
                let quotes: Vec<_> = self
                    .pending
                    .match_indices('"')
                    .map(|(place, _)| place)
                    .take(QUOTES)
                    .collect();
                let Some(last) = quotes.get(QUOTES - 1) else {
                    return false;
                };
                let Some(brace) = self.pending[*last..].find('{') else {
                    return false;
                };
                // Names of functions have only characters that JSON does not escape.
                deltas.push(AnswerDelta::Call(
                    self.pending[quotes[2] + 1..quotes[3]].to_owned(),
                ));
                self.take(last + brace);
                self.state = State::Arguments(Depth::default());
                true
            }
            State::Arguments(depth) => {
                let end = self.pending.bytes().position(|byte| depth.ends_with(byte));
                let more = self.take(end.map_or(self.pending.len(), |end| end + 1));
                deltas.extend(some(AnswerDelta::Arguments, more));
                if end.is_some() {
                    self.state = if self.is_marked {
                        State::Tail
                    } else {
                        State::Head
                    };
                }
                end.is_some()
            }
            State::Tail => {
                let Some(place) = self.pending.find(CLOSE) else {
                    return false;
                };
                self.take(place + CLOSE.len());
                self.state = State::Between;
                true
            }
        }
    }
}
