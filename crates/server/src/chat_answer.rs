//! The responses of `/v1/chat/completions`: whole completions and chunks.

use serde::Serialize;
use utoipa::ToSchema;

use crate::log_probabilities::ChatLogProbabilities;
use crate::pieces::{Piece, Section};
use crate::usage::{Timings, Usage};

/// Completions of a conversation.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChatCompletion {
    pub(crate) id: String,
    /// Always `chat.completion`.
    pub(crate) object: &'static str,
    /// The creation time in seconds since 1970.
    pub(crate) created: u64,
    pub(crate) model: String,
    pub(crate) choices: Vec<ChatChoice>,
    pub(crate) usage: Usage,
    pub(crate) timings: Option<Timings>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChatChoice {
    pub(crate) index: usize,
    pub(crate) message: ChatAnswer,
    pub(crate) logprobs: Option<ChatLogProbabilities>,
    /// `stop`, `length` or `tool_calls`.
    pub(crate) finish_reason: &'static str,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChatAnswer {
    /// Always `assistant`.
    pub(crate) role: &'static str,
    /// The text, or null if the completion contains only tool calls.
    pub(crate) content: Option<String>,
    /// The model's reasoning before the text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reasoning_content: Option<String>,
    pub(crate) refusal: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) tool_calls: Vec<ChatAnswerCall>,
}

/// A tool call.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChatAnswerCall {
    pub(crate) id: String,
    /// Always `function`.
    #[serde(rename = "type")]
    pub(crate) kind: &'static str,
    pub(crate) function: ChatAnswerFunction,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChatAnswerFunction {
    pub(crate) name: String,
    /// A JSON object, as a string. It is incomplete if `finish_reason` is `length`.
    pub(crate) arguments: String,
}

/// A chunk of a streamed completion.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChatChunk {
    pub(crate) id: String,
    /// Always `chat.completion.chunk`.
    pub(crate) object: &'static str,
    pub(crate) created: u64,
    pub(crate) model: String,
    pub(crate) choices: Vec<ChatChunkChoice>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) usage: Option<Usage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) timings: Option<Timings>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChatChunkChoice {
    pub(crate) index: usize,
    pub(crate) delta: ChatDelta,
    pub(crate) logprobs: Option<ChatLogProbabilities>,
    pub(crate) finish_reason: Option<&'static str>,
}

#[derive(Debug, Default, Serialize, ToSchema)]
pub(crate) struct ChatDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) content: Option<String>,
    /// More of the model's reasoning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tool_calls: Option<Vec<ChatCallDelta>>,
}

/// A part of a tool call: the first has the id and the name, the others have more of the arguments.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChatCallDelta {
    /// The index of the call in the completion.
    pub(crate) index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) id: Option<String>,
    /// Always `function`.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub(crate) kind: Option<&'static str>,
    pub(crate) function: ChatFunctionDelta,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChatFunctionDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    pub(crate) arguments: String,
}

impl From<Piece> for ChatDelta {
    fn from(piece: Piece) -> Self {
        let call = match piece {
            Piece::Reasoning(text) => {
                return Self {
                    reasoning_content: Some(text),
                    ..Self::default()
                };
            }
            Piece::Text(text) => {
                return Self {
                    content: Some(text),
                    ..Self::default()
                };
            }
            Piece::Call { index, id, name } => {
                let function = ChatFunctionDelta {
                    name: Some(name),
                    arguments: String::new(),
                };
                ChatCallDelta {
                    index,
                    id: Some(id),
                    kind: Some("function"),
                    function,
                }
            }
            Piece::Arguments { index, text } => {
                let function = ChatFunctionDelta {
                    name: None,
                    arguments: text,
                };
                ChatCallDelta {
                    index,
                    id: None,
                    kind: None,
                    function,
                }
            }
        };
        Self {
            tool_calls: Some(vec![call]),
            ..Self::default()
        }
    }
}

impl ChatAnswer {
    /// Creates the message of a completion's sections.
    pub(crate) fn new(sections: Vec<Section>) -> Self {
        let (mut content, mut tool_calls) = (None, Vec::new());
        let mut reasoning_content = None;
        for section in sections {
            match section {
                Section::Reasoning(text) => {
                    *reasoning_content.get_or_insert_with(String::new) += &text;
                }
                Section::Text(text) => *content.get_or_insert_with(String::new) += &text,
                Section::Call {
                    id,
                    name,
                    arguments,
                } => {
                    let function = ChatAnswerFunction { name, arguments };
                    tool_calls.push(ChatAnswerCall {
                        id,
                        kind: "function",
                        function,
                    });
                }
            }
        }
        let content = if tool_calls.is_empty() {
            Some(content.unwrap_or_default())
        } else {
            content
        };
        Self {
            role: "assistant",
            content,
            reasoning_content,
            refusal: None,
            tool_calls,
        }
    }
}
