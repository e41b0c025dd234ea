//! `package.json`: the content of a package, and the checks on which all later code relies.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use triad_kernels::int8;
use triad_model::Result;
use triad_model::checkpoint::GenerationDefaults;
use triad_model::description::ModelDescription;
use triad_model::mapped::MappedFile;

use super::checks::{FLOATS, check_inputs, check_layers, element_of, format_of, unsupported};
use super::digest::FileDigest;
use super::preparation::Preparation;
use super::tensors::{Formats, OutputFormat, TokenInputFormats, malformed};
use super::vision::{self, PackagedVision};
use super::{FORMAT, PLAIN_FORMAT, WEIGHTS, is_content};
use crate::linear_input::LinearInput;
use crate::quantization::{LinearFormat, OutputWeights, WeightBits};

/// The maximum size of `package.json` in bytes. A thousand blocks with only hot channels take less.
const MAX_BYTES: usize = 1 << 28;

/// The content of `package.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Version of the package's format: [`FORMAT`] or [`PLAIN_FORMAT`].
    pub format: u64,
    /// The program that prepared the package, with its version.
    pub made_by: String,
    /// The memory layout of INT8 weights: [`int8::LAYOUT`].
    pub layout: String,
    /// The model's files that it was made from, by name.
    pub source: BTreeMap<String, FileDigest>,
    /// Description of the model.
    pub model: ModelDescription,
    /// Format of the embedding's rows, by its name in GGUF.
    pub embedding: String,
    /// Format of the output matrix: the element type by its name in safetensors, or `I4` or `Q5_0`.
    pub output: String,
    /// Formats of inputs by token: of the table, by its name in GGUF, and of the matrices, by their name in safetensors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_inputs: Option<[String; 2]>,
    /// The encoder of pictures, if it was prepared, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vision: Option<Box<PackagedVision>>,
    /// The sampling options that the model's authors recommend.
    pub generation: GenerationDefaults,
    /// Results of calibration, and the decisions that follow from them.
    pub preparation: Preparation,
    /// All other files of the package, by name.
    pub files: BTreeMap<String, FileDigest>,
}

/// The one field that every version has.
#[derive(Deserialize)]
struct Version {
    format: u64,
}

impl Manifest {
    /// Reads and checks the `package.json` at `path`.
    pub(super) fn read(path: &Path) -> Result<Self> {
        let file = MappedFile::open(path)?;
        Self::parse(file.bytes()).map_err(|error| error.at(path))
    }

    /// Reads and checks the content of a `package.json`.
    ///
    /// # Errors
    /// [`Unsupported`](triad_model::ErrorKind::Unsupported) for another format or a layout of another kernel,
    /// [`Malformed`](triad_model::ErrorKind::Malformed) for everything else that is wrong; the message names the field and
    /// what was expected.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        if bytes.len() > MAX_BYTES {
            return Err(malformed(format!(
                "{} bytes, expected at most {MAX_BYTES}",
                bytes.len()
            )));
        }
        let not_one = |error: serde_json::Error| {
            malformed("not the description of a package".into()).caused_by(error)
        };
        let Version { format } = serde_json::from_slice(bytes).map_err(not_one)?;
        if format > FORMAT {
            return Err(unsupported(format!(
                "made by a newer Triad: the package's format is {format}, this Triad reads {FORMAT}"
            )));
        }
        if format < PLAIN_FORMAT {
            return Err(unsupported(format!(
                "made by an older Triad: the package's format is {format}, this Triad reads {FORMAT}; prepare the model again"
            )));
        }
        let manifest: Self = serde_json::from_slice(bytes).map_err(not_one)?;
        manifest.check()?;
        Ok(manifest)
    }

    fn check(&self) -> Result<()> {
        if self.layout != int8::LAYOUT {
            return Err(unsupported(format!(
                "the weights are laid out as {:?}, this Triad computes with {:?}: prepare the model again",
                self.layout,
                int8::LAYOUT
            )));
        }
        self.model
            .check()
            .map_err(|error| malformed("field `model`".into()).caused_by(error))?;
        self.generation
            .check(|name| format!("field `generation.{name}`"))?;
        self.check_bits()?;
        self.formats()?;
        self.check_inputs()?;
        if let Some(vision) = &self.vision {
            vision.check(&self.model)?;
        }
        match self.files.keys().find(|name| !is_content(name)) {
            Some(name) => Err(malformed(format!(
                "field `files` names {name:?}, which is not a file of a package"
            ))),
            None if !self.files.contains_key(WEIGHTS) => {
                Err(malformed(format!("field `files` lacks {WEIGHTS:?}")))
            }
            None => self.check_vision_files(),
        }
    }

    /// Checks that `files` has those of pictures exactly if there is an encoder.
    fn check_vision_files(&self) -> Result<()> {
        let names: Vec<_> = vision::FILES
            .into_iter()
            .filter(|name| self.files.contains_key(*name))
            .collect();
        match (&self.vision, &names[..]) {
            (None, []) => Ok(()),
            (None, [name, ..]) => Err(malformed(format!(
                "field `files` names {name:?}, but there is no field `vision`"
            ))),
            (Some(_), [vision::WEIGHTS, _, ..]) => Ok(()),
            (Some(_), _) => Err(malformed(format!(
                "field `files` lacks {:?} or the settings of pictures, expected both with the field `vision`",
                vision::WEIGHTS
            ))),
        }
    }

    /// Returns the number formats of the weights.
    pub(super) fn formats(&self) -> Result<Formats> {
        let embedding = format_of("embedding", &self.embedding)?;
        let plan = &self.preparation.options.plan;
        let (bits, output) = match plan.bits {
            Some(_) => {
                let (bits, output) = check_layers(&self.model, &self.preparation.layers)?;
                (Some(bits), OutputFormat::Bits(output))
            }
            None => {
                let output = match plan.output_weights {
                    OutputWeights::Int8 => OutputFormat::Bits(WeightBits::Eight),
                    OutputWeights::Float => {
                        OutputFormat::Float(element_of("output", &self.output, &FLOATS)?)
                    }
                };
                (None, output)
            }
        };
        if output.name() != self.output {
            return Err(malformed(format!(
                "field `output` is {:?}, expected {:?}",
                self.output,
                output.name()
            )));
        }
        let token_inputs = match &self.token_inputs {
            Some([table, matrices]) => Some(TokenInputFormats {
                table: format_of("token_inputs", table)?,
                matrices: element_of("token_inputs", matrices, &FLOATS)?,
            }),
            None => None,
        };
        Ok(Formats {
            linears: plan.linears,
            decode: plan.decode_weights,
            bits,
            output,
            embedding,
            token_inputs,
        })
    }

    /// Checks that a budget of bits is there exactly if layers have bits, and only with W4A16.
    fn check_bits(&self) -> Result<()> {
        let plan = &self.preparation.options.plan;
        match plan.bits {
            None if !self.preparation.layers.is_empty() => Err(malformed(
                "field `preparation.layers` has layers, expected none without the option `bits`"
                    .into(),
            )),
            Some(_) if plan.linears != LinearFormat::W4a16 => Err(malformed(
                "field `preparation.options.plan.bits`, expected only with W4A16".into(),
            )),
            Some(bits) if !(bits.is_finite() && bits > 0.0) => Err(malformed(format!(
                "field `preparation.options.plan.bits` is {bits}, expected a number above 0"
            ))),
            _ => Ok(()),
        }
    }

    /// Checks the inputs: with INT8 those of each block, in their order, with valid numbers; with W4A16 none.
    fn check_inputs(&self) -> Result<()> {
        let inputs = &self.preparation.inputs;
        let blocks = self.model.blocks.iter().enumerate();
        let of_block = |(index, block)| LinearInput::of_block(block).map(move |it| (index, it));
        let expected: Vec<_> = match self.preparation.options.plan.linears {
            LinearFormat::W8a8 => blocks.flat_map(of_block).collect(),
            LinearFormat::W4a16 => Vec::new(),
        };
        let channels = |(block, place): (usize, LinearInput)| {
            let channels = place.channels(&self.model.blocks[block], self.model.hidden);
            (block, place, channels)
        };
        let expected: Vec<_> = expected.into_iter().map(channels).collect();
        check_inputs("preparation", inputs, &expected)
    }
}
