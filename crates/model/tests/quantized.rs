//! Quantized safetensors: the checkpoints and weights that `tests/golden/quantized/make.py` wrote by the libraries of the
//! schemes.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use triad_model::checkpoint::Checkpoint;
use triad_model::mapped::MappedFile;
use triad_model::quantized::{Representation, summary};
use triad_model::safetensors::{self, Element};
use triad_model::tensor::{BlockFormat, Format};

/// Every checkpoint, with the formats in which its matrices are computed.
const CASES: [(&str, &[&str]); 32] = [
    ("awq", &["Q5_0"]),
    ("bnb-fp4", &["F16"]),
    ("bnb-fp4-nested", &["F32"]),
    ("bnb-int8", &["INT8"]),
    ("bnb-nf4", &["BF16"]),
    ("bnb-nf4-nested", &["BF16"]),
    ("ct-fp8-block", &["BF16"]),
    ("ct-fp8-channel", &["BF16"]),
    ("ct-fp8-naive", &["F16"]),
    ("ct-fp8-tensor", &["BF16"]),
    ("ct-int4-channel", &["F32"]),
    ("ct-int4-group", &["INT4"]),
    ("ct-int4-zeros", &["Q5_0"]),
    ("ct-int8-asymmetric", &["BF16"]),
    ("ct-int8-channel", &["INT8"]),
    ("ct-int8-group", &["INT8", "Q8_0"]),
    ("ct-int8-tensor", &["INT8"]),
    ("fp8-block", &["BF16"]),
    ("fp8-block-bf16", &["BF16"]),
    ("fp8-row", &["BF16"]),
    ("fp8-tensor", &["BF16"]),
    ("gptq-4", &["INT4"]),
    ("gptq-4-act-order", &["F16", "INT4"]),
    ("gptq-4-act-order-v2", &["F16", "Q5_0"]),
    ("gptq-4-asymmetric", &["Q5_0"]),
    ("gptq-4-v2", &["Q5_0"]),
    ("gptq-8", &["INT8", "Q8_0"]),
    ("gptq-8-channel", &["INT8"]),
    ("mlx-4", &["Q4_1"]),
    ("mlx-4-old", &["Q4_1"]),
    ("mlx-8", &["F16"]),
    ("mlx-mixed", &["F16", "Q4_1"]),
];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/quantized")
}

/// Returns the golden weights of a checkpoint: name of the module, type, values.
fn golden(case: &str) -> Vec<(String, Format, Vec<f32>)> {
    let file = MappedFile::open(folder().join("golden.safetensors")).unwrap();
    let header = safetensors::read(file.bytes(), &Element::ALL).unwrap();
    let of_case = header.tensors.into_iter().filter_map(|(name, tensor)| {
        let module = name.strip_prefix(&format!("{case}/"))?.to_owned();
        let bytes = &file.bytes()[tensor.bytes.clone()];
        let (format, values) = match tensor.element {
            Element::F32 => {
                let values = bytes.as_chunks().0.iter();
                (
                    Format::F32,
                    values.map(|it| f32::from_le_bytes(*it)).collect(),
                )
            }
            Element::F16 => {
                let values = bytes.as_chunks().0.iter();
                (
                    Format::F16,
                    values.map(|it| f16::from_le_bytes(*it).to_f32()).collect(),
                )
            }
            _ => {
                let values = bytes.as_chunks().0.iter();
                (
                    Format::Bf16,
                    values.map(|it| bf16::from_le_bytes(*it).to_f32()).collect(),
                )
            }
        };
        Some((module, format, values))
    });
    of_case.collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn each_scheme_dequantizes_to_the_bits_of_its_library() {
    for (case, _) in CASES {
        let checkpoint = Checkpoint::open(folder().join(case)).unwrap();
        let golden = golden(case);
        assert!(golden.len() >= 2 || case == "mlx-mixed", "{case}");
        for (module, format, expected) in golden {
            let tensor = &checkpoint.quantized()[&format!("{module}.weight")];
            let [rows, width] = tensor.shape();
            assert_eq!(tensor.float(), format, "{case} {module}");
            let mut found = vec![0.0; rows * width];
            checkpoint.dequantize(tensor, 0..rows, &mut found);
            assert_eq!(bits(&found), bits(&expected), "{case} {module}");
            // Rows from the middle of words and blocks.
            let mut part = vec![0.0; 4 * width];
            checkpoint.dequantize(tensor, 3..7, &mut part);
            assert_eq!(
                bits(&part),
                bits(&expected[3 * width..7 * width]),
                "{case} {module}"
            );
        }
    }
}

#[test]
fn what_is_computed_as_stored_rounds_to_the_bits_of_the_library() {
    for (case, _) in CASES {
        let checkpoint = Checkpoint::open(folder().join(case)).unwrap();
        for (module, format, expected) in golden(case) {
            let tensor = &checkpoint.quantized()[&format!("{module}.weight")];
            let group = match tensor.representation() {
                Representation::Float(_) => continue,
                Representation::Int8 => None,
                Representation::Int4 | Representation::Blocks(_) => Some(32),
            };
            let [rows, width] = tensor.shape();
            let mut integers = vec![0.0; rows * width];
            let groups = rows * group.map_or(1, |group| width / group);
            let (mut scales, mut offsets) = (vec![0.0; groups], vec![0.0; groups]);
            checkpoint.integers(
                tensor,
                0..rows,
                &mut integers,
                group,
                &mut scales,
                &mut offsets,
            );
            let limits = match tensor.representation() {
                Representation::Int4 => -8.0..=7.0,
                Representation::Blocks(BlockFormat::Q4_1) => 0.0..=15.0,
                Representation::Blocks(BlockFormat::Q5_0) => -16.0..=15.0,
                _ => -128.0..=127.0,
            };
            for (index, (integer, expected)) in integers.iter().zip(&expected).enumerate() {
                assert!(limits.contains(integer), "{case} {module}: {integer}");
                let place = index / group.unwrap_or(width);
                let (scale, offset) = (scales[place], offsets[place]);
                // MLX rounds the product, too; bitsandbytes rounds SCB and 1/127 one after the other.
                let product = match tensor.representation() {
                    Representation::Blocks(BlockFormat::Q4_1) => round(format, integer * scale),
                    _ => integer * scale,
                };
                let found = round(format, product + offset);
                let apart = found.to_bits().abs_diff(expected.to_bits());
                assert!(
                    apart <= u32::from(case == "bnb-int8"),
                    "{case} {module} {index}: {found} {expected}"
                );
                if group.is_some() {
                    assert_eq!(f16::from_f32(scale).to_f32(), scale, "{case} {module}");
                }
            }
        }
    }
}

fn round(to: Format, value: f32) -> f32 {
    match to {
        Format::F16 => f16::from_f32(value).to_f32(),
        Format::Bf16 => bf16::from_f32(value).to_f32(),
        _ => value,
    }
}

#[test]
fn each_scheme_is_computed_as_stored_where_a_format_has_its_integers_and_widened_elsewhere() {
    let folders = std::fs::read_dir(folder()).unwrap().filter_map(|entry| {
        let path = entry.unwrap().path();
        path.is_dir()
            .then(|| path.file_name().unwrap().to_str().unwrap().to_owned())
    });
    let listed: BTreeSet<_> = CASES.iter().map(|(case, _)| (*case).to_owned()).collect();
    assert_eq!(folders.collect::<BTreeSet<_>>(), listed);
    for (case, computed) in CASES {
        let checkpoint = Checkpoint::open(folder().join(case)).unwrap();
        let summaries = summary(checkpoint.quantized().values(), true);
        let found: BTreeSet<_> = summaries.iter().map(|it| it.computed.to_string()).collect();
        let found: Vec<_> = found.iter().map(String::as_str).collect();
        assert_eq!(found, computed, "{case}");
        let matrices: usize = summaries.iter().map(|it| it.matrices).sum();
        assert_eq!(matrices, checkpoint.quantized().len(), "{case}");
        let wide = summary(checkpoint.quantized().values(), false);
        assert!(wide.iter().all(|it| it.computed.is_wide()), "{case}");
        let stored: usize = wide.iter().map(|it| it.stored_bytes).sum();
        let plain: usize = checkpoint.tensors().values().map(|it| it.bytes.len()).sum();
        assert_eq!(checkpoint.stored_bytes(), stored + plain, "{case}");
    }
}
