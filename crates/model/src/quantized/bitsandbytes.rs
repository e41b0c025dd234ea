//! bitsandbytes: INT8 with a scale for each row, and codes of 4 bits (NF4, FP4) with a scale for each block of
//! consecutive elements; scales may themselves be quantized ("double quantization").

use std::ops::Range;

use serde_json::Value;

use super::affine::{Affine, Codes, Zeros, round};
use super::config::{Fields, to_format};
use super::fp8::by_rows;
use super::part::{File, Part, Table, float};
use super::skipped::Skipped;
use super::{Content, Method, QuantizedTensor, Representation};
use crate::error::Result;
use crate::safetensors::Element;
use crate::tensor::Format;

const NAME: &str = "bitsandbytes";
const FOLLOWED: [&str; 10] = [
    "quant_method",
    "load_in_4bit",
    "load_in_8bit",
    "_load_in_4bit",
    "_load_in_8bit",
    "llm_int8_skip_modules",
    "llm_int8_has_fp16_weight",
    "bnb_4bit_quant_storage",
    "modules_to_not_convert",
    "bnb_4bit_quant_type",
];
/// They change activations or the way of loading, or repeat the states of the tensors.
const NEUTRAL: [&str; 4] = [
    "llm_int8_threshold",
    "llm_int8_enable_fp32_cpu_offload",
    "bnb_4bit_compute_dtype",
    "bnb_4bit_use_double_quant",
];
/// The factor of the reference, 1 / 127.
const PER_STEP: f32 = 7.874_016e-3;
/// The layout of INT8 in rows.
const ROW_LAYOUT: u8 = 0;
/// The sizes of a block that the reference accepts.
const BLOCKS: [usize; 8] = [32, 64, 128, 256, 512, 1024, 2048, 4096];
/// Codes of a quantized scale.
const NESTED_CODES: usize = 256;

const NF4: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

/// Returns the values of FP4: one sign, two bits of exponent, one of fraction, of at most 1.
fn fp4() -> [f32; 16] {
    let positive = [0.0, 0.0625, 8.0, 12.0, 4.0, 6.0, 2.0, 3.0].map(|value: f32| value / 12.0);
    std::array::from_fn(|code| match code {
        0..8 => positive[code],
        _ => -positive[code - 8],
    })
}

#[derive(Debug)]
pub(super) struct BitsAndBytes {
    is_4_bits: bool,
    skipped: Skipped,
}

impl BitsAndBytes {
    pub(super) fn new(fields: &Fields) -> Result<Self> {
        let is_set = |key: &str, other: &str| -> Result<bool> {
            Ok(fields.bool(key)?.or(fields.bool(other)?).unwrap_or(false))
        };
        let is_4_bits = is_set("load_in_4bit", "_load_in_4bit")?;
        let is_8_bits = is_set("load_in_8bit", "_load_in_8bit")?;
        if is_4_bits == is_8_bits {
            return Err(
                fields.unsupported("load_in_4bit", "one of it and `load_in_8bit` to be true")
            );
        }
        fields.refuse("llm_int8_has_fp16_weight")?;
        fields.word("bnb_4bit_quant_storage", &["uint8", "torch.uint8"])?;
        fields.word("bnb_4bit_quant_type", &["nf4", "fp4"])?;
        fields.refuse_others(&FOLLOWED, &NEUTRAL)?;
        Ok(Self {
            is_4_bits,
            skipped: Skipped::new(fields, &["llm_int8_skip_modules", "modules_to_not_convert"])?,
        })
    }
}

impl Method for BitsAndBytes {
    fn name(&self) -> &'static str {
        NAME
    }

    fn main_suffix(&self) -> &'static str {
        match self.is_4_bits {
            true => ".weight.absmax",
            false => ".SCB",
        }
    }

    fn skipped(&self) -> Option<&Skipped> {
        Some(&self.skipped)
    }

    fn take(&self, table: &mut Table) -> Result<Vec<QuantizedTensor>> {
        let (element, module): (_, fn(&mut Table, &str) -> Result<QuantizedTensor>) =
            match self.is_4_bits {
                true => (Element::U8, four_bits),
                false => (Element::I8, int8),
            };
        let modules = table.modules(".weight", &[element]);
        modules.iter().map(|name| module(table, name)).collect()
    }
}

fn int8(table: &mut Table, module: &str) -> Result<QuantizedTensor> {
    let main = format!("{module}.weight");
    let part = table.take(&main, &[Element::I8], &main)?;
    let shape = table.matrix(&main, &part)?;
    let name = format!("{module}.SCB");
    let scales = table.take_shaped(&name, &[Element::F32], &[shape[0]], &main)?;
    let layout = format!("{module}.weight_format");
    if table.has(&layout) {
        let part = table.take(&layout, &[Element::U8], &main)?;
        if part
            .bytes(table.files)
            .iter()
            .any(|layout| *layout != ROW_LAYOUT)
        {
            return Err(table.malformed(
                &part,
                format!("tensor `{layout}` is not {ROW_LAYOUT}, expected a matrix in rows"),
            ));
        }
    }
    let (scales, columns) = by_rows(table, &name, scales, shape)?;
    let content = Affine {
        codes: Codes::Signed(part),
        scales,
        zeros: Zeros::Constant(0),
        offsets: None,
        columns,
        factor: Some(PER_STEP),
        rounding: Format::F32,
    };
    Ok(QuantizedTensor::affine(
        module,
        "bitsandbytes INT8",
        shape,
        content,
        table.files,
    ))
}

/// Codes of 4 bits for values in a table, with a scale for each block of consecutive elements of the matrix.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct FourBits {
    codes: Part,
    values: [f32; 16],
    block: usize,
    scales: Scales,
    pub(super) rounding: Format,
}

#[derive(Clone, Debug, PartialEq)]
enum Scales {
    Plain(Part),
    /// Quantized to bytes: value\[code\] · scale of a block of scales + offset.
    Nested {
        codes: Part,
        values: Part,
        block: usize,
        scales: Part,
        offset: f32,
    },
}

/// The description of a matrix that its file has as text.
struct State {
    block: usize,
    nested: Option<(usize, f32)>,
    shape: [usize; 2],
    rounding: Format,
}

fn four_bits(table: &mut Table, module: &str) -> Result<QuantizedTensor> {
    let main = format!("{module}.weight");
    let name = |part: &str| format!("{main}.{part}");
    let state = [
        "quant_state.bitsandbytes__nf4",
        "quant_state.bitsandbytes__fp4",
    ]
    .map(name);
    let is_fp4 = table.has(&state[1]) && !table.has(&state[0]);
    let (state, values, scheme) = match is_fp4 {
        true => (&state[1], fp4(), "bitsandbytes FP4"),
        false => (&state[0], NF4, "bitsandbytes NF4"),
    };
    let part = table.take(state, &[Element::U8], &main)?;
    let expected = if is_fp4 { "fp4" } else { "nf4" };
    let State {
        block,
        nested,
        shape,
        rounding,
    } = read_state(part.bytes(table.files), expected)
        .map_err(|problem| table.malformed(&part, format!("tensor `{state}` has {problem}")))?;
    let elements = shape[0].checked_mul(shape[1]);
    let codes = table.take(&main, &[Element::U8], &main)?;
    let Some(elements) = elements.filter(|elements| codes.elements() == elements.div_ceil(2))
    else {
        let message = format!(
            "tensor `{main}` has shape {:?}, expected two codes in each byte for a matrix of {shape:?}",
            codes.shape
        );
        return Err(table.malformed(&codes, message));
    };
    let map = table.take_shaped(&name("quant_map"), &[Element::F32], &[values.len()], &main)?;
    if map.floats(table.files) != values {
        let message = format!(
            "tensor `{}` has other values than {scheme}",
            name("quant_map")
        );
        return Err(table.malformed(&map, message));
    }
    let blocks = elements.div_ceil(block);
    let absmax = name("absmax");
    let scales = match nested {
        None => Scales::Plain(table.take_shaped(&absmax, &[Element::F32], &[blocks], &main)?),
        Some((nested, offset)) => Scales::Nested {
            codes: table.take_shaped(&absmax, &[Element::U8], &[blocks], &main)?,
            values: table.take_shaped(
                &name("nested_quant_map"),
                &[Element::F32],
                &[NESTED_CODES],
                &main,
            )?,
            block: nested,
            scales: table.take_shaped(
                &name("nested_absmax"),
                &[Element::F32],
                &[blocks.div_ceil(nested)],
                &main,
            )?,
            offset,
        },
    };
    let content = FourBits {
        codes,
        values,
        block,
        scales,
        rounding,
    };
    Ok(QuantizedTensor {
        name: main,
        scheme,
        shape,
        representation: Representation::Float(rounding),
        content: Content::FourBits(content),
    })
}

/// Parses the text of a state. Returns the problem if there is one.
fn read_state(bytes: &[u8], quant_type: &str) -> Result<State, String> {
    let state: Value =
        serde_json::from_slice(bytes).map_err(|error| format!("no valid JSON: {error}"))?;
    let field = |key: &str| state.get(key).filter(|value| !value.is_null());
    let wrong = |key: &str, expected: &str| format!("another `{key}` than {expected}");
    let size = |value: &Value| {
        let size = value.as_u64().and_then(|size| usize::try_from(size).ok());
        size.filter(|size| *size > 0)
    };
    let block = |key: &str| {
        let block = field(key)
            .and_then(size)
            .filter(|size| BLOCKS.contains(size));
        block.ok_or_else(|| wrong(key, "32 to 4096"))
    };
    if field("quant_type").and_then(Value::as_str) != Some(quant_type) {
        return Err(wrong("quant_type", quant_type));
    }
    let shape = field("shape").and_then(Value::as_array);
    let shape = match shape.map(|shape| &shape[..]) {
        Some([rows, columns]) => size(rows).zip(size(columns)),
        _ => None,
    };
    let (rows, columns) = shape.ok_or_else(|| wrong("shape", "that of a matrix"))?;
    let rounding = to_format(field("dtype").and_then(Value::as_str));
    let nested = match field("nested_blocksize") {
        None => None,
        Some(_) => {
            if field("nested_dtype").and_then(Value::as_str) != Some("float32") {
                return Err(wrong("nested_dtype", "float32"));
            }
            let offset = field("nested_offset").and_then(Value::as_f64);
            let offset = offset.ok_or_else(|| wrong("nested_offset", "a number"))?;
            Some((block("nested_blocksize")?, offset as f32))
        }
    };
    Ok(State {
        block: block("blocksize")?,
        nested,
        shape: [rows, columns],
        rounding: rounding.ok_or_else(|| wrong("dtype", "float32, float16 or bfloat16"))?,
    })
}

impl FourBits {
    /// Returns all parts.
    pub(super) fn parts(&self) -> impl Iterator<Item = &Part> {
        let (first, others) = match &self.scales {
            Scales::Plain(part) => (part, None),
            Scales::Nested {
                codes,
                values,
                scales,
                ..
            } => (codes, Some([values, scales])),
        };
        [&self.codes, first]
            .into_iter()
            .chain(others.into_iter().flatten())
    }

    /// Writes some rows as the reference dequantizes them.
    pub(super) fn dequantize(
        &self,
        files: &[File],
        [_, width]: [usize; 2],
        rows: Range<usize>,
        out: &mut [f32],
    ) {
        let codes = self.codes.bytes(files);
        let mut element = rows.start * width;
        let mut rest = &mut *out;
        while !rest.is_empty() {
            let block = element / self.block;
            let count = ((block + 1) * self.block - element).min(rest.len());
            let scale = self.scales.get(files, block);
            let (of_block, after) = rest.split_at_mut(count);
            for (place, out) in (element..).zip(of_block) {
                let byte = codes[place / 2];
                // The first of two codes is in the high bits.
                let code = if place % 2 == 0 { byte >> 4 } else { byte & 15 };
                *out = self.values[usize::from(code)] * scale;
            }
            element += count;
            rest = after;
        }
        round(self.rounding, out);
    }
}

impl Scales {
    fn get(&self, files: &[File], block: usize) -> f32 {
        match self {
            Self::Plain(part) => float(part.element, part.bytes(files), block),
            Self::Nested {
                codes,
                values,
                block: nested,
                scales,
                offset,
            } => {
                let code = codes.bytes(files)[block];
                let value = float(values.element, values.bytes(files), usize::from(code));
                value * float(scales.element, scales.bytes(files), block / nested) + offset
            }
        }
    }
}
