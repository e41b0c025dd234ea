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
use crate::left_out;
use crate::messages::{Content, Role, Turns, check_count, parts, text};
use crate::owner::Owner;
use crate::prompt_fields::PromptFields;
use crate::reasoning::ReasoningOptions;
use crate::response_answer::ResponseAnswer;
use crate::sampling::{Sampling, check_some, limit, whole};
use crate::sse::{self, StreamEvent};
use crate::stored::Keeper;
use crate::text::count;
use crate::tool_fields::{ResponseTool, ToolChoiceField};
use crate::tools::ToolUse;

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
    /// Whether the response is kept for later requests. The default is true.
    store: Option<bool>,
    /// Data of the client, which the response repeats.
    #[schema(value_type = Option<Object>)]
    metadata: Option<Map<String, Value>>,
}

/// Options of reasoning.
#[derive(Debug, Deserialize, ToSchema)]
struct Reasoning {
    /// The amount of reasoning. Values other than `none` are refused if the model's template does not use it.
    effort: Option<String>,
}

/// A conversation, by its id.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected an id, or an object with an id")]
pub(crate) enum ConversationField {
    Id(String),
    Object { id: String },
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
#[serde(
    untagged,
    expecting = "expected a text or an array of messages, calls of functions and their results"
)]
enum Input {
    Text(String),
    Items(Vec<InputItem>),
}

/// A message, reasoning, a tool call, the result of a call, or a reference to such an item.
#[derive(Debug, Deserialize, ToSchema)]
struct InputItem {
    /// `message`, `reasoning`, `function_call`, `function_call_output` or `item_reference`. The default is `message`.
    #[serde(rename = "type")]
    kind: Option<String>,
    /// The role of a message.
    role: Option<Role>,
    content: Option<Content>,
    /// The id of a call, in the call and in its result.
    call_id: Option<String>,
    /// The called function. Its arguments, a JSON object as a string, are in `arguments`.
    name: Option<String>,
    arguments: Option<String>,
    /// The result of a call.
    output: Option<Content>,
    /// A summary of reasoning, which is used if there is no content.
    summary: Option<Content>,
    /// The item's id, which a reference needs.
    #[serde(rename = "id")]
    _id: Option<String>,
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
    body.check(&fields::RESPONSES)?;
    let (request, sampling): (ResponsesRequest, Sampling) = (body.parse()?, body.parse()?);
    let prompt: PromptFields = body.parse()?;
    let keeper = keeper(&app, client.owner, &request, body.parse()?)?;
    sampling.check(app.options.parallel)?;
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
    };
    let echoed = json!(echoed);
    let tools = ToolUse::of_response(
        request.tools,
        request.tool_choice.as_ref(),
        request.parallel_tool_calls,
    )?;
    let messages = turns(&keeper)?.messages(instructions);
    prompt.check(Some(&messages))?;
    let model = app.model(request.model.as_deref()).await?;
    let template = model.model().chat_template();
    let mut prompt = prompt.read(template)?;
    if let Some(effort) = request.reasoning.and_then(|reasoning| reasoning.effort) {
        prompt.set_effort("reasoning.effort", effort, template)?;
    }
    let log_probabilities = None;
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
        left_out: other_tools,
    } = asked
        .begin(&app, client, prefixes)
        .await
        .map_err(of_input)?;
    let reader = readers
        .pop()
        .ok_or_else(|| ApiError::internal("there is no output"))?;
    let answer = ResponseAnswer::new(reply, reader, echoed, keeper);
    let response = if sampling.streams() {
        sse::respond(answers, answer)
    } else {
        Json(answer.collect(answers).await?).into_response()
    };
    Ok(left_out::say(&other_tools, response))
}

/// Finds what the request continues, and the items of its input.
///
/// # Errors
/// If an earlier response, a conversation or an item is not kept, or there are too many items.
fn keeper(
    app: &App,
    owner: Owner,
    request: &ResponsesRequest,
    GivenInput { input }: GivenInput,
) -> ApiResult<Keeper> {
    let store = app.stored();
    let conversation = match &request.conversation {
        Some(ConversationField::Id(id) | ConversationField::Object { id }) => Some(id),
        None => None,
    };
    let (field, id) = match (&request.previous_response_id, conversation) {
        (Some(_), Some(_)) => {
            let message = "expected either this or previous_response_id, not both";
            return Err(ApiError::field("conversation", message));
        }
        (Some(id), None) => ("previous_response_id", Some(id)),
        (None, id) => ("conversation", id),
    };
    let earlier = id.map(|id| {
        store.items(owner, id).ok_or_else(|| {
            let message = format!(
                "{id} is not kept: expected the whole conversation as input, or an id that was used lately"
            );
            ApiError::field(field, message).with_code("not_found")
        })
    });
    let keeper = Keeper {
        store: Arc::clone(store),
        owner,
        earlier: earlier.transpose()?,
        input: given_items(app, owner, input)?,
        conversation: conversation.cloned(),
        stores: request.store.unwrap_or(true),
    };
    keeper.check()?;
    Ok(keeper)
}

/// Returns the items of the input, with those that it refers to in place of references.
///
/// # Errors
/// If an item is not kept.
pub(crate) fn given_items(app: &App, owner: Owner, input: Value) -> ApiResult<Vec<Value>> {
    let items = match input {
        Value::String(text) => {
            return Ok(vec![
                json!({"type": "message", "role": "user", "content": text}),
            ]);
        }
        Value::Array(items) => items,
        _ => {
            return Err(ApiError::field(
                "input",
                "expected a text or an array of items",
            ));
        }
    };
    let item = |(index, item): (usize, Value)| {
        let has = |field: &str| item.get(field).is_some_and(|value| !value.is_null());
        let is_reference = item["type"] == "item_reference"
            || (!has("type") && has("id") && !has("role") && !has("content"));
        if !is_reference {
            return Ok(item);
        }
        let id = item["id"].as_str().unwrap_or_default();
        app.stored().item(owner, id).ok_or_else(|| {
            let message = format!(
                "{id:?} is not kept: expected the item itself, as in the output of the earlier response"
            );
            ApiError::field(&format!("input[{index}].id"), message).with_code("not_found")
        })
    };
    items.into_iter().enumerate().map(item).collect()
}

/// Reads the conversation: what the request continues, and its input.
fn turns(keeper: &Keeper) -> ApiResult<Turns> {
    let mut turns = Turns::default();
    let earlier = keeper
        .earlier
        .as_ref()
        .map_or_else(Vec::new, |earlier| earlier.all());
    check_count("input", earlier.len() + keeper.input.len())?;
    for item in earlier {
        add(&mut turns, "input", item)?;
    }
    for (index, item) in keeper.input.iter().enumerate() {
        add(&mut turns, &format!("input[{index}]"), item)?;
    }
    Ok(turns)
}

/// Adds the item in `field`.
pub(crate) fn add(turns: &mut Turns, field: &str, item: &Value) -> ApiResult<()> {
    let parsed = InputItem::deserialize(item);
    let InputItem {
        kind,
        role,
        content,
        call_id,
        name,
        arguments,
        output,
        summary,
        _id: _,
    } = parsed.map_err(|error| ApiError::field(field, error.to_string()))?;
    let missing = |name: &str| ApiError::field(&format!("{field}.{name}"), "it is missing");
    match kind.as_deref().unwrap_or("message") {
        "message" => {
            let role = role
                .filter(|role| *role != Role::Tool)
                .ok_or_else(|| missing("role"))?;
            // The assistant may only have called functions.
            let content = content.or_else(|| (role == Role::Assistant).then(Content::empty));
            let content = content.ok_or_else(|| missing("content"))?;
            turns.say(role, said(&format!("{field}.content"), content)?);
        }
        "reasoning" => {
            let content = content.map(|content| text(&format!("{field}.content"), content));
            let summary = summary.map(|summary| text(&format!("{field}.summary"), summary));
            let content = content.transpose()?.filter(|text| !text.is_empty());
            let summary = summary.transpose()?;
            turns.think(&content.or(summary).unwrap_or_default());
        }
        "function_call" => {
            let id = call_id.ok_or_else(|| missing("call_id"))?;
            let name = name
                .filter(|name| !name.is_empty())
                .ok_or_else(|| missing("name"))?;
            turns.call(&id, &name, &arguments.ok_or_else(|| missing("arguments"))?);
        }
        "function_call_output" => {
            let id = call_id.ok_or_else(|| missing("call_id"))?;
            turns.result(
                &id,
                text(
                    &format!("{field}.output"),
                    output.ok_or_else(|| missing("output"))?,
                )?,
            );
        }
        kind => {
            let message = format!(
                "{kind}: expected message, reasoning, function_call, function_call_output or item_reference"
            );
            return Err(ApiError::unsupported(&format!("{field}.type"), message));
        }
    }
    Ok(())
}

/// Returns the content in `field`: parts if there are pictures, and otherwise the text.
fn said(field: &str, content: Content) -> ApiResult<Value> {
    if content.has_pictures() {
        return parts(field, content);
    }
    text(field, content).map(Value::from)
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
    body.check(&fields::INPUT_TOKENS)?;
    let (request, prompt): (ResponsesRequest, PromptFields) = (body.parse()?, body.parse()?);
    let keeper = keeper(&app, client.owner, &request, body.parse()?)?;
    let tools = ToolUse::of_response(
        request.tools,
        request.tool_choice.as_ref(),
        request.parallel_tool_calls,
    )?;
    let messages = turns(&keeper)?.messages(request.instructions.as_deref());
    let model = app.model(request.model.as_deref()).await?;
    let template = model.model().chat_template();
    let mut prompt = prompt.read(template)?;
    if let Some(effort) = request.reasoning.and_then(|reasoning| reasoning.effort) {
        prompt.set_effort("reasoning.effort", effort, template)?;
    }
    let counted = count(&model, client.address, (messages, tools), prompt).await;
    let input_tokens = counted.map_err(of_input)?;
    Ok(Json(InputTokens {
        object: "response.input_tokens",
        input_tokens,
    }))
}
