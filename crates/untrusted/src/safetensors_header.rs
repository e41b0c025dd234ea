//! Reads arbitrary bytes as a safetensors file: an accepted file can be dequantized.

use triad_model::dequantize::dequantize;
use triad_model::safetensors;

/// Reads one input.
pub fn read(bytes: &[u8]) {
    for tensor in safetensors::read_header(bytes, 0)
        .into_iter()
        .flatten()
        .map(|(_, tensor)| tensor)
    {
        let mut elements = vec![0.0; tensor.elements()];
        dequantize(tensor.format, &bytes[tensor.bytes.clone()], &mut elements);
    }
}
