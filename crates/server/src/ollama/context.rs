//! The conversation that an answer of `/api/generate` gives back as `context`, so that a client can continue it.
//!
//! Ollama's numbers are the tokens of a prompt and its answer. A template can't be rendered after them as it would be
//! rendered for the whole conversation. These numbers hold the messages, and the next prompt is the one that `/api/chat`
//! makes of them. Clients give the numbers back without reading them.

use serde_json::{Value, json};

use super::turns;
use crate::error::{ApiError, ApiResult};

/// Bytes of the messages as JSON in a number, which stays within the integers of each language.
const BYTES: usize = 3;

/// A conversation with the messages of `/api/chat`.
pub(crate) struct Context {
    messages: Vec<Value>,
    answer: String,
    thinking: Option<String>,
}

impl Context {
    /// Reads the field `context` of a request. No numbers are an empty conversation.
    ///
    /// # Errors
    /// If the numbers are not those of an answer.
    pub(crate) fn read(numbers: &[u32]) -> ApiResult<Self> {
        let mut bytes = Vec::with_capacity(numbers.len() * BYTES);
        for number in numbers {
            let [first, rest @ ..] = number.to_be_bytes();
            if first != 0 {
                return Err(foreign());
            }
            bytes.extend(rest);
        }
        let messages = match bytes.is_empty() {
            true => Vec::new(),
            false => serde_json::from_slice(&bytes).map_err(|_| foreign())?,
        };
        let context = Self {
            messages,
            answer: String::new(),
            thinking: None,
        };
        if !context.is_empty() {
            context.messages().map_err(|_| foreign())?;
        }
        Ok(context)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Adds a prompt of the user. A system prompt replaces an earlier one.
    pub(crate) fn ask(&mut self, system: Option<String>, prompt: &str) {
        if let Some(text) = system {
            if self
                .messages
                .first()
                .is_some_and(|it| it["role"] == "system")
            {
                self.messages.remove(0);
            }
            let system = json!({"role": "system", "content": text});
            self.messages.insert(0, system);
        }
        let user = json!({"role": "user", "content": prompt});
        self.messages.push(user);
    }

    /// Returns the messages as input of templates.
    ///
    /// # Errors
    /// As [`turns::messages`].
    pub(crate) fn messages(&self) -> ApiResult<Vec<Value>> {
        let given = serde_json::from_value(Value::from(self.messages.clone()));
        turns::messages(given.map_err(|_| foreign())?)
    }

    /// Adds a part of the answer.
    pub(super) fn add(&mut self, text: &str, thinking: Option<&str>) {
        self.answer += text;
        if let Some(thinking) = thinking {
            self.thinking.get_or_insert_default().push_str(thinking);
        }
    }

    /// Returns the numbers of the conversation with the answer so far.
    pub(super) fn numbers(&self) -> Vec<u32> {
        let mut answer = json!({"role": "assistant", "content": self.answer});
        if let Some(thinking) = &self.thinking {
            answer["thinking"] = thinking.as_str().into();
        }
        let messages: Vec<_> = self.messages.iter().chain([&answer]).collect();
        let mut bytes = json!(messages).to_string().into_bytes();
        // White space after JSON has no effect.
        bytes.resize(bytes.len().next_multiple_of(BYTES), b' ');
        let numbers = bytes.chunks_exact(BYTES);
        numbers
            .map(|bytes| u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]]))
            .collect()
    }
}

fn foreign() -> ApiError {
    let message = "expected the context of an answer of this server, unchanged";
    ApiError::field("context", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> ApiResult<Context> {
        let mut bytes = text.as_bytes().to_vec();
        bytes.resize(bytes.len().next_multiple_of(BYTES), b' ');
        let numbers: Vec<_> = bytes
            .chunks_exact(BYTES)
            .map(|it| u32::from_be_bytes([0, it[0], it[1], it[2]]))
            .collect();
        Context::read(&numbers)
    }

    #[test]
    fn numbers_hold_the_messages_of_any_length_and_script() {
        for answer in ["", "a", "bc", "def", "Grüße, 世界 \u{0}\"\\\n"] {
            let mut context = Context::read(&[]).unwrap();
            context.ask(Some("Be short.".into()), "Hé");
            context.add(answer, Some("Hm."));
            let mut again = Context::read(&context.numbers()).unwrap();
            again.ask(Some("Be long.".into()), "More");
            let messages = again.messages().unwrap();
            let roles: Vec<_> = messages.iter().map(|it| &it["role"]).collect();
            assert_eq!(roles, ["system", "user", "assistant", "user"]);
            assert_eq!(messages[0]["content"], "Be long.");
            assert_eq!(messages[2]["content"], answer);
            assert_eq!(messages[2]["reasoning_content"], "Hm.");
        }
    }

    #[test]
    fn other_numbers_are_refused() {
        // Tokens of another server, too large numbers, and JSON that is no conversation.
        for numbers in [&[1, 2, 3][..], &[1 << 24], &[u32::MAX]] {
            let error = Context::read(numbers).err().unwrap();
            assert_eq!(error.detail.param.as_deref(), Some("context"));
        }
        for text in [
            "[]x",
            "{}",
            "[1]",
            r#"[{"role":"user"}]"#,
            r#"[{"role":"x","content":""}]"#,
        ] {
            let error = read(text).err().unwrap();
            assert_eq!(error.detail.param.as_deref(), Some("context"), "{text}");
        }
        assert!(read(r#"[{"role":"user","content":"a"}]"#).is_ok());
    }
}
