//! Transports, which run the device program, and the selection of one by the program's target.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// A started device program. Dropping it ends the program.
pub(super) trait Transport: Send {
    /// Returns what runs the program, for use in a sentence: "its process".
    fn name(&self) -> &'static str;

    /// Returns a description of the place where the program runs.
    fn place(&self) -> String;

    /// Returns why the program ended, if it did.
    fn ended(&mut self) -> Option<String>;

    /// Ends the program by any means. The caller has cleared the host's magic number already.
    fn end(&mut self);

    /// Returns why the host does not let the device use HMX, if so.
    fn no_hmx(&self) -> Option<String> {
        None
    }

    /// Returns the process ID, if the program is a process.
    fn process(&self) -> Option<u32>;
}

/// Platform that a device program was built for. It determines the transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The emulator. It also gets files that are not Hexagon programs, and reports what is wrong with them.
    Emulator,
    /// A phone's DSP, which loads shared objects through FastRPC.
    Dsp,
}

impl Target {
    /// Reads the target of the file at `program`.
    ///
    /// # Errors
    /// If it can't be read.
    pub fn read(program: &Path) -> io::Result<Self> {
        let mut head = [0; 20];
        let mut file = File::open(program)?;
        let is_whole = match file.read_exact(&mut head) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => false,
            Err(error) => return Err(error),
        };
        // ELF's magic number, 32 bits, little-endian; its type ET_DYN, and its machine EM_QDSP6.
        let (magic, [kind, machine]) = (
            &head[..6],
            [16, 18].map(|at| u16::from_le_bytes([head[at], head[at + 1]])),
        );
        let is_shared_object =
            is_whole && magic == b"\x7fELF\x01\x01" && kind == 3 && machine == 164;
        Ok(if is_shared_object {
            Self::Dsp
        } else {
            Self::Emulator
        })
    }
}
