//! The tensors of an encoder's layers, by name and with their shapes checked.

use std::collections::{BTreeMap, BTreeSet};

use super::description::VisionDescription;
use super::layers::VisionLayer;
use crate::error::{Error, ErrorKind, Result};
use crate::tensor::TensorInfo;

/// The names of the tensors of a layer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LayerTensors {
    /// One tensor, or one for each frame.
    pub(super) weights: Vec<String>,
    pub(super) bias: Option<String>,
    /// The bounds of the input, then those of the output, each the smaller one first; empty if there are none.
    pub(super) bounds: Vec<String>,
}

impl LayerTensors {
    /// Returns the names of a layer that is stored as `{stem}.weight` and `{stem}.bias`.
    pub(super) fn stem(stem: &str) -> Self {
        Self {
            weights: vec![format!("{stem}.weight")],
            bias: Some(format!("{stem}.bias")),
            bounds: BOUNDS.map(|bound| format!("{stem}.{bound}")).to_vec(),
        }
    }

    /// Returns the name of weights without a bias.
    pub(super) fn bare(name: impl Into<String>) -> Self {
        Self {
            weights: vec![name.into()],
            bias: None,
            bounds: Vec::new(),
        }
    }

    /// Returns the names of all tensors.
    pub(super) fn all(&self) -> impl Iterator<Item = &String> {
        self.weights.iter().chain(&self.bias).chain(&self.bounds)
    }
}

/// The ends of the names of a layer's bounds.
const BOUNDS: [&str; 4] = ["input_min", "input_max", "output_min", "output_max"];

/// The names of the tensors of an encoder.
pub(super) struct Names {
    /// Returns the names of a layer; bias and bounds count only if the layer has them.
    pub(super) find: Box<dyn Fn(VisionLayer) -> LayerTensors>,
    /// How the names of all its tensors begin.
    pub(super) prefixes: Vec<String>,
    /// How the names of tensors begin that it does not need.
    pub(super) ignored: Vec<String>,
    /// How the names of blocks begin before their number, and how many are computed.
    pub(super) blocks: (String, usize),
}

/// Finds a tensor by its name.
pub(super) type Find<'a> = dyn Fn(&str) -> Result<&'a TensorInfo> + 'a;

/// Returns the tensor called `name`.
pub(super) fn find<'a>(
    tensors: &'a BTreeMap<String, TensorInfo>,
    name: &str,
) -> Result<&'a TensorInfo> {
    tensors.get(name).ok_or_else(|| {
        let message = format!("tensor {name:?} of the encoder of pictures is missing");
        Error::new(ErrorKind::Missing, message)
    })
}

/// Returns the names of the tensors of all layers, and checks their shapes.
pub(super) fn layers(
    description: &VisionDescription,
    names: &Names,
    stored: &BTreeMap<String, TensorInfo>,
    find: &Find<'_>,
) -> Result<BTreeMap<VisionLayer, LayerTensors>> {
    let mut layers = BTreeMap::new();
    for described in description.layers() {
        let mut tensors = (names.find)(described.layer);
        if !described.bias {
            tensors.bias = None;
        } else if tensors.bias.is_none() {
            let message = format!("no name of a bias for {:?}", described.layer);
            return Err(Error::new(ErrorKind::Missing, message));
        }
        if !described.bounded {
            tensors.bounds.clear();
        } else if tensors.bounds.is_empty() {
            let message = format!("no names of bounds for {:?}", described.layer);
            return Err(Error::new(ErrorKind::Missing, message));
        }
        let mut shape = described.shape.clone();
        if described.layer == VisionLayer::Patch && shape.len() > 2 {
            // One frame is stored without its dimension, and so are those of separate tensors.
            let frames = shape[2];
            if frames == 1 || tensors.weights.len() > 1 {
                shape.remove(2);
            }
            if tensors.weights.len() > 1 && tensors.weights.len() != frames {
                let message = format!("the patch embedding has {frames} frames");
                return Err(Error::new(ErrorKind::Malformed, message));
            }
        }
        for name in &tensors.weights {
            check(find(name)?, &shape)?;
        }
        if let Some(bias) = &tensors.bias {
            check(find(bias)?, &described.shape[..1])?;
        }
        for name in &tensors.bounds {
            check(find(name)?, &[])?;
        }
        layers.insert(described.layer, tensors);
    }
    let used: BTreeSet<&String> = layers.values().flat_map(LayerTensors::all).collect();
    let left = stored
        .keys()
        .find(|name| names.is_of_encoder(name) && !used.contains(name));
    match left {
        None => Ok(layers),
        Some(name) => {
            let message = format!(
                "tensor {name:?} of the encoder of pictures has no role in {}",
                description.family
            );
            Err(Error::new(ErrorKind::Unsupported, message))
        }
    }
}

impl Names {
    /// Returns whether a tensor needs a role in the encoder.
    fn is_of_encoder(&self, name: &str) -> bool {
        let begins = |prefixes: &[String]| prefixes.iter().any(|it| name.starts_with(it));
        let (block, count) = &self.blocks;
        let number = name
            .strip_prefix(block)
            .and_then(|rest| rest.split('.').next()?.parse::<usize>().ok());
        begins(&self.prefixes)
            && !begins(&self.ignored)
            && number.is_none_or(|number| number < *count)
    }
}

/// Checks the shape of a tensor, which may have leading dimensions of 1.
fn check(info: &TensorInfo, expected: &[usize]) -> Result<()> {
    let extra = info.shape.len().saturating_sub(expected.len());
    let fits =
        info.shape[..extra].iter().all(|size| *size == 1) && info.shape[extra..] == *expected;
    if fits {
        return Ok(());
    }
    let message = format!(
        "tensor {:?} of the encoder of pictures has the shape {:?}, expected {expected:?}",
        info.name, info.shape
    );
    Err(Error::new(ErrorKind::Malformed, message))
}
