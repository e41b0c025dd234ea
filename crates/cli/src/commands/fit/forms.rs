//! The forms in which a model can run, read from the header of its file: number formats and bytes of the weights.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use serde::Serialize;
use triad_console::progress;
use triad_engine::memory;
use triad_engine::package::layers;
use triad_engine::package::preparation::OUTLIER_SHARE;
use triad_engine::package::tensors::{self, Formats, OutputFormat, TokenInputFormats};
use triad_engine::package::{Manifest, Package, WEIGHTS};
use triad_engine::quantization::{DecodeWeights, LinearFormat, WeightBits};
use triad_frontend::hashes;
use triad_model::checkpoint::Checkpoint;
use triad_model::description::{BlockDescription, ModelDescription};
use triad_model::safetensors::Element;
use triad_model::safetensors::write::Layout;
use triad_model::tensor::{BlockFormat, Format};
use triad_model::tensor_map::{Part, TensorSlice, rows_of};

/// Number format in which kernels read a weight matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Numbers {
    F32,
    F16,
    Bf16,
    Int8,
    Int4,
    /// Quantized blocks of a GGUF file.
    #[serde(untagged, serialize_with = "block_name")]
    Blocks(BlockFormat),
}

fn block_name<S: serde::Serializer>(
    format: &BlockFormat,
    serializer: S,
) -> std::result::Result<S::Ok, S::Error> {
    serializer.serialize_str(format.name())
}

/// The arithmetic of a linear layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Product {
    /// Activations and weights in INT8.
    W8a8,
    /// Float activations, rounded to bf16 or 16-bit integers where weights are integers.
    Weights(Numbers),
}

/// One form of a model: its file in float, or a package made of it.
#[derive(Clone, Debug, Serialize)]
pub struct WeightFormat {
    pub name: &'static str,
    /// Linear layers of prefill.
    pub prefill: Product,
    /// Linear layers of a decode step.
    pub decode: Product,
    /// The output matrix.
    pub output: Numbers,
    /// The share of the blocks that keep an input's shadow, and the share of outliers among its values there. One pair
    /// for each linear input, in the order of [`triad_engine::LinearInput::DENSE`].
    pub shadows: [(f64, f64); 4],
    pub weight_bytes: usize,
    /// The command that makes or runs this form.
    pub command: String,
}

impl Product {
    /// Returns the bytes of a weight `[out_features, in_features]`, with its scales.
    pub fn bytes(self, in_features: usize, out_features: usize) -> usize {
        let elements = in_features * out_features;
        match self.of_width(in_features) {
            Self::Weights(Numbers::F32) => 4 * elements,
            Self::Weights(Numbers::F16 | Numbers::Bf16) => 2 * elements,
            // Scales, and sums of rows for the INT8 activations.
            Self::W8a8 => elements + 8 * out_features,
            Self::Weights(Numbers::Int8) => elements + 4 * out_features,
            Self::Weights(Numbers::Int4) => {
                elements / 2 + elements / triad_kernels::int4::GROUP * 2
            }
            Self::Weights(Numbers::Blocks(format)) => format.bytes_for(elements),
        }
    }

    /// Returns the product for layers with `in_features` inputs. Rows that are not whole groups of INT4 stay in f32.
    pub fn of_width(self, in_features: usize) -> Self {
        let is_int4 = self == Self::Weights(Numbers::Int4);
        if is_int4 && !tensors::fits_int4(in_features) {
            Self::Weights(Numbers::F32)
        } else {
            self
        }
    }
}

/// A model whose header was read.
pub struct Subject {
    pub name: String,
    pub description: ModelDescription,
    pub forms: Vec<WeightFormat>,
}

impl Subject {
    /// Reads the header of the model at `path`. `name` is the model's name in reports.
    pub fn open(path: &Path, name: &str) -> Result<Self> {
        if Package::is_at(path) {
            let package = hashes::open_package(path, &mut progress::checking(path))?;
            let form = of_package(package.manifest(), name)?;
            return Ok(Self {
                name: name.into(),
                description: package.description().clone(),
                forms: vec![form],
            });
        }
        let checkpoint = Arc::new(Checkpoint::open(path)?);
        let (linears, output) = stored(&checkpoint);
        let map = checkpoint.tensor_map();
        let format = |name: &str| checkpoint.tensor(name).map(|tensor| tensor.format);
        let embedding = format(&map.embedding.name)?;
        let token_inputs = match &map.token_inputs {
            Some(inputs) => Some(TokenInputFormats {
                table: format(&inputs.table.name)?,
                matrices: match format(&inputs.projection.name)? {
                    Format::F16 => Element::F16,
                    Format::Bf16 => Element::Bf16,
                    Format::F32 | Format::Blocks(_) => Element::F32,
                },
            }),
            None => None,
        };
        let float = WeightFormat {
            weight_bytes: memory::of_weights(&checkpoint),
            command: format!("triad run --no-quantize -m {name}"),
            ..float_form(linears, output)
        };
        let description = checkpoint.description().clone();
        let forms = forms(&description, float, (embedding, token_inputs), name)?;
        Ok(Self {
            name: name.into(),
            description,
            forms,
        })
    }

    /// Returns a known shape, with weights in bf16.
    pub fn of_shape(name: &str, description: ModelDescription) -> Result<Self> {
        let float = WeightFormat {
            weight_bytes: memory::of_random_weights(&description),
            command: format!("triad bench --shape {name}"),
            ..float_form(Numbers::Bf16, Numbers::Bf16)
        };
        let token_inputs = description.token_inputs.map(|_| TokenInputFormats {
            table: Format::Bf16,
            matrices: Element::Bf16,
        });
        let forms = forms(&description, float, (Format::Bf16, token_inputs), "MODEL")?;
        Ok(Self {
            name: name.into(),
            description,
            forms,
        })
    }
}

fn float_form(linears: Numbers, output: Numbers) -> WeightFormat {
    WeightFormat {
        name: "float",
        prefill: Product::Weights(linears),
        decode: Product::Weights(linears),
        output,
        shadows: [(0.0, 0.0); 4],
        weight_bytes: 0,
        command: String::new(),
    }
}

/// Returns the model in float, and each package that `triad prepare` can make of it.
fn forms(
    description: &ModelDescription,
    float: WeightFormat,
    (embedding, token_inputs): (Format, Option<TokenInputFormats>),
    name: &str,
) -> Result<Vec<WeightFormat>> {
    let packages = [
        (
            "INT8",
            LinearFormat::W8a8,
            DecodeWeights::Int8,
            format!("triad run -m {name}"),
        ),
        (
            "INT8, decode INT4",
            LinearFormat::W8a8,
            DecodeWeights::Int4,
            format!("triad prepare {name} --decode-weights int4 -o small.triad"),
        ),
        (
            "INT4 (W4A16)",
            LinearFormat::W4a16,
            DecodeWeights::Int8,
            format!("triad prepare {name} --weights int4 -o w4a16.triad"),
        ),
    ];
    let mut all = vec![float];
    for (name, linears, decode, command) in packages {
        let formats = Formats {
            linears,
            decode,
            bits: None,
            output: OutputFormat::Bits(WeightBits::Eight),
            embedding,
            token_inputs,
        };
        let entries = tensors::entries(description, &formats)?;
        let weight_bytes = Layout::new(&entries, &BTreeMap::new()).file_length();
        all.push(WeightFormat {
            name,
            weight_bytes,
            command,
            ..package_form(linears, decode, Numbers::Int8, usual_shadows(linears))
        });
    }
    Ok(all)
}

fn package_form(
    linears: LinearFormat,
    decode: DecodeWeights,
    output: Numbers,
    shadows: [(f64, f64); 4],
) -> WeightFormat {
    let int4 = Product::Weights(Numbers::Int4);
    let (name, prefill, decode) = match (linears, decode) {
        (LinearFormat::W8a8, DecodeWeights::Int8) => ("INT8", Product::W8a8, Product::W8a8),
        (LinearFormat::W8a8, DecodeWeights::Int4) => ("INT8, decode INT4", Product::W8a8, int4),
        (LinearFormat::W4a16, _) => ("INT4 (W4A16)", int4, int4),
    };
    WeightFormat {
        name,
        prefill,
        decode,
        output,
        shadows,
        weight_bytes: 0,
        command: String::new(),
    }
}

/// Returns the shadows that the default preparation keeps. Preparation searches for their number: over three models,
/// the mean is 0.7 of all. It keeps the most important ones, among them all of the down projection's input
/// (docs/measurements/outliers.md).
fn usual_shadows(linears: LinearFormat) -> [(f64, f64); 4] {
    let (down, others) = if linears == LinearFormat::W8a8 {
        (1.0, 0.6)
    } else {
        (0.0, 0.0)
    };
    [others, others, others, down].map(|kept| (kept, OUTLIER_SHARE))
}

fn of_package(manifest: &Manifest, name: &str) -> Result<WeightFormat> {
    let plan = &manifest.preparation.options.plan;
    let numbers = [
        ("I4", Numbers::Int4),
        ("I8", Numbers::Int8),
        ("F32", Numbers::F32),
        ("F16", Numbers::F16),
        ("BF16", Numbers::Bf16),
    ];
    let blocks = BlockFormat::ALL.map(|format| (format.name(), Numbers::Blocks(format)));
    let output = numbers
        .into_iter()
        .chain(blocks)
        .find(|(name, _)| *name == manifest.output)
        .map(|(_, numbers)| numbers);
    let output = output.with_context(|| {
        format!(
            "output matrix in {}: expected I4, I8, F32, F16, BF16 or a format of blocks",
            manifest.output
        )
    })?;
    let blocks = manifest.model.blocks.len().max(1) as f64;
    let shadows = triad_engine::LinearInput::DENSE.map(|input| {
        let kept = manifest
            .preparation
            .inputs
            .iter()
            .filter(|summary| summary.input == input && summary.shadow);
        let (count, outliers) = kept.fold((0.0, 0.0), |(count, sum), summary| {
            (count + 1.0, sum + summary.outlier_share)
        });
        (
            count / blocks,
            if count > 0.0 { outliers / count } else { 0.0 },
        )
    });
    let weight_bytes = manifest
        .files
        .get(WEIGHTS)
        .map_or(0, |file| file.bytes as usize);
    let mut form = package_form(plan.linears, plan.decode_weights, output, shadows);
    if let Some(numbers) = most_of_layers(manifest) {
        (form.prefill, form.decode) = (Product::Weights(numbers), Product::Weights(numbers));
    }
    Ok(WeightFormat {
        weight_bytes,
        command: format!("triad run -m {name}"),
        ..form
    })
}

/// Returns the format of most of the weights of the blocks, if layers have bits of their own.
fn most_of_layers(manifest: &Manifest) -> Option<Numbers> {
    let groups = layers::groups(&manifest.model);
    let mut weights = BTreeMap::new();
    let of_layers = groups.iter().zip(&manifest.preparation.layers);
    for (group, layer) in of_layers.filter(|(group, _)| group.block.is_some()) {
        *weights.entry(layer.bits).or_insert(0) += group.weights();
    }
    let most = weights.into_iter().max_by_key(|(_, count)| *count)?.0;
    Some(match most {
        WeightBits::Four => Numbers::Int4,
        WeightBits::Five => Numbers::Blocks(BlockFormat::Q5_0),
        WeightBits::Eight => Numbers::Int8,
        WeightBits::Stored(format) => Numbers::Blocks(format),
    })
}

/// Returns the format of most of the linear layers' weights, and the format of the output matrix.
fn stored(checkpoint: &Checkpoint) -> (Numbers, Numbers) {
    let numbers = |slice: &TensorSlice| {
        let info = checkpoint.tensor(&slice.name).ok()?;
        let elements = match &slice.part {
            Some(Part::Columns { rows, columns }) => rows.len() * columns.len(),
            _ => {
                let rows = rows_of(&info.shape).max(1);
                info.elements() / rows * slice.rows(rows)
            }
        };
        let numbers = match info.format {
            Format::F16 => Numbers::F16,
            Format::Bf16 => Numbers::Bf16,
            Format::F32 => Numbers::F32,
            Format::Blocks(format) => Numbers::Blocks(format),
        };
        Some((numbers, elements))
    };
    let map = checkpoint.tensor_map();
    let mut elements = BTreeMap::new();
    for linear in map.blocks.iter().flat_map(|block| block.linears.values()) {
        if let Some((numbers, count)) = numbers(&linear.weight) {
            *elements.entry(numbers).or_insert(0) += count;
        }
    }
    let most = elements
        .into_iter()
        .max_by_key(|(_, count)| *count)
        .map_or(Numbers::F32, |(numbers, _)| numbers);
    (
        most,
        numbers(&map.output.weight).map_or(Numbers::F32, |(numbers, _)| numbers),
    )
}

/// Linear layers that read the same input and are computed together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Group {
    pub in_features: usize,
    pub out_features: Vec<usize>,
}

impl Group {
    pub fn weights(&self) -> usize {
        self.in_features * self.out_features.iter().sum::<usize>()
    }
}

/// Returns the four groups of a block, in the order of [`triad_engine::LinearInput::DENSE`].
pub fn groups(block: &BlockDescription, hidden: usize) -> [Group; 4] {
    let linears = block.linears(hidden);
    triad_engine::LinearInput::DENSE.map(|input| {
        let readers = linears
            .iter()
            .filter(|shape| triad_engine::LinearInput::read_by(shape.linear) == input);
        let in_features = readers
            .clone()
            .map(|shape| shape.in_features)
            .max()
            .unwrap_or(hidden);
        Group {
            in_features,
            out_features: readers.map(|shape| shape.out_features).collect(),
        }
    })
}
