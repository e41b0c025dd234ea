//! `/v1/responses`: OpenAI's Responses API. Nothing is stored: each request contains its whole conversation.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::de::IgnoredAny;
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
use crate::messages::{Content, Role, Turns, check_count, text};
use crate::prompt_fields::PromptFields;
use crate::response_answer::ResponseAnswer;
use crate::sampling::{Sampling, check_some};
use crate::sse::{self, StreamEvent};
use crate::tools::{ResponseTool, ToolChoiceField, ToolUse};

/// A request for a response.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct ResponsesRequest {
    /// The model's name, as in `/v1/models`. The default is the first model.
    model: Option<String>,
    /// The conversation so far.
    input: Input,
    /// Instructions that precede the conversation.
    instructions: Option<String>,
    /// Maximum number of generated tokens. By default, the context is the limit.
    #[schema(minimum = 1)]
    max_output_tokens: Option<usize>,
    text: Option<TextOptions>,
    /// Tools that the model may call.
    tools: Option<Vec<ResponseTool>>,
    /// Whether the model must call a tool. By default the model decides.
    tool_choice: Option<ToolChoiceField>,
    /// Whether the response may contain several calls. The default is true.
    parallel_tool_calls: Option<bool>,
    reasoning: Option<Reasoning>,
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
#[derive(Debug, Deserialize, ToSchema)]
#[serde(
    untagged,
    expecting = "expected a text or an array of messages, calls of functions and their results"
)]
enum Input {
    Text(String),
    Items(Vec<InputItem>),
}

/// A message, a tool call, or the result of a call.
#[derive(Debug, Deserialize, ToSchema)]
struct InputItem {
    /// `message`, `function_call` or `function_call_output`. The default is `message`.
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
    /// The item's id, which is ignored.
    #[schema(value_type = Option<String>)]
    id: Option<IgnoredAny>,
}

/// The request's fields that the response repeats.
#[derive(Debug, Serialize)]
struct Echoed<'a> {
    instructions: Option<&'a str>,
    max_output_tokens: Option<usize>,
    temperature: Option<f64>,
    top_p: Option<f64>,
    parallel_tool_calls: bool,
    tools: Value,
    tool_choice: Value,
    text: Value,
    metadata: Map<String, Value>,
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
    sampling.check(app.options.parallel)?;
    let format = request.text.as_ref().and_then(|text| text.format.as_ref());
    check_some("max_output_tokens", request.max_output_tokens)?;
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
    };
    let echoed = json!(echoed);
    let tools = ToolUse::of_response(
        request.tools,
        request.tool_choice.as_ref(),
        request.parallel_tool_calls,
    )?;
    let messages = turns(request.input)?.messages(instructions);
    prompt.check(Some(&messages))?;
    let model = app.model(request.model.as_deref()).await?;
    let template = model.model().chat_template();
    let mut prompt = prompt.read(template)?;
    if let Some(effort) = request.reasoning.and_then(|reasoning| reasoning.effort) {
        prompt.set_effort("reasoning.effort", effort, template)?;
    }
    let (max_tokens, log_probabilities) = (request.max_output_tokens, None);
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
        answer: "resp_",
        call: "call_",
    };
    let Begun {
        reply,
        answers,
        mut readers,
    } = asked.begin(&app, client, prefixes).await?;
    let reader = readers
        .pop()
        .ok_or_else(|| ApiError::internal("there is no output"))?;
    let answer = ResponseAnswer::new(reply, reader, echoed);
    if sampling.streams() {
        return Ok(sse::respond(answers, answer));
    }
    Ok(Json(answer.collect(answers).await?).into_response())
}

/// Reads the conversation in `input`.
fn turns(input: Input) -> ApiResult<Turns> {
    let mut turns = Turns::default();
    match input {
        Input::Text(text) => turns.say(Role::User, text),
        Input::Items(items) => {
            check_count("input", items.len())?;
            for (index, item) in items.into_iter().enumerate() {
                add(&mut turns, &format!("input[{index}]"), item)?;
            }
        }
    }
    Ok(turns)
}

/// Adds the item in `field`.
fn add(turns: &mut Turns, field: &str, item: InputItem) -> ApiResult<()> {
    let InputItem {
        kind,
        role,
        content,
        call_id,
        name,
        arguments,
        output,
        id,
    } = item;
    let is_reference = kind.is_none() && id.is_some() && role.is_none() && content.is_none();
    let kind = if is_reference {
        Some("item_reference")
    } else {
        kind.as_deref()
    };
    let missing = |name: &str| ApiError::field(&format!("{field}.{name}"), "it is missing");
    match kind.unwrap_or("message") {
        "message" => {
            let role = role
                .filter(|role| *role != Role::Tool)
                .ok_or_else(|| missing("role"))?;
            turns.say(
                role,
                text(
                    &format!("{field}.content"),
                    content.ok_or_else(|| missing("content"))?,
                )?,
            );
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
        "item_reference" => {
            let message = "item_reference: items are not stored: expected the item itself, as in the output of the \
                           earlier response";
            return Err(ApiError::unsupported(&format!("{field}.type"), message));
        }
        kind => {
            let message =
                format!("{kind}: expected message, function_call or function_call_output");
            return Err(ApiError::unsupported(&format!("{field}.type"), message));
        }
    }
    Ok(())
}
