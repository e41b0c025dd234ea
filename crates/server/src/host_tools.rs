//! Tools of this machine, which the program that starts a server lends to the web page.

use std::fmt;
use std::sync::Arc;

use serde::Serialize;
use serde_json::{Map, Value};
use tokio::sync::Semaphore;
use utoipa::ToSchema;

/// Maximum number of calls at the same time.
pub(crate) const MAX_CALLS: usize = 4;

/// Tools that a server calls for its clients.
pub trait ToolHost: fmt::Debug + Send + Sync {
    /// Returns the tools. Their names differ.
    fn tools(&self) -> &[HostTool];

    /// Calls the tool at `index` of [`tools`](Self::tools). Blocks until it has ended. `is_cancelled` is asked now and then.
    /// A call that can't be made has an error as its result.
    fn call(
        &self,
        index: usize,
        arguments: Map<String, Value>,
        is_cancelled: &dyn Fn() -> bool,
    ) -> ToolResult;
}

/// A tool.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct HostTool {
    /// The name of the MCP server that has the tool.
    pub server: String,
    /// The tool's name in calls.
    pub name: String,
    /// The description for models.
    pub description: Option<String>,
    /// The JSON schema of the arguments.
    #[schema(value_type = Object)]
    pub parameters: Value,
}

/// The result of a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct ToolResult {
    /// The text for the model.
    pub text: String,
    /// Whether the tool reports an error, or could not be called.
    pub is_error: bool,
}

/// Returns the places of calls that are made at the same time.
pub(crate) fn places() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(MAX_CALLS))
}
