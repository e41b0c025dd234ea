//! Conversations in files: messages as JSON, `{"messages": [{"role": "user", "content": "…"}, …]}`, with calls of tools as
//! in OpenAI's API.

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use triad_model::files;
use triad_pictures::Processor;

use super::turn::{Call, Image, Turn};
use triad_console::output_file::OutputFile;

/// Maximum bytes of a file: no context holds more. Reading a device file would never end.
const MAX_BYTES: u64 = 64 << 20;
const ROLES: [&str; 4] = ["system", "user", "assistant", "tool"];

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Conversation {
    messages: Vec<Saved>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Saved {
    role: String,
    content: String,
    /// Paths of pictures.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    images: Vec<PathBuf>,
    /// Calls of tools by the model, each `{"id", "type": "function", "function": {"name", "arguments"}}`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<Call>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tool_call_id: Option<String>,
}

/// Reads the messages in the file at `path`, and their pictures; `processor` is called if there are some.
pub fn read<'a>(path: &Path, processor: impl Fn() -> Result<&'a Processor>) -> Result<Vec<Turn>> {
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
    let messages = parse(&text).with_context(|| format!("{name} is not a saved conversation"))?;
    let turns = messages.into_iter().map(|saved| {
        let mut turn = Turn {
            tool_calls: saved.tool_calls,
            tool_call_id: saved.tool_call_id,
            ..Turn::new(saved.role, saved.content)
        };
        for image in saved.images {
            turn.images.push(Image::read(processor()?, &image)?);
        }
        Ok(turn)
    });
    turns.collect()
}

/// Reads messages as [`read`] does. Returns none if the file does not exist.
pub fn read_if_there<'a>(
    path: &Path,
    processor: impl Fn() -> Result<&'a Processor>,
) -> Result<Vec<Turn>> {
    if path.exists() {
        read(path, processor)
    } else {
        Ok(Vec::new())
    }
}

fn parse(text: &str) -> Result<Vec<Saved>> {
    let Conversation { messages } = serde_json::from_str(text)?;
    for (index, Saved { role, .. }) in messages.iter().enumerate() {
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
pub fn write(path: &Path, turns: &[Turn]) -> Result<()> {
    let saved = |turn: &Turn| Saved {
        role: turn.role.clone(),
        content: turn.content.clone(),
        images: turn.images.iter().map(|image| image.path.clone()).collect(),
        tool_calls: turn.tool_calls.clone(),
        tool_call_id: turn.tool_call_id.clone(),
    };
    let conversation = Conversation {
        messages: turns.iter().map(saved).collect(),
    };
    let text = serde_json::to_string_pretty(&conversation).map_err(io::Error::other)?;
    OutputFile::create(path)?.write(|file| writeln!(file, "{text}"))
}

#[cfg(test)]
mod tests {
    use triad_frontend::tool_calls::ToolCall;

    use super::*;

    #[test]
    fn a_conversation_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("talk.json");
        let no_pictures = || anyhow::bail!("there are pictures");
        assert!(read_if_there(&path, no_pictures).unwrap().is_empty());
        let call = |name: &str| ToolCall {
            name: name.into(),
            arguments: "{}".into(),
        };
        let calling = Turn::calling("", &[call("a"), call("b")], 3);
        let turns = [
            Turn::new("system", "Be brief."),
            Turn::new("user", "\"é\"\n\u{0}"),
            Turn::new("assistant", ""),
            calling.clone(),
            calling.result_of(1, "Oslo".into()),
        ];
        write(&path, &turns).unwrap();
        let read = read(&path, no_pictures).unwrap();
        let values = |turns: &[Turn]| -> Vec<_> { turns.iter().map(Turn::to_json).collect() };
        assert_eq!(values(&read), values(&turns));
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
            let error = format!("{:#}", parse(text).err().unwrap());
            assert!(error.contains(message), "{text}: {error}");
        }
    }
}
