//! `/v1/messages`: the endpoint of Anthropic's Messages API.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde::Deserialize;
use serde::Serialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use utoipa::ToSchema;

use crate::adapters::LoraField;
use crate::anthropic_answer::MessageAnswer;
use crate::anthropic_turns::{BlockMessage, turns};
use crate::app::App;
use crate::body::JsonBody;
use crate::conversation::{Begun, Conversation, Prefixes};
use crate::error::{ApiError, ApiResult};
use crate::fields;
use crate::forms::{AskedForm, TextFormat};
use crate::guard::Client;
use crate::messages::{Content, text};
use crate::prompt_fields::{PromptFields, PromptOptions};
use crate::reasoning::ReasoningOptions;
use crate::request_id::RequestId;
use crate::sampling::{OneOrMany, Sampling, check_some, one_of};
use crate::sse::{self, StreamEvent};
use crate::text::count;
use crate::tool_fields::{MessageTool, MessageToolChoice};
use crate::tools::ToolUse;
use crate::values::{Whole, whole};

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
    #[schema(minimum = 1, value_type = usize)]
    max_tokens: Whole<usize>,
    /// Divisor of the logits. 0 always selects the most likely token.
    temperature: Option<f64>,
    /// Keeps the smallest set of most likely tokens whose probabilities add up to this value.
    top_p: Option<f64>,
    /// Keeps only this number of most likely tokens.
    #[serde(default, deserialize_with = "whole")]
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
    /// Alias of `output_config.format`, as in the beta versions of Anthropic's API.
    output_format: Option<TextFormat>,
    thinking: Option<Thinking>,
    /// Variables of the model's chat template, such as `enable_thinking`.
    #[serde(rename = "chat_template_kwargs")]
    #[schema(value_type = Option<Object>)]
    _variables: Option<IgnoredAny>,
}

/// Whether the model reasons before it writes the message.
#[derive(Debug, Deserialize, ToSchema)]
struct Thinking {
    /// `enabled`, `adaptive` or `disabled`.
    #[serde(rename = "type")]
    kind: ThinkingKind,
    /// Maximum number of tokens of the reasoning, if `type` is `enabled`. It must be less than `max_tokens`.
    #[serde(default, deserialize_with = "whole")]
    budget_tokens: Option<usize>,
    /// Whether blocks of thinking have the reasoning's text (`summarized`) or none (`omitted`).
    display: Option<ThinkingDisplay>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum ThinkingKind {
    Enabled,
    /// The model decides.
    Adaptive,
    Disabled,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum ThinkingDisplay {
    Summarized,
    Omitted,
}

#[derive(Debug, Deserialize, ToSchema)]
struct OutputConfig {
    /// The format of the output.
    format: Option<TextFormat>,
    /// The amount of reasoning, as `reasoning_effort` of `/v1/chat/completions`.
    effort: Option<String>,
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
    let body = body.checked(&fields::MESSAGES)?;
    let (request, prompt): (MessagesRequest, PromptFields) = (body.parse()?, body.parse()?);
    let Whole(max_tokens) = request.max_tokens;
    check_some("max_tokens", Some(max_tokens))?;
    let tools = ToolUse::of_message(request.tools, request.tool_choice.as_ref())?;
    let system = request
        .system
        .map(|system| text("system", system))
        .transpose()?;
    let messages = turns(request.messages)?.messages(system.as_deref());
    prompt.check(Some(&messages))?;
    let reasoning = of_thinking(request.thinking.as_ref(), max_tokens)?;
    let omits_thinking = request
        .thinking
        .as_ref()
        .is_some_and(|thinking| thinking.display == Some(ThinkingDisplay::Omitted));
    let streams = request.stream.unwrap_or(false);
    let sampling = Sampling {
        temperature: request.temperature,
        top_p: request.top_p,
        top_k: request.top_k,
        stop: request.stop_sequences.map(OneOrMany::Many),
        lora: request.lora,
        ..Sampling::default()
    };
    let (format, effort) = request
        .output_config
        .map_or((None, None), |config| (config.format, config.effort));
    let form = form(request.output_format, format)?;
    sampling.check(app.options.parallel).map_err(named)?;
    let model = app.model(request.model.as_deref()).await?;
    let template = model.model().chat_template();
    let mut prompt = prompt.read(template)?;
    set_thinking(&mut prompt, request.thinking.as_ref(), &messages);
    if let Some(effort) = effort {
        prompt.ask_effort("output_config.effort", effort, template)?;
    }
    let (max_tokens, log_probabilities) = (Some(max_tokens), None);
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
        answer: "msg_",
        call: "toolu_",
    };
    let Begun {
        reply,
        answers,
        mut readers,
        left_out,
    } = asked.begin(&app, client, prefixes).await?;
    let reader = readers
        .pop()
        .ok_or_else(|| ApiError::internal("there is no output"))?;
    let answer = MessageAnswer::new(id, reply, reader, omits_thinking);
    let response = if streams {
        sse::respond(answers, answer)
    } else {
        Json(answer.collect(answers).await?).into_response()
    };
    Ok(left_out.say(response))
}

/// Names stop strings as Anthropic's API does in an error of the common options.
fn named(error: ApiError) -> ApiError {
    match error.detail.message.strip_prefix("stop: ") {
        Some(message) => ApiError::field("stop_sequences", message),
        None => error,
    }
}

/// Returns the constraint of `output_config.format`, or of its alias `output_format`.
///
/// # Errors
/// If the two differ, or as [`TextFormat::form`].
fn form(alias: Option<TextFormat>, format: Option<TextFormat>) -> ApiResult<Option<AskedForm>> {
    let (field, of_schema) = match (&alias, &format) {
        (Some(_), None) => ("output_format", "output_format.schema"),
        _ => ("output_config.format", "output_config.format.schema"),
    };
    let format = one_of(("output_format", alias), ("output_config.format", format))?;
    let form = format.map(|format| format.form(field, of_schema));
    Ok(form.transpose()?.flatten())
}

/// Sets the options of the prompt. If the last message is the assistant's, generation continues it, as in Anthropic's
/// API.
fn set_thinking(prompt: &mut PromptOptions, thinking: Option<&Thinking>, messages: &[Value]) {
    match thinking.map(|thinking| thinking.kind) {
        Some(ThinkingKind::Disabled) => prompt.set("enable_thinking", false.into()),
        Some(ThinkingKind::Enabled) => prompt.set("enable_thinking", true.into()),
        Some(ThinkingKind::Adaptive) | None => {}
    }
    if messages
        .last()
        .is_some_and(|last| last["role"] == "assistant" && last.get("tool_calls").is_none())
    {
        prompt.continue_last();
    }
}

/// Returns the options of reasoning.
///
/// # Errors
/// If the budget leaves no tokens for the message, or `type` is not `enabled`.
fn of_thinking(thinking: Option<&Thinking>, max_tokens: usize) -> ApiResult<ReasoningOptions> {
    let field = "thinking.budget_tokens";
    let Some(thinking) = thinking else {
        return Ok(ReasoningOptions::default());
    };
    let budget = match (thinking.kind, thinking.budget_tokens) {
        (ThinkingKind::Enabled, Some(tokens)) if !(1..max_tokens).contains(&tokens) => {
            let message = format!("{tokens}, expected 1 or more and less than max_tokens");
            return Err(ApiError::field(field, message));
        }
        (ThinkingKind::Enabled, budget) => budget,
        (_, Some(_)) => return Err(ApiError::field(field, "it requires the type enabled")),
        (_, None) => None,
    };
    // A model that marks no reasoning keeps every budget: clients ask for thinking by the name of the model alone.
    Ok(ReasoningOptions {
        budget,
        ..ReasoningOptions::default()
    })
}

/// The number of tokens of a conversation.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct MessageTokens {
    input_tokens: usize,
}

/// A conversation whose tokens are counted.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct CountRequest {
    /// The model's name, as in `/v1/models`. The default is the first model.
    model: Option<String>,
    /// The conversation.
    messages: Vec<BlockMessage>,
    /// The system prompt.
    system: Option<Content>,
    /// Tools that the model may call.
    tools: Option<Vec<MessageTool>>,
    /// Whether the model must call a tool.
    tool_choice: Option<MessageToolChoice>,
    thinking: Option<Thinking>,
    /// Variables of the model's chat template, such as `enable_thinking`.
    #[serde(rename = "chat_template_kwargs")]
    #[schema(value_type = Option<Object>)]
    _variables: Option<IgnoredAny>,
}

/// Counts the tokens of a conversation, as `/v1/messages` counts them.
#[utoipa::path(
    post, path = "/v1/messages/count_tokens", tag = "answers", request_body = CountRequest,
    responses((status = 200, body = MessageTokens), (status = 400, body = Object), (status = 404, body = Object))
)]
pub(crate) async fn count_tokens(
    State(app): State<Arc<App>>,
    Client(client): Client,
    body: JsonBody,
) -> ApiResult<Json<MessageTokens>> {
    let body = body.checked(&fields::COUNT_TOKENS)?;
    let (request, prompt): (CountRequest, PromptFields) = (body.parse()?, body.parse()?);
    let tools = ToolUse::of_message(request.tools, request.tool_choice.as_ref())?;
    let system = request
        .system
        .map(|system| text("system", system))
        .transpose()?;
    let messages = turns(request.messages)?.messages(system.as_deref());
    of_thinking(request.thinking.as_ref(), usize::MAX)?;
    let model = app.model(request.model.as_deref()).await?;
    let mut prompt = prompt.read(model.model().chat_template())?;
    set_thinking(&mut prompt, request.thinking.as_ref(), &messages);
    let counted = count((&app, &model, client.address), (messages, tools), prompt).await?;
    Ok(Json(MessageTokens {
        input_tokens: counted,
    }))
}
