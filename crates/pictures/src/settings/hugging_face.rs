//! `preprocessor_config.json`, `processor_config.json` and `config.json` of a folder.

use std::io;
use std::path::Path;

use serde_json::{Map, Value};
use triad_model::files;

use super::Settings;
use super::fields::{Fields, Files};
use super::kinds::{Kind, family};
use crate::error::{Error, Result};
use crate::resize::Filter;
use crate::view::{Normalization, Pixels};

const CONFIG: &str = "config.json";
const PREPROCESSOR: &str = "preprocessor_config.json";
const PROCESSOR: &str = "processor_config.json";
/// Maximum size of a file.
const MAX_BYTES: u64 = 4 << 20;

/// Fields of an image processor that change nothing: names of classes, how batches are formed, what is returned; and
/// padding of views that all have one size.
const WITHOUT_EFFECT: &[&str] = &[
    "_processor_class",
    "_valid_processor_keys",
    "auto_map",
    "data_format",
    "device",
    "disable_grouping",
    "do_convert_rgb",
    "input_data_format",
    "processor_class",
    "return_row_col_info",
    "return_tensors",
];

/// Reads the settings of the model in `folder`.
pub(crate) fn from_folder(folder: &Path) -> Result<Settings> {
    let mut files = open(folder)?;
    let kind = kind(&mut files)?;
    let (filter, normalization) = pixels(&mut files.image, kind)?;
    let mean = normalization.mean_and_deviation.map(|(mean, _)| mean);
    let family = family(&mut files, kind, mean.unwrap_or_default())?;
    files.image.drop(WITHOUT_EFFECT);
    files.image.finish()?;
    Ok(Settings {
        family,
        pixels: Pixels::new(filter, &normalization),
    })
}

fn open(folder: &Path) -> Result<Files> {
    let config = folder.join(CONFIG);
    let config = Fields::new(&config, read(&config)?.ok_or_else(|| missing(&config))?);
    let path = folder.join(PROCESSOR);
    let mut processor = Fields::new(&path, read(&path)?.unwrap_or_default());
    if let Some(image) = processor.object("image_processor")? {
        return Ok(Files {
            config,
            image,
            processor,
        });
    }
    let path = folder.join(PREPROCESSOR);
    let image = Fields::new(&path, read(&path)?.ok_or_else(|| missing(&path))?);
    Ok(Files {
        config,
        image,
        processor,
    })
}

fn missing(path: &Path) -> Error {
    let source = io::Error::new(io::ErrorKind::NotFound, "there is no such file");
    Error::Io {
        file: path.to_owned(),
        source,
    }
}

/// Reads an object; returns `None` if there is no such file.
fn read(path: &Path) -> Result<Option<Map<String, Value>>> {
    let io = |source| Error::Io {
        file: path.to_owned(),
        source,
    };
    if !files::is_there(path).map_err(io)? {
        return Ok(None);
    }
    let bytes = files::read(path, MAX_BYTES).map_err(io)?;
    let fields =
        serde_json::from_slice(files::without_mark(&bytes)).map_err(|source| Error::Json {
            file: path.to_owned(),
            source,
        })?;
    Ok(Some(fields))
}

/// Returns the family, whose image processor must be one of those that it is used with.
fn kind(files: &mut Files) -> Result<Kind> {
    let model = files.config.text("model_type")?.unwrap_or_default();
    let kind = Kind::from_model_type(&model).ok_or_else(|| {
        files.config.unsupported(format!(
            "pictures for the model type {model:?} are not supported, expected one of {}",
            Kind::model_types()
        ))
    })?;
    let image = &mut files.image;
    let old = image.text("feature_extractor_type")?;
    let old = old.map(|name| name.replace("FeatureExtractor", "ImageProcessor"));
    let name = image.text("image_processor_type")?.or(old);
    // Without a name, transformers takes the class of the model type.
    let Some(name) = name else { return Ok(kind) };
    let class = name.strip_suffix("Fast").or(name.strip_suffix("Pil"));
    let class = class.unwrap_or(&name);
    if !kind.processors().contains(&class) {
        let expected = format!("is {name:?}, expected {}", kind.processors().join(" or "));
        return Err(image.error("image_processor_type", expected));
    }
    Ok(kind.with_processor(class))
}

/// Reads the steps that all families share.
fn pixels(image: &mut Fields, kind: Kind) -> Result<(Filter, Normalization)> {
    image.only_bool("do_resize", true)?;
    let defaults = kind.defaults();
    let expected = "1 (Lanczos), 2 (bilinear) or 3 (bicubic)";
    let filter = image.take("resample", expected, |value| match value.as_u64()? {
        1 => Some(Filter::Lanczos),
        2 => Some(Filter::Bilinear),
        3 => Some(Filter::Bicubic),
        _ => None,
    })?;
    let scale = image.positive("rescale_factor")?.unwrap_or(1.0 / 255.0);
    let scale = image.bool("do_rescale", true)?.then_some(scale);
    let mean = image.channels("image_mean")?.unwrap_or(defaults.mean);
    let deviation = image.channels("image_std")?.unwrap_or(defaults.deviation);
    if !deviation.iter().all(|deviation| *deviation > 0.0) {
        return Err(image.error("image_std", "has a number that is not above 0"));
    }
    let is_normalized = image.bool("do_normalize", defaults.normalize)?;
    let normalization = Normalization {
        scale,
        mean_and_deviation: is_normalized.then_some((mean, deviation)),
    };
    Ok((filter.unwrap_or(defaults.filter), normalization))
}
