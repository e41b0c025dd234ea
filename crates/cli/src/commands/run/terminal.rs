//! A conversation at the terminal.

use std::io::{ErrorKind, Write};
use std::path::Path;
use std::process::Command;

use super::one_answer::{devices, statistics};
use super::turn::{Image, Turn};
use super::{Answered, Speaker};
use crate::first_run::Later;
use anyhow::{Context, Result, ensure};
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use triad_console::interrupt::Interrupted;
use triad_console::{encoded, executed, output};
use triad_engine::speculate::Speculate;
use triad_engine::{Finish, Session};

const HELP: &str = "\
/reset          begin a new conversation
/system [TEXT]  show the instructions to the model, or replace them
/image FILE     show a picture with the next message
/edit           change the latest message in an editor ($VISUAL or $EDITOR), and answer it again
/save FILE      write the conversation to a file
/load FILE      continue the conversation in a file
/stats          speed of the last answer
/help           this list
/exit, /bye     leave; so does Ctrl-D
\"\"\"             begins and ends a message of several lines; so does \\ at the end of a line
Ctrl-C          stop the answer; at the prompt: discard the line";

/// The mark that begins and ends a message of several lines.
const QUOTES: &str = "\"\"\"";
/// The editor if the environment names none.
const EDITOR: &str = "vi";

/// Reads messages and answers them until the user leaves.
pub fn run(speaker: &Speaker, later: Option<Later>) -> Result<()> {
    speaker.note_limits();
    let messages = speaker.beginning()?;
    let (session, speculate) = speaker.session(speaker.chat_context())?;
    let mut chat = Chat {
        speaker,
        session,
        speculate,
        messages,
        images: speaker.images()?,
        statistics: None,
        later: later.map(Preparing::Due),
    };
    let mut editor = DefaultEditor::new().context("cannot read from the terminal")?;
    output::note(&format!(
        "{} is ready; /help lists the commands, /exit leaves",
        speaker.name()
    ));
    loop {
        let message = match message(|prompt| editor.readline(prompt)) {
            Ok(message) => message,
            Err(ReadlineError::Interrupted) => continue,
            Err(ReadlineError::Eof) => return Ok(()),
            Err(ReadlineError::Io(error)) if error.kind() == ErrorKind::InvalidData => {
                output::note(
                    "the terminal sent a byte that is not UTF-8: what was typed before it is discarded",
                );
                continue;
            }
            Err(error) => return Err(error).context("cannot read from the terminal"),
        };
        let message = message.trim();
        if message.is_empty() {
            continue;
        }
        // The history may refuse a line; the line is answered anyway.
        let _ = editor.add_history_entry(message);
        match message
            .strip_prefix('/')
            .filter(|_| !message.contains('\n'))
        {
            Some("exit" | "bye") => return Ok(()),
            Some(command) => chat.command(command)?,
            None => {
                chat.answer(message)?;
                chat.prepare();
            }
        }
    }
}

/// Reads the lines of a message: one line, or several that `"""` encloses or that end with a backslash.
fn message<E>(mut read: impl FnMut(&str) -> Result<String, E>) -> Result<String, E> {
    let mut text = read("> ")?;
    if let Some(first) = text.trim().strip_prefix(QUOTES) {
        let mut text = first.to_owned();
        while !text.trim_end().ends_with(QUOTES) {
            text.push('\n');
            text += &read(". ")?;
        }
        let end = text.trim_end().len() - QUOTES.len();
        return Ok(text[..end].to_owned());
    }
    while text.ends_with('\\') {
        text.pop();
        text.push('\n');
        text += &read(". ")?;
    }
    Ok(text)
}

/// Returns `text` as the user edited it.
fn edit(text: &str) -> Result<String> {
    let named = ["VISUAL", "EDITOR"]
        .into_iter()
        .find_map(|name| std::env::var(name).ok().filter(|it| !it.is_empty()));
    let command = named.unwrap_or_else(|| EDITOR.into());
    let mut file = tempfile::Builder::new()
        .suffix(".md")
        .tempfile()
        .context("cannot make a file to edit")?;
    file.write_all(text.as_bytes())
        .context("cannot write the file to edit")?;
    // The command may have arguments of its own.
    let mut words = command.split_whitespace();
    let program = words.next().unwrap_or(EDITOR);
    let status = Command::new(program).args(words).arg(file.path()).status();
    let status = status.with_context(|| format!("cannot start the editor {command}"))?;
    ensure!(
        status.success(),
        "the editor {command} ended with an error: the message is unchanged"
    );
    let text = std::fs::read_to_string(file.path()).context("cannot read the edited file")?;
    // Some editors write a byte order mark.
    Ok(text.strip_prefix('\u{feff}').unwrap_or(&text).to_owned())
}

struct Chat<'a> {
    speaker: &'a Speaker<'a>,
    session: Session,
    speculate: Option<Speculate>,
    messages: Vec<Turn>,
    /// Pictures of the next message.
    images: Vec<Image>,
    statistics: Option<String>,
    later: Option<Preparing>,
}

/// The preparation of the model's package during a conversation.
enum Preparing {
    /// It starts after the first answer.
    Due(Later),
    /// It runs, in a process that goes on after the conversation.
    Started(Later),
}

impl Chat<'_> {
    /// Runs a command. An error of a command is printed and does not end the conversation.
    fn command(&mut self, command: &str) -> Result<()> {
        let (name, argument) = command
            .split_once(char::is_whitespace)
            .unwrap_or((command, ""));
        let argument = argument.trim();
        let done = match (name, argument) {
            ("help", "") => self.note(HELP),
            ("stats", "") => self.note(
                self.statistics
                    .as_deref()
                    .unwrap_or("there was no answer yet"),
            ),
            ("reset", "") => {
                self.messages = self.speaker.system().into_iter().collect();
                self.images.clear();
                self.session.truncate(0);
                Ok(())
            }
            ("system", text) => self.instruct(text),
            ("save" | "load" | "image", "") => {
                self.note(&format!("/{name} FILE: expected the name of a file"))
            }
            ("save", path) => self.speaker.save(Path::new(path), &self.messages),
            ("load", path) => {
                let read = self.speaker.load(Path::new(path));
                read.map(|messages| self.messages = messages)
            }
            ("image", path) => {
                let image = self.speaker.image(Path::new(path));
                image.map(|image| self.images.push(image))
            }
            ("edit", "") => return self.edit(),
            _ => self.note(&format!("there is no command /{command}; /help lists them")),
        };
        if let Err(error) = done {
            output::note(&format!("error: {error:#}"));
        }
        Ok(())
    }

    /// Starts the preparation of the package after the first answer, and later prints once that it is there. The
    /// conversation goes on in its own arithmetic.
    fn prepare(&mut self) {
        self.later = match self.later.take() {
            Some(Preparing::Due(later)) => {
                let _ = later.start();
                Some(Preparing::Started(later))
            }
            Some(Preparing::Started(later)) if later.is_done() => {
                let name = later.name();
                output::note(&format!(
                    "the package of {name} is prepared; the next run answers from it"
                ));
                None
            }
            other => other,
        };
    }

    fn note(&self, text: &str) -> Result<()> {
        output::note(text);
        Ok(())
    }

    /// Replaces the instructions to the model, or shows them.
    fn instruct(&mut self, text: &str) -> Result<()> {
        ensure!(
            self.speaker.chats(),
            "this model has no chat template, and so no instructions"
        );
        let has_one = self
            .messages
            .first()
            .is_some_and(|message| message.role == "system");
        if text.is_empty() {
            let shown = self
                .messages
                .first()
                .filter(|_| has_one)
                .map(|message| message.content.as_str());
            return self.note(shown.unwrap_or("there are no instructions"));
        }
        let message = Turn::new("system", text);
        if has_one {
            self.messages[0] = message;
        } else {
            self.messages.insert(0, message);
        }
        Ok(())
    }

    /// Opens the user's latest message in an editor, and answers the edited message.
    fn edit(&mut self) -> Result<()> {
        let Some(latest) = self
            .messages
            .iter()
            .rposition(|message| message.role == "user")
        else {
            return self.note("there is no message to edit yet");
        };
        match edit(&self.messages[latest].content) {
            Ok(text) if text.trim().is_empty() => {
                self.note("an empty message: the conversation is unchanged")
            }
            Ok(text) => {
                let shown = self.messages[latest].images.clone();
                let shown = std::mem::replace(&mut self.images, shown);
                let before = self.messages.split_off(latest);
                if !self.answer(text.trim())? {
                    // The conversation goes on as it was.
                    self.messages.extend(before);
                    self.images = shown;
                }
                Ok(())
            }
            Err(error) => self.note(&format!("error: {error:#}")),
        }
    }

    /// Answers `line`; returns whether there is an answer. An error in one line, such as a line that is too long, ends
    /// neither the conversation nor the program, and drops the line. Only an error while printing ends them.
    fn answer(&mut self, line: &str) -> Result<bool> {
        let before = self.messages.len();
        let mut question = Turn::new("user", line);
        question.images = std::mem::take(&mut self.images);
        self.messages.push(question);
        let session = (&mut self.session, self.speculate.as_ref());
        match self.speaker.answer_with_tools(session, &mut self.messages) {
            Ok(Answered {
                generation: answer,
                after_prompt,
                text,
                ..
            }) => {
                output::answer("\n")?;
                encoded::note_views(&encoded::take_views(self.session.engine()));
                executed::note_failures(&self.session);
                executed::note_outlier_cache(self.session.engine());
                self.statistics =
                    Some(statistics(&answer) + &devices(self.session.engine(), after_prompt));
                if text.is_empty() && answer.finish == Finish::Cancelled {
                    // The answer is empty: the question is dropped.
                    self.drop_from(before);
                    return Ok(false);
                } else {
                    self.messages.push(Turn::new("assistant", text));
                    if let Err(error) = self.speaker.keep(&self.messages) {
                        output::note(&format!("error: {error:#}"));
                    }
                }
            }
            Err(error) => {
                self.drop_from(before);
                if error.is::<Interrupted>() {
                    output::note("interrupted");
                } else {
                    output::note(&format!(
                        "error: {error:#} (/reset begins a new conversation)"
                    ));
                }
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Drops a question, the message `first`, with calls after it. Its pictures belong to the next one.
    fn drop_from(&mut self, first: usize) {
        if let Some(question) = self.messages.get_mut(first) {
            self.images = std::mem::take(&mut question.images);
        }
        self.messages.truncate(first);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(lines: &[&str]) -> (Option<String>, usize) {
        let mut left = lines.iter();
        let text = message(|_| left.next().map(|line| (*line).to_owned()).ok_or(())).ok();
        (text, left.count())
    }

    #[test]
    fn a_message_is_a_line_or_those_that_a_backslash_joins_or_quotes_enclose() {
        let text = |lines: &[&str]| read(lines).0.unwrap();
        assert_eq!(read(&["one", "two"]), (Some("one".into()), 1));
        assert_eq!(
            read(&["one\\", "two\\", "three", "four"]),
            (Some("one\ntwo\nthree".into()), 1)
        );
        assert_eq!(
            text(&["\"\"\"", "one", "", "two", "\"\"\""]),
            "\none\n\ntwo\n"
        );
        assert_eq!(text(&["\"\"\"one", "two\"\"\""]), "one\ntwo");
        assert_eq!(text(&["\"\"\"one\"\"\""]), "one");
        assert_eq!(text(&["\"\"\"", "\\", "/help", "\"\"\""]), "\n\\\n/help\n");
        // Ctrl-D within a message leaves.
        assert_eq!(read(&["\"\"\"one", "two"]), (None, 0));
    }
}
