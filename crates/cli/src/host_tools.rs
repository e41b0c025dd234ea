//! `triad serve --mcp`: tools of MCP servers for the server's page.

use std::fmt;
use std::time::Duration;

use anyhow::Result;
use serde_json::{Map, Value};
use triad_console::output;
use triad_mcp::Error;
use triad_server::{HostTool, ToolHost, ToolResult};

use crate::mcp_tools::NamedTools;

/// The time of a call.
const CALL_TIME: Duration = Duration::from_secs(60);

/// Tools of connected MCP servers.
pub struct PageTools {
    named: NamedTools,
    tools: Vec<HostTool>,
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
        Ok(Self { named, tools })
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
        let Some(remote) = self.named.remote.get(index) else {
            return failed("there is no such tool");
        };
        match self.named.servers.call(remote, arguments, is_cancelled) {
            Ok(output) => ToolResult {
                text: output.text,
                is_error: output.is_error,
            },
            // What the server says is for the model, as a result is.
            Err(Error::Refused { message, .. }) => failed(&message),
            // Another cause may name what is on this machine, which is not for clients.
            Err(error) => {
                let error = anyhow::Error::new(error);
                output::note(&format!("note: a call of {}: {error:#}", remote.name));
                failed("the call failed: the server's own output says why")
            }
        }
    }
}

fn failed(reason: &str) -> ToolResult {
    ToolResult {
        text: format!("error: {reason}"),
        is_error: true,
    }
}
