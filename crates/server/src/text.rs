//! `/tokenize`, `/detokenize` and `/apply-template`, with the names of llama.cpp's server.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use triad_engine::Cancel;
use triad_frontend::chat;
use triad_frontend::pictures::{PicturePrompt, Pictures};
use triad_frontend::tool_calls::Tool;
use triad_model::tokenizer::{TokenKind, Tokenizer};
use utoipa::ToSchema;

use crate::app::App;
use crate::body::JsonBody;
use crate::error::{ApiError, ApiResult, ErrorBody};
use crate::fields;
use crate::gathered_pictures::{Gathered, gather};
use crate::guard::Client;
use crate::messages::{ChatMessage, bytes, messages};
use crate::owner::Tenant;
use crate::pictures::{self, GivenPicture};
use crate::prepare::Work;
use crate::prompt_fields::{PromptFields, PromptOptions};
use crate::prompts::TextFields;
use crate::read_pictures::{ReadPicture, read};
use crate::sampling::one_of;
use crate::served::ServedModel;
use crate::tool_fields::{ChatTool, ToolChoiceField};
use crate::tools::ToolUse;
use crate::values::{Whole, numbers};

/// Maximum number of tokens per request.
const MAX_TOKENS: usize = 1 << 20;
/// The same for a tokenizer that reads a text in one call, which nothing ends, unless the model's context is longer.
const MAX_TOKENS_OF_A_CALL: usize = 1 << 16;
/// Maximum bytes of the text of tokens.
const MAX_TEXT: usize = 64 << 20;

/// Returns the maximum number of tokens per request.
pub(crate) fn most_tokens(model: &ServedModel) -> ApiResult<usize> {
    Ok(match model.model().tokenizer()?.reads_whole() {
        true => model.context().max(MAX_TOKENS_OF_A_CALL),
        false => MAX_TOKENS,
    })
}

#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct TokenizeRequest {
    model: Option<String>,
    /// The text to tokenize.
    content: Option<String>,
    /// Alias of `content`, as in vLLM's server.
    prompt: Option<String>,
    /// A conversation to tokenize instead of a text. The chat template renders it.
    messages: Option<Vec<ChatMessage>>,
    /// Tools of the conversation.
    tools: Option<Vec<ChatTool>>,
    /// Alias of `add_special_tokens`, as in llama.cpp's server. The default for `content` is false.
    add_special: Option<bool>,
    /// Whether to return the text of each token: with `content` in `tokens`, else in `pieces`.
    with_pieces: Option<bool>,
}

/// The body of a request for tokens.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct TokenizeBody {
    #[serde(flatten)]
    _tokenize: TokenizeRequest,
    #[serde(flatten)]
    _text: TextFields,
    #[serde(flatten)]
    _prompt: PromptFields,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Tokens {
    #[schema(value_type = Vec<serde_json::Value>)]
    tokens: TokenList,
    /// The vocabulary's spelling of each token, for a `prompt` or a conversation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pieces: Option<Vec<String>>,
    count: usize,
    /// Maximum number of tokens of a prompt with its completion.
    max_model_len: usize,
}

/// Tokens, or tokens with their texts.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum TokenList {
    Ids(Vec<u32>),
    Pieces(Vec<TokenPiece>),
}

/// A token with its text.
#[derive(Debug, Serialize)]
struct TokenPiece {
    id: u32,
    piece: TokenText,
}

/// A text, or the bytes of a part of a character.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
enum TokenText {
    Text(String),
    Bytes(Vec<u8>),
}

impl TokenPiece {
    fn new(tokenizer: &Tokenizer, id: u32) -> Self {
        let bytes = match tokenizer.token_kind(id) {
            TokenKind::Control => tokenizer.piece(id).unwrap_or_default().into(),
            _ => tokenizer.bytes(id),
        };
        let piece = String::from_utf8(bytes).map_or_else(
            |error| TokenText::Bytes(error.into_bytes()),
            TokenText::Text,
        );
        Self { id, piece }
    }
}

/// A text or conversation to tokenize.
enum Source {
    Text(String),
    Messages(Vec<Value>),
}

/// Tokenizes a text or a conversation.
#[utoipa::path(
    post, path = "/tokenize", tag = "text", request_body = TokenizeBody,
    responses((status = 200, body = Tokens), (status = 400, body = ErrorBody))
)]
pub(crate) async fn tokenize(
    State(app): State<Arc<App>>,
    Client(client): Client,
    body: JsonBody,
) -> ApiResult<Json<Tokens>> {
    let body = body.checked(&fields::TOKENIZE)?;
    let (request, prompt): (TokenizeRequest, PromptFields) = (body.parse()?, body.parse()?);
    let text: TextFields = body.parse()?;
    let with_pieces = request.with_pieces.unwrap_or(false);
    // With llama.cpp's name of the text, everything is as in llama.cpp's server.
    let is_llama = request.content.is_some();
    // Invalid tools are refused even with a text, which does not use them.
    let tools = ToolUse::of_chat(request.tools, None, None)?;
    let source = match (
        one_of(("prompt", request.prompt), ("content", request.content))?,
        request.messages,
    ) {
        (Some(text), None) => Source::Text(text),
        (None, Some(given)) => Source::Messages(messages(given)?),
        _ => {
            return Err(ApiError::field(
                "content",
                "expected either content or messages",
            ));
        }
    };
    prompt.check(match &source {
        Source::Text(_) => None,
        Source::Messages(messages) => Some(messages),
    })?;
    let model = app.model(request.model.as_deref()).await?;
    let mut options = text.options(&model);
    options.add_special = match request.add_special {
        None if is_llama => text.adds_special().unwrap_or(false),
        given => given.unwrap_or(options.add_special),
    };
    let prompt = prompt.read(model.model().chat_template())?;
    let caller = (&model, client.address);
    let tokenized = match source {
        Source::Text(text) => {
            let work = Work::Text(text.len());
            let encode = move |model: &ServedModel, cancel: &Cancel| {
                Ok(chat::encode_text(
                    model.model(),
                    &text,
                    options,
                    (most_tokens(model)?, cancel),
                )?)
            };
            model.preparers().enter(caller, work, encode).await?
        }
        // Without a template, a model would continue the last message as plain text.
        Source::Messages(messages) => {
            let caller = (&*app, &model, client.address);
            conversation_tokens(caller, (messages, tools), prompt).await?
        }
    };
    let tokenizer = model.model().tokenizer()?;
    let piece = |token: &u32| tokenizer.piece(*token).unwrap_or_default().to_owned();
    let pieces = (with_pieces && !is_llama).then(|| tokenized.iter().map(piece).collect());
    let (count, max_model_len) = (tokenized.len(), model.context());
    let tokens = if with_pieces && is_llama {
        let piece = |token| TokenPiece::new(tokenizer, token);
        TokenList::Pieces(tokenized.into_iter().map(piece).collect())
    } else {
        TokenList::Ids(tokenized)
    };
    Ok(Json(Tokens {
        tokens,
        pieces,
        count,
        max_model_len,
    }))
}

#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct DetokenizeRequest {
    model: Option<String>,
    #[schema(value_type = Vec<u32>)]
    tokens: Vec<Whole<u32>>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Text {
    content: String,
}

/// Returns the text of tokens. That of a control token is its name.
#[utoipa::path(
    post, path = "/detokenize", tag = "text", request_body = DetokenizeRequest,
    responses((status = 200, body = Text), (status = 400, body = ErrorBody))
)]
pub(crate) async fn detokenize(
    State(app): State<Arc<App>>,
    Client(client): Client,
    body: JsonBody,
) -> ApiResult<Json<Text>> {
    let body = body.checked(&fields::DETOKENIZE)?;
    let DetokenizeRequest { model, tokens } = body.parse()?;
    let tokens = numbers(tokens);
    if tokens.len() > MAX_TOKENS {
        return Err(ApiError::field(
            "tokens",
            format!("{} tokens, expected at most {MAX_TOKENS}", tokens.len()),
        ));
    }
    let model = app.model(model.as_deref()).await?;
    let tokenizer = model.model().tokenizer()?;
    let known = tokenizer.vocab_size();
    if let Some(token) = tokens.iter().find(|token| **token as usize >= known) {
        return Err(ApiError::field(
            "tokens",
            format!("token {token} is outside the vocabulary of {known}"),
        ));
    }
    let pieces = tokens.iter().filter_map(|token| tokenizer.piece(*token));
    let bytes: usize = pieces.map(str::len).sum();
    if bytes > MAX_TEXT {
        let message = format!("a text of {bytes} bytes, expected at most {MAX_TEXT}");
        return Err(ApiError::field("tokens", message));
    }
    let work = Work::Text(tokens.len());
    let decode = move |model: &ServedModel, _: &Cancel| {
        let tokenizer = model.model().tokenizer()?;
        // A text that was cut by tokens keeps its marks.
        Ok(tokenizer.decode_with_names(&tokens))
    };
    Ok(Json(Text {
        content: model
            .preparers()
            .enter((&model, client.address), work, decode)
            .await?,
    }))
}

#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct TemplateRequest {
    model: Option<String>,
    messages: Vec<ChatMessage>,
    /// Tools of the conversation.
    tools: Option<Vec<ChatTool>>,
    /// Whether the model must call a tool. With `none`, the prompt lists no tools.
    tool_choice: Option<ToolChoiceField>,
}

/// The body of a request for a rendered prompt.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct TemplateBody {
    #[serde(flatten)]
    _template: TemplateRequest,
    #[serde(flatten)]
    _prompt: PromptFields,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Prompt {
    prompt: String,
}

/// Renders a conversation with the chat template.
#[utoipa::path(
    post, path = "/apply-template", tag = "text", request_body = TemplateBody,
    responses((status = 200, body = Prompt), (status = 400, body = ErrorBody))
)]
pub(crate) async fn apply_template(
    State(app): State<Arc<App>>,
    Client(client): Client,
    body: JsonBody,
) -> ApiResult<Json<Prompt>> {
    let body = body.checked(&fields::CHAT)?;
    let TemplateRequest {
        model,
        messages: given,
        tools,
        tool_choice,
    } = body.parse()?;
    let prompt: PromptFields = body.parse()?;
    let (messages, tools) = (
        messages(given)?,
        ToolUse::of_chat(tools, tool_choice.as_ref(), None)?,
    );
    prompt.check(Some(&messages))?;
    let model = app.model(model.as_deref()).await?;
    let options = prompt.read(model.model().chat_template())?;
    let work = Work::Text(bytes(&messages) + options.bytes());
    let render = move |model: &ServedModel, cancel: &Cancel| {
        let template = model.model().chat_template().ok_or_else(no_template)?;
        let mut messages = messages;
        let most = model.picture_limits().pictures;
        let given = pictures::take(&mut messages, most)?;
        let failed = |error| ApiError::from(error).with_param("messages");
        let processor = match given.len() {
            0 => None,
            _ => Some(model.processor(&given)?),
        };
        if let Some(processor) = processor {
            let template = chat::template_for(template, tools.listed());
            triad_frontend::pictures::mark(processor, template, &mut messages)?;
        }
        let conversation = options.conversation(&messages, tools.listed(), false);
        let text = chat::render_conversation(template, model.name(), &conversation, cancel);
        let text = text.map_err(failed)?;
        if let Some(processor) = processor {
            triad_frontend::pictures::check_places(processor, &text, given.len())
                .map_err(failed)?;
        }
        Ok(text)
    };
    Ok(Json(Prompt {
        prompt: model
            .preparers()
            .enter((&model, client.address), work, render)
            .await?,
    }))
}

pub(crate) fn no_template() -> ApiError {
    ApiError::invalid("the model has no chat template")
}

/// The prompt of a conversation.
pub(crate) struct ConversationPrompt {
    /// The tokens, with places for pictures.
    pub(crate) prompt: PicturePrompt,
    pub(crate) pictures: Vec<ReadPicture>,
}

/// Returns the prompt of a conversation with the pictures that were taken out of its messages, with at most `within.0`
/// tokens. Of the pictures, only the heads are read.
///
/// # Errors
/// If the template refuses the conversation, a picture can't be read, there are too many tokens, or the request is
/// cancelled.
pub(crate) fn conversation_prompt(
    model: &ServedModel,
    (messages, tools, given): (&[Value], &[Tool], Vec<GivenPicture>),
    options: &PromptOptions,
    within: (usize, &Cancel),
) -> ApiResult<ConversationPrompt> {
    let conversation = options.conversation(messages, tools, model.keeps_letters());
    let failed = |error| ApiError::from(error).with_param("messages");
    let (loaded, name) = (model.model(), model.name());
    if given.is_empty() {
        let tokens = chat::encode_conversation(loaded, name, &conversation, within);
        return Ok(ConversationPrompt {
            prompt: tokens.map_err(failed)?.into(),
            pictures: Vec::new(),
        });
    }
    let processor = model.processor(&given)?;
    let pictures = read(model, given)?;
    let pieces = pictures.iter().map(|it| Arc::clone(&it.layout.pieces));
    let shown = Pictures {
        processor,
        pieces: &pieces.collect::<Vec<_>>(),
    };
    let prompt = chat::encode_pictures(loaded, name, &conversation, (shown, within));
    Ok(ConversationPrompt {
        prompt: prompt.map_err(failed)?,
        pictures,
    })
}

/// Returns the tokens of a conversation with its tools, for a request that only wants these. Those in the places of
/// pictures stand for no text; the pictures are not decoded.
///
/// # Errors
/// As [`conversation_prompt`]; or if the model has no template.
async fn conversation_tokens(
    (app, model, client): (&App, &Arc<ServedModel>, Tenant),
    (mut messages, tools): (Vec<Value>, ToolUse),
    prompt: PromptOptions,
) -> ApiResult<Vec<u32>> {
    let gathered = gather((app, model, client), &mut messages).await?;
    let text = bytes(&messages) + prompt.bytes() + tools.bytes();
    let work = Work::with_files(text, gathered.bytes());
    let Gathered { pictures, memory } = gathered;
    let encode = move |model: &ServedModel, cancel: &Cancel| {
        model.model().chat_template().ok_or_else(no_template)?;
        let _memory = memory;
        let conversation = (&messages[..], tools.listed(), pictures);
        let encoded =
            conversation_prompt(model, conversation, &prompt, (most_tokens(model)?, cancel))?;
        Ok(encoded.prompt.tokens)
    };
    model.preparers().enter((model, client), work, encode).await
}

/// Counts the tokens of a conversation with its tools.
///
/// # Errors
/// As for [`tokenize`].
pub(crate) async fn count(
    caller: (&App, &Arc<ServedModel>, Tenant),
    (messages, tools): (Vec<Value>, ToolUse),
    prompt: PromptOptions,
) -> ApiResult<usize> {
    prompt.check(&messages)?;
    let tokens = conversation_tokens(caller, (messages, tools), prompt).await?;
    Ok(tokens.len())
}
