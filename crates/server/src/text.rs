//! `/tokenize`, `/detokenize`, `/apply-template`, by the names of llama.cpp's server.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use triad_engine::Cancel;
use triad_frontend::chat;
use triad_frontend::tool_calls::Tool;
use triad_model::tokenizer::Special;
use utoipa::ToSchema;

use crate::app::App;
use crate::body::JsonBody;
use crate::error::{ApiError, ApiResult, ErrorBody};
use crate::guard::Client;
use crate::hosted::Hosted;
use crate::messages::{ChatMessage, messages};
use crate::prepare::Work;
use crate::tools::{ChatTool, ToolUse};

/// Tokens of a request, at most.
const MOST_TOKENS: usize = 1 << 20;

#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct TokenizeRequest {
    model: Option<String>,
    /// A text.
    content: Option<String>,
    /// Or a conversation, to which the template is applied.
    messages: Option<Vec<ChatMessage>>,
    /// Functions that the conversation may call.
    tools: Option<Vec<ChatTool>>,
    /// Read the names of control tokens in the text as these tokens, and put no BOS before it.
    parse_special: Option<bool>,
    /// Tell how the vocabulary spells each token.
    with_pieces: Option<bool>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Tokens {
    tokens: Vec<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pieces: Option<Vec<String>>,
    count: usize,
    /// Tokens of a prompt and its answer, at most.
    max_model_len: usize,
}

/// The tokens of a text or a conversation.
#[utoipa::path(
    post, path = "/tokenize", tag = "text", request_body = TokenizeRequest,
    responses((status = 200, body = Tokens), (status = 400, body = ErrorBody))
)]
pub(crate) async fn tokenize(
    State(app): State<Arc<App>>,
    Client(client): Client,
    body: JsonBody,
) -> ApiResult<Json<Tokens>> {
    let request: TokenizeRequest = body.parse()?;
    let model = app.model(request.model.as_deref()).await?;
    let special = if request.parse_special.unwrap_or(false) { Special::Parsed } else { Special::AsText };
    let with_pieces = request.with_pieces.unwrap_or(false);
    // Wrong ones are refused beside a text, too, which has no use for them.
    let tools = ToolUse::of_chat(request.tools, None, None)?;
    let tokenized = match (request.content, request.messages) {
        (Some(text), None) => {
            let work = Work::Text(text.len());
            let encode = move |model: &Hosted, cancel: &Cancel| encode(model, &text, special, cancel);
            model.preparers().enter((&model, client), work, encode).await?
        }
        (None, Some(given)) => {
            let messages = messages(given)?;
            let work = Work::Text(bytes(&messages));
            let encode = move |model: &Hosted, cancel: &Cancel| {
                let text = template(model, (&messages, tools.listed()), true, cancel)?;
                encode(model, &text, Special::Parsed, cancel)
            };
            model.preparers().enter((&model, client), work, encode).await?
        }
        _ => return Err(ApiError::field("content", "expected either content or messages")),
    };
    let tokenizer = model.model().tokenizer()?;
    let piece = |token: &u32| tokenizer.piece(*token).unwrap_or_default().to_owned();
    let pieces = with_pieces.then(|| tokenized.iter().map(piece).collect());
    let (count, max_model_len) = (tokenized.len(), model.context());
    Ok(Json(Tokens { tokens: tokenized, pieces, count, max_model_len }))
}

#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct DetokenizeRequest {
    model: Option<String>,
    tokens: Vec<u32>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Text {
    content: String,
}

/// The text of tokens; control tokens have none.
#[utoipa::path(
    post, path = "/detokenize", tag = "text", request_body = DetokenizeRequest,
    responses((status = 200, body = Text), (status = 400, body = ErrorBody))
)]
pub(crate) async fn detokenize(
    State(app): State<Arc<App>>,
    Client(client): Client,
    body: JsonBody,
) -> ApiResult<Json<Text>> {
    let DetokenizeRequest { model, tokens } = body.parse()?;
    let model = app.model(model.as_deref()).await?;
    let tokenizer = model.model().tokenizer()?;
    let known = tokenizer.vocab_size();
    if let Some(token) = tokens.iter().find(|token| **token as usize >= known) {
        return Err(ApiError::field("tokens", format!("token {token} is outside the vocabulary of {known}")));
    }
    if tokens.len() > MOST_TOKENS {
        return Err(ApiError::field("tokens", format!("{} tokens, expected at most {MOST_TOKENS}", tokens.len())));
    }
    let work = Work::Text(tokens.len());
    let decode = move |model: &Hosted, _: &Cancel| Ok(model.model().tokenizer()?.decode(&tokens));
    Ok(Json(Text { content: model.preparers().enter((&model, client), work, decode).await? }))
}

#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct TemplateRequest {
    model: Option<String>,
    messages: Vec<ChatMessage>,
    /// Functions that the conversation may call.
    tools: Option<Vec<ChatTool>>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Prompt {
    prompt: String,
}

/// The text that the model reads of a conversation.
#[utoipa::path(
    post, path = "/apply-template", tag = "text", request_body = TemplateRequest,
    responses((status = 200, body = Prompt), (status = 400, body = ErrorBody))
)]
pub(crate) async fn apply_template(
    State(app): State<Arc<App>>,
    Client(client): Client,
    body: JsonBody,
) -> ApiResult<Json<Prompt>> {
    let TemplateRequest { model, messages: given, tools } = body.parse()?;
    let model = app.model(model.as_deref()).await?;
    let (messages, tools) = (messages(given)?, ToolUse::of_chat(tools, None, None)?);
    let work = Work::Text(bytes(&messages));
    let render = move |model: &Hosted, cancel: &Cancel| template(model, (&messages, tools.listed()), true, cancel);
    Ok(Json(Prompt { prompt: model.preparers().enter((&model, client), work, render).await? }))
}

/// The text of a conversation; with `add_generation_prompt` it ends where the model's answer begins.
///
/// # Errors
/// If the model has no template, it refuses the conversation, or `cancel` is set meanwhile.
pub(crate) fn template(
    model: &Hosted,
    (messages, tools): (&[Value], &[Tool]),
    add_generation_prompt: bool,
    cancel: &Cancel,
) -> ApiResult<String> {
    let template = model.model().chat_template();
    let template = template.ok_or_else(|| ApiError::invalid("the model has no chat template"))?;
    let text = chat::render_with_tools(template, model.name(), (messages, tools), (add_generation_prompt, cancel));
    text.map_err(|error| ApiError::from(error).with_param("messages"))
}

fn encode(model: &Hosted, text: &str, special: Special, cancel: &Cancel) -> ApiResult<Vec<u32>> {
    Ok(chat::encode_text(model.model(), text, special, (MOST_TOKENS, cancel))?)
}

/// The bytes of the texts of messages, about.
pub(crate) fn bytes(messages: &[Value]) -> usize {
    let of_one = |value: &Value| match value {
        Value::String(text) => text.len(),
        Value::Array(values) => bytes(values),
        Value::Object(fields) => fields.values().map(|value| bytes(std::slice::from_ref(value))).sum(),
        _ => 1,
    };
    messages.iter().map(of_one).sum()
}
