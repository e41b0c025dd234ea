//! Answers while they are generated, as iterators over their pieces.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::{self, JoinHandle};

use triad_engine::{
    Cancel, Error as EngineError, Event, Finish, GenerateOptions, Generation as EngineGeneration,
    Session, Timing, generate,
};
use triad_frontend::picture_reader::ShownPrompt;
use triad_frontend::tool_calls::{AnswerPart, ToolCallParser};

use crate::error::{Error, Result};

/// Maximum pieces that are ready before the caller takes the first one.
const PIECES: usize = 64;

/// A call of a function by the model.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ToolCall {
    /// The function's name.
    pub name: String,
    /// Its arguments, a JSON object.
    pub arguments: String,
}

/// Makes a call from its name and arguments, such as of a conversation that a program has stored.
impl From<(&str, &str)> for ToolCall {
    fn from((name, arguments): (&str, &str)) -> Self {
        Self {
            name: name.to_owned(),
            arguments: arguments.to_owned(),
        }
    }
}

/// How the text of an answer is parsed.
pub(crate) enum Parts {
    /// Text alone.
    Text,
    /// Text and function calls.
    Calls {
        /// `None` after the end.
        parser: Option<ToolCallParser>,
        /// The control tokens whose names the parser needs in the text.
        spelled: Vec<u32>,
    },
}

impl Parts {
    /// Returns the control tokens whose names are a part of the text.
    pub(crate) fn spelled(&self) -> Vec<u32> {
        match self {
            Self::Text => Vec::new(),
            Self::Calls { spelled, .. } => spelled.clone(),
        }
    }
}

/// An answer while it is generated: an iterator over its pieces. Each piece has only whole characters.
///
/// It is generated on a separate thread. Dropping it ends the answer; the session then has the tokens that were
/// computed.
pub struct Generation<'a> {
    owner: &'a mut Option<Session>,
    worker: Option<JoinHandle<Outcome>>,
    pieces: Receiver<String>,
    ready: VecDeque<String>,
    parts: Parts,
    calls: Vec<ToolCall>,
    text: String,
    cancel: Cancel,
    answer: Option<Answer>,
    /// Called once with the whole answer.
    on_end: Option<OnEnd<'a>>,
}

/// Called with the whole answer.
type OnEnd<'a> = Box<dyn FnOnce(&Answer) + 'a>;

/// The session comes back whatever happens.
type Outcome = (Session, Result<EngineGeneration>);

/// A complete answer.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Answer {
    /// The text, without a stop text and without function calls.
    pub text: String,
    /// The tokens, with the end token if there was one.
    pub tokens: Vec<u32>,
    /// The reason why it ended.
    pub finish: Finish,
    /// Tokens and seconds of prefill and decode.
    pub timing: Timing,
    /// The function calls.
    pub calls: Vec<ToolCall>,
}

impl<'a> Generation<'a> {
    /// Starts the thread. The session is returned to `owner` at the end.
    pub(crate) fn start(
        owner: &'a mut Option<Session>,
        session: Session,
        prompt: ShownPrompt,
        options: GenerateOptions,
        parts: Parts,
    ) -> Result<Self> {
        let (sender, pieces) = sync_channel(PIECES);
        let cancel = Cancel::new();
        let of_worker = cancel.clone();
        let work = move || {
            let mut session = session;
            let mut on_event = |event: Event<'_>| {
                if let Event::Text(text) = event
                    && sender.send(text.to_owned()).is_err()
                {
                    of_worker.cancel();
                }
            };
            let held = prompt.hold(&mut session, &of_worker).map_err(Error::from);
            let outcome = held.and_then(|prompt| {
                let on_event = &mut on_event;
                Ok(generate(
                    &mut session,
                    &prompt,
                    &options,
                    &of_worker,
                    on_event,
                )?)
            });
            (session, outcome)
        };
        let worker = thread::Builder::new()
            .name("triad-generation".into())
            .spawn(work)
            .map_err(|source| EngineError::Threads { threads: 1, source })?;
        Ok(Self {
            owner,
            worker: Some(worker),
            pieces,
            ready: VecDeque::new(),
            parts,
            calls: Vec::new(),
            text: String::new(),
            cancel,
            answer: None,
            on_end: None,
        })
    }

    /// Sets a function that is called with the complete answer.
    pub(crate) fn on_end(mut self, on_end: impl FnOnce(&Answer) + 'a) -> Self {
        self.on_end = Some(Box::new(on_end));
        self
    }

    /// Returns a handle that ends the answer from another thread. The answer then finishes with [`Finish::Cancelled`]; if a
    /// picture is being encoded, it fails with [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled).
    pub fn cancel(&self) -> Cancel {
        self.cancel.clone()
    }

    /// Waits for the rest of the answer and returns all of it, including pieces that were taken before.
    ///
    /// # Errors
    /// If the model fails, or the answer can't match its constraint.
    pub fn finish(mut self) -> Result<Answer> {
        for piece in self.by_ref() {
            piece?;
        }
        // Without an answer, the last piece was an error.
        self.answer
            .take()
            .ok_or_else(|| EngineError::Cancelled.into())
    }

    /// Parses a piece of the text.
    fn take(&mut self, piece: String) {
        match &mut self.parts {
            Parts::Text => self.ready.push_back(piece),
            Parts::Calls { parser, .. } => {
                let parts = parser.as_mut().map(|parser| parser.push(&piece));
                self.take_parts(parts.unwrap_or_default());
            }
        }
    }

    fn take_parts(&mut self, parts: Vec<AnswerPart>) {
        for part in parts {
            match part {
                AnswerPart::Text(text) => self.ready.push_back(text),
                AnswerPart::Call(call) => self.calls.push(ToolCall {
                    name: call.name,
                    arguments: call.arguments,
                }),
            }
        }
    }

    /// Waits for the thread, and returns the session to its owner.
    fn end(&mut self) -> Option<Result<()>> {
        let worker = self.worker.take()?;
        let (session, outcome) = match worker.join() {
            Ok(outcome) => outcome,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        *self.owner = Some(session);
        let generation = match outcome {
            Ok(generation) => generation,
            Err(error) => return Some(Err(error)),
        };
        if let Parts::Calls { parser, .. } = &mut self.parts {
            let rest = parser.take().map(ToolCallParser::finish);
            self.take_parts(rest.unwrap_or_default());
        }
        self.ready.iter().for_each(|piece| self.text += piece);
        let answer = Answer {
            text: self.text.clone(),
            tokens: generation.tokens,
            finish: generation.finish,
            timing: generation.timing,
            calls: std::mem::take(&mut self.calls),
        };
        if let Some(on_end) = self.on_end.take() {
            on_end(&answer);
        }
        self.answer = Some(answer);
        Some(Ok(()))
    }
}

impl Iterator for Generation<'_> {
    type Item = Result<String>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(piece) = self.ready.pop_front() {
                if self.worker.is_some() {
                    self.text += &piece;
                }
                return Some(Ok(piece));
            }
            match self.pieces.recv() {
                Ok(piece) => self.take(piece),
                // The thread has ended.
                Err(_) => match self.end()? {
                    Ok(()) => {}
                    Err(error) => return Some(Err(error)),
                },
            }
        }
    }
}

impl Drop for Generation<'_> {
    fn drop(&mut self) {
        self.cancel.cancel();
        // A thread that waits for space in the channel gets an error, and ends.
        let (_, nothing) = sync_channel(0);
        drop(std::mem::replace(&mut self.pieces, nothing));
        if let Some(worker) = self.worker.take()
            && let Ok((session, _)) = worker.join()
        {
            *self.owner = Some(session);
        }
    }
}

impl std::fmt::Debug for Generation<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Generation").finish_non_exhaustive()
    }
}
