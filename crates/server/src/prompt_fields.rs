//! Fields that say how a conversation becomes a prompt, by the names of vLLM's and llama.cpp's servers.

use serde::Deserialize;
use serde_json::{Map, Value};
use triad_frontend::chat::{Conversation, PromptEnd};
use triad_frontend::tool_calls::Tool;
use triad_model::template::ChatTemplate;
use utoipa::ToSchema;

use crate::error::{ApiError, ApiResult};
use crate::messages::bytes;

/// Variables of templates that are no client's to set.
const RESERVED: [&str; 5] = [
    "messages",
    "tools",
    "documents",
    "add_generation_prompt",
    "continue_final_message",
];

/// Fields of requests with conversations.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub(crate) struct PromptFields {
    /// Variables of the model's template, such as `enable_thinking`.
    #[schema(value_type = Option<Object>)]
    chat_template_kwargs: Option<Map<String, Value>>,
    /// Whether the prompt ends where an answer begins; without, it does.
    add_generation_prompt: Option<bool>,
    /// Whether the answer goes on with the last message, of the assistant.
    continue_final_message: Option<bool>,
    /// Texts that the answer is to be about; refused where the template reads none.
    #[schema(value_type = Option<Vec<Object>>)]
    documents: Option<Vec<Value>>,
    /// How much the model thinks; other than `none` it is refused where the template does not read it.
    reasoning_effort: Option<String>,
}

/// A prompt as it is asked for.
#[derive(Clone, Debug, Default)]
pub(crate) struct PromptOptions {
    variables: Map<String, Value>,
    documents: Vec<Value>,
    end: PromptEnd,
}

impl PromptFields {
    /// Returns what is asked for.
    ///
    /// # Errors
    /// If two fields contradict each other, a variable is one that the server sets, or `template` does not read what it would
    /// have to.
    pub(crate) fn read(self, template: Option<&ChatTemplate>) -> ApiResult<PromptOptions> {
        let end = self.end()?;
        self.check_variables()?;
        let Self {
            chat_template_kwargs,
            documents,
            reasoning_effort,
            ..
        } = self;
        let mut options = PromptOptions {
            variables: chat_template_kwargs.unwrap_or_default(),
            documents: documents.unwrap_or_default(),
            end,
        };
        if !options.documents.is_empty()
            && !template.is_some_and(|template| template.mentions("documents"))
        {
            return Err(ApiError::unsupported(
                "documents",
                "the model's template reads none",
            ));
        }
        if let Some(effort) = reasoning_effort {
            options.set_effort("reasoning_effort", effort, template)?;
        }
        Ok(options)
    }

    /// Checks the fields as far as it takes no model, so that a request which is refused loads none; with the `messages` of a
    /// conversation.
    ///
    /// # Errors
    /// As [`PromptFields::read`] and [`PromptOptions::check`].
    pub(crate) fn check(&self, messages: Option<&[Value]>) -> ApiResult<()> {
        self.check_variables()?;
        let end = self.end()?;
        messages.map_or(Ok(()), |messages| check_end(end, messages))
    }

    fn check_variables(&self) -> ApiResult<()> {
        let variables = self.chat_template_kwargs.iter().flatten();
        if let Some(name) = variables
            .map(|(name, _)| name)
            .find(|name| RESERVED.contains(&name.as_str()))
        {
            let field = format!("chat_template_kwargs.{name}");
            return Err(ApiError::field(
                &field,
                "it is set by the request itself: expected another name",
            ));
        }
        Ok(())
    }

    fn end(&self) -> ApiResult<PromptEnd> {
        Ok(
            match (
                self.continue_final_message.unwrap_or(false),
                self.add_generation_prompt,
            ) {
                (true, Some(true)) => {
                    let message = "expected add_generation_prompt: false with it";
                    return Err(ApiError::field("continue_final_message", message));
                }
                (true, _) => PromptEnd::LastMessage,
                (false, Some(false)) => PromptEnd::Messages,
                (false, _) => PromptEnd::Answer,
            },
        )
    }
}

impl PromptOptions {
    /// Sets how much the model thinks, as `field` asks for it. Not to think at all needs no template that reads degrees: there
    /// are templates that read no more than whether the model thinks, and others are for models that don't.
    ///
    /// # Errors
    /// If `template` does not read it.
    pub(crate) fn set_effort(
        &mut self,
        field: &str,
        effort: String,
        template: Option<&ChatTemplate>,
    ) -> ApiResult<()> {
        if !template.is_some_and(|template| template.mentions("reasoning_effort")) {
            if effort == "none" {
                self.set("enable_thinking", false.into());
                return Ok(());
            }
            return Err(ApiError::unsupported(
                field,
                "the model's template does not read it",
            ));
        }
        self.variables
            .entry("reasoning_effort")
            .or_insert_with(|| effort.into());
        Ok(())
    }

    /// Sets a variable, unless the request does.
    pub(crate) fn set(&mut self, name: &str, value: Value) {
        self.variables.entry(name).or_insert(value);
    }

    /// Returns the options of a prompt that ends after the last message.
    pub(crate) fn of_messages() -> Self {
        Self {
            end: PromptEnd::Messages,
            ..Self::default()
        }
    }

    /// Lets the answer go on with the last message.
    pub(crate) fn continue_last(&mut self) {
        self.end = PromptEnd::LastMessage;
    }

    /// Refuses to go on with a message that is none of the assistant's, or that calls functions.
    ///
    /// # Errors
    /// If it is such a message.
    pub(crate) fn check(&self, messages: &[Value]) -> ApiResult<()> {
        check_end(self.end, messages)
    }

    /// Returns the bytes of the texts that it gives to a template, about.
    pub(crate) fn bytes(&self) -> usize {
        let variables = self
            .variables
            .iter()
            .map(|(name, value)| name.len() + bytes(std::slice::from_ref(value)));
        variables.sum::<usize>() + bytes(&self.documents)
    }

    /// Returns the conversation from which the prompt is made.
    pub(crate) fn conversation<'a>(
        &'a self,
        messages: &'a [Value],
        tools: &'a [Tool],
        keeps_letters: bool,
    ) -> Conversation<'a> {
        let Self {
            variables,
            documents,
            end,
        } = self;
        Conversation {
            messages,
            tools,
            documents,
            variables: Some(variables),
            end: *end,
            keeps_letters,
        }
    }
}

fn check_end(end: PromptEnd, messages: &[Value]) -> ApiResult<()> {
    let goes_on =
        |message: &Value| message["role"] == "assistant" && message.get("tool_calls").is_none();
    if end == PromptEnd::LastMessage && !messages.last().is_some_and(goes_on) {
        let message = "expected a last message of the assistant, without calls";
        return Err(ApiError::field("continue_final_message", message));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_effort_is_taken_by_any_template_and_ends_the_thinking_where_that_is_read() {
        let effort = |effort: &str| {
            let mut options = PromptOptions::default();
            options
                .set_effort("reasoning_effort", effort.into(), None)
                .map(|()| options.variables)
        };
        let refused = effort("low").unwrap_err();
        assert_eq!(refused.detail.code, Some("unsupported_parameter"));
        assert_eq!(
            Value::Object(effort("none").unwrap()),
            serde_json::json!({"enable_thinking": false})
        );
    }
}
