//! Servers that are commands: messages on standard input and output, one on each line.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

#[cfg(unix)]
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::task::{AbortHandle, JoinHandle};

use crate::config::INHERITED;
use crate::meter::{Meter, Metered};

/// Bytes of a server's standard error that are kept: the last ones.
const TAIL: usize = 4096;
/// How often, and for how long each time, the end of a server's standard error is waited for.
const WAITS: u32 = 50;
const WAIT: Duration = Duration::from_millis(10);

/// A server that runs. Dropped, it is killed, with the programs that it started and that are in its process group.
pub(crate) struct Process {
    /// Kills it when dropped.
    child: Child,
    tail: Arc<Tail>,
    /// Tasks that read its pipes, which a program that it started may keep open.
    readers: Vec<AbortHandle>,
}

/// The end of a server's standard error.
#[derive(Default)]
struct Tail {
    bytes: Mutex<Vec<u8>>,
    /// Whether all of it was read.
    is_whole: AtomicBool,
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
    let tail = Arc::<Tail>::default();
    let errors = child.stderr.take();
    let reader = errors.map(|errors| tokio::spawn(keep_tail(errors, Arc::clone(&tail))));
    let output = Metered {
        reader: output,
        meter: meter.clone(),
    };
    let process = Process {
        child,
        tail,
        readers: reader.iter().map(JoinHandle::abort_handle).collect(),
    };
    Ok((process, (output, input)))
}

/// Reads to the end, and keeps the last bytes.
async fn keep_tail(mut reader: impl AsyncRead + Unpin, tail: Arc<Tail>) {
    let mut buffer = [0; 1024];
    while let Ok(count @ 1..) = reader.read(&mut buffer).await {
        let mut bytes = tail.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        bytes.extend_from_slice(&buffer[..count]);
        let excess = bytes.len().saturating_sub(TAIL);
        bytes.drain(..excess);
    }
    tail.is_whole.store(true, Ordering::Release);
}

impl Drop for Process {
    fn drop(&mut self) {
        for reader in &self.readers {
            reader.abort();
        }
        // Most servers are started by another program, such as `npx`. While the first process is not waited for, no other
        // group has its number.
        #[cfg(unix)]
        if let Some(group) = self
            .child
            .id()
            .and_then(|id| Pid::from_raw(id.cast_signed()))
        {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

impl Process {
    /// Ends a task that reads the server's pipes together with the server.
    pub(crate) fn add_reader(&mut self, reader: AbortHandle) {
        self.readers.push(reader);
    }

    /// Waits for its end.
    pub(crate) async fn wait(&mut self) {
        let _ = self.child.wait().await;
    }

    /// Returns the last line that a server which ended wrote to its standard error, at most 300 characters of it.
    pub(crate) async fn last_line(&self) -> Option<String> {
        // Its output may end before its errors are read. A program that it started may keep these open.
        for _ in 0..WAITS {
            if self.tail.is_whole.load(Ordering::Acquire) {
                break;
            }
            tokio::time::sleep(WAIT).await;
        }
        let bytes = self
            .tail
            .bytes
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let text = String::from_utf8_lossy(&bytes);
        let line = text.lines().rev().find(|line| !line.trim().is_empty())?;
        Some(line.trim().chars().take(300).collect())
    }
}
