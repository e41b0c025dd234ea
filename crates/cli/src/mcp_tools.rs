//! Connects to MCP servers, and names their tools for a model.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Result;
use serde_json::json;
use triad_console::interrupt::{Interrupted, on_interrupt};
use triad_console::{output, progress};
use triad_frontend::tool_calls::Tool;
use triad_mcp::{Config, Error, Limits, RemoteTool, Servers};

/// Connected servers with their tools.
pub struct NamedTools {
    pub servers: Servers,
    /// The tools as models see them.
    pub tools: Vec<Tool>,
    /// Where each of them is.
    pub remote: Vec<RemoteTool>,
}

impl NamedTools {
    /// Connects to the servers that `given` names, as in `--mcp`. Notes what is not followed. A call may take `call_time`.
    pub fn connect(given: &[String], call_time: Duration) -> Result<Self> {
        let config = Config::read(given)?;
        if !config.not_followed.is_empty() {
            let fields = config.not_followed.join(", ");
            output::note(&format!(
                "note: fields of MCP servers that Triad does not follow: {fields}"
            ));
        }
        let limits = Limits {
            call_time,
            ..Limits::default()
        };
        let cancelled = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&cancelled);
        let guard = on_interrupt(move || flag.store(true, Ordering::Relaxed));
        let mut shown = None;
        let is_cancelled = || cancelled.load(Ordering::Relaxed);
        let servers = Servers::connect(&config.servers, limits, &is_cancelled, &mut |name| {
            shown = Some(progress::spinner(format!(
                "connecting to the MCP server {name}"
            )));
        });
        drop((shown, guard));
        let servers = match servers {
            Err(Error::Cancelled) => return Err(Interrupted.into()),
            servers => servers?,
        };
        let (tools, remote) = named(&servers);
        if tools.is_empty() {
            output::note("note: the MCP servers have no tools");
        }
        Ok(Self {
            servers,
            tools,
            remote,
        })
    }
}

/// Returns the name of a tool with its server's in front, in the letters that names of tools have.
fn full_name(servers: &Servers, tool: &RemoteTool) -> String {
    let is_plain = |letter: &char| letter.is_ascii_alphanumeric() || "_-.".contains(*letter);
    let server = servers.name(tool.server).chars();
    let server: String = server
        .map(|letter| Some(letter).filter(is_plain).unwrap_or('_'))
        .collect();
    format!("{server}_{}", tool.name)
}

/// Returns the tools under names that differ. A name that several servers have gets the server's name in front, and so does
/// one that is another tool's name with its server's: no server takes the name that stands for a tool of another one.
fn named(servers: &Servers) -> (Vec<Tool>, Vec<RemoteTool>) {
    let all = servers.tools();
    let (mut tools, mut remote) = (Vec::<Tool>::new(), Vec::new());
    for tool in all {
        let mut others = all.iter().filter(|other| other.server != tool.server);
        let is_shared =
            others.any(|other| other.name == tool.name || full_name(servers, other) == tool.name);
        let name = if is_shared {
            full_name(servers, tool)
        } else {
            tool.name.clone()
        };
        let value = json!({
            "name": name,
            "description": tool.description,
            "parameters": tool.schema,
        });
        let server = servers.name(tool.server);
        let read = match Tool::from_json(&value) {
            _ if tools.iter().any(|other| other.name == name) => {
                Err("another tool has this name".to_owned())
            }
            read => read.map_err(|error| error.to_string()),
        };
        match read {
            Ok(read) => {
                tools.push(read);
                remote.push(tool.clone());
            }
            Err(error) => output::note(&format!(
                "note: the tool {} of the MCP server {server} is left out: {error}",
                name.escape_debug()
            )),
        }
    }
    (tools, remote)
}
