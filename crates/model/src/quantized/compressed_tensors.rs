//! The formats of compressed-tensors: INT8 and FP8 as they are (`int-quantized`, `float-quantized`,
//! `naive-quantized`), and integers of 4 or 8 bits in words (`pack-quantized`). The reference computes in the type of
//! the scales.

use super::affine::{Affine, Codes, Columns, Grid, Zeros};
use super::config::Fields;
use super::fp8::{by_blocks, by_rows};
use super::part::{FLOATS, Part, Table, integer};
use super::skipped::Skipped;
use super::{Method, QuantizedTensor};
use crate::error::{Error, ErrorKind, Result};
use crate::safetensors::Element;
use crate::tensor::Format;

const NAME: &str = "compressed-tensors";
const FOLLOWED: [&str; 9] = [
    "quant_method",
    "format",
    "config_groups",
    "ignore",
    "kv_cache_scheme",
    "sparsity_config",
    "transform_config",
    "quantization_status",
    "moe_sparsity_config",
];
const NEUTRAL: [&str; 2] = ["global_compression_ratio", "version"];
/// Fields of the weights of a group.
const OF_WEIGHTS: [&str; 8] = [
    "num_bits",
    "type",
    "symmetric",
    "strategy",
    "group_size",
    "block_structure",
    "dynamic",
    "actorder",
];
/// They only tell how the weights were quantized, or repeat the types of the tensors.
const OF_WEIGHTS_NEUTRAL: [&str; 4] = ["observer", "observer_kwargs", "scale_dtype", "zp_dtype"];
const OF_GROUP: [&str; 5] = [
    "targets",
    "weights",
    "input_activations",
    "output_activations",
    "format",
];
/// Parameters of activations.
const OF_ACTIVATIONS: [&str; 3] = [".input_scale", ".input_zero_point", ".input_global_scale"];

#[derive(Debug)]
pub(super) struct CompressedTensors {
    codes: Stored,
    strategy: Strategy,
    is_symmetric: bool,
    by_index: bool,
    skipped: Skipped,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Stored {
    Int8,
    Float8,
    Packed(u32),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Strategy {
    Rows,
    Groups(usize),
    Blocks([usize; 2]),
}

impl CompressedTensors {
    pub(super) fn new(fields: &Fields) -> Result<Self> {
        fields.refuse_others(&FOLLOWED, &NEUTRAL)?;
        for field in ["kv_cache_scheme", "transform_config", "moe_sparsity_config"] {
            fields.refuse(field)?;
        }
        if let Some(sparsity) = fields.object("sparsity_config")? {
            sparsity.word("format", &["dense"])?;
            sparsity.refuse_others(
                &["format"],
                &[
                    "sparsity_structure",
                    "global_sparsity",
                    "ignore",
                    "targets",
                    "registry_requires_subclass",
                ],
            )?;
        }
        fields.word("quantization_status", &["compressed"])?;
        let groups = fields
            .object("config_groups")?
            .ok_or_else(|| fields.wrong("config_groups", "an object"))?;
        let mut found = None;
        for key in groups.keys() {
            let group = groups
                .object(key)?
                .ok_or_else(|| groups.wrong(key, "an object"))?;
            let (codes, strategy, is_symmetric, by_index) = of_group(fields, &group)?;
            let group = (codes, strategy, is_symmetric, by_index);
            if found.is_some_and(|other| other != group) {
                return Err(groups.unsupported(key, "the same weights as the other groups"));
            }
            found = Some(group);
        }
        let Some((codes, strategy, is_symmetric, by_index)) = found else {
            return Err(fields.wrong("config_groups", "an object with a group"));
        };
        let mut skipped = Skipped::new(fields, &["ignore"])?;
        if !targets_all(&groups)? {
            // Some modules are quantized, and the tensors tell which.
            skipped = skipped.only(Some(Vec::new()));
        }
        Ok(Self {
            codes,
            strategy,
            is_symmetric,
            by_index,
            skipped,
        })
    }
}

/// Returns whether a group has all linear layers.
fn targets_all(groups: &Fields) -> Result<bool> {
    for key in groups.keys() {
        let group = groups.object(key)?;
        let targets = group.map(|group| group.strings("targets")).transpose()?;
        if targets
            .flatten()
            .is_none_or(|targets| targets.contains(&"Linear"))
        {
            return Ok(true);
        }
    }
    Ok(false)
}

fn of_group(fields: &Fields, group: &Fields) -> Result<(Stored, Strategy, bool, bool)> {
    group.refuse_others(&OF_GROUP, &[])?;
    group.refuse("output_activations")?;
    let weights = group
        .object("weights")?
        .ok_or_else(|| group.unsupported("weights", "an object"))?;
    weights.refuse_others(&OF_WEIGHTS, &OF_WEIGHTS_NEUTRAL)?;
    weights.refuse("dynamic")?;
    let bits = weights.one_of("num_bits", &[4, 8])?.unwrap_or(8) as u32;
    let is_float = weights.word("type", &["int", "float"])?.as_deref() == Some("float");
    let is_symmetric = weights.bool("symmetric")?.unwrap_or(true);
    let actorder = match weights.raw("actorder") {
        Some(value) if value.as_bool() == Some(false) => None,
        _ => weights.word("actorder", &["weight", "static", "group", "dynamic"])?,
    };
    let by_index = matches!(actorder.as_deref(), Some("group" | "dynamic"));

    let formats = [
        "int-quantized",
        "float-quantized",
        "naive-quantized",
        "pack-quantized",
    ];
    let format = match group.word("format", &formats)? {
        Some(format) => format,
        None => fields
            .word("format", &formats)?
            .ok_or_else(|| fields.unsupported("format", &formats.join(" or ")))?,
    };
    let codes = match (format.as_str(), is_float) {
        ("int-quantized" | "naive-quantized", false) => Stored::Int8,
        ("float-quantized" | "naive-quantized", true) if bits == 8 && is_symmetric => {
            Stored::Float8
        }
        ("pack-quantized", false) => Stored::Packed(bits),
        _ => {
            return Err(
                weights.unsupported("type", &format!("a type of `{format}` with its `num_bits`"))
            );
        }
    };

    let size = weights.group_size("group_size")?;
    let strategy = weights.word("strategy", &["tensor", "channel", "group", "block"])?;
    let strategy = match (strategy.as_deref(), size) {
        (Some("tensor" | "channel"), _) | (None, None | Some(None)) => Strategy::Rows,
        (Some("group") | None, Some(Some(size))) => Strategy::Groups(size),
        (Some("block"), _) => {
            let block = weights.block("block_structure")?;
            Strategy::Blocks(block.ok_or_else(|| weights.wrong("block_structure", "two numbers"))?)
        }
        _ => return Err(weights.wrong("group_size", "the number of columns of a group")),
    };
    Ok((codes, strategy, is_symmetric, by_index))
}

impl Method for CompressedTensors {
    fn name(&self) -> &'static str {
        NAME
    }

    fn main_suffix(&self) -> &'static str {
        match self.codes {
            Stored::Packed(_) => ".weight_packed",
            _ => ".weight",
        }
    }

    fn skipped(&self) -> Option<&Skipped> {
        Some(&self.skipped)
    }

    fn take(&self, table: &mut Table) -> Result<Vec<QuantizedTensor>> {
        let (element, scheme) = match self.codes {
            Stored::Int8 => (Element::I8, "compressed-tensors INT8"),
            Stored::Float8 => (Element::F8E4M3, "compressed-tensors FP8"),
            Stored::Packed(4) => (Element::I32, "compressed-tensors INT4"),
            Stored::Packed(_) => (Element::I32, "compressed-tensors INT8"),
        };
        let modules = table.modules(self.main_suffix(), &[element]);
        let take = |module: &String| {
            let (shape, content) = self.module(table, module, element)?;
            table.ignore(module, &OF_ACTIVATIONS);
            Ok(QuantizedTensor::affine(
                module,
                scheme,
                shape,
                content,
                table.files,
            ))
        };
        modules.iter().map(take).collect()
    }
}

impl CompressedTensors {
    fn module(
        &self,
        table: &mut Table,
        module: &str,
        element: Element,
    ) -> Result<([usize; 2], Affine)> {
        let main = format!("{module}{}", self.main_suffix());
        let name = |part: &str| format!("{module}.weight_{part}");
        let part = table.take(&main, &[element], &main)?;
        let scale = table.take(&name("scale"), &FLOATS, &main)?;
        let rounding = scale.element.format().unwrap_or(Format::F32);
        let (shape, codes) = match self.codes {
            Stored::Int8 => (table.matrix(&main, &part)?, Codes::Signed(part)),
            Stored::Float8 => (table.matrix(&main, &part)?, Codes::Float8(part)),
            Stored::Packed(bits) => {
                let shape = stated_shape(table, &name("shape"), &main, &part, bits)?;
                (shape, Codes::Rows { part, bits })
            }
        };
        let (scales, mut columns) = self.grid(table, &name("scale"), scale, shape)?;
        let zeros = self.zeros(table, &name("zero_point"), &main, &scales, shape)?;
        if self.by_index && table.has(&name("g_idx")) {
            let index = name("g_idx");
            let part = table.take_shaped(&index, &[Element::I32], &[shape[1]], &main)?;
            columns = self.indexed(table, &index, &part, scales.groups)?;
        }
        let content = Affine {
            codes,
            scales,
            zeros,
            offsets: None,
            columns,
            factor: None,
            rounding,
        };
        Ok((shape, content))
    }

    fn grid(
        &self,
        table: &Table,
        name: &str,
        part: Part,
        shape: [usize; 2],
    ) -> Result<(Grid, Columns)> {
        match self.strategy {
            Strategy::Rows => by_rows(table, name, part, shape),
            Strategy::Blocks(block) => by_blocks(table, name, part, shape, block),
            Strategy::Groups(size) if shape[1].is_multiple_of(size) => {
                by_blocks(table, name, part, shape, [1, size])
            }
            Strategy::Groups(size) => Err(table.malformed(
                &part,
                format!(
                    "tensor `{name}` is for groups of {size} columns, but the matrix has {}",
                    shape[1]
                ),
            )),
        }
    }

    fn zeros(
        &self,
        table: &mut Table,
        name: &str,
        main: &str,
        scales: &Grid,
        shape: [usize; 2],
    ) -> Result<Zeros> {
        match self.codes {
            Stored::Packed(bits) if self.is_symmetric => Ok(Zeros::Constant(1 << (bits - 1))),
            Stored::Packed(bits) => {
                let rows = shape[0].div_ceil((32 / bits) as usize);
                let part =
                    table.take_shaped(name, &[Element::I32], &[rows, scales.groups], main)?;
                Ok(Zeros::ByRows { part, bits })
            }
            // Older files of symmetric weights have zero points of 0.
            _ if self.is_symmetric && !table.has(name) => Ok(Zeros::Constant(0)),
            Stored::Int8 => {
                let expected = scales.part.shape.clone();
                let part = table.take_shaped(name, &[Element::I8], &expected, main)?;
                Ok(Zeros::Signed(part))
            }
            Stored::Float8 => {
                let part = table.take(name, &[Element::F8E4M3, Element::I8, Element::F32], main)?;
                match part.bytes(table.files).iter().all(|byte| *byte == 0) {
                    true => Ok(Zeros::Constant(0)),
                    false => Err(table.malformed(
                        &part,
                        format!("tensor `{name}` is not 0 everywhere, expected symmetric weights"),
                    )),
                }
            }
        }
    }

    /// Returns the columns by the group of each. The reference sorts the columns by group and then cuts them into
    /// groups of one size, so that each group must have that size.
    fn indexed(&self, table: &Table, name: &str, part: &Part, groups: usize) -> Result<Columns> {
        let Strategy::Groups(size) = self.strategy else {
            return Err(table.malformed(
                part,
                format!("tensor `{name}` is there, but the weights have no groups"),
            ));
        };
        let index = super::gptq::group_index(table, name, part, groups)?;
        let mut counts = vec![0; groups];
        index.iter().for_each(|group| counts[*group as usize] += 1);
        match counts.iter().position(|count| *count != size) {
            None => Ok(Columns::from_index(index, size)),
            Some(group) => Err(table.malformed(
                part,
                format!(
                    "tensor `{name}` puts {} columns into group {group}, expected {size}",
                    counts[group]
                ),
            )),
        }
    }
}

/// Reads the shape of a packed matrix, and checks that of `part` against it.
fn stated_shape(
    table: &mut Table,
    name: &str,
    main: &str,
    part: &Part,
    bits: u32,
) -> Result<[usize; 2]> {
    let stated = table.take_shaped(name, &[Element::I64, Element::I32], &[2], main)?;
    let bytes = stated.bytes(table.files);
    let size = |index| {
        usize::try_from(integer(stated.element, bytes, index))
            .ok()
            .filter(|size| *size > 0)
    };
    let (Some(rows), Some(columns)) = (size(0), size(1)) else {
        return Err(table.malformed(
            &stated,
            format!("tensor `{name}` has no sizes above 0, expected those of a matrix"),
        ));
    };
    let words = columns
        .checked_mul(bits as usize)
        .map(|bits| bits.div_ceil(32));
    match words {
        Some(words) if part.shape == [rows, words] => Ok([rows, columns]),
        _ => {
            let message = format!(
                "tensor `{main}` has shape {:?}, expected that of a matrix of [{rows}, {columns}] in {bits} bits, as \
                 `{name}` states",
                part.shape
            );
            Err(Error::new(ErrorKind::Malformed, message).at(table.path(part)))
        }
    }
}
