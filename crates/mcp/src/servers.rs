//! Connected servers, their tools and calls.

use std::fmt;
use std::future::Future;
use std::time::{Duration, Instant};

use serde_json::{Map, Value};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Mutex;

use crate::config::ServerConfig;
use crate::connection::{self, Connection};
use crate::error::{Error, Result};
use crate::restarts::Restarts;
use crate::result;
use crate::tools::{Limits, RemoteTool, ToolOutput};

/// The interval at which a running call checks whether the user ended it.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The time that all servers together get to end.
const END_TIME: Duration = Duration::from_secs(2);

/// Connected servers. Dropped, they end.
pub struct Servers {
    /// `None` after the end.
    runtime: Option<Runtime>,
    servers: Vec<Server>,
    tools: Vec<RemoteTool>,
    limits: Limits,
}

struct Server {
    config: ServerConfig,
    /// Locked for the time of a call, since the bytes of a server are counted for each call.
    state: Mutex<State>,
}

struct State {
    /// `None` between the end of a server and its next start.
    connection: Option<Connection>,
    /// Whether the last call was left without an answer, so that the server may be busy with it for ever.
    is_suspect: bool,
    restarts: Restarts,
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
            let connection = connection::connect(config, limits);
            let connection = servers.run(&config.name, within, connection)??;
            let index = servers.servers.len();
            let most = limits.tools - servers.tools.len();
            let listed = connection::tools(&connection, index, most, limits.request_bytes);
            let listed = servers.run(&config.name, within, listed)?;
            servers.tools.extend(listed?);
            servers.servers.push(Server {
                config: config.clone(),
                state: Mutex::new(State {
                    connection: Some(connection),
                    is_suspect: false,
                    restarts: Restarts::default(),
                }),
            });
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
        &self.servers[server].config.name
    }

    /// Calls a tool. `is_cancelled` is asked now and then. Calls of one server are made one after the other.
    ///
    /// A server that has ended, that sent too much, or that does not even answer a ping after a call without an answer, is
    /// started again first. One that ends often is started again only after a time.
    ///
    /// # Errors
    /// If the server ends, does not answer in time, sends too much or what cannot be read, or answers with an error of the
    /// protocol; if it cannot be started again, or not yet; or if `is_cancelled`. An error that the tool reports is a
    /// [`ToolOutput`].
    pub fn call(
        &self,
        tool: &RemoteTool,
        arguments: Map<String, Value>,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<ToolOutput> {
        let server = &self.servers[tool.server];
        let name = &server.config.name;
        let within = (self.limits.call_time, is_cancelled);
        let mut state = self.run(name, within, server.state.lock())?;
        let state = &mut *state;
        // The client that finds a server that ended may go away; the next one needs the server as well.
        let bound = 2 * self.limits.start_time;
        let started = self.start(&server.config, state);
        self.run(name, (bound, &|| false), started)??;
        let connection = state.connection.as_ref().ok_or(Error::Cancelled)?;
        let call = connection.call(&tool.name, arguments, self.limits.request_bytes);
        let result = self.run(name, within, call);
        state.is_suspect = result.is_err();
        let result = result??;
        Ok(ToolOutput {
            is_error: result.is_error == Some(true),
            text: result::text(&result, self.limits.result_bytes),
        })
    }

    /// Starts a server again that cannot be asked any more.
    async fn start(&self, config: &ServerConfig, state: &mut State) -> Result<()> {
        if let Some(connection) = &state.connection {
            let is_well = !connection.is_ended();
            if is_well && (!state.is_suspect || connection.answers().await) {
                state.is_suspect = false;
                return Ok(());
            }
        }
        if let Some(connection) = state.connection.take() {
            connection.end().await;
        }
        state
            .restarts
            .begin(Instant::now())
            .map_err(|wait| Error::NotYet {
                server: config.name.clone(),
                wait,
            })?;
        state.connection = Some(connection::connect(config, self.limits).await?);
        state.is_suspect = false;
        Ok(())
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
                for server in servers {
                    if let Some(connection) = server.state.into_inner().connection {
                        connection.end().await;
                    }
                }
            };
            let _ = tokio::time::timeout(END_TIME, end).await;
        });
        runtime.shutdown_background();
    }
}
