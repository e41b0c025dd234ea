//! The encoder of pictures of a package: its part of `package.json`, its tensors, and its weights.
//!
//! The linear layers of its blocks are in INT8; patch embedding, positions, norms and projectors stay in float.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use triad_model::Result;
use triad_model::description::ModelDescription;
use triad_model::safetensors::Element;
use triad_model::safetensors::write::Entry;
use triad_model::vision::{Positions, VisionDescription};

use super::checks::{FLOATS, check_inputs, element_of, unsupported};
use super::digest::FileDigest;
use super::preparation::Preparation;
use super::tensors::{NormPlace, OUTPUT_NORM, Table, linear_name, malformed, norm_name};
use crate::linear_input::{LinearInput, channels_of};
use crate::quantization::{DecodeWeights, LinearFormat};
use crate::vision::check_text;

/// The file with the tensors of the encoder.
pub const WEIGHTS: &str = "vision.safetensors";
/// The metadata of the mmproj file from which the encoder was read.
pub const GGUF: &str = "pictures.gguf";
/// The files in a folder of `transformers` that say how pictures are prepared.
pub const SETTINGS: [&str; 3] = [
    "config.json",
    "preprocessor_config.json",
    "processor_config.json",
];
/// All files of an encoder in a package, its weights first.
pub const FILES: [&str; 5] = [WEIGHTS, GGUF, SETTINGS[0], SETTINGS[1], SETTINGS[2]];

/// The prefix of the names of the patch embedding's tensors.
pub const PATCH: &str = "patch";
/// The name of the row of no patch.
pub const CLASS: &str = "class";
/// The name of the table of positions.
pub const POSITIONS: &str = "positions";
/// The prefix of the names of the tensors of the norm before the first block.
pub const INPUT_NORM: &str = "input-norm";

/// The encoder of a package in its `package.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PackagedVision {
    /// The encoder's files that it was made from, by name.
    pub source: BTreeMap<String, FileDigest>,
    /// Description of the encoder.
    pub model: VisionDescription,
    /// Element type of the projectors' matrices, by its name in safetensors.
    pub matrices: String,
    /// Number of calibration pictures that were used.
    pub pictures: usize,
    /// Results of calibration, and the decisions that follow from them; its text is the name of the pictures, its tokens
    /// are patches.
    pub preparation: Preparation,
}

impl PackagedVision {
    /// Returns the element type of the projectors' matrices.
    pub(super) fn element(&self) -> Result<Element> {
        element_of("vision.matrices", &self.matrices, &FLOATS)
    }

    /// Checks that this is an encoder for the text model `text`, with valid numbers.
    pub(super) fn check(&self, text: &ModelDescription) -> Result<()> {
        let in_field =
            |error: triad_model::Error| malformed("field `vision.model`".into()).caused_by(error);
        let model = self.model.clone().checked_stored().map_err(in_field)?;
        check_text(&model, text).map_err(in_field)?;
        self.element()?;
        let plan = &self.preparation.options.plan;
        if plan.linears != LinearFormat::W8a8 || plan.decode_weights != DecodeWeights::Int8 {
            return Err(unsupported(
                "field `vision.preparation.options.plan` has other weights than INT8".into(),
            ));
        }
        let channels = input_channels(&model);
        let of_block = |block| {
            let inputs = LinearInput::DENSE.into_iter();
            inputs.map(move |input| (block, input, channels[input.index()]))
        };
        let expected: Vec<_> = (0..model.blocks).flat_map(of_block).collect();
        check_inputs("vision.preparation", &self.preparation.inputs, &expected)
    }
}

/// Returns the channels of the inputs of each block; 0 for those that it does not have.
pub fn input_channels(description: &VisionDescription) -> crate::Inputs<usize> {
    channels_of(&description.linears())
}

/// Returns the names of the factors on the outputs of both halves of a block.
pub fn scale_names(block: usize) -> [String; 2] {
    ["attention", "feed-forward"].map(|half| format!("blocks.{block}.{half}-scale"))
}

/// Returns the name of the bounds of a block's linear layers, four for each of them in the order in which they run.
pub fn bounds_name(block: usize) -> String {
    format!("blocks.{block}.bounds")
}

/// Returns the places of the norms of each block that have weights, and their features.
pub fn norm_places(description: &VisionDescription) -> Vec<(NormPlace, usize)> {
    let (hidden, head) = (description.hidden, description.head_dim());
    let places = [
        (true, NormPlace::Attention, hidden),
        (description.post_norms, NormPlace::AttentionPost, hidden),
        (true, NormPlace::FeedForward, hidden),
        (description.post_norms, NormPlace::FeedForwardPost, hidden),
        (description.head_norms, NormPlace::Query, head),
        (description.head_norms, NormPlace::Key, head),
    ];
    let places = places.into_iter().filter(|(exists, ..)| *exists);
    places.map(|(_, place, width)| (place, width)).collect()
}

/// Returns the names of the offset and the factor of averaged patches.
pub fn standard_names(stage: usize) -> [String; 2] {
    ["offset", "factor"].map(|part| format!("projectors.{stage}.{part}"))
}

/// Returns the prefixes of the names of the tensors of a projector: of its norm, its first layer and its last one.
pub fn projector_names(stage: usize) -> [String; 3] {
    ["norm", "first", "last"].map(|layer| format!("projectors.{stage}.{layer}"))
}

/// Returns all tensors of an encoder, in the order of the file. The projectors' matrices have this element type.
///
/// # Errors
/// If a tensor would be larger than memory, or INT8 sums could overflow.
pub fn entries(description: &VisionDescription, matrices: Element) -> Result<Vec<Entry>> {
    let (hidden, patch) = (description.hidden, description.patch);
    let mut table = Table::new();
    let weight = |name: &str| format!("{name}.weight");
    let bias = |name: &str| format!("{name}.bias");
    table.add(weight(PATCH), Element::F32, &[hidden, 3 * patch * patch]);
    if description.patch_bias {
        table.add(bias(PATCH), Element::F32, &[hidden]);
    }
    if description.class_token {
        table.add(CLASS.into(), Element::F32, &[hidden]);
    }
    if description.positions != Positions::None {
        let rows = description.positions.rows();
        table.add(POSITIONS.into(), Element::F32, &[rows, hidden]);
    }
    if description.input_norm {
        table.norm(INPUT_NORM, &description.norm, hidden);
    }
    for block in 0..description.blocks {
        for (place, width) in norm_places(description) {
            table.norm(&norm_name(block, place), &description.norm, width);
        }
        for shape in description.linears() {
            let name = linear_name(block, shape.linear);
            table.int8(&name, &shape, DecodeWeights::Int8)?;
            if shape.bias {
                table.add(bias(&name), Element::F32, &[shape.out_features]);
            }
        }
        if description.bounded {
            let linears = description.linears().len();
            table.add(bounds_name(block), Element::F32, &[linears, 4]);
        }
        if description.layer_scale {
            for name in scale_names(block) {
                table.add(name, Element::F32, &[hidden]);
            }
        }
    }
    if description.output_norm {
        table.norm(OUTPUT_NORM, &description.norm, hidden);
    }
    for stage in 0..=description.deepstack.len() {
        let [norm, first, last] = projector_names(stage);
        let shapes = description.projector_layers();
        if description.projector.standardized {
            for name in standard_names(stage) {
                table.add(name, Element::F32, &[hidden]);
            }
        }
        let described = description.projector_norm(stage);
        if let Some(described) = described.filter(|norm| norm.weighted) {
            let merged = shapes[0][1];
            let width = if described.after_merge {
                merged
            } else {
                hidden
            };
            table.norm(&norm, &described.norm, width);
        }
        for (name, shape) in [last, first].iter().zip(shapes.iter().rev()) {
            table.add(weight(name), matrices, shape);
            if description.projector.bias {
                table.add(bias(name), Element::F32, &shape[..1]);
            }
        }
    }
    table.sorted()
}
