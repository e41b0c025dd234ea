//! MXFP4: the experts of gpt-oss, in blocks of 32 numbers of 4 bits with an exponent in 8 bits.

use std::ops::Range;

use super::config::Fields;
use super::part::{Part, Table};
use super::{Content, File, Method, QuantizedTensor, Representation};
use crate::error::Result;
use crate::safetensors::Element;
use crate::tensor::Format;
use triad_blocks::BlockFormat;

const NAME: &str = "MXFP4";
const BLOCKS: &str = "_blocks";
const SCALES: &str = "_scales";
const FOLLOWED: [&str; 2] = ["quant_method", "modules_to_not_convert"];
/// It tells how to load.
const NEUTRAL: [&str; 1] = ["dequantize"];
/// Numbers of a block, and their bytes.
const ELEMENTS: usize = 32;
const BYTES: usize = ELEMENTS / 2;
/// The exponent of 1.
const BIAS: i32 = 127;
/// The exponent of blocks that are no numbers.
const NOT_A_NUMBER: u8 = 255;
/// The numbers of the codes without the sign.
const MAGNITUDES: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

#[derive(Debug)]
pub(super) struct Mxfp4;

impl Mxfp4 {
    pub(super) fn new(fields: &Fields) -> Result<Self> {
        fields.refuse_others(&FOLLOWED, &NEUTRAL)?;
        Ok(Self)
    }
}

impl Method for Mxfp4 {
    fn name(&self) -> &'static str {
        NAME
    }

    fn main_suffix(&self) -> &'static str {
        BLOCKS
    }

    fn skipped(&self) -> Option<&super::skipped::Skipped> {
        None
    }

    fn take(&self, table: &mut Table) -> Result<Vec<QuantizedTensor>> {
        let modules = table.modules(BLOCKS, &[Element::U8]);
        modules.iter().map(|name| tensor(table, name)).collect()
    }
}

/// Codes `[.., rows, blocks, 16]` and exponents `[.., rows, blocks]`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Codes {
    codes: Part,
    exponents: Part,
}

fn tensor(table: &mut Table, name: &str) -> Result<QuantizedTensor> {
    let main = format!("{name}{BLOCKS}");
    let codes = table.take(&main, &[Element::U8], &main)?;
    let [outer @ .., blocks, BYTES] = &codes.shape[..] else {
        let message = format!(
            "tensor `{main}` has shape {:?}, expected blocks of {BYTES} bytes",
            codes.shape
        );
        return Err(table.malformed(&codes, message));
    };
    let (rows, columns) = (outer.iter().product(), blocks.checked_mul(ELEMENTS));
    let Some(columns) = columns.filter(|columns| rows > 0 && *columns > 0) else {
        let message = format!(
            "tensor `{main}` has shape {:?}, expected a matrix that is not empty",
            codes.shape
        );
        return Err(table.malformed(&codes, message));
    };
    let of_exponents = &codes.shape[..codes.shape.len() - 1];
    let scales = format!("{name}{SCALES}");
    let exponents = table.take_shaped(&scales, &[Element::U8], of_exponents, &main)?;
    if exponents.bytes(table.files).contains(&NOT_A_NUMBER) {
        let message = format!(
            "tensor `{scales}` has the exponent {NOT_A_NUMBER}, which stands for no number, expected at most {}",
            NOT_A_NUMBER - 1
        );
        return Err(table.malformed(&exponents, message));
    }
    Ok(QuantizedTensor {
        name: name.to_owned(),
        scheme: NAME,
        shape: [rows, columns],
        representation: Representation::Blocks(BlockFormat::MXFP4),
        content: Content::Mxfp4(Codes { codes, exponents }),
    })
}

impl Codes {
    /// The format that holds all numbers.
    pub(super) const FLOAT: Format = Format::Bf16;

    pub(super) fn parts(&self) -> [&Part; 2] {
        [&self.codes, &self.exponents]
    }

    /// Returns the exponents and codes of the blocks of some rows.
    fn blocks<'a>(
        &self,
        files: &[File<'a>],
        [_, width]: [usize; 2],
        rows: &Range<usize>,
    ) -> impl Iterator<Item = (u8, &'a [u8; BYTES])> {
        let per_row = width / ELEMENTS;
        let blocks = rows.start * per_row..rows.end * per_row;
        let exponents = &self.exponents.bytes(files)[blocks.clone()];
        let codes = &self.codes.bytes(files).as_chunks().0[blocks];
        exponents.iter().copied().zip(codes)
    }

    /// Writes the numbers of some rows.
    pub(super) fn dequantize(
        &self,
        files: &[File],
        shape: [usize; 2],
        rows: &Range<usize>,
        out: &mut [f32],
    ) {
        let blocks = self.blocks(files, shape, rows);
        for ((exponent, codes), out) in blocks.zip(out.chunks_exact_mut(ELEMENTS)) {
            let factor = (f64::from(i32::from(exponent) - BIAS)).exp2() as f32;
            for (byte, pair) in codes.iter().zip(out.chunks_exact_mut(2)) {
                // The first of two codes is in the low bits.
                for (code, out) in [byte & 15, byte >> 4].into_iter().zip(pair) {
                    let value = MAGNITUDES[usize::from(code & 7)] * factor;
                    *out = if code < 8 { value } else { -value };
                }
            }
        }
    }

    /// Writes some rows in the order of GGUF: the exponent, then bytes with numbers `j` and `j + 16`.
    pub(super) fn write_blocks(
        &self,
        files: &[File],
        shape: [usize; 2],
        rows: &Range<usize>,
        out: &mut [u8],
    ) {
        let blocks = self.blocks(files, shape, rows);
        for ((exponent, codes), out) in blocks.zip(out.chunks_exact_mut(1 + BYTES)) {
            out[0] = exponent;
            let code = |place: usize| codes[place / 2] >> (4 * (place % 2)) & 15;
            for (place, byte) in out[1..].iter_mut().enumerate() {
                *byte = code(place) | code(place + BYTES) << 4;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use serde_json::json;

    use super::*;
    use crate::dequantize::dequantize;
    use crate::quantized::Plan;
    use crate::safetensors::Tensor;

    fn plan(changes: &serde_json::Value) -> Result<Option<Plan>> {
        let mut config = json!({ "quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"] });
        let fields = config.as_object_mut().unwrap();
        fields.extend(changes.as_object().unwrap().clone());
        Plan::new(&json!({ "quantization_config": config }))
    }

    /// Returns the tensors of a file with two experts of three rows of 64 numbers.
    fn stored(codes: &[usize], exponents: &[usize]) -> BTreeMap<String, (usize, Tensor)> {
        let tensor = |shape: &[usize], first: usize| Tensor {
            element: Element::U8,
            shape: shape.to_vec(),
            bytes: first..first + shape.iter().product::<usize>(),
        };
        let of = |name: &str, tensor| (format!("experts.{name}"), (0, tensor));
        BTreeMap::from([
            of("down_proj_blocks", tensor(codes, 0)),
            of("down_proj_scales", tensor(exponents, 192)),
        ])
    }

    #[test]
    fn numbers_are_those_of_the_same_blocks_in_gguf() {
        let plan = plan(&json!({})).unwrap().unwrap();
        let codes = (0..192u32).map(|index| (index * 77 + index / 5) as u8);
        let bytes: Vec<u8> = codes.chain((0..12).map(|index| 120 + index)).collect();
        let files = [File {
            path: Path::new("model.safetensors"),
            bytes: &bytes,
        }];
        let (plain, quantized) = plan
            .find(stored(&[2, 3, 2, 16], &[2, 3, 2]), &files)
            .unwrap();
        assert!(plain.is_empty());
        let tensor = &quantized["experts.down_proj"];
        assert_eq!(tensor.shape(), [6, 64]);
        for rows in [0..6, 1..2, 3..5] {
            let mut values = vec![0.0; rows.len() * 64];
            tensor.dequantize(&files, rows.clone(), &mut values);
            let mut blocks = vec![0; rows.len() * 34];
            assert!(tensor.blocks(&files, rows, &mut blocks));
            let mut of_blocks = vec![0.0; values.len()];
            dequantize(Format::Blocks(BlockFormat::MXFP4), &blocks, &mut of_blocks);
            assert_eq!(values, of_blocks);
        }
        // The first byte is 0, the second 77: codes 13 and 4, in this order.
        let mut first = vec![0.0; 64];
        tensor.dequantize(&files, 0..1, &mut first);
        let unit = 2f32.powi(120 - 127);
        assert_eq!(first[..4], [0.0, 0.0, -3.0 * unit, 2.0 * unit]);
    }

    #[test]
    fn exponents_up_to_254_give_the_numbers_of_gguf_and_255_is_refused_by_name() {
        let plan = plan(&json!({})).unwrap().unwrap();
        for (exponent, largest) in [
            (0, 6.0 * f64::from(-127).exp2()),
            (1, 6.0 * f64::from(-126).exp2()),
            (254, f64::INFINITY),
        ] {
            // All codes, in each block.
            let codes =
                (0..192u32).map(|index| ((index * 2 % 16) | (((index * 2 + 1) % 16) << 4)) as u8);
            let bytes: Vec<u8> = codes.chain([exponent; 12]).collect();
            let files = [File {
                path: Path::new("model.safetensors"),
                bytes: &bytes,
            }];
            let stored = stored(&[2, 3, 2, 16], &[2, 3, 2]);
            let (_, quantized) = plan.find(stored, &files).unwrap();
            let tensor = &quantized["experts.down_proj"];
            let mut values = vec![0.0; 6 * 64];
            tensor.dequantize(&files, 0..6, &mut values);
            let mut blocks = vec![0; 6 * 34];
            assert!(tensor.blocks(&files, 0..6, &mut blocks));
            let mut of_blocks = vec![0.0; values.len()];
            dequantize(Format::Blocks(BlockFormat::MXFP4), &blocks, &mut of_blocks);
            assert_eq!(values, of_blocks, "exponent {exponent}");
            assert_eq!(values[7], largest as f32, "exponent {exponent}");
            assert_eq!(values[15], -largest as f32, "exponent {exponent}");
        }
        let mut bytes = vec![0; 204];
        bytes[200] = 255;
        let files = [File {
            path: Path::new("model.safetensors"),
            bytes: &bytes,
        }];
        let stored = stored(&[2, 3, 2, 16], &[2, 3, 2]);
        let error = plan.find(stored, &files).unwrap_err().to_string();
        assert!(
            error.contains("model.safetensors")
                && error.contains("`experts.down_proj_scales`")
                && error.contains("255"),
            "{error}"
        );
    }

    #[test]
    fn what_is_no_mxfp4_is_refused_by_name() {
        let error = plan(&json!({ "group_size": 16 })).unwrap_err().to_string();
        assert!(error.contains("group_size"), "{error}");
        let plan = plan(&json!({})).unwrap().unwrap();
        let bytes = vec![0; 204];
        let files = [File {
            path: Path::new("model.safetensors"),
            bytes: &bytes,
        }];
        for (codes, exponents, expected) in [
            (&[2, 3, 4, 8][..], &[2, 3, 4][..], "blocks of 16 bytes"),
            (&[2, 3, 2, 16], &[2, 3, 1], "down_proj_scales"),
            (&[2, 0, 2, 16], &[2, 0, 2], "not empty"),
        ] {
            let error = plan.find(stored(codes, exponents), &files).unwrap_err();
            assert!(
                error.to_string().contains(expected),
                "{error} for {expected}"
            );
        }
    }
}
