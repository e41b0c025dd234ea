//! Requests to the device program, over any transport.

use std::fs::File;
use std::time::{Duration, Instant};

use super::options::{HexagonOptions, NAME, Packets};
use super::process::Process;
use super::protocol::{
    ALIGNMENT, DEVICE_MAGIC, HEADER, Operation, STATUS_MEMORY, STATUS_OK, VERSION, field, reason,
    words,
};
use super::shared::SharedMemory;
use super::transport::{Target, Transport};
use super::unit::{FoundUnit, HmxCounts, Unit};
use crate::error::{Error, Result};

/// Duration of polling before a wait sleeps, duration of one sleep, and interval between checks that the program is
/// alive.
const POLLING: Duration = Duration::from_micros(100);
const SLEEP: Duration = Duration::from_micros(200);
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Index of the first argument of a request.
const ARGUMENTS: usize = field::OPERATION + 2;

/// Failure to start a program.
enum NotStarted {
    /// It ended, or hung, before it announced itself.
    Silent { reason: String, error: Error },
    /// Another error.
    Other(Error),
}

impl From<Error> for NotStarted {
    fn from(error: Error) -> Self {
        Self::Other(error)
    }
}

impl NotStarted {
    fn into_error(self) -> Error {
        match self {
            Self::Silent { error, .. } | Self::Other(error) => error,
        }
    }
}

/// Starts a program by `start`. If it may choose its unit, and ends or hangs before it announces itself, starts it once more
/// without HMX: the proof of HMX may be the reason.
fn or_on_hvx(
    options: &HexagonOptions,
    start: impl Fn(&HexagonOptions) -> std::result::Result<Connection, NotStarted>,
) -> Result<Connection> {
    match start(options) {
        Err(NotStarted::Silent { reason, .. }) if options.unit.is_none() => {
            let without_hmx = HexagonOptions {
                unit: Some(Unit::Hvx),
                ..options.clone()
            };
            let mut connection = start(&without_hmx).map_err(NotStarted::into_error)?;
            connection.explain(&format!(
                "the program was started with it, but {reason}; it was started again"
            ));
            Ok(connection)
        }
        started => started.map_err(NotStarted::into_error),
    }
}

/// A running device program. Dropping the connection ends it.
pub(super) struct Connection {
    transport: Box<dyn Transport>,
    shared: SharedMemory,
    /// Number of the latest request.
    request: u64,
    patience: Duration,
    unit: FoundUnit,
    counts: HmxCounts,
    /// Programs that were loaded for HVX and for HMX.
    loaded: [usize; 2],
    /// Packets of all requests.
    packets: u64,
    /// The failure after which the program can't be used any more.
    failed: Option<String>,
}

impl Connection {
    /// Starts the program on the platform that it was built for, and waits until it is ready.
    pub fn start(options: &HexagonOptions) -> Result<Self> {
        or_on_hvx(options, Self::start_once)
    }

    fn start_once(options: &HexagonOptions) -> std::result::Result<Self, NotStarted> {
        let program = &options.program;
        let missing = |reason| Error::HexagonMissing {
            path: program.clone(),
            reason,
        };
        File::open(program).map_err(missing)?;
        match Target::read(program).map_err(missing)? {
            Target::Emulator => {
                let (process, shared) = Process::start(options)?;
                Self::await_program(options, Box::new(process), shared)
            }
            #[cfg(any(target_os = "linux", target_os = "android"))]
            Target::Dsp => {
                use super::fastrpc::{Places, Session, System};
                let (session, shared) =
                    Session::start(options, std::sync::Arc::new(System), &Places::default())?;
                Self::await_program(options, Box::new(session), shared)
            }
            #[cfg(not(any(target_os = "linux", target_os = "android")))]
            Target::Dsp => {
                let reason = "it is for a phone's DSP, which Linux and Android reach".to_owned();
                Err(Error::HexagonProgram {
                    path: program.clone(),
                    reason,
                }
                .into())
            }
        }
    }

    /// Waits until the program of `transport` announces itself in `shared`.
    #[cfg(test)]
    pub fn over(
        options: &HexagonOptions,
        transport: Box<dyn Transport>,
        shared: SharedMemory,
    ) -> Result<Self> {
        Self::await_program(options, transport, shared).map_err(NotStarted::into_error)
    }

    /// Waits until the program of `transport` announces itself in `shared`.
    fn await_program(
        options: &HexagonOptions,
        transport: Box<dyn Transport>,
        shared: SharedMemory,
    ) -> std::result::Result<Self, NotStarted> {
        let mut connection = Self {
            transport,
            shared,
            request: 0,
            patience: options.patience,
            unit: FoundUnit::default(),
            counts: HmxCounts::default(),
            loaded: [0; 2],
            packets: 0,
            failed: None,
        };
        let wrong = |reason| Error::HexagonProgram {
            path: options.program.clone(),
            reason,
        };
        let start = Instant::now();
        while connection.shared.field(field::DEVICE_MAGIC) != DEVICE_MAGIC {
            let reason = if let Some(reason) = connection.transport.ended() {
                reason
            } else if start.elapsed() > options.patience {
                let seconds = options.patience.as_secs_f64();
                format!("it did not report itself within {seconds:.1} s")
            } else {
                std::thread::sleep(SLEEP);
                continue;
            };
            let error = wrong(reason.clone());
            return Err(NotStarted::Silent { reason, error });
        }
        let [version, threads, most] =
            [field::DEVICE_VERSION, field::DEVICE_THREADS, field::THREADS]
                .map(|index| connection.shared.field(index));
        if version != VERSION {
            return Err(wrong(format!(
                "it is of version {version} of the protocol, expected {VERSION}"
            ))
            .into());
        }
        if threads == 0 || threads > most {
            return Err(wrong(format!(
                "it reports {threads} threads that compute, expected 1 to {most}"
            ))
            .into());
        }
        connection.unit = FoundUnit::read(&connection.shared).map_err(wrong)?;
        if let Some(reason) = connection.transport.no_hmx()
            && options.unit != Some(Unit::Hvx)
        {
            connection.unit.explain(reason);
        }
        if options.unit == Some(Unit::Hmx) && connection.unit.unit() == Unit::Hvx {
            let found = &connection.unit;
            return Err(wrong(format!(
                "it multiplies on {found}, expected HMX, or no option {}=hmx",
                Unit::OPTION
            ))
            .into());
        }
        Ok(connection)
    }

    /// Returns the unit that multiplies.
    pub fn unit(&self) -> &FoundUnit {
        &self.unit
    }

    /// Keeps the host's reason why the unit is HVX.
    pub fn explain(&mut self, reason: &str) {
        self.unit.explain(reason.to_owned());
    }

    /// Counts a program that was loaded for `unit`.
    pub fn count(&mut self, unit: Unit) {
        match unit {
            Unit::Hvx => self.loaded[0] += 1,
            Unit::Hmx => self.loaded[1] += 1,
        }
    }

    /// Returns how many programs were loaded for HVX and for HMX.
    pub fn loaded(&self) -> [usize; 2] {
        self.loaded
    }

    /// Returns the work of HMX in all requests.
    pub fn hmx_counts(&self) -> HmxCounts {
        self.counts
    }

    /// Returns a hash of the sources that the program was built from.
    pub fn build(&self) -> u64 {
        self.shared.field(field::DEVICE_BUILD)
    }

    /// Returns the process ID, if the program is a process.
    pub fn process(&self) -> Option<u32> {
        self.transport.process()
    }

    /// Returns a description of the place where the program runs.
    pub fn place(&self) -> String {
        self.transport.place()
    }

    /// Returns the number of compute threads.
    pub fn threads(&self) -> usize {
        self.shared.field(field::DEVICE_THREADS) as usize
    }

    /// Returns the instruction packets that the latest request took.
    pub fn packets(&self) -> Packets {
        let [all, longest] = [field::PACKETS, field::LONGEST].map(|index| self.shared.field(index));
        Packets { all, longest }
    }

    /// Returns the instruction packets that all requests took.
    pub fn all_packets(&self) -> u64 {
        self.packets
    }

    /// Returns the memory that host and device share.
    pub fn shared(&self) -> &SharedMemory {
        &self.shared
    }

    /// Sends a request to the device, waits for it, and returns its result.
    ///
    /// # Errors
    /// If the device has no memory, which leaves it usable. Also if it refuses for another reason, has ended, makes no
    /// progress, or wrote to memory that it must not write; then every later request fails, too.
    pub fn request(
        &mut self,
        operation: Operation,
        program: u64,
        arguments: &[u64],
    ) -> Result<u64> {
        if let Some(reason) = &self.failed {
            return Err(Error::Run {
                processor: NAME.to_owned(),
                reason: reason.clone(),
            });
        }
        let fields: Vec<_> = [operation as u64, program]
            .iter()
            .chain(arguments)
            .copied()
            .collect();
        for (index, value) in fields.iter().enumerate() {
            self.shared.set_field(field::OPERATION + index, *value);
        }
        debug_assert!(ARGUMENTS + arguments.len() <= field::STATUS);
        self.request += 1;
        self.shared.set_field(field::REQUEST, self.request);
        self.wait()?;
        let is_ours = self.shared.field(field::DEVICE_MAGIC) == DEVICE_MAGIC
            && self.shared.field(field::REQUEST) == self.request
            && fields
                .iter()
                .enumerate()
                .all(|(index, value)| self.shared.field(field::OPERATION + index) == *value);
        if !is_ours {
            return Err(
                self.fail("the memory that it shares with the host was overwritten".to_owned())
            );
        }
        let [instructions, bytes, used] =
            [0, 1, 2].map(|index| self.shared.field(field::HMX_INSTRUCTIONS + index));
        let of_request = HmxCounts {
            instructions,
            bytes,
            used,
        };
        self.counts = self.counts.and(of_request);
        self.packets = self.packets.saturating_add(self.packets().all);
        let result = self.shared.field(field::RESULT);
        match self.shared.field(field::STATUS) {
            STATUS_OK => Ok(result),
            STATUS_MEMORY => Err(Error::HexagonMemory {
                reason: reason(STATUS_MEMORY, result),
            }),
            status => Err(self.fail(reason(status, result))),
        }
    }

    /// Waits for the response to the latest request while the device makes progress.
    fn wait(&mut self) -> Result<()> {
        let start = Instant::now();
        let (mut looked, mut worked, mut heartbeat) =
            (start, start, self.shared.field(field::HEARTBEAT));
        loop {
            let response = self.shared.field(field::RESPONSE);
            if response == self.request {
                return Ok(());
            }
            if response != self.request - 1 {
                return Err(
                    self.fail("the memory that it shares with the host was overwritten".to_owned())
                );
            }
            let now = Instant::now();
            if now - start < POLLING {
                std::hint::spin_loop();
                continue;
            }
            std::thread::sleep(SLEEP);
            if now - looked < POLL_INTERVAL {
                continue;
            }
            looked = now;
            if let Some(reason) = self.transport.ended() {
                // It may have ended after its response.
                if self.shared.field(field::RESPONSE) == self.request {
                    return Ok(());
                }
                return Err(self.fail(reason));
            }
            let beat = self.shared.field(field::HEARTBEAT);
            if beat != heartbeat {
                (heartbeat, worked) = (beat, now);
            } else if now - worked > self.patience {
                let (name, seconds) = (self.transport.name(), self.patience.as_secs_f64());
                return Err(self.fail(format!(
                    "{name} did nothing for {seconds:.1} s, and was ended"
                )));
            }
        }
    }

    /// Ends the program, and returns the error of this and of every later request.
    pub fn fail(&mut self, reason: String) -> Error {
        self.end();
        self.failed = Some(reason.clone());
        Error::Run {
            processor: NAME.to_owned(),
            reason,
        }
    }

    fn end(&mut self) {
        // A program that still works sees this and ends.
        self.shared.set_field(field::HOST_MAGIC, 0);
        self.transport.end();
    }

    /// Writes `image` to the device's memory, and returns its number and hash.
    pub fn load(&mut self, image: &[u8]) -> Result<(u64, u64)> {
        let hash = super::protocol::hash(words(image));
        let program = self.request(Operation::Create, 0, &[image.len() as u64])?;
        let loaded = self
            .fill(program, image)
            .and_then(|()| self.request(Operation::Load, program, &[hash]));
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

    /// Multiplies one tile on the model of HMX.
    pub fn multiply_tile(
        &mut self,
        kind: u64,
        activations: &[u8],
        weights: &[u8],
    ) -> Result<Vec<u8>> {
        let of_crouton = [1024, 512, 2048].get(kind as usize).copied().unwrap_or(0);
        let croutons = activations.len() / 2048;
        if of_crouton == 0
            || croutons == 0
            || !activations.len().is_multiple_of(2048)
            || weights.len() != croutons * of_crouton
        {
            return Err(Error::Run {
                processor: NAME.to_owned(),
                reason: format!(
                    "{} bytes of activations and {} of weights of kind {kind} are no tile",
                    activations.len(),
                    weights.len()
                ),
            });
        }
        const TILE: usize = 64 * 32 * 4;
        let (weights_at, end) = (
            HEADER + activations.len().next_multiple_of(ALIGNMENT),
            activations.len() + weights.len(),
        );
        let result_at = (weights_at + weights.len()).next_multiple_of(ALIGNMENT);
        if end + TILE + 2 * ALIGNMENT > self.shared.bytes() - HEADER {
            return Err(Error::HexagonMemory {
                reason: format!("{end} bytes of a tile do not fit into what both map"),
            });
        }
        self.shared.write(HEADER, words(activations));
        self.shared.write(weights_at, words(weights));
        let places = [HEADER, weights_at, result_at].map(|at| at as u64);
        let arguments = [kind, croutons as u64, places[0], places[1], places[2]];
        self.request(Operation::Tile, 0, &arguments)?;
        let bytes = if kind == 2 { 2048 } else { TILE };
        let words = self.shared.read(result_at, bytes / size_of::<u64>());
        Ok(words.flat_map(u64::to_le_bytes).collect())
    }

    /// Executes one leaf of HMX.
    pub fn issue(&mut self, leaf: u64, registers: [u64; 4]) -> Result<()> {
        let [r0, r1, r2, r3] = registers;
        self.request(Operation::Issue, 0, &[leaf, r0, r1, r2, r3])?;
        Ok(())
    }

    /// Frees a program. If the device failed, its memory is gone already.
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
    use crate::hexagon::protocol::{IMAGE_HEADER, IMAGE_MAGIC, hash, sum_stride};

    /// An image of one matmul with 16 input features and 3 channels, in the format of `image`, with other values of the
    /// fields in `changes`.
    fn image(unit: Unit, changes: &[(usize, u32)]) -> Vec<u8> {
        let (corrections, features) = match unit {
            Unit::Hvx => (0, 16),
            Unit::Hmx => (sum_stride(3) * size_of::<i32>(), 32),
        };
        let mut fields = [0; IMAGE_HEADER / size_of::<u32>()];
        fields[..2].copy_from_slice(&[IMAGE_MAGIC, 1]);
        let weights = IMAGE_HEADER + corrections;
        fields[8..12].copy_from_slice(&[16, 3, weights as u32, IMAGE_HEADER as u32]);
        fields[16] = unit.code();
        for (index, value) in changes {
            fields[*index] = *value;
        }
        let mut image: Vec<u8> = fields
            .iter()
            .flat_map(|field| field.to_le_bytes())
            .collect();
        image.resize(weights + sum_stride(3) * features, 0);
        image
    }

    fn start(unit: Unit) -> Option<Connection> {
        match crate::hexagon::program_from_environment() {
            Ok(program) => {
                let options = HexagonOptions {
                    transfer_bytes: 1 << 20,
                    unit: Some(unit),
                    ..HexagonOptions::new(program)
                };
                Some(Connection::start(&options).unwrap())
            }
            Err(error) => {
                crate::hexagon::skip::skip(error);
                None
            }
        }
    }

    /// A device whose program ends when it is to use HMX.
    struct DiesWithHmx {
        dies: bool,
    }

    impl Transport for DiesWithHmx {
        fn name(&self) -> &'static str {
            "its domain"
        }

        fn place(&self) -> String {
            "nowhere".to_owned()
        }

        fn ended(&mut self) -> Option<String> {
            self.dies.then(|| "its domain ended".to_owned())
        }

        fn end(&mut self) {}

        fn process(&self) -> Option<u32> {
            None
        }
    }

    #[test]
    fn a_device_that_ends_before_it_announces_itself_is_started_once_more_on_hvx() {
        let open = |unit, always_dies: bool| {
            let options = HexagonOptions {
                unit,
                ..HexagonOptions::new("program")
            };
            let starts = std::cell::Cell::new(0);
            let found = or_on_hvx(&options, |options| {
                starts.set(starts.get() + 1);
                let (shared, _) = SharedMemory::create(1 << 16).unwrap();
                let unit = crate::hexagon::unit::request(options.unit);
                shared.begin(1, unit, 0);
                let dies = always_dies || unit == 1;
                if !dies {
                    shared.set_field(field::DEVICE_VERSION, VERSION);
                    shared.set_field(field::DEVICE_THREADS, 1);
                    shared.set_field(field::DEVICE_MAGIC, DEVICE_MAGIC);
                }
                Connection::await_program(options, Box::new(DiesWithHmx { dies }), shared)
            });
            (starts.get(), found.map(|found| found.unit().to_string()))
        };
        let (starts, found) = open(None, false);
        assert_eq!(
            (starts, &*found.unwrap()),
            (
                2,
                "HVX, since HMX can't be used: the program was started with it, but its domain ended; it was started again"
            )
        );
        let (starts, found) = open(Some(Unit::Hvx), false);
        assert_eq!((starts, &*found.unwrap()), (1, "HVX"));
        for (unit, starts) in [(None, 2), (Some(Unit::Hmx), 1), (Some(Unit::Hvx), 1)] {
            let (found, error) = open(unit, true);
            assert_eq!(found, starts);
            assert!(error.unwrap_err().to_string().contains("its domain ended"));
        }
    }

    #[test]
    fn an_image_for_hmx_is_refused_without_hmx_and_if_its_parts_are_not_within_it() {
        let (features, weights, corrections, unit) = (8, 10, 11, 16);
        let Some(mut connection) = start(Unit::Hmx) else {
            return;
        };
        connection.load(&image(Unit::Hmx, &[])).unwrap();
        drop(connection);
        let end = image(Unit::Hmx, &[]).len() as u32;
        // The last one has more features than croutons fit into VTCM.
        for changes in [
            [(weights, 512)],
            [(weights, 384 + 64)],
            [(corrections, end - 128)],
            [(corrections, 64)],
            [(corrections, 128 + 32)],
            [(corrections, u32::MAX - 127)],
            [(unit, 2)],
            [(features, 33)],
            [(features, 130_000)],
        ] {
            let mut connection = start(Unit::Hmx).unwrap();
            let error = connection.load(&image(Unit::Hmx, &changes)).unwrap_err();
            assert!(
                error.to_string().contains("a program in its memory is not"),
                "{changes:?}: {error}"
            );
        }
        let mut connection = start(Unit::Hvx).unwrap();
        connection.load(&image(Unit::Hmx, &[])).unwrap_err();
    }

    #[test]
    fn whatever_a_request_asks_for_the_device_responds_and_goes_on() {
        for unit in [Unit::Hvx, Unit::Hmx] {
            ask_for_anything(unit);
        }
    }

    fn ask_for_anything(unit: Unit) {
        let Some(mut connection) = start(unit) else {
            return;
        };
        let image = image(unit, &[]);
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
            hash([hash([0; 16])]),
            image.len() as u64,
            ALIGNMENT as u64,
        ];
        let mut state = 1u64;
        let mut random = |below: usize| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        };
        let most = if unit == Unit::Hmx { 6 } else { 5 };
        for _ in 0..3000 {
            // Mostly runs the loaded program, which is never freed.
            let operation = [4, 4, 4, 1, 2, 3, 5, 6, 7, 8, u64::MAX][random(11)];
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
                connection
                    .shared
                    .set_field(field::OPERATION + index, *value);
            }
            connection.request += 1;
            connection
                .shared
                .set_field(field::REQUEST, connection.request);
            connection.wait().unwrap();
            let status = connection.shared.field(field::STATUS);
            assert!(
                status <= most,
                "operation {operation} of {number} with {arguments:?} has the status {status}"
            );
        }
        // Checks that the loaded program still works.
        let sums = (HEADER + ALIGNMENT) as u64;
        let (sums, words) = match unit {
            Unit::Hvx => (sums, 16),
            Unit::Hmx => (sums + 7 * ALIGNMENT as u64, 128),
        };
        connection
            .shared()
            .write(HEADER, std::iter::repeat_n(0, words));
        let of_input = hash([hash(std::iter::repeat_n(0, words))]);
        let arguments = [of_image, 1, HEADER as u64, of_input, sums, 0];
        connection
            .request(Operation::Run, program, &arguments)
            .unwrap();
    }
}
