//! Messages for templates: arguments of calls as objects, or calls and results as text where a template knows no functions.

use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::tool_calls::{self, Tool};

/// Returns messages for a template that does not list functions: calls and results are text. The instructions are in
/// the system message if the template `reads_system`, otherwise in the first user message.
pub(crate) fn plain_messages(
    messages: &[Value],
    tools: &[Tool],
    reads_system: bool,
) -> Result<Vec<Value>> {
    let (mut plain, mut is_results) = (Vec::<Value>::new(), false);
    for message in messages {
        let role = message["role"]
            .as_str()
            .ok_or(Error::Message { expected: "role" })?;
        let mut calls = Vec::new();
        for call in message["tool_calls"].as_array().into_iter().flatten() {
            let call = with_objects(&json!({ "tool_calls": [call] }))["tool_calls"][0].clone();
            let call = call.get("function").unwrap_or(&call);
            let call = json!({ "name": call["name"], "arguments": call["arguments"] });
            calls.push(format!("<tool_call>\n{call}\n</tool_call>"));
        }
        if role != "tool" {
            let mut message = message.clone();
            if !calls.is_empty() {
                let text = Some(content(&message)).filter(|text| !text.is_empty());
                message["content"] = text
                    .into_iter()
                    .chain(calls)
                    .collect::<Vec<_>>()
                    .join("\n")
                    .into();
            } else if message["content"].is_null() {
                message["content"] = "".into();
            }
            if let Some(message) = message.as_object_mut() {
                message.remove("tool_calls");
            }
            plain.push(message);
            is_results = false;
            continue;
        }
        // Consecutive results share one user turn: many templates refuse two in a row.
        let mut parts = match plain.pop_if(|_| is_results) {
            Some(mut earlier) => match earlier["content"].take() {
                Value::Array(parts) => parts,
                text => vec![json!({ "type": "text", "text": text })],
            },
            None => Vec::new(),
        };
        let before = if parts.is_empty() { "" } else { "\n" };
        add_text(&mut parts, &format!("{before}<tool_response>\n"));
        add_result(&mut parts, &message["content"]);
        add_text(&mut parts, "\n</tool_response>");
        let content = match &parts[..] {
            [only] => only["text"].clone(),
            _ => parts.into(),
        };
        plain.push(json!({ "role": "user", "content": content }));
        is_results = true;
    }
    if !tools.is_empty() {
        let instructions = tool_calls::instructions(tools);
        let system = plain.first_mut().filter(|first| first["role"] == "system");
        match system {
            Some(system) => {
                system["content"] = format!("{}\n\n{instructions}", content(system)).into();
            }
            None if reads_system => {
                plain.insert(0, json!({ "role": "system", "content": instructions }));
            }
            None => match plain.iter_mut().find(|message| message["role"] == "user") {
                Some(first) => match &mut first["content"] {
                    Value::Array(parts) if parts.iter().any(is_picture) => {
                        let text = format!("{instructions}\n\n");
                        parts.insert(0, json!({ "type": "text", "text": text }));
                    }
                    _ => first["content"] = format!("{instructions}\n\n{}", content(first)).into(),
                },
                None => plain.insert(0, json!({ "role": "user", "content": instructions })),
            },
        }
    }
    Ok(plain)
}

/// Adds the texts of a result, a line each, and its pictures.
fn add_result(parts: &mut Vec<Value>, content: &Value) {
    let Value::Array(given) = content else {
        return add_text(parts, content.as_str().unwrap_or_default());
    };
    let mut is_text = false;
    for part in given {
        if is_picture(part) {
            parts.push(part.clone());
            is_text = false;
        } else if let Some(text) = part["text"].as_str() {
            add_text(parts, if is_text { "\n" } else { "" });
            add_text(parts, text);
            is_text = true;
        }
    }
}

/// Adds a text to the last part if that is a text, and as a part otherwise.
fn add_text(parts: &mut Vec<Value>, text: &str) {
    match parts.last_mut().and_then(|part| part.get_mut("text")) {
        Some(Value::String(last)) => last.push_str(text),
        _ => parts.push(json!({ "type": "text", "text": text })),
    }
}

/// Returns the message with objects as the arguments of its calls, as templates expect them.
pub(crate) fn with_objects(message: &Value) -> Value {
    let mut message = message.clone();
    for call in message
        .get_mut("tool_calls")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
    {
        let function = if call.get("function").is_some() {
            &mut call["function"]
        } else {
            call
        };
        match function.get("arguments") {
            // A call without arguments.
            Some(Value::Null) => function["arguments"] = json!({}),
            Some(Value::String(text)) if text.trim().is_empty() => {
                function["arguments"] = json!({});
            }
            Some(Value::String(text)) => {
                if let Ok(arguments @ Value::Object(_)) = serde_json::from_str(text) {
                    function["arguments"] = arguments;
                }
            }
            _ => {}
        }
    }
    message
}

/// Returns the text of a message's content.
pub(crate) fn content(message: &Value) -> String {
    match &message["content"] {
        Value::Array(parts) => parts
            .iter()
            .filter_map(|part| part["text"].as_str())
            .collect::<Vec<_>>()
            .join("\n"),
        content => content.as_str().unwrap_or_default().to_owned(),
    }
}

/// Returns whether a message is the result of a call, with a picture.
pub(crate) fn has_shown_result(message: &Value) -> bool {
    let parts = message["content"].as_array();
    message["role"] == "tool" && parts.is_some_and(|parts| parts.iter().any(is_picture))
}

/// Moves the pictures of results into the user's message after the last result.
pub(crate) fn with_pictures_after_results(messages: Vec<Value>) -> Vec<Value> {
    let (mut moved, mut shown) = (Vec::with_capacity(messages.len() + 1), Vec::new());
    let user = |parts: Vec<Value>| json!({"role": "user", "content": parts});
    for mut message in messages {
        if message["role"] == "tool" {
            if let Some(parts) = message["content"].as_array_mut() {
                shown.extend(parts.extract_if(.., |part| is_picture(part)));
                // A template that knows no pictures in results may print a list as it is.
                message["content"] = content(&message).into();
            }
        } else if !shown.is_empty() {
            let mut parts = std::mem::take(&mut shown);
            if message["role"] == "user" {
                match message["content"].take() {
                    Value::Array(said) => parts.extend(said),
                    text => parts.push(json!({"type": "text", "text": text})),
                }
                message = user(parts);
            } else {
                moved.push(user(parts));
            }
        }
        moved.push(message);
    }
    if !shown.is_empty() {
        moved.push(user(shown));
    }
    moved
}

/// Returns whether a part of a content is a picture.
pub(crate) fn is_picture(part: &Value) -> bool {
    part["type"] == "image"
}
