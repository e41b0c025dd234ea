//! Quantized safetensors: matrices that a checkpoint stores as several tensors, under the names of the scheme that
//! `config.json` states.
//!
//! [`Plan::new`] reads `quantization_config` (or `quantization`, as MLX writes it) and refuses each field that it does
//! not follow. [`Plan::find`] puts the tensors of the files together to [`QuantizedTensor`]s, each under the name that
//! the matrix has in unquantized checkpoints, so that the other readers see a matrix with a shape in features. There is
//! one file for each scheme: [`fp8`], [`compressed_tensors`], [`awq`], [`gptq`], [`bitsandbytes`], [`mlx`], [`mxfp4`]. Most
//! store [`affine`] codes.
//!
//! [`QuantizedTensor::dequantize`] gives the numbers of the scheme's reference implementation, bit for bit. If a format
//! of the kernels has the same integers and scales, the engine uses it instead ([`Representation`]): products are then
//! computed from the integers, without the reference's rounding of each weight. Only weights count: quantization of
//! activations that a configuration states is not applied.

mod affine;
mod awq;
mod bitsandbytes;
mod compressed_tensors;
mod config;
mod fp8;
mod gptq;
mod mlx;
mod mxfp4;
mod part;
mod skipped;
mod summary;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use serde_json::Value;
use triad_blocks::BlockFormat;

pub use part::File;
use part::{Part, Table};
pub use summary::{Summary, summary};

use crate::error::{Error, ErrorKind, Result};
use crate::safetensors::Tensor;
use crate::tensor::{Format, TensorInfo};
use affine::Affine;
use awq::Awq;
use bitsandbytes::{BitsAndBytes, FourBits};
use compressed_tensors::CompressedTensors;
use config::Fields;
use fp8::Fp8;
use gptq::Gptq;
use mlx::Mlx;
use mxfp4::{Codes, Mxfp4};
use skipped::Skipped;

/// Name prefixes of blocks: those of `family`'s roots.
const BLOCKS: [&str; 6] = [
    "model.layers.",
    "language_model.model.layers.",
    "model.language_model.layers.",
    "model.text_model.layers.",
    "layers.",
    "language_model.layers.",
];
/// Names of the linear layers that all schemes quantize unless the configuration excludes them.
const LINEARS: [&str; 12] = [
    "q_proj",
    "k_proj",
    "v_proj",
    "o_proj",
    "gate_proj",
    "up_proj",
    "down_proj",
    "qkv_proj",
    "gate_up_proj",
    "dense",
    "fc1",
    "fc2",
];

/// The format in which the engine computes with a quantized tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Representation {
    /// Floats: the dequantized values.
    Float(Format),
    /// INT8 with a scale for each row.
    Int8,
    /// INT4 with a scale in f16 for 32 neighbours of a row.
    Int4,
    /// Blocks of GGUF.
    Blocks(BlockFormat),
}

impl Representation {
    /// Returns the bytes of a matrix of this shape.
    pub fn bytes(self, [rows, columns]: [usize; 2]) -> usize {
        let elements = rows * columns;
        match self {
            Self::Float(format) => elements * format.block_bytes(),
            Self::Int8 => elements + rows * size_of::<f32>(),
            Self::Int4 => elements / 2 + elements / 16,
            Self::Blocks(format) => elements / format.elements() * format.bytes(),
        }
    }

    /// Returns whether the values are widened, as opposed to computed as stored.
    pub fn is_wide(self) -> bool {
        matches!(self, Self::Float(_))
    }
}

impl fmt::Display for Representation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Float(format) => format.fmt(formatter),
            Self::Int8 => formatter.write_str("INT8"),
            Self::Int4 => formatter.write_str("INT4"),
            Self::Blocks(format) => format.fmt(formatter),
        }
    }
}

/// A matrix `[out_features, in_features]` that is stored as several tensors, all of them checked.
#[derive(Clone, Debug)]
pub struct QuantizedTensor {
    name: String,
    scheme: &'static str,
    shape: [usize; 2],
    content: Content,
    representation: Representation,
}

#[derive(Clone, Debug)]
enum Content {
    Affine(Affine),
    FourBits(FourBits),
    Mxfp4(Codes),
}

impl QuantizedTensor {
    fn affine(
        module: &str,
        scheme: &'static str,
        shape: [usize; 2],
        content: Affine,
        files: &[File],
    ) -> Self {
        Self {
            name: format!("{module}.weight"),
            scheme,
            shape,
            representation: content.representation(files, shape),
            content: Content::Affine(content),
        }
    }

    /// Returns the name that the matrix has in unquantized checkpoints.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the name of the scheme.
    pub fn scheme(&self) -> &'static str {
        self.scheme
    }

    /// Returns `[out_features, in_features]`.
    pub fn shape(&self) -> [usize; 2] {
        self.shape
    }

    /// Returns the format in which the engine computes, if it may use the stored integers.
    pub fn representation(&self) -> Representation {
        self.representation
    }

    /// Returns the format that holds the dequantized values exactly: F32, F16 or BF16.
    pub fn float(&self) -> Format {
        match &self.content {
            Content::Affine(affine) => affine.rounding,
            Content::FourBits(four_bits) => four_bits.rounding,
            Content::Mxfp4(_) => Codes::FLOAT,
        }
    }

    /// Returns the bytes of all its stored tensors.
    pub fn stored_bytes(&self) -> usize {
        self.places().iter().map(|(_, bytes)| bytes.len()).sum()
    }

    /// Returns the position of all its stored tensors: the file, and the range there.
    pub fn places(&self) -> Vec<(usize, Range<usize>)> {
        match &self.content {
            Content::Affine(affine) => affine.parts().map(Part::place).collect(),
            Content::FourBits(four_bits) => four_bits.parts().map(Part::place).collect(),
            Content::Mxfp4(codes) => codes.parts().map(Part::place).into(),
        }
    }

    /// Writes some rows as the scheme's reference dequantizes them. `files` are those of the checkpoint.
    ///
    /// # Panics
    /// If the rows are not rows of this matrix, or `out` has another length.
    pub fn dequantize(&self, files: &[File], rows: Range<usize>, out: &mut [f32]) {
        self.check(&rows, out.len());
        match &self.content {
            Content::Affine(affine) => affine.dequantize(files, self.shape, rows, out),
            Content::FourBits(four_bits) => four_bits.dequantize(files, self.shape, rows, out),
            Content::Mxfp4(codes) => codes.dequantize(files, self.shape, &rows, out),
        }
    }

    /// Writes some rows as blocks of GGUF, and returns whether the tensor is stored in such blocks in another order.
    ///
    /// # Panics
    /// As [`Self::dequantize`].
    pub fn blocks(&self, files: &[File], rows: Range<usize>, out: &mut [u8]) -> bool {
        let Content::Mxfp4(codes) = &self.content else {
            return false;
        };
        let bytes = self.representation.bytes([rows.len(), self.shape[1]]);
        assert!(
            rows.end <= self.shape[0] && out.len() == bytes,
            "{}: rows {rows:?} in {} bytes",
            self.name,
            out.len()
        );
        codes.write_blocks(files, self.shape, &rows, out);
        true
    }

    /// Writes some rows of integers, and their scales: one for each row if `group` is `None`, otherwise for each
    /// `group` columns. For Q4_1 writes what is added to each group to `offsets`, too.
    ///
    /// # Panics
    /// If the [representation](Self::representation) has no integers, or a length contradicts the rows.
    pub fn integers(
        &self,
        files: &[File],
        rows: Range<usize>,
        out: &mut [f32],
        group: Option<usize>,
        scales: &mut [f32],
        offsets: &mut [f32],
    ) {
        self.check(&rows, out.len());
        let Content::Affine(affine) = &self.content else {
            panic!("{}: no integers", self.name)
        };
        affine.integers(files, self.shape, rows.clone(), out);
        let width = self.shape[1];
        let per_row = group.map_or(1, |group| width / group);
        let mut of_groups = vec![0.0; affine.scales.groups];
        let has_offsets = affine.offsets.is_some();
        for (index, row) in rows.enumerate() {
            let place = index * per_row..(index + 1) * per_row;
            affine.scales(files, row, &mut of_groups);
            affine.repeat(
                &of_groups,
                group.unwrap_or(width),
                &mut scales[place.clone()],
            );
            if has_offsets {
                affine.offsets(files, row, &mut of_groups);
                affine.repeat(&of_groups, group.unwrap_or(width), &mut offsets[place]);
            }
        }
    }

    fn check(&self, rows: &Range<usize>, length: usize) {
        assert!(
            rows.end <= self.shape[0] && length == rows.len() * self.shape[1],
            "{}: rows {rows:?} in {length} numbers",
            self.name
        );
    }
}

/// A scheme of quantization with what a configuration states about it.
trait Method: fmt::Debug {
    /// Returns the name for errors.
    fn name(&self) -> &'static str;

    /// Returns the suffix of the tensor that each quantized matrix has.
    fn main_suffix(&self) -> &'static str;

    /// Returns the modules that are not quantized; `None` if the tensors alone decide.
    fn skipped(&self) -> Option<&Skipped>;

    /// Takes all quantized tensors out of the table.
    fn take(&self, table: &mut Table) -> Result<Vec<QuantizedTensor>>;
}

/// The quantization of a checkpoint, as its `config.json` states it.
#[derive(Debug)]
pub struct Plan {
    /// The field with the settings, for errors.
    field: &'static str,
    method: Box<dyn Method>,
}

/// The tensors of a checkpoint: those that are stored as they are, and those that are quantized, by name.
pub type Tensors = (
    BTreeMap<String, TensorInfo>,
    BTreeMap<String, QuantizedTensor>,
);

impl Plan {
    /// Reads the fields of `config.json` about quantization; returns `None` if it has none.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for a method, a number of bits or a field that Triad does not follow,
    /// [`ErrorKind::Malformed`] for a value of a wrong type. The message names the field.
    pub fn new(config: &Value) -> Result<Option<Self>> {
        Ok(method(config)?.map(|(field, method)| Self { field, method }))
    }

    /// Returns `config` without the fields that [`Self::new`] has read.
    pub fn without(config: &Value) -> Value {
        let mut config = config.clone();
        if let Value::Object(fields) = &mut config {
            fields.retain(|key, _| !config::FIELDS.contains(&key.as_str()));
        }
        config
    }

    /// Puts the stored tensors together. `stored` has the file of each with its description, and `files` are those of
    /// the checkpoint.
    ///
    /// # Errors
    /// [`ErrorKind::Missing`] for an absent tensor, [`ErrorKind::Malformed`] for a wrong shape or content,
    /// [`ErrorKind::Unsupported`] for a wrong type. The message names file, tensor and expectation.
    pub fn find(
        &self,
        stored: BTreeMap<String, (usize, Tensor)>,
        files: &[File],
    ) -> Result<Tensors> {
        let scheme = self.method.name();
        let mut table = Table {
            tensors: stored,
            files,
            scheme,
        };
        let taken = self.method.take(&mut table)?;
        if taken.is_empty() {
            let message = format!(
                "config.json sets `{}` ({scheme}), but there is no quantized tensor, expected names that end in `{}`",
                self.field,
                self.method.main_suffix()
            );
            return Err(Error::new(ErrorKind::Missing, message));
        }
        if let Some(skipped) = self.method.skipped() {
            self.check_skipped(skipped, &table, &taken)?;
        }
        let mut plain = BTreeMap::new();
        for (name, (file, tensor)) in table.tensors {
            let element = tensor.element;
            let Some(info) = tensor.info(name.clone(), file) else {
                let message = format!(
                    "tensor `{name}` has type {}, expected F32, F16, BF16 or a part of a matrix that is quantized by \
                     {scheme}",
                    element.name()
                );
                return Err(Error::new(ErrorKind::Unsupported, message).at(files[file].path));
            };
            plain.insert(name, info);
        }
        let quantized = taken
            .into_iter()
            .map(|tensor| (tensor.name.clone(), tensor));
        let quantized: BTreeMap<_, _> = quantized.collect();
        if let Some(name) = quantized.keys().find(|name| plain.contains_key(*name)) {
            let info = &plain[name];
            let message = format!(
                "tensor `{name}` is there as it is and quantized by {scheme}, expected one"
            );
            return Err(Error::new(ErrorKind::Malformed, message).at(files[info.file].path));
        }
        Ok((plain, quantized))
    }

    /// Checks that the linear layers of the blocks are quantized unless the configuration excludes them.
    fn check_skipped(
        &self,
        skipped: &Skipped,
        table: &Table,
        taken: &[QuantizedTensor],
    ) -> Result<()> {
        let scheme = self.method.name();
        for tensor in taken {
            let module = tensor.name.trim_end_matches(".weight");
            if skipped.names_exactly(module) {
                let message = format!(
                    "tensor `{module}{}` is quantized by {scheme}, but `{}` of config.json excludes `{module}`",
                    self.method.main_suffix(),
                    skipped.field
                );
                return Err(Error::new(ErrorKind::Malformed, message));
            }
        }
        for (name, (file, tensor)) in &table.tensors {
            let Some(module) = name.strip_suffix(".weight") else {
                continue;
            };
            let is_linear = tensor.shape.len() == 2
                && BLOCKS.iter().any(|root| module.starts_with(root))
                && LINEARS.contains(&module.rsplit('.').next().unwrap_or_default());
            if is_linear && !skipped.may_name(module) {
                let message = format!(
                    "tensor `{name}` is not quantized: expected `{module}{}` of {scheme}, or `{module}` in `{}` of \
                     config.json",
                    self.method.main_suffix(),
                    skipped.field
                );
                return Err(Error::new(ErrorKind::Missing, message).at(table.files[*file].path));
            }
        }
        Ok(())
    }
}

/// Returns the method that `config` states, with its field; `None` if the weights are not quantized.
fn method(config: &Value) -> Result<Option<(&'static str, Box<dyn Method>)>> {
    let transformers = Fields::of_file(config, config::FIELDS[0])?;
    let mlx = Fields::of_file(config, config::FIELDS[1])?;
    if let Some(mlx) = mlx {
        // MLX writes the same object under both names.
        if transformers.is_some_and(|other| !other.is_same(&mlx)) {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "config.json: `quantization_config` differs from `quantization`, expected one of them, or the same object",
            ));
        }
        return Ok(Some((config::FIELDS[1], Box::new(Mlx::new(&mlx)?))));
    }
    let Some(fields) = transformers else {
        return Ok(None);
    };
    let method: Box<dyn Method> = match fields.string("quant_method")? {
        Some("fp8") => Box::new(Fp8::new(&fields, config::dtype(config)?)?),
        Some("fbgemm_fp8") => Box::new(Fp8::by_channel(&fields, config::dtype(config)?)?),
        Some("compressed-tensors") => Box::new(CompressedTensors::new(&fields)?),
        Some("awq") => Box::new(Awq::new(&fields)?),
        Some("gptq") => Box::new(Gptq::new(&fields)?),
        Some("bitsandbytes") => Box::new(BitsAndBytes::new(&fields)?),
        Some("mxfp4") => Box::new(Mxfp4::new(&fields)?),
        // Old files of bitsandbytes do not state the method.
        None if fields.raw("load_in_4bit").is_some() || fields.raw("load_in_8bit").is_some() => {
            Box::new(BitsAndBytes::new(&fields)?)
        }
        _ => {
            return Err(fields.unsupported(
                "quant_method",
                "fp8, fbgemm_fp8, compressed-tensors, awq, gptq, bitsandbytes or mxfp4",
            ));
        }
    };
    Ok(Some((config::FIELDS[0], method)))
}
