//! The errors of this crate.

use std::path::PathBuf;
use std::time::Duration;

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error with an MCP server or its description. Each is one sentence.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A text that does not say how to reach a server.
    #[error("{text:?} is no MCP server: {expected}")]
    Argument {
        /// The text.
        text: String,
        /// The expectation.
        expected: &'static str,
    },
    /// A file that cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// Its path.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// A file with something else than servers.
    #[error("{path}: {message}")]
    File {
        /// Its path.
        path: PathBuf,
        /// The field that is wrong, and the expectation.
        message: String,
    },
    /// A name that two servers share.
    #[error("two MCP servers are called {name}: expected names that differ")]
    SameName {
        /// The name.
        name: String,
    },
    /// The threads for the servers could not be started.
    #[error("cannot start threads for MCP servers")]
    Threads {
        /// The cause.
        source: std::io::Error,
    },
    /// A command that could not be started.
    #[error("cannot start the MCP server {server} ({program})")]
    Start {
        /// The server's name.
        server: String,
        /// The program.
        program: String,
        /// The cause.
        source: std::io::Error,
    },
    /// A server that closed the connection.
    #[error("the MCP server {server} ended{detail}")]
    Ended {
        /// The server's name.
        server: String,
        /// The last line that it wrote, after a colon and a space, or nothing.
        detail: String,
    },
    /// A server that does not answer.
    #[error("the MCP server {server} did not answer within {} s", time.as_secs())]
    TimeOut {
        /// The server's name.
        server: String,
        /// The time that it had.
        time: Duration,
    },
    /// A server that other calls, or its start, kept busy.
    #[error("the MCP server {server} is busy with other calls: it was not free within {} s", time.as_secs())]
    Busy {
        /// The server's name.
        server: String,
        /// The time that the call waited.
        time: Duration,
    },
    /// A server that sends too much.
    #[error("the MCP server {server} sent more than {most} bytes for one request: it is ended")]
    Flood {
        /// The server's name.
        server: String,
        /// The limit.
        most: u64,
    },
    /// A server that ended several times, and is started again after some time.
    #[error("the MCP server {server} ended again: it is started in {} s", wait.as_secs() + 1)]
    NotYet {
        /// The server's name.
        server: String,
        /// The time until then.
        wait: Duration,
    },
    /// A server that answers a request with an error. For people, it is one line.
    #[error("the MCP server {server}: {}", message.split_whitespace().collect::<Vec<_>>().join(" "))]
    Refused {
        /// The server's name.
        server: String,
        /// The server's reason.
        message: String,
    },
    /// A server that answers with something else than the protocol has.
    #[error("the MCP server {server}: {message}")]
    Protocol {
        /// The server's name.
        server: String,
        /// The reason.
        message: String,
    },
    /// The user ended the call.
    #[error("interrupted")]
    Cancelled,
}
