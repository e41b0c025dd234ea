//! Preparation of a package from a model file: the model is calibrated ([`resume`] stores the state of an interrupted
//! run), quantized and written ([`write`]) into a folder next to the package ([`part`]), which gets the package's name
//! when it is complete. The same model, text and options give the same bytes.

mod part;
mod resume;
mod vision;
mod write;

use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use serde_json::json;
use triad_engine::package::tensors::Formats;
use triad_engine::package::vision::PackagedVision;
use triad_engine::package::{
    FORMAT, FileDigest, MANIFEST, MANIFEST_DIGEST, Manifest, Package, WEIGHTS, sha256,
};
use triad_engine::{Cancel, LoadOptions, Model, Threads};
use triad_kernels::BlockArithmetic;
use triad_kernels::int8;
use triad_model::checkpoint::Checkpoint;
use triad_model::{Error, ErrorKind, output};

use crate::calibration::pictures::CalibrationPictures;
use crate::calibration::text::CalibrationText;
use crate::calibration::{self, Calibration};
use crate::error::Result;
use crate::{Preparation, PrepareOptions};
pub use part::is_being_prepared;
use part::{Opened, Part};
use resume::Saved;
use vision::Encoder;
use write::{LinearPlan, write_error};

/// Files by name.
type Source = BTreeMap<String, FileDigest>;

/// The end of the name of a folder in which a package is prepared; the rest is the package's name.
pub const UNFINISHED: &str = ".part";

/// Returns whether a process prepares a package in the unfinished folder at `path`.
pub fn is_in_use(path: &Path) -> bool {
    let lock = path.join(part::LOCK);
    lock.is_file()
        && output::open_lock(&lock)
            .is_ok_and(|lock| matches!(lock.try_lock(), Err(TryLockError::WouldBlock)))
}

/// The input and the options of a preparation.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// The model.
    pub checkpoint: Arc<Checkpoint>,
    /// The calibration texts: three of four calibrate; the fourth is held out.
    pub text: CalibrationText,
    /// The options of the preparation.
    pub options: PrepareOptions,
    /// Threads for the computation. They do not affect the package.
    pub threads: Threads,
    /// The treatment of an existing package.
    pub existing: Existing,
    /// The pictures that calibrate the encoder; `None`: the package has no encoder.
    pub pictures: Option<CalibrationPictures>,
}

/// The treatment of an existing package.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// The package is kept, and the preparation fails.
    Refuse,
    /// The package is kept, and used.
    Keep,
    /// The package is replaced when the new one is complete.
    Replace,
}

/// The progress of a preparation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Another process prepares the same package.
    Waiting,
    /// The float model is read.
    Loading,
    /// The float model processes the calibration text.
    Calibrating {
        /// Processed tokens.
        done: usize,
        /// Tokens of the text.
        total: usize,
    },
    /// The float encoder processes the calibration pictures.
    CalibratingPictures {
        /// Processed pictures.
        done: usize,
        /// Pictures.
        total: usize,
    },
    /// Clip thresholds and shadows are decided.
    Deciding,
    /// Weights are quantized and written.
    Writing {
        /// Finished linear layers.
        done: usize,
        /// Linear layers.
        total: usize,
    },
}

/// A package that was made or found.
#[derive(Debug)]
pub struct Prepared {
    /// The package.
    pub package: Package,
    /// Whether this run made it; otherwise it was there, or another process made it meanwhile.
    pub is_new: bool,
    /// Tokens that this run calibrated on, and the seconds for them: zeros if it resumed after a complete calibration.
    pub calibrated: (usize, f64),
}

/// Prepares a model by `recipe`; afterwards, `destination` has the complete package, or none.
///
/// # Errors
/// If the model cannot run, there are too few texts, files cannot be written, or `cancel` is set. The state of the
/// calibration on text is kept in `destination` + `.part`, and the next preparation with the same input continues from there.
pub fn prepare(
    recipe: &Recipe,
    destination: &Path,
    cancel: &Cancel,
    progress: &mut dyn FnMut(Progress),
) -> Result<Prepared> {
    let model = recipe.checkpoint.description();
    if model.is_encoder() || model.head.is_some() {
        let message = "an encoder or a model with layers after pooling cannot be prepared: it runs as it is stored";
        return Err(Error::new(ErrorKind::Unsupported, message).into());
    }
    if model.has_expert_branches() {
        let message = "experts next to a dense feed-forward cannot be prepared: the model runs as it is stored";
        return Err(Error::new(ErrorKind::Unsupported, message).into());
    }
    let opened = Part::open(destination, recipe.existing, cancel, &mut || {
        progress(Progress::Waiting);
    })?;
    let Opened::Part(part) = opened else {
        return Ok(Prepared {
            package: Package::open(destination)?,
            is_new: false,
            calibrated: (0, 0.0),
        });
    };
    progress(Progress::Loading);
    // The statistics must not depend on this processor's rounding.
    let load = LoadOptions {
        threads: recipe.threads.clone(),
        block_arithmetic: BlockArithmetic::Exact,
        ..LoadOptions::default()
    };
    let model = Arc::new(Model::from_checkpoint(&recipe.checkpoint, &load)?);
    let files = source(&recipe.checkpoint)?;
    // A picture that cannot be read is found before the text is calibrated.
    let encoder = match &recipe.pictures {
        Some(pictures) => {
            let encoder = Encoder::open(recipe, pictures, (&model, &files))?;
            let decided = encoder.decide(&model, &part, cancel, progress)?;
            Some((encoder, decided))
        }
        None => None,
    };
    let source: Source = files
        .iter()
        .map(|(path, it)| (name_of(path), it.clone()))
        .collect();
    let [pieces, held_out] = calibration::split(&model, &recipe.text, recipe.options.tokens)?;
    let (calibration, calibrated) =
        calibrate(&model, recipe, &source, &pieces, &part, cancel, progress)?;
    progress(Progress::Deciding);
    let preparation = crate::decide(&model, &calibration, &held_out, &recipe.options, cancel)?;
    let linears = match preparation.quantization() {
        Some(quantization) => LinearPlan::W8a8(quantization),
        None => LinearPlan::W4a16 {
            mean_squares: calibration.mean_squares(),
        },
    };
    drop(calibration);
    let path = part.path(WEIGHTS);
    let formats = write::weights(
        &model,
        &linears,
        &recipe.options.plan,
        &path,
        cancel,
        &mut |done, total| {
            progress(Progress::Writing { done, total });
        },
    )?;
    let vision = match encoder {
        Some((encoder, decided)) => Some(encoder.write(&model, decided, &part, cancel)?),
        None => None,
    };
    model.check_unchanged()?;
    write_rest(recipe, &part, source, (formats, preparation), vision)?;
    cancel.check()?;
    part.finish()?;
    Ok(Prepared {
        package: Package::open(destination)?,
        is_new: true,
        calibrated,
    })
}

/// Returns the files of the model.
fn source(checkpoint: &Checkpoint) -> Result<Vec<(PathBuf, FileDigest)>> {
    let digest = |path: &Path| Ok((path.to_owned(), FileDigest::of_file(path)?));
    checkpoint.files().map(digest).collect()
}

fn name_of(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// Calibrates, starting from the state of an earlier run with the same input, if there is one.
fn calibrate(
    model: &Arc<Model>,
    recipe: &Recipe,
    source: &Source,
    pieces: &[Vec<u32>],
    part: &Part,
    cancel: &Cancel,
    progress: &mut dyn FnMut(Progress),
) -> Result<(Calibration, (usize, f64))> {
    // Everything that affects a calibration: float kernels differ in the last bits.
    let kernels = format!("{:?}", triad_kernels::kernel_names());
    let key = json!({"program": program(), "source": source, "pieces": pieces, "kernels": kernels});
    let key = sha256(key.to_string().as_bytes());
    let mut calibration = Calibration::new(model.description(), &recipe.text.name);
    let mut saved = Saved::resume(key, part.path(Part::CALIBRATION), &mut calibration);
    let total = pieces.iter().map(Vec::len).sum();
    let resumed = calibration.tokens;
    progress(Progress::Calibrating {
        done: resumed,
        total,
    });
    let start = Instant::now();
    let run = calibration.run(model, pieces, cancel, |seen| {
        progress(Progress::Calibrating {
            done: seen.tokens,
            total,
        });
        Ok(saved.keep(seen)?)
    });
    if run.is_err() && (calibration.pieces, calibration.counted) != (0, 0) {
        saved.save(&calibration)?;
    }
    run?;
    let seconds = start.elapsed().as_secs_f64();
    let tokens = calibration.tokens - resumed;
    Ok((calibration, (tokens, seconds)))
}

fn program() -> String {
    format!("triad {}", env!("CARGO_PKG_VERSION"))
}

/// Writes everything except the weights, `package.json` last.
fn write_rest(
    recipe: &Recipe,
    part: &Part,
    source: Source,
    (formats, preparation): (Formats, Preparation),
    vision: Option<(PackagedVision, Source)>,
) -> Result<()> {
    let mut files = BTreeMap::from([(
        WEIGHTS.to_owned(),
        FileDigest::of_file(&part.path(WEIGHTS))?,
    )]);
    for (name, content) in recipe.checkpoint.text_files()? {
        write_file(part, name, &content)?;
        files.insert(
            name.into(),
            FileDigest {
                bytes: content.len() as u64,
                sha256: sha256(&content),
            },
        );
    }
    let vision = vision.map(|(vision, of_vision)| {
        files.extend(of_vision);
        Box::new(vision)
    });
    let manifest = Manifest {
        format: FORMAT,
        made_by: program(),
        layout: int8::LAYOUT.into(),
        source,
        model: recipe.checkpoint.description().clone(),
        embedding: formats.embedding.name().into(),
        output: formats.output.name().into(),
        token_inputs: formats
            .token_inputs
            .map(|formats| [formats.table.name().into(), formats.matrices.name().into()]),
        vision,
        generation: recipe.checkpoint.generation_defaults().clone(),
        preparation,
        files,
    };
    let mut json = serde_json::to_vec_pretty(&manifest).expect("a manifest is plain data");
    json.push(b'\n');
    write_file(
        part,
        MANIFEST_DIGEST,
        format!("{}  {MANIFEST}\n", sha256(&json)).as_bytes(),
    )?;
    write_file(part, MANIFEST, &json)
}

fn write_file(part: &Part, name: &str, content: &[u8]) -> Result<()> {
    let path = part.path(name);
    let write = || {
        let mut file = File::create_new(&path)?;
        file.write_all(content)?;
        file.sync_all()
    };
    write().map_err(|error| write_error(error, &path))
}
