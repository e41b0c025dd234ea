//! The device program as a process under `qemu-hexagon`, and requests to it.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use super::protocol::{
    DEVICE_MAGIC, HEADER, HOST_MAGIC, Operation, STATUS_MEMORY, STATUS_OK, VERSION, field, reason, words,
};
use super::shared::SharedFile;
use super::{HexagonOptions, NAME};
use crate::error::{Error, Result};

/// How long a wait polls before it sleeps, how long it sleeps at once, and how often it looks after the process.
const POLLING: Duration = Duration::from_micros(100);
const SLEEP: Duration = Duration::from_micros(200);
const LOOK: Duration = Duration::from_millis(5);
/// Bytes of what the emulator printed that an error contains.
const MOST_PRINTED: u64 = 400;
/// Where requests have their arguments.
const ARGUMENTS: usize = field::OPERATION + 2;

/// A process that runs the device program. It is ended when this value is dropped.
pub(super) struct Connection {
    child: Child,
    shared: SharedFile,
    /// What the emulator prints: a file, which never fills up and never has to be waited for.
    printed: File,
    /// Number of the latest request.
    request: u64,
    patience: Duration,
    /// Why it is of no use any more.
    failed: Option<String>,
}

impl Connection {
    /// Starts the program and waits until it reports itself.
    pub fn start(options: &HexagonOptions) -> Result<Self> {
        let program = &options.program;
        let missing = |reason| Error::HexagonMissing { path: program.clone(), reason };
        File::open(program).map_err(missing)?;
        let of_file = |reason: std::io::Error| Error::Run { processor: NAME.to_owned(), reason: reason.to_string() };
        let (shared, file) = SharedFile::create(options.file_bytes()).map_err(of_file)?;
        let printed = tempfile::tempfile().map_err(of_file)?;
        let stderr = printed.try_clone().map_err(of_file)?;
        shared.set_field(field::FILE_BYTES, shared.bytes() as u64);
        shared.set_field(field::HOST_VERSION, VERSION);
        shared.set_field(field::HOST_MAGIC, HOST_MAGIC);
        let mut command = Command::new(&options.emulator);
        command.arg(program).stdin(file).stdout(Stdio::null()).stderr(stderr);
        let not_started = |reason| Error::HexagonEmulator { emulator: options.emulator.clone(), reason };
        let child = command.spawn().map_err(not_started)?;
        let mut connection = Self { child, shared, printed, request: 0, patience: options.patience, failed: None };
        connection.wait_for_start(program)?;
        Ok(connection)
    }

    fn wait_for_start(&mut self, program: &Path) -> Result<()> {
        let wrong = |reason| Error::HexagonProgram { path: program.to_owned(), reason };
        let start = Instant::now();
        while self.shared.field(field::DEVICE_MAGIC) != DEVICE_MAGIC {
            if let Some(status) = self.child.try_wait().ok().flatten() {
                return Err(wrong(self.ended(status)));
            }
            if start.elapsed() > self.patience {
                return Err(wrong(format!("it did not report itself within {:.1} s", self.patience.as_secs_f64())));
            }
            std::thread::sleep(SLEEP);
        }
        match self.shared.field(field::DEVICE_VERSION) {
            VERSION => Ok(()),
            other => Err(wrong(format!("it is of version {other} of the protocol, expected {VERSION}"))),
        }
    }

    /// A hash of the sources that the program was built from.
    pub fn build(&self) -> u64 {
        self.shared.field(field::DEVICE_BUILD)
    }

    /// The process.
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// Packets of instructions that the latest request took.
    pub fn packets(&self) -> u64 {
        self.shared.field(field::PACKETS)
    }

    /// What both map.
    pub fn shared(&self) -> &SharedFile {
        &self.shared
    }

    /// Has the device execute a request, and returns its result.
    ///
    /// # Errors
    /// If the device has no memory, which leaves it usable; if it refuses otherwise, or its process ended, does nothing any
    /// more, or wrote what it can't have: then every later request fails, too.
    pub fn request(&mut self, operation: Operation, program: u64, arguments: &[u64]) -> Result<u64> {
        if let Some(reason) = &self.failed {
            return Err(Error::Run { processor: NAME.to_owned(), reason: reason.clone() });
        }
        let fields: Vec<_> = [operation as u64, program].iter().chain(arguments).copied().collect();
        for (index, value) in fields.iter().enumerate() {
            self.shared.set_field(field::OPERATION + index, *value);
        }
        debug_assert!(ARGUMENTS + arguments.len() <= field::STATUS);
        self.request += 1;
        self.shared.set_field(field::REQUEST, self.request);
        self.wait()?;
        let is_ours = self.shared.field(field::DEVICE_MAGIC) == DEVICE_MAGIC
            && self.shared.field(field::REQUEST) == self.request
            && fields.iter().enumerate().all(|(index, value)| self.shared.field(field::OPERATION + index) == *value);
        if !is_ours {
            return Err(self.fail("the memory that it shares with the host was overwritten".to_owned()));
        }
        match self.shared.field(field::STATUS) {
            STATUS_OK => Ok(self.shared.field(field::RESULT)),
            STATUS_MEMORY => Err(Error::HexagonMemory { reason: reason(STATUS_MEMORY) }),
            status => Err(self.fail(reason(status))),
        }
    }

    /// Waits for the response to the latest request, as long as the device works.
    fn wait(&mut self) -> Result<()> {
        let start = Instant::now();
        let (mut looked, mut worked, mut heartbeat) = (start, start, self.shared.field(field::HEARTBEAT));
        loop {
            let response = self.shared.field(field::RESPONSE);
            if response == self.request {
                return Ok(());
            }
            if response != self.request - 1 {
                return Err(self.fail("the memory that it shares with the host was overwritten".to_owned()));
            }
            let now = Instant::now();
            if now - start < POLLING {
                std::hint::spin_loop();
                continue;
            }
            std::thread::sleep(SLEEP);
            if now - looked < LOOK {
                continue;
            }
            looked = now;
            if let Some(status) = self.child.try_wait().ok().flatten() {
                // It may have ended behind its response.
                if self.shared.field(field::RESPONSE) == self.request {
                    return Ok(());
                }
                let reason = self.ended(status);
                return Err(self.fail(reason));
            }
            let beat = self.shared.field(field::HEARTBEAT);
            if beat != heartbeat {
                (heartbeat, worked) = (beat, now);
            } else if now - worked > self.patience {
                let seconds = self.patience.as_secs_f64();
                return Err(self.fail(format!("its process did nothing for {seconds:.1} s, and was ended")));
            }
        }
    }

    /// Ends the process, and returns the error of this and of every later request.
    pub fn fail(&mut self, reason: String) -> Error {
        self.end();
        self.failed = Some(reason.clone());
        Error::Run { processor: NAME.to_owned(), reason }
    }

    /// Why a process ended, with what it printed.
    fn ended(&mut self, status: ExitStatus) -> String {
        // Exit codes of hexagon/main.c.
        let why = match status.code() {
            Some(3) => " (it found no shared memory)",
            Some(4) => " (the shared memory was not written by this version of triad)",
            _ => "",
        };
        let mut text = format!("its process ended: {status}{why}");
        let mut printed = String::new();
        // Where it can't be read, the status is all that is known.
        if self.printed.seek(SeekFrom::Start(0)).is_ok() {
            let _ = (&self.printed).take(MOST_PRINTED).read_to_string(&mut printed);
        }
        if !printed.trim().is_empty() {
            let _ = write!(text, ": {}", printed.trim());
        }
        text
    }

    fn end(&mut self) {
        // Either fails only where the process is gone.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Writes `image` to the memory of the device, and returns its number and hash.
    pub fn load(&mut self, image: &[u8]) -> Result<(u64, u64)> {
        let hash = super::protocol::hash(words(image));
        let program = self.request(Operation::Create, 0, &[image.len() as u64])?;
        let loaded = self.fill(program, image).and_then(|()| self.request(Operation::Load, program, &[hash]));
        match loaded {
            Ok(_) => Ok((program, hash)),
            Err(error) => {
                self.free(program);
                Err(error)
            }
        }
    }

    fn fill(&mut self, program: u64, image: &[u8]) -> Result<()> {
        let room = self.shared.bytes() - HEADER;
        for (index, part) in image.chunks(room).enumerate() {
            self.shared.write(HEADER, words(part));
            let arguments = [(index * room) as u64, HEADER as u64, part.len() as u64];
            self.request(Operation::Write, program, &arguments)?;
        }
        Ok(())
    }

    /// Frees a program. Where the device failed, its memory is gone anyway.
    pub fn free(&mut self, program: u64) {
        let _ = self.request(Operation::Drop, program, &[]);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hexagon::protocol::{ALIGNMENT, IMAGE_HEADER, IMAGE_MAGIC, hash, sum_stride};

    /// One product of 16 features, as `image` encodes it.
    fn image() -> Vec<u8> {
        let fields = [IMAGE_MAGIC, 1, 0, 0, 0, 0, 0, 0, 16, 3, IMAGE_HEADER as u32, 0];
        let mut image: Vec<u8> = fields.iter().flat_map(|field| field.to_le_bytes()).collect();
        image.resize(IMAGE_HEADER + sum_stride(3) * 16, 0);
        image
    }

    #[test]
    fn whatever_a_request_asks_for_the_device_responds_and_goes_on() {
        let options = match crate::hexagon::program_from_environment() {
            Ok(program) => HexagonOptions { transfer_bytes: 1 << 20, ..HexagonOptions::new(program) },
            Err(error) => return eprintln!("skipped: {error}"),
        };
        let mut connection = Connection::start(&options).unwrap();
        let image = image();
        let (program, of_image) = connection.load(&image).unwrap();
        let bytes = connection.shared().bytes() as u64;
        let numbers = [
            0,
            1,
            8,
            128,
            4096,
            4097,
            4224,
            1 << 16,
            bytes - 128,
            bytes,
            bytes + 128,
            1 << 31,
            1 << 32,
            (1 << 32) + 4096,
            u64::MAX - 127,
            u64::MAX,
            of_image,
            hash([0; 16]),
            image.len() as u64,
            ALIGNMENT as u64,
        ];
        let mut state = 1u64;
        let mut random = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        };
        for _ in 0..3000 {
            // Mostly runs of the program that is there, which is never freed.
            let operation = [4, 4, 4, 1, 2, 3, 5, 6, u64::MAX][random(9)];
            let other = [program, 1, 2, 8191, 8192, u64::MAX][random(6)];
            let number = if operation == 4 {
                program
            } else if other == program {
                1
            } else {
                other
            };
            let mut arguments = [0; 6].map(|_| numbers[random(numbers.len())]);
            if operation == 4 && random(2) == 0 {
                arguments[0] = of_image;
            }
            for (index, value) in [operation, number].iter().chain(&arguments).enumerate() {
                connection.shared.set_field(field::OPERATION + index, *value);
            }
            connection.request += 1;
            connection.shared.set_field(field::REQUEST, connection.request);
            connection.wait().unwrap();
            let status = connection.shared.field(field::STATUS);
            assert!(status <= 5, "operation {operation} of {number} with {arguments:?} has the status {status}");
        }
        // And the program is as it was.
        let sums = (HEADER + ALIGNMENT) as u64;
        connection.shared().write(HEADER, [0; 16].into_iter());
        let arguments = [of_image, 1, HEADER as u64, hash([0; 16]), sums, 0];
        connection.request(Operation::Run, program, &arguments).unwrap();
    }
}
