//! Connected servers, their tools and calls.

use std::fmt;
use std::future::Future;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Map, Value};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::task::AbortHandle;

use crate::config::ServerConfig;
use crate::connection::{self, Connection};
use crate::error::{Error, Result};
use crate::restarts::Restarts;
use crate::result;
use crate::tools::{Limits, RemoteTool, ToolOutput};

/// The interval at which a running call checks whether the user ended it.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The time that a server gets at least to answer a ping.
const PING_TIME: Duration = Duration::from_secs(5);

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
    state: Arc<Mutex<State>>,
    /// The latest start after the first one.
    start: std::sync::Mutex<Option<AbortHandle>>,
}

struct State {
    /// `None` between the end of a server and its next start.
    connection: Option<Connection>,
    /// The time at which the last call was left without an answer, so that the server may be busy with it for ever.
    left: Option<Instant>,
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
                state: Arc::new(Mutex::new(State {
                    connection: Some(connection),
                    left: None,
                    restarts: Restarts::default(),
                })),
                start: std::sync::Mutex::default(),
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
    /// A server that has ended or that sent too much is started again first. So is one that was left without an answer to a
    /// call, and does not even answer a ping in the time that a call may take: it may only be busy with that call. One that
    /// ends often is started again only after a time. The start goes on if the call is cancelled.
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
        let time = self.limits.call_time;
        let within = (time, is_cancelled);
        let lock = Arc::clone(&server.state).lock_owned();
        let state = self.run(name, within, lock).map_err(|error| match error {
            Error::TimeOut { server, time } => Error::Busy { server, time },
            error => error,
        })?;
        let mut state = self.ready(server, state, is_cancelled)?;
        let connection = state.connection.as_ref().ok_or(Error::Cancelled)?;
        let call = connection.call(&tool.name, arguments, self.limits.request_bytes);
        let result = self.run(name, within, call);
        state.left = result.is_err().then(Instant::now);
        let result = result??;
        Ok(ToolOutput {
            is_error: result.is_error == Some(true),
            text: result::text(&result, self.limits.result_bytes),
        })
    }

    /// Returns a server's state with a connection that can be asked.
    fn ready(
        &self,
        server: &Server,
        mut state: OwnedMutexGuard<State>,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<OwnedMutexGuard<State>> {
        let is_well = |connection: &Connection| !connection.is_ended();
        if state.left.is_none() && state.connection.as_ref().is_some_and(is_well) {
            return Ok(state);
        }
        let runtime = self.runtime.as_ref().ok_or(Error::Cancelled)?;
        let (config, limits) = (server.config.clone(), self.limits);
        // The client that finds a server that ended may go away; the next one needs the server as well.
        let started = runtime.spawn(async move {
            let started = start(&config, limits, &mut state).await;
            started.map(|()| state)
        });
        *server.start.lock().unwrap_or_else(PoisonError::into_inner) = Some(started.abort_handle());
        let started = self.until(is_cancelled, started)?;
        started.map_err(|_| Error::Cancelled)?
    }

    /// Runs `work` for at most `time`, and only until it is cancelled.
    fn run<T>(
        &self,
        server: &str,
        (time, is_cancelled): (Duration, &dyn Fn() -> bool),
        work: impl Future<Output = T>,
    ) -> Result<T> {
        let work = async { tokio::time::timeout(time, work).await };
        self.until(is_cancelled, work)?.map_err(|_| Error::TimeOut {
            server: server.to_owned(),
            time,
        })
    }

    /// Runs `work` until it is cancelled.
    fn until<T>(
        &self,
        is_cancelled: &dyn Fn() -> bool,
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
                done = work => Ok(done),
            }
        })
    }
}

/// Starts a server again that cannot be asked any more.
async fn start(config: &ServerConfig, limits: Limits, state: &mut State) -> Result<()> {
    if let Some(connection) = state.connection.as_ref().filter(|one| !one.is_ended()) {
        // A server that is only busy answers when its call would have ended.
        let rest = |left: Instant| limits.call_time.saturating_sub(left.elapsed());
        let is_well = match state.left {
            None => true,
            Some(left) => connection.answers(rest(left).max(PING_TIME)).await,
        };
        if is_well {
            state.left = None;
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
    let time = limits.start_time;
    let connection = tokio::time::timeout(time, connection::connect(config, limits)).await;
    let connection = connection.map_err(|_| Error::TimeOut {
        server: config.name.clone(),
        time,
    })?;
    state.connection = Some(connection?);
    state.left = None;
    Ok(())
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
                    let start = server.start.into_inner();
                    if let Some(start) = start.unwrap_or_else(PoisonError::into_inner) {
                        start.abort();
                    }
                    if let Some(connection) = server.state.lock().await.connection.take() {
                        connection.end().await;
                    }
                }
            };
            let _ = tokio::time::timeout(END_TIME, end).await;
        });
        runtime.shutdown_background();
    }
}
