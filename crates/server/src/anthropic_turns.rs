//! Conversations in Anthropic's format: blocks of text, of pictures, of tool calls and of their results.

use serde::Deserialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use crate::error::{ApiError, ApiResult};
use crate::messages::{Content, PictureSource, check_count, lines, with_lines};
use crate::turns::{Role, Turns};
use crate::values::TextOrArray;

/// A message of a conversation.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct BlockMessage {
    role: Role,
    /// The text or blocks. Null or an empty array stands for no text.
    content: Option<Blocks>,
}

/// The content of a message: a string, or an array of blocks.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged, from = "TextOrArray<Block>")]
enum Blocks {
    Text(String),
    Blocks(Vec<Block>),
}

impl From<TextOrArray<Block>> for Blocks {
    fn from(given: TextOrArray<Block>) -> Self {
        match given {
            TextOrArray::Text(text) => Self::Text(text),
            TextOrArray::Array(blocks) => Self::Blocks(blocks),
        }
    }
}

#[derive(Debug, Deserialize, ToSchema)]
struct Block {
    /// `text`, `image`, `thinking`, `redacted_thinking`, `tool_use` or `tool_result`.
    #[serde(rename = "type")]
    kind: String,
    text: Option<String>,
    /// The reasoning of an earlier message, for templates that use it.
    thinking: Option<String>,
    /// The id of a call. A call also has `name`, the tool, and `input`, the arguments.
    id: Option<String>,
    name: Option<String>,
    #[schema(value_type = Option<Object>)]
    input: Option<Map<String, Value>>,
    /// The id of the call whose result is in `content`.
    tool_use_id: Option<String>,
    content: Option<Content>,
    /// A picture.
    source: Option<PictureSource>,
    /// Whether the call failed.
    is_error: Option<bool>,
}

/// Reads a conversation.
///
/// # Errors
/// If there are no messages, or a block lacks a required field.
pub(crate) fn turns(given: Vec<BlockMessage>) -> ApiResult<Turns> {
    check_count("messages", given.len())?;
    let mut turns = Turns::default();
    for (index, BlockMessage { role, content }) in given.into_iter().enumerate() {
        if role == Role::Tool {
            let message = "expected user or assistant: results of calls are blocks of the user";
            return Err(ApiError::field(&format!("messages[{index}].role"), message));
        }
        match content {
            None => turns.say(role, ""),
            Some(Blocks::Text(text)) => turns.say(role, text),
            Some(Blocks::Blocks(blocks)) => {
                let field = format!("messages[{index}].content");
                add(&mut turns, &field, role, blocks)?;
            }
        }
        // Each result of a call is a message for the template.
        check_count("messages", turns.count().max(1))?;
    }
    Ok(turns)
}

/// Adds the blocks in `field`.
fn add(turns: &mut Turns, field: &str, role: Role, blocks: Vec<Block>) -> ApiResult<()> {
    // Consecutive texts and pictures form one message, to which calls are added.
    let (mut said, mut is_said) = (Vec::new(), false);
    for (index, block) in blocks.into_iter().enumerate() {
        let field = format!("{field}[{index}]");
        let missing = |name: &str| ApiError::field(&format!("{field}.{name}"), "it is missing");
        match (block.kind.as_str(), role) {
            ("thinking", Role::Assistant) => {
                say(turns, role, &mut said, false);
                turns.think(&block.thinking.ok_or_else(|| missing("thinking"))?);
            }
            // Only the service that encrypted it can read it.
            ("redacted_thinking", Role::Assistant) => {}
            ("text", _) => {
                let text = block.text.ok_or_else(|| missing("text"))?;
                said.push(json!({"type": "text", "text": text}));
            }
            ("image", Role::User) => {
                let source = block.source.ok_or_else(|| missing("source"))?;
                said.push(source.part(&format!("{field}.source"))?);
            }
            ("tool_use", Role::Assistant) => {
                say(turns, role, &mut said, !is_said);
                is_said = true;
                let (id, name) = (
                    block.id.ok_or_else(|| missing("id"))?,
                    block.name.ok_or_else(|| missing("name"))?,
                );
                let input = Value::Object(block.input.ok_or_else(|| missing("input"))?);
                turns.call(&id, &name, &input.to_string());
            }
            ("tool_result", Role::User) => {
                say(turns, role, &mut said, false);
                is_said = true;
                let id = block.tool_use_id.ok_or_else(|| missing("tool_use_id"))?;
                let content = block.content.unwrap_or_else(Content::empty);
                let mut result = lines(&format!("{field}.content"), content)?;
                if block.is_error.unwrap_or(false) {
                    result = failed(result);
                }
                turns.result(&id, result);
            }
            (kind, _) => {
                let message = format!(
                    "{kind}: expected text, the assistant's thinking, redacted_thinking or tool_use, or the user's \
                     image or tool_result"
                );
                return Err(ApiError::unsupported(&format!("{field}.type"), message));
            }
        }
    }
    say(turns, role, &mut said, !is_said);
    Ok(())
}

/// Adds `said` as a message. Adds an empty message if there are no parts and `must` is set.
fn say(turns: &mut Turns, role: Role, said: &mut Vec<Value>, must: bool) {
    if must || !said.is_empty() {
        turns.say(role, with_lines(std::mem::take(said)));
    }
}

/// Returns the content of a result that is an error.
fn failed(result: Value) -> Value {
    const ERROR: &str = "Error: ";
    match result {
        Value::Array(mut parts) => {
            match parts.first_mut().and_then(|part| part.get_mut("text")) {
                Some(Value::String(text)) => text.insert_str(0, ERROR),
                _ => parts.insert(0, json!({"type": "text", "text": ERROR.trim_end()})),
            }
            parts.into()
        }
        text => format!("{ERROR}{}", text.as_str().unwrap_or_default()).into(),
    }
}
