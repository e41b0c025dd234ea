//! Conversations in files: messages as JSON, `{"messages": [{"role": "user", "content": "…"}, …]}`, with calls of tools as
//! in OpenAI's API.

use std::cell::RefCell;
use std::fs;
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
    turns(&text(path)?, path, processor)
}

/// Reads the text of the file at `path`.
fn text(path: &Path) -> Result<String> {
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
    Ok(text)
}

/// Returns the messages in `text`, that of the file at `path`.
fn turns<'a>(
    text: &str,
    path: &Path,
    processor: impl Fn() -> Result<&'a Processor>,
) -> Result<Vec<Turn>> {
    let name = path.display();
    let messages = parse(text).with_context(|| format!("{name} is not a saved conversation"))?;
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

/// The file of `--session`.
pub struct SessionFile {
    path: PathBuf,
    /// Its text when this process last read or wrote it; `None` if it was not there.
    seen: RefCell<Option<String>>,
}

impl SessionFile {
    /// Names the file at `path`, which may not exist.
    pub fn new(path: &Path) -> Self {
        Self {
            path: path.into(),
            seen: RefCell::new(None),
        }
    }

    /// Reads messages as [`read`] does. Returns none if the file does not exist.
    pub fn read<'a>(&self, processor: impl Fn() -> Result<&'a Processor>) -> Result<Vec<Turn>> {
        if !self.path.exists() {
            return Ok(Vec::new());
        }
        let text = text(&self.path)?;
        let turns = turns(&text, &self.path, processor)?;
        self.seen.replace(Some(text));
        Ok(turns)
    }

    /// Writes messages as [`write`] does.
    ///
    /// # Errors
    /// If another program has written the file since this one read it: its messages would be lost.
    pub fn write(&self, turns: &[Turn]) -> Result<()> {
        if self.path.exists() {
            ensure!(
                Some(text(&self.path)?) == *self.seen.borrow(),
                "{} was written by another program in the meantime: this conversation is not written to it (in a chat, \
                 /save FILE writes it to another file)",
                self.path.display()
            );
        }
        self.note(&self.path, write(&self.path, turns)?);
        Ok(())
    }

    /// Notes that this program wrote `text` to the file at `path`, which may be this one.
    pub fn note(&self, path: &Path, text: String) {
        if self.is_at(path) {
            self.seen.replace(Some(text));
        }
    }

    /// Returns whether `path` is a path of this file, which exists.
    pub fn is_at(&self, path: &Path) -> bool {
        let place = |path: &Path| fs::canonicalize(path).ok();
        place(path).is_some_and(|it| Some(it) == place(&self.path))
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

/// Writes messages to the file at `path`, and returns its text. The file is replaced once the new one is complete.
pub fn write(path: &Path, turns: &[Turn]) -> Result<String> {
    // Names of pictures are read in the folder of another run.
    let absolute =
        |image: &Image| std::path::absolute(&image.path).unwrap_or_else(|_| image.path.clone());
    let saved = |turn: &Turn| Saved {
        role: turn.role.clone(),
        content: turn.content.clone(),
        images: turn.images.iter().map(absolute).collect(),
        tool_calls: turn.tool_calls.clone(),
        tool_call_id: turn.tool_call_id.clone(),
    };
    let conversation = Conversation {
        messages: turns.iter().map(saved).collect(),
    };
    let text = serde_json::to_string_pretty(&conversation).map_err(io::Error::other)? + "\n";
    OutputFile::create(path)?.write(|file| file.write_all(text.as_bytes()))?;
    Ok(text)
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
        let file = SessionFile::new(&path);
        assert!(file.read(no_pictures).unwrap().is_empty());
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
        file.write(&turns).unwrap();
        let read = read(&path, no_pictures).unwrap();
        let values = |turns: &[Turn]| -> Vec<_> { turns.iter().map(Turn::to_json).collect() };
        assert_eq!(values(&read), values(&turns));
    }

    #[test]
    fn what_another_program_wrote_to_a_session_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("talk.json");
        let no_pictures = || anyhow::bail!("there are pictures");
        let said = |text: &str| [Turn::new("user", text)];
        let (one, other) = (SessionFile::new(&path), SessionFile::new(&path));
        one.write(&said("a")).unwrap();
        one.write(&said("b")).unwrap();
        let error = other.write(&said("c")).unwrap_err().to_string();
        assert!(
            error.contains("talk.json was written by another program"),
            "{error}"
        );
        assert_eq!(other.read(no_pictures).unwrap()[0].content, "b");
        other.write(&said("c")).unwrap();
        assert!(one.write(&said("d")).is_err());
        assert_eq!(read(&path, no_pictures).unwrap()[0].content, "c");
        // A file that is gone has nothing to lose, and /save may name the session's own.
        fs::remove_file(&path).unwrap();
        one.write(&said("e")).unwrap();
        let folder = path.parent().unwrap().join(".").join("talk.json");
        one.note(&folder, write(&folder, &said("f")).unwrap());
        one.write(&said("g")).unwrap();
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
