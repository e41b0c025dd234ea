//! GPTQ: integers of 4 or 8 bits. A word has consecutive input features of one output feature, so that the matrix is
//! stored transposed. With act-order, `g_idx` has the group of each input feature. The reference computes in the type
//! of the scales.
//!
//! Version 1 of the format (`gptq`) stores each zero point less one, version 2 (`gptq_v2`) as it is. A zero point of all
//! ones in version 1 is refused: programs that read it differ (0, or a carry into its neighbour, or 16).

use super::affine::{Affine, Codes, Columns, Grid, Zeros};
use super::config::Fields;
use super::part::{FLOATS, Part, Table, integer, word};
use super::skipped::Skipped;
use super::{Method, QuantizedTensor};
use crate::error::Result;
use crate::safetensors::Element;
use crate::tensor::Format;

const NAME: &str = "GPTQ";
const FOLLOWED: [&str; 15] = [
    "quant_method",
    "method",
    "bits",
    "group_size",
    "checkpoint_format",
    "format",
    "is_marlin_format",
    "dynamic",
    "pack_dtype",
    "modules_in_block_to_quantize",
    "modules_to_not_convert",
    "rotation",
    "adapter",
    "extra_config",
    "data_type",
];
/// They tell how the weights were found, or how a program multiplies them.
pub(super) const NEUTRAL: [&str; 47] = [
    "sym",
    "desc_act",
    "static_groups",
    "true_sequential",
    "act_group_aware",
    "tokenizer",
    "dataset",
    "damp_percent",
    "damp_auto_increment",
    "lm_head",
    "meta",
    "backend",
    "model_seqlen",
    "block_name_to_quantize",
    "module_name_preceding_first_block",
    "batch_size",
    "pad_token_id",
    "max_input_length",
    "cache_block_outputs",
    "use_cuda_fp16",
    "use_exllama",
    "disable_exllama",
    "exllama_config",
    "model_name_or_path",
    "model_file_base_name",
    "mse",
    "offload_to_disk",
    "offload_to_disk_path",
    "pack_impl",
    "awq_gemm_checkpoint",
    "iters",
    "lr",
    "minmax_lr",
    "low_gpu_mem_usage",
    "nsamples",
    "seqlen",
    "enable_quanted_input",
    "enable_minmax_tuning",
    "autoround_version",
    "packing_format",
    "amp",
    "train_bs",
    "gradient_accumulate_steps",
    "scale_dtype",
    "to_quant_block_names",
    "hessian_use_bfloat16_staging",
    "gptaq",
];

#[derive(Debug)]
pub(super) struct Gptq {
    bits: u32,
    group_size: Option<usize>,
    /// Added to each stored zero point.
    added: i16,
    skipped: Skipped,
}

impl Gptq {
    pub(super) fn new(fields: &Fields) -> Result<Self> {
        let bits = fields.one_of("bits", &[4, 8])?;
        let bits = bits.ok_or_else(|| fields.wrong("bits", "4 or 8"))? as u32;
        let group_size = fields.group_size("group_size")?;
        let group_size =
            group_size.ok_or_else(|| fields.wrong("group_size", "a number of columns, or -1"))?;
        let versions = ["gptq", "gptq_v2"];
        let format = fields.word("format", &versions)?;
        let version = fields
            .word("checkpoint_format", &versions)?
            .or(format.clone());
        if format.is_some() && format != version {
            return Err(fields.unsupported("format", "the same as `checkpoint_format`"));
        }
        fields.word("method", &["gptq"])?;
        fields.word("pack_dtype", &["int32"])?;
        fields.word("data_type", &["int"])?;
        for field in [
            "is_marlin_format",
            "dynamic",
            "rotation",
            "adapter",
            "extra_config",
        ] {
            fields.refuse(field)?;
        }
        fields.refuse_others(&FOLLOWED, &NEUTRAL)?;
        let only = fields.strings("modules_in_block_to_quantize")?;
        let only = only
            .filter(|ends| !ends.is_empty())
            .map(|ends| ends.into_iter().map(str::to_owned).collect());
        Ok(Self {
            bits,
            group_size,
            added: i16::from(version.as_deref() != Some("gptq_v2")),
            skipped: Skipped::new(fields, &["modules_to_not_convert"])?.only(only),
        })
    }

    fn module(&self, table: &mut Table, module: &str) -> Result<([usize; 2], Affine)> {
        let name = |part: &str| format!("{module}.{part}");
        let main = name("qweight");
        let per_word = (32 / self.bits) as usize;
        let part = table.take(&main, &[Element::I32, Element::U32], &main)?;
        let [words, out_features] = table.matrix(&main, &part)?;
        let Some(in_features) = words
            .checked_mul(per_word)
            .filter(|_| out_features.is_multiple_of(per_word))
        else {
            let message = format!(
                "tensor `{main}` has shape {:?}, expected a multiple of {per_word} output features",
                part.shape
            );
            return Err(table.malformed(&part, message));
        };
        let size = self.group_size.unwrap_or(in_features);
        let groups = in_features.div_ceil(size);
        let scales = table.take_shaped(&name("scales"), &FLOATS, &[groups, out_features], &main)?;
        let zeros = &[groups, out_features / per_word];
        let zeros =
            table.take_shaped(&name("qzeros"), &[Element::I32, Element::U32], zeros, &main)?;
        if self.added > 0 {
            self.check_zeros(table, &name("qzeros"), &zeros)?;
        }
        let columns = match table.has(&name("g_idx")) {
            true => {
                let index = name("g_idx");
                let part = table.take_shaped(&index, &[Element::I32], &[in_features], &main)?;
                Columns::from_index(group_index(table, &index, &part, groups)?, size)
            }
            false => Columns::Runs(size),
        };
        let content = Affine {
            codes: Codes::Columns {
                part,
                bits: self.bits,
            },
            rounding: scales.element.format().unwrap_or(Format::F32),
            scales: by_group(scales),
            zeros: Zeros::ByGroup {
                part: zeros,
                bits: self.bits,
                added: self.added,
                awq: false,
            },
            offsets: None,
            columns,
            factor: None,
        };
        Ok(([out_features, in_features], content))
    }

    fn check_zeros(&self, table: &Table, name: &str, part: &Part) -> Result<()> {
        let bytes = part.bytes(table.files);
        let has_ones = |word: u32| match self.bits {
            4 => word & word >> 1 & word >> 2 & word >> 3 & 0x1111_1111 != 0,
            _ => word.to_le_bytes().contains(&u8::MAX),
        };
        match (0..part.elements()).find(|index| has_ones(word(bytes, *index))) {
            None => Ok(()),
            Some(index) => Err(table.malformed(
                part,
                format!(
                    "tensor `{name}` has a zero point of {} in word {index}, to which version 1 of the format adds 1: \
                     programs differ in the sum; expected smaller ones, or `checkpoint_format` gptq_v2",
                    (1 << self.bits) - 1
                ),
            )),
        }
    }
}

/// Drops the bias of a layer if all of it is 0: old files have one for each layer, also for those without a bias.
fn drop_zero_bias(table: &mut Table, module: &str) {
    let name = format!("{module}.bias");
    let is_zero = table.tensors.get(&name).is_some_and(|(file, tensor)| {
        let bytes = &table.files[*file].bytes[tensor.bytes.clone()];
        bytes.iter().all(|byte| *byte == 0)
    });
    if is_zero {
        table.tensors.remove(&name);
    }
}

/// Returns scales `[groups, out_features]`.
pub(super) fn by_group(part: Part) -> Grid {
    Grid {
        row_block: 1,
        row_stride: 1,
        group_stride: part.shape[1],
        groups: part.shape[0],
        part,
    }
}

/// Reads the group of each column.
///
/// # Errors
/// If one is not below `groups`.
pub(super) fn group_index(
    table: &Table,
    name: &str,
    part: &Part,
    groups: usize,
) -> Result<Vec<u32>> {
    let bytes = part.bytes(table.files);
    let group = |column| {
        let group = integer(part.element, bytes, column);
        u32::try_from(group)
            .ok()
            .filter(|group| (*group as usize) < groups)
            .ok_or_else(|| {
                table.malformed(
                    part,
                    format!(
                        "tensor `{name}` has group {group} for column {column}, expected 0 to {}",
                        groups - 1
                    ),
                )
            })
    };
    (0..part.elements()).map(group).collect()
}

impl Method for Gptq {
    fn name(&self) -> &'static str {
        NAME
    }

    fn main_suffix(&self) -> &'static str {
        ".qweight"
    }

    fn skipped(&self) -> Option<&Skipped> {
        Some(&self.skipped)
    }

    fn take(&self, table: &mut Table) -> Result<Vec<QuantizedTensor>> {
        let scheme = match self.bits {
            4 => "GPTQ INT4",
            _ => "GPTQ INT8",
        };
        let modules = table.modules(self.main_suffix(), &[Element::I32, Element::U32]);
        let take = |module: &String| {
            drop_zero_bias(table, module);
            let (shape, content) = self.module(table, module)?;
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
