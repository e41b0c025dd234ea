//! What the host and the device program agree on: `hexagon/protocol.h` in Rust. Both change together.

/// The host wrote the header, and did not end the device yet.
pub const HOST_MAGIC: u64 = u64::from_le_bytes(*b"TRIADHST");
/// The device program started.
pub const DEVICE_MAGIC: u64 = u64::from_le_bytes(*b"TRIADDSP");
/// Of all that this module has.
pub const VERSION: u64 = 5;
/// Bytes of the fields, before the transfer area.
pub const HEADER: usize = 4096;
/// Threads that compute at once: a v73 has four vector contexts, a v79 six.
pub const MOST_THREADS: usize = 8;
/// Offsets are multiples of it.
pub const ALIGNMENT: usize = 128;
/// Rows that a tile of a product has: outputs have room for so many more.
pub const TILE_ROWS: usize = 8;
/// Output channels that a tile has.
pub const TILE_COLUMNS: usize = 64;
/// Check columns behind the output channels.
pub const CHECKS: usize = 4;
/// Bytes of the beginning of an image.
pub const IMAGE_HEADER: usize = 128;
/// The arithmetic of what is between the products of a feed-forward: f32, with a product and a sum rounded twice (0) or once (1),
/// or fixed point.
pub const FIXED_POINT: u32 = 2;
/// What an image begins with.
pub const IMAGE_MAGIC: u32 = u32::from_le_bytes(*b"TRIP");

/// Fields of 64 bits, by index.
pub mod field {
    pub const HOST_MAGIC: usize = 0;
    pub const HOST_VERSION: usize = 1;
    pub const FILE_BYTES: usize = 2;
    pub const THREADS: usize = 3;
    pub const DEVICE_MAGIC: usize = 8;
    pub const DEVICE_VERSION: usize = 9;
    pub const DEVICE_BUILD: usize = 10;
    pub const DEVICE_THREADS: usize = 11;
    pub const REQUEST: usize = 16;
    pub const RESPONSE: usize = 17;
    pub const HEARTBEAT: usize = 18;
    /// The operation, the program and the arguments follow each other.
    pub const OPERATION: usize = 32;
    pub const STATUS: usize = 48;
    pub const RESULT: usize = 49;
    pub const PACKETS: usize = 50;
    pub const LONGEST: usize = 51;
}

/// What a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Reserves memory for an image.
    Create = 1,
    /// Writes a part of an image.
    Write = 2,
    /// Checks an image.
    Load = 3,
    /// Runs a program.
    Run = 4,
    /// Frees a program.
    Drop = 5,
}

/// Why the device program did not do what was requested, by its status.
pub fn reason(status: u64) -> String {
    match status {
        1 => "it was given an operation, a program, a length or an offset that is none".to_owned(),
        STATUS_MEMORY => "it has no memory left".to_owned(),
        3 => "a program in its memory is not what was written there: it was overwritten".to_owned(),
        4 => "the input that it read is not what was written".to_owned(),
        STATUS_SUM => {
            "a product does not add up to its check sums: the device's memory was overwritten"
                .to_owned()
        }
        other => format!(
            "it returned the status {other}, which there is not: its memory was overwritten"
        ),
    }
}

/// The status of success.
pub const STATUS_OK: u64 = 0;
/// The status of a device without memory for an image.
pub const STATUS_MEMORY: u64 = 2;

/// The status of a product that does not add up.
pub const STATUS_SUM: u64 = 5;

/// A hash of whole words, beginning with 0.
pub fn hash(words: impl IntoIterator<Item = u64>) -> u64 {
    words.into_iter().fold(0, |hash, word| {
        let hash = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        hash ^ (hash >> 32)
    })
}

/// The words of `bytes`, which are whole ones.
pub fn words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes
        .as_chunks()
        .0
        .iter()
        .map(|word| u64::from_le_bytes(*word))
}

/// Bytes of the activations of [`TILE_ROWS`] rows, `[in_features / 4][TILE_ROWS][4]`, with zeros up to whole vectors.
pub fn input_tile(in_features: usize) -> usize {
    in_features.next_multiple_of(16) * TILE_ROWS
}

/// Numbers of a row of sums.
pub fn sum_stride(out_features: usize) -> usize {
    (out_features + CHECKS + 1).next_multiple_of(TILE_COLUMNS)
}
