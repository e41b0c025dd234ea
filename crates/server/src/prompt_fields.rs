//! Request fields that control how a conversation becomes a prompt. The names are those of vLLM's and llama.cpp's
//! servers.

use serde::Deserialize;
use serde_json::{Map, Value};
use triad_frontend::chat::{Conversation, PromptEnd};
use triad_frontend::tool_calls::Tool;
use triad_model::template::ChatTemplate;
use utoipa::ToSchema;

use crate::error::{ApiError, ApiResult};
use crate::messages::bytes;

/// Template variables that clients must not set.
const RESERVED: [&str; 5] = [
    "messages",
    "tools",
    "documents",
    "add_generation_prompt",
    "continue_final_message",
];

/// The usual amounts of reasoning except `none`, in the APIs of OpenAI and Anthropic.
const EFFORTS: [&str; 6] = ["minimal", "low", "medium", "high", "xhigh", "max"];

/// The prompt fields, common to all requests with a conversation.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub(crate) struct PromptFields {
    /// Variables of the model's chat template, such as `enable_thinking`.
    #[schema(value_type = Option<Object>)]
    chat_template_kwargs: Option<Map<String, Value>>,
    /// Whether the prompt ends with the start of an assistant message. The default is true.
    add_generation_prompt: Option<bool>,
    /// Whether generation continues the last message, which must be the assistant's.
    continue_final_message: Option<bool>,
    /// Documents for the template. Refused if the model's template does not use them.
    #[schema(value_type = Option<Vec<Object>>)]
    documents: Option<Vec<Value>>,
    /// Whether the model reasons before it answers. Alias of the template variable of this name.
    enable_thinking: Option<bool>,
    /// The amount of reasoning: `none`, or `minimal` to `max`, which have no effect if the model's template reads none.
    reasoning_effort: Option<String>,
}

/// The options of a prompt.
#[derive(Clone, Debug, Default)]
pub(crate) struct PromptOptions {
    variables: Map<String, Value>,
    documents: Vec<Value>,
    end: PromptEnd,
    /// The fields that the template does not read.
    left_out: Vec<&'static str>,
}

impl PromptFields {
    /// Reads the options.
    ///
    /// # Errors
    /// If two fields contradict each other, a variable is one that the server sets, or `template` does not use a given
    /// field.
    pub(crate) fn read(self, template: Option<&ChatTemplate>) -> ApiResult<PromptOptions> {
        let end = self.end()?;
        self.check_variables()?;
        let Self {
            chat_template_kwargs,
            documents,
            reasoning_effort,
            enable_thinking,
            ..
        } = self;
        let mut options = PromptOptions {
            variables: chat_template_kwargs.unwrap_or_default(),
            documents: documents.unwrap_or_default(),
            end,
            left_out: Vec::new(),
        };
        if !options.documents.is_empty()
            && !template.is_some_and(|template| template.mentions("documents"))
        {
            return Err(ApiError::unsupported(
                "documents",
                "the model's template does not use documents",
            ));
        }
        if let Some(enables) = enable_thinking {
            options.set("enable_thinking", enables.into());
        }
        if let Some(effort) = reasoning_effort {
            options.ask_effort("reasoning_effort", effort, template)?;
        }
        Ok(options)
    }

    /// Does the checks that need no model, so that an invalid request does not load one. `messages` are those of a
    /// conversation, if there is one.
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
                "other fields of the request set it: expected another name",
            ));
        }
        let variables = self.chat_template_kwargs.as_ref();
        let variable = variables.and_then(|variables| variables.get("enable_thinking"));
        let field = self.enable_thinking.map(Value::Bool);
        if let (Some(field), Some(variable)) = (field, variable)
            && field != *variable
        {
            let message = "chat_template_kwargs.enable_thinking has another value";
            return Err(ApiError::field("enable_thinking", message));
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
                    let message = "it requires add_generation_prompt: false";
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
    /// Sets the amount of reasoning, which `field` requests. `none` works with every template: some templates only read
    /// whether the model reasons at all, and others are for models that never reason.
    ///
    /// # Errors
    /// If `template` does not use `reasoning_effort`.
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
                "the model's template does not use it",
            ));
        }
        self.variables
            .entry("reasoning_effort")
            .or_insert_with(|| effort.into());
        Ok(())
    }

    /// Returns whether the request turns the reasoning off, and the template reads no variable for it.
    pub(crate) fn disables_reasoning(&self, template: Option<&ChatTemplate>) -> bool {
        let is_read = |name| template.is_some_and(|template| template.mentions(name));
        let turns_off = |name| self.variables.get(name) == Some(&Value::Bool(false));
        turns_off("enable_thinking")
            && !is_read("enable_thinking")
            && !(turns_off("thinking") && is_read("thinking"))
    }

    /// Sets a variable unless the request has set it.
    pub(crate) fn set(&mut self, name: &str, value: Value) {
        self.variables.entry(name).or_insert(value);
    }

    /// Like [`set_effort`](Self::set_effort), but leaves a usual effort out if `template` does not use it: it is a wish,
    /// which clients send by the name of the model alone.
    ///
    /// # Errors
    /// If `template` does not use `reasoning_effort`, and the effort is not a usual one.
    pub(crate) fn ask_effort(
        &mut self,
        field: &'static str,
        effort: String,
        template: Option<&ChatTemplate>,
    ) -> ApiResult<()> {
        if EFFORTS.contains(&effort.as_str())
            && !template.is_some_and(|template| template.mentions("reasoning_effort"))
        {
            self.left_out.push(field);
            return Ok(());
        }
        self.set_effort(field, effort, template)
    }

    /// Returns the fields that the template does not read.
    pub(crate) fn left_out(&self) -> &[&'static str] {
        &self.left_out
    }

    /// Returns the options of a prompt that ends after the last message.
    pub(crate) fn of_messages() -> Self {
        Self {
            end: PromptEnd::Messages,
            ..Self::default()
        }
    }

    /// Returns whether generation continues the last message.
    pub(crate) fn continues(&self) -> bool {
        self.end == PromptEnd::LastMessage
    }

    /// Makes generation continue the last message.
    pub(crate) fn continue_last(&mut self) {
        self.end = PromptEnd::LastMessage;
    }

    /// Refuses to continue a message that is not the assistant's, or that contains tool calls.
    ///
    /// # Errors
    /// If the last message is such a message.
    pub(crate) fn check(&self, messages: &[Value]) -> ApiResult<()> {
        check_end(self.end, messages)
    }

    /// Estimates the bytes of text that the options pass to a template.
    pub(crate) fn bytes(&self) -> usize {
        let variables = self
            .variables
            .iter()
            .map(|(name, value)| name.len() + bytes(std::slice::from_ref(value)));
        variables.sum::<usize>() + bytes(&self.documents)
    }

    /// Returns the conversation to render.
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
            ..
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
        let message = "the last message must be the assistant's, without calls";
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
        let mut asked = PromptOptions::default();
        for effort in EFFORTS {
            asked.ask_effort("effort", effort.into(), None).unwrap();
        }
        assert!(asked.variables.is_empty() && asked.left_out == ["effort"; 6]);
        assert!(asked.ask_effort("effort", "lots".into(), None).is_err());
        asked.ask_effort("effort", "none".into(), None).unwrap();
        assert_eq!(asked.variables["enable_thinking"], false);
        let refused = effort("low").unwrap_err();
        assert_eq!(refused.detail.code, Some("unsupported_parameter"));
        assert_eq!(
            Value::Object(effort("none").unwrap()),
            serde_json::json!({"enable_thinking": false})
        );
    }
}
