//! What runs the device program, and which program runs where.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// A device program that was started. Dropping it ends it.
pub(super) trait Transport: Send {
    /// What runs the program, in a sentence: "its process".
    fn name(&self) -> &'static str;

    /// Where it runs, for people.
    fn place(&self) -> String;

    /// Why the program ended, if it did.
    fn ended(&mut self) -> Option<String>;

    /// Ends the program, whose host's magic was cleared already, however it can be ended.
    fn end(&mut self);

    /// The process, of a program that is one.
    fn process(&self) -> Option<u32>;
}

/// What a device program was built for, which decides what runs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The emulator. Whatever is no program for Hexagon is taken as one of it, so that it says what is wrong.
    Emulator,
    /// A phone's DSP, which loads shared objects: FastRPC.
    Dsp,
}

impl Target {
    /// What the file at `program` was built for.
    ///
    /// # Errors
    /// If it can't be read.
    pub fn of(program: &Path) -> io::Result<Self> {
        let mut head = [0; 20];
        let mut file = File::open(program)?;
        let is_whole = match file.read_exact(&mut head) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => false,
            Err(error) => return Err(error),
        };
        // ELF's magic, 32 bits, little-endian; its type, ET_DYN, and machine, EM_QDSP6.
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
