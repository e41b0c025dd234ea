//! `/mcp/tools` and `/mcp/call`: tools of this machine for the web page.
//!
//! A page can't reach MCP servers itself: they allow no other origins, and most are commands. The program that starts the
//! server connects to them and implements [`ToolHost`](crate::ToolHost). The page asks the user before each call. The server
//! itself makes each call that a client with a key asks for, so tools need a server with keys.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::app::App;
use crate::blocking::blocking;
use crate::body::JsonBody;
use crate::error::{ApiError, ApiResult, ErrorBody};
use crate::fields;
use crate::guard::Client;
use crate::host_tools::{HostTool, ToolResult};

/// The tools of a server.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ToolList {
    tools: Vec<HostTool>,
}

/// A call of a tool.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct ToolCallRequest {
    /// The tool's name, as in `/mcp/tools`.
    name: String,
    /// The arguments. The default has no fields.
    #[schema(value_type = Option<Object>)]
    arguments: Option<Map<String, Value>>,
}

/// Lists the tools of the MCP servers that the server was started with (`--mcp`). An extension.
#[utoipa::path(get, path = "/mcp/tools", tag = "tools", responses((status = 200, body = ToolList)))]
pub(crate) async fn list(State(app): State<Arc<App>>) -> Json<ToolList> {
    let host = app.options.tools.as_ref();
    Json(ToolList {
        tools: host.map_or_else(Vec::new, |host| host.tools().to_vec()),
    })
}

/// Calls a tool. At most 4 calls are made at the same time, 2 of one key, and one of each MCP server. An extension.
#[utoipa::path(
    post, path = "/mcp/call", tag = "tools", request_body = ToolCallRequest,
    responses(
        (status = 200, body = ToolResult), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 429, body = ErrorBody)
    )
)]
pub(crate) async fn call(
    State(app): State<Arc<App>>,
    Client(client): Client,
    body: JsonBody,
) -> ApiResult<Json<ToolResult>> {
    let body = body.checked(&fields::CALL)?;
    let ToolCallRequest { name, arguments } = body.parse()?;
    let arguments = arguments.unwrap_or_default();
    let host = app.options.tools.clone();
    let found = host.and_then(|host| {
        let index = host.tools().iter().position(|tool| tool.name == name)?;
        Some((host, index))
    });
    let Some((host, index)) = found else {
        let message = format!("there is no tool {name:?} here: /mcp/tools lists them");
        return Err(ApiError::refused(StatusCode::NOT_FOUND, "no_tool", message));
    };
    let Some(place) = app.calls().take(client.address) else {
        let message = "other calls of tools are running: try again later";
        return Err(ApiError::refused(
            StatusCode::TOO_MANY_REQUESTS,
            "too_many_calls",
            message,
        ));
    };
    // A client that goes away drops this future, and with it the guard.
    let cancelled = Cancelled::default();
    let flag = Arc::clone(&cancelled.0);
    let result = blocking(move || {
        let _place = place;
        Ok(host.call(index, arguments, &|| flag.load(Ordering::Relaxed)))
    });
    Ok(Json(result.await?))
}

/// Cancels a call when it is dropped.
#[derive(Default)]
struct Cancelled(Arc<AtomicBool>);

impl Drop for Cancelled {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
