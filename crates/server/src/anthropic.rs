//! `/v1/messages`: the endpoint of Anthropic's Messages API.

use std::sync::Arc;

use axum::extract::State;
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use triad_engine::Finish;
use utoipa::ToSchema;

use crate::adapters::LoraField;
use crate::anthropic_error;
use crate::anthropic_turns::{BlockMessage, turns};
use crate::app::App;
use crate::body::JsonBody;
use crate::conversation::{Begun, Conversation, Prefixes};
use crate::error::{ApiError, ApiResult};
use crate::fields;
use crate::forms::TextFormat;
use crate::guard::Client;
use crate::jobs::{Answers, StreamItem};
use crate::messages::{Content, text};
use crate::pieces::{Piece, PieceReader, Section};
use crate::prompt_fields::{PromptFields, PromptOptions};
use crate::reply::Reply;
use crate::request_id::RequestId;
use crate::sampling::{OneOrMany, Sampling, check_some};
use crate::sse::{self, Render, StreamEvent};
use crate::tools::{MessageTool, MessageToolChoice, ToolUse};

/// A request for a message.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct MessagesRequest {
    /// The model's name, as in `/v1/models`. The default is the first model.
    model: Option<String>,
    /// The conversation so far.
    messages: Vec<BlockMessage>,
    /// The system prompt.
    system: Option<Content>,
    /// Maximum number of generated tokens.
    #[schema(minimum = 1)]
    max_tokens: usize,
    /// Divisor of the logits. 0 always selects the most likely token.
    temperature: Option<f64>,
    /// Keeps the smallest set of most likely tokens whose probabilities add up to this value.
    top_p: Option<f64>,
    /// Keeps only this number of most likely tokens.
    top_k: Option<i64>,
    /// LoRA adapters to apply together, out of those that the server was started with.
    lora: Option<Vec<LoraField>>,
    /// Strings that end the message. They are not part of the returned text.
    stop_sequences: Option<Vec<String>>,
    /// Whether the message is streamed as server-sent events.
    stream: Option<bool>,
    /// Tools that the model may call.
    tools: Option<Vec<MessageTool>>,
    /// Whether the model must call a tool. By default the model decides.
    tool_choice: Option<MessageToolChoice>,
    output_config: Option<OutputConfig>,
    thinking: Option<Thinking>,
    /// Variables of the model's chat template, such as `enable_thinking`.
    #[serde(rename = "chat_template_kwargs")]
    #[schema(value_type = Option<Object>)]
    _variables: Option<IgnoredAny>,
}

/// Whether the model reasons before it writes the message.
#[derive(Debug, Deserialize, ToSchema)]
struct Thinking {
    /// `disabled`. Any other value is refused.
    #[serde(rename = "type")]
    kind: String,
}

#[derive(Debug, Deserialize, ToSchema)]
struct OutputConfig {
    /// The format of the output.
    format: Option<TextFormat>,
}

/// Generates a message.
#[utoipa::path(
    post, path = "/v1/messages", tag = "answers",
    request_body(content = MessagesRequest, examples(
        ("whole" = (value = json!({"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8}))),
        ("streamed" = (value = json!({
            "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8, "stream": true
        }))),
    )),
    responses(
        (status = 200, description = "The message; a stream of events if `stream` is true",
         content((Object = "application/json"), (StreamEvent = "text/event-stream"))),
        (status = 400, body = Object), (status = 404, body = Object), (status = 429, body = Object),
    )
)]
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    Client(client): Client,
    Extension(id): Extension<RequestId>,
    body: JsonBody,
) -> ApiResult<Response> {
    body.check(&fields::MESSAGES)?;
    let (request, prompt): (MessagesRequest, PromptFields) = (body.parse()?, body.parse()?);
    check_some("max_tokens", Some(request.max_tokens))?;
    let tools = ToolUse::of_message(request.tools, request.tool_choice.as_ref())?;
    let system = request
        .system
        .map(|system| text("system", system))
        .transpose()?;
    let messages = turns(request.messages)?.messages(system.as_deref());
    prompt.check(Some(&messages))?;
    check_thinking(request.thinking.as_ref())?;
    let streams = request.stream.unwrap_or(false);
    let sampling = Sampling {
        temperature: request.temperature,
        top_p: request.top_p,
        top_k: request.top_k,
        stop: request.stop_sequences.map(OneOrMany::Many),
        lora: request.lora,
        ..Sampling::default()
    };
    let format = request.output_config.and_then(|config| config.format);
    let form =
        format.map(|format| format.form("output_config.format", "output_config.format.schema"));
    let form = form.transpose()?.flatten();
    sampling.check(app.options.parallel)?;
    let model = app.model(request.model.as_deref()).await?;
    let prompt = prompt.read(model.model().chat_template())?;
    let prompt = prompt_options(prompt, request.thinking.is_some(), &messages);
    let (max_tokens, log_probabilities) = (Some(request.max_tokens), None);
    let asked = Conversation {
        model,
        messages,
        sampling: &sampling,
        max_tokens,
        log_probabilities,
        tools,
        form,
        prompt,
    };
    let prefixes = Prefixes {
        answer: "msg_",
        call: "toolu_",
    };
    let Begun {
        reply,
        answers,
        mut readers,
    } = asked.begin(&app, client, prefixes).await?;
    let reader = readers
        .pop()
        .ok_or_else(|| ApiError::internal("there is no output"))?;
    let answer = MessageAnswer {
        id,
        reply,
        reader,
        blocks: 0,
        is_call: false,
    };
    if streams {
        return Ok(sse::respond(answers, answer));
    }
    Ok(Json(answer.collect(answers).await?).into_response())
}

/// Returns the options of the prompt. If the last message is the assistant's, generation continues it, as in
/// Anthropic's API.
fn prompt_options(
    mut prompt: PromptOptions,
    disables_thinking: bool,
    messages: &[Value],
) -> PromptOptions {
    if disables_thinking {
        prompt.set("enable_thinking", false.into());
    }
    if messages
        .last()
        .is_some_and(|last| last["role"] == "assistant" && last.get("tool_calls").is_none())
    {
        prompt.continue_last();
    }
    prompt
}

/// Refuses every value of `thinking` except `disabled`.
fn check_thinking(thinking: Option<&Thinking>) -> ApiResult<()> {
    match thinking.map(|thinking| thinking.kind.as_str()) {
        None | Some("disabled") => Ok(()),
        Some(kind) => Err(ApiError::unsupported(
            "thinking.type",
            format!("{kind}: expected disabled"),
        )),
    }
}

/// The message as generated so far.
struct MessageAnswer {
    /// The request's id.
    id: RequestId,
    reply: Reply,
    reader: PieceReader,
    /// The number of blocks that were started.
    blocks: usize,
    /// Whether the latest block is a tool call.
    is_call: bool,
}

impl MessageAnswer {
    /// Returns the stop reason, and the stop string that ended the message, if any.
    fn stop(&self, finish: Finish) -> (&'static str, Option<&str>) {
        match finish {
            Finish::EndToken if self.reader.has_calls() => ("tool_use", None),
            Finish::EndToken => ("end_turn", None),
            Finish::StopString => ("stop_sequence", self.reply.stop(0)),
            Finish::Length | Finish::ContextFull | Finish::Cancelled => ("max_tokens", None),
        }
    }

    /// Returns the usage. `input_tokens` does not include cached tokens.
    fn usage(&self) -> Value {
        let usage = &self.reply.usage;
        let cached = usage.prompt_tokens_details.cached_tokens;
        json!({
            "input_tokens": usage.prompt_tokens - cached, "cache_read_input_tokens": cached,
            "cache_creation_input_tokens": 0, "output_tokens": usage.completion_tokens,
        })
    }

    fn message(&self, content: &Value, stop: Option<(&str, Option<&str>)>) -> Value {
        json!({
            "id": self.reply.id, "type": "message", "role": "assistant", "model": self.reply.model.name(),
            "content": content, "stop_reason": stop.map(|stop| stop.0),
            "stop_sequence": stop.and_then(|stop| stop.1), "usage": self.usage(),
        })
    }

    /// Collects the whole message.
    async fn collect(mut self, mut answers: Answers) -> ApiResult<Value> {
        let mut sections = Vec::new();
        while let Some(part) = answers.parts.recv().await {
            match part {
                StreamItem::Prompt { .. } => {}
                StreamItem::Text { text, .. } => {
                    self.reader
                        .push(text)
                        .into_iter()
                        .for_each(|piece| Section::add(&mut sections, piece));
                }
                StreamItem::End { choice, end } => {
                    self.reader
                        .finish()
                        .into_iter()
                        .for_each(|piece| Section::add(&mut sections, piece));
                    self.reply.end(choice, end);
                }
                StreamItem::Failed(error) => return Err(error),
            }
        }
        let stop = self.stop(self.reply.finish(0)?);
        if sections.is_empty() {
            sections.push(Section::Text(String::new()));
        }
        let blocks: Vec<_> = sections.iter().filter_map(block).collect();
        Ok(self.message(&json!(blocks), Some(stop)))
    }

    /// Returns the events of pieces of the message.
    fn pieces(&mut self, pieces: Vec<Piece>) -> Vec<Event> {
        let mut events = Vec::new();
        for piece in pieces {
            let delta = match piece {
                Piece::Text(text) => {
                    if self.blocks == 0 || self.is_call {
                        events.extend(self.begin_block(&json!({"type": "text", "text": ""})));
                        self.is_call = false;
                    }
                    json!({"type": "text_delta", "text": text})
                }
                Piece::Call { id, name, .. } => {
                    events.extend(self.begin_block(
                        &json!({"type": "tool_use", "id": id, "name": name, "input": {}}),
                    ));
                    self.is_call = true;
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

    /// Starts a block, and ends the previous one.
    fn begin_block(&mut self, block: &Value) -> Vec<Event> {
        let mut events: Vec<_> = self.end_block().into_iter().collect();
        events.push(event(
            &json!({"type": "content_block_start", "index": self.blocks, "content_block": block}),
        ));
        self.blocks += 1;
        events
    }

    fn end_block(&self) -> Option<Event> {
        let index = self.blocks.checked_sub(1)?;
        Some(event(
            &json!({"type": "content_block_stop", "index": index}),
        ))
    }
}

/// Returns a block of a complete message, or `None` for a truncated tool call, whose input is not valid JSON.
fn block(section: &Section) -> Option<Value> {
    Some(match section {
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

/// Returns an event whose name is the `type` of its data.
fn event(data: &Value) -> Event {
    sse::named(data["type"].as_str().unwrap_or_default(), data)
}

impl Render for MessageAnswer {
    fn begin(&mut self) -> Vec<Event> {
        vec![event(
            &json!({"type": "message_start", "message": self.message(&json!([]), None)}),
        )]
    }

    fn part(&mut self, part: StreamItem) -> Vec<Event> {
        match part {
            StreamItem::Prompt { .. } => Vec::new(),
            StreamItem::Text { text, .. } => {
                let pieces = self.reader.push(text);
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
                self.reply.end(choice, end);
                let (reason, sequence) = self.stop(finish);
                let delta = json!({"stop_reason": reason, "stop_sequence": sequence});
                events.push(event(
                    &json!({"type": "message_delta", "delta": delta, "usage": self.usage()}),
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
