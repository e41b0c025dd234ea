//! Reads arbitrary bytes as a `config.json` and a quantized safetensors file: matrices that are accepted dequantize.

use std::path::Path;

use triad_model::quantized::{File, Plan, Representation};
use triad_model::safetensors::{self, Element};

/// More elements than any input of this length should have: codes of four bits, and rows that are not stored.
const MAX_ELEMENTS: usize = 1 << 20;

/// Reads one input.
pub fn read(bytes: &[u8]) {
    // The configuration ends at the first zero.
    let Some(end) = bytes.iter().position(|byte| *byte == 0) else {
        return;
    };
    let (config, file) = (&bytes[..end], &bytes[end + 1..]);
    let (Ok(config), Ok(header)) = (
        serde_json::from_slice(config),
        safetensors::read(file, &Element::ALL),
    ) else {
        return;
    };
    let Ok(Some(plan)) = Plan::new(&config) else {
        return;
    };
    let files = [File {
        path: Path::new("model.safetensors"),
        bytes: file,
    }];
    let tensors = header.tensors.into_iter();
    let tensors = tensors.map(|(name, tensor)| (name, (0, tensor))).collect();
    let Ok((_, quantized)) = plan.find(tensors, &files) else {
        return;
    };
    for tensor in quantized.values() {
        let [rows, width] = tensor.shape();
        assert!(rows * width <= MAX_ELEMENTS && !tensor.places().is_empty());
        let mut values = vec![0.0; rows * width];
        tensor.dequantize(&files, 0..rows, &mut values);
        let group = match tensor.representation() {
            Representation::Float(_) => continue,
            Representation::Int8 => None,
            Representation::Int4 | Representation::Blocks(_) => Some(32),
        };
        let groups = rows * group.map_or(1, |group| width / group);
        let (mut scales, mut offsets) = (vec![0.0; groups], vec![0.0; groups]);
        tensor.integers(
            &files,
            0..rows,
            &mut values,
            group,
            &mut scales,
            &mut offsets,
        );
    }
}
