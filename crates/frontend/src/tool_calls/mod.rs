//! Function calls of models: how a prompt lists the functions, how an answer calls them, and the grammar of an answer
//! that must call one.
//!
//! Models write calls in the format of their chat template, which [`ToolFormat::of_template`] detects.
//! [`chat::encode_with_tools`] makes the prompt. A [`ToolCallParser`] parses an answer while it is generated.
//! [`grammar`] is the constraint of an answer that must be a call. With such a constraint, an [`AnswerReader`] passes
//! arguments on piece by piece.
//!
//! ```
//! use triad_frontend::tool_calls::{AnswerPart, ToolCallParser, ToolFormat};
//!
//! let mut parser = ToolCallParser::new(ToolFormat::Hermes);
//! let mut parts = Vec::new();
//! for text in ["Let me look.\n<tool", "_call>\n{\"name\": \"weather\", ", "\"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>"] {
//!     parts.extend(parser.push(text));
//! }
//! parts.extend(parser.finish());
//! let AnswerPart::Call(call) = &parts[1] else { panic!() };
//! assert_eq!(parts[0], AnswerPart::Text("Let me look.\n".into()));
//! assert_eq!((call.name.as_str(), call.arguments.as_str()), ("weather", r#"{"city":"Oslo"}"#));
//! ```
//!
//! [`chat::encode_with_tools`]: crate::chat::encode_with_tools

mod bodies;
mod form;
mod format;
mod harmony;
mod parser;
mod python;
mod stream;
mod words;

#[cfg(test)]
mod stream_tests;
#[cfg(test)]
mod tests;

pub use form::{grammar, grammar_of_json_or_calls, grammar_of_text_and_calls};
pub use format::ToolFormat;
pub(crate) use format::control_word;
pub use parser::ToolCallParser;
pub use stream::{AnswerForm, AnswerReader};
pub use words::Words;

use serde_json::{Map, Value, json};

use crate::error::{Error, Result};

/// Maximum number of characters of a function's name, as in Anthropic's API.
const MAX_NAME: usize = 128;

/// A function that a model may call.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    /// The function's name: letters, digits, `_`, `-` and `.`, at most 128.
    pub name: String,
    /// Description of the function for the model.
    pub description: Option<String>,
    /// The JSON schema of its arguments, an object.
    pub parameters: Value,
}

impl Tool {
    /// Parses OpenAI's format: `{"type": "function", "function": {"name", "description", "parameters"}}`, or only the
    /// content of `function`.
    ///
    /// # Errors
    /// If a field is missing or has the wrong type. The error names the field.
    pub fn from_json(value: &Value) -> Result<Self> {
        let function = value.get("function").unwrap_or(value);
        let wrong = |field, expected| Error::Tool { field, expected };
        let name = function["name"].as_str().ok_or(wrong("name", "a text"))?;
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
        if !(1..=MAX_NAME).contains(&name.len()) || !name.bytes().all(is_name) {
            return Err(wrong("name", "1 to 128 letters, digits, _, - and ."));
        }
        let description = match &function["description"] {
            Value::Null => None,
            Value::String(text) => Some(text.clone()),
            _ => return Err(wrong("description", "a text")),
        };
        let parameters = match &function["parameters"] {
            Value::Null => json!({ "type": "object", "properties": {} }),
            Value::Object(keywords) if keywords.get("type").is_none_or(|kind| kind == "object") => {
                Value::Object(keywords.clone())
            }
            _ => return Err(wrong("parameters", "a JSON schema of an object")),
        };
        Ok(Self {
            name: name.to_owned(),
            description,
            parameters,
        })
    }

    /// Returns OpenAI's format, as chat templates expect it.
    pub fn to_json(&self) -> Value {
        let mut function = Map::new();
        function.insert("name".into(), self.name.as_str().into());
        if let Some(description) = &self.description {
            function.insert("description".into(), description.as_str().into());
        }
        function.insert("parameters".into(), self.parameters.clone());
        json!({ "type": "function", "function": function })
    }
}

/// Whether an answer has to call a function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// The model decides.
    #[default]
    Auto,
    /// The answer must not call a function.
    None,
    /// The answer must call at least one function.
    Required,
    /// The answer must call this function.
    Named(String),
}

/// A call of a function by a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    /// The function's name.
    pub name: String,
    /// The arguments, a JSON object.
    pub arguments: String,
}

impl ToolCall {
    /// Returns a call with the JSON object in `arguments`; `None` if it is something else, or if there is no name. An
    /// empty text stands for no arguments.
    fn new(name: &str, arguments: &str) -> Option<Self> {
        let arguments = match arguments.trim() {
            "" => "{}",
            text => text,
        };
        Self::with(name, serde_json::from_str(arguments).ok()?)
    }

    /// Returns a call; `None` if there is no name.
    fn with(name: &str, arguments: Map<String, Value>) -> Option<Self> {
        (!name.is_empty()).then(|| Self {
            name: name.to_owned(),
            arguments: Value::Object(arguments).to_string(),
        })
    }

    /// Parses the JSON of a model's call. The arguments are in `arguments` or `parameters`, as an object or as its
    /// text.
    fn from_json(value: &Value) -> Option<Self> {
        let value = value
            .get("function")
            .filter(|function| function.is_object())
            .unwrap_or(value);
        let name = value.get("name").or_else(|| value.get("tool_name"))?;
        let name = name.as_str().filter(|name| !name.is_empty())?;
        let arguments = match value.get("arguments").or_else(|| value.get("parameters"))? {
            arguments @ Value::Object(_) => arguments.to_string(),
            Value::String(text) => serde_json::from_str::<Map<String, Value>>(text)
                .ok()
                .map(|_| text.clone())?,
            Value::Null => "{}".into(),
            _ => return None,
        };
        Some(Self {
            name: name.to_owned(),
            arguments,
        })
    }

    /// Parses one call, or an array of calls.
    fn all_from_json(value: &Value) -> Option<Vec<Self>> {
        match value {
            Value::Array(calls) if !calls.is_empty() => calls.iter().map(Self::from_json).collect(),
            Value::Object(_) => Self::from_json(value).map(|call| vec![call]),
            _ => None,
        }
    }
}

/// A part of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnswerPart {
    /// Text for the user.
    Text(String),
    /// A whole call.
    Call(ToolCall),
}

/// A further piece of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnswerDelta {
    /// Text for the user.
    Text(String),
    /// A further piece of the model's reasoning.
    Reasoning(String),
    /// The beginning of a call of the function with this name.
    Call(String),
    /// A further piece of the latest call's arguments, which are a JSON object.
    Arguments(String),
}

/// Returns whether a chat template lists functions.
pub fn template_lists_tools(template: &str) -> bool {
    template.contains("tools")
}

/// Returns instructions for a model whose template does not list functions, to be added to its system message.
pub fn instructions(tools: &[Tool]) -> String {
    let list: String = tools
        .iter()
        .map(|tool| format!("{}\n", tool.to_json()))
        .collect();
    format!(
        "You may call one or more functions to help with the user's request. These are the functions, each with a JSON \
         schema of its arguments:\n<tools>\n{list}</tools>\n\nFor each call write a JSON object with the function's name \
         and its arguments between <tool_call> and </tool_call>:\n<tool_call>\n{{\"name\": \"the function's name\", \
         \"arguments\": {{\"an argument\": \"its value\"}}}}\n</tool_call>"
    )
}
