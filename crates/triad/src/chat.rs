//! Conversations.

use std::sync::Arc;

use serde_json::{Value, json};
use triad_engine::Cancel;
use triad_frontend::chat::Conversation;
use triad_frontend::picture_reader::ShownPrompt;
use triad_frontend::tool_calls::{Tool as FrontendTool, ToolCallParser};
use triad_pictures::Prepared;

use crate::error::Result;
use crate::generation::{Answer, Generation, Parts, ToolCall};
use crate::image::Image;
use crate::opened::Opened;
use crate::options::GenerateOptions;
use crate::session::Session;

/// A conversation with a model, by its chat template. For a model without one, the prompt is the last message as plain
/// text.
pub struct Chat {
    model: Arc<Opened>,
    session: Session,
    messages: Vec<Value>,
    /// The pictures of the messages, in order.
    pictures: Vec<Arc<Prepared>>,
    /// The pictures of the next message.
    next_pictures: Vec<Arc<Prepared>>,
    tools: Vec<FrontendTool>,
    options: GenerateOptions,
    keeps_letters: bool,
}

/// A message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Message {
    /// `system`, `user`, `assistant` or `tool`.
    pub role: String,
    /// The text of the message.
    pub content: String,
}

/// A function that the model may call.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool(FrontendTool);

impl Tool {
    /// Describes a function; `parameters` is the JSON schema of an object.
    ///
    /// # Errors
    /// If the name has characters other than letters, digits, `_`, `-` and `.`, or `parameters` is not the schema of an
    /// object.
    pub fn new(name: &str, description: &str, parameters: &str) -> Result<Self> {
        let parameters: Value = serde_json::from_str(parameters).unwrap_or(Value::Bool(false));
        let described =
            json!({ "name": name, "description": description, "parameters": parameters });
        Ok(Self(FrontendTool::from_json(&described)?))
    }
}

impl Chat {
    pub(crate) fn new(model: &Arc<Opened>) -> Self {
        Self {
            model: Arc::clone(model),
            session: Session::new(model, model.engine.session()),
            messages: Vec::new(),
            pictures: Vec::new(),
            next_pictures: Vec::new(),
            tools: Vec::new(),
            options: GenerateOptions::new(),
            keeps_letters: false,
        }
    }

    /// Returns the chat with `text` as its system message.
    #[must_use]
    pub fn with_system(mut self, text: &str) -> Self {
        self.messages.retain(|message| message["role"] != "system");
        let message = json!({ "role": "system", "content": text });
        self.messages.insert(0, message);
        self
    }

    /// Returns the chat with these options for its answers.
    #[must_use]
    pub fn with_options(mut self, options: GenerateOptions) -> Self {
        self.options = options;
        self
    }

    /// Returns the chat with functions that the model may call. Calls are in [`Answer::calls`] and not in the text.
    #[must_use]
    pub fn with_tools(mut self, tools: impl IntoIterator<Item = Tool>) -> Self {
        self.tools = tools.into_iter().map(|tool| tool.0).collect();
        self
    }

    /// Returns the chat with names of control tokens in messages as plain text, for messages of untrusted users. By
    /// default they become these tokens, as in llama.cpp.
    #[must_use]
    pub fn with_letters_kept(mut self) -> Self {
        self.keeps_letters = true;
        self
    }

    /// Shows a picture with the next message that is [sent](Chat::send). Several come in the order in which they are added.
    ///
    /// # Errors
    /// If the model reads no pictures, or can't take one of this size.
    pub fn push_image(&mut self, image: &Image) -> Result<()> {
        let model = self.model.engine.model();
        let prepared = self.model.pictures.prepare(model, &image.0)?;
        self.next_pictures.push(prepared);
        Ok(())
    }

    /// Adds a user message and generates the answer. A complete answer becomes a message of the conversation; an answer
    /// that is dropped before does not.
    ///
    /// # Errors
    /// If the conversation is longer than the context, the template refuses it, an option is invalid, or an adapter or
    /// constraint can't be used. The message is then removed from the conversation, with its pictures.
    pub fn send(&mut self, text: &str) -> Result<Generation<'_>> {
        let shown = std::mem::take(&mut self.next_pictures);
        let before = (self.messages.len(), self.pictures.len());
        let content = match shown.is_empty() {
            true => text.into(),
            false => {
                let images = shown.iter().map(|_| json!({ "type": "image" }));
                images
                    .chain([json!({ "type": "text", "text": text })])
                    .collect::<Value>()
            }
        };
        self.pictures.extend(shown);
        self.messages
            .push(json!({ "role": "user", "content": content }));
        match self.prompt() {
            Ok(prompt) => self.generate(prompt, before),
            Err(error) => {
                self.messages.truncate(before.0);
                self.pictures.truncate(before.1);
                Err(error)
            }
        }
    }

    /// Adds the result of a call. [`Chat::reply`] continues after it.
    pub fn push_result(&mut self, call: &ToolCall, result: &str) {
        self.messages
            .push(json!({ "role": "tool", "name": call.name, "content": result }));
    }

    /// Generates an answer to the conversation as it is, such as after the results of calls.
    ///
    /// # Errors
    /// As [`Chat::send`].
    pub fn reply(&mut self) -> Result<Generation<'_>> {
        let prompt = self.prompt()?;
        self.generate(prompt, (self.messages.len(), self.pictures.len()))
    }

    /// Returns the tokens of the conversation, with its pictures.
    fn prompt(&self) -> Result<ShownPrompt> {
        let conversation = Conversation {
            messages: &self.messages,
            tools: &self.tools,
            keeps_letters: self.keeps_letters,
            ..Conversation::default()
        };
        let model = self.model.engine.model();
        let within = (self.model.engine.context(), &Cancel::new());
        let named = (&**model, &*self.model.name);
        let prepared = self.pictures.clone();
        let pictures = &self.model.pictures;
        Ok(pictures.prompt(named, &conversation, prepared, within)?)
    }

    /// Generates the answer to `prompt`. If that can't begin, only the first `before` messages and pictures are kept.
    fn generate(&mut self, prompt: ShownPrompt, before: (usize, usize)) -> Result<Generation<'_>> {
        let parts = self.parts();
        let messages = &mut self.messages;
        let started = match parts {
            Ok(parts) => self.session.generate_with(prompt, &self.options, parts),
            Err(error) => Err(error),
        };
        match started {
            Ok(generation) => Ok(generation.on_end(|answer| messages.push(message(answer)))),
            Err(error) => {
                messages.truncate(before.0);
                self.pictures.truncate(before.1);
                Err(error)
            }
        }
    }

    /// Returns how the text of an answer is parsed.
    fn parts(&self) -> Result<Parts> {
        if self.tools.is_empty() {
            return Ok(Parts::Text);
        }
        let model = self.model.engine.model();
        let (parser, spelled) = ToolCallParser::for_model(model, &self.tools)?;
        Ok(Parts::Calls {
            parser: Some(parser),
            spelled,
        })
    }

    /// Returns the messages so far.
    pub fn messages(&self) -> Vec<Message> {
        let text = |value: &Value| match value {
            Value::Array(parts) => {
                let texts = parts.iter().filter_map(|part| part["text"].as_str());
                texts.collect()
            }
            value => value.as_str().unwrap_or_default().to_owned(),
        };
        self.messages
            .iter()
            .map(|message| Message {
                role: text(&message["role"]),
                content: text(&message["content"]),
            })
            .collect()
    }
}

/// Returns the answer as a message of the conversation.
fn message(answer: &Answer) -> Value {
    let mut message = json!({ "role": "assistant", "content": answer.text });
    if !answer.calls.is_empty() {
        let call = |call: &ToolCall| {
            let function = json!({ "name": call.name, "arguments": call.arguments });
            json!({ "type": "function", "function": function })
        };
        message["tool_calls"] = answer.calls.iter().map(call).collect();
    }
    message
}

impl std::fmt::Debug for Chat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Chat")
            .field("model", &self.model.name)
            .field("messages", &self.messages.len())
            .finish_non_exhaustive()
    }
}
