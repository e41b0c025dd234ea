//! Tools and the choice among them, in the forms of the APIs' requests.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use triad_frontend::tool_calls::ToolChoice;
use utoipa::ToSchema;

use crate::error::{ApiError, ApiResult};

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
#[serde(
    untagged,
    expecting = "expected none, auto, required, or an object with type: function and a name"
)]
pub(crate) enum ToolChoiceField {
    /// `none`, `auto` or `required`.
    Word(String),
    Named(NamedChoice),
}

#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct NamedChoice {
    /// Always `function`.
    #[serde(rename = "type")]
    pub(crate) kind: String,
    /// The function, in `/v1/chat/completions`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) function: Option<ChosenFunction>,
    /// The function's name, in `/v1/responses`.
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

impl ToolChoiceField {
    /// Reads the choice. The tool's name is in `field`.
    ///
    /// # Errors
    /// If the word is unknown, or the tool's name is missing.
    pub(crate) fn read(&self, field: &str) -> ApiResult<ToolChoice> {
        Ok(match self {
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
                let message = format!("{kind}: expected function");
                return Err(ApiError::unsupported("tool_choice.type", message));
            }
            Self::Named(NamedChoice { function, name, .. }) => {
                let name = function
                    .as_ref()
                    .map(|function| &function.name)
                    .or(name.as_ref());
                ToolChoice::Named(
                    name.ok_or_else(|| ApiError::field(field, "it is missing"))?
                        .clone(),
                )
            }
        })
    }
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
