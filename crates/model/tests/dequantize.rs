//! Compares every stored format with the values that the `gguf` package computes (`tests/golden/quant/make.py`).

use std::path::PathBuf;

use triad_model::dequantize::dequantize;
use triad_model::tensor::Format;

/// Returns the stored bytes and expected elements of one golden file.
fn golden(format: Format) -> (Vec<u8>, Vec<f32>) {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/quant");
    let content = std::fs::read(folder.join(format!("{format}.bin"))).unwrap();
    let (length, rest) = content.split_first_chunk().unwrap();
    let (stored, expected) = rest.split_at(u32::from_le_bytes(*length) as usize);
    (
        stored.to_vec(),
        expected
            .as_chunks()
            .0
            .iter()
            .map(|bytes| f32::from_le_bytes(*bytes))
            .collect(),
    )
}

/// Returns the bits of the values, with zeros unsigned, since their sign is that of one of several factors.
fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| (value + 0.0).to_bits()).collect()
}

#[test]
fn dequantized_elements_have_the_bits_of_the_reference() {
    for format in Format::ALL
        .into_iter()
        .filter(|&format| format != Format::F32)
    {
        let (stored, expected) = golden(format);
        let mut elements = vec![f32::NAN; expected.len()];
        dequantize(format, &stored, &mut elements);
        let wrong = bits(&elements)
            .iter()
            .zip(bits(&expected))
            .position(|(&left, right)| left != right);
        if let Some(index) = wrong {
            panic!(
                "{format}: element {index} is {}, expected {}",
                elements[index], expected[index]
            );
        }
    }
}

#[test]
fn f32_elements_are_the_stored_ones_wherever_they_lie() {
    let values = [0.0, -1.5, f32::MIN_POSITIVE, f32::INFINITY];
    let mut stored = vec![0];
    stored.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    let mut elements = [f32::NAN; 4];
    dequantize(Format::F32, &stored[1..], &mut elements);
    assert_eq!(bits(&elements), bits(&values));
}

#[test]
fn any_run_of_blocks_can_be_dequantized_apart() {
    for format in Format::ALL
        .into_iter()
        .filter(|&format| format != Format::F32)
    {
        let (stored, expected) = golden(format);
        let (block_bytes, block_elements) = (format.block_bytes(), format.block_elements());
        let mut elements = vec![f32::NAN; 3 * block_elements];
        dequantize(
            format,
            &stored[2 * block_bytes..5 * block_bytes],
            &mut elements,
        );
        assert_eq!(
            bits(&elements),
            bits(&expected[2 * block_elements..5 * block_elements]),
            "{format}"
        );
    }
}
