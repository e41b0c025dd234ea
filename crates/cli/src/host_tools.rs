//! `triad serve --mcp`: tools of MCP servers for the server's page.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use serde_json::{Map, Value};
use triad_server::{HostTool, ToolHost, ToolResult};

use crate::mcp_tools::NamedTools;

/// The time of a call.
const CALL_TIME: Duration = Duration::from_secs(60);

/// Tools of connected MCP servers.
pub struct PageTools {
    named: NamedTools,
    tools: Vec<HostTool>,
    /// One call at a time: a server's bytes are counted for each call.
    turn: Mutex<()>,
}

impl PageTools {
    /// Connects to the servers of `--mcp`.
    pub fn connect(given: &[String]) -> Result<Self> {
        let named = NamedTools::connect(given, CALL_TIME)?;
        let host_tool =
            |(tool, remote): (&triad_frontend::tool_calls::Tool, &triad_mcp::RemoteTool)| {
                HostTool {
                    server: named.servers.name(remote.server).to_owned(),
                    name: tool.name.clone(),
                    description: remote.description.clone(),
                    parameters: remote.schema.clone(),
                }
            };
        let tools = named
            .tools
            .iter()
            .zip(&named.remote)
            .map(host_tool)
            .collect();
        Ok(Self {
            named,
            tools,
            turn: Mutex::default(),
        })
    }
}

impl fmt::Debug for PageTools {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_list().entries(&self.tools).finish()
    }
}

impl ToolHost for PageTools {
    fn tools(&self) -> &[HostTool] {
        &self.tools
    }

    fn call(
        &self,
        index: usize,
        arguments: Map<String, Value>,
        is_cancelled: &dyn Fn() -> bool,
    ) -> ToolResult {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(remote) = self.named.remote.get(index) else {
            return failed("there is no such tool");
        };
        match self.named.servers.call(remote, arguments, is_cancelled) {
            Ok(output) => ToolResult {
                text: output.text,
                is_error: output.is_error,
            },
            Err(error) => failed(&format!("{:#}", anyhow::Error::new(error))),
        }
    }
}

fn failed(reason: &str) -> ToolResult {
    ToolResult {
        text: format!("error: {reason}"),
        is_error: true,
    }
}
