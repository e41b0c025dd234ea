//! Tools of servers, their results, and bounds.

use std::time::Duration;

use serde_json::Value;

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
