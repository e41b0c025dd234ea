//! The parts that the bindings for Node, Kotlin and Swift share, above the crate `triad`.
//!
//! A program in another language holds no Rust borrows. [`Lender`] lends a chat or a session to one generation at a
//! time, [`Stop`] ends a generation that runs on another thread, and [`generate`] runs one to its end. [`options`] has
//! the options as plain data. [`Failure`] is an error as a code and a sentence.
#![forbid(unsafe_code)]

mod failure;
mod lender;
pub mod options;
mod stop;

pub use failure::{Code, Failure};
pub use lender::{Lender, Loan};
pub use stop::Stop;

use std::panic::{AssertUnwindSafe, catch_unwind};

use triad::{Answer, Chat, Finish, Generation, Session};

/// Something that generates answers.
pub trait Generator: Send + 'static {
    /// A part of the conversation or text that comes before the answer.
    type Turn: Send + 'static;

    /// Begins an answer.
    ///
    /// # Errors
    /// As [`Chat::send`].
    fn begin(&mut self, turn: Self::Turn) -> triad::Result<Generation<'_>>;
}

/// The beginning of an answer of a chat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChatTurn {
    /// A message of the user.
    Send(String),
    /// The conversation as it is, such as after the results of calls.
    Reply,
}

impl Generator for Chat {
    type Turn = ChatTurn;

    fn begin(&mut self, turn: ChatTurn) -> triad::Result<Generation<'_>> {
        match turn {
            ChatTurn::Send(text) => self.send(&text),
            ChatTurn::Reply => self.reply(),
        }
    }
}

impl Generator for Session {
    type Turn = String;

    fn begin(&mut self, prompt: String) -> triad::Result<Generation<'_>> {
        self.generate(&prompt)
    }
}

/// Generates an answer on this thread, and calls `on_piece` with each piece of its text. Returns `generator` to its
/// lender before it returns the answer.
///
/// # Errors
/// As [`Chat::send`] and [`Generation::finish`]; [`Code::Internal`] if Triad panicked.
pub fn generate<G: Generator>(
    mut generator: Loan<G>,
    turn: G::Turn,
    stop: &Stop,
    on_piece: &mut dyn FnMut(String),
) -> Result<Answer, Failure> {
    guarded(move || {
        let mut generation = generator.get().begin(turn)?;
        stop.bind(generation.cancel());
        for piece in generation.by_ref() {
            on_piece(piece?);
        }
        Ok(generation.finish()?)
    })
}

/// Runs `work`; a panic in it is a failure with [`Code::Internal`].
///
/// # Errors
/// Those of `work`.
pub fn guarded<T>(work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        Err(Failure::new(
            Code::Internal,
            "triad panicked; the message is on standard error",
        ))
    })
}

/// Returns the word for the reason why an answer ended, as in Python.
pub fn finish_word(finish: Finish) -> &'static str {
    match finish {
        Finish::EndToken => "end-token",
        Finish::StopString => "stop-string",
        Finish::Length => "length",
        Finish::ContextFull => "context-full",
        Finish::Cancelled => "cancelled",
    }
}

/// Returns the calls of an answer as names and arguments, the latter as JSON.
pub fn calls(answer: &Answer) -> impl Iterator<Item = (&str, &str)> {
    answer
        .calls
        .iter()
        .map(|call| (call.name.as_str(), call.arguments.as_str()))
}
