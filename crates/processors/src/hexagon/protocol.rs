//! The protocol between host and device program: `hexagon/protocol.h` in Rust. Both files change together.

/// The host has written the header, and has not ended the device yet.
pub const HOST_MAGIC: u64 = u64::from_le_bytes(*b"TRIADHST");
/// The device program has started.
pub const DEVICE_MAGIC: u64 = u64::from_le_bytes(*b"TRIADDSP");
/// Version of everything in this module.
pub const VERSION: u64 = 7;
/// Bytes of the fields, which precede the transfer area.
pub const HEADER: usize = 4096;
/// Maximum number of compute threads: a v73 has four vector contexts, a v79 six.
pub const MAX_THREADS: usize = 8;
/// Alignment of offsets.
pub const ALIGNMENT: usize = 128;
/// Rows in a tile of a matmul. Outputs are padded to whole tiles.
pub const TILE_ROWS: usize = 8;
/// Output channels in a tile.
pub const TILE_COLUMNS: usize = 64;
/// Check columns after the output channels.
pub const CHECKS: usize = 4;
/// Bytes of an image's header.
pub const IMAGE_HEADER: usize = 128;
/// Arithmetic of the part between the matmuls of a feed-forward: f32, where a multiply-add rounds twice (0) or once
/// (1), or fixed point (this value).
pub const FIXED_POINT: u32 = 2;
/// First word of an image.
pub const IMAGE_MAGIC: u32 = u32::from_le_bytes(*b"TRIP");

/// Indices of the 64-bit fields.
pub mod field {
    pub const HOST_MAGIC: usize = 0;
    pub const HOST_VERSION: usize = 1;
    pub const FILE_BYTES: usize = 2;
    pub const THREADS: usize = 3;
    pub const UNIT: usize = 4;
    pub const MODEL: usize = 5;
    pub const DEVICE_MAGIC: usize = 8;
    pub const DEVICE_VERSION: usize = 9;
    pub const DEVICE_BUILD: usize = 10;
    pub const DEVICE_THREADS: usize = 11;
    pub const DEVICE_UNIT: usize = 12;
    pub const DEVICE_FAULT: usize = 13;
    pub const DEVICE_FEATURES: usize = 14;
    pub const REQUEST: usize = 16;
    pub const RESPONSE: usize = 17;
    pub const HEARTBEAT: usize = 18;
    /// Operation, program and arguments are consecutive.
    pub const OPERATION: usize = 32;
    pub const STATUS: usize = 48;
    pub const RESULT: usize = 49;
    pub const PACKETS: usize = 50;
    pub const LONGEST: usize = 51;
    /// Counts of HMX are consecutive.
    pub const HMX_INSTRUCTIONS: usize = 52;
}

/// Operation of a request.
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
    /// Multiplies one tile on HMX, for tests.
    Tile = 6,
    /// Executes one leaf of HMX, for tests.
    Issue = 7,
}

/// Returns the reason why the device program did not do what was requested. `result` is the result of the request.
pub fn reason(status: u64, result: u64) -> String {
    match status {
        1 => "it was given an invalid operation, program, length or offset".to_owned(),
        STATUS_MEMORY => "it has no memory left".to_owned(),
        3 => "a program in its memory is not what was written there: it was overwritten".to_owned(),
        4 => "the input that it read is not what was written".to_owned(),
        STATUS_SUM => {
            "a product does not add up to its check sums: the device's memory was overwritten"
                .to_owned()
        }
        6 => super::fault::reason(result),
        other => format!("it returned the unknown status {other}: its memory was overwritten"),
    }
}

/// The status of success.
pub const STATUS_OK: u64 = 0;
/// The status of a device that has no memory for an image.
pub const STATUS_MEMORY: u64 = 2;

/// The status of a matmul with wrong check sums.
pub const STATUS_SUM: u64 = 5;

/// Returns a hash of whole words; the initial value is 0.
pub fn hash(words: impl IntoIterator<Item = u64>) -> u64 {
    words.into_iter().fold(0, |hash, word| {
        let hash = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        hash ^ (hash >> 32)
    })
}

/// Returns the words of `bytes`, whose length is a multiple of the word size.
pub fn words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes
        .as_chunks()
        .0
        .iter()
        .map(|word| u64::from_le_bytes(*word))
}

/// Returns the stride of a row of sums, in numbers.
pub fn sum_stride(out_features: usize) -> usize {
    (out_features + CHECKS + 1).next_multiple_of(TILE_COLUMNS)
}
