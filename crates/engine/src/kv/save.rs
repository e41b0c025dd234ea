//! Saved sessions: a file with the tokens of a session, and their keys and values.
//!
//! | part | bytes |
//! | --- | --- |
//! | magic and version | 8 |
//! | length of the header, little-endian | 8 |
//! | [`Header`] as JSON | that many |
//! | tokens, little-endian | 4 each |
//! | keys and values, block by block and page by page, in the machine's byte order | as the header implies |
//! | SHA-256 of everything before it | 32 |
//!
//! The file is [replaced](triad_model::output) once it is complete, and only its owner can read it. The hash is checked
//! before anything from the file is used.

use std::io::{self, BufReader, Read, Write};
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use triad_model::files;
use triad_model::output::OutputFile;

use super::cache::KvCache;
use super::memory::KvMemory;
use super::page::KvFormat;
use crate::adapter::Adapters;
use crate::error::{Error, Result};
use crate::hexadecimal;

/// The last byte is the version of the format.
const MAGIC: [u8; 8] = *b"TRIADKV\x01";
const HASH: usize = 32;
/// The maximum length of a header that is read.
const MAX_HEADER: u64 = 1 << 20;
/// The minimum size of reads and writes.
const BUFFER: usize = 1 << 20;

/// The identity of a saved session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Header {
    /// Fingerprint of the model's description and weights.
    pub(crate) model: String,
    pub(crate) format: KvFormat,
    /// The longest session of the engine, which RoPE may depend on.
    pub(crate) context: usize,
    pub(crate) is_little_endian: bool,
    /// The number of tokens.
    pub(crate) tokens: usize,
    /// The number of leading tokens that were computed by prefill.
    pub(crate) prefilled: usize,
    /// The ends of prompts and answers, by turns, if the model has mixers with states: they may be computed again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) phases: Vec<usize>,
    /// The adapters that keys and values were computed with, and their scales, if there were any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) adapters: Option<String>,
}

/// Writes `tokens` and their keys and values from `cache` to `path`. `open` opens it.
///
/// # Errors
/// If the file cannot be written; an existing file then stays unchanged.
pub(crate) fn save(
    (path, open): (&Path, fn(&Path) -> io::Result<OutputFile>),
    header: &Header,
    tokens: &[u32],
    cache: &KvCache,
) -> Result<()> {
    let error = |source| Error::Io {
        path: path.to_owned(),
        source,
    };
    let mut file = open(path).map_err(error)?;
    write(&mut file, header, tokens, cache).map_err(error)?;
    file.finish().map_err(error)
}

fn write(
    file: &mut impl Write,
    header: &Header,
    tokens: &[u32],
    cache: &KvCache,
) -> io::Result<()> {
    let mut out = Hashing {
        inner: io::BufWriter::with_capacity(BUFFER, file),
        hash: Sha256::new(),
    };
    let header = serde_json::to_vec(header)?;
    out.write_all(&MAGIC)?;
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(&header)?;
    for token in tokens {
        out.write_all(&token.to_le_bytes())?;
    }
    cache.read(tokens.len(), |bytes| out.write_all(bytes))?;
    let hash = out.hash.finalize();
    out.inner.write_all(&hash)?;
    out.inner.flush()
}

/// Reads what [`save`] wrote: the header, the tokens, and their keys and values in pages of `memory`. `context` is the
/// longest session that the engine runs, `model` the fingerprint of its model, `adapters` those that the session
/// continues with.
///
/// # Errors
/// If the file is not a saved session, is damaged, or is of another model, format or version, or of other adapters; if
/// it does not fit the context or the memory.
pub(crate) fn restore(
    path: &Path,
    model: &str,
    context: usize,
    memory: &Arc<KvMemory>,
    adapters: &Adapters,
) -> Result<(Header, Vec<u32>, KvCache)> {
    let io = |source| Error::Io {
        path: path.to_owned(),
        source,
    };
    let wrong = |field, found: String, expected: &str| {
        Err(Error::SavedSession {
            path: path.to_owned(),
            field,
            found,
            expected: expected.to_owned(),
        })
    };
    let file = match files::open(path) {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            return wrong(
                "the file",
                "a folder or a device".to_owned(),
                "a session that was saved by this program",
            );
        }
        file => file.map_err(io)?,
    };
    let length = file.metadata().map_err(io)?.len();
    let mut file = Hashing {
        inner: BufReader::with_capacity(BUFFER, file),
        hash: Sha256::new(),
    };
    let fixed = MAGIC.len() as u64 + 8;
    if length < fixed + HASH as u64 {
        return wrong(
            "the file",
            format!("{length} bytes"),
            "a session that was saved by this program",
        );
    }
    let (mut magic, mut header_length) = ([0; MAGIC.len()], [0; 8]);
    file.read_exact(&mut magic).map_err(io)?;
    file.read_exact(&mut header_length).map_err(io)?;
    if magic[..7] != MAGIC[..7] {
        return wrong(
            "the first bytes",
            format!("{:02x?}", &magic[..7]),
            "those of a saved session",
        );
    }
    if magic[7] != MAGIC[7] {
        return wrong(
            "the format's version",
            magic[7].to_string(),
            &format!("{}: save it again", MAGIC[7]),
        );
    }
    let header_length = u64::from_le_bytes(header_length);
    if header_length > MAX_HEADER.min(length - fixed) {
        return wrong(
            "the header's length",
            header_length.to_string(),
            &format!("at most {MAX_HEADER} bytes"),
        );
    }
    let mut header = vec![0; header_length as usize];
    file.read_exact(&mut header).map_err(io)?;
    let header: Header = match serde_json::from_slice(&header) {
        Ok(header) => header,
        Err(error) => {
            return wrong(
                "the header",
                error.to_string(),
                "the JSON of a saved session",
            );
        }
    };
    if header.model != model {
        return wrong(
            "the model",
            header.model,
            &format!("{model}: the session is of another model"),
        );
    }
    if header.adapters != adapters.key().text() {
        let text = |adapters: Option<String>| adapters.unwrap_or_else(|| "none".to_owned());
        let expected = format!(
            "{}: give those that the session was saved with",
            text(adapters.key().text())
        );
        return wrong("the adapters", text(header.adapters), &expected);
    }
    if header.format != memory.format() {
        return wrong(
            "the format of keys and values",
            format!("{:?}", header.format),
            &format!("{:?}", memory.format()),
        );
    }
    if header.is_little_endian != cfg!(target_endian = "little") {
        return wrong(
            "the byte order",
            format!("little-endian: {}", header.is_little_endian),
            "this machine's",
        );
    }
    if header.context != context {
        return wrong(
            "the context",
            header.context.to_string(),
            &format!("{context}, that of the engine"),
        );
    }
    if header.tokens > context || header.prefilled > header.tokens {
        let found = format!("{}, {} of them prefilled", header.tokens, header.prefilled);
        return wrong(
            "the number of tokens",
            found,
            &format!("at most the context of {context}"),
        );
    }
    let expected = memory.saved_bytes(header.tokens) as u64 + fixed + header_length + HASH as u64;
    if length != expected {
        return wrong(
            "the file",
            format!("{length} bytes"),
            &format!("{expected}: it is cut off or was changed"),
        );
    }
    let mut tokens = vec![0; header.tokens];
    for token in &mut tokens {
        let mut bytes = [0; 4];
        file.read_exact(&mut bytes).map_err(io)?;
        *token = u32::from_le_bytes(bytes);
    }
    let cache = KvCache::new(memory, adapters.clone());
    cache.reserve(0, header.tokens)?;
    cache
        .fill(header.tokens, |bytes| file.read_exact(bytes))
        .map_err(io)?;
    let computed = file.hash.finalize();
    let mut stored = [0; HASH];
    file.inner.read_exact(&mut stored).map_err(io)?;
    if computed[..] != stored {
        return wrong(
            "the hash",
            hexadecimal(&computed),
            &format!("{}: the file is damaged", hexadecimal(&stored)),
        );
    }
    Ok((header, tokens, cache))
}

/// Hashes everything that is read or written through it.
struct Hashing<T> {
    inner: T,
    hash: Sha256,
}

impl<T: Write> Write for Hashing<T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.hash.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl<T: Read> Read for Hashing<T> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(bytes)?;
        self.hash.update(&bytes[..read]);
        Ok(read)
    }
}
