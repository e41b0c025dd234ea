//! Tools that completions may call, as described by requests.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use triad_engine::constraint::ConstraintFactory;
use triad_frontend::Error as FrontendError;
use triad_frontend::tool_calls::{
    AnswerForm, Tool, ToolChoice, ToolFormat, Words, grammar, grammar_of_json_or_calls,
    grammar_of_text_and_calls,
};
use triad_grammar::GrammarSource;

use crate::error::{ApiError, ApiResult};
use crate::forms::{self, AskedForm, Asker};
use crate::left_out::{self, own};
use crate::tool_fields::{
    Allowed, CHAT_NAME, ChatTool, Function, MessageTool, MessageToolChoice, ResponseTool,
    ToolChoiceField,
};

/// Maximum number of tools per request.
const MAX_TOOLS: usize = 128;
/// Maximum time of the search for the tool whose schema is invalid.
const LONGEST_SEARCH: Duration = Duration::from_secs(10);

/// The tools of a request, and how the model may use them.
#[derive(Debug, Default)]
pub(crate) struct ToolUse {
    tools: Vec<Tool>,
    /// Whether each tool is strict.
    strict: Vec<bool>,
    /// The place of each tool in the request's list.
    places: Vec<usize>,
    choice: ToolChoice,
    is_parallel: bool,
    /// The field of `tools[…]` that contains the schema of the arguments.
    schema_field: &'static str,
    /// The kinds of tools that this server does not run, and that the prompt does not list.
    left_out: Vec<String>,
}

/// The constraint of a completion that may call tools.
pub(crate) struct ToolForm {
    /// `None` if calls are parsed from any text.
    pub(crate) form: Option<Arc<dyn ConstraintFactory>>,
    pub(crate) kind: AnswerForm,
    /// The names of functions whose schemas do not constrain the arguments of calls.
    pub(crate) left_out: Vec<String>,
}

impl ToolForm {
    /// Returns that of any text, of which calls of `tools` are read.
    fn without(tools: &[Tool]) -> Self {
        Self {
            form: None,
            kind: AnswerForm::Any,
            left_out: tools.iter().map(|tool| tool.name.clone()).collect(),
        }
    }
}

/// Reads a choice, and the functions that it allows if it does not allow all. The tool's name is in `field`.
fn read(
    choice: Option<&ToolChoiceField>,
    field: &str,
) -> ApiResult<(Option<ToolChoice>, Option<Allowed>)> {
    let read = choice.map(|choice| choice.read(field)).transpose()?;
    Ok(read.map_or((None, None), |(choice, allowed)| (Some(choice), allowed)))
}

/// A tool of a request, independent of the API.
struct Given {
    /// The place in the request's list.
    index: usize,
    name: String,
    description: Option<String>,
    parameters: Option<Value>,
    strict: bool,
}

impl ToolUse {
    /// Reads the tools of `/v1/chat/completions`.
    ///
    /// # Errors
    /// If a field has an invalid value.
    pub(crate) fn of_chat(
        tools: Option<Vec<ChatTool>>,
        choice: Option<&ToolChoiceField>,
        is_parallel: Option<bool>,
    ) -> ApiResult<Self> {
        let (choice, allowed) = read(choice, CHAT_NAME)?;
        let required = choice.as_ref().filter(|_| allowed.is_none());
        let (tools, left_out) = own(tools, required, |tool| {
            (tool.kind != "function").then_some(&*tool.kind)
        })?;
        let given = tools.into_iter().map(|(index, tool)| {
            let field = format!("tools[{index}].function");
            let function = tool
                .function
                .ok_or_else(|| ApiError::field(&field, "it is missing"))?;
            let Function {
                name,
                description,
                parameters,
                strict,
            } = function;
            Ok(Given {
                index,
                name,
                description,
                parameters,
                strict: strict.unwrap_or(false),
            })
        });
        let given = given.collect::<ApiResult<_>>()?;
        let place = ("function.", "parameters");
        Self::new((given, left_out), choice, is_parallel, place)?.only(allowed)
    }

    /// Reads the tools of `/v1/responses`.
    ///
    /// # Errors
    /// As [`ToolUse::of_chat`].
    pub(crate) fn of_response(
        tools: Option<Vec<ResponseTool>>,
        choice: Option<&ToolChoiceField>,
        is_parallel: Option<bool>,
    ) -> ApiResult<Self> {
        let (choice, allowed) = read(choice, "tool_choice.name")?;
        let required = choice.as_ref().filter(|_| allowed.is_none());
        let (tools, left_out) = own(tools, required, |tool| {
            (tool.kind != "function").then_some(&*tool.kind)
        })?;
        let given = tools.into_iter().map(|(index, tool)| {
            let ResponseTool {
                name,
                description,
                parameters,
                strict,
                ..
            } = tool;
            let name = name
                .ok_or_else(|| ApiError::field(&format!("tools[{index}].name"), "it is missing"))?;
            Ok(Given {
                index,
                name,
                description,
                parameters,
                strict: strict.unwrap_or(false),
            })
        });
        let given = given.collect::<ApiResult<_>>()?;
        Self::new((given, left_out), choice, is_parallel, ("", "parameters"))?.only(allowed)
    }

    /// Reads the tools of `/v1/messages`.
    ///
    /// # Errors
    /// As [`ToolUse::of_chat`].
    pub(crate) fn of_message(
        tools: Option<Vec<MessageTool>>,
        choice: Option<&MessageToolChoice>,
    ) -> ApiResult<Self> {
        let is_parallel = choice
            .and_then(|choice| choice.disable_parallel_tool_use)
            .map(|disabled| !disabled);
        let choice = choice.map(MessageToolChoice::read).transpose()?;
        let (tools, left_out) = own(tools, choice.as_ref(), |tool| {
            tool.kind.as_deref().filter(|kind| *kind != "custom")
        })?;
        let given = tools.into_iter().map(|(index, tool)| {
            let field = format!("tools[{index}].input_schema");
            let schema = tool
                .input_schema
                .ok_or_else(|| ApiError::field(&field, "it is missing"))?;
            Ok(Given {
                index,
                name: tool.name,
                description: tool.description,
                parameters: Some(schema),
                strict: tool.strict.unwrap_or(false),
            })
        });
        let given = given.collect::<ApiResult<_>>()?;
        Self::new((given, left_out), choice, is_parallel, ("", "input_schema"))
    }

    fn new(
        (given, left_out): (Vec<Given>, Vec<String>),
        choice: Option<ToolChoice>,
        is_parallel: Option<bool>,
        (place, schema): (&'static str, &'static str),
    ) -> ApiResult<Self> {
        if given.len() > MAX_TOOLS {
            let message = format!("{} functions, expected at most {MAX_TOOLS}", given.len());
            return Err(ApiError::field("tools", message));
        }
        let (mut tools, mut strict, mut names) = (Vec::new(), Vec::new(), BTreeSet::new());
        let mut places = Vec::new();
        for Given {
            index,
            name,
            description,
            parameters,
            strict: is_strict,
        } in given
        {
            let json = json!({"name": name, "description": description, "parameters": parameters});
            let tool = Tool::from_json(&json).map_err(|error| match error {
                FrontendError::Tool { field, expected } => {
                    let field = if field == "parameters" { schema } else { field };
                    ApiError::field(
                        &format!("tools[{index}].{place}{field}"),
                        format!("expected {expected}"),
                    )
                }
                error => error.into(),
            })?;
            if !names.insert(name) {
                let field = format!("tools[{index}].{place}name");
                return Err(ApiError::field(
                    &field,
                    format!("another function is also called {}", tool.name),
                ));
            }
            tools.push(tool);
            strict.push(is_strict);
            places.push(index);
        }
        // The other choices let a request without tools be answered in text.
        if tools.is_empty() && matches!(choice, Some(ToolChoice::Required)) {
            return Err(ApiError::field(
                "tool_choice",
                "there are no tools to choose from",
            ));
        }
        if let Some(ToolChoice::Named(name)) = &choice
            && !tools.iter().any(|tool| tool.name == *name)
        {
            return Err(ApiError::field(
                "tool_choice",
                format!("{name} is not among the tools"),
            ));
        }
        let choice = choice.unwrap_or_default();
        let schema_field = if place.is_empty() {
            schema
        } else {
            "function.parameters"
        };
        Ok(Self {
            tools,
            strict,
            places,
            choice,
            is_parallel: is_parallel.unwrap_or(true),
            schema_field,
            left_out,
        })
    }

    /// Keeps only the functions that the choice allows: the prompt lists no others.
    ///
    /// # Errors
    /// If one of them is not among the tools.
    fn only(mut self, allowed: Option<Allowed>) -> ApiResult<Self> {
        let Some(allowed) = allowed else {
            return Ok(self);
        };
        for (field, name) in &allowed {
            if !self.tools.iter().any(|tool| tool.name == *name) {
                let message = format!("{name} is not among the tools");
                return Err(ApiError::field(field, message));
            }
        }
        let is_allowed = |tool: &Tool| allowed.iter().any(|(_, name)| *name == tool.name);
        let keeps: Vec<_> = self.tools.iter().map(is_allowed).collect();
        let mut kept = keeps.iter();
        self.tools.retain(|_| *kept.next().unwrap_or(&false));
        let mut kept = keeps.iter();
        self.strict.retain(|_| *kept.next().unwrap_or(&false));
        let mut kept = keeps.iter();
        self.places.retain(|_| *kept.next().unwrap_or(&false));
        Ok(self)
    }

    /// Returns the kinds of tools that the prompt does not list.
    pub(crate) fn left_out(&self) -> &[String] {
        &self.left_out
    }

    /// Adds kinds of which the prompt has nothing.
    pub(crate) fn leave_out(&mut self, kinds: &[String]) {
        for kind in kinds {
            left_out::add(&mut self.left_out, kind);
        }
    }

    /// Returns whether the model may call a tool.
    pub(crate) fn is_allowed(&self) -> bool {
        !self.tools.is_empty() && self.choice != ToolChoice::None
    }

    /// Returns whether the model must call a tool.
    pub(crate) fn is_required(&self) -> bool {
        matches!(self.choice, ToolChoice::Required | ToolChoice::Named(_))
    }

    pub(crate) fn is_parallel(&self) -> bool {
        self.is_parallel
    }

    /// Estimates the bytes of the tools' names, descriptions and schemas.
    pub(crate) fn bytes(&self) -> usize {
        let of_one = |tool: &Tool| {
            tool.name.len()
                + tool.description.as_ref().map_or(0, String::len)
                + crate::messages::bytes(std::slice::from_ref(&tool.parameters))
        };
        self.tools.iter().map(of_one).sum()
    }

    /// Returns the tools that the prompt lists: none if the model may not call any.
    pub(crate) fn listed(&self) -> &[Tool] {
        if self.is_allowed() { &self.tools } else { &[] }
    }

    /// Returns the constraint of the completion, its kind, and the functions whose schemas it does not have. If the model
    /// must call a tool, the constraint allows only calls. If a call is optional, it allows text and calls, provided that
    /// calls in `format` can be told from text. If a JSON format is `asked` for as well, it allows that JSON or calls.
    ///
    /// # Errors
    /// As [`forms::compile`], if the constraint is required or a tool is strict.
    pub(crate) fn form(
        &self,
        asker: Asker<'_>,
        format: (ToolFormat, &Words),
        asked: Option<&AskedForm>,
    ) -> ApiResult<ToolForm> {
        let must = self.is_required();
        if let Some(asked) = asked.filter(|_| !must) {
            return Ok(ToolForm {
                form: Some(self.json_or_calls(asker, format, asked)?),
                kind: AnswerForm::JsonOrCalls,
                left_out: Vec::new(),
            });
        }
        let source = if must {
            grammar(format, &self.tools, &self.choice, self.is_parallel)?
        } else {
            grammar_of_text_and_calls(format, self.listed(), self.is_parallel)
        };
        let Some(source) = source else {
            return Ok(ToolForm::without(self.listed()));
        };
        match forms::compile(asker, "tools", &source) {
            Ok(form) => Ok(ToolForm {
                form: Some(form),
                kind: if must {
                    AnswerForm::Calls
                } else {
                    AnswerForm::TextAndCalls
                },
                left_out: Vec::new(),
            }),
            Err(error) if error.status.is_server_error() => Err(error),
            Err(error) if must => Err(self.wrong_schema(asker, |_| true).unwrap_or(error)),
            Err(_) => self.without_unsupported(asker, format),
        }
    }

    /// Returns the constraint of an optional call without the schemas that are not supported.
    ///
    /// # Errors
    /// As [`forms::compile`], for the schema of a strict tool.
    fn without_unsupported(
        &self,
        asker: Asker<'_>,
        format: (ToolFormat, &Words),
    ) -> ApiResult<ToolForm> {
        if let Some(error) = self.wrong_schema(asker, |index| self.strict[index]) {
            return Err(error);
        }
        let start = Instant::now();
        let (mut tools, mut left_out) = (self.listed().to_vec(), Vec::new());
        for tool in &mut tools {
            if start.elapsed() > LONGEST_SEARCH {
                return Ok(ToolForm::without(self.listed()));
            }
            let source = GrammarSource::JsonSchema(tool.parameters.to_string());
            match forms::compile(asker, "tools", &source) {
                Ok(_) => {}
                Err(error) if error.status.is_server_error() => return Err(error),
                Err(_) => {
                    tool.parameters = json!({"type": "object"});
                    left_out.push(tool.name.clone());
                }
            }
        }
        let source = grammar_of_text_and_calls(format, &tools, self.is_parallel);
        let form = source.map(|source| forms::compile(asker, "tools", &source));
        match form {
            Some(Ok(form)) => Ok(ToolForm {
                form: Some(form),
                kind: AnswerForm::TextAndCalls,
                left_out,
            }),
            Some(Err(error)) if error.status.is_server_error() => Err(error),
            // Each is supported, but not all together.
            _ => Ok(ToolForm::without(self.listed())),
        }
    }

    /// Returns the constraint that allows tool calls or the JSON that is `asked` for.
    fn json_or_calls(
        &self,
        asker: Asker<'_>,
        format: (ToolFormat, &Words),
        asked: &AskedForm,
    ) -> ApiResult<Arc<dyn ConstraintFactory>> {
        let unsupported = || {
            let message = "this model does not support this format with optional tool calls: expected tool_choice none or \
                           required";
            ApiError::unsupported(asked.field, message)
        };
        let schema = asked.schema().ok_or_else(unsupported)?;
        let source = grammar_of_json_or_calls(format, &self.tools, &schema, self.is_parallel)
            .ok_or_else(unsupported)?;
        forms::compile(asker, "tools", &source).map_err(|error| {
            if error.status.is_server_error() {
                return error;
            }
            // Either `asked` or a tool's schema is invalid: return the error of the one that is.
            asked
                .compile(asker)
                .err()
                .or_else(|| self.wrong_schema(asker, |_| true))
                .unwrap_or(error)
        })
    }

    /// Returns the error of the first invalid schema among the tools that `is_asked` selects.
    fn wrong_schema(&self, asker: Asker<'_>, is_asked: impl Fn(usize) -> bool) -> Option<ApiError> {
        let start = Instant::now();
        let asked = self
            .tools
            .iter()
            .enumerate()
            .filter(|(index, _)| is_asked(*index));
        let mut errors = asked.filter_map(|(index, tool)| {
            if start.elapsed() > LONGEST_SEARCH {
                return Some(ApiError::field(
                    "tools",
                    "their schemas take too long to compile: make them simpler",
                ));
            }
            let source = GrammarSource::JsonSchema(tool.parameters.to_string());
            forms::compile(
                asker,
                &format!("tools[{}].{}", self.places[index], self.schema_field),
                &source,
            )
            .err()
        });
        errors.next()
    }
}
