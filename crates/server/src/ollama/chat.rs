//! `/api/chat`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::answer::{Answer, Line, Shape, loaded};
use super::context::Context;
use super::error::OllamaError;
use super::keep_alive::KeepAlive;
use super::options::{Aliases, Options, Think, form, log_probabilities};
use super::turns::{Message, messages};
use crate::app::App;
use crate::body::JsonBody;
use crate::conversation::{Begun, Conversation, Prefixes};
use crate::error::{ApiError, ApiResult};
use crate::fields;
use crate::forms::AskedForm;
use crate::guard::{Caller, Client};
use crate::prompt_fields::PromptOptions;
use crate::reasoning::ReasoningOptions;
use crate::sampling::Sampling;
use crate::tool_fields::{ChatTool, ToolChoiceField};
use crate::tools::ToolUse;
use crate::values::whole;

/// A request for a message, without the fields of [`How`].
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = OllamaChatRequest)]
pub(crate) struct ChatRequest {
    /// The model's name, as in `/api/tags`. The default is the first model.
    #[serde(default, deserialize_with = "super::named")]
    model: Option<String>,
    /// The conversation so far. Without messages, the model is loaded.
    messages: Option<Vec<Message>>,
    /// Tools that the model may call.
    tools: Option<Vec<ChatTool>>,
    /// Whether the model must call a tool, as in `/v1/chat/completions`. By default the model decides.
    tool_choice: Option<ToolChoiceField>,
}

/// The body of a request for a message.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct OllamaChatBody {
    #[serde(flatten)]
    _chat: ChatRequest,
    #[serde(flatten)]
    _how: How,
    #[serde(flatten)]
    _aliases: Aliases,
}

/// The fields that `/api/chat` and `/api/generate` share.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = OllamaShared)]
pub(crate) struct How {
    /// `json`, or a JSON schema of the completion.
    #[schema(value_type = Option<Object>)]
    format: Option<Value>,
    options: Option<Options>,
    /// Whether the completion is streamed as lines of JSON. The default is true.
    stream: Option<bool>,
    keep_alive: Option<KeepAlive>,
    think: Option<Think>,
    /// Whether to return the log probability of each token.
    logprobs: Option<bool>,
    /// Number of most likely tokens to return with each token, 0 to 20.
    #[serde(default, deserialize_with = "whole")]
    top_logprobs: Option<usize>,
}

/// Generates a message of a conversation.
#[utoipa::path(
    post, path = "/api/chat", tag = "ollama", request_body = OllamaChatBody,
    responses(
        (status = 200, description = "The message; lines of JSON with parts of it unless `stream` is false",
         content((Line = "application/json"), (Line = "application/x-ndjson"))),
        (status = 400, body = OllamaError), (status = 404, body = OllamaError), (status = 429, body = OllamaError),
    )
)]
pub(crate) async fn chat(
    State(app): State<Arc<App>>,
    Client(client): Client,
    body: JsonBody,
) -> ApiResult<Response> {
    let began = Instant::now();
    let body = body.checked(&fields::OLLAMA_CHAT)?;
    let ChatRequest {
        model,
        messages: given,
        tools,
        tool_choice,
    } = body.parse()?;
    let how: How = body.parse()?;
    let settings = how.read(&app, body.parse()?)?;
    let tools = ToolUse::of_chat(tools, tool_choice.as_ref(), None)?;
    let given = given.unwrap_or_default();
    if given.is_empty() {
        return settings.load(&app, model.as_deref(), Shape::Chat).await;
    }
    let asked = Asked {
        messages: messages(given)?,
        tools,
        model,
        began,
        shape: Shape::Chat,
        context: None,
    };
    settings.converse(&app, client, asked).await
}

/// A conversation of a request.
pub(crate) struct Asked {
    pub(crate) model: Option<String>,
    pub(crate) messages: Vec<Value>,
    pub(crate) tools: ToolUse,
    /// The time when the request arrived.
    pub(crate) began: Instant,
    pub(crate) shape: Shape,
    /// The conversation to return with the answer.
    pub(crate) context: Option<Context>,
}

impl How {
    /// Does the checks that need no model.
    ///
    /// # Errors
    /// If a field is out of range.
    pub(crate) fn read(self, app: &App, aliases: Aliases) -> ApiResult<Settings> {
        let options = self.options.unwrap_or_default();
        let (sampling, max_tokens) = aliases.read(options)?;
        sampling.check(app.options.parallel).map_err(of_options)?;
        if let Some(think) = &self.think {
            think.check()?;
        }
        Ok(Settings {
            sampling,
            max_tokens,
            log_probabilities: log_probabilities(self.logprobs, self.top_logprobs)?,
            form: form(self.format)?,
            keep_alive: self.keep_alive.as_ref().map(KeepAlive::read).transpose()?,
            think: self.think,
            streams: self.stream.unwrap_or(true),
        })
    }
}

/// The fields that `/api/chat` and `/api/generate` share, checked.
pub(crate) struct Settings {
    pub(crate) sampling: Sampling,
    pub(crate) max_tokens: Option<usize>,
    pub(crate) log_probabilities: Option<usize>,
    pub(crate) form: Option<AskedForm>,
    /// As [`App::keep`] takes it.
    pub(crate) keep_alive: Option<Option<Duration>>,
    think: Option<Think>,
    pub(crate) streams: bool,
}

impl Settings {
    /// Checks that only conversations have the fields of conversations, for a prompt without a template.
    ///
    /// # Errors
    /// If the request asks for reasoning.
    pub(crate) fn check_plain(&self) -> ApiResult<()> {
        match self.think {
            Some(Think::Reasons(false)) | None => Ok(()),
            Some(_) => Err(ApiError::unsupported(
                "think",
                "a prompt without the template has no reasoning of its own",
            )),
        }
    }

    /// Loads a model for a request without a prompt. With a `keep_alive` of 0 it only lets the model leave the memory.
    ///
    /// # Errors
    /// If there is no such model, or it can't be loaded.
    pub(crate) async fn load(
        self,
        app: &App,
        name: Option<&str>,
        shape: Shape,
    ) -> ApiResult<Response> {
        if self.keep_alive == Some(Some(Duration::ZERO))
            && let Some(name) = app.unload(name)?
        {
            return Ok(loaded(shape, &name, true).into_response());
        }
        let model = app.model(name).await?;
        app.keep(&model, self.keep_alive);
        Ok(loaded(shape, model.name(), false).into_response())
    }

    /// Completes a conversation.
    ///
    /// # Errors
    /// If there is no such model, or as [`Conversation::begin`].
    pub(crate) async fn converse(
        self,
        app: &App,
        client: Caller,
        asked: Asked,
    ) -> ApiResult<Response> {
        let mut prompt = PromptOptions::default();
        // As in Ollama, a last message of the assistant is continued.
        let last = asked.messages.last();
        if last.is_some_and(|it| it["role"] == "assistant" && it.get("tool_calls").is_none()) {
            prompt.continue_last();
        }
        let model = app.model(asked.model.as_deref()).await?;
        let loading = asked.began.elapsed();
        app.keep(&model, self.keep_alive);
        let reasoning = match self.think {
            Some(think) => think.apply(&mut prompt, model.model().chat_template())?,
            None => ReasoningOptions::default(),
        };
        let conversation = Conversation {
            model,
            messages: asked.messages,
            sampling: &self.sampling,
            max_tokens: self.max_tokens,
            log_probabilities: self.log_probabilities,
            tools: asked.tools,
            form: self.form,
            prompt,
            reasoning,
        };
        let prefixes = Prefixes {
            answer: "chat-",
            call: "call_",
        };
        let begun = conversation.begin(app, client, prefixes).await;
        let Begun {
            reply,
            answers,
            mut readers,
            left_out,
        } = begun.map_err(of_options)?;
        let reader = readers
            .pop()
            .ok_or_else(|| ApiError::internal("there is no output"))?;
        let times = (asked.began, loading);
        let answer = Answer::new(
            asked.shape,
            (reply, reader),
            times,
            self.log_probabilities.is_some(),
        );
        let answer = answer.with_context(asked.context);
        let response = answer.respond(answers, self.streams).await?;
        Ok(left_out.say(response))
    }
}

/// Returns an error that names a field of `options` by its path.
pub(crate) fn of_options(mut error: ApiError) -> ApiError {
    let names = [
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "repeat_penalty",
        "presence_penalty",
        "frequency_penalty",
        "seed",
        "stop",
    ];
    let param = error.detail.param.take();
    if let Some(name) = param.as_deref().filter(|name| names.contains(name)) {
        error.detail.message = format!("options.{}", error.detail.message);
        return error.with_param(&format!("options.{name}"));
    }
    error.detail.param = param;
    error
}
