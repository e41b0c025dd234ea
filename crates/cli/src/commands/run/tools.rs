//! `--mcp`: tools of MCP servers, which the model may call while it answers.

use std::io::{IsTerminal, Write};

use anyhow::{Result, ensure};
use serde::Serialize;
use triad_engine::Model;

/// Calls of tools, round by round, before an answer has to be complete.
pub const MAX_ROUNDS: usize = 8;
/// Calls of one round that are made.
pub const MAX_CALLS: usize = 16;

/// The arguments for tools.
#[cfg_attr(not(feature = "mcp"), allow(dead_code, reason = "no tool is called"))]
#[derive(clap::Args)]
pub struct ToolArguments {
    /// Let the model call the tools of an MCP server: NAME=COMMAND, NAME=URL, a URL (streamable HTTP), or a JSON file with
    /// `mcpServers`; may be given several times. Each call is shown and asked for
    #[arg(long, value_name = "SERVER", conflicts_with = "raw")]
    mcp: Vec<String>,
    /// Call tools without asking, as in scripts
    #[arg(long, requires = "mcp")]
    mcp_yes: bool,
    /// Seconds that a call of a tool may take
    #[arg(long, value_name = "SECONDS", default_value = "60", requires = "mcp", value_parser = clap::value_parser!(u64).range(1..=3600))]
    mcp_timeout: u64,
}

/// A call that the model made.
#[cfg_attr(not(feature = "mcp"), allow(dead_code, reason = "no tool is called"))]
#[derive(Clone, Debug, Serialize)]
pub struct Called {
    /// The name of the server; `None` if there is no such tool.
    server: Option<String>,
    tool: String,
    arguments: serde_json::Value,
    outcome: Outcome,
    /// Bytes of the result that the model got.
    result_bytes: usize,
}

/// How a call ended.
#[cfg_attr(not(feature = "mcp"), allow(dead_code, reason = "no tool is called"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Outcome {
    Done,
    /// The tool reported an error, or could not be called.
    Failed,
    /// The user did not allow it.
    Declined,
}

impl ToolArguments {
    /// Returns whether there are servers.
    pub fn is_given(&self) -> bool {
        !self.mcp.is_empty()
    }
}

#[cfg(not(feature = "mcp"))]
mod connected {
    use anyhow::{Result, bail};
    use triad_console::version;
    use triad_frontend::tool_calls::{Tool, ToolCall};

    use super::{Called, ToolArguments};

    /// No servers: the program was built without them.
    pub enum Tools {}

    impl Tools {
        pub fn connect(_: &ToolArguments) -> Result<Self> {
            bail!(version::without("mcp"))
        }

        pub fn tools(&self) -> &[Tool] {
            match *self {}
        }

        pub fn call(&self, _: &ToolCall, _: &dyn Fn() -> bool) -> Result<(String, Called)> {
            match *self {}
        }
    }
}

#[cfg(feature = "mcp")]
mod connected {
    use std::cell::RefCell;
    use std::collections::BTreeSet;
    use std::time::Duration;

    use anyhow::{Result, ensure};
    use serde_json::{Map, Value};
    use triad_frontend::tool_calls::{Tool, ToolCall};
    use triad_mcp::{Error, RemoteTool, Servers};

    use super::{Answer, Called, Outcome, ToolArguments, ask, can_ask};
    use crate::mcp_tools::NamedTools;
    use triad_console::interrupt::Interrupted;
    use triad_console::output;

    /// Characters of the beginning and of the end of a long argument that are shown.
    const SHOWN: usize = 300;

    /// Connected servers, and what the user allowed.
    pub struct Tools {
        servers: Servers,
        /// The tools as the model sees them, and where each is.
        tools: Vec<Tool>,
        remote: Vec<RemoteTool>,
        allows_all: bool,
        /// Tools that the user allows for good, by their index.
        allowed: RefCell<BTreeSet<usize>>,
    }

    impl Tools {
        /// Connects to the servers.
        pub fn connect(arguments: &ToolArguments) -> Result<Self> {
            ensure!(
                arguments.mcp_yes || can_ask(),
                "calls of tools are asked for at a terminal, and standard input is none: expected --mcp-yes"
            );
            let call_time = Duration::from_secs(arguments.mcp_timeout);
            let NamedTools {
                servers,
                tools,
                remote,
            } = NamedTools::connect(&arguments.mcp, call_time)?;
            Ok(Self {
                servers,
                tools,
                remote,
                allows_all: arguments.mcp_yes,
                allowed: RefCell::default(),
            })
        }

        /// Returns the tools as the model sees them.
        pub fn tools(&self) -> &[Tool] {
            &self.tools
        }

        /// Makes a call if the user allows it. Returns the text that the model gets. Only the end by Ctrl-C is an error.
        pub fn call(
            &self,
            call: &ToolCall,
            is_cancelled: &dyn Fn() -> bool,
        ) -> Result<(String, Called)> {
            let index = self.tools.iter().position(|tool| tool.name == call.name);
            let arguments: Value = serde_json::from_str(&call.arguments).unwrap_or(Value::Null);
            let called = |outcome, text: &str| Called {
                server: index.map(|index| self.servers.name(self.remote[index].server).to_owned()),
                tool: call.name.clone(),
                arguments: arguments.clone(),
                outcome,
                result_bytes: text.len(),
            };
            let with = |outcome, text: String| {
                let called = called(outcome, &text);
                (text, called)
            };
            let Some(index) = index else {
                let names: Vec<_> = self.tools.iter().map(|tool| tool.name.as_str()).collect();
                let text = format!(
                    "error: there is no tool {}, only {}",
                    call.name,
                    names.join(", ")
                );
                return Ok(with(Outcome::Failed, text));
            };
            let Value::Object(arguments) = &arguments else {
                let text = "error: the arguments are not a JSON object".to_owned();
                return Ok(with(Outcome::Failed, text));
            };
            let is_allowed = self.is_allowed(index, call, arguments)?;
            if is_cancelled() {
                return Err(Interrupted.into());
            }
            if !is_allowed {
                let text = "error: the user declined this call".to_owned();
                return Ok(with(Outcome::Declined, text));
            }
            let arguments: Map<String, Value> = arguments.clone();
            let result = self
                .servers
                .call(&self.remote[index], arguments, is_cancelled);
            Ok(match result {
                Ok(result) if result.is_error => with(Outcome::Failed, result.text),
                Ok(result) => with(Outcome::Done, result.text),
                Err(Error::Cancelled) => return Err(Interrupted.into()),
                Err(error) => {
                    let error = format!("error: {:#}", anyhow::Error::new(error));
                    output::note(&error);
                    with(Outcome::Failed, error)
                }
            })
        }

        /// Shows a call, and asks for it unless it is allowed.
        fn is_allowed(
            &self,
            index: usize,
            call: &ToolCall,
            arguments: &Map<String, Value>,
        ) -> Result<bool> {
            let server = self.servers.name(self.remote[index].server);
            // What is called, not what the model wrote: all arguments, and both ends of long ones.
            let short: Map<_, _> = arguments
                .iter()
                .map(|(name, value)| (name.clone(), shortened(value)))
                .collect();
            let is_short = short != *arguments;
            let describe = |arguments: Map<String, Value>| {
                format!("{server}: {}({})", call.name, Value::Object(arguments))
            };
            let shown = describe(short);
            let whole = is_short.then(|| describe(arguments.clone()));
            if self.allows_all || self.allowed.borrow().contains(&index) {
                output::note(&shown);
                return Ok(true);
            }
            Ok(match ask(&shown, whole.as_deref())? {
                Answer::Yes => true,
                Answer::No => false,
                Answer::Always => {
                    self.allowed.borrow_mut().insert(index);
                    true
                }
            })
        }
    }

    /// Returns an argument as it is shown.
    fn shortened(value: &Value) -> Value {
        let text = match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let count = text.chars().count();
        if count <= 3 * SHOWN {
            return value.clone();
        }
        let head: String = text.chars().take(SHOWN).collect();
        let tail: String = text.chars().skip(count - SHOWN).collect();
        format!("{head} … {} further characters … {tail}", count - 2 * SHOWN).into()
    }
}

pub use connected::Tools;

/// Connects to the servers of `--mcp`, if there are some. `name` is that of the model.
pub fn connect(
    arguments: &ToolArguments,
    (model, name): (&Model, &str),
    has_form: bool,
) -> Result<Option<Tools>> {
    if !arguments.is_given() {
        return Ok(None);
    }
    ensure!(
        model.chat_template().is_some(),
        "--mcp needs a model with a chat template, which {name} has not"
    );
    ensure!(
        !has_form,
        "an answer in a form calls no tools: expected --mcp or one of --schema, --grammar and --regex"
    );
    Tools::connect(arguments).map(Some)
}

/// The user's answer to a call.
#[cfg_attr(not(feature = "mcp"), allow(dead_code, reason = "no tool is called"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Yes,
    No,
    Always,
}

/// Returns whether the user can be asked.
#[cfg_attr(not(feature = "mcp"), allow(dead_code, reason = "no tool is called"))]
fn can_ask() -> bool {
    std::io::stdin().is_terminal()
}

/// Asks for a call until the answer is one of those that there are. The end of the input is a no. `whole` is the call
/// without omissions, if `call` has some.
#[cfg_attr(not(feature = "mcp"), allow(dead_code, reason = "no tool is called"))]
fn ask(call: &str, whole: Option<&str>) -> Result<Answer> {
    let mut errors = std::io::stderr().lock();
    // What was typed before answers another question.
    triad_console::interrupt::forget_typed();
    triad_console::output::note(call);
    let more = whole.map_or("", |_| ", w = show the whole call");
    loop {
        write!(
            errors,
            "call it? y = yes, n = no, a = always this tool{more}: "
        )?;
        errors.flush()?;
        let mut line = String::new();
        if std::io::stdin().read_line(&mut line)? == 0 {
            return Ok(Answer::No);
        }
        if let Some(whole) = whole.filter(|_| ["w", "W"].contains(&line.trim())) {
            triad_console::output::note(whole);
            continue;
        }
        if let Some(answer) = answer(&line) {
            return Ok(answer);
        }
    }
}

fn answer(line: &str) -> Option<Answer> {
    Some(match line.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" => Answer::Yes,
        "n" | "no" => Answer::No,
        "a" | "always" => Answer::Always,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_clear_yes_calls_a_tool() {
        assert_eq!(answer("y\n"), Some(Answer::Yes));
        assert_eq!(answer(" NO "), Some(Answer::No));
        assert_eq!(answer("a"), Some(Answer::Always));
        for unclear in ["", "\n", "yy", "maybe", "1"] {
            assert_eq!(answer(unclear), None, "{unclear:?}");
        }
    }
}
