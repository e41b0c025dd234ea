//! `package.json`: the content of a package, and the checks on which all later code relies.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use triad_kernels::int8;
use triad_model::checkpoint::{GenerationDefaults, Source};
use triad_model::description::ModelDescription;
use triad_model::mapped::MappedFile;
use triad_model::safetensors::Element;
use triad_model::tensor::Format;
use triad_model::{Error, ErrorKind, Result};

use super::preparation::{InputSummary, Preparation};
use super::tensors::{Formats, TokenInputFormats, malformed};
use super::{FORMAT, WEIGHTS};
use crate::linear_input::LinearInput;
use crate::quantization::{LinearFormat, OutputWeights, usable_clip};

/// The maximum size of `package.json` in bytes. A thousand blocks with only hot channels take less.
const MAX_BYTES: usize = 1 << 28;

/// The content of `package.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Version of the package's format: [`FORMAT`].
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
    /// Element type of the output matrix, by its name in safetensors.
    pub output: String,
    /// Formats of inputs by token: of the table, by its name in GGUF, and of the matrices, by their name in safetensors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_inputs: Option<[String; 2]>,
    /// The sampling options that the model's authors recommend.
    pub generation: GenerationDefaults,
    /// Results of calibration, and the decisions that follow from them.
    pub preparation: Preparation,
    /// All other files of the package, by name.
    pub files: BTreeMap<String, FileDigest>,
}

/// Length and hash of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileDigest {
    /// The length.
    pub bytes: u64,
    /// The sha256 in hexadecimal.
    pub sha256: String,
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
    /// [`ErrorKind::Unsupported`] for another format or a layout of another kernel, [`ErrorKind::Malformed`] for
    /// everything else that is wrong; the message names the field and what was expected.
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
        if format < FORMAT {
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
        self.formats()?;
        self.check_inputs()?;
        match self
            .files
            .keys()
            .find(|name| **name != WEIGHTS && !Source::TEXT_FILES.contains(&name.as_str()))
        {
            Some(name) => Err(malformed(format!(
                "field `files` names {name:?}, which is not a file of a package"
            ))),
            None if !self.files.contains_key(WEIGHTS) => {
                Err(malformed(format!("field `files` lacks {WEIGHTS:?}")))
            }
            None => Ok(()),
        }
    }

    /// Returns the number formats of the weights.
    pub(super) fn formats(&self) -> Result<Formats> {
        let embedding = format_of("embedding", &self.embedding)?;
        let plan = &self.preparation.options.plan;
        let allowed = match plan.output_weights {
            OutputWeights::Int8 => &[Element::I8][..],
            OutputWeights::Float => &FLOATS,
        };
        let output = element_of("output", &self.output, allowed)?;
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
            output,
            embedding,
            token_inputs,
        })
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
        if inputs.len() != expected.len() {
            let message = format!(
                "field `preparation.inputs` has {} inputs, expected {}",
                inputs.len(),
                expected.len()
            );
            return Err(malformed(message));
        }
        for (index, (input, (block, place))) in inputs.iter().zip(expected).enumerate() {
            let channels = place.channels(&self.model.blocks[block], self.model.hidden);
            check_input(input, block, place, channels).map_err(|error| {
                malformed(format!("field `preparation.inputs[{index}]`")).caused_by(error)
            })?;
        }
        Ok(())
    }
}

/// The element types of float matrices.
const FLOATS: [Element; 3] = [Element::F32, Element::F16, Element::Bf16];

fn format_of(field: &str, name: &str) -> Result<Format> {
    let mut all = Format::ALL.into_iter();
    all.find(|format| format.name() == name).ok_or_else(|| {
        malformed(format!(
            "field `{field}` is {name:?}, a format that is not read"
        ))
    })
}

fn element_of(field: &str, name: &str, allowed: &[Element]) -> Result<Element> {
    let found = allowed.iter().find(|element| element.name() == name);
    found.copied().ok_or_else(|| {
        let allowed: Vec<_> = allowed.iter().map(|element| element.name()).collect();
        malformed(format!(
            "field `{field}` is {name:?}, expected one of {}",
            allowed.join(", ")
        ))
    })
}

fn check_input(
    input: &InputSummary,
    block: usize,
    place: LinearInput,
    channels: usize,
) -> Result<()> {
    if (input.block, input.input) != (block, place) {
        let (found, expected) = (input.input.name(), place.name());
        return Err(malformed(format!(
            "is {found} of block {}, expected {expected} of block {block}",
            input.block
        )));
    }
    if input.channels != channels {
        return Err(malformed(format!(
            "has {} channels, expected {channels}",
            input.channels
        )));
    }
    for clip in [input.clip, input.shadow_clip] {
        if usable_clip(clip) != clip {
            return Err(malformed(format!(
                "is clipped at {clip:?}, expected a number that can be divided by"
            )));
        }
    }
    if input.smoothing.channels() != channels {
        let found = input.smoothing.channels();
        return Err(malformed(format!(
            "has smoothing for {found} channels, expected {channels}"
        )));
    }
    let hot = &input.hot_channels;
    let ascending = hot.windows(2).all(|pair| pair[0] < pair[1]);
    if !ascending || hot.last().is_some_and(|last| *last as usize >= channels) {
        return Err(malformed(format!(
            "has hot channels that are not ascending and below {channels}"
        )));
    }
    Ok(())
}

fn unsupported(message: String) -> Error {
    Error::new(ErrorKind::Unsupported, message)
}
