//! Servers that are commands: messages on standard input and output, one on each line.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::config::INHERITED;
use crate::meter::{Meter, Metered};

/// Bytes of a server's standard error that are kept: the last ones.
const TAIL: usize = 4096;

/// A server that runs. Dropped, it is killed.
pub(crate) struct Process {
    /// Kills it when dropped.
    child: Child,
    tail: Arc<Mutex<Vec<u8>>>,
}

/// The two ends of the connection with a process.
pub(crate) type Pipes = (Metered<ChildStdout>, ChildStdin);

/// Starts a program.
///
/// # Errors
/// If the system cannot start it.
pub(crate) fn start(
    (program, arguments): (&str, &[String]),
    environment: &BTreeMap<String, String>,
    folder: Option<&Path>,
    meter: &Meter,
) -> std::io::Result<(Process, Pipes)> {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env_clear()
        .envs(
            INHERITED
                .iter()
                .filter_map(|name| Some((name, std::env::var_os(name)?))),
        )
        .envs(environment)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    if let Some(folder) = folder {
        command.current_dir(folder);
    }
    // Ctrl-C at the terminal ends an answer, and not the servers.
    #[cfg(unix)]
    command.process_group(0);
    let mut child = command.spawn()?;
    let missing = || std::io::Error::other("its standard input and output are missing");
    let input = child.stdin.take().ok_or_else(missing)?;
    let output = child.stdout.take().ok_or_else(missing)?;
    let tail = Arc::<Mutex<Vec<u8>>>::default();
    if let Some(errors) = child.stderr.take() {
        tokio::spawn(keep_tail(errors, Arc::clone(&tail)));
    }
    let output = Metered {
        reader: output,
        meter: meter.clone(),
    };
    let process = Process { child, tail };
    Ok((process, (output, input)))
}

/// Reads to the end, and keeps the last bytes.
async fn keep_tail(mut reader: impl AsyncRead + Unpin, tail: Arc<Mutex<Vec<u8>>>) {
    let mut buffer = [0; 1024];
    while let Ok(count @ 1..) = reader.read(&mut buffer).await {
        let mut tail = tail.lock().unwrap_or_else(PoisonError::into_inner);
        tail.extend_from_slice(&buffer[..count]);
        let excess = tail.len().saturating_sub(TAIL);
        tail.drain(..excess);
    }
}

impl Process {
    /// Waits for its end.
    pub(crate) async fn wait(&mut self) {
        let _ = self.child.wait().await;
    }

    /// Returns the last line that the server wrote to its standard error, at most 300 characters of it.
    pub(crate) fn last_line(&self) -> Option<String> {
        let tail = self.tail.lock().unwrap_or_else(PoisonError::into_inner);
        let text = String::from_utf8_lossy(&tail);
        let line = text.lines().rev().find(|line| !line.trim().is_empty())?;
        Some(line.trim().chars().take(300).collect())
    }
}
