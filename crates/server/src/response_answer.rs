//! Responses of `/v1/responses`: output items (messages and tool calls), as one response or as events.

use axum::response::sse::Event;
use serde_json::{Value, json};
use triad_engine::{Finish, LogProbabilities};

use crate::error::{ApiError, ApiResult};
use crate::jobs::{Answers, End, StreamItem};
use crate::log_probabilities::ChatLogProbabilities;
use crate::names::new_id;
use crate::pieces::{Piece, PieceReader};
use crate::reply::Reply;
use crate::sse::{self, Render};
use crate::stored::Keeper;

/// The response as generated so far.
pub(crate) struct ResponseAnswer {
    reply: Reply,
    reader: PieceReader,
    /// The request's fields that the response repeats.
    echoed: Value,
    /// Stores the response.
    keeper: Keeper,
    items: Vec<Item>,
    /// Whether texts have the log probabilities of their tokens.
    wants_tokens: bool,
    /// Tokens that may belong to the next text.
    tokens: Vec<LogProbabilities>,
    /// The number of events that were sent.
    events: u64,
}

/// An output item.
#[derive(Debug)]
enum Item {
    Reasoning {
        id: String,
        text: String,
    },
    Message {
        id: String,
        text: String,
        /// The log probabilities of the text's tokens.
        tokens: Vec<Value>,
    },
    Call {
        id: String,
        call: String,
        name: String,
        arguments: String,
    },
}

impl Item {
    fn message() -> Self {
        Self::Message {
            id: new_id("msg_"),
            text: String::new(),
            tokens: Vec::new(),
        }
    }

    fn id(&self) -> &str {
        match self {
            Self::Reasoning { id, .. } | Self::Message { id, .. } | Self::Call { id, .. } => id,
        }
    }

    /// Returns the item as JSON. An `in_progress` item has no content.
    fn json(&self, status: &str) -> Value {
        match self {
            Self::Reasoning { id, text } => {
                let content = if status == "in_progress" {
                    Vec::new()
                } else {
                    vec![reasoning(text)]
                };
                json!({
                    "type": "reasoning", "id": id, "status": status, "summary": [], "content": content,
                    "encrypted_content": null,
                })
            }
            Self::Message { id, text, tokens } => {
                let content = if status == "in_progress" {
                    Vec::new()
                } else {
                    vec![content(text, tokens)]
                };
                json!({"type": "message", "id": id, "status": status, "role": "assistant", "content": content})
            }
            Self::Call {
                id,
                call,
                name,
                arguments,
            } => {
                let arguments = if status == "in_progress" {
                    ""
                } else {
                    arguments
                };
                json!({
                    "type": "function_call", "id": id, "call_id": call, "name": name, "arguments": arguments,
                    "status": status,
                })
            }
        }
    }
}

/// Returns the content of a message.
fn content(text: &str, tokens: &[Value]) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": tokens})
}

/// Returns the content of reasoning.
fn reasoning(text: &str) -> Value {
    json!({"type": "reasoning_text", "text": text})
}

impl ResponseAnswer {
    /// Creates an empty response, which repeats the fields of `echoed`.
    pub(crate) fn new(
        (reply, reader): (Reply, PieceReader),
        wants_tokens: bool,
        echoed: Value,
        keeper: Keeper,
    ) -> Self {
        Self {
            wants_tokens,
            tokens: Vec::new(),
            reply,
            reader,
            echoed,
            keeper,
            items: Vec::new(),
            events: 0,
        }
    }

    /// Returns `completed` or `incomplete`. Valid after the end of generation.
    fn status(&self) -> ApiResult<&'static str> {
        Ok(match self.reply.finish(0)? {
            Finish::EndToken | Finish::StopString => "completed",
            Finish::Length | Finish::ContextFull | Finish::Cancelled => "incomplete",
        })
    }

    fn response(&self, status: &str, error: Option<&ApiError>) -> Value {
        let usage = &self.reply.usage;
        let is_whole = matches!(status, "completed" | "incomplete");
        let last = self.items.len().saturating_sub(1);
        let items = self.items.iter().enumerate().filter(|_| is_whole);
        let output: Vec<_> = items
            .map(|(index, item)| item.json(if index == last { status } else { "completed" }))
            .collect();
        let details = (status == "incomplete").then(|| json!({"reason": "max_output_tokens"}));
        let usage = is_whole.then(|| {
            json!({
                "input_tokens": usage.prompt_tokens, "output_tokens": usage.completion_tokens,
                "input_tokens_details": {"cached_tokens": usage.prompt_tokens_details.cached_tokens},
                "output_tokens_details": usage.completion_tokens_details, "total_tokens": usage.total_tokens,
            })
        });
        let error =
            error.map(|error| json!({"code": "server_error", "message": error.detail.message}));
        let mut response = json!({
            "id": self.reply.id, "object": "response", "created_at": self.reply.created, "status": status,
            "model": self.reply.model.name(), "output": output, "usage": usage, "error": error,
            "incomplete_details": details,
        });
        if let (Value::Object(response), Value::Object(echoed)) = (&mut response, &self.echoed) {
            response.extend(echoed.clone());
        }
        response
    }

    /// Collects the whole response.
    ///
    /// # Errors
    /// If generation fails.
    pub(crate) async fn collect(mut self, mut answers: Answers) -> ApiResult<Value> {
        while let Some(part) = answers.parts.recv().await {
            match part {
                StreamItem::Prompt { .. } | StreamItem::Begun { .. } => {}
                StreamItem::Text {
                    text,
                    tokens,
                    count,
                    ..
                } => drop(self.push(text, tokens, count)),
                StreamItem::End { choice, end } => {
                    self.end_items();
                    self.end(choice, end);
                }
                StreamItem::Failed(error) => return Err(error),
            }
        }
        let response = self.response(self.status()?, None);
        self.keeper.keep(&response);
        Ok(response)
    }

    /// Records the end of the completion.
    fn end(&mut self, choice: usize, end: End) {
        let tokens = self.reader.reasoning_tokens();
        self.reply.usage.add_reasoning(tokens);
        self.reply.end(choice, end);
    }

    /// Takes the rest of the text after the end. An empty completion becomes an empty message.
    fn end_items(&mut self) -> Vec<Event> {
        let pieces = self.reader.finish();
        let mut events = self.take(pieces);
        if self.items.is_empty() {
            events.extend(self.add(Item::message()));
        }
        let rest = self.log_probabilities();
        if let Some(Item::Message { tokens, .. }) = self.items.last_mut() {
            tokens.extend(rest);
        }
        events
    }

    /// Adds more text of the completion, which has `count` tokens, and returns its events.
    fn push(&mut self, text: String, tokens: Vec<LogProbabilities>, count: usize) -> Vec<Event> {
        let before = self.reader.reasoning_tokens();
        let pieces = self.reader.push(text, count);
        let is_reasoning = self.reader.reasoning_tokens() > before;
        if is_reasoning {
            self.tokens.clear();
        }
        // The first token of the text ends the reasoning, and counts as a part of it.
        if !is_reasoning || pieces.iter().any(|piece| matches!(piece, Piece::Text(_))) {
            self.tokens.extend(tokens);
        }
        self.take(pieces)
    }

    /// Takes the log probabilities of the tokens that no text has yet.
    fn log_probabilities(&mut self) -> Vec<Value> {
        let tokens = std::mem::take(&mut self.tokens);
        let model = self.reply.model.model();
        let Some(tokenizer) = model.tokenizer().ok().filter(|_| self.wants_tokens) else {
            return Vec::new();
        };
        let tokens = ChatLogProbabilities::new(tokenizer, &tokens).content;
        tokens.iter().map(|token| json!(token)).collect()
    }

    /// Adds pieces of the completion to the items, and returns their events.
    fn take(&mut self, pieces: Vec<Piece>) -> Vec<Event> {
        let mut events = Vec::new();
        for piece in pieces {
            match piece {
                Piece::Reasoning(more) => {
                    self.tokens.clear();
                    if !matches!(self.items.last(), Some(Item::Reasoning { .. })) {
                        let (id, text) = (new_id("rs_"), String::new());
                        events.extend(self.add(Item::Reasoning { id, text }));
                    }
                    if let Some(Item::Reasoning { text, .. }) = self.items.last_mut() {
                        text.push_str(&more);
                    }
                    let data = json!({"content_index": 0, "delta": more});
                    events.push(self.event_of_item("response.reasoning_text.delta", data));
                }
                Piece::Text(more) => {
                    if !matches!(self.items.last(), Some(Item::Message { .. })) {
                        events.extend(self.add(Item::message()));
                    }
                    let more_tokens = self.log_probabilities();
                    let data = json!({"content_index": 0, "delta": more, "logprobs": more_tokens});
                    if let Some(Item::Message { text, tokens, .. }) = self.items.last_mut() {
                        text.push_str(&more);
                        tokens.extend(more_tokens);
                    }
                    events.push(self.event_of_item("response.output_text.delta", data));
                }
                Piece::Call { id: call, name, .. } => {
                    self.tokens.clear();
                    events.extend(self.add(Item::Call {
                        id: new_id("fc_"),
                        call,
                        name,
                        arguments: String::new(),
                    }));
                }
                Piece::Arguments { text, .. } => {
                    self.tokens.clear();
                    if let Some(Item::Call { arguments, .. }) = self.items.last_mut() {
                        arguments.push_str(&text);
                    }
                    let data = json!({"delta": text});
                    events.push(self.event_of_item("response.function_call_arguments.delta", data));
                }
            }
        }
        events
    }

    /// Starts a new item, which ends the previous one.
    fn add(&mut self, item: Item) -> Vec<Event> {
        let mut events = self.item_done("completed");
        let part = match item {
            Item::Reasoning { .. } => Some(reasoning("")),
            Item::Message { .. } => Some(content("", &[])),
            Item::Call { .. } => None,
        };
        let data = json!({"output_index": self.items.len(), "item": item.json("in_progress")});
        self.items.push(item);
        events.push(self.event("response.output_item.added", data));
        if let Some(part) = part {
            let data = json!({"content_index": 0, "part": part});
            events.push(self.event_of_item("response.content_part.added", data));
        }
        events
    }

    /// Returns the events that end the latest item.
    fn item_done(&mut self, status: &str) -> Vec<Event> {
        let Some(item) = self.items.last() else {
            return Vec::new();
        };
        let done = json!({"output_index": self.items.len() - 1, "item": item.json(status)});
        let mut events = match item {
            Item::Reasoning { text, .. } => {
                let whole = json!({"content_index": 0, "text": text});
                let part = json!({"content_index": 0, "part": reasoning(text)});
                vec![
                    self.event_of_item("response.reasoning_text.done", whole),
                    self.event_of_item("response.content_part.done", part),
                ]
            }
            Item::Message { text, tokens, .. } => {
                let whole = json!({"content_index": 0, "text": text, "logprobs": tokens});
                let part = json!({"content_index": 0, "part": content(text, tokens)});
                vec![
                    self.event_of_item("response.output_text.done", whole),
                    self.event_of_item("response.content_part.done", part),
                ]
            }
            Item::Call {
                name, arguments, ..
            } => {
                let whole = json!({"name": name, "arguments": arguments});
                vec![self.event_of_item("response.function_call_arguments.done", whole)]
            }
        };
        events.push(self.event("response.output_item.done", done));
        events
    }

    /// Returns an event of the latest item.
    fn event_of_item(&mut self, kind: &str, mut data: Value) -> Event {
        data["output_index"] = self.items.len().saturating_sub(1).into();
        data["item_id"] = self.items.last().map(Item::id).into();
        self.event(kind, data)
    }

    /// Returns an event with its sequence number.
    fn event(&mut self, kind: &str, mut data: Value) -> Event {
        data["type"] = kind.into();
        data["sequence_number"] = self.events.into();
        self.events += 1;
        sse::named(kind, &data)
    }
}

impl Render for ResponseAnswer {
    fn begin(&mut self) -> Vec<Event> {
        let response = json!({"response": self.response("in_progress", None)});
        vec![
            self.event("response.created", response.clone()),
            self.event("response.in_progress", response),
        ]
    }

    fn part(&mut self, part: StreamItem) -> Vec<Event> {
        match part {
            StreamItem::Prompt { .. } | StreamItem::Begun { .. } => Vec::new(),
            StreamItem::Text {
                text,
                tokens,
                count,
                ..
            } => self.push(text, tokens, count),
            StreamItem::End { choice, end } => {
                let mut events = self.end_items();
                self.end(choice, end);
                let status = self.status().unwrap_or("incomplete");
                events.extend(self.item_done(status));
                let response = self.response(status, None);
                self.keeper.keep(&response);
                let response = json!({"response": response});
                events.push(self.event(&format!("response.{status}"), response));
                events
            }
            StreamItem::Failed(error) => {
                let response = json!({"response": self.response("failed", Some(&error))});
                vec![self.event("response.failed", response)]
            }
        }
    }

    fn end(&mut self) -> Vec<Event> {
        Vec::new()
    }
}
