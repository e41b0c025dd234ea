//! Chats and sessions, which generate answers.

use std::sync::Arc;

use triad_bindings::{ChatTurn, Lender};

use crate::error::TriadError;
use crate::generation::{Generation, ToolCall};

/// A message of a conversation.
#[derive(Clone, Debug, uniffi::Record)]
pub struct Message {
    /// `system`, `user`, `assistant` or `tool`.
    pub role: String,
    /// The text of the message.
    pub content: String,
}

/// A conversation. It generates one answer at a time: another one is refused as busy.
#[derive(uniffi::Object)]
pub struct Chat(pub(crate) Lender<triad::Chat>);

#[uniffi::export]
impl Chat {
    /// Adds a user message and generates the answer, which becomes a message of the conversation as far as it gets.
    ///
    /// # Errors
    /// If an answer is being generated. Other errors are those of the answer.
    pub fn send(&self, message: String) -> Result<Arc<Generation>, TriadError> {
        Generation::start(self.0.lend()?, ChatTurn::Send(message))
    }

    /// Generates an answer to the conversation as it is, such as after the results of calls.
    ///
    /// # Errors
    /// As [`Chat::send`].
    pub fn reply(&self) -> Result<Arc<Generation>, TriadError> {
        Generation::start(self.0.lend()?, ChatTurn::Reply)
    }

    /// Adds the result of a call.
    ///
    /// # Errors
    /// If an answer is being generated.
    pub fn push_result(&self, call: &ToolCall, result: &str) -> Result<(), TriadError> {
        let call = triad::ToolCall::from((call.name.as_str(), call.arguments.as_str()));
        Ok(self.0.with(|chat| chat.push_result(&call, result))?)
    }

    /// Returns the messages so far.
    ///
    /// # Errors
    /// If an answer is being generated.
    pub fn messages(&self) -> Result<Vec<Message>, TriadError> {
        let messages = self.0.with(|chat| chat.messages())?;
        let each = |it: triad::Message| Message {
            role: it.role,
            content: it.content,
        };
        Ok(messages.into_iter().map(each).collect())
    }
}

/// A text that a model continues. It generates one answer at a time.
#[derive(uniffi::Object)]
pub struct Session(pub(crate) Lender<triad::Session>);

#[uniffi::export]
impl Session {
    /// Continues `prompt`, which is the whole text. Tokens at its beginning that the session already has are not
    /// computed again.
    ///
    /// # Errors
    /// If an answer is being generated. Other errors are those of the answer.
    pub fn generate(&self, prompt: String) -> Result<Arc<Generation>, TriadError> {
        Generation::start(self.0.lend()?, prompt)
    }

    /// Returns the tokens of the session: prompts and answers.
    ///
    /// # Errors
    /// If an answer is being generated.
    pub fn tokens(&self) -> Result<Vec<u32>, TriadError> {
        Ok(self.0.with(|session| session.tokens().to_vec())?)
    }

    /// Writes the session to `path`, for `Model.restore`.
    ///
    /// # Errors
    /// If an answer is being generated, or the file can't be written. An existing file is then unchanged.
    pub fn save(&self, path: String) -> Result<(), TriadError> {
        Ok(self.0.with(|session| session.save(path))??)
    }
}
