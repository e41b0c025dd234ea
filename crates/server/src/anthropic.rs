//! `/v1/messages`: conversations in the form of Anthropic's API.

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
use crate::answers::{Answers, Part};
use crate::anthropic_error;
use crate::anthropic_turns::{BlockMessage, turns};
use crate::app::App;
use crate::body::JsonBody;
use crate::conversation::{Begun, Conversation, Prefixes};
use crate::error::{ApiError, ApiResult};
use crate::fields;
use crate::forms::TextFormat;
use crate::guard::Client;
use crate::messages::{Content, text};
use crate::pieces::{Piece, PieceReader, Section};
use crate::prompt_fields::{PromptFields, PromptOptions};
use crate::reply::Reply;
use crate::request_id::RequestId;
use crate::sampling::{OneOrMany, Sampling, check_some};
use crate::sse::{self, Render, StreamEvent};
use crate::tools::{MessageTool, MessageToolChoice, ToolUse};

/// What is asked for.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct MessagesRequest {
    /// The model, as `/v1/models` names it; without, the first one.
    model: Option<String>,
    /// The conversation so far.
    messages: Vec<BlockMessage>,
    /// Instructions before it.
    system: Option<Content>,
    /// Tokens of the answer at most.
    #[schema(minimum = 1)]
    max_tokens: usize,
    /// Divisor of the logits; 0 always takes the likeliest token.
    temperature: Option<f64>,
    /// Keep the fewest likeliest tokens whose probabilities add up to this.
    top_p: Option<f64>,
    /// Keep only this many likeliest tokens.
    top_k: Option<i64>,
    /// LoRA adapters that are applied together, of those that the server was started with.
    lora: Option<Vec<LoraField>>,
    /// Texts that end the answer and are not part of it.
    stop_sequences: Option<Vec<String>>,
    /// Send parts of the answer as they come, as server-sent events.
    stream: Option<bool>,
    /// Functions that the answer may call.
    tools: Option<Vec<MessageTool>>,
    /// Whether the answer has to call one; without, the model decides.
    tool_choice: Option<MessageToolChoice>,
    output_config: Option<OutputConfig>,
    thinking: Option<Thinking>,
    /// Variables of the model's template, such as `enable_thinking`.
    #[serde(rename = "chat_template_kwargs")]
    #[schema(value_type = Option<Object>)]
    _variables: Option<IgnoredAny>,
}

/// Whether the model thinks before it answers.
#[derive(Debug, Deserialize, ToSchema)]
struct Thinking {
    /// `disabled`; others are refused.
    #[serde(rename = "type")]
    kind: String,
}

#[derive(Debug, Deserialize, ToSchema)]
struct OutputConfig {
    /// The form of the answer.
    format: Option<TextFormat>,
}

/// Answers a conversation.
#[utoipa::path(
    post, path = "/v1/messages", tag = "answers",
    request_body(content = MessagesRequest, examples(
        ("whole" = (value = json!({"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8}))),
        ("streamed" = (value = json!({
            "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8, "stream": true
        }))),
    )),
    responses(
        (status = 200, description = "The answer; a stream of parts where `stream` is true",
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
        .ok_or_else(|| ApiError::internal("there is no answer"))?;
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

/// Returns the options of a prompt: an answer goes on with a last message of the assistant, as in Anthropic's API.
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

/// Refuses to let the model think, but for not at all.
fn check_thinking(thinking: Option<&Thinking>) -> ApiResult<()> {
    match thinking.map(|thinking| thinking.kind.as_str()) {
        None | Some("disabled") => Ok(()),
        Some(kind) => Err(ApiError::unsupported(
            "thinking.type",
            format!("{kind}: expected disabled"),
        )),
    }
}

/// The answer as far as it is there.
struct MessageAnswer {
    /// The request's.
    id: RequestId,
    reply: Reply,
    reader: PieceReader,
    /// Blocks that were begun.
    blocks: usize,
    /// Whether the latest block is a call.
    is_call: bool,
}

impl MessageAnswer {
    /// Why it ended, and by which text if it was one.
    fn stop(&self, finish: Finish) -> (&'static str, Option<&str>) {
        match finish {
            Finish::EndToken if self.reader.has_calls() => ("tool_use", None),
            Finish::EndToken => ("end_turn", None),
            Finish::StopString => ("stop_sequence", self.reply.stop(0)),
            Finish::Length | Finish::ContextFull | Finish::Cancelled => ("max_tokens", None),
        }
    }

    /// Cached tokens are counted apart.
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

    /// The whole answer.
    async fn collect(mut self, mut answers: Answers) -> ApiResult<Value> {
        let mut sections = Vec::new();
        while let Some(part) = answers.parts.recv().await {
            match part {
                Part::Prompt { .. } => {}
                Part::Text { text, .. } => {
                    self.reader
                        .push(text)
                        .into_iter()
                        .for_each(|piece| Section::add(&mut sections, piece));
                }
                Part::End { choice, end } => {
                    self.reader
                        .finish()
                        .into_iter()
                        .for_each(|piece| Section::add(&mut sections, piece));
                    self.reply.end(choice, end);
                }
                Part::Failed(error) => return Err(error),
            }
        }
        let stop = self.stop(self.reply.finish(0)?);
        if sections.is_empty() {
            sections.push(Section::Text(String::new()));
        }
        let blocks: Vec<_> = sections.iter().filter_map(block).collect();
        Ok(self.message(&json!(blocks), Some(stop)))
    }

    /// Events of pieces of the answer.
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

    /// Begins a block, and ends the one before it.
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

/// A block of a whole message. A call that was cut off is left out, since its input is no JSON.
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

/// An event that has its own type as name.
fn event(data: &Value) -> Event {
    sse::named(data["type"].as_str().unwrap_or_default(), data)
}

impl Render for MessageAnswer {
    fn begin(&mut self) -> Vec<Event> {
        vec![event(
            &json!({"type": "message_start", "message": self.message(&json!([]), None)}),
        )]
    }

    fn part(&mut self, part: Part) -> Vec<Event> {
        match part {
            Part::Prompt { .. } => Vec::new(),
            Part::Text { text, .. } => {
                let pieces = self.reader.push(text);
                self.pieces(pieces)
            }
            Part::End { choice, end } => {
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
            Part::Failed(error) => vec![event(&anthropic_error::body(&error, self.id.text()))],
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
