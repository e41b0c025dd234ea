//! FP8: codes of E4M3 with one scale for the matrix, for each row, or for each block (of 128 × 128 in DeepSeek's and
//! Qwen's files). The reference multiplies in f32 and rounds to the type of the model.

use super::affine::{Affine, Codes, Columns, Grid, Zeros};
use super::config::Fields;
use super::part::{FLOATS, Part, Table};
use super::skipped::Skipped;
use super::{Method, QuantizedTensor};
use crate::error::Result;
use crate::safetensors::Element;
use crate::tensor::Format;

const NAME: &str = "FP8";
const FOLLOWED: [&str; 7] = [
    "quant_method",
    "weight_block_size",
    "fmt",
    "activation_scheme",
    "modules_to_not_convert",
    "ignored_layers",
    "scale_fmt",
];
/// They change activations or the way of loading.
const NEUTRAL: [&str; 3] = ["dequantize", "expert_dtype", "activation_scale_ub"];
/// Scales of activations.
const OF_ACTIVATIONS: [&str; 3] = [".input_scale", ".activation_scale", ".input_scale_ub"];
/// The block of files that do not state one.
const BLOCK: [usize; 2] = [128, 128];

#[derive(Debug)]
pub(super) struct Fp8 {
    blocks: Blocks,
    skipped: Skipped,
    dtype: Format,
}

#[derive(Clone, Copy, Debug)]
enum Blocks {
    Of([usize; 2]),
    /// One scale for the matrix or for each row.
    None,
    /// As the scales' shape tells.
    Unknown,
}

impl Fp8 {
    pub(super) fn new(fields: &Fields, dtype: Format) -> Result<Self> {
        fields.word("fmt", &["e4m3", "float8_e4m3fn"])?;
        fields.word("activation_scheme", &["dynamic", "static"])?;
        fields.word("scale_fmt", &["float", "ue8m0"])?;
        fields.word("expert_dtype", &["fp8"])?;
        fields.refuse_others(&FOLLOWED, &NEUTRAL)?;
        let blocks = match fields.block("weight_block_size")? {
            Some(block) => Blocks::Of(block),
            None if fields.has("weight_block_size") => Blocks::None,
            None => Blocks::Unknown,
        };
        Ok(Self {
            blocks,
            skipped: Skipped::new(fields, &["modules_to_not_convert", "ignored_layers"])?,
            dtype,
        })
    }

    /// Reads the fields of `fbgemm_fp8`, which has a scale for each row.
    pub(super) fn by_channel(fields: &Fields, dtype: Format) -> Result<Self> {
        fields.refuse_others(&["quant_method", "modules_to_not_convert"], &NEUTRAL)?;
        Ok(Self {
            blocks: Blocks::None,
            skipped: Skipped::new(fields, &["modules_to_not_convert"])?,
            dtype,
        })
    }

    fn grid(
        &self,
        table: &Table,
        name: &str,
        part: Part,
        shape: [usize; 2],
    ) -> Result<(Grid, Columns)> {
        let blocks = match self.blocks {
            Blocks::Of(block) => Some(block),
            Blocks::Unknown if !is_plain(&part.shape, shape) => Some(BLOCK),
            Blocks::None | Blocks::Unknown => None,
        };
        match blocks {
            Some(block) => by_blocks(table, name, part, shape, block),
            None => by_rows(table, name, part, shape),
        }
    }
}

/// Returns whether the shape is that of one scale, or of one scale for each row.
fn is_plain(found: &[usize], [rows, _]: [usize; 2]) -> bool {
    found.iter().all(|size| *size == 1) || found == [rows] || found == [rows, 1]
}

/// Returns the scales of a matrix with one scale, or one for each row.
pub(super) fn by_rows(
    table: &Table,
    name: &str,
    part: Part,
    shape: [usize; 2],
) -> Result<(Grid, Columns)> {
    if !is_plain(&part.shape, shape) || part.shape.len() > 2 {
        let message = format!(
            "tensor `{name}` has shape {:?}, expected [1] or [{}, 1]",
            part.shape, shape[0]
        );
        return Err(table.malformed(&part, message));
    }
    let row_stride = usize::from(part.elements() > 1);
    let grid = Grid {
        part,
        row_block: 1,
        row_stride,
        group_stride: 0,
        groups: 1,
    };
    Ok((grid, Columns::Runs(shape[1])))
}

/// Returns the scales of a matrix with one for each block; the last blocks may be smaller.
pub(super) fn by_blocks(
    table: &Table,
    name: &str,
    part: Part,
    shape: [usize; 2],
    block: [usize; 2],
) -> Result<(Grid, Columns)> {
    let [rows, groups] = [shape[0].div_ceil(block[0]), shape[1].div_ceil(block[1])];
    if part.shape != [rows, groups] {
        let message = format!(
            "tensor `{name}` has shape {:?}, expected {:?} for a matrix of {shape:?} in blocks of {block:?}",
            part.shape,
            [rows, groups]
        );
        return Err(table.malformed(&part, message));
    }
    let grid = Grid {
        part,
        row_block: block[0],
        row_stride: groups,
        group_stride: 1,
        groups,
    };
    Ok((grid, Columns::Runs(block[1])))
}

impl Method for Fp8 {
    fn name(&self) -> &'static str {
        NAME
    }

    fn main_suffix(&self) -> &'static str {
        ".weight"
    }

    fn skipped(&self) -> Option<&Skipped> {
        Some(&self.skipped)
    }

    fn take(&self, table: &mut Table) -> Result<Vec<QuantizedTensor>> {
        let mut tensors = Vec::new();
        for module in table.modules(".weight", &[Element::F8E4M3]) {
            let name = format!("{module}.weight");
            let (inverse, plain) = (format!("{name}_scale_inv"), format!("{name}_scale"));
            // Both are factors of the codes.
            let scale = if table.has(&plain) && !table.has(&inverse) {
                plain
            } else {
                inverse
            };
            let part = table.take(&scale, &FLOATS, &name)?;
            let weight = table.take(&name, &[Element::F8E4M3], &name)?;
            let shape = table.matrix(&name, &weight)?;
            let (scales, columns) = self.grid(table, &scale, part, shape)?;
            table.ignore(&module, &OF_ACTIVATIONS);
            let content = Affine {
                codes: Codes::Float8(weight),
                scales,
                zeros: Zeros::Constant(0),
                offsets: None,
                columns,
                factor: None,
                rounding: self.dtype,
            };
            tensors.push(QuantizedTensor::affine(
                &module,
                NAME,
                shape,
                content,
                table.files,
            ));
        }
        Ok(tensors)
    }
}
