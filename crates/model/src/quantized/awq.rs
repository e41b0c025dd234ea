//! AWQ in the layout for gemms: integers of 4 bits. A word has eight output features of one input feature, in an order
//! of its own, so that the matrix is stored transposed. The reference computes in the type of the scales.

use super::affine::{Affine, Codes, Columns, Zeros};
use super::config::Fields;
use super::gptq::{self, by_group};
use super::part::{FLOATS, Table};
use super::skipped::Skipped;
use super::{Method, QuantizedTensor};
use crate::error::Result;
use crate::safetensors::Element;
use crate::tensor::Format;

const NAME: &str = "AWQ";
const SCHEME: &str = "AWQ INT4";
/// Output features in a word.
const PER_WORD: usize = 8;
const FOLLOWED: [&str; 10] = [
    "quant_method",
    "method",
    "checkpoint_format",
    "pack_dtype",
    "bits",
    "group_size",
    "version",
    "format",
    "backend",
    "modules_to_not_convert",
];
/// Like those of GPTQ, they tell how the weights were found, or how a program multiplies them. Files have zero points whether `zero_point`
/// is set or not.
const NEUTRAL: [&str; 4] = [
    "zero_point",
    "do_fuse",
    "fuse_max_seq_len",
    "modules_to_fuse",
];

#[derive(Debug)]
pub(super) struct Awq {
    group_size: Option<usize>,
    skipped: Skipped,
}

impl Awq {
    pub(super) fn new(fields: &Fields) -> Result<Self> {
        let bits = fields.one_of("bits", &[4])?;
        bits.ok_or_else(|| fields.wrong("bits", "4"))?;
        let group_size = fields.group_size("group_size")?;
        let group_size =
            group_size.ok_or_else(|| fields.wrong("group_size", "a number of columns, or -1"))?;
        fields.word("version", &["gemm"])?;
        fields.word("format", &["gemm"])?;
        fields.word("checkpoint_format", &["gemm"])?;
        fields.word("method", &["awq"])?;
        fields.word("pack_dtype", &["int32"])?;
        fields.word("backend", &["autoawq", "auto"])?;
        fields.refuse_others(&FOLLOWED, &[&NEUTRAL[..], &gptq::NEUTRAL].concat())?;
        Ok(Self {
            group_size,
            skipped: Skipped::new(fields, &["modules_to_not_convert"])?,
        })
    }

    fn module(&self, table: &mut Table, module: &str) -> Result<([usize; 2], Affine)> {
        let name = |part: &str| format!("{module}.{part}");
        let main = name("qweight");
        let integers = [Element::I32, Element::U32];
        let part = table.take(&main, &integers, &main)?;
        let [in_features, words] = table.matrix(&main, &part)?;
        let size = self.group_size.unwrap_or(in_features);
        let Some(out_features) = words
            .checked_mul(PER_WORD)
            .filter(|_| in_features.is_multiple_of(size))
        else {
            let message = format!(
                "tensor `{main}` has shape {:?}, expected a multiple of {size} input features, the `group_size`",
                part.shape
            );
            return Err(table.malformed(&part, message));
        };
        let groups = in_features / size;
        let scales = table.take_shaped(&name("scales"), &FLOATS, &[groups, out_features], &main)?;
        let zeros = table.take_shaped(&name("qzeros"), &integers, &[groups, words], &main)?;
        let content = Affine {
            codes: Codes::Awq(part),
            rounding: scales.element.format().unwrap_or(Format::F32),
            scales: by_group(scales),
            zeros: Zeros::ByGroup {
                part: zeros,
                bits: 4,
                added: 0,
                awq: true,
            },
            offsets: None,
            columns: Columns::Runs(size),
            factor: None,
        };
        Ok(([out_features, in_features], content))
    }
}

impl Method for Awq {
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
        let modules = table.modules(self.main_suffix(), &[Element::I32, Element::U32]);
        let take = |module: &String| {
            let (shape, content) = self.module(table, module)?;
            Ok(QuantizedTensor::affine(
                module,
                SCHEME,
                shape,
                content,
                table.files,
            ))
        };
        modules.iter().map(take).collect()
    }
}
