//! Completions in Ollama's format: one JSON object, or a stream of lines with one object each.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use axum::Json;
use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt, stream};
use serde::Serialize;
use serde_json::Value;
use triad_engine::{Finish, LogProbabilities};
use utoipa::ToSchema;

use super::context::Context;
use super::error;
use super::time::{nanoseconds, now};
use crate::error::ApiResult;
use crate::jobs::{Answers, End, StreamItem};
use crate::log_probabilities::{ChatLogProbabilities, ChatToken};
use crate::pieces::{Piece, PieceReader, Section};
use crate::reply::Reply;

/// The endpoint whose format a completion has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// `/api/chat`: text in `message`.
    Chat,
    /// `/api/generate`: text in `response`.
    Generate,
}

/// A completion, or a part of a streamed one.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(crate) struct Line {
    model: String,
    /// The time of this part, in the format of RFC 3339.
    created_at: String,
    /// The message, in `/api/chat`.
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<AnswerMessage>,
    /// The text, in `/api/generate`.
    #[serde(skip_serializing_if = "Option::is_none")]
    response: Option<String>,
    /// The model's reasoning, in `/api/generate`.
    #[serde(skip_serializing_if = "Option::is_none")]
    thinking: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    logprobs: Vec<ChatToken>,
    /// Whether the completion has ended.
    done: bool,
    /// `stop`, `length`, `load` or `unload`.
    #[serde(skip_serializing_if = "Option::is_none")]
    done_reason: Option<&'static str>,
    #[serde(flatten)]
    durations: Durations,
    /// The conversation so far, in the last part of `/api/generate`. A request with it continues the conversation.
    #[serde(skip_serializing_if = "Option::is_none")]
    context: Option<Vec<u32>>,
}

/// Times in nanoseconds and numbers of tokens, in the last part of a completion.
#[derive(Debug, Default, Serialize, ToSchema)]
struct Durations {
    #[serde(skip_serializing_if = "Option::is_none")]
    total_duration: Option<u64>,
    /// The time until the model was in memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    load_duration: Option<u64>,
    /// Tokens of the prompt, including those that were cached.
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_eval_count: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_eval_duration: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    eval_count: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    eval_duration: Option<u64>,
}

#[derive(Debug, Default, Serialize, ToSchema)]
struct AnswerMessage {
    /// Always `assistant`.
    role: &'static str,
    content: String,
    /// The model's reasoning.
    #[serde(skip_serializing_if = "Option::is_none")]
    thinking: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<AnswerCall>,
}

#[derive(Debug, Serialize, ToSchema)]
struct AnswerCall {
    id: String,
    function: AnswerFunction,
}

#[derive(Debug, Serialize, ToSchema)]
struct AnswerFunction {
    index: usize,
    name: String,
    #[schema(value_type = Object)]
    arguments: Value,
}

/// A completion as generated so far.
pub(crate) struct Answer {
    shape: Shape,
    reply: Reply,
    reader: PieceReader,
    /// The time when the request arrived, and the time until its model was in memory.
    began: Instant,
    loading: Duration,
    wants_tokens: bool,
    /// Tokens whose text was not sent yet.
    tokens: Vec<LogProbabilities>,
    /// The call whose arguments are not complete.
    call: Option<(String, String, String)>,
    /// The number of complete calls.
    calls: usize,
    /// The conversation to return at the end.
    context: Option<Context>,
}

/// The parts of a line.
#[derive(Default)]
struct Content {
    text: String,
    thinking: Option<String>,
    calls: Vec<AnswerCall>,
}

impl Answer {
    /// Creates an empty completion of a request that arrived when it `began` and whose model was in memory after
    /// `loading`.
    pub(crate) fn new(
        shape: Shape,
        (reply, reader): (Reply, PieceReader),
        (began, loading): (Instant, Duration),
        wants_tokens: bool,
    ) -> Self {
        Self {
            shape,
            reply,
            reader,
            began,
            loading,
            wants_tokens,
            tokens: Vec::new(),
            call: None,
            calls: 0,
            context: None,
        }
    }

    /// Returns the completion with the conversation that it returns at its end.
    pub(crate) fn with_context(self, context: Option<Context>) -> Self {
        Self { context, ..self }
    }

    /// Returns the response: a stream of lines, or one object.
    ///
    /// # Errors
    /// If generation fails before the response begins.
    pub(crate) async fn respond(self, answers: Answers, streams: bool) -> ApiResult<Response> {
        if streams {
            return Ok(self.stream(answers));
        }
        Ok(Json(self.collect(answers).await?).into_response())
    }

    async fn collect(mut self, mut answers: Answers) -> ApiResult<Line> {
        let (mut sections, mut tokens) = (Vec::new(), Vec::new());
        while let Some(part) = answers.parts.recv().await {
            match part {
                StreamItem::Prompt { .. } | StreamItem::Begun { .. } => {}
                StreamItem::Text {
                    text,
                    tokens: more,
                    count,
                    ..
                } => {
                    let pieces = self.reader.push(text, count);
                    pieces
                        .into_iter()
                        .for_each(|piece| Section::add(&mut sections, piece));
                    tokens.extend(more);
                }
                StreamItem::End { end, .. } => {
                    let pieces = self.reader.finish();
                    pieces
                        .into_iter()
                        .for_each(|piece| Section::add(&mut sections, piece));
                    self.end(end);
                }
                StreamItem::Failed(error) => return Err(error),
            }
        }
        let mut content = Content::default();
        for section in sections {
            match section {
                Section::Text(text) => content.text += &text,
                Section::Reasoning(text) => {
                    content.thinking.get_or_insert_default().push_str(&text);
                }
                Section::Call {
                    id,
                    name,
                    arguments,
                } => {
                    content.calls.extend(self.complete((id, name, arguments)));
                }
            }
        }
        self.tokens = tokens;
        let line = self.line(content);
        self.last(line)
    }

    /// Returns a response that streams the completion as lines.
    fn stream(mut self, mut answers: Answers) -> Response {
        let parts = stream::poll_fn(move |context| answers.parts.poll_recv(context));
        let lines = parts.flat_map(move |part| stream::iter(self.lines(part)));
        let bytes = lines.map(|line| Ok::<_, Infallible>(line + "\n"));
        let mut response = Body::from_stream(bytes).into_response();
        for (name, value) in [
            (header::CONTENT_TYPE, "application/x-ndjson"),
            (header::CACHE_CONTROL, "no-store"),
            // Disables buffering in proxies, which would delay each line.
            (header::HeaderName::from_static("x-accel-buffering"), "no"),
        ] {
            response
                .headers_mut()
                .insert(name, HeaderValue::from_static(value));
        }
        response
    }

    /// Returns the lines of a part.
    fn lines(&mut self, part: StreamItem) -> Vec<String> {
        let lines = match part {
            StreamItem::Prompt { .. } | StreamItem::Begun { .. } => return Vec::new(),
            StreamItem::Text {
                text,
                tokens,
                count,
                ..
            } => {
                self.tokens.extend(tokens);
                let pieces = self.reader.push(text, count);
                Ok(self.of_pieces(pieces))
            }
            StreamItem::End { end, .. } => {
                let pieces = self.reader.finish();
                let mut lines = self.of_pieces(pieces);
                self.end(end);
                let call = self.call.take().and_then(|call| self.complete(call));
                let calls = call.into_iter().collect();
                let line = self.line(Content {
                    calls,
                    ..Content::default()
                });
                self.last(line).map(|line| {
                    lines.push(line);
                    lines
                })
            }
            StreamItem::Failed(error) => Err(error),
        };
        match lines {
            Ok(lines) => lines.iter().map(text).collect(),
            Err(error) => vec![text(&error::body(&error))],
        }
    }

    /// Returns the lines of pieces. A call is sent when its arguments are complete.
    fn of_pieces(&mut self, pieces: Vec<Piece>) -> Vec<Line> {
        let mut lines = Vec::new();
        for piece in pieces {
            let mut content = Content::default();
            match piece {
                Piece::Arguments { text, .. } => {
                    if let Some((_, _, arguments)) = &mut self.call {
                        arguments.push_str(&text);
                    }
                    continue;
                }
                Piece::Text(text) => content.text = text,
                Piece::Reasoning(text) => content.thinking = Some(text),
                Piece::Call { id, name, .. } => {
                    let before = self.call.replace((id, name, String::new()));
                    content
                        .calls
                        .extend(before.and_then(|call| self.complete(call)));
                    if content.calls.is_empty() {
                        continue;
                    }
                }
            }
            lines.push(self.line(content));
        }
        lines
    }

    /// Returns a call if its arguments are complete. The completion may have been cut off within them.
    fn complete(&mut self, (id, name, arguments): (String, String, String)) -> Option<AnswerCall> {
        let arguments = serde_json::from_str::<Value>(&arguments).ok()?;
        self.calls += 1;
        Some(AnswerCall {
            id,
            function: AnswerFunction {
                index: self.calls - 1,
                name,
                arguments,
            },
        })
    }

    /// Records the end of the completion.
    fn end(&mut self, end: End) {
        self.reply
            .usage
            .add_reasoning(self.reader.reasoning_tokens());
        self.reply.end(0, end);
    }

    fn line(&mut self, content: Content) -> Line {
        let tokens = std::mem::take(&mut self.tokens);
        let tokenizer = self.reply.model.model().tokenizer().ok();
        let tokenizer = tokenizer.filter(|_| self.wants_tokens);
        let logprobs = tokenizer.map(|it| ChatLogProbabilities::new(it, &tokens).content);
        let Content {
            text,
            thinking,
            calls,
        } = content;
        if let Some(context) = &mut self.context {
            context.add(&text, thinking.as_deref());
        }
        let mut line = Line {
            model: self.reply.model.name().to_owned(),
            logprobs: logprobs.unwrap_or_default(),
            created_at: now(),
            ..Line::default()
        };
        match self.shape {
            Shape::Chat => {
                line.message = Some(AnswerMessage {
                    role: "assistant",
                    content: text,
                    thinking,
                    tool_calls: calls,
                });
            }
            Shape::Generate => (line.response, line.thinking) = (Some(text), thinking),
        }
        line
    }

    /// Returns the last part of the completion.
    ///
    /// # Errors
    /// If the completion has not ended.
    fn last(&self, line: Line) -> ApiResult<Line> {
        let finish = self.reply.finish(0)?;
        let nanoseconds_of = |milliseconds: f64| (milliseconds * 1e6).max(0.0) as u64;
        let timings = self.reply.timings;
        Ok(Line {
            done: true,
            done_reason: Some(match finish {
                Finish::EndToken | Finish::StopString => "stop",
                Finish::Length | Finish::ContextFull | Finish::Cancelled => "length",
            }),
            durations: Durations {
                total_duration: Some(nanoseconds(self.began.elapsed())),
                load_duration: Some(nanoseconds(self.loading)),
                prompt_eval_count: Some(self.reply.usage.prompt_tokens),
                prompt_eval_duration: Some(timings.map_or(0, |it| nanoseconds_of(it.prompt_ms))),
                eval_count: Some(self.reply.usage.completion_tokens),
                eval_duration: Some(timings.map_or(0, |it| nanoseconds_of(it.predicted_ms))),
            },
            context: self.context.as_ref().map(Context::numbers),
            ..line
        })
    }
}

/// Returns the response to a request without a prompt, which loads a model or lets it leave the memory.
pub(crate) fn loaded(shape: Shape, model: &str, leaves: bool) -> Json<Line> {
    let mut line = Line {
        model: model.to_owned(),
        created_at: now(),
        done: true,
        done_reason: Some(if leaves { "unload" } else { "load" }),
        ..Line::default()
    };
    match shape {
        Shape::Chat => {
            line.message = Some(AnswerMessage {
                role: "assistant",
                ..AnswerMessage::default()
            });
        }
        Shape::Generate => line.response = Some(String::new()),
    }
    Json(line)
}

fn text(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("responses serialize to JSON")
}
