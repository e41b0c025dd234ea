//! Conversations in files: messages as JSON, `{"messages": [{"role": "user", "content": "…"}, …]}`.

use std::io::{self, Read, Write};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use triad_model::files;
use triad_model::template::Message;

use triad_console::output_file::OutputFile;

/// Maximum bytes of a file: no context holds more. Reading a device file would never end.
const MAX_BYTES: u64 = 64 << 20;
const ROLES: [&str; 3] = ["system", "user", "assistant"];

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Conversation {
    messages: Vec<Turn>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Turn {
    role: String,
    content: String,
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
    for (index, Turn { role, .. }) in messages.iter().enumerate() {
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
    Ok(messages
        .into_iter()
        .map(|Turn { role, content }| Message::new(role, content))
        .collect())
}

/// Writes `messages` to the file at `path`. The file is replaced once the new one is complete.
pub fn write(path: &Path, messages: &[Message]) -> Result<()> {
    let turn = |message: &Message| Turn {
        role: message.role.clone(),
        content: message.content.clone(),
    };
    let conversation = Conversation {
        messages: messages.iter().map(turn).collect(),
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
        let messages = [
            Message::new("system", "Be brief."),
            Message::new("user", "\"é\"\n\u{0}"),
            Message::new("assistant", ""),
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
                r#"{"messages": [{"role": "tool", "content": ""}]}"#,
                "messages[0].role is \"tool\"",
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
