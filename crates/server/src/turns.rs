//! A conversation as input of a template, from the items and messages of all APIs.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::pieces::Section;

/// The author of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Role {
    System,
    /// Alias of `system`.
    Developer,
    User,
    Assistant,
    /// The result of a tool call.
    Tool,
}

impl Role {
    /// Returns the role's name in templates.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::System | Self::Developer => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
        }
    }
}

/// A conversation as input of a template.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    messages: Vec<Value>,
    /// The names of the called functions, by call id.
    called: BTreeMap<String, String>,
    /// Reasoning before the assistant's next message.
    reasoning: Option<String>,
}

impl Turns {
    /// Returns the number of messages.
    pub(crate) fn count(&self) -> usize {
        self.messages.len()
    }

    /// Adds a message with a string or a list of parts.
    pub(crate) fn say(&mut self, role: Role, content: impl Into<Value>) {
        if role != Role::Assistant {
            self.end_reasoning();
        }
        self.messages
            .push(json!({"role": role.name(), "content": content.into()}));
        let reasoning = self.reasoning.take();
        self.set("reasoning_content", reasoning);
    }

    /// Adds reasoning before the assistant's next message or call. Reasoning without text has no effect.
    pub(crate) fn think(&mut self, text: &str) {
        if !text.is_empty() {
            self.reasoning.get_or_insert_default().push_str(text);
        }
    }

    /// Adds an empty message with the reasoning that is not followed by one.
    fn end_reasoning(&mut self) {
        if self.reasoning.is_some() {
            self.say(Role::Assistant, "");
        }
    }

    /// Adds a field to the latest message, if it has a value.
    pub(crate) fn set(&mut self, field: &str, value: Option<String>) {
        if let (Some(message), Some(value)) = (self.messages.last_mut(), value) {
            message[field] = value.into();
        }
    }

    /// Adds a tool call to the latest message, or to a new message if the latest one is not the assistant's.
    pub(crate) fn call(&mut self, id: &str, name: &str, arguments: &str) {
        self.called.insert(id.to_owned(), name.to_owned());
        if self.reasoning.is_some()
            || self
                .messages
                .last()
                .is_none_or(|message| message["role"] != "assistant")
        {
            self.say(Role::Assistant, "");
        }
        let Some(Value::Object(message)) = self.messages.last_mut() else {
            return;
        };
        let calls = message.entry("tool_calls").or_insert_with(|| json!([]));
        if let Value::Array(calls) = calls {
            calls.push(Section::call(id, name, arguments));
        }
    }

    /// Adds the result of the call `id`.
    pub(crate) fn result(&mut self, id: &str, content: impl Into<Value>) {
        self.end_reasoning();
        let mut message = json!({"role": "tool", "tool_call_id": id, "content": content.into()});
        if let Some(name) = self.called.get(id) {
            // Some templates use the name.
            message["name"] = name.as_str().into();
        }
        self.messages.push(message);
    }

    /// Returns all messages, after a system message with `instructions` if given.
    pub(crate) fn messages(mut self, instructions: Option<&str>) -> Vec<Value> {
        self.end_reasoning();
        let system = instructions.map(|text| json!({"role": Role::System.name(), "content": text}));
        system.into_iter().chain(self.messages).collect()
    }
}
