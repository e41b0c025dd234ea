//! Finds answers on a command's standard output that cannot be read. `rmcp` passes over these, and the request would wait until
//! its time is over.

use std::sync::{Arc, Mutex, PoisonError};

use rmcp::model::ServerJsonRpcMessage;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader, DuplexStream};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

/// Bytes between the check and the protocol.
const BUFFER: usize = 64 << 10;
/// The error code of JSON-RPC for a message that is not JSON.
const PARSE_ERROR: i64 = -32700;
/// Letters of a line that are shown.
const SHOWN: usize = 200;

/// The last answer that belongs to no request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Unreadable(Arc<Last>);

#[derive(Debug, Default)]
struct Last {
    line: Mutex<Option<String>>,
    came: Notify,
}

impl Unreadable {
    /// Forgets what came before a request.
    pub(crate) fn clear(&self) {
        *self.0.line.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Waits for such an answer. Only one may wait.
    pub(crate) async fn next(&self) -> String {
        loop {
            let line = self
                .0
                .line
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take();
            if let Some(line) = line {
                return line;
            }
            self.0.came.notified().await;
        }
    }

    fn set(&self, line: String) {
        *self.0.line.lock().unwrap_or_else(PoisonError::into_inner) = Some(line);
        self.0.came.notify_one();
    }
}

/// Passes lines of at most `most` bytes on. In place of an answer that cannot be read, there is an error for its request; if the
/// request is not known, `unreadable` gets it. Also returns the task that does so.
pub(crate) fn checked(
    output: impl AsyncRead + Send + Unpin + 'static,
    unreadable: &Unreadable,
    most: usize,
) -> (DuplexStream, AbortHandle) {
    let (mut ours, theirs) = tokio::io::duplex(BUFFER);
    let unreadable = unreadable.clone();
    let task = tokio::spawn(async move {
        let mut output = BufReader::new(output);
        let mut line = Vec::new();
        loop {
            line.clear();
            let mut bounded = (&mut output).take(most as u64);
            // The end of `ours` tells the protocol that the server ended.
            if !matches!(bounded.read_until(b'\n', &mut line).await, Ok(1..)) {
                return;
            }
            let written = match check(&line) {
                Line::Readable => ours.write_all(&line).await,
                Line::Answer(id, reason) => ours.write_all(&refusal(&id, &reason)).await,
                Line::Unknown(reason) => {
                    unreadable.set(reason);
                    Ok(())
                }
            };
            if written.is_err() {
                return;
            }
        }
    });
    (theirs, task.abort_handle())
}

#[derive(Debug, PartialEq)]
enum Line {
    /// A message, or a line that is no message, such as a log.
    Readable,
    /// An answer to the request of this number that cannot be read, and the reason.
    Answer(Value, String),
    /// An answer to a request that is not known.
    Unknown(String),
}

/// Checks a line: an answer has an `id` or an `error`, and no `method`.
fn check(line: &[u8]) -> Line {
    let shown = || {
        let text = String::from_utf8_lossy(line);
        text.trim().chars().take(SHOWN).collect::<String>()
    };
    let value: Value = match serde_json::from_slice(line) {
        Ok(value) => value,
        // A server's log may be on its output; a message of the protocol says what it is.
        Err(error) if shown().starts_with('{') && shown().contains("\"jsonrpc\"") => {
            return Line::Unknown(format!("{error}: {}", shown()));
        }
        Err(_) => return Line::Readable,
    };
    let is_answer = value.get("method").is_none()
        && value.get("jsonrpc").is_some()
        && ["result", "error"]
            .iter()
            .any(|field| value.get(field).is_some());
    if !is_answer {
        return Line::Readable;
    }
    let id = match value.get("id") {
        Some(id @ Value::Number(_)) => id.clone(),
        // Requests of this client have numbers.
        Some(Value::String(id)) if id.parse::<i64>().is_ok() => {
            let number = id.parse::<i64>().unwrap_or_default();
            return Line::Answer(json!(number), format!("its id is a text: {}", shown()));
        }
        // The server could not read a request, and does not know which.
        _ if value["error"]["code"] == PARSE_ERROR => {
            return Line::Unknown(format!("it has no id of a request: {}", shown()));
        }
        // Some servers answer notifications. The protocol passes over these lines.
        _ => return Line::Readable,
    };
    match serde_json::from_value::<ServerJsonRpcMessage>(value) {
        Ok(_) => Line::Readable,
        Err(error) => Line::Answer(id, format!("{error}: {}", shown())),
    }
}

/// Returns a line with an error for a request.
fn refusal(id: &Value, reason: &str) -> Vec<u8> {
    let message = format!("its answer cannot be read: {reason}");
    let error =
        json!({ "jsonrpc": "2.0", "id": id, "error": { "code": -32603, "message": message } });
    format!("{error}\n").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_cannot_be_read_is_known_by_its_request_or_told_at_once() {
        for readable in [
            r#"{"jsonrpc": "2.0", "id": 1, "result": {"tools": []}}"#,
            r#"{"jsonrpc": "2.0", "id": 1, "error": {"code": 1, "message": "no"}}"#,
            r#"{"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": 1}}"#,
            r#"{"level": "info", "id": 3}"#,
            // Answers to notifications.
            r#"{"jsonrpc": "2.0", "id": null, "error": {"code": -32601, "message": "no"}}"#,
            r#"{"jsonrpc": "2.0", "error": {"code": -32600, "message": "no id"}}"#,
            r#"{"jsonrpc": "2.0", "id": null, "result": {}}"#,
            r#"{"jsonrpc": "2.0", "result": {}}"#,
            "starting at port 3",
            "[1, 2]",
            "{",
            "",
        ] {
            assert_eq!(check(readable.as_bytes()), Line::Readable, "{readable}");
        }
        for answer in [
            r#"{"jsonrpc": "2.0", "id": 7, "error": "no"}"#,
            r#"{"jsonrpc": "1.0", "id": 7, "result": {}}"#,
            r#"{"jsonrpc": "2.0", "id": "7", "result": {}}"#,
        ] {
            let Line::Answer(id, reason) = check(answer.as_bytes()) else {
                panic!("{answer}")
            };
            assert!(id == json!(7) && reason.contains("jsonrpc"), "{reason}");
        }
        for unknown in [
            r#"{"jsonrpc": "2.0", "id": null, "error": {"code": -32700, "message": "no"}}"#,
            r#"{"jsonrpc": "2.0", "error": {"code": -32700, "message": "no"}}"#,
            r#"{"jsonrpc": "2.0", "id": 7, "result": {"content""#,
        ] {
            let Line::Unknown(reason) = check(unknown.as_bytes()) else {
                panic!("{unknown}")
            };
            assert!(reason.contains("jsonrpc"), "{reason}");
        }
    }
}
