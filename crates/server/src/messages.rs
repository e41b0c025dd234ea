//! Messages of a conversation, in requests and as input of templates.

use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::error::{ApiError, ApiResult};
use crate::pictures::{self, Source};
use crate::sampling::one_of;
use crate::turns::{Role, Turns};
use crate::values::{TextOrArray, TextOrObject};

/// Maximum number of messages in a conversation.
pub(crate) const MAX_MESSAGES: usize = 4096;

/// A message of a conversation.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct ChatMessage {
    role: Role,
    content: Option<Content>,
    /// The tool calls of an assistant message.
    tool_calls: Option<Vec<ChatCall>>,
    /// The id of the call whose result this message contains, if its role is `tool`.
    tool_call_id: Option<String>,
    /// The author's name, for templates that use it.
    name: Option<String>,
    /// The model's reasoning before the message, for templates that use it.
    reasoning_content: Option<String>,
    /// Alias of `reasoning_content`.
    reasoning: Option<String>,
}

/// A tool call in an earlier message of the assistant.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct ChatCall {
    id: String,
    /// Always `function`.
    #[serde(rename = "type")]
    kind: Option<String>,
    function: CalledFunction,
}

#[derive(Debug, Deserialize, ToSchema)]
struct CalledFunction {
    name: String,
    /// A JSON object, as a string. Null or an empty string stands for no arguments.
    arguments: Option<String>,
}

/// The content of a message: a string, or an array of parts.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged, from = "TextOrArray<ContentPart>")]
pub(crate) enum Content {
    Text(String),
    Parts(Vec<ContentPart>),
}

impl From<TextOrArray<ContentPart>> for Content {
    fn from(given: TextOrArray<ContentPart>) -> Self {
        match given {
            TextOrArray::Text(text) => Self::Text(text),
            TextOrArray::Array(parts) => Self::Parts(parts),
        }
    }
}

impl Content {
    /// Returns a content without text.
    pub(crate) fn empty() -> Self {
        Self::Text(String::new())
    }
}

#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct ContentPart {
    /// `text`, `input_text` or `output_text`; `image_url`, `input_image` or `image` for models that read pictures.
    #[serde(rename = "type")]
    kind: String,
    text: Option<String>,
    /// A picture, as a `data:` URL, or as the URL of one at a host that the server allows.
    image_url: Option<ImageUrl>,
    /// A picture of Anthropic's API.
    source: Option<PictureSource>,
}

/// The URL of a picture, or an object with it.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged, from = "TextOrObject<GivenUrl>")]
pub(crate) enum ImageUrl {
    Url(String),
    Object { url: String },
}

/// An object with the URL of a picture.
#[derive(Deserialize)]
struct GivenUrl {
    url: String,
}

impl From<TextOrObject<GivenUrl>> for ImageUrl {
    fn from(given: TextOrObject<GivenUrl>) -> Self {
        match given {
            TextOrObject::Text(text) => Self::Url(text),
            TextOrObject::Object(GivenUrl { url }) => Self::Object { url },
        }
    }
}

/// A picture in base64, or the URL of one.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct PictureSource {
    /// `base64` or `url`.
    #[serde(rename = "type")]
    kind: String,
    /// The picture, if `type` is `base64`.
    data: Option<String>,
    /// The URL, if `type` is `url`: `data:`, or of a host that the server allows.
    url: Option<String>,
}

impl PictureSource {
    /// Returns the part of a message with the picture in `field`.
    ///
    /// # Errors
    /// If it is of an unsupported kind, or its data is missing.
    pub(crate) fn part(self, field: &str) -> ApiResult<Value> {
        let Self { kind, data, url } = self;
        let missing = |name: &str| ApiError::field(&format!("{field}.{name}"), "it is missing");
        let source = match kind.as_str() {
            "base64" => Source::Base64(data.ok_or_else(|| missing("data"))?),
            "url" => Source::Url(url.ok_or_else(|| missing("url"))?),
            kind => {
                let message = format!("{kind}: expected base64 or url");
                return Err(ApiError::unsupported(&format!("{field}.type"), message));
            }
        };
        pictures::part(field, source)
    }
}

/// Checks the number of messages.
///
/// # Errors
/// If `field` has no messages or too many.
pub(crate) fn check_count(field: &str, count: usize) -> ApiResult<()> {
    if count == 0 || count > MAX_MESSAGES {
        return Err(ApiError::field(
            field,
            format!("{count} messages, expected 1 to {MAX_MESSAGES}"),
        ));
    }
    Ok(())
}

/// Returns the messages as input of templates.
///
/// # Errors
/// If there are none, or one contains anything but text and pictures.
pub(crate) fn messages(given: Vec<ChatMessage>) -> ApiResult<Vec<Value>> {
    check_count("messages", given.len())?;
    let mut turns = Turns::default();
    for (index, message) in given.into_iter().enumerate() {
        add(&mut turns, &format!("messages[{index}]"), message)?;
    }
    Ok(turns.messages(None))
}

/// Adds the message in `field`.
fn add(turns: &mut Turns, field: &str, message: ChatMessage) -> ApiResult<()> {
    let ChatMessage {
        role,
        content,
        tool_calls,
        tool_call_id,
        name,
        reasoning_content,
        reasoning,
    } = message;
    let calls = tool_calls.unwrap_or_default();
    let of_content = format!("{field}.content");
    let content = match content {
        Some(content) => parts(&of_content, content)?,
        // The assistant may only call functions, and a function may return nothing.
        None if matches!(role, Role::Assistant | Role::Tool) => "".into(),
        None => return Err(ApiError::field(&of_content, "it is missing")),
    };
    if role == Role::Tool {
        let of_id = format!("{field}.tool_call_id");
        let id = tool_call_id.ok_or_else(|| ApiError::field(&of_id, "it is missing"))?;
        turns.result(&id, content);
        turns.set("name", name);
        return Ok(());
    }
    turns.say(role, content);
    turns.set("name", name);
    let reasoning = one_of(
        ("reasoning", reasoning),
        ("reasoning_content", reasoning_content),
    );
    turns.set(
        "reasoning_content",
        reasoning.map_err(|error| error.with_param(&format!("{field}.reasoning")))?,
    );
    for (index, ChatCall { id, kind, function }) in calls.into_iter().enumerate() {
        let field = format!("{field}.tool_calls[{index}]");
        if role != Role::Assistant {
            return Err(ApiError::field(
                &field,
                "only assistant messages may have tool calls",
            ));
        }
        check_call(
            &field,
            kind.as_deref().unwrap_or("function"),
            &function.name,
        )?;
        let arguments = function.arguments.unwrap_or_default();
        turns.call(&id, &function.name, &arguments);
    }
    Ok(())
}

/// Refuses calls of anything but functions.
fn check_call(field: &str, kind: &str, name: &str) -> ApiResult<()> {
    if kind != "function" {
        return Err(ApiError::unsupported(
            &format!("{field}.type"),
            format!("{kind}: expected function"),
        ));
    }
    if name.is_empty() {
        return Err(ApiError::field(
            &format!("{field}.function.name"),
            "it is empty",
        ));
    }
    Ok(())
}

/// Returns the text of the content in `field`.
///
/// # Errors
/// If a part of it is not text.
pub(crate) fn text(field: &str, content: Content) -> ApiResult<String> {
    match content {
        Content::Text(text) => Ok(text),
        Content::Parts(parts) => Ok(texts(field, parts)?.join("\n")),
    }
}

/// Returns the content in `field` as input of templates. An array of parts stays an array, for templates that read
/// parts.
///
/// # Errors
/// If a part is neither text nor a picture.
pub(crate) fn parts(field: &str, content: Content) -> ApiResult<Value> {
    let parts = match content {
        Content::Text(text) => return Ok(text.into()),
        Content::Parts(parts) => parts.into_iter().enumerate(),
    };
    let parts = parts.map(|(place, part)| {
        let field = format!("{field}[{place}]");
        match part.read(&field)? {
            ReadPart::Picture(picture) => Ok(picture),
            ReadPart::Text(text) => Ok(json!({"type": "text", "text": text})),
        }
    });
    parts.collect()
}

/// Returns the content in `field`: the text if there are no pictures, a line for each part.
///
/// # Errors
/// As [`parts`].
pub(crate) fn lines(field: &str, content: Content) -> ApiResult<Value> {
    Ok(match parts(field, content)? {
        Value::Array(parts) => with_lines(parts),
        text => text,
    })
}

/// Returns parts as a content: the text if there are no pictures. Texts that follow each other are lines of one.
pub(crate) fn with_lines(parts: Vec<Value>) -> Value {
    if parts.iter().all(|part| part["type"] == "text") {
        return joined(&parts).into();
    }
    let mut lines = Vec::<Value>::new();
    for part in parts {
        match (lines.last_mut(), part["text"].as_str()) {
            (Some(last), Some(text)) if last["type"] == "text" => {
                let before = last["text"].as_str().unwrap_or_default();
                last["text"] = format!("{before}\n{text}").into();
            }
            _ => lines.push(part),
        }
    }
    lines.into()
}

/// Returns the texts of parts, a line each.
fn joined(parts: &[Value]) -> String {
    let texts = parts.iter().filter_map(|part| part["text"].as_str());
    texts.collect::<Vec<_>>().join("\n")
}

fn texts(field: &str, parts: Vec<ContentPart>) -> ApiResult<Vec<String>> {
    let texts = parts.into_iter().enumerate().map(|(place, part)| {
        let field = format!("{field}[{place}]");
        match part.read(&field)? {
            ReadPart::Text(text) => Ok(text),
            ReadPart::Picture(_) => Err(ApiError::unsupported(
                &field,
                "a picture: expected text here",
            )),
        }
    });
    texts.collect()
}

/// A part of a content: a picture, as input of templates, or text.
enum ReadPart {
    Picture(Value),
    Text(String),
}

impl ContentPart {
    fn read(self, field: &str) -> ApiResult<ReadPart> {
        let missing = |name: &str| ApiError::field(&format!("{field}.{name}"), "it is missing");
        match self.kind.as_str() {
            "text" | "input_text" | "output_text" | "reasoning_text" | "summary_text" => {
                let text = self
                    .text
                    .ok_or_else(|| ApiError::field(field, "there is no text"))?;
                Ok(ReadPart::Text(text))
            }
            "image_url" | "input_image" => {
                let url = match self.image_url.ok_or_else(|| missing("image_url"))? {
                    ImageUrl::Url(url) | ImageUrl::Object { url } => url,
                };
                let field = format!("{field}.image_url");
                pictures::part(&field, Source::Url(url)).map(ReadPart::Picture)
            }
            "image" => {
                let source = self.source.ok_or_else(|| missing("source"))?;
                source
                    .part(&format!("{field}.source"))
                    .map(ReadPart::Picture)
            }
            kind => Err(ApiError::unsupported(
                field,
                format!("{kind}: expected text or a picture"),
            )),
        }
    }
}

/// Estimates the bytes of the messages' texts.
pub(crate) fn bytes(messages: &[Value]) -> usize {
    let of_one = |value: &Value| match value {
        Value::String(text) => text.len(),
        Value::Array(values) => bytes(values),
        Value::Object(fields) => fields
            .values()
            .map(|value| bytes(std::slice::from_ref(value)))
            .sum(),
        _ => 1,
    };
    messages.iter().map(of_one).sum()
}
