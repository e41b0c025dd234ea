//! `/v1/responses`: OpenAI's Responses API.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use crate::app::App;
use crate::body::JsonBody;
use crate::conversation::{Begun, Conversation, Prefixes};
use crate::error::{ApiError, ApiResult, ErrorBody};
use crate::fields;
use crate::forms::TextFormat;
use crate::guard::Client;
use crate::metadata;
use crate::prompt_fields::PromptFields;
use crate::reasoning::ReasoningOptions;
use crate::response_answer::ResponseAnswer;
use crate::response_input::{Given, InputItem, hosted, keeper, read_large, read_small};
use crate::sampling::{Sampling, check_some, likeliest, limit};
use crate::sse::{self, StreamEvent};
use crate::text::count;
use crate::tool_fields::{ResponseTool, ToolChoiceField};
use crate::tools::ToolUse;
use crate::values::{TextOrArray, TextOrObject, whole};

/// A request for a response.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct ResponsesRequest {
    /// The model's name, as in `/v1/models`. The default is the first model.
    model: Option<String>,
    /// The conversation so far.
    #[serde(rename = "input")]
    _input: Input,
    /// Instructions that precede the conversation.
    instructions: Option<String>,
    /// Maximum number of generated tokens. By default, or with -1, the context is the limit.
    #[schema(minimum = -1)]
    #[serde(default, deserialize_with = "whole")]
    max_output_tokens: Option<i64>,
    text: Option<TextOptions>,
    /// Tools that the model may call.
    tools: Option<Vec<ResponseTool>>,
    /// Whether the model must call a tool. By default the model decides.
    tool_choice: Option<ToolChoiceField>,
    /// Whether the response may contain several calls. The default is true.
    parallel_tool_calls: Option<bool>,
    reasoning: Option<Reasoning>,
    /// The response that this one continues, as long as it is kept.
    previous_response_id: Option<String>,
    /// The conversation to which the input and the response are added.
    conversation: Option<ConversationField>,
    /// Parts that the response has: `message.output_text.logprobs` adds the log probability of each token of a text.
    /// The API's other parts belong to items that responses do not have.
    include: Option<Vec<String>>,
    /// Number of most likely tokens to return with each token, 0 to 20.
    #[serde(default, deserialize_with = "whole")]
    top_logprobs: Option<usize>,
    /// `auto` or `disabled`. With both, a conversation that is too long is an error.
    truncation: Option<Truncation>,
    /// Whether the response is kept for later requests. The default is true.
    store: Option<bool>,
    /// Data of the client, which the response repeats: at most 16 texts.
    #[schema(value_type = Option<Object>)]
    metadata: Option<Map<String, Value>>,
}

impl ResponsesRequest {
    /// Returns the fields that concern stored items.
    fn given(&self, GivenInput { input }: GivenInput) -> Given<'_> {
        Given {
            previous: self.previous_response_id.as_deref(),
            conversation: match &self.conversation {
                Some(ConversationField::Id(id) | ConversationField::Object { id }) => Some(id),
                None => None,
            },
            stores: self.store.unwrap_or(true),
            input,
        }
    }
}

/// How a conversation that is too long is handled.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum Truncation {
    Auto,
    #[default]
    Disabled,
}

/// Parts of responses that clients may ask for, by the names of OpenAI's API, except the log probabilities.
const PARTS: [&str; 7] = [
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "message.input_image.image_url",
];
/// The part with the log probabilities of a text.
const LOG_PROBABILITIES: &str = "message.output_text.logprobs";

/// Checks the parts that a request asks for.
///
/// # Errors
/// If a part is unknown.
pub(crate) fn check_include(include: &[String]) -> ApiResult<()> {
    let is_known = |part: &&String| PARTS.contains(&part.as_str()) || *part == LOG_PROBABILITIES;
    if let Some(part) = include.iter().find(|part| !is_known(part)) {
        let message = format!(
            "{part:?}: expected {LOG_PROBABILITIES} or {}",
            PARTS.join(", ")
        );
        return Err(ApiError::unsupported("include", message));
    }
    Ok(())
}

/// Returns how many alternatives are returned with each token's log probability. `None` returns no log probabilities.
///
/// # Errors
/// If a part is unknown, there are too many alternatives, or `include` does not ask for them.
fn log_probabilities(include: &[String], top_logprobs: Option<usize>) -> ApiResult<Option<usize>> {
    check_include(include)?;
    let likeliest = likeliest("top_logprobs", top_logprobs)?.unwrap_or(0);
    let wants = include.iter().any(|part| part == LOG_PROBABILITIES);
    if likeliest > 0 && !wants {
        let message = format!("it requires {LOG_PROBABILITIES} in include");
        return Err(ApiError::field("top_logprobs", message));
    }
    Ok(wants.then_some(likeliest))
}

/// Options of reasoning.
#[derive(Debug, Deserialize, ToSchema)]
struct Reasoning {
    /// The amount of reasoning: `none`, or `minimal` to `max`, which have no effect if the model's template reads none.
    effort: Option<String>,
}

/// A conversation, by its id.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged, from = "TextOrObject<GivenConversation>")]
pub(crate) enum ConversationField {
    Id(String),
    Object { id: String },
}

/// An object with the id of a conversation.
#[derive(Deserialize)]
pub(crate) struct GivenConversation {
    id: String,
}

impl From<TextOrObject<GivenConversation>> for ConversationField {
    fn from(given: TextOrObject<GivenConversation>) -> Self {
        match given {
            TextOrObject::Text(text) => Self::Id(text),
            TextOrObject::Object(GivenConversation { id }) => Self::Object { id },
        }
    }
}

/// The body of a request for a response.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct ResponsesBody {
    #[serde(flatten)]
    _response: ResponsesRequest,
    #[serde(flatten)]
    _sampling: Sampling,
}

#[derive(Debug, Deserialize, ToSchema)]
struct TextOptions {
    /// The format of the output.
    format: Option<TextFormat>,
}

/// A user message, or a conversation.
#[expect(
    dead_code,
    reason = "it checks the types of the items, which are then read one by one"
)]
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged, from = "TextOrArray<InputItem>")]
enum Input {
    Text(String),
    Items(Vec<InputItem>),
}

impl From<TextOrArray<InputItem>> for Input {
    fn from(given: TextOrArray<InputItem>) -> Self {
        match given {
            TextOrArray::Text(text) => Self::Text(text),
            TextOrArray::Array(items) => Self::Items(items),
        }
    }
}

/// The input as it is stored.
#[derive(Debug, Deserialize)]
struct GivenInput {
    input: Value,
}

/// The request's fields that the response repeats.
#[derive(Debug, Serialize)]
struct Echoed<'a> {
    instructions: Option<&'a str>,
    max_output_tokens: Option<i64>,
    temperature: Option<f64>,
    top_p: Option<f64>,
    parallel_tool_calls: bool,
    tools: Value,
    tool_choice: Value,
    text: Value,
    metadata: Map<String, Value>,
    previous_response_id: Option<&'a str>,
    conversation: Option<Value>,
    store: bool,
    truncation: Truncation,
    top_logprobs: usize,
}

/// Generates a response.
#[utoipa::path(
    post, path = "/v1/responses", tag = "answers",
    request_body(content = ResponsesBody, examples(
        ("whole" = (value = json!({"input": "Hello", "max_output_tokens": 8}))),
        ("streamed" = (value = json!({"input": "Hello", "max_output_tokens": 8, "stream": true}))),
    )),
    responses(
        (status = 200, description = "The response; a stream of events if `stream` is true",
         content((Object = "application/json"), (StreamEvent = "text/event-stream"))),
        (status = 400, body = ErrorBody), (status = 404, body = ErrorBody), (status = 429, body = ErrorBody),
    )
)]
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    Client(client): Client,
    body: JsonBody,
) -> ApiResult<Response> {
    let body = body.checked(&fields::RESPONSES)?;
    let (request, sampling): (ResponsesRequest, Sampling) = (body.parse()?, body.parse()?);
    let prompt: PromptFields = body.parse()?;
    metadata::check(request.metadata.as_ref())?;
    let keeper = keeper(&app, client, request.given(body.parse()?))?;
    sampling.check(app.options.parallel)?;
    let include = request.include.as_deref().unwrap_or_default();
    let log_probabilities = log_probabilities(include, request.top_logprobs)?;
    let format = request.text.as_ref().and_then(|text| text.format.as_ref());
    let most = ("max_output_tokens", request.max_output_tokens);
    let max_tokens = limit(None, most, None)?;
    check_some("max_output_tokens", max_tokens)?;
    let form = format
        .map(|format| format.form("text.format", "text.format.schema"))
        .transpose()?
        .flatten();
    let instructions = request.instructions.as_deref();
    let echoed = Echoed {
        instructions,
        max_output_tokens: request.max_output_tokens,
        temperature: sampling.temperature,
        top_p: sampling.top_p,
        parallel_tool_calls: request.parallel_tool_calls.unwrap_or(true),
        tools: json!(request.tools.as_deref().unwrap_or_default()),
        tool_choice: request
            .tool_choice
            .as_ref()
            .map_or_else(|| json!("auto"), |choice| json!(choice)),
        text: json!({"format": format.map_or_else(|| json!({"type": "text"}), |format| json!(format))}),
        metadata: request.metadata.unwrap_or_default(),
        previous_response_id: request.previous_response_id.as_deref(),
        conversation: keeper.conversation.as_ref().map(|id| json!({"id": id})),
        store: keeper.stores,
        truncation: request.truncation.unwrap_or_default(),
        top_logprobs: log_probabilities.unwrap_or(0),
    };
    let echoed = json!(echoed);
    let mut tools = ToolUse::of_response(
        request.tools,
        request.tool_choice.as_ref(),
        request.parallel_tool_calls,
    )?;
    tools.leave_out(&hosted(&keeper.input));
    let messages = read_small(&keeper, instructions)?;
    prompt.check(messages.as_deref())?;
    let model = app.model(request.model.as_deref()).await?;
    let messages = match messages {
        Some(messages) => messages,
        None => read_large((&model, client.address), &keeper, instructions).await?,
    };
    let template = model.model().chat_template();
    let mut prompt = prompt.read(template)?;
    if let Some(effort) = request.reasoning.and_then(|reasoning| reasoning.effort) {
        prompt.ask_effort("reasoning.effort", effort, template)?;
    }
    let asked = Conversation {
        model,
        messages,
        sampling: &sampling,
        max_tokens,
        log_probabilities,
        tools,
        form,
        prompt,
        reasoning: ReasoningOptions::default(),
    };
    let prefixes = Prefixes {
        answer: "resp_",
        call: "call_",
    };
    let Begun {
        reply,
        answers,
        mut readers,
        left_out,
    } = asked
        .begin(&app, client, prefixes)
        .await
        .map_err(of_input)?;
    let reader = readers
        .pop()
        .ok_or_else(|| ApiError::internal("there is no output"))?;
    let wants_tokens = log_probabilities.is_some();
    let answer = ResponseAnswer::new((reply, reader), wants_tokens, echoed, keeper);
    let response = if sampling.streams() {
        sse::respond(answers, answer)
    } else {
        Json(answer.collect(answers).await?).into_response()
    };
    // The response repeats fields of the body.
    Ok(left_out.say(body.hold(response)))
}

/// Returns an error that names `input`, the field of this API that has the messages.
fn of_input(mut error: ApiError) -> ApiError {
    if error.detail.param.as_deref() != Some("messages") {
        return error;
    }
    if let Some(message) = error.detail.message.strip_prefix("messages: ") {
        error.detail.message = format!("input: {message}");
    }
    error.with_param("input")
}

/// A request whose tokens are counted.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct InputTokensRequest {
    #[serde(flatten)]
    _response: ResponsesRequest,
}

/// The number of tokens of a request for a response.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct InputTokens {
    /// Always `response.input_tokens`.
    object: &'static str,
    input_tokens: usize,
}

/// Counts the tokens of a conversation, as `/v1/responses` counts them.
#[utoipa::path(
    post, path = "/v1/responses/input_tokens", tag = "answers", request_body = InputTokensRequest,
    responses((status = 200, body = InputTokens), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody))
)]
pub(crate) async fn input_tokens(
    State(app): State<Arc<App>>,
    Client(client): Client,
    body: JsonBody,
) -> ApiResult<Json<InputTokens>> {
    let body = body.checked(&fields::INPUT_TOKENS)?;
    let (request, prompt): (ResponsesRequest, PromptFields) = (body.parse()?, body.parse()?);
    metadata::check(request.metadata.as_ref())?;
    let keeper = keeper(&app, client, request.given(body.parse()?))?;
    let tools = ToolUse::of_response(
        request.tools,
        request.tool_choice.as_ref(),
        request.parallel_tool_calls,
    )?;
    let instructions = request.instructions.as_deref();
    let messages = read_small(&keeper, instructions)?;
    let model = app.model(request.model.as_deref()).await?;
    let messages = match messages {
        Some(messages) => messages,
        None => read_large((&model, client.address), &keeper, instructions).await?,
    };
    let template = model.model().chat_template();
    let mut prompt = prompt.read(template)?;
    if let Some(effort) = request.reasoning.and_then(|reasoning| reasoning.effort) {
        prompt.ask_effort("reasoning.effort", effort, template)?;
    }
    let counted = count((&app, &model, client.address), (messages, tools), prompt).await;
    let input_tokens = counted.map_err(of_input)?;
    Ok(Json(InputTokens {
        object: "response.input_tokens",
        input_tokens,
    }))
}
