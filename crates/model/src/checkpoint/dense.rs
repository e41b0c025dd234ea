//! The dense layers after pooling in the layout of `sentence-transformers`: folders such as `2_Dense`, each with a
//! configuration and a matrix.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use super::embedding_defaults::is_dense;
use super::json;
use super::source::SENTENCE_MODULES;
use super::weights::Weights;
use super::{Checkpoint, is_there};
use crate::description::{Dense, DenseActivation, Head, limits};
use crate::error::{Error, ErrorKind, Result};
use crate::mapped::MappedFile;
use crate::safetensors;
use crate::tensor_map::{DenseTensors, LinearTensors, TensorSlice};

/// The name of a layer in its file.
const LINEAR: &str = "linear";
const WEIGHTS: &str = "model.safetensors";

/// Adds the layers that `modules.json` of `folder` names to the model's own.
pub(super) fn add(checkpoint: &mut Checkpoint, folder: &Path) -> Result<()> {
    let path = folder.join(SENTENCE_MODULES);
    let modules = json::read_any(&path)?;
    let modules = modules.iter().filter_map(Value::as_array).flatten();
    let folders: Vec<&str> = modules
        .filter(|module| is_dense(module))
        .filter_map(|module| module["path"].as_str())
        .collect();
    if folders.is_empty() {
        return Ok(());
    }
    if checkpoint.description.head.is_some() {
        let message = "a dense layer after a classifier, which Triad does not support";
        return Err(Error::new(ErrorKind::Unsupported, message).at(path));
    }
    let malformed = |message| Err(Error::new(ErrorKind::Malformed, message).at(&path));
    if folders.len() > limits::LAYERS_AFTER_POOLING {
        let count = folders.len();
        return malformed(format!(
            "{count} dense layers, expected at most {}",
            limits::LAYERS_AFTER_POOLING
        ));
    }
    for (index, name) in folders.iter().enumerate() {
        if folders[..index].contains(name) {
            return malformed(format!(
                "two dense layers in the folder {name}, expected one"
            ));
        }
    }
    let mut layers = Vec::with_capacity(folders.len());
    for name in folders {
        layers.push(layer(checkpoint, &folder.join(name), name)?);
    }
    checkpoint.description.head = Some(Head {
        layers,
        classifier: None,
    });
    checkpoint
        .description
        .check()
        .map_err(|error| error.at(path))
}

/// Adds the layer in `folder`, whose tensors get names that begin with `name`.
fn layer(checkpoint: &mut Checkpoint, folder: &Path, name: &str) -> Result<Dense> {
    let path = folder.join("config.json");
    let missing = |path: &Path| Error::new(ErrorKind::Missing, "the file is missing").at(path);
    let config = json::read(&path)?.ok_or_else(|| missing(&path))?;
    let (activation, bias) = read(&config).map_err(|error| error.at(&path))?;
    let path = folder.join(WEIGHTS);
    if !is_there(&path)? {
        return Err(missing(&path));
    }
    let weights = Weights {
        files: vec![MappedFile::open(path.clone())?],
        file_of: None,
    };
    let (tensors, _, others) = weights.tensors(None)?;
    if let Some((name, (_, kind))) = others.first_key_value() {
        return Err(safetensors::not_a_float(name, kind).at(path));
    }
    let file = checkpoint.files.len();
    checkpoint.files.extend(weights.files);
    let malformed = |message: String| Error::new(ErrorKind::Malformed, message).at(&path);
    let expected: &[&str] = match bias {
        true => &["weight", "bias"],
        false => &["weight"],
    };
    let mut shapes = BTreeMap::new();
    for (stored, mut tensor) in tensors {
        let part = stored.strip_prefix(LINEAR);
        let part = part.and_then(|part| part.strip_prefix('.'));
        let Some(part) = part.filter(|part| expected.contains(part)) else {
            return Err(malformed(format!(
                "tensor `{stored}` has no part in this layer, expected {LINEAR}.weight, and {LINEAR}.bias if `bias` is true"
            )));
        };
        shapes.insert(part.to_owned(), tensor.shape.clone());
        (tensor.name, tensor.file) = (place(name, part), file);
        checkpoint.tensors.insert(tensor.name.clone(), tensor);
    }
    let shape_of = |part: &str| {
        let shape = shapes.get(part);
        shape.ok_or_else(|| malformed(format!("tensor `{LINEAR}.{part}` is missing")))
    };
    let [out_features, in_features] = shape_of("weight")?[..] else {
        return Err(malformed(format!("tensor `{LINEAR}.weight` is no matrix")));
    };
    for (field, width) in [("in_features", in_features), ("out_features", out_features)] {
        if config[field].as_u64() != Some(width as u64) {
            return Err(malformed(format!(
                "field `{field}` of config.json is {}, but tensor `{LINEAR}.weight` has {width}",
                config[field]
            )));
        }
    }
    if bias && shape_of("bias")? != &[out_features] {
        return Err(malformed(format!(
            "tensor `{LINEAR}.bias` has another shape than [{out_features}]"
        )));
    }
    let slice = |part: &str| TensorSlice::whole(place(name, part));
    checkpoint.tensor_map.head.push(DenseTensors {
        linear: LinearTensors {
            weight: slice("weight"),
            bias: bias.then(|| slice("bias")),
        },
        norm: None,
    });
    Ok(Dense {
        in_features,
        out_features,
        bias,
        activation,
        norm: None,
    })
}

/// Returns the name of a tensor of the layer in the folder `name`.
fn place(name: &str, part: &str) -> String {
    format!("{name}/{LINEAR}.{part}")
}

/// Returns the function of the layer's output, and whether it has a bias.
fn read(config: &Value) -> Result<(DenseActivation, bool)> {
    let unsupported = |message: String| Err(Error::new(ErrorKind::Unsupported, message));
    let kind = config["activation_function"].as_str().unwrap_or_default();
    let activation = match kind {
        "torch.nn.modules.activation.Tanh" => DenseActivation::Tanh,
        "torch.nn.modules.linear.Identity" => DenseActivation::Identity,
        _ => {
            return unsupported(format!(
                "field `activation_function` is {}, expected torch.nn.modules.linear.Identity or \
                 torch.nn.modules.activation.Tanh",
                config["activation_function"]
            ));
        }
    };
    for field in ["module_input_name", "module_output_name"] {
        let value = &config[field];
        if !value.is_null() && value != "sentence_embedding" {
            return unsupported(format!(
                "field `{field}` is {value}, expected sentence_embedding"
            ));
        }
    }
    match &config["bias"] {
        Value::Null => Ok((activation, true)),
        Value::Bool(bias) => Ok((activation, *bias)),
        other => unsupported(format!("field `bias` is {other}, expected true or false")),
    }
}
