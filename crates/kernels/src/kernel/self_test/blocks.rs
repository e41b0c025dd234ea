//! Quantized blocks whose numbers are finite and show in a sum.

use triad_blocks::BlockFormat;

/// Returns the bytes of some elements.
pub(super) fn numbers(format: BlockFormat, elements: usize) -> Vec<u8> {
    // Such bytes are finite numbers in f16, less than one.
    let count = format.bytes_for(elements);
    let mut bytes: Vec<u8> = (0..count).map(|index| (index * 37 % 0x3b) as u8).collect();
    // As exponents they would be too small to show.
    if format == BlockFormat::MXFP4 {
        for exponent in bytes.iter_mut().step_by(format.bytes()) {
            *exponent = 127;
        }
    }
    bytes
}
