//! A connection with one server.

use std::borrow::Cow;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use rmcp::ServiceExt;
use rmcp::model::{
    CallToolRequestParams, CallToolResult, ClientCapabilities, ClientConfig, ClientRequest,
    Implementation, PaginatedRequestParams, PingRequest,
};
use rmcp::service::{ClientInitializeError, RoleClient, RunningService, ServiceError};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::async_rw::AsyncRwTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use serde_json::{Map, Value};
use ureq::http::{HeaderName, HeaderValue};

use crate::config::{ServerConfig, Transport};
use crate::error::{Error, Result};
use crate::http::HttpClient;
use crate::lines::{self, Unreadable};
use crate::meter::Meter;
use crate::result;
use crate::stdio::{self, Process};
use crate::tools::{Limits, RemoteTool};

/// Maximum bytes of a server's reason for an error.
const MAX_REASON: usize = 4096;

/// Pages of a list of tools that are read.
const MAX_PAGES: usize = 64;
/// The time that a server gets to end by itself.
const END_TIME: Duration = Duration::from_secs(2);

/// A server that is connected. Dropped, its program is killed.
pub(crate) struct Connection {
    name: String,
    service: RunningService<RoleClient, ClientConfig>,
    /// `None` for a server that is reached by HTTP.
    process: Option<Process>,
    meter: Meter,
    /// Answers that belong to no request.
    unreadable: Unreadable,
}

impl Connection {
    /// Returns whether the server ended, or sent too much, so that it cannot be asked again.
    pub(crate) fn is_ended(&self) -> bool {
        self.service.is_closed() || self.service.is_transport_closed() || self.meter.is_exceeded()
    }

    /// Returns whether a program answers at all within `time`. A server that is reached by HTTP counts as one that does: others
    /// reach it, too.
    pub(crate) async fn answers(&self, time: Duration) -> bool {
        if self.process.is_none() {
            return true;
        }
        let ping = ClientRequest::PingRequest(PingRequest::default());
        let ping = tokio::time::timeout(time, self.service.send_request(ping)).await;
        // An error is an answer, too, unless the connection is closed.
        ping.is_ok() && !self.is_ended()
    }

    /// Calls a tool. Dropped, the call is cancelled at the server.
    pub(crate) async fn call(
        &self,
        tool: &str,
        arguments: Map<String, Value>,
        most: u64,
    ) -> Result<CallToolResult> {
        self.meter.allow(most);
        let call = CallToolRequestParams::new(tool.to_owned()).with_arguments(arguments);
        self.readable(self.service.call_tool(call), most).await
    }

    /// Waits for an answer, or until the server sends one that cannot be read.
    async fn readable<T>(
        &self,
        work: impl Future<Output = Result<T, ServiceError>>,
        most: u64,
    ) -> Result<T> {
        self.unreadable.clear();
        tokio::select! {
            biased;
            done = work => match done {
                Ok(done) => Ok(done),
                Err(error) => Err(self.failure(&error, most).await),
            },
            line = self.unreadable.next() => Err(Error::Protocol {
                server: self.name.clone(),
                message: format!("its answer cannot be read: {line}"),
            }),
        }
    }

    /// Ends the server: by itself when its input ends, or killed after a short time.
    pub(crate) async fn end(mut self) {
        let end = async {
            let _ = self.service.close().await;
            if let Some(process) = &mut self.process {
                process.wait().await;
            }
        };
        let _ = tokio::time::timeout(END_TIME, end).await;
    }

    fn flood(&self, most: u64) -> Error {
        Error::Flood {
            server: self.name.clone(),
            most,
        }
    }

    async fn failure(&self, error: &ServiceError, most: u64) -> Error {
        if self.meter.is_exceeded() {
            return self.flood(most);
        }
        let ends = matches!(
            error,
            ServiceError::TransportClosed
                | ServiceError::TransportSend(_)
                | ServiceError::Cancelled { .. }
        );
        if let ServiceError::McpError(reason) = error {
            return Error::Refused {
                server: self.name.clone(),
                message: result::cut(reason.message.to_string(), MAX_REASON),
            };
        }
        match &self.process {
            Some(process) if ends => ended(&self.name, process).await,
            _ => Error::Protocol {
                server: self.name.clone(),
                message: match error {
                    // The name of the transport is that of a type of this program.
                    ServiceError::TransportSend(failed) => sentence(&*failed.error),
                    error => sentence(error),
                },
            },
        }
    }
}

async fn ended(server: &str, process: &Process) -> Error {
    let line = process.last_line().await;
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
pub(crate) async fn connect(config: &ServerConfig, limits: Limits) -> Result<Connection> {
    let name = &config.name;
    let (meter, unreadable) = (Meter::new(), Unreadable::default());
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
            let (mut process, (output, input)) = started.map_err(|source| Error::Start {
                server: name.clone(),
                program: program.clone(),
                source,
            })?;
            let most = usize::try_from(limits.request_bytes).unwrap_or(usize::MAX);
            let (output, reader) = lines::checked(output, &unreadable, most);
            process.add_reader(reader);
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
    let service = match (service, &process) {
        (Ok(service), _) => service,
        (Err(_), _) if meter.is_exceeded() => {
            return Err(Error::Flood {
                server: name.clone(),
                most: limits.request_bytes,
            });
        }
        // A program that takes no more input has ended, or is about to.
        (
            Err(
                ClientInitializeError::ConnectionClosed(_)
                | ClientInitializeError::TransportError { .. },
            ),
            Some(process),
        ) => {
            return Err(ended(name, process).await);
        }
        (Err(error), _) => {
            return Err(Error::Protocol {
                server: name.clone(),
                message: match &error {
                    ClientInitializeError::TransportError { error, .. } => sentence(&*error.error),
                    error => sentence(error),
                },
            });
        }
    };
    Ok(Connection {
        name: name.clone(),
        service,
        process,
        meter,
        unreadable,
    })
}

/// Lists the tools of a server, at most `most`.
pub(crate) async fn tools(
    server: &Connection,
    index: usize,
    most: usize,
    bytes: u64,
) -> Result<Vec<RemoteTool>> {
    let too_many = || Error::Protocol {
        server: server.name.clone(),
        message: format!("it has more tools than the {most} that are left for it"),
    };
    let has_tools = server
        .service
        .peer_info()
        .is_none_or(|info| info.capabilities.tools.is_some());
    server.meter.allow(bytes);
    let (mut tools, mut cursor) = (Vec::new(), None);
    for _ in 0..MAX_PAGES {
        if !has_tools {
            return Ok(tools);
        }
        let params = PaginatedRequestParams::default().with_cursor(cursor);
        let page = server.service.list_tools(Some(params));
        let page = server.readable(page, bytes).await?;
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
