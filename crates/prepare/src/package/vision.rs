//! The encoder of pictures in a package: its weights, and the files that say how pictures are prepared.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::json;
use triad_engine::package::tensors::{NormPlace, OUTPUT_NORM, linear_name, norm_name};
use triad_engine::package::vision::{
    self as packaged, CLASS, GGUF, INPUT_NORM, PATCH, POSITIONS, PackagedVision, SETTINGS,
    bounds_name, projector_names, scale_names, standard_names,
};
use triad_engine::package::{FileDigest, sha256};
use triad_engine::quantization::{DecodeWeights, LinearFormat, Quantization};
use triad_engine::vision::{Dense, VisionModel};
use triad_engine::weights::quantize_linear;
use triad_engine::{Cancel, LinearInput, Model};
use triad_kernels::BlockArithmetic;
use triad_model::mapped::MappedFile;
use triad_model::safetensors::Element;
use triad_model::{Error, ErrorKind, files, gguf};

use super::output::{Output, write_file};
use super::part::Part;
use super::recipe::{Progress, Recipe, name_of, program};
use super::resume::Saved;
use super::write::float_element;
use crate::calibration::Calibration;
use crate::calibration::pictures::CalibrationPictures;
use crate::error::Result;
use crate::{Preparation, PrepareOptions, vision};

/// Maximum bytes of each file of settings.
const MAX_SETTINGS: u64 = 1 << 24;

/// How an encoder is quantized.
pub(super) struct Decided {
    pictures: usize,
    preparation: Preparation,
}

/// An encoder that is to be prepared.
pub(super) struct Encoder<'a> {
    pictures: &'a CalibrationPictures,
    float: VisionModel,
    /// The files of its weights.
    source: BTreeMap<String, FileDigest>,
    options: PrepareOptions,
}

impl<'a> Encoder<'a> {
    /// Opens the encoder of a recipe for `model`. `source` are the model's files with their digests.
    ///
    /// # Errors
    /// If it is not the encoder of this model, the recipe is not for INT8, or a file cannot be read.
    pub(super) fn open(
        recipe: &Recipe,
        pictures: &'a CalibrationPictures,
        (model, source): (&Model, &[(PathBuf, FileDigest)]),
    ) -> Result<Self> {
        if recipe.options.plan.linears != LinearFormat::W8a8 {
            let message = "calibration pictures are for INT8: an encoder has no INT4 weights";
            return Err(Error::new(ErrorKind::Unsupported, message).into());
        }
        // The statistics must not depend on this processor's rounding.
        let arithmetic = BlockArithmetic::Exact;
        let float = VisionModel::load(&pictures.encoder, model.description(), arithmetic)?;
        let mut options = recipe.options;
        // An encoder decodes nothing.
        options.plan.decode_weights = DecodeWeights::Int8;
        let of_encoder = float.mapped_files().iter().map(|file| {
            let name = name_of(file.path());
            // The folder of a model often holds both.
            match source.iter().find(|(path, _)| path == file.path()) {
                Some((_, digest)) => Ok((name, digest.clone())),
                None => Ok((name, FileDigest::of_file(file.path())?)),
            }
        });
        Ok(Self {
            source: of_encoder.collect::<Result<_>>()?,
            pictures,
            float,
            options,
        })
    }

    /// Calibrates, starting from the state of an earlier run with the same input, if there is one, and decides how to
    /// quantize.
    ///
    /// # Errors
    /// If `cancel` is set, a calibration picture cannot be read, or the state in `part` cannot be written.
    pub(super) fn decide(
        &self,
        model: &Model,
        part: &Part,
        cancel: &Cancel,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Decided> {
        let (float, options) = (&self.float, &self.options);
        let fresh = || Calibration::of_encoder(float, &self.pictures.name);
        let path = part.path(Part::CALIBRATION_OF_ENCODER);
        let (mut saved, mut calibration) = Saved::resume(self.key()?, path, fresh);
        let run = self.pictures.calibrate(
            (model, float),
            &mut calibration,
            cancel,
            &mut |seen, done, total| {
                progress(Progress::CalibratingPictures { done, total });
                Ok(saved.keep(seen)?)
            },
        );
        // The text is calibrated next, which may be interrupted, too.
        if (calibration.pieces, calibration.counted) != (0, 0) {
            saved.save(&calibration)?;
        }
        let held_out = run?;
        progress(Progress::Deciding);
        Ok(Decided {
            pictures: calibration.pieces,
            preparation: vision::decide(model, float, &calibration, &held_out, options, cancel)?,
        })
    }

    /// Returns a digest of everything that affects the calibration.
    fn key(&self) -> Result<String> {
        let [files, _] = self.pictures.split();
        let digest = |path: &Path| Ok(FileDigest::of_file(path)?.sha256);
        let pictures: Vec<_> = files.into_iter().map(digest).collect::<Result<_>>()?;
        let settings: Vec<_> = settings(self.pictures)?
            .into_iter()
            .map(|(_, content)| sha256(&content))
            .collect();
        let kernels = format!("{:?}", triad_kernels::kernel_names());
        let key = json!({
            "program": program(), "encoder": self.source, "settings": settings, "pictures": pictures,
            "kernels": kernels,
        });
        Ok(sha256(key.to_string().as_bytes()))
    }

    /// Writes the files of the encoder to `part`.
    ///
    /// # Errors
    /// If `cancel` is set, the encoder's files have changed, or a file cannot be read or written.
    pub(super) fn write(
        &self,
        model: &Model,
        decided: Decided,
        part: &Part,
        cancel: &Cancel,
    ) -> Result<(PackagedVision, BTreeMap<String, FileDigest>)> {
        let float = &self.float;
        let plan = decided.preparation.quantization();
        let plan = plan.expect("the plan is for INT8");
        let path = part.path(packaged::WEIGHTS);
        let element = weights(model, float, &plan, &path, cancel)?;
        let mut files =
            BTreeMap::from([(packaged::WEIGHTS.to_owned(), FileDigest::of_file(&path)?)]);
        for (name, content) in settings(self.pictures)? {
            write_file(part, name, &content)?;
            files.insert(name.into(), FileDigest::of_file(&part.path(name))?);
        }
        let vision = PackagedVision {
            source: self.source.clone(),
            model: float.description().clone(),
            matrices: element.name().into(),
            pictures: decided.pictures,
            preparation: decided.preparation,
        };
        float.check_unchanged()?;
        Ok((vision, files))
    }
}

/// Writes the encoder with its blocks in INT8 to `path`. Returns the element type of the projectors' matrices.
fn weights(
    model: &Model,
    vision: &VisionModel,
    plan: &Quantization,
    path: &Path,
    cancel: &Cancel,
) -> Result<Element> {
    let weights = vision.weights();
    let matrices = weights.projectors.iter().flat_map(|projector| {
        let layers = projector.first.iter().chain([&projector.last]);
        layers.map(|layer| float_element(layer.weight.view()))
    });
    let mut matrices: Vec<_> = matrices.collect();
    matrices.dedup();
    let element = match matrices[..] {
        [element] => element,
        _ => Element::F32,
    };
    let mut file = Output::create(path, packaged::entries(vision.description(), element)?)?;
    dense(&mut file, PATCH, &weights.patch, Element::F32)?;
    if let Some(class) = &weights.class {
        file.floats(CLASS, class)?;
    }
    if !weights.positions.is_empty() {
        file.floats(POSITIONS, &weights.positions)?;
    }
    for (name, norm) in [
        (INPUT_NORM, &weights.input_norm),
        (OUTPUT_NORM, &weights.output_norm),
    ] {
        if let Some(norm) = norm {
            file.norm(name, norm)?;
        }
    }
    for (index, (block, scales)) in weights.blocks.iter().zip(&weights.scales).enumerate() {
        for (place, norm) in NormPlace::all_of(block) {
            file.norm(&norm_name(index, place), norm)?;
        }
        for (name, linear) in &block.linears {
            cancel.check()?;
            let input = &plan.blocks[index][LinearInput::read_by(*name).index()];
            let quantized = model.install(|| quantize_linear(linear, input, plan));
            let name = linear_name(index, *name);
            file.linear(&name, &quantized, DecodeWeights::Int8)?;
        }
        let bounds = &weights.bounds[index];
        if !bounds.is_empty() {
            let linears = vision.description().linears().into_iter();
            let numbers: Vec<f32> = linears
                .flat_map(|shape| bounds[&shape.linear].numbers())
                .collect();
            file.floats(&bounds_name(index), &numbers)?;
        }
        let scales = [&scales.attention, &scales.feed_forward];
        for (name, scale) in scale_names(index).iter().zip(scales) {
            if let Some(scale) = scale {
                file.floats(name, scale)?;
            }
        }
    }
    for (stage, projector) in weights.projectors.iter().enumerate() {
        let [norm, first, last] = projector_names(stage);
        if let Some(standard) = &projector.standard {
            let [offset, factor] = standard_names(stage);
            file.floats(&offset, &standard.offset)?;
            file.floats(&factor, &standard.factor)?;
        }
        let described = vision.description().projector_norm(stage);
        if let Some(weights) = &projector.norm
            && described.is_some_and(|norm| norm.weighted)
        {
            file.norm(&norm, weights)?;
        }
        if let Some(layer) = &projector.first {
            dense(&mut file, &first, layer, element)?;
        }
        dense(&mut file, &last, &projector.last, element)?;
    }
    file.finish()?;
    Ok(element)
}

fn dense(file: &mut Output, name: &str, layer: &Dense, element: Element) -> Result<()> {
    file.float(&format!("{name}.weight"), &layer.weight, element)?;
    match &layer.bias {
        Some(bias) => file.floats(&format!("{name}.bias"), bias),
        None => Ok(()),
    }
}

/// Returns the files that say how pictures are prepared, by their names in a package.
fn settings(pictures: &CalibrationPictures) -> Result<Vec<(&'static str, Vec<u8>)>> {
    let files = pictures.settings();
    if files.is_empty() {
        let path = &pictures.encoder;
        let file = MappedFile::open(path)?;
        let head = gguf::read(file.bytes()).map_err(|error| error.at(path))?;
        return Ok(vec![(GGUF, head.without_tensors(file.bytes()))]);
    }
    let mut found = Vec::new();
    for path in files {
        let name = SETTINGS.iter().find(|name| path.ends_with(name));
        let content = files::read(&path, MAX_SETTINGS).map_err(|error| {
            let message = "cannot read the file";
            Error::new(ErrorKind::Io, message)
                .caused_by(error)
                .at(&path)
        })?;
        found.extend(name.map(|name| (*name, content)));
    }
    Ok(found)
}
