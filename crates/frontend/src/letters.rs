//! Texts of users in which names of control tokens stay plain text: contents of messages, arguments and results of
//! calls, names and descriptions of functions, documents.

use serde_json::{Map, Value};
use triad_model::tokenizer::{Letters, Tokenizer};

use crate::error::Result;
use crate::tool_calls::Tool;

/// Fields of the model's own messages that clients may change before they send them back.
const CALLS: [&str; 2] = ["tool_calls", "function_call"];

/// Returns marks for the texts of a conversation: of `values`, its messages and documents, and of `tools`.
///
/// # Errors
/// As [`Letters::new`].
pub(crate) fn marks<'a>(
    tokenizer: &'a Tokenizer,
    values: [&[Value]; 2],
    tools: &[Tool],
) -> Result<Letters<'a>> {
    let mut texts = Vec::new();
    let values = values.into_iter().flatten();
    values.for_each(|value| add_texts(value, &mut texts));
    for tool in tools {
        texts.push(&tool.name);
        texts.extend(tool.description.as_deref());
        add_texts(&tool.parameters, &mut texts);
    }
    Ok(Letters::new(tokenizer, &texts)?)
}

/// Returns `message` with marks in its texts. The contents of the model's messages stay unmarked: templates search them
/// for words that the model writes.
/// This does not hold for the `picture`'s token, if the conversation has pictures: none is in a text.
pub(crate) fn marked_message(
    letters: &Letters<'_>,
    message: &Value,
    picture: Option<&str>,
) -> Value {
    let Value::Object(fields) = message else {
        return message.clone();
    };
    let is_models = fields.get("role").is_some_and(|role| role == "assistant");
    let fields = fields.iter().map(|(field, value)| {
        let is_marked = match field.as_str() {
            "role" => false,
            field => !is_models || CALLS.contains(&field),
        };
        let value = if is_marked {
            marked(letters, value)
        } else if let (Some(picture), "content") = (picture, field.as_str()) {
            without_picture(value, picture, &letters.mark(picture))
        } else {
            value.clone()
        };
        (field.clone(), value)
    });
    Value::Object(fields.collect())
}

/// Returns a content with `marked` in place of `picture` in its texts.
fn without_picture(content: &Value, picture: &str, marked: &str) -> Value {
    match content {
        Value::String(text) => text.replace(picture, marked).into(),
        Value::Array(parts) => parts
            .iter()
            .map(|part| {
                let mut part = part.clone();
                if let Some(text) = part["text"].as_str() {
                    part["text"] = text.replace(picture, marked).into();
                }
                part
            })
            .collect(),
        content => content.clone(),
    }
}

/// Returns `tool` with marks in its name, its description, and its parameters' names and texts.
pub(crate) fn marked_tool(letters: &Letters<'_>, tool: &Tool) -> Tool {
    Tool {
        name: letters.mark(&tool.name),
        description: tool.description.as_deref().map(|text| letters.mark(text)),
        parameters: marked(letters, &tool.parameters),
    }
}

/// Returns `value` with marks in all its texts and keys.
pub(crate) fn marked(letters: &Letters<'_>, value: &Value) -> Value {
    match value {
        Value::String(text) => letters.mark(text).into(),
        Value::Array(items) => items.iter().map(|item| marked(letters, item)).collect(),
        Value::Object(fields) => {
            let fields = fields
                .iter()
                .map(|(key, value)| (letters.mark(key), marked(letters, value)));
            Value::Object(fields.collect::<Map<_, _>>())
        }
        value => value.clone(),
    }
}

fn add_texts<'a>(value: &'a Value, texts: &mut Vec<&'a str>) {
    match value {
        Value::String(text) => texts.push(text),
        Value::Array(items) => items.iter().for_each(|item| add_texts(item, texts)),
        Value::Object(fields) => {
            for (key, value) in fields {
                texts.push(key);
                add_texts(value, texts);
            }
        }
        _ => {}
    }
}
