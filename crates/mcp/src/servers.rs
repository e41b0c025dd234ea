//! Connected servers, their tools and calls.

use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use rmcp::ServiceExt;
use rmcp::model::{
    CallToolRequestParams, CallToolResult, ClientCapabilities, ClientConfig, ContentBlock,
    Implementation, PaginatedRequestParams, ResourceContents,
};
use rmcp::service::{RoleClient, RunningService, ServiceError};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::async_rw::AsyncRwTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use serde_json::{Map, Value};
use tokio::runtime::{Builder, Runtime};
use ureq::http::{HeaderName, HeaderValue};

use crate::config::{ServerConfig, Transport};
use crate::error::{Error, Result};
use crate::http::HttpClient;
use crate::meter::Meter;
use crate::stdio::{self, Process};

/// Pages of a list of tools that are read.
const MAX_PAGES: usize = 64;
/// The interval at which a running call checks whether the user ended it.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The time that a server gets to end by itself.
const END_TIME: Duration = Duration::from_secs(2);

/// Bounds of what servers send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The time to start, to connect and to list tools.
    pub start_time: Duration,
    /// The time of a call.
    pub call_time: Duration,
    /// The bytes that a server may send for one request.
    pub request_bytes: u64,
    /// The bytes of a call's result that are given to the model; the rest is cut off.
    pub result_bytes: usize,
    /// The number of tools of all servers together.
    pub tools: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            start_time: Duration::from_secs(60),
            call_time: Duration::from_secs(60),
            request_bytes: 16 << 20,
            result_bytes: 32 << 10,
            tools: 128,
        }
    }
}

/// A tool of a server.
#[derive(Clone, Debug, PartialEq)]
pub struct RemoteTool {
    /// The index of its server.
    pub server: usize,
    /// Its name at the server.
    pub name: String,
    /// Its description for the model.
    pub description: Option<String>,
    /// The JSON schema of its arguments.
    pub schema: Value,
}

/// The result of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolOutput {
    /// Its text for the model.
    pub text: String,
    /// Whether the tool reports an error.
    pub is_error: bool,
}

/// Connected servers. Dropped, they end.
pub struct Servers {
    /// `None` after the end.
    runtime: Option<Runtime>,
    servers: Vec<Server>,
    tools: Vec<RemoteTool>,
    limits: Limits,
}

struct Server {
    name: String,
    service: RunningService<RoleClient, ClientConfig>,
    /// `None` for a server that is reached by HTTP.
    process: Option<Process>,
    meter: Meter,
}

impl fmt::Debug for Servers {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("Servers")
            .field("tools", &self.tools)
            .finish_non_exhaustive()
    }
}

impl Servers {
    /// Starts and connects to servers, and lists their tools. `connecting` is called with each server's name before.
    /// `is_cancelled` is asked now and then.
    ///
    /// # Errors
    /// If a server cannot be started or reached, does not speak the protocol, or has more tools than allowed; or if
    /// `is_cancelled`.
    pub fn connect(
        configs: &[ServerConfig],
        limits: Limits,
        is_cancelled: &dyn Fn() -> bool,
        connecting: &mut dyn FnMut(&str),
    ) -> Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("mcp")
            .enable_all()
            .build()
            .map_err(|source| Error::Threads { source })?;
        let mut servers = Self {
            runtime: Some(runtime),
            servers: Vec::new(),
            tools: Vec::new(),
            limits,
        };
        for config in configs {
            connecting(&config.name);
            let within = (limits.start_time, is_cancelled);
            let server = servers.run(&config.name, within, connect(config, limits))??;
            let index = servers.servers.len();
            server.meter.allow(limits.request_bytes);
            let listed = tools(&server, index, limits.tools - servers.tools.len());
            let listed = servers.run(&config.name, within, listed)?;
            servers.tools.extend(listed?);
            servers.servers.push(server);
        }
        Ok(servers)
    }

    /// Returns the tools of all servers.
    pub fn tools(&self) -> &[RemoteTool] {
        &self.tools
    }

    /// Returns the name of a server.
    ///
    /// # Panics
    /// If there is no server with this index.
    pub fn name(&self, server: usize) -> &str {
        &self.servers[server].name
    }

    /// Calls a tool. `is_cancelled` is asked now and then.
    ///
    /// # Errors
    /// If the server ends, does not answer in time, sends too much, or answers with an error of the protocol; or if
    /// `is_cancelled`. An error that the tool reports is a [`ToolOutput`].
    pub fn call(
        &self,
        tool: &RemoteTool,
        arguments: Map<String, Value>,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<ToolOutput> {
        let server = &self.servers[tool.server];
        if server.meter.is_exceeded() {
            return Err(server.flood(self.limits.request_bytes));
        }
        server.meter.allow(self.limits.request_bytes);
        let call = CallToolRequestParams::new(tool.name.clone()).with_arguments(arguments);
        let within = (self.limits.call_time, is_cancelled);
        let result = self.run(&server.name, within, server.service.call_tool(call))?;
        let result = result.map_err(|error| server.failure(&error, self.limits.request_bytes))?;
        Ok(ToolOutput {
            is_error: result.is_error == Some(true),
            text: text(&result, self.limits.result_bytes),
        })
    }

    /// Runs `work` for at most `time`, and only until it is cancelled.
    fn run<T>(
        &self,
        server: &str,
        (time, is_cancelled): (Duration, &dyn Fn() -> bool),
        work: impl Future<Output = T>,
    ) -> Result<T> {
        let runtime = self.runtime.as_ref().ok_or(Error::Cancelled)?;
        let cancelled = async {
            while !is_cancelled() {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        };
        runtime.block_on(async {
            tokio::select! {
                biased;
                () = cancelled => Err(Error::Cancelled),
                done = tokio::time::timeout(time, work) => done.map_err(|_| Error::TimeOut {
                    server: server.to_owned(),
                    time,
                }),
            }
        })
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        let Some(runtime) = self.runtime.take() else {
            return;
        };
        let servers = std::mem::take(&mut self.servers);
        runtime.block_on(async {
            let end = async {
                for mut server in servers {
                    // It ends by itself when its input ends; otherwise it is killed when it is dropped.
                    let _ = server.service.close().await;
                    if let Some(process) = &mut server.process {
                        process.wait().await;
                    }
                }
            };
            let _ = tokio::time::timeout(END_TIME, end).await;
        });
        runtime.shutdown_background();
    }
}

impl Server {
    fn flood(&self, most: u64) -> Error {
        Error::Flood {
            server: self.name.clone(),
            most,
        }
    }

    fn failure(&self, error: &ServiceError, most: u64) -> Error {
        if self.meter.is_exceeded() {
            return self.flood(most);
        }
        let ends = matches!(
            error,
            ServiceError::TransportClosed | ServiceError::Cancelled { .. }
        );
        match &self.process {
            Some(process) if ends => ended(&self.name, Some(process)),
            _ => Error::Protocol {
                server: self.name.clone(),
                message: sentence(error),
            },
        }
    }
}

fn ended(server: &str, process: Option<&Process>) -> Error {
    let line = process.and_then(Process::last_line);
    Error::Ended {
        server: server.to_owned(),
        detail: line.map_or_else(String::new, |line| format!(": {line}")),
    }
}

/// Returns an error with its causes in one line of bounded length.
fn sentence(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    let words: Vec<_> = text.split_whitespace().collect();
    words.join(" ").chars().take(500).collect()
}

/// Connects to a server and agrees on a version of the protocol.
async fn connect(config: &ServerConfig, limits: Limits) -> Result<Server> {
    let name = &config.name;
    let meter = Meter::new();
    meter.allow(limits.request_bytes);
    let about = Implementation::new("triad", env!("CARGO_PKG_VERSION"));
    let client = ClientConfig::new(ClientCapabilities::default(), about);
    let (service, process) = match &config.transport {
        Transport::Command {
            program,
            arguments,
            environment,
            folder,
        } => {
            let started =
                stdio::start((program, arguments), environment, folder.as_deref(), &meter);
            let (process, (output, input)) = started.map_err(|source| Error::Start {
                server: name.clone(),
                program: program.clone(),
                source,
            })?;
            let most = usize::try_from(limits.request_bytes).unwrap_or(usize::MAX);
            let pipes = AsyncRwTransport::new_client(output, input).with_max_line_length(most);
            (client.serve(pipes).await, Some(process))
        }
        Transport::Http { url, headers } => {
            let longest = limits.start_time.max(limits.call_time);
            let http = HttpClient::new(longest, &meter);
            let headers = headers.iter().map(|(name, value)| {
                Some((
                    name.parse::<HeaderName>().ok()?,
                    value.parse::<HeaderValue>().ok()?,
                ))
            });
            let headers = headers
                .collect::<Option<_>>()
                .ok_or_else(|| Error::Protocol {
                    server: name.clone(),
                    message: "a header has characters that no header has".into(),
                })?;
            let config = StreamableHttpClientTransportConfig::with_uri(url.as_str());
            let http =
                StreamableHttpClientTransport::with_client(http, config.custom_headers(headers));
            (client.serve(http).await, None)
        }
    };
    let service = service.map_err(|error| match &process {
        _ if meter.is_exceeded() => Error::Flood {
            server: name.clone(),
            most: limits.request_bytes,
        },
        Some(process) => match error {
            rmcp::service::ClientInitializeError::ConnectionClosed(_) => ended(name, Some(process)),
            error => Error::Protocol {
                server: name.clone(),
                message: sentence(&error),
            },
        },
        None => Error::Protocol {
            server: name.clone(),
            message: sentence(&error),
        },
    })?;
    Ok(Server {
        name: name.clone(),
        service,
        process,
        meter,
    })
}

/// Lists the tools of a server, at most `most`.
async fn tools(server: &Server, index: usize, most: usize) -> Result<Vec<RemoteTool>> {
    let too_many = || Error::Protocol {
        server: server.name.clone(),
        message: format!("it has more tools than the {most} that are left for it"),
    };
    let has_tools = server
        .service
        .peer_info()
        .is_none_or(|info| info.capabilities.tools.is_some());
    let (mut tools, mut cursor) = (Vec::new(), None);
    for _ in 0..MAX_PAGES {
        if !has_tools {
            return Ok(tools);
        }
        let params = PaginatedRequestParams::default().with_cursor(cursor);
        let page = server.service.list_tools(Some(params)).await;
        let page = page.map_err(|error| server.failure(&error, 0))?;
        tools.extend(page.tools.into_iter().map(|tool| RemoteTool {
            server: index,
            name: tool.name.into_owned(),
            description: tool.description.map(Cow::into_owned),
            schema: Value::Object(Arc::unwrap_or_clone(tool.input_schema)),
        }));
        if tools.len() > most {
            return Err(too_many());
        }
        cursor = page.next_cursor;
        if cursor.is_none() {
            return Ok(tools);
        }
    }
    Err(too_many())
}

/// Returns the text of a result, at most `most` bytes of it. Other contents are named.
fn text(result: &CallToolResult, most: usize) -> String {
    let part = |content: &ContentBlock| match content {
        ContentBlock::Text(text) => text.text.clone(),
        ContentBlock::Image(image) => format!("[an image, {}, is left out]", image.mime_type),
        ContentBlock::Audio(audio) => format!("[a sound, {}, is left out]", audio.mime_type),
        ContentBlock::Resource(resource) => match &resource.resource {
            ResourceContents::TextResourceContents { text, .. } => text.clone(),
            ResourceContents::BlobResourceContents { uri, .. } => {
                format!("[the bytes of {uri} are left out]")
            }
            _ => "[a resource is left out]".into(),
        },
        ContentBlock::ResourceLink(link) => format!("[{}]", link.uri),
        _ => "[a part of another kind is left out]".into(),
    };
    let mut text = result
        .content
        .iter()
        .map(part)
        .collect::<Vec<_>>()
        .join("\n");
    if text.is_empty()
        && let Some(value) = &result.structured_content
    {
        text = value.to_string();
    }
    if text.len() > most {
        let mut end = most;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let cut = text.len() - end;
        text.truncate(end);
        text += &format!("\n[{cut} further bytes are left out]");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_its_texts_and_the_rest_is_named_and_long_ones_are_cut() {
        let result: CallToolResult = serde_json::from_value(serde_json::json!({
            "content": [
                {"type": "text", "text": "é1"},
                {"type": "image", "data": "AAAA", "mimeType": "image/png"},
                {"type": "resource", "resource": {"uri": "file:///a", "text": "inside"}},
            ],
        }))
        .unwrap();
        assert_eq!(
            text(&result, 1000),
            "é1\n[an image, image/png, is left out]\ninside"
        );
        assert_eq!(text(&result, 1), "\n[45 further bytes are left out]");
        let value = serde_json::json!({"content": [], "structuredContent": {"sum": 3}});
        let result: CallToolResult = serde_json::from_value(value).unwrap();
        assert_eq!(text(&result, 1000), r#"{"sum":3}"#);
    }
}
