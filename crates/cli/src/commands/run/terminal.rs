//! A conversation at the terminal.

use anyhow::{Context, Result};
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use triad_engine::speculate::Speculate;
use triad_engine::{Finish, Session};
use triad_model::template::Message;

use super::{CHAT_CONTEXT, Speaker, show, statistics};
use crate::{output, processors};

const HELP: &str = "\
/reset   begin a new conversation
/stats   speed of the last answer
/help    this list
Ctrl-C   end the answer that comes; at the prompt: leave the line
Ctrl-D   leave";

/// Reads lines and answers them until the user leaves.
pub fn run(speaker: &Speaker) -> Result<()> {
    speaker.note_if_plain();
    let (session, speculate) = speaker.session(CHAT_CONTEXT)?;
    let mut chat = Chat { speaker, session, speculate, messages: Vec::new(), statistics: None };
    chat.reset();
    let mut editor = DefaultEditor::new().context("cannot read from the terminal")?;
    output::note(&format!("{} is ready; /help lists the commands, Ctrl-D leaves", speaker.name()));
    loop {
        let line = match editor.readline("> ") {
            Ok(line) => line,
            Err(ReadlineError::Interrupted) => continue,
            Err(ReadlineError::Eof) => return Ok(()),
            Err(error) => return Err(error).context("cannot read from the terminal"),
        };
        let line = line.trim();
        if line.is_empty() {
            continue;
        }
        // A line that the history refuses is still a line.
        let _ = editor.add_history_entry(line);
        match line {
            "/help" => output::note(HELP),
            "/reset" => chat.reset(),
            "/stats" => output::note(chat.statistics.as_deref().unwrap_or("there was no answer yet")),
            _ if line.starts_with('/') => {
                output::note(&format!("there is no command {line}; /help lists them"));
            }
            _ => chat.answer(line)?,
        }
    }
}

struct Chat<'a> {
    speaker: &'a Speaker<'a>,
    session: Session,
    speculate: Option<Speculate>,
    messages: Vec<Message>,
    statistics: Option<String>,
}

impl Chat<'_> {
    fn reset(&mut self) {
        self.messages = self.speaker.system().into_iter().collect();
        self.session.truncate(0);
    }

    /// Answers `line`. What goes wrong with one line (it is too long, say) ends neither the
    /// conversation nor the program; only a screen that is gone does.
    fn answer(&mut self, line: &str) -> Result<()> {
        self.messages.push(Message::new("user", line));
        let prompt = self.speaker.encode(&self.messages);
        match prompt.and_then(|prompt| self.speaker.answer((&mut self.session, self.speculate.as_ref()), &prompt)) {
            Ok(answer) => {
                show("\n")?;
                processors::note_failures(&self.session);
                self.statistics = Some(statistics(&answer));
                if answer.text.is_empty() && answer.finish == Finish::Cancelled {
                    // There is no answer: the question is dropped.
                    self.messages.pop();
                } else {
                    self.messages.push(Message::new("assistant", &answer.text));
                }
            }
            Err(error) => {
                self.messages.pop();
                output::note(&format!("error: {error:#} (/reset begins a new conversation)"));
            }
        }
        Ok(())
    }
}
