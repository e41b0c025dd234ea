//! MLX's affine quantization: integers of 4 or 8 bits, and a scale and an offset (`biases`) for each group. Embeddings
//! are quantized, too. The reference multiplies and adds in the type of the scales, and rounds after both.

use std::collections::BTreeMap;

use super::affine::{Affine, Codes, Zeros};
use super::config::Fields;
use super::fp8::by_blocks;
use super::part::{FLOATS, Table};
use super::skipped::Skipped;
use super::{Method, QuantizedTensor};
use crate::error::Result;
use crate::safetensors::Element;
use crate::tensor::Format;

const NAME: &str = "MLX";
/// Sizes of a group.
const GROUPS: [i64; 3] = [32, 64, 128];

#[derive(Debug)]
pub(super) struct Mlx {
    all: Settings,
    /// Settings of single modules; `None` for one that is not quantized.
    modules: BTreeMap<String, Option<Settings>>,
}

#[derive(Clone, Copy, Debug)]
struct Settings {
    bits: u32,
    group_size: usize,
}

impl Settings {
    fn new(fields: &Fields) -> Result<Self> {
        fields.word("mode", &["affine"])?;
        let bits = fields.one_of("bits", &[4, 8])?;
        let size = fields.one_of("group_size", &GROUPS)?;
        Ok(Self {
            bits: bits.ok_or_else(|| fields.wrong("bits", "4 or 8"))? as u32,
            group_size: size.ok_or_else(|| fields.wrong("group_size", "32, 64 or 128"))? as usize,
        })
    }
}

impl Mlx {
    pub(super) fn new(fields: &Fields) -> Result<Self> {
        let all = Settings::new(fields)?;
        let mut modules = BTreeMap::new();
        for key in fields.keys() {
            if ["mode", "bits", "group_size"].contains(&key) {
                continue;
            }
            let settings = match fields.raw(key).and_then(serde_json::Value::as_bool) {
                Some(true) => Some(all),
                Some(false) => None,
                None => match fields.raw(key).filter(|value| value.is_object()) {
                    Some(_) => {
                        let of_module = fields.object(key)?;
                        let of_module = of_module.ok_or_else(|| fields.wrong(key, "an object"))?;
                        of_module.refuse_others(&["mode", "bits", "group_size"], &[])?;
                        Some(Settings::new(&of_module)?)
                    }
                    None => return Err(fields.unsupported(key, "no such field")),
                },
            };
            modules.insert(key.to_owned(), settings);
        }
        Ok(Self { all, modules })
    }

    fn module(&self, table: &mut Table, module: &str) -> Result<QuantizedTensor> {
        let name = |part: &str| format!("{module}.{part}");
        let main = name("weight");
        let part = table.take(&main, &[Element::U32], &main)?;
        let settings = match self.modules.get(module) {
            None => self.all,
            Some(Some(settings)) => *settings,
            Some(None) => {
                let message = format!(
                    "tensor `{main}` is quantized, but `quantization.{module}` of config.json is false"
                );
                return Err(table.malformed(&part, message));
            }
        };
        let Settings { bits, group_size } = settings;
        let [out_features, words] = table.matrix(&main, &part)?;
        let columns = words.checked_mul((32 / bits) as usize);
        let Some(in_features) = columns.filter(|columns| columns.is_multiple_of(group_size)) else {
            let message = format!(
                "tensor `{main}` has shape {:?}, expected rows of whole groups of {group_size} integers of {bits} bits",
                part.shape
            );
            return Err(table.malformed(&part, message));
        };
        let shape = [out_features, in_features];
        let of_groups = [out_features, in_features / group_size];
        let scales = table.take_shaped(&name("scales"), &FLOATS, &of_groups, &main)?;
        let offsets = table.take_shaped(&name("biases"), &[scales.element], &of_groups, &main)?;
        let rounding = scales.element.format().unwrap_or(Format::F32);
        let (scales, columns) = by_blocks(table, &name("scales"), scales, shape, [1, group_size])?;
        let content = Affine {
            codes: Codes::Rows { part, bits },
            scales,
            zeros: Zeros::Constant(0),
            offsets: Some(offsets),
            columns,
            factor: None,
            rounding,
        };
        let scheme = match bits {
            4 => "MLX 4-bit",
            _ => "MLX 8-bit",
        };
        Ok(QuantizedTensor::affine(
            module,
            scheme,
            shape,
            content,
            table.files,
        ))
    }
}

impl Method for Mlx {
    fn name(&self) -> &'static str {
        NAME
    }

    fn main_suffix(&self) -> &'static str {
        ".scales"
    }

    fn skipped(&self) -> Option<&Skipped> {
        None
    }

    fn take(&self, table: &mut Table) -> Result<Vec<QuantizedTensor>> {
        let modules = table.modules(".weight", &[Element::U32]);
        modules
            .iter()
            .map(|module| self.module(table, module))
            .collect()
    }
}
