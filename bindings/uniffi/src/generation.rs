//! Answers while they are generated, and complete ones.

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use triad_bindings::{Code, Failure, Generator, Loan, Stop, generate};

use crate::error::TriadError;

/// The reason why an answer ended.
#[derive(Clone, Copy, Debug, uniffi::Enum)]
pub enum Finish {
    /// An end token.
    EndToken,
    /// A stop text.
    StopString,
    /// The maximum number of tokens.
    Length,
    /// The end of the context.
    ContextFull,
    /// The caller cancelled it.
    Cancelled,
}

/// A call of a function by the model.
#[derive(Clone, Debug, uniffi::Record)]
pub struct ToolCall {
    /// The function's name.
    pub name: String,
    /// Its arguments, a JSON object.
    pub arguments: String,
}

/// A complete answer.
#[derive(Clone, Debug, uniffi::Record)]
pub struct Answer {
    /// The text, without a stop text and without function calls.
    pub text: String,
    /// The tokens, with the end token if there was one.
    pub tokens: Vec<u32>,
    /// The reason why it ended.
    pub finish: Finish,
    /// The function calls.
    pub calls: Vec<ToolCall>,
    /// Tokens of the prompt that were computed.
    pub prefill_tokens: u64,
    /// Tokens of the prompt that the session already held.
    pub reused_tokens: u64,
    /// Seconds of the prompt.
    pub prefill_seconds: f64,
    /// Tokens of the answer that were computed: all but the last.
    pub decode_tokens: u64,
    /// Seconds of the answer.
    pub decode_seconds: f64,
}

impl From<triad::Answer> for Answer {
    fn from(answer: triad::Answer) -> Self {
        let calls = triad_bindings::calls(&answer).map(|(name, arguments)| ToolCall {
            name: name.to_owned(),
            arguments: arguments.to_owned(),
        });
        Self {
            calls: calls.collect(),
            finish: match answer.finish {
                triad::Finish::EndToken => Finish::EndToken,
                triad::Finish::StopString => Finish::StopString,
                triad::Finish::Length => Finish::Length,
                triad::Finish::ContextFull => Finish::ContextFull,
                triad::Finish::Cancelled => Finish::Cancelled,
            },
            prefill_tokens: answer.timing.prefill_tokens as u64,
            reused_tokens: answer.timing.reused_tokens as u64,
            prefill_seconds: answer.timing.prefill_seconds,
            decode_tokens: answer.timing.decode_tokens as u64,
            decode_seconds: answer.timing.decode_seconds,
            text: answer.text,
            tokens: answer.tokens,
        }
    }
}

/// An answer while it is generated, on a thread of its own. Freeing it ends the answer.
#[derive(uniffi::Object)]
pub struct Generation {
    state: Mutex<State>,
    stop: Stop,
}

struct State {
    /// `None` after the last piece.
    pieces: Option<Receiver<String>>,
    outcome: Outcome,
}

enum Outcome {
    Running(JoinHandle<Result<triad::Answer, Failure>>),
    Ended(Result<Answer, TriadError>),
}

impl Generation {
    /// Starts the answer to `turn`.
    ///
    /// # Errors
    /// If a thread can't be started.
    pub(crate) fn start<G: Generator>(
        loan: Loan<G>,
        turn: G::Turn,
    ) -> Result<Arc<Self>, TriadError> {
        // Unbounded: the context bounds an answer, and one that no one reads still ends.
        let (sender, pieces) = channel();
        let stop = Stop::new();
        let of_thread = stop.clone();
        let work = move || {
            generate(loan, turn, &of_thread, &mut |piece| {
                if sender.send(piece).is_err() {
                    of_thread.stop();
                }
            })
        };
        let thread = thread::Builder::new()
            .name("triad-answer".into())
            .spawn(work)
            .map_err(|source| TriadError::Io(format!("can't start a thread: {source}")))?;
        let state = State {
            pieces: Some(pieces),
            outcome: Outcome::Running(thread),
        };
        Ok(Arc::new(Self {
            state: Mutex::new(state),
            stop,
        }))
    }
}

#[uniffi::export]
impl Generation {
    /// Waits for the next piece of the answer, which has only whole characters; `nil` or `null` after the last one.
    /// One thread at a time waits.
    ///
    /// # Errors
    /// If the prompt can't be used, the model fails, or the answer can't match its constraint.
    pub fn next(&self) -> Result<Option<String>, TriadError> {
        self.state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .next()
    }

    /// Waits for the rest of the answer and returns all of it, including pieces that were taken before.
    ///
    /// # Errors
    /// As [`Generation::next`].
    pub fn answer(&self) -> Result<Answer, TriadError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while state.next()?.is_some() {}
        match &state.outcome {
            Outcome::Ended(answer) => answer.clone(),
            // The last piece comes before the end, never instead of it.
            Outcome::Running(_) => Err(TriadError::Internal("an answer has no end".into())),
        }
    }

    /// Ends the answer at its present length, from any thread; its finish is then `cancelled`.
    pub fn cancel(&self) {
        self.stop.stop();
    }
}

impl State {
    fn next(&mut self) -> Result<Option<String>, TriadError> {
        if let Some(piece) = self.pieces.as_ref().and_then(|pieces| pieces.recv().ok()) {
            return Ok(Some(piece));
        }
        self.pieces = None;
        let ended = Outcome::Ended(Err(TriadError::Internal("an answer has no end".into())));
        self.outcome = match std::mem::replace(&mut self.outcome, ended) {
            Outcome::Running(thread) => Outcome::Ended(joined(thread)),
            ended @ Outcome::Ended(_) => ended,
        };
        match &self.outcome {
            Outcome::Ended(Err(error)) => Err(error.clone()),
            _ => Ok(None),
        }
    }
}

fn joined(thread: JoinHandle<Result<triad::Answer, Failure>>) -> Result<Answer, TriadError> {
    let panicked = |_| Failure::new(Code::Internal, "triad panicked; see standard error");
    let answer = thread.join().map_err(panicked)??;
    Ok(answer.into())
}

impl Drop for Generation {
    fn drop(&mut self) {
        self.stop.stop();
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let ended = Outcome::Ended(Err(TriadError::Cancelled("the answer was freed".into())));
        // The thread ends within one layer of the model, and its chat is then ready.
        if let Outcome::Running(thread) = std::mem::replace(&mut state.outcome, ended) {
            let _ = thread.join();
        }
    }
}
