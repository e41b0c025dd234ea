//! Tools and the choice among them, in the forms of the APIs' requests.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use triad_frontend::tool_calls::ToolChoice;
use utoipa::ToSchema;

use crate::error::{ApiError, ApiResult};
use crate::values::TextOrObject;

/// A tool that the model may call.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct ChatTool {
    /// `function`. Tools of other types are left out of the prompt if a call is optional.
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) function: Option<Function>,
}

#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct Function {
    /// The name: letters, digits, `_`, `-` and `.`, at most 128 characters.
    pub(crate) name: String,
    /// A description of the function, for the model.
    pub(crate) description: Option<String>,
    /// A JSON schema of the arguments. Its type must be an object.
    #[schema(value_type = Option<Object>)]
    pub(crate) parameters: Option<Value>,
    /// Whether an unsupported schema is an error even if a tool call is optional.
    pub(crate) strict: Option<bool>,
}

/// A tool that the model may call, as in `/v1/responses`.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct ResponseTool {
    /// Always `function`.
    #[serde(rename = "type")]
    pub(crate) kind: String,
    /// The name: letters, digits, `_`, `-` and `.`, at most 128 characters.
    pub(crate) name: Option<String>,
    /// A description of the function, for the model.
    pub(crate) description: Option<String>,
    /// A JSON schema of the arguments. Its type must be an object.
    #[schema(value_type = Option<Object>)]
    pub(crate) parameters: Option<Value>,
    /// Whether an unsupported schema is an error even if a tool call is optional.
    pub(crate) strict: Option<bool>,
}

/// A tool that the model may call, in Anthropic's format.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct MessageTool {
    /// `custom`, which is the default.
    #[serde(rename = "type")]
    pub(crate) kind: Option<String>,
    /// The name: letters, digits, `_`, `-` and `.`, at most 128 characters.
    pub(crate) name: String,
    /// A description of the tool, for the model.
    pub(crate) description: Option<String>,
    /// A JSON schema of the arguments. Its type must be an object.
    #[schema(value_type = Option<Object>)]
    pub(crate) input_schema: Option<Value>,
    /// Whether an unsupported schema is an error even if a tool call is optional.
    pub(crate) strict: Option<bool>,
}

/// Whether the model must call a tool, and which one.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(untagged, from = "TextOrObject<NamedChoice>")]
pub(crate) enum ToolChoiceField {
    /// `none`, `auto` or `required`.
    Word(String),
    Named(NamedChoice),
}

impl From<TextOrObject<NamedChoice>> for ToolChoiceField {
    fn from(given: TextOrObject<NamedChoice>) -> Self {
        match given {
            TextOrObject::Text(text) => Self::Word(text),
            TextOrObject::Object(named) => Self::Named(named),
        }
    }
}

#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct NamedChoice {
    /// `function`, or `allowed_tools` for a part of the tools.
    #[serde(rename = "type")]
    pub(crate) kind: String,
    /// The function, in `/v1/chat/completions`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) function: Option<ChosenFunction>,
    /// The function's name, in `/v1/responses`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    /// The part of the tools that may be called, in `/v1/chat/completions`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) allowed_tools: Option<AllowedTools>,
    /// `auto` or `required`, for `allowed_tools` in `/v1/responses`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mode: Option<String>,
    /// The part of the tools that may be called, in `/v1/responses`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tools: Option<Vec<AllowedTool>>,
}

/// The part of the tools that may be called.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct AllowedTools {
    /// `auto` or `required`.
    pub(crate) mode: String,
    pub(crate) tools: Vec<AllowedTool>,
}

/// A tool that may be called.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct AllowedTool {
    /// Always `function`.
    #[serde(rename = "type")]
    pub(crate) kind: String,
    /// The function, in `/v1/chat/completions`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) function: Option<ChosenFunction>,
    /// The function's name, in `/v1/responses`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
}

#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct ChosenFunction {
    pub(crate) name: String,
}

/// Whether the model must call a tool, and which one, in Anthropic's format.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct MessageToolChoice {
    /// `auto`, `any`, `tool` or `none`.
    #[serde(rename = "type")]
    pub(crate) kind: String,
    /// The tool's name, if `type` is `tool`.
    pub(crate) name: Option<String>,
    /// Whether the completion may contain at most one call.
    pub(crate) disable_parallel_tool_use: Option<bool>,
}

/// The field with the name of a chosen function in `/v1/chat/completions`.
pub(crate) const CHAT_NAME: &str = "tool_choice.function.name";

/// The functions that may be called, each with its field.
pub(crate) type Allowed = Vec<(String, String)>;

impl ToolChoiceField {
    /// Reads the choice, and the functions that it allows if it does not allow all. The tool's name is in `field`.
    ///
    /// # Errors
    /// If the word is unknown, or the tool's name is missing.
    pub(crate) fn read(&self, field: &str) -> ApiResult<(ToolChoice, Option<Allowed>)> {
        let choice = match self {
            Self::Named(named) if named.kind == "allowed_tools" => {
                let (choice, allowed) = named.allowed(field)?;
                return Ok((choice, Some(allowed)));
            }
            Self::Word(word) if word == "none" => ToolChoice::None,
            Self::Word(word) if word == "auto" => ToolChoice::Auto,
            Self::Word(word) if word == "required" => ToolChoice::Required,
            Self::Word(word) => {
                return Err(ApiError::field(
                    "tool_choice",
                    format!("{word}: expected none, auto or required"),
                ));
            }
            Self::Named(NamedChoice { kind, .. }) if kind != "function" => {
                let message = format!("{kind}: expected function or allowed_tools");
                return Err(ApiError::unsupported("tool_choice.type", message));
            }
            Self::Named(NamedChoice { function, name, .. }) => {
                ToolChoice::Named(function_name(field, function.as_ref(), name.as_ref())?)
            }
        };
        Ok((choice, None))
    }
}

impl NamedChoice {
    /// Reads a choice that allows a part of the tools, in the API that has the name of one function in `of_name`.
    fn allowed(&self, of_name: &str) -> ApiResult<(ToolChoice, Allowed)> {
        let missing = |field: &str| ApiError::field(field, "it is missing");
        let (field, mode, tools) = match &self.allowed_tools {
            Some(AllowedTools { mode, tools }) => ("tool_choice.allowed_tools", mode, tools),
            None if of_name == CHAT_NAME => return Err(missing("tool_choice.allowed_tools")),
            None => {
                let mode = self.mode.as_ref();
                let tools = self.tools.as_ref();
                (
                    "tool_choice",
                    mode.ok_or_else(|| missing("tool_choice.mode"))?,
                    tools.ok_or_else(|| missing("tool_choice.tools"))?,
                )
            }
        };
        let choice = match mode.as_str() {
            "auto" => ToolChoice::Auto,
            "required" => ToolChoice::Required,
            mode => {
                let message = format!("{mode}: expected auto or required");
                return Err(ApiError::field(&format!("{field}.mode"), message));
            }
        };
        if tools.is_empty() {
            let message = "it is empty, expected at least one function";
            return Err(ApiError::field(&format!("{field}.tools"), message));
        }
        let tools = tools.iter().enumerate().map(|(index, tool)| {
            let field = format!("{field}.tools[{index}]");
            if tool.kind != "function" {
                let message = format!("{}: expected function", tool.kind);
                return Err(ApiError::unsupported(&format!("{field}.type"), message));
            }
            let name = function_name(&field, tool.function.as_ref(), tool.name.as_ref())?;
            Ok((field, name))
        });
        Ok((choice, tools.collect::<ApiResult<_>>()?))
    }
}

/// Returns the name of a function, which is in `field`.
fn function_name(
    field: &str,
    function: Option<&ChosenFunction>,
    name: Option<&String>,
) -> ApiResult<String> {
    let name = function.map(|function| &function.name).or(name);
    name.cloned()
        .ok_or_else(|| ApiError::field(field, "it is missing"))
}

impl MessageToolChoice {
    /// Reads the choice.
    ///
    /// # Errors
    /// If the word is unknown, or the tool's name is missing.
    pub(crate) fn read(&self) -> ApiResult<ToolChoice> {
        Ok(match self.kind.as_str() {
            "auto" => ToolChoice::Auto,
            "any" => ToolChoice::Required,
            "none" => ToolChoice::None,
            "tool" => {
                let name = self.name.as_ref();
                ToolChoice::Named(
                    name.ok_or_else(|| ApiError::field("tool_choice.name", "it is missing"))?
                        .clone(),
                )
            }
            kind => {
                let message = format!("{kind}: expected auto, any, tool or none");
                return Err(ApiError::field("tool_choice.type", message));
            }
        })
    }
}
