//! Finds answers of a command that cannot be read. The transport drops such lines, and the request would wait for its whole
//! time.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use rmcp::RoleClient;
use rmcp::service::RxJsonRpcMessage;
use serde_json::Value;
use tokio::io::{AsyncRead, ReadBuf};

/// The reason why an answer could not be read, once there is one.
pub(crate) type Unreadable = Arc<OnceLock<String>>;

/// A reader of lines that fails at the first answer that cannot be read.
pub(crate) struct Lines<R> {
    reader: R,
    /// The line so far; `None` in a line that is too long, which the transport drops.
    line: Option<Vec<u8>>,
    /// The longest line.
    most: usize,
    unreadable: Unreadable,
}

impl<R> Lines<R> {
    pub(crate) fn new(reader: R, most: usize, unreadable: Unreadable) -> Self {
        Self {
            reader,
            line: Some(Vec::new()),
            most,
            unreadable,
        }
    }

    /// Checks the lines that end in `bytes`.
    fn read(&mut self, bytes: &[u8]) -> io::Result<()> {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            if let Some(line) = &mut self.line {
                line.extend_from_slice(piece);
            }
            let length = self.line.as_ref().map_or(0, Vec::len);
            if length > self.most {
                self.line = None;
            }
            if piece.ends_with(b"\n") {
                let line = self.line.replace(Vec::new());
                if let Some(reason) = line.and_then(|line| refusal(&line)) {
                    let _ = self.unreadable.set(reason);
                    return Err(io::Error::other("an answer cannot be read"));
                }
            }
        }
        Ok(())
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for Lines<R> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        ready!(Pin::new(&mut this.reader).poll_read(context, buffer))?;
        Poll::Ready(this.read(&buffer.filled()[before..]))
    }
}

/// Returns why a line that was meant as an answer cannot be read. Other lines, such as those of a log, are no answers.
fn refusal(line: &[u8]) -> Option<String> {
    let line = line.trim_ascii();
    let names = |word: &[u8]| line.windows(word.len()).any(|part| part == word);
    if !line.starts_with(b"{") || !names(b"\"jsonrpc\"") || !names(b"\"id\"") {
        return None;
    }
    let value: Value = match serde_json::from_slice(line) {
        Ok(value) => value,
        Err(error) => return Some(format!("its answer is no JSON that can be read: {error}")),
    };
    let is_answer =
        value.get("method").is_none() && (value["id"].is_number() || value["id"].is_string());
    let message = serde_json::from_value::<RxJsonRpcMessage<RoleClient>>(value);
    let error = message.err().filter(|_| is_answer)?;
    Some(format!("its answer is no message of the protocol: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_answer_that_cannot_be_read_is_refused() {
        let deep = format!(
            r#"{{"jsonrpc":"2.0","id":1,"result":{}1{}}}"#,
            "[".repeat(200),
            "]".repeat(200)
        );
        for (line, expected) in [
            (&*deep, "no JSON that can be read: recursion limit exceeded"),
            (
                r#"{"jsonrpc":"2.0","id":1,"result":{]}"#,
                "no JSON that can be read",
            ),
            (
                r#"{"jsonrpc":"1.0","id":1,"result":{}}"#,
                "no message of the protocol",
            ),
        ] {
            let reason = refusal(line.as_bytes());
            assert!(
                reason.as_ref().is_some_and(|it| it.contains(expected)),
                "{reason:?}"
            );
        }
        for line in [
            "",
            "listening",
            "{INFO} started",
            r#"{"jsonrpc": "2.0"}"#,
            r#"sent {"jsonrpc":"2.0","id":1,]"#,
            r#"{"jsonrpc":"2.0","id":1,"result":{}}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/of_its_own"}"#,
        ] {
            assert_eq!(refusal(line.as_bytes()), None, "{line}");
        }
    }

    #[test]
    fn a_line_is_checked_across_reads_and_a_long_one_is_dropped() {
        let mut lines = Lines::new((), 40, Unreadable::default());
        lines.read(&[b'x'; 100]).unwrap();
        lines
            .read(b"{\"jsonrpc\":1,\"id\":1,]\n{\"jsonrpc\":\"2.0\",")
            .unwrap();
        lines.read(b"\"id\":1,]\n").unwrap_err();
        assert!(lines.unreadable.get().is_some());
    }
}
