//! Functions that a model may call: how its prompt lists them, how its answers call them, and what form an answer has that
//! must call one.
//!
//! Models write calls as their chat template does; [`ToolFormat::of_template`] finds out how. [`chat::encode_with_tools`]
//! makes the prompt, a [`ToolCallParser`] takes an answer apart while it comes, and [`grammar`] is the form of an answer
//! that has to be a call. An [`AnswerReader`] passes arguments on piece by piece where an answer has such a form.
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

mod form;
mod parser;
mod python;
mod stream;
#[cfg(test)]
mod stream_tests;
#[cfg(test)]
mod tests;

pub use form::{grammar, grammar_of_json_or_calls, grammar_of_text_and_calls};
pub use parser::ToolCallParser;
pub use stream::{AnswerDelta, AnswerForm, AnswerReader};

use serde_json::{Map, Value, json};

use crate::error::{Error, Result};

/// A function that a model may call.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    /// Its name: letters, digits, `_`, `-` and `.`, at most 64.
    pub name: String,
    /// What it does.
    pub description: Option<String>,
    /// A JSON schema of its arguments, an object.
    pub parameters: Value,
}

impl Tool {
    /// From OpenAI's form: `{"type": "function", "function": {"name", "description", "parameters"}}`, or what is in its
    /// `function` alone.
    ///
    /// # Errors
    /// If a field is missing or of the wrong type, which the error names.
    pub fn from_json(value: &Value) -> Result<Self> {
        let function = value.get("function").unwrap_or(value);
        let wrong = |field, expected| Error::Tool { field, expected };
        let name = function["name"].as_str().ok_or(wrong("name", "a text"))?;
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
        if !(1..=64).contains(&name.len()) || !name.bytes().all(is_name) {
            return Err(wrong("name", "1 to 64 letters, digits, _, - and ."));
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

    /// OpenAI's form, as chat templates expect it.
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
    /// It does not.
    None,
    /// One at least, whichever.
    Required,
    /// This one.
    Named(String),
}

/// A call of a function by a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    /// The function.
    pub name: String,
    /// A JSON object.
    pub arguments: String,
}

impl ToolCall {
    /// From what models write: `arguments` or `parameters`, as an object or as the text of one.
    fn from_json(value: &Value) -> Option<Self> {
        let value = value
            .get("function")
            .filter(|function| function.is_object())
            .unwrap_or(value);
        let name = value.get("name")?.as_str()?;
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

    /// Those of one object, or of an array of them.
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

/// How a model writes calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolFormat {
    /// `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, anywhere in an answer and any number of them: Hermes, Qwen,
    /// SmolLM2, where an array of calls may be in it, and models whose template knows no functions.
    Hermes,
    /// An answer that is `{"name": …, "parameters": {…}}`: Llama 3.
    Llama3,
    /// `[TOOL_CALLS][{"name": …, "arguments": {…}}]`; the word is a control token, of which texts have nothing: Mistral.
    Mistral,
    /// An answer that is `[name(argument=value, …), …]`, as Python writes it, perhaps in a block of code: Gemma.
    Python,
}

impl ToolFormat {
    /// What the text of a chat template shows of it.
    pub fn of_template(template: Option<&str>) -> Self {
        let template = template.unwrap_or_default();
        let has = |text: &str| template.contains(text);
        if has("<tool_call>") {
            Self::Hermes
        } else if has("[TOOL_CALLS]") {
            Self::Mistral
        } else if has("tool_code") || has("func_name1(params_name1") {
            Self::Python
        } else if has("<|python_tag|>") || (has("<|start_header_id|>") && has("\"parameters\"")) {
            Self::Llama3
        } else {
            Self::Hermes
        }
    }

    /// The field of a call with its arguments.
    fn arguments(self) -> &'static str {
        if self == Self::Llama3 {
            "parameters"
        } else {
            "arguments"
        }
    }
}

/// Whether a chat template lists functions by itself.
pub fn template_lists_tools(template: &str) -> bool {
    template.contains("tools")
}

/// Instructions for a model whose template lists no functions, as a part of its system message.
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
