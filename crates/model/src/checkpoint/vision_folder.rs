//! The part of a folder that a vision encoder is read from.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;

use super::weights::{Weights, weight_files};
use super::{EXPECTED, json};
use crate::error::{Error, ErrorKind, Result};
use crate::mapped::MappedFile;
use crate::quantized::Plan;
use crate::tensor::TensorInfo;

/// Configuration, files, tensors of floats, and the names of quantized tensors.
pub(crate) type VisionFolder = (
    Value,
    Vec<MappedFile>,
    BTreeMap<String, TensorInfo>,
    BTreeSet<String>,
);

/// Opens the folder of the model at `path`, which is the folder or one of its files.
pub(crate) fn vision_folder(path: &Path, folder: &Path) -> Result<VisionFolder> {
    let config_path = folder.join("config.json");
    let config = json::read(&config_path)?.ok_or_else(|| {
        let message = format!("there is no config.json; {EXPECTED}");
        Error::new(ErrorKind::Missing, message).at(folder)
    })?;
    let weights = match path == folder {
        true => weight_files(folder)?,
        false => Weights {
            files: vec![MappedFile::open(path)?],
            file_of: None,
        },
    };
    let plan = Plan::new(&config)?;
    let (tensors, quantized, _) = weights.tensors(plan.as_ref())?;
    let quantized = quantized.into_keys().collect();
    Ok((config, weights.files, tensors, quantized))
}
