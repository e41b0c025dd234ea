//! Completions split into reasoning, text and tool calls.

use std::sync::Arc;

use serde::de::IgnoredAny;
use serde_json::{Value, json};
use triad_frontend::reasoning::{ReasoningDelta, ReasoningReader};
use triad_frontend::tool_calls::{AnswerDelta, AnswerForm, AnswerReader, Tool, ToolFormat};

use crate::names::new_id;
use crate::reasoning::{Delivery, Thoughts};

/// The length of a call's id in templates of Mistral's models.
const SHORT_NAME: usize = 9;

/// A piece of a completion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// The model's reasoning.
    Reasoning(String),
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
#[derive(Clone, Debug)]
pub(crate) struct CallFormat {
    pub(crate) format: ToolFormat,
    /// The constraint that generation was subject to.
    pub(crate) form: AnswerForm,
    /// Whether a completion may contain several calls.
    pub(crate) is_parallel: bool,
    /// The tools that the model may call.
    pub(crate) tools: Arc<[Tool]>,
}

/// The parts that completions of a request may have.
#[derive(Clone, Debug, Default)]
pub(crate) struct AnswerStyle {
    pub(crate) thoughts: Option<Thoughts>,
    pub(crate) delivery: Delivery,
    /// `None` if a completion has no calls.
    pub(crate) calls: Option<CallFormat>,
}

impl AnswerStyle {
    /// Returns the reader of calls and channels.
    fn reader(&self) -> Option<AnswerReader> {
        let has_channels = self.has_channels();
        match &self.calls {
            Some(calls) if has_channels && calls.form == AnswerForm::JsonOrCalls => {
                Some(AnswerReader::of_channels())
            }
            Some(calls) => Some(AnswerReader::with_tools(
                calls.format,
                calls.form,
                &calls.tools,
            )),
            None if has_channels => Some(AnswerReader::of_channels()),
            None => None,
        }
    }

    fn has_channels(&self) -> bool {
        self.thoughts
            .is_some_and(|thoughts| thoughts.words.has_channels())
            && self.delivery != Delivery::Inline
    }
}

/// A streaming parser of one completion.
#[derive(Debug)]
pub(crate) struct PieceReader {
    style: AnswerStyle,
    /// `None` if the completion has no reasoning of its own, or the reader of channels finds it.
    reasoning: Option<ReasoningReader>,
    /// `None` if the completion is only text.
    calls: Option<AnswerReader>,
    /// The prefix of call ids.
    prefix: &'static str,
    /// The number of calls so far.
    count: usize,
    /// The arguments of the latest call.
    arguments: String,
    /// The number of earlier calls whose arguments are complete.
    whole: usize,
    /// Whether the latest piece is reasoning.
    is_reasoning: bool,
    /// The number of tokens of reasoning so far.
    reasoning_tokens: usize,
}

impl PieceReader {
    /// Creates a parser of a completion in `style`. The ids of calls start with `prefix`.
    pub(crate) fn new(style: AnswerStyle, prefix: &'static str) -> Self {
        let thoughts = style.thoughts.filter(|thoughts| {
            !thoughts.words.has_channels() && style.delivery != Delivery::Inline
        });
        let reasoning =
            thoughts.map(|thoughts| ReasoningReader::new(thoughts.words, thoughts.is_open));
        Self {
            reasoning,
            calls: style.reader(),
            is_reasoning: thoughts.is_some_and(|thoughts| thoughts.is_open),
            style,
            prefix,
            count: 0,
            arguments: String::new(),
            whole: 0,
            reasoning_tokens: 0,
        }
    }

    /// Parses more text of the completion, which has `tokens` tokens.
    pub(crate) fn push(&mut self, text: String, tokens: usize) -> Vec<Piece> {
        let was_reasoning = self.is_reasoning;
        let pieces = match &mut self.reasoning {
            None => self.answer(text),
            Some(reader) => {
                let deltas = reader.push(&text);
                deltas
                    .into_iter()
                    .flat_map(|delta| self.of_reasoning(delta))
                    .collect()
            }
        };
        // A token counts as reasoning if it begins within reasoning or is its beginning.
        if was_reasoning || self.is_reasoning {
            self.reasoning_tokens += tokens;
        }
        self.shown(pieces)
    }

    /// Returns the remaining pieces after the end of the completion.
    pub(crate) fn finish(&mut self) -> Vec<Piece> {
        let mut pieces = Vec::new();
        if let Some(delta) = self.reasoning.take().and_then(ReasoningReader::finish) {
            pieces.extend(self.of_reasoning(delta));
        }
        if let Some(reader) = self.calls.take() {
            pieces.extend(self.pieces(reader.finish()));
        }
        self.shown(pieces)
    }

    /// Returns whether it is not known at the beginning whether the completion has text.
    pub(crate) fn may_lack_text(&self) -> bool {
        self.calls.is_some() || self.reasoning.is_some()
    }

    /// Returns whether the completion contains a call.
    pub(crate) fn has_calls(&self) -> bool {
        self.count > 0
    }

    /// Returns whether the completion has calls, and the arguments of the latest one are complete. A stop string may end
    /// a completion within a call.
    pub(crate) fn has_whole_calls(&self) -> bool {
        self.has_calls() && is_json(&self.arguments)
    }

    /// Returns whether the arguments of any call are complete.
    pub(crate) fn has_a_whole_call(&self) -> bool {
        self.whole > 0 || self.has_whole_calls()
    }

    /// Returns the number of tokens of reasoning so far.
    pub(crate) fn reasoning_tokens(&self) -> usize {
        self.reasoning_tokens
    }

    /// Removes reasoning that the response must not have.
    fn shown(&self, mut pieces: Vec<Piece>) -> Vec<Piece> {
        if self.style.delivery == Delivery::Hidden {
            pieces.retain(|piece| !matches!(piece, Piece::Reasoning(_)));
        }
        pieces
    }

    fn of_reasoning(&mut self, delta: ReasoningDelta) -> Vec<Piece> {
        match delta {
            ReasoningDelta::Reasoning(text) => {
                self.is_reasoning = true;
                vec![Piece::Reasoning(text)]
            }
            ReasoningDelta::Answer(text) => {
                self.is_reasoning = false;
                self.answer(text)
            }
        }
    }

    /// Parses text outside of the reasoning.
    fn answer(&mut self, text: String) -> Vec<Piece> {
        match &mut self.calls {
            Some(reader) => {
                let deltas = reader.push(&text);
                self.pieces(deltas)
            }
            None if text.is_empty() => Vec::new(),
            None => vec![Piece::Text(text)],
        }
    }

    fn pieces(&mut self, deltas: Vec<AnswerDelta>) -> Vec<Piece> {
        let calls = self.style.calls.as_ref();
        let is_parallel = calls.is_none_or(|calls| calls.is_parallel);
        let is_short = calls.is_some_and(|calls| calls.format == ToolFormat::Mistral);
        let most = if is_parallel { usize::MAX } else { 1 };
        let pieces = deltas.into_iter().filter_map(|delta| {
            self.is_reasoning = matches!(delta, AnswerDelta::Reasoning(_));
            match delta {
                AnswerDelta::Reasoning(text) => Some(Piece::Reasoning(text)),
                AnswerDelta::Text(text) => Some(Piece::Text(text)),
                AnswerDelta::Call(name) => {
                    self.whole += usize::from(is_json(&self.arguments));
                    self.count += 1;
                    self.arguments.clear();
                    let id = if is_short {
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
                AnswerDelta::Arguments(text) => {
                    self.arguments.push_str(&text);
                    (self.count <= most).then_some(Piece::Arguments {
                        index: self.count - 1,
                        text,
                    })
                }
            }
        });
        pieces.collect()
    }
}

fn is_json(text: &str) -> bool {
    serde_json::from_str::<IgnoredAny>(text).is_ok()
}

/// A section of a complete completion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Section {
    Reasoning(String),
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
            (Some(Self::Reasoning(text)), Piece::Reasoning(more)) => text.push_str(&more),
            (_, Piece::Reasoning(text)) => sections.push(Self::Reasoning(text)),
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
