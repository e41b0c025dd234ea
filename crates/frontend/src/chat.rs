//! From messages to tokens.

use serde_json::{Value, json};
use std::sync::Arc;

use triad_engine::{Cancel, Model};
use triad_model::template::{ChatTemplate, Message, Stop};
use triad_model::tokenizer::{Encoded, Special};

use crate::error::{Error, Result};
use crate::tool_calls::{self, Tool};

/// The tokens of a conversation after which the model answers, at most `context`: by the chat template of the model, which
/// the user calls `name`. A model without one continues the last message as plain text.
///
/// # Errors
/// If the template fails, the model has no tokenizer, or the tokens are too many.
pub fn encode(model: &Model, name: &str, messages: &[Message], context: usize) -> Result<Vec<u32>> {
    match model.chat_template() {
        Some(template) => {
            let text = template.render(messages, true).map_err(|error| error.at(name))?;
            encode_text(model, &text, Special::Parsed, (context, &Cancel::new()))
        }
        None => encode_plain(model, messages, context),
    }
}

/// As [`encode`], of messages in OpenAI's form, with `tools` that the model may call. A template that lists no functions
/// gets [instructions](tool_calls::instructions) in the system message, and calls and their results as text. The arguments
/// of earlier calls may be the text of an object, as OpenAI's are.
///
/// # Errors
/// As [`encode`]; if a message is no object with a role, or `cancel` is set meanwhile.
pub fn encode_with_tools(
    model: &Model,
    name: &str,
    messages: &[Value],
    tools: &[Tool],
    (context, cancel): (usize, &Cancel),
) -> Result<Vec<u32>> {
    match model.chat_template() {
        Some(template) => {
            let text = render_with_tools(template, name, (messages, tools), (true, cancel))?;
            encode_text(model, &text, Special::Parsed, (context, cancel))
        }
        None => {
            let last = messages.last().map_or("", |message| message["content"].as_str().unwrap_or_default());
            encode_text(model, last, Special::AsText, (context, cancel))
        }
    }
}

/// The text of a conversation with `tools` that the model may call, by the `template` of the model that the user calls
/// `name`; with `add_generation_prompt` it ends where the model's answer begins.
///
/// # Errors
/// If the template fails, a message is no object with a role, or `cancel` is set meanwhile.
pub fn render_with_tools(
    template: &ChatTemplate,
    name: &str,
    (messages, tools): (&[Value], &[Tool]),
    (add_generation_prompt, cancel): (bool, &Cancel),
) -> Result<String> {
    let cancel = cancel.clone();
    let stop: Stop = Arc::new(move || cancel.is_cancelled());
    let text = if tool_calls::template_lists_tools(template.source()) {
        let messages: Vec<_> = messages.iter().map(with_objects).collect();
        let tools: Vec<_> = tools.iter().map(Tool::to_json).collect();
        template.render_with_tools(&messages, &tools, add_generation_prompt, Some(stop))
    } else {
        template.render_until(&plain_messages(messages, tools)?, add_generation_prompt, Some(stop))
    };
    Ok(text.map_err(|error| error.at(name))?)
}

/// A message whose calls have objects as arguments, as templates write them.
fn with_objects(message: &Value) -> Value {
    let mut message = message.clone();
    for call in message.get_mut("tool_calls").and_then(Value::as_array_mut).into_iter().flatten() {
        let function = if call.get("function").is_some() { &mut call["function"] } else { call };
        if let Some(Value::String(text)) = function.get("arguments")
            && let Ok(arguments @ Value::Object(_)) = serde_json::from_str(text)
        {
            function["arguments"] = arguments;
        }
    }
    message
}

/// Messages as a template without functions reads them.
fn plain_messages(messages: &[Value], tools: &[Tool]) -> Result<Vec<Message>> {
    let (mut plain, mut is_results) = (Vec::<Message>::new(), false);
    for message in messages {
        let role = message["role"].as_str().ok_or(Error::Message { expected: "role" })?;
        let mut content = message["content"].as_str().unwrap_or_default().to_owned();
        let mut calls = Vec::new();
        for call in message["tool_calls"].as_array().into_iter().flatten() {
            let call = with_objects(&json!({ "tool_calls": [call] }))["tool_calls"][0].clone();
            let call = call.get("function").unwrap_or(&call);
            let call = json!({ "name": call["name"], "arguments": call["arguments"] });
            calls.push(format!("<tool_call>\n{call}\n</tool_call>"));
        }
        if !calls.is_empty() {
            let text = (!content.is_empty()).then_some(content);
            content = text.into_iter().chain(calls).collect::<Vec<_>>().join("\n");
        }
        if role != "tool" {
            plain.push(Message::new(role, content));
            is_results = false;
            continue;
        }
        let result = format!("<tool_response>\n{content}\n</tool_response>");
        match plain.last_mut().filter(|_| is_results) {
            // One turn of the user's: many templates refuse two behind each other.
            Some(results) => results.content = format!("{}\n{result}", results.content),
            None => plain.push(Message::new("user", result)),
        }
        is_results = true;
    }
    if !tools.is_empty() {
        let instructions = tool_calls::instructions(tools);
        match plain.first_mut() {
            Some(first) if first.role == "system" => first.content = format!("{}\n\n{instructions}", first.content),
            _ => plain.insert(0, Message::new("system", instructions)),
        }
    }
    Ok(plain)
}

/// The tokens of the last message as plain text, at most `context`.
///
/// # Errors
/// As [`encode_text`].
pub fn encode_plain(model: &Model, messages: &[Message], context: usize) -> Result<Vec<u32>> {
    let last = messages.last().map_or("", |message| message.content.as_str());
    encode_text(model, last, Special::AsText, (context, &Cancel::new()))
}

/// The tokens of `text`, which are at most `context`.
///
/// A text that is far too long is refused by its length, or as soon as that many tokens are there.
///
/// # Errors
/// If the model has no tokenizer, the tokens are too many, or `cancel` is set meanwhile.
pub fn encode_text(
    model: &Model,
    text: &str,
    special: Special,
    (context, cancel): (usize, &Cancel),
) -> Result<Vec<u32>> {
    match model.tokenizer()?.encode_within(text, special, context, &|| cancel.is_cancelled())? {
        Encoded::Whole(tokens) if tokens.len() > context => {
            Err(Error::PromptTooLong { tokens: tokens.len(), more: false, context })
        }
        Encoded::Whole(tokens) => Ok(tokens),
        Encoded::TooMany(tokens) => Err(Error::PromptTooLong { tokens, more: true, context }),
        Encoded::Stopped => Err(triad_engine::Error::Cancelled.into()),
    }
}
