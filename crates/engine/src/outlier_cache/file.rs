//! The file with the weights that shadows read, ordered by channel. It is read by position and not mapped, so that its
//! pages never count as memory of this process.
//!
//! ```text
//! magic and version   8 bytes
//! key                 32 bytes, this machine's seal of the model's weights and of the list of inputs with a shadow
//! for each of these inputs, block by block, [channels, out_features of all layers that read it + 16]:
//!     the weights of the layers, one after the other, and a 16-byte hash of them, of their place and of a secret
//! ```
//!
//! Every row that is read is compared with its hash: if the file was modified, its numbers are not used. Key and secret
//! are [seals](triad_model::seal), so that a file from another machine, or one that another program wrote, is not read.
//! The secret is not stored in any file.

use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use triad_kernels::chunks::{chunks_mut, for_each_chunk};
use triad_kernels::int8::unpack;
use triad_model::description::ModelDescription;
use triad_model::files;
use triad_model::output::OutputFile;
use triad_model::role::Role;
use triad_model::seal;

use crate::linear::layers;
use crate::linear_input::LinearInput;
use crate::weights::{Block, Int8Matrix, Weight, Weights};

/// The magic and version at the start of the file.
const MAGIC: [u8; 8] = *b"triadrw2";
/// Size of magic and key in bytes.
const HEADER: u64 = 40;
/// Size of the hash after each row in bytes.
const CHECK: usize = 16;
/// The number of channels that one task transposes.
const TILE: usize = 64;

/// The identity of a file's content, or the secret in the hashes of its rows.
type Key = seal::Seal;

/// The place of an input's rows in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Byte offset of the first row.
    start: u64,
    /// The number of rows.
    pub(super) channels: usize,
    /// The output features of all layers that read the input.
    pub(super) features: usize,
}

impl Place {
    /// Returns the size of a row with its hash in bytes.
    pub(super) fn record(&self) -> usize {
        self.features + CHECK
    }

    fn end(&self) -> u64 {
        self.start + self.channels as u64 * self.record() as u64
    }
}

/// The INT8 weights by channel of the layers that read an input with a shadow, in an opened file.
#[derive(Debug)]
pub struct ChannelRows {
    file: File,
    path: PathBuf,
    secret: Key,
    /// By block and input.
    places: Vec<[Option<Place>; LinearInput::DENSE.len()]>,
}

impl ChannelRows {
    /// Opens the file at `path`, which has the rows of a model's `kept` inputs. Creates it if it does not exist or has
    /// other content. `weights_name` is a hash of the weights.
    ///
    /// # Errors
    /// If the file can neither be opened nor created.
    pub fn open(
        path: &Path,
        (description, weights): (&ModelDescription, &Weights),
        weights_name: &str,
        kept: &dyn Fn(usize, LinearInput) -> bool,
    ) -> io::Result<Self> {
        let places = places(description, kept);
        let (key, secret) = (
            key("the key", weights_name, &places),
            key("the secret", weights_name, &places),
        );
        if let Ok(file) = files::open(path)
            && is_whole(&file, &key, length(&places)).unwrap_or(false)
        {
            return Ok(Self {
                file,
                path: path.to_owned(),
                secret,
                places,
            });
        }
        let mut output = OutputFile::own(path)?;
        let mut writer = BufWriter::new(&mut output);
        writer.write_all(&MAGIC)?;
        writer.write_all(&key)?;
        for (index, of_block) in places.iter().enumerate() {
            for (input, place) in LinearInput::DENSE.into_iter().zip(of_block) {
                let Some(place) = place else { continue };
                let matrices = Self::readers(description, index, &weights.blocks[index], input);
                writer.write_all(&by_channel(&matrices, place, &secret))?;
                matrices.iter().for_each(|matrix| matrix.release());
            }
        }
        writer.flush()?;
        drop(writer);
        // If the power failed before a row was on the disk, its hash does not match.
        let file = output.finish_early()?;
        Ok(Self {
            file,
            path: path.to_owned(),
            secret,
            places,
        })
    }

    /// Returns the matrices of a block that read an input, in the order of their outputs.
    ///
    /// # Panics
    /// If they are not INT8.
    pub fn readers<'a>(
        description: &ModelDescription,
        index: usize,
        block: &'a Block,
        input: LinearInput,
    ) -> Vec<&'a Int8Matrix> {
        let layers = layers(&description.blocks[index], description.hidden, role(input));
        let matrices = layers
            .iter()
            .map(|(linear, _)| match &block.linears[linear].weight {
                Weight::Int8(matrix) => matrix,
                Weight::Float(_) => panic!("expected layers in INT8: others have no shadow"),
            });
        matrices.collect()
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the size of the file in bytes.
    pub fn bytes(&self) -> u64 {
        length(&self.places)
    }

    /// Returns the place of an input's rows, if the input keeps a shadow.
    pub(super) fn place(&self, block: usize, input: LinearInput) -> Option<Place> {
        *self.places.get(block)?.get(input.index())?
    }

    /// Reads rows of an input, `[channels, Place::record]`, and replaces the content of `rows`. `channels` ascend.
    ///
    /// # Errors
    /// If reading fails, or a row does not match its hash: [`ErrorKind::InvalidData`].
    pub(super) fn read(
        &self,
        place: &Place,
        channels: &[u32],
        rows: &mut Vec<u8>,
    ) -> io::Result<()> {
        let record = place.record();
        rows.resize(channels.len() * record, 0);
        let mut left = &mut rows[..];
        for run in channels.chunk_by(|one, next| one + 1 == *next) {
            let of_run = left
                .split_off_mut(..run.len() * record)
                .expect("room for all rows");
            if run
                .last()
                .is_some_and(|last| *last as usize >= place.channels)
            {
                return Err(ErrorKind::InvalidInput.into());
            }
            read_at(
                &self.file,
                of_run,
                place.start + u64::from(run[0]) * record as u64,
            )?;
        }
        for (channel, row) in channels.iter().zip(rows.chunks_exact(record)) {
            let (row, check) = row.split_at(place.features);
            if *check != hash(&self.secret, place, *channel, row) {
                let message = format!(
                    "the row of channel {channel} at byte {} is not what was written",
                    place.start
                );
                return Err(io::Error::new(ErrorKind::InvalidData, message));
            }
        }
        Ok(())
    }
}

/// Returns the role of the layers that read an input.
fn role(input: LinearInput) -> Role {
    match input {
        LinearInput::Attention => Role::QueryKeyValue,
        LinearInput::AttentionOutput => Role::AttentionOutput,
        LinearInput::FeedForward => Role::GateUp,
        LinearInput::Down => Role::Down,
        LinearInput::ExpertDown => {
            unreachable!("processors with memory of their own run no experts")
        }
    }
}

fn places(
    description: &ModelDescription,
    kept: &dyn Fn(usize, LinearInput) -> bool,
) -> Vec<[Option<Place>; LinearInput::DENSE.len()]> {
    let mut start = HEADER;
    let of_block = |index: usize| {
        LinearInput::DENSE.map(|input| {
            let block = &description.blocks[index];
            let features = layers(block, description.hidden, role(input))
                .iter()
                .map(|(_, features)| features)
                .sum();
            let place = Place {
                start,
                channels: input.channels(block, description.hidden),
                features,
            };
            let place = kept(index, input).then_some(place);
            start = place.map_or(start, |place| place.end());
            place
        })
    };
    (0..description.blocks.len()).map(of_block).collect()
}

fn length(places: &[[Option<Place>; LinearInput::DENSE.len()]]) -> u64 {
    places
        .iter()
        .flatten()
        .flatten()
        .last()
        .map_or(HEADER, Place::end)
}

fn key(
    purpose: &str,
    weights_name: &str,
    places: &[[Option<Place>; LinearInput::DENSE.len()]],
) -> Key {
    let places = format!("{places:?}");
    seal::seal(
        "rows of shadows",
        &[
            purpose.as_bytes(),
            &MAGIC,
            weights_name.as_bytes(),
            places.as_bytes(),
        ],
    )
}

/// Returns whether the file has the expected length and key.
fn is_whole(file: &File, key: &Key, length: u64) -> io::Result<bool> {
    let metadata = file.metadata()?;
    if !metadata.is_file() || metadata.len() != length {
        return Ok(false);
    }
    let mut header = [0; HEADER as usize];
    read_at(file, &mut header, 0)?;
    Ok(header[..MAGIC.len()] == MAGIC && header[MAGIC.len()..] == *key)
}

/// Returns the rows of an input with their hashes, as they are stored in the file.
fn by_channel(matrices: &[&Int8Matrix], place: &Place, secret: &Key) -> Vec<u8> {
    let row_major = matrices.iter().map(|matrix| {
        let view = matrix.view();
        let mut values = vec![0; view.out_features * view.in_features];
        unpack(view, &mut values);
        values
    });
    let row_major: Vec<_> = row_major.collect();
    let record = place.record();
    let mut rows = vec![0; place.channels * record];
    for_each_chunk(chunks_mut(&mut rows, TILE * record), 1, |tile, rows| {
        let first = tile * TILE;
        let columns = row_major
            .iter()
            .flat_map(|values| values.chunks_exact(place.channels));
        for (column, weights) in columns.enumerate() {
            for (row, weight) in rows.chunks_exact_mut(record).zip(&weights[first..]) {
                row[column] = weight.cast_unsigned();
            }
        }
        for (index, row) in rows.chunks_exact_mut(record).enumerate() {
            let (row, check) = row.split_at_mut(place.features);
            check.copy_from_slice(&hash(secret, place, (first + index) as u32, row));
        }
    });
    rows
}

/// Returns a hash that cannot be computed without the secret. It is truncated, so that a length extension is not
/// possible.
fn hash(secret: &Key, place: &Place, channel: u32, row: &[u8]) -> [u8; CHECK] {
    let mut hash = Sha256::new_with_prefix(secret);
    hash.update(place.start.to_le_bytes());
    hash.update(channel.to_le_bytes());
    hash.update(row);
    *hash.finalize().first_chunk().expect("a hash is longer")
}

/// Fills `bytes` from a position of the file.
#[cfg(unix)]
fn read_at(file: &File, bytes: &mut [u8], position: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, bytes, position)
}

/// Fills `bytes` from a position of the file.
#[cfg(windows)]
fn read_at(file: &File, mut bytes: &mut [u8], mut position: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match std::os::windows::fs::FileExt::seek_read(file, bytes, position)? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            read => {
                bytes = &mut bytes[read..];
                position += read as u64;
            }
        }
    }
    Ok(())
}

/// Returns an error: this system has no positioned reads.
#[cfg(not(any(unix, windows)))]
fn read_at(_: &File, _: &mut [u8], _: u64) -> io::Result<()> {
    Err(ErrorKind::Unsupported.into())
}
