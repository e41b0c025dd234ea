//! Runs the device program as a process under `qemu-hexagon`.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::num::NonZero;
use std::process::{Child, Command, ExitStatus, Stdio};

use super::options::{HexagonOptions, NAME};
use super::protocol::MAX_THREADS;
use super::shared::SharedMemory;
use super::transport::Transport;
use super::unit;
use crate::error::{Error, Result};

/// Maximum number of bytes of the emulator's output in an error.
const MAX_PRINTED: u64 = 400;

/// A process that runs the device program.
pub(super) struct Process {
    child: Child,
    /// Output of the emulator. It goes to a file, which never blocks the emulator.
    printed: File,
    emulator: String,
}

impl Process {
    /// Starts the program with memory that both processes share.
    pub fn start(options: &HexagonOptions) -> Result<(Self, SharedMemory)> {
        let of_file = |reason: std::io::Error| Error::Run {
            processor: NAME.to_owned(),
            reason: reason.to_string(),
        };
        let (shared, file) = SharedMemory::create(options.file_bytes()).map_err(of_file)?;
        // The device has as many compute threads as this machine has cores.
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        shared.begin(
            options.threads.unwrap_or(cores).clamp(1, MAX_THREADS),
            unit::request(options.unit),
            options.model,
        );
        let printed = tempfile::tempfile().map_err(of_file)?;
        let stderr = printed.try_clone().map_err(of_file)?;
        let mut command = Command::new(&options.emulator);
        command
            .arg(&options.program)
            .stdin(file)
            .stdout(Stdio::null())
            .stderr(stderr);
        let not_started = |reason| Error::HexagonEmulator {
            emulator: options.emulator.clone(),
            reason,
        };
        let child = command.spawn().map_err(not_started)?;
        Ok((
            Self {
                child,
                printed,
                emulator: options.emulator.display().to_string(),
            },
            shared,
        ))
    }

    /// Describes why the process ended, including its output.
    fn why(&mut self, status: ExitStatus) -> String {
        // Exit codes of hexagon/linux.c and hexagon/main.c.
        let why = match status.code() {
            Some(3) => " (it found no shared memory)",
            Some(4) => " (the shared memory was not written by this version of triad)",
            _ => "",
        };
        let mut text = format!("its process ended: {status}{why}");
        let mut printed = String::new();
        // If the output can't be read, the error has only the status.
        if self.printed.seek(SeekFrom::Start(0)).is_ok() {
            let _ = (&self.printed)
                .take(MAX_PRINTED)
                .read_to_string(&mut printed);
        }
        if !printed.trim().is_empty() {
            let _ = write!(text, ": {}", printed.trim());
        }
        text
    }
}

impl Transport for Process {
    fn name(&self) -> &'static str {
        "its process"
    }

    fn place(&self) -> String {
        format!("emulated by {}", self.emulator)
    }

    fn ended(&mut self) -> Option<String> {
        let status = self.child.try_wait().ok().flatten()?;
        Some(self.why(status))
    }

    fn end(&mut self) {
        // Both fail only if the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    fn process(&self) -> Option<u32> {
        Some(self.child.id())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hexagon::program_from_environment;
    use crate::hexagon::protocol::field;

    #[test]
    fn a_host_that_wants_no_threads_or_more_than_there_can_be_is_refused() {
        let program = match program_from_environment() {
            Ok(program) => program,
            Err(error) => return crate::hexagon::skip::skip(error),
        };
        let options = HexagonOptions::new(program);
        for (threads, refused) in [
            (0, true),
            (1, false),
            (MAX_THREADS, false),
            (MAX_THREADS + 1, true),
        ] {
            let (shared, file) = SharedMemory::create(1 << 16).unwrap();
            shared.begin(threads, 0, 0);
            let mut command = Command::new(&options.emulator);
            let mut child = command
                .arg(&options.program)
                .stdin(file)
                .stdout(Stdio::null())
                .spawn()
                .unwrap();
            let mut ended = child.try_wait().unwrap();
            while ended.is_none() && shared.field(field::DEVICE_MAGIC) == 0 {
                std::thread::sleep(std::time::Duration::from_millis(1));
                ended = child.try_wait().unwrap();
            }
            assert_eq!(ended.is_some(), refused, "{threads} threads");
            if !refused {
                assert_eq!(shared.field(field::DEVICE_THREADS), threads as u64);
            }
            shared.set_field(field::HOST_MAGIC, 0);
            let code = if refused { 4 } else { 0 };
            assert_eq!(
                child.wait().unwrap().code(),
                Some(code),
                "{threads} threads"
            );
        }
    }
}
