//! Serves the requests of a domain while it loads the device program: reading the program's file, and memory for its
//! heap.
//!
//! A thread calls the domain's listener. The result of a call is a request, and the next call carries the response. The
//! interfaces are those that the open-source library of FastRPC implements: `apps_remotectl` opens the others,
//! `apps_std` reads files, and `apps_mem` provides memory. There is a single file, the device program, under its name
//! in any folder; everything else is refused.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use super::domain::{Domain, LISTENER, MODULE, Pages, RESTART, word, words};
use super::failure::{failed, refused};
use super::kernel::ADD_PAGES;
use crate::error::Result;

/// Methods of the listener: the first one, and the one that takes a response and returns a request.
const INIT: u32 = 3;
const NEXT: u32 = 4;
/// Maximum number of bytes of a request's inputs. Longer requests are refused.
const ROOM: usize = 64 << 10;
/// Maximum number of bytes that one request may read.
const MAX_READ: usize = 16 << 20;
/// Maximum number of bytes of memory that one request may ask for: a DSP's whole address space.
const MAX_MEMORY: u64 = 1 << 32;
/// Alignment of buffers in a message.
const ALIGNMENT: usize = 8;

/// Handles of the interfaces.
const REMOTECTL: u32 = 0;
const STD: u32 = 1;
const MEM: u32 = 2;

/// Reasons for refusing a request, with the numbers of `AEEStdErr.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
enum Refusal {
    NoMemory = 2,
    Request = 14,
    Unsupported = 20,
    NoModule = 0x3e,
    NoFile = 0x45,
}

/// Result of a request.
type Outcome<T> = std::result::Result<T, Refusal>;

/// A request: its input buffers, and the requested lengths of output buffers.
struct Request<'a> {
    interface: u32,
    method: u32,
    inputs: Vec<&'a [u8]>,
    outputs: Vec<usize>,
}

/// The thread that serves the domain's requests. It runs until the domain ends.
pub struct Listener {
    domain: Arc<Domain>,
    thread: Option<JoinHandle<()>>,
}

impl Listener {
    /// Starts the thread with the device program, the only file that it serves.
    pub fn start(domain: &Arc<Domain>, program: Vec<u8>) -> Result<Self> {
        let started = domain.invoke(LISTENER, INIT, &[], &mut []);
        let name = "FASTRPC_IOCTL_INVOKE of the listener";
        started.map_err(|failure| refused(name, domain.path(), failure.into(), RESTART))?;
        let mut server = Server::new(Arc::clone(domain), program);
        let thread = thread::Builder::new()
            .name("fastrpc listener".to_owned())
            .spawn(move || server.serve());
        Ok(Self {
            domain: Arc::clone(domain),
            thread: Some(thread.map_err(failed)?),
        })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.domain.exit();
        let thread = self.thread.take().expect("it is joined once");
        let _ = thread.join();
    }
}

/// State of the thread.
struct Server {
    domain: Arc<Domain>,
    /// The device program.
    program: Vec<u8>,
    /// Read position of each open file, by its number.
    files: BTreeMap<u32, usize>,
    latest_file: u32,
    /// Pages by address.
    pages: BTreeMap<u64, Pages>,
}

impl Server {
    fn new(domain: Arc<Domain>, program: Vec<u8>) -> Self {
        Self {
            domain,
            program,
            files: BTreeMap::new(),
            latest_file: 0,
            pages: BTreeMap::new(),
        }
    }

    /// Serves requests until the domain ends.
    fn serve(&mut self) {
        let (mut context, mut status, mut response) = (0, u32::MAX, Vec::new());
        let mut bytes = vec![0; ROOM];
        loop {
            let lengths = words(&[context, status, response.len() as u32, ROOM as u32]);
            let mut request = [0; 16];
            let inputs: [&[u8]; 2] = [&lengths, &response];
            if self
                .domain
                .invoke(LISTENER, NEXT, &inputs, &mut [&mut request, &mut bytes])
                .is_err()
            {
                return;
            }
            context = word(&request, 0);
            let [interface, scalars, length] = [4, 8, 12].map(|at| word(&request, at));
            let parsed = bytes.get(..length as usize).ok_or(Refusal::Request);
            let parsed = parsed.and_then(|bytes| Request::parse(interface, scalars, bytes));
            (status, response) =
                match parsed.and_then(|request| Ok((self.respond(&request)?, request.outputs))) {
                    Ok((buffers, lengths)) => (0, pack(&buffers, &lengths)),
                    Err(refusal) => (refusal as u32, Vec::new()),
                };
        }
    }

    /// Returns the buffers of the response.
    fn respond(&mut self, request: &Request) -> Outcome<Vec<Vec<u8>>> {
        match request.interface {
            REMOTECTL => remote_control(request),
            STD => self.files(request),
            MEM => self.memory(request),
            _ => Err(Refusal::Request),
        }
    }

    /// Serves `apps_std`. The numbers are those of its methods.
    fn files(&mut self, request: &Request) -> Outcome<Vec<Vec<u8>>> {
        match request.method {
            // fopen(name, mode), fopen_with_env(variable, delimiter, name, mode)
            0 => self.open(request, 1),
            19 => self.open(request, 3),
            // fclose(file)
            3 => {
                self.files
                    .remove(&request.word(0)?)
                    .ok_or(Refusal::Request)?;
                Ok(Vec::new())
            }
            // fread(file, bytes)
            4 => {
                let wanted = request.word(4)? as usize;
                if wanted > MAX_READ || request.outputs.get(1) != Some(&wanted) {
                    return Err(Refusal::Request);
                }
                let length = self.program.len();
                let at = self.file(request)?;
                let (from, to) = ((*at).min(length), at.saturating_add(wanted).min(length));
                *at = to;
                let mut read = self.program[from..to].to_vec();
                read.resize(wanted, 0);
                Ok(vec![
                    words(&[(to - from) as u32, u32::from(to - from < wanted)]),
                    read,
                ])
            }
            // ftell(file), flen(file), feof(file)
            8 => Ok(vec![words(&[*self.file(request)? as u32])]),
            10 => {
                self.file(request)?;
                Ok(vec![(self.program.len() as u64).to_le_bytes().to_vec()])
            }
            12 => Ok(vec![words(&[u32::from(
                *self.file(request)? >= self.program.len(),
            )])]),
            // fseek(file, offset, from where)
            9 => {
                let (offset, whence) = (request.word(4)?.cast_signed(), request.word(8)?);
                let end = self.program.len();
                let at = self.file(request)?;
                let from = match whence {
                    0 => 0,
                    1 => *at,
                    2 => end,
                    _ => return Err(Refusal::Request),
                };
                let place = from.checked_add_signed(offset as isize);
                *at = place
                    .filter(|place| *place <= end)
                    .ok_or(Refusal::Request)?;
                Ok(Vec::new())
            }
            // rewind(file)
            11 => {
                *self.file(request)? = 0;
                Ok(Vec::new())
            }
            _ => Err(Refusal::Unsupported),
        }
    }

    /// Opens the file that the input with index `name` names, if it is the device program.
    fn open(&mut self, request: &Request, name: usize) -> Outcome<Vec<Vec<u8>>> {
        let name = request
            .inputs
            .get(name)
            .and_then(|name| name.strip_suffix(b"\0"))
            .ok_or(Refusal::Request)?;
        if name.rsplit(|byte| *byte == b'/').next() != Some(MODULE.as_bytes()) {
            return Err(Refusal::NoFile);
        }
        self.latest_file = self.latest_file.wrapping_add(1);
        self.files.insert(self.latest_file, 0);
        Ok(vec![words(&[self.latest_file])])
    }

    /// Returns the read position of the file that a request names.
    fn file(&mut self, request: &Request) -> Outcome<&mut usize> {
        self.files
            .get_mut(&request.word(0)?)
            .ok_or(Refusal::Request)
    }

    /// Serves `apps_mem`: adds pages to the domain's heap and removes them.
    fn memory(&mut self, request: &Request) -> Outcome<Vec<Vec<u8>>> {
        let wide = request.method >= 2;
        match request.method {
            // request_map(heap, flags of this process, flags of the domain, address, bytes), and the same with 64 bits
            0 | 2 => {
                let bytes = if wide {
                    request.wide(24)?
                } else {
                    u64::from(request.word(16)?)
                };
                if request.word(8)? != ADD_PAGES || bytes == 0 {
                    return Err(Refusal::Unsupported);
                }
                if bytes > MAX_MEMORY {
                    return Err(Refusal::NoMemory);
                }
                let pages = self
                    .domain
                    .add_pages(ADD_PAGES, bytes)
                    .map_err(|_| Refusal::NoMemory)?;
                let addresses = [pages.address_here(), pages.address];
                self.pages.insert(pages.address, pages);
                Ok(vec![match wide {
                    true => addresses.map(u64::to_le_bytes).concat(),
                    false => words(&addresses.map(|address| address as u32)),
                }])
            }
            // request_unmap(address, bytes), and the same with 64 bits
            1 | 3 => {
                let address = if wide {
                    request.wide(0)?
                } else {
                    u64::from(request.word(0)?)
                };
                let pages = self.pages.get(&address).ok_or(Refusal::Request)?;
                self.domain
                    .remove_pages(pages)
                    .map_err(|_| Refusal::Request)?;
                self.pages.remove(&address);
                Ok(Vec::new())
            }
            _ => Err(Refusal::Unsupported),
        }
    }
}

/// Serves `apps_remotectl`: opens and closes an interface.
fn remote_control(request: &Request) -> Outcome<Vec<Vec<u8>>> {
    match request.method {
        0 => {
            let name = request
                .inputs
                .get(1)
                .and_then(|name| name.strip_suffix(b"\0"))
                .ok_or(Refusal::Request)?;
            let handle = match name {
                b"apps_std" => STD,
                b"apps_mem" => MEM,
                _ => return Err(Refusal::NoModule),
            };
            Ok(vec![words(&[handle, 0])])
        }
        1 => Ok(vec![words(&[0])]),
        _ => Err(Refusal::Unsupported),
    }
}

impl<'a> Request<'a> {
    fn parse(interface: u32, scalars: u32, bytes: &'a [u8]) -> Outcome<Self> {
        let (method, ins, outs) = (
            scalars >> 24 & 0x1f,
            scalars >> 16 & 0xff,
            scalars >> 8 & 0xff,
        );
        if scalars & 0xff != 0 {
            // Handles are not supported.
            return Err(Refusal::Request);
        }
        let length_at = |at: usize| {
            bytes
                .get(at..at + 4)
                .map(|bytes| word(bytes, 0) as usize)
                .ok_or(Refusal::Request)
        };
        let (mut at, mut inputs, mut outputs) = (0, Vec::new(), Vec::new());
        for _ in 0..ins {
            let length = length_at(at)?;
            at += 4;
            if length > 0 {
                at = at.next_multiple_of(ALIGNMENT);
            }
            inputs.push(bytes.get(at..at + length).ok_or(Refusal::Request)?);
            at += length;
        }
        for _ in 0..outs {
            outputs.push(length_at(at)?);
            at += 4;
        }
        if outputs.iter().sum::<usize>() > MAX_READ + ROOM {
            return Err(Refusal::Request);
        }
        Ok(Self {
            interface,
            method,
            inputs,
            outputs,
        })
    }

    /// Returns the word at byte `at` of the first input, which has the numbers.
    fn word(&self, at: usize) -> Outcome<u32> {
        let numbers = self
            .inputs
            .first()
            .filter(|numbers| numbers.len() >= at + 4)
            .ok_or(Refusal::Request)?;
        Ok(word(numbers, at))
    }

    /// Returns the 64-bit number at byte `at` of the first input.
    fn wide(&self, at: usize) -> Outcome<u64> {
        Ok(u64::from(self.word(at)?) | u64::from(self.word(at + 4)?) << 32)
    }
}

/// Concatenates the buffers of a response. Each has the length that the request asks for.
fn pack(buffers: &[Vec<u8>], lengths: &[usize]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (index, length) in lengths.iter().enumerate() {
        bytes.extend_from_slice(&(*length as u32).to_le_bytes());
        if *length > 0 {
            bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
            let start = bytes.len();
            let buffer = buffers.get(index).map(Vec::as_slice).unwrap_or_default();
            bytes.extend_from_slice(&buffer[..buffer.len().min(*length)]);
            bytes.resize(start + length, 0);
        }
    }
    bytes
}
