//! `/v1/chat/completions`.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use triad_engine::{Finish, LogProbabilities};
use utoipa::ToSchema;

use crate::app::App;
use crate::body::JsonBody;
use crate::chat_answer::{
    ChatAnswer, ChatChoice, ChatChunk, ChatChunkChoice, ChatCompletion, ChatDelta,
};
use crate::conversation::{Begun, Conversation, Prefixes};
use crate::error::{ApiError, ApiResult, ErrorBody};
use crate::fields;
use crate::forms::FormFields;
use crate::guard::Client;
use crate::jobs::{Answers, End, StreamItem};
use crate::log_probabilities::ChatLogProbabilities;
use crate::messages::{ChatMessage, messages};
use crate::pieces::{Piece, PieceReader, Section};
use crate::prompt_fields::PromptFields;
use crate::reasoning::ReasoningFields;
use crate::reply::{Reply, finish_reason};
use crate::sampling::{Sampling, check_some, likeliest, limit, one_of};
use crate::sse::{self, Render, StreamEvent};
use crate::stream_usage::StreamUsage;
use crate::tool_fields::{ChatTool, ToolChoiceField};
use crate::tools::ToolUse;
use crate::values::whole;

/// A chat request without its [`Sampling`].
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct ChatRequest {
    /// The model's name, as in `/v1/models`. The default is the first model.
    model: Option<String>,
    /// The conversation so far.
    messages: Vec<ChatMessage>,
    /// Maximum number of tokens per completion. By default, or with -1 as in llama.cpp's server, the context is the
    /// limit.
    #[schema(minimum = -1)]
    #[serde(default, deserialize_with = "whole")]
    max_completion_tokens: Option<i64>,
    /// The older name of `max_completion_tokens`.
    #[schema(minimum = -1)]
    #[serde(default, deserialize_with = "whole")]
    max_tokens: Option<i64>,
    /// Alias of `max_completion_tokens`, as in llama.cpp's server.
    #[serde(default, deserialize_with = "whole")]
    n_predict: Option<i64>,
    /// Whether to return the log probability of each token.
    logprobs: Option<bool>,
    /// Number of most likely tokens to return with each token, 0 to 20.
    #[serde(default, deserialize_with = "whole")]
    top_logprobs: Option<usize>,
    /// Tools that the model may call.
    tools: Option<Vec<ChatTool>>,
    /// Whether the model must call a tool. By default the model decides.
    tool_choice: Option<ToolChoiceField>,
    /// Whether a completion may contain several calls. The default is true.
    parallel_tool_calls: Option<bool>,
}

/// The body of a chat request.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct ChatBody {
    #[serde(flatten)]
    _chat: ChatRequest,
    #[serde(flatten)]
    _prompt: PromptFields,
    #[serde(flatten)]
    _reasoning: ReasoningFields,
    #[serde(flatten)]
    _form: FormFields,
    #[serde(flatten)]
    _sampling: Sampling,
}

/// Generates completions of a conversation.
#[utoipa::path(
    post, path = "/v1/chat/completions", tag = "answers",
    request_body(content = ChatBody, examples(
        ("whole" = (value = json!({"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8}))),
        ("streamed" = (value = json!({
            "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8, "stream": true
        }))),
    )),
    responses(
        (status = 200, description = "The completions; a stream of chunks if `stream` is true",
         content((ChatCompletion = "application/json"), (StreamEvent = "text/event-stream"))),
        (status = 400, body = ErrorBody), (status = 404, body = ErrorBody), (status = 429, body = ErrorBody),
    )
)]
pub(crate) async fn complete(
    State(app): State<Arc<App>>,
    Client(client): Client,
    body: JsonBody,
) -> ApiResult<Response> {
    let body = body.checked(&fields::CHAT)?;
    let (request, sampling): (ChatRequest, Sampling) = (body.parse()?, body.parse()?);
    let (prompt, form): (PromptFields, FormFields) = (body.parse()?, body.parse()?);
    let reasoning = body.parse::<ReasoningFields>()?.read()?;
    sampling.check(app.options.parallel)?;
    let wants_tokens = request.logprobs.unwrap_or(false);
    let likeliest = likeliest("top_logprobs", request.top_logprobs)?;
    if likeliest.is_some_and(|count| count > 0) && !wants_tokens {
        return Err(ApiError::field(
            "top_logprobs",
            "it requires logprobs: true",
        ));
    }
    let log_probabilities = wants_tokens.then_some(likeliest.unwrap_or(0));
    let (older, newer) = (request.max_tokens, request.max_completion_tokens);
    let name = newer.map_or("max_tokens", |_| "max_completion_tokens");
    let given = one_of(("max_tokens", older), ("max_completion_tokens", newer))?;
    let max_tokens = limit(request.n_predict, (name, given), None)?;
    let name = match given {
        None if request.n_predict.is_some() => "n_predict",
        _ => name,
    };
    check_some(name, max_tokens)?;
    let form = form.form()?;
    let tools = ToolUse::of_chat(
        request.tools,
        request.tool_choice.as_ref(),
        request.parallel_tool_calls,
    )?;
    let messages = messages(request.messages)?;
    prompt.check(Some(&messages))?;
    let model = app.model(request.model.as_deref()).await?;
    let prompt = prompt.read(model.model().chat_template())?;
    let asked = Conversation {
        model,
        messages,
        sampling: &sampling,
        max_tokens,
        log_probabilities,
        tools,
        form,
        prompt,
        reasoning,
    };
    let prefixes = Prefixes {
        answer: "chatcmpl-",
        call: "call_",
    };
    let Begun {
        reply,
        answers,
        readers,
        left_out,
    } = asked.begin(&app, client, prefixes).await?;
    let chat = Chat {
        reply,
        readers,
        wants_tokens,
    };
    if sampling.streams() {
        let tokens = vec![Vec::new(); chat.reply.count()];
        let stream = ChatStream {
            tokens,
            usage: StreamUsage::new(sampling.stream_options.as_ref(), &chat.reply),
            chat,
        };
        return Ok(left_out.say(sse::respond(answers, stream)));
    }
    let response = Json(chat.collect(answers).await?).into_response();
    Ok(left_out.say(response))
}

/// The completions as generated so far.
struct Chat {
    reply: Reply,
    readers: Vec<PieceReader>,
    wants_tokens: bool,
}

impl Chat {
    fn log_probabilities(&self, tokens: &[LogProbabilities]) -> Option<ChatLogProbabilities> {
        let tokenizer = self
            .reply
            .model
            .model()
            .tokenizer()
            .ok()
            .filter(|_| self.wants_tokens)?;
        Some(ChatLogProbabilities::new(tokenizer, tokens))
    }

    /// Records the end of a completion.
    fn end(&mut self, choice: usize, end: End) {
        let tokens = self.readers[choice].reasoning_tokens();
        self.reply.usage.add_reasoning(tokens);
        self.reply.end(choice, end);
    }

    /// Returns why a completion ended. Valid after its end.
    fn finish_reason(&self, choice: usize) -> ApiResult<&'static str> {
        let finish = self.reply.finish(choice)?;
        let reader = &self.readers[choice];
        Ok(match finish {
            Finish::EndToken if reader.has_calls() => "tool_calls",
            Finish::StopString if reader.has_whole_calls() => "tool_calls",
            finish => finish_reason(finish),
        })
    }

    /// Collects all completions.
    async fn collect(mut self, mut answers: Answers) -> ApiResult<ChatCompletion> {
        let mut whole: Vec<(Vec<Section>, Vec<LogProbabilities>)> =
            vec![Default::default(); self.reply.count()];
        while let Some(part) = answers.parts.recv().await {
            match part {
                StreamItem::Prompt { .. } | StreamItem::Begun { .. } => {}
                StreamItem::Text {
                    choice,
                    text,
                    tokens,
                    count,
                } => {
                    let pieces = self.readers[choice].push(text, count);
                    pieces
                        .into_iter()
                        .for_each(|piece| Section::add(&mut whole[choice].0, piece));
                    whole[choice].1.extend(tokens);
                }
                StreamItem::End { choice, end } => {
                    let pieces = self.readers[choice].finish();
                    pieces
                        .into_iter()
                        .for_each(|piece| Section::add(&mut whole[choice].0, piece));
                    self.end(choice, end);
                }
                StreamItem::Failed(error) => return Err(error),
            }
        }
        let choice =
            |(index, (sections, tokens)): (usize, (Vec<Section>, Vec<LogProbabilities>))| {
                Ok(ChatChoice {
                    index,
                    message: ChatAnswer::new(sections),
                    logprobs: self.log_probabilities(&tokens),
                    finish_reason: self.finish_reason(index)?,
                })
            };
        let choices = whole
            .into_iter()
            .enumerate()
            .map(choice)
            .collect::<ApiResult<_>>()?;
        let Reply {
            id,
            created,
            model,
            usage,
            timings,
            ..
        } = self.reply;
        let model = model.name().to_owned();
        Ok(ChatCompletion {
            id,
            object: "chat.completion",
            created,
            model,
            choices,
            usage,
            timings,
        })
    }

    fn chunk(&self, choices: Vec<ChatChunkChoice>) -> ChatChunk {
        ChatChunk {
            id: self.reply.id.clone(),
            object: "chat.completion.chunk",
            created: self.reply.created,
            model: self.reply.model.name().to_owned(),
            choices,
            usage: None,
            timings: None,
        }
    }
}

/// The state of a streamed response.
struct ChatStream {
    chat: Chat,
    /// For each completion, tokens that were not sent yet because their text was not sent yet.
    tokens: Vec<Vec<LogProbabilities>>,
    usage: StreamUsage,
}

impl ChatStream {
    fn event(
        &self,
        index: usize,
        delta: ChatDelta,
        logprobs: Option<ChatLogProbabilities>,
        finish_reason: Option<&'static str>,
    ) -> Event {
        let choice = ChatChunkChoice {
            index,
            delta,
            logprobs,
            finish_reason,
        };
        sse::json(&ChatChunk {
            usage: self.usage.of_chunk(&self.chat.reply, index),
            ..self.chat.chunk(vec![choice])
        })
    }

    /// Returns the events of pieces of a completion. The first event has all tokens that were not sent yet.
    fn pieces(&mut self, choice: usize, pieces: Vec<Piece>) -> Vec<Event> {
        let event = |piece: Piece| {
            let tokens = std::mem::take(&mut self.tokens[choice]);
            (ChatDelta::from(piece), self.chat.log_probabilities(&tokens))
        };
        let deltas: Vec<_> = pieces.into_iter().map(event).collect();
        deltas
            .into_iter()
            .map(|(delta, tokens)| self.event(choice, delta, tokens, None))
            .collect()
    }
}

impl Render for ChatStream {
    fn begin(&mut self) -> Vec<Event> {
        let role = |index: usize| {
            // If the completion may have reasoning or calls alone, it is not known yet whether it has content.
            let content = (!self.chat.readers[index].may_lack_text()).then(String::new);
            let delta = ChatDelta {
                role: Some("assistant"),
                content,
                ..ChatDelta::default()
            };
            self.event(index, delta, None, None)
        };
        (0..self.chat.reply.count()).map(role).collect()
    }

    fn part(&mut self, part: StreamItem) -> Vec<Event> {
        match part {
            StreamItem::Prompt { .. } | StreamItem::Begun { .. } => Vec::new(),
            StreamItem::Text {
                choice,
                text,
                tokens,
                count,
            } => {
                self.tokens[choice].extend(tokens);
                self.usage.add(choice, count);
                let pieces = self.chat.readers[choice].push(text, count);
                self.pieces(choice, pieces)
            }
            StreamItem::End { choice, end } => {
                self.usage.end(choice, end.tokens);
                let pieces = self.chat.readers[choice].finish();
                let mut events = self.pieces(choice, pieces);
                self.chat.end(choice, end);
                let tokens = std::mem::take(&mut self.tokens[choice]);
                let tokens = self
                    .chat
                    .log_probabilities(&tokens)
                    .filter(|tokens| !tokens.content.is_empty());
                let reason = self.chat.finish_reason(choice).unwrap_or("length");
                events.push(self.event(choice, ChatDelta::default(), tokens, Some(reason)));
                events
            }
            StreamItem::Failed(error) => vec![sse::json(&error.body())],
        }
    }

    fn end(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        let reply = &self.chat.reply;
        if let Some(usage) = self.usage.of_all(reply) {
            events.push(sse::json(&ChatChunk {
                usage: Some(usage),
                timings: reply.timings,
                ..self.chat.chunk(Vec::new())
            }));
        }
        events.push(sse::done());
        events
    }
}
