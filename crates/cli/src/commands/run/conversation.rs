//! Conversations, also in files: messages as JSON, `{"messages": [{"role": "user", "content": "…"}, …]}`, with calls of
//! tools as in OpenAI's API.

use std::io::{self, Read, Write};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use triad_frontend::tool_calls::ToolCall;
use triad_model::files;

use triad_console::output_file::OutputFile;

/// Maximum bytes of a file: no context holds more. Reading a device file would never end.
const MAX_BYTES: u64 = 64 << 20;
const ROLES: [&str; 4] = ["system", "user", "assistant", "tool"];

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Conversation {
    messages: Vec<Message>,
}

/// A message of a conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Message {
    pub role: String,
    pub content: String,
    /// Calls of tools by the model, each `{"id", "type": "function", "function": {"name", "arguments"}}`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<Call>,
    /// The call that this message is the result of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
}

/// A call of a tool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Call {
    id: String,
    #[serde(rename = "type")]
    kind: Kind,
    function: Function,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Function,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Function {
    name: String,
    /// A JSON object, as text.
    arguments: String,
}

impl Message {
    /// Creates a message of `role`.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self {
            role: role.into(),
            content: content.into(),
            tool_calls: Vec::new(),
            tool_call_id: None,
        }
    }

    /// Creates a message of the model with calls. `index` is that of the message in its conversation, and makes the
    /// names of the calls differ.
    pub fn calling(content: impl Into<String>, calls: &[ToolCall], index: usize) -> Self {
        let call = |(number, call): (usize, &ToolCall)| Call {
            // Templates of Mistral's models take nine letters and digits.
            id: format!("c{:04}{:04}", index % 10_000, number % 10_000),
            kind: Kind::Function,
            function: Function {
                name: call.name.clone(),
                arguments: call.arguments.clone(),
            },
        };
        Self {
            tool_calls: calls.iter().enumerate().map(call).collect(),
            ..Self::new("assistant", content)
        }
    }

    /// Creates the result of a call of this message.
    ///
    /// # Panics
    /// If the message has no such call.
    pub fn result_of(&self, call: usize, text: String) -> Self {
        Self {
            tool_call_id: Some(self.tool_calls[call].id.clone()),
            ..Self::new("tool", text)
        }
    }

    /// Returns the message as chat templates read it.
    pub fn to_json(&self) -> Value {
        let mut message = json!({ "role": self.role, "content": self.content });
        if !self.tool_calls.is_empty() {
            message["tool_calls"] = json!(self.tool_calls);
        }
        if let Some(id) = &self.tool_call_id {
            message["tool_call_id"] = id.as_str().into();
        }
        message
    }
}

/// Reads the messages in the file at `path`.
pub fn read(path: &Path) -> Result<Vec<Message>> {
    let name = path.display();
    let mut text = String::new();
    let file = files::open(path).with_context(|| format!("cannot read the conversation {name}"))?;
    file.take(MAX_BYTES + 1)
        .read_to_string(&mut text)
        .with_context(|| format!("cannot read the conversation {name}"))?;
    ensure!(
        text.len() as u64 <= MAX_BYTES,
        "{name}: longer than {} MiB: expected a conversation",
        MAX_BYTES >> 20
    );
    parse(&text).with_context(|| format!("{name} is not a saved conversation"))
}

/// Reads messages as [`read`] does. Returns none if the file does not exist.
pub fn read_if_there(path: &Path) -> Result<Vec<Message>> {
    if path.exists() {
        read(path)
    } else {
        Ok(Vec::new())
    }
}

fn parse(text: &str) -> Result<Vec<Message>> {
    let Conversation { messages } = serde_json::from_str(text)?;
    for (index, Message { role, .. }) in messages.iter().enumerate() {
        if !ROLES.contains(&role.as_str()) {
            let role: String = role.chars().take(40).collect();
            bail!(
                "messages[{index}].role is {role:?}: expected {}",
                ROLES.join(", ")
            );
        }
        ensure!(
            index == 0 || role != "system",
            "messages[{index}].role is \"system\": expected it only as the first message"
        );
    }
    Ok(messages)
}

/// Writes `messages` to the file at `path`. The file is replaced once the new one is complete.
pub fn write(path: &Path, messages: &[Message]) -> Result<()> {
    let conversation = Conversation {
        messages: messages.to_vec(),
    };
    let text = serde_json::to_string_pretty(&conversation).map_err(io::Error::other)?;
    OutputFile::create(path)?.write(|file| writeln!(file, "{text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conversation_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("talk.json");
        assert_eq!(read_if_there(&path).unwrap(), []);
        let call = |name: &str| ToolCall {
            name: name.into(),
            arguments: "{}".into(),
        };
        let calling = Message::calling("", &[call("a"), call("b")], 3);
        let messages = [
            Message::new("system", "Be brief."),
            Message::new("user", "\"é\"\n\u{0}"),
            Message::new("assistant", ""),
            calling.clone(),
            calling.result_of(1, "Oslo".into()),
        ];
        write(&path, &messages).unwrap();
        assert_eq!(read(&path).unwrap(), messages);
    }

    #[test]
    fn what_is_no_conversation_is_refused_by_its_field() {
        let user = r#"{"role": "user", "content": "a"}"#;
        let cases = [
            ("{", "EOF"),
            ("[]", "invalid"),
            (r#"{"messages": [{"role": "user"}]}"#, "content"),
            (
                r#"{"messages": [{"role": "robot", "content": ""}]}"#,
                "messages[0].role is \"robot\"",
            ),
            (
                &format!(r#"{{"messages": [{user}, {{"role": "system", "content": ""}}]}}"#),
                "messages[1].role",
            ),
            (&format!(r#"{{"messages": [{user}], "more": 1}}"#), "more"),
        ];
        for (text, message) in cases {
            let error = format!("{:#}", parse(text).unwrap_err());
            assert!(error.contains(message), "{text}: {error}");
        }
    }
}
