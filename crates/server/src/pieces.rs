//! Completions split into text and tool calls.

use serde_json::{Value, json};
use triad_frontend::tool_calls::{AnswerDelta, AnswerForm, AnswerReader, ToolFormat};

use crate::names::new_id;

/// The length of a call's id in templates of Mistral's models.
const SHORT_NAME: usize = 9;

/// A piece of a completion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// Text for the user.
    Text(String),
    /// The start of a tool call: its index among the calls of the completion, its id, and the name of the tool.
    Call {
        index: usize,
        id: String,
        name: String,
    },
    /// More of the arguments of a call.
    Arguments { index: usize, text: String },
}

/// The format in which tool calls are parsed from a completion.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallFormat {
    pub(crate) format: ToolFormat,
    /// The constraint that generation was subject to.
    pub(crate) form: AnswerForm,
    /// Whether a completion may contain several calls.
    pub(crate) is_parallel: bool,
}

/// A streaming parser of one completion.
#[derive(Debug)]
pub(crate) struct PieceReader {
    /// `None` if the completion is only text.
    calls: Option<(AnswerReader, CallFormat)>,
    /// The prefix of call ids.
    prefix: &'static str,
    /// The number of calls so far.
    count: usize,
}

impl PieceReader {
    /// Creates a parser of tool calls in `format`. The ids of calls start with `prefix`.
    pub(crate) fn new(format: Option<CallFormat>, prefix: &'static str) -> Self {
        let calls = format.map(|format| (AnswerReader::new(format.format, format.form), format));
        Self {
            calls,
            prefix,
            count: 0,
        }
    }

    /// Parses more text of the completion.
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

    /// Returns the remaining pieces after the end of the completion.
    pub(crate) fn finish(&mut self) -> Vec<Piece> {
        let Some((reader, format)) = &mut self.calls else {
            return Vec::new();
        };
        let deltas =
            std::mem::replace(reader, AnswerReader::new(format.format, format.form)).finish();
        self.pieces(deltas)
    }

    /// Returns whether the completion may contain calls.
    pub(crate) fn may_call(&self) -> bool {
        self.calls.is_some()
    }

    /// Returns whether the completion contains a call.
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

/// A section of a complete completion.
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
    /// Appends a piece to the sections of a completion.
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
            // Arguments always follow their call.
            (_, Piece::Arguments { .. }) => {}
        }
    }

    /// Returns a tool call in OpenAI's message format.
    pub(crate) fn call(id: &str, name: &str, arguments: &str) -> Value {
        json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
    }
}
