//! Messages in Anthropic's format: blocks of thinking, text and tool calls, as one message or as events.

use axum::response::sse::Event;
use serde_json::{Value, json};
use triad_engine::Finish;

use crate::anthropic_error;
use crate::error::ApiResult;
use crate::jobs::{Answers, End, StreamItem};
use crate::pieces::{Piece, PieceReader, Section};
use crate::reply::Reply;
use crate::request_id::RequestId;
use crate::sse::{self, Render};

/// The kind of a block of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BlockKind {
    Thinking,
    Text,
    Call,
}

/// The message as generated so far.
pub(crate) struct MessageAnswer {
    /// The request's id.
    id: RequestId,
    reply: Reply,
    reader: PieceReader,
    /// The number of blocks that were started.
    blocks: usize,
    /// The kind of the latest block.
    kind: Option<BlockKind>,
    /// Whether blocks of thinking have no text.
    omits_thinking: bool,
}

impl MessageAnswer {
    /// Creates an empty message.
    pub(crate) fn new(
        id: RequestId,
        reply: Reply,
        reader: PieceReader,
        omits_thinking: bool,
    ) -> Self {
        Self {
            id,
            reply,
            reader,
            blocks: 0,
            kind: None,
            omits_thinking,
        }
    }

    /// Records the end of the message.
    fn end(&mut self, choice: usize, end: End) {
        let tokens = self.reader.reasoning_tokens();
        self.reply.usage.add_reasoning(tokens);
        self.reply.end(choice, end);
    }

    /// Returns the stop reason, and the stop string that ended the message, if any.
    fn stop(&self, finish: Finish) -> (&'static str, Option<&str>) {
        match finish {
            Finish::EndToken if self.reader.has_a_whole_call() => ("tool_use", None),
            Finish::EndToken => ("end_turn", None),
            Finish::StopString => ("stop_sequence", self.reply.stop(0)),
            Finish::Length | Finish::ContextFull | Finish::Cancelled => ("max_tokens", None),
        }
    }

    /// Returns the number of cached tokens of the prompt of a message that has ended.
    fn cached(&self) -> usize {
        self.reply.usage.prompt_tokens_details.cached_tokens
    }

    /// Returns the usage with this number of `cached` tokens. `input_tokens` does not include them.
    fn usage(&self, cached: usize) -> Value {
        let usage = &self.reply.usage;
        json!({
            "input_tokens": usage.prompt_tokens - cached, "cache_read_input_tokens": cached,
            "cache_creation_input_tokens": 0, "output_tokens": usage.completion_tokens,
        })
    }

    fn message(&self, content: &Value, usage: &Value, stop: Option<(&str, Option<&str>)>) -> Value {
        json!({
            "id": self.reply.id, "type": "message", "role": "assistant", "model": self.reply.model.name(),
            "content": content, "stop_reason": stop.map(|stop| stop.0),
            "stop_sequence": stop.and_then(|stop| stop.1), "usage": usage,
        })
    }

    /// Collects the whole message.
    ///
    /// # Errors
    /// If generation fails.
    pub(crate) async fn collect(mut self, mut answers: Answers) -> ApiResult<Value> {
        let mut sections = Vec::new();
        while let Some(part) = answers.parts.recv().await {
            match part {
                StreamItem::Prompt { .. } | StreamItem::Begun { .. } => {}
                StreamItem::Text { text, count, .. } => {
                    self.reader
                        .push(text, count)
                        .into_iter()
                        .for_each(|piece| Section::add(&mut sections, piece));
                }
                StreamItem::End { choice, end } => {
                    self.reader
                        .finish()
                        .into_iter()
                        .for_each(|piece| Section::add(&mut sections, piece));
                    self.end(choice, end);
                }
                StreamItem::Failed(error) => return Err(error),
            }
        }
        let stop = self.stop(self.reply.finish(0)?);
        let mut blocks: Vec<_> = sections
            .iter()
            .filter_map(|section| block(section, self.omits_thinking))
            .collect();
        if blocks.is_empty() {
            blocks.push(json!({"type": "text", "text": ""}));
        }
        Ok(self.message(&json!(blocks), &self.usage(self.cached()), Some(stop)))
    }

    /// Returns the events of pieces of the message.
    fn pieces(&mut self, pieces: Vec<Piece>) -> Vec<Event> {
        let mut events = Vec::new();
        for piece in pieces {
            let delta = match piece {
                Piece::Reasoning(text) => {
                    let block = thinking("");
                    events.extend(self.begin_other(BlockKind::Thinking, &block));
                    if self.omits_thinking {
                        continue;
                    }
                    json!({"type": "thinking_delta", "thinking": text})
                }
                Piece::Text(text) => {
                    let block = json!({"type": "text", "text": ""});
                    events.extend(self.begin_other(BlockKind::Text, &block));
                    json!({"type": "text_delta", "text": text})
                }
                Piece::Call { id, name, .. } => {
                    let block = json!({"type": "tool_use", "id": id, "name": name, "input": {}});
                    events.extend(self.begin_block(BlockKind::Call, &block));
                    continue;
                }
                Piece::Arguments { text, .. } => {
                    json!({"type": "input_json_delta", "partial_json": text})
                }
            };
            let index = self.blocks - 1;
            events.push(event(
                &json!({"type": "content_block_delta", "index": index, "delta": delta}),
            ));
        }
        events
    }

    /// Starts a block unless the latest one is of this kind.
    fn begin_other(&mut self, kind: BlockKind, block: &Value) -> Vec<Event> {
        if self.kind == Some(kind) {
            return Vec::new();
        }
        self.begin_block(kind, block)
    }

    /// Starts a block, and ends the previous one.
    fn begin_block(&mut self, kind: BlockKind, block: &Value) -> Vec<Event> {
        let mut events = self.end_block();
        self.kind = Some(kind);
        events.push(event(
            &json!({"type": "content_block_start", "index": self.blocks, "content_block": block}),
        ));
        self.blocks += 1;
        events
    }

    fn end_block(&self) -> Vec<Event> {
        let Some(index) = self.blocks.checked_sub(1) else {
            return Vec::new();
        };
        let mut events = Vec::new();
        if self.kind == Some(BlockKind::Thinking) {
            let delta = json!({"type": "signature_delta", "signature": SIGNATURE});
            events.push(event(
                &json!({"type": "content_block_delta", "index": index, "delta": delta}),
            ));
        }
        events.push(event(
            &json!({"type": "content_block_stop", "index": index}),
        ));
        events
    }
}

/// Returns a block of a complete message, or `None` for a truncated tool call, whose input is not valid JSON.
fn block(section: &Section, omits_thinking: bool) -> Option<Value> {
    Some(match section {
        Section::Reasoning(text) => {
            let mut block = thinking(if omits_thinking { "" } else { text });
            block["signature"] = SIGNATURE.into();
            block
        }
        Section::Text(text) => json!({"type": "text", "text": text}),
        Section::Call {
            id,
            name,
            arguments,
        } => {
            let input: Value = serde_json::from_str(arguments).ok()?;
            json!({"type": "tool_use", "id": id, "name": name, "input": input})
        }
    })
}

/// The signature of thinking. Clients give it back, and this server does not need one.
const SIGNATURE: &str = "triad";

/// Returns a block of thinking without its signature.
fn thinking(text: &str) -> Value {
    json!({"type": "thinking", "thinking": text, "signature": ""})
}

/// Returns an event whose name is the `type` of its data.
fn event(data: &Value) -> Event {
    sse::named(data["type"].as_str().unwrap_or_default(), data)
}

impl Render for MessageAnswer {
    fn begin(&mut self) -> Vec<Event> {
        Vec::new()
    }

    fn part(&mut self, part: StreamItem) -> Vec<Event> {
        match part {
            StreamItem::Prompt { .. } => Vec::new(),
            // Some clients read the cached tokens here alone.
            StreamItem::Begun { cached } => {
                let message = self.message(&json!([]), &self.usage(cached), None);
                vec![event(&json!({"type": "message_start", "message": message}))]
            }
            StreamItem::Text { text, count, .. } => {
                let pieces = self.reader.push(text, count);
                self.pieces(pieces)
            }
            StreamItem::End { choice, end } => {
                let finish = end.finish;
                let mut pieces = self.reader.finish();
                if self.blocks == 0 && pieces.is_empty() {
                    pieces.push(Piece::Text(String::new()));
                }
                let mut events = self.pieces(pieces);
                events.extend(self.end_block());
                self.end(choice, end);
                let (reason, sequence) = self.stop(finish);
                let delta = json!({"stop_reason": reason, "stop_sequence": sequence});
                events.push(event(
                    &json!({"type": "message_delta", "delta": delta, "usage": self.usage(self.cached())}),
                ));
                events
            }
            StreamItem::Failed(error) => {
                vec![event(&anthropic_error::body(&error, self.id.text()))]
            }
        }
    }

    fn end(&mut self) -> Vec<Event> {
        if self.reply.is_complete() {
            vec![event(&json!({"type": "message_stop"}))]
        } else {
            Vec::new()
        }
    }
}
