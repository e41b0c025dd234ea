//! Answers as text and calls of functions.

use serde_json::{Value, json};
use triad_frontend::tool_calls::{AnswerDelta, AnswerForm, AnswerReader, ToolFormat};

use crate::names::new_id;

/// Letters of a call's name, as templates of Mistral's models want it.
const SHORT_NAME: usize = 9;

/// More of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// Text for the user.
    Text(String),
    /// A call begins: its place among the calls of the answer, and what it is called itself.
    Call {
        index: usize,
        id: String,
        name: String,
    },
    /// More of the arguments of a call.
    Arguments { index: usize, text: String },
}

/// How calls are found in answers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallFormat {
    pub(crate) format: ToolFormat,
    /// What form the answer is kept in.
    pub(crate) form: AnswerForm,
    /// Whether there may be several.
    pub(crate) is_parallel: bool,
}

/// Reads one answer while it comes.
#[derive(Debug)]
pub(crate) struct PieceReader {
    /// `None` where an answer is text alone.
    calls: Option<(AnswerReader, CallFormat)>,
    /// What names of calls begin with.
    prefix: &'static str,
    /// Calls so far.
    count: usize,
}

impl PieceReader {
    /// For an answer that may have calls of a format, which are named with a `prefix`.
    pub(crate) fn new(format: Option<CallFormat>, prefix: &'static str) -> Self {
        let calls = format.map(|format| (AnswerReader::new(format.format, format.form), format));
        Self {
            calls,
            prefix,
            count: 0,
        }
    }

    /// Takes more of the answer.
    pub(crate) fn push(&mut self, text: String) -> Vec<Piece> {
        match &mut self.calls {
            Some((reader, _)) => {
                let deltas = reader.push(&text);
                self.pieces(deltas)
            }
            None if text.is_empty() => Vec::new(),
            None => vec![Piece::Text(text)],
        }
    }

    /// What is left behind the end of the answer.
    pub(crate) fn finish(&mut self) -> Vec<Piece> {
        let Some((reader, format)) = &mut self.calls else {
            return Vec::new();
        };
        let deltas =
            std::mem::replace(reader, AnswerReader::new(format.format, format.form)).finish();
        self.pieces(deltas)
    }

    /// Whether there may be calls in the answer.
    pub(crate) fn may_call(&self) -> bool {
        self.calls.is_some()
    }

    /// Whether there is a call in the answer.
    pub(crate) fn has_calls(&self) -> bool {
        self.count > 0
    }

    fn pieces(&mut self, deltas: Vec<AnswerDelta>) -> Vec<Piece> {
        let Some((
            _,
            CallFormat {
                format,
                is_parallel,
                ..
            },
        )) = self.calls
        else {
            return Vec::new();
        };
        let most = if is_parallel { usize::MAX } else { 1 };
        let pieces = deltas.into_iter().filter_map(|delta| match delta {
            AnswerDelta::Text(text) => Some(Piece::Text(text)),
            AnswerDelta::Call(name) => {
                self.count += 1;
                let id = if format == ToolFormat::Mistral {
                    let id = new_id("");
                    id[id.len() - SHORT_NAME..].to_owned()
                } else {
                    new_id(self.prefix)
                };
                (self.count <= most).then_some(Piece::Call {
                    index: self.count - 1,
                    id,
                    name,
                })
            }
            AnswerDelta::Arguments(text) => (self.count <= most).then_some(Piece::Arguments {
                index: self.count - 1,
                text,
            }),
        });
        pieces.collect()
    }
}

/// A part of a whole answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Section {
    Text(String),
    Call {
        id: String,
        name: String,
        arguments: String,
    },
}

impl Section {
    /// The sections of an answer with one more piece of it.
    pub(crate) fn add(sections: &mut Vec<Self>, piece: Piece) {
        match (sections.last_mut(), piece) {
            (Some(Self::Text(text)), Piece::Text(more)) => text.push_str(&more),
            (_, Piece::Text(text)) => sections.push(Self::Text(text)),
            (_, Piece::Call { id, name, .. }) => sections.push(Self::Call {
                id,
                name,
                arguments: String::new(),
            }),
            (Some(Self::Call { arguments, .. }), Piece::Arguments { text, .. }) => {
                arguments.push_str(&text);
            }
            // Arguments come behind their call.
            (_, Piece::Arguments { .. }) => {}
        }
    }

    /// A call in OpenAI's form, as messages have it.
    pub(crate) fn call(id: &str, name: &str, arguments: &str) -> Value {
        json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
    }
}
