//! Conversations in files: messages as JSON, `{"messages": [{"role": "user", "content": "…"}, …]}`, with calls of tools as
//! in OpenAI's API.

use std::cell::RefCell;
use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use triad_model::file_lock::FileLock;
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
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    images: Vec<SavedImage>,
    /// Calls of tools by the model, each `{"id", "type": "function", "function": {"name", "arguments"}}`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<Call>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tool_call_id: Option<String>,
}

/// A picture of a message. A path that is not absolute is one in the folder of the conversation.
#[derive(Serialize, Deserialize)]
#[serde(untagged, deny_unknown_fields)]
enum SavedImage {
    /// By hand, or by an older version.
    Path(PathBuf),
    /// With the hash of its content when it was shown.
    Shown { path: PathBuf, sha256: String },
}

impl SavedImage {
    /// Describes a picture for a conversation in `folder`. A picture in this folder is found again where the folder is
    /// moved to.
    fn of(image: &Image, folder: &Path) -> Self {
        let inside = image.path.canonicalize().ok();
        let inside = inside
            .as_deref()
            .and_then(|path| path.strip_prefix(folder).ok());
        let path = match inside {
            Some(path) => path.to_owned(),
            None => std::path::absolute(&image.path).unwrap_or_else(|_| image.path.clone()),
        };
        Self::Shown {
            path,
            sha256: image.sha256.clone(),
        }
    }

    /// Reads the picture of a conversation in `folder`.
    ///
    /// # Errors
    /// If it cannot be read, or is another one than was shown.
    fn read(&self, processor: &Processor, folder: &Path) -> Result<Image> {
        let (Self::Path(path) | Self::Shown { path, .. }) = self;
        let image = Image::read(processor, &folder.join(path))?;
        if let Self::Shown { sha256, .. } = self {
            ensure!(
                *sha256 == image.sha256,
                "the picture {} has changed since the conversation was saved",
                image.path.display()
            );
        }
        Ok(image)
    }
}

/// Returns the folder of the conversation at `path`, or of its target if that is a link.
fn folder(path: &Path) -> PathBuf {
    let file = path.canonicalize().or_else(|_| std::path::absolute(path));
    let folder = file.ok().and_then(|path| Some(path.parent()?.to_owned()));
    let folder = folder.unwrap_or_default();
    folder.canonicalize().unwrap_or(folder)
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
    let folder = folder(path);
    let turns = messages.into_iter().map(|saved| {
        let mut turn = Turn {
            tool_calls: saved.tool_calls,
            tool_call_id: saved.tool_call_id,
            ..Turn::new(saved.role, saved.content)
        };
        for image in saved.images {
            turn.images.push(image.read(processor()?, &folder)?);
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

    /// Writes messages as [`write`] does. No other process that does the same writes the file between the check and the
    /// replacement.
    ///
    /// # Errors
    /// If another program has written the file since this one read it: its messages would be lost.
    pub fn write(&self, turns: &[Turn]) -> Result<()> {
        let name = self.path.display();
        let lock = FileLock::wait(&self.path).with_context(|| format!("cannot lock {name}"))?;
        let written = match &lock {
            Some(_) if Some(text(&self.path)?) == *self.seen.borrow() => {
                write(&self.path, turns).map(Some)
            }
            Some(_) => Ok(None),
            None => write_new(&self.path, turns),
        };
        let text = written?.with_context(|| {
            format!(
                "{name} was written by another program in the meantime: this conversation is not written to it (in a chat, \
                 /save FILE writes it to another file)"
            )
        })?;
        self.note(&self.path, text);
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
    let Conversation { messages } =
        serde_json::from_str(text.strip_prefix('\u{feff}').unwrap_or(text))?;
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
    let text = to_json(path, turns)?;
    OutputFile::create(path)?.write(|file| file.write_all(text.as_bytes()))?;
    Ok(text)
}

/// Writes messages to a new file at `path`, and returns its text; `None` if there is a file.
fn write_new(path: &Path, turns: &[Turn]) -> Result<Option<String>> {
    let text = to_json(path, turns)?;
    let written = OutputFile::create(path)?.write_new(|file| file.write_all(text.as_bytes()));
    match written {
        Ok(()) => Ok(Some(text)),
        Err(error) => match error.downcast_ref::<io::Error>() {
            Some(cause) if cause.kind() == io::ErrorKind::AlreadyExists => Ok(None),
            _ => Err(error),
        },
    }
}

/// Returns the text of the file at `path` with these messages.
fn to_json(path: &Path, turns: &[Turn]) -> Result<String> {
    let folder = folder(path);
    let saved = |turn: &Turn| Saved {
        role: turn.role.clone(),
        content: turn.content.clone(),
        images: turn
            .images
            .iter()
            .map(|image| SavedImage::of(image, &folder))
            .collect(),
        tool_calls: turn.tool_calls.clone(),
        tool_call_id: turn.tool_call_id.clone(),
    };
    let conversation = Conversation {
        messages: turns.iter().map(saved).collect(),
    };
    let text = serde_json::to_string_pretty(&conversation).map_err(io::Error::other)?;
    Ok(text + "\n")
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
