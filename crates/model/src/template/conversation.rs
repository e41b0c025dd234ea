//! Conversations in the form of requests: contents that are strings or lists of parts, a last message to be continued,
//! and variables of the request.

use minijinja::Value;
use serde_json::{Map, Value as Json, json};

use super::steps::Clock;
use super::{ChatTemplate, NAME, Stop, from_json, on_a_deep_stack, template_error};
use crate::error::{Error, ErrorKind, Result};

/// Marks the end of a last message to be continued, as in `transformers`. Templates that trim contents drop the space.
const CONTINUED: &str = "CONTINUE_FINAL_MESSAGE_TAG ";
/// A string that no template contains.
const NEEDLE: &str = "4f1c needle 9b2e";

/// The variables that templates read next to the messages.
#[derive(Clone, Copy, Debug, Default)]
pub struct RenderOptions<'a> {
    /// Functions that the model may call, each as `{"type": "function", "function": {…}}`.
    pub tools: &'a [Json],
    /// Texts on which the answer should be based, in the form that templates for documents read.
    pub documents: &'a [Json],
    /// Whether the text ends where the model's answer starts.
    pub add_generation_prompt: bool,
    /// Whether the text ends at the end of the last message, so that the answer continues it. Requires
    /// `add_generation_prompt` to be false.
    pub continue_final_message: bool,
    /// Further variables, by their names.
    pub variables: Option<&'a Map<String, Json>>,
}

/// The kinds of contents and roles that a template reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reads {
    texts: bool,
    parts: bool,
    system: bool,
    pairs: bool,
}

impl ChatTemplate {
    /// Returns the text of `messages` in the form that templates read (`role`, `content`, `tool_calls`). A content may
    /// be a string or a list of parts (`{"type": "text", "text": …}`); the template receives the form that it reads.
    /// The rendering ends early if `stop` returns true.
    ///
    /// # Errors
    /// As for [`ChatTemplate::render`]; if the last message is to be continued and is not in the text.
    pub fn render_conversation(
        &self,
        messages: &[Json],
        options: &RenderOptions<'_>,
        stop: Option<Stop>,
    ) -> Result<String> {
        let clock = &Clock::start(stop);
        let mut messages = with_contents(messages, self.reads(clock)?);
        if !options.continue_final_message {
            return self.render_values(&messages, options, clock);
        }
        let last = messages.last_mut().and_then(last_text);
        last.ok_or_else(|| failed("there is no last message with a text to continue"))?
            .push_str(CONTINUED);
        let mut text = self.render_values(&messages, options, clock)?;
        let end = text
            .rfind(CONTINUED.trim_end())
            .ok_or_else(|| failed("it does not write the last message"))?;
        let is_trimmed = !text[end..].starts_with(CONTINUED);
        text.truncate(end);
        if is_trimmed {
            text.truncate(text.trim_end().len());
        }
        Ok(text)
    }

    /// Returns whether messages of the role `system` are part of the text. The first call renders a few short
    /// conversations, which `stop` ends early.
    ///
    /// # Errors
    /// [`ErrorKind::Template`] if these take too long or are stopped.
    pub fn reads_system(&self, stop: Option<Stop>) -> Result<bool> {
        Ok(self.reads(&Clock::start(stop))?.system)
    }

    /// Returns whether a message of the role `query` and one of the role `document` are both part of the text.
    ///
    /// # Errors
    /// As for [`ChatTemplate::reads_system`].
    pub fn reads_pairs(&self) -> Result<bool> {
        Ok(self.reads(&Clock::start(None))?.pairs)
    }

    /// Returns whether a message of the role `system` is part of the text of such a pair.
    pub fn reads_instructions(&self) -> bool {
        let pair = ["query", "document"].map(|role| json!({"role": role, "content": "a"}));
        let [query, document] = pair;
        let system = json!({"role": "system", "content": NEEDLE});
        let messages = [system, query, document];
        let text = self.render_values(&messages, &RenderOptions::default(), &Clock::start(None));
        text.is_ok_and(|text| text.contains(NEEDLE))
    }

    /// Returns whether the template mentions the variable `name`.
    pub fn mentions(&self, name: &str) -> bool {
        let is_word = |letter: char| letter.is_alphanumeric() || letter == '_';
        let source = self.source();
        source.match_indices(name).any(|(place, _)| {
            !source[..place].ends_with(is_word)
                && !source[place + name.len()..].starts_with(is_word)
        })
    }

    /// Returns whether a picture in a user's message (`{"type": "image"}`) becomes `placeholder` in the text.
    ///
    /// # Errors
    /// As for [`ChatTemplate::reads_system`].
    pub fn writes_pictures(&self, placeholder: &str) -> Result<bool> {
        let content = json!([{"type": "image"}, {"type": "text", "text": NEEDLE}]);
        let message = json!({"role": "user", "content": content});
        self.writes(placeholder, &[message], &[])
    }

    /// Returns whether a picture in the result of a call becomes `placeholder` in the text.
    ///
    /// # Errors
    /// As for [`ChatTemplate::reads_system`].
    pub fn writes_pictures_of_results(&self, placeholder: &str) -> Result<bool> {
        let content = json!([{"type": "image"}, {"type": "text", "text": NEEDLE}]);
        let call =
            json!({"id": "call", "type": "function", "function": {"name": "f", "arguments": {}}});
        let messages = [
            json!({"role": "user", "content": "f"}),
            json!({"role": "assistant", "content": "", "tool_calls": [call]}),
            json!({"role": "tool", "tool_call_id": "call", "name": "f", "content": content}),
        ];
        let parameters = json!({"type": "object", "properties": {}});
        let function = json!({"name": "f", "description": "f", "parameters": parameters});
        let tool = json!({"type": "function", "function": function});
        self.writes(placeholder, &messages, &[tool])
    }

    /// Returns whether the text of these messages has [`NEEDLE`], and `placeholder` once.
    fn writes(&self, placeholder: &str, messages: &[Json], tools: &[Json]) -> Result<bool> {
        let clock = Clock::start(None);
        let options = RenderOptions {
            tools,
            ..RenderOptions::default()
        };
        let text = self.render_values(messages, &options, &clock);
        clock.check().map_err(template_error)?;
        Ok(text.is_ok_and(|text| text.contains(NEEDLE) && text.matches(placeholder).count() == 1))
    }

    fn render_values(
        &self,
        messages: &[Json],
        options: &RenderOptions<'_>,
        clock: &Clock,
    ) -> Result<String> {
        let RenderOptions {
            tools,
            documents,
            add_generation_prompt,
            variables,
            ..
        } = *options;
        let bytes = |value: &Json| value.to_string().len();
        let listed: usize = tools.iter().chain(documents).map(bytes).sum();
        let given = messages
            .iter()
            .chain(variables.into_iter().flat_map(Map::values));
        let text = listed + given.map(bytes).sum::<usize>();
        let list = |values: &[Json]| match values {
            [] => Value::from(()),
            values => values.iter().map(from_json).collect(),
        };
        let mut values = vec![("documents", list(documents))];
        values.extend(
            variables
                .into_iter()
                .flatten()
                .map(|(name, value)| (name.as_str(), from_json(value))),
        );
        let (entries, tools) = (messages.iter().map(from_json).collect(), list(tools));
        on_a_deep_stack(|| {
            self.render_here(
                (entries, text, listed),
                tools,
                add_generation_prompt,
                (values, clock),
            )
        })
    }

    /// Returns the kinds of contents that the template writes, by rendering one of each kind once.
    fn reads(&self, clock: &Clock) -> Result<Reads> {
        if let Some(reads) = self.reads.get() {
            return Ok(*reads);
        }
        let rendered = |messages: Json| {
            let options = RenderOptions {
                add_generation_prompt: true,
                ..RenderOptions::default()
            };
            let messages = messages.as_array().map_or(&[][..], Vec::as_slice);
            let text = self.render_values(messages, &options, clock);
            // A template that refuses a conversation reads nothing of it. One that does not end is unknown.
            clock.check().map_err(template_error)?;
            Ok::<_, Error>(text.unwrap_or_default())
        };
        let user = |content: Json| json!({"role": "user", "content": content});
        let parts = rendered(json!([user(json!([{"type": "text", "text": NEEDLE}]))]))?;
        let pair = |query: &str, document: &str| {
            let message = |role: &str, text: &str| json!({"role": role, "content": text});
            let messages = json!([message("query", query), message("document", document)]);
            Ok::<_, Error>(rendered(messages)?.contains(NEEDLE))
        };
        // A template that expects a string writes the list in the syntax of Python or JSON.
        let is_list = parts.contains("'text'") || parts.contains("\"text\"");
        let reads = Reads {
            texts: rendered(json!([user(NEEDLE.into())]))?.contains(NEEDLE),
            parts: parts.contains(NEEDLE) && !is_list,
            system: rendered(json!([{"role": "system", "content": NEEDLE}, user("a".into())]))?
                .contains(NEEDLE),
            pairs: pair(NEEDLE, "a")? && pair("a", NEEDLE)?,
        };
        Ok(*self.reads.get_or_init(|| reads))
    }
}

/// Returns the messages with contents in the form that a template `reads`.
fn with_contents(messages: &[Json], reads: Reads) -> Vec<Json> {
    let convert = |message: &Json| {
        let mut message = message.clone();
        let content = match message.get("content") {
            Some(Json::Array(parts)) if !reads.parts => {
                let texts = parts.iter().filter_map(|part| part["text"].as_str());
                Json::from(texts.collect::<Vec<_>>().join("\n"))
            }
            Some(Json::String(text)) if !reads.texts && reads.parts => {
                json!([{"type": "text", "text": text}])
            }
            _ => return message,
        };
        message["content"] = content;
        message
    };
    messages.iter().map(convert).collect()
}

/// Returns the text at the end of a message.
fn last_text(message: &mut Json) -> Option<&mut String> {
    let content = match message.get_mut("content")? {
        Json::Array(parts) => parts
            .iter_mut()
            .rev()
            .find_map(|part| part.get_mut("text"))?,
        content => content,
    };
    match content {
        Json::String(text) => Some(text),
        _ => None,
    }
}

fn failed(reason: &str) -> Error {
    Error::new(ErrorKind::Template, format!("{NAME}: {reason}"))
}
