//! Preparation of packages.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use triad_engine::package::Package;
use triad_engine::quantization::{LinearFormat, WeightScales};
use triad_frontend::{models, open, packages};
use triad_model::checkpoint::Checkpoint;
use triad_prepare::calibration::text::CalibrationText;
use triad_prepare::package::{Existing, Recipe};
use triad_prepare::plan::PlanOptions;
use triad_prepare::{PrepareOptions, Prune};

use crate::error::{self, TriadError, chain};
use crate::options::threads as chosen_threads;
use crate::prompt::model_name;
use crate::running::wait;

/// The shadows to prune: a share, or a word.
#[derive(FromPyObject)]
pub enum PruneArgument {
    /// This share of the inputs.
    Share(f64),
    /// `auto` or `none`.
    Word(String),
}

/// Prepares a model, as `triad prepare` does, and returns the path of its package. Without `output`, the package is
/// stored in the cache, where `Model` finds it if no other option is given.
#[pyfunction]
#[pyo3(signature = (model=None, output=None, *, weights="channel", prune=None, calibrate=Vec::new(), tokens=16384,
    force=false, threads=None, progress=None))]
#[expect(clippy::too_many_arguments, reason = "they are keyword arguments")]
pub fn prepare(
    py: Python,
    model: Option<PathBuf>,
    output: Option<PathBuf>,
    weights: &str,
    prune: Option<PruneArgument>,
    calibrate: Vec<PathBuf>,
    tokens: usize,
    force: bool,
    threads: Option<usize>,
    progress: Option<&Bound<'_, PyAny>>,
) -> PyResult<PathBuf> {
    let usual = PrepareOptions::default();
    let (linears, weight_scales) = match weights {
        "channel" => (LinearFormat::W8a8, WeightScales::Channel),
        "tensor" => (LinearFormat::W8a8, WeightScales::Tensor),
        "int4" => (LinearFormat::W4a16, WeightScales::Channel),
        other => {
            let text =
                format!("weights is {other:?}: expected \"channel\", \"tensor\" or \"int4\"");
            return Err(PyValueError::new_err(text));
        }
    };
    if linears == LinearFormat::W4a16 && prune.is_some() {
        return Err(PyValueError::new_err(
            "prune is for INT8: expected it without weights=\"int4\"",
        ));
    }
    let prune = match prune {
        None => usual.prune,
        Some(PruneArgument::Share(share)) if (0.0..=1.0).contains(&share) => Prune::Rate(share),
        Some(PruneArgument::Word(word)) if word == "auto" => Prune::AUTO,
        Some(PruneArgument::Word(word)) if word == "none" => Prune::Rate(0.0),
        Some(_) => {
            return Err(PyValueError::new_err(
                "prune: expected a share from 0 to 1, \"auto\" or \"none\"",
            ));
        }
    };
    let plan = PlanOptions {
        linears,
        weight_scales,
        ..usual.plan
    };
    let options = PrepareOptions {
        plan,
        prune,
        tokens,
    };
    let threads = chosen_threads(threads);
    let name = model_name(model)?;
    wait(py, progress, move |cancel, step| {
        let path = models::path_of(&name, &()).map_err(error::frontend)?;
        if Package::is_at(&path) {
            return Err(TriadError::new_err(format!(
                "{} is a package already",
                path.display()
            )));
        }
        let files: Result<Vec<_>, _> = calibrate
            .iter()
            .map(|path| CalibrationText::read(path))
            .collect();
        let files = files.map_err(|error| TriadError::new_err(chain(&error)))?;
        let text = if files.is_empty() {
            CalibrationText::builtin()
        } else {
            CalibrationText::join(files)
        };
        let existing = match (&output, force) {
            (_, true) => Existing::Replace,
            (Some(_), false) => Existing::Refuse,
            (None, false) => Existing::Keep,
        };
        let destination = match output {
            Some(output) => output,
            None => packages::cached(&path, &options, (&text, None), &mut |_, _| {})
                .map_err(error::frontend)?,
        };
        let checkpoint =
            Arc::new(Checkpoint::open(&path).map_err(|error| error::frontend(error.into()))?);
        let recipe = Recipe {
            checkpoint,
            text,
            options,
            threads,
            existing,
            moment_memory: triad_prepare::int4::moments::MEMORY,
            pictures: None,
        };
        let mut latest = "";
        let prepared = packages::prepare(&recipe, &destination, cancel, &mut |progress| {
            let next = open::sentence(progress);
            if next != latest {
                latest = next;
                step(next);
            }
        });
        Ok(prepared.map_err(error::frontend)?.package.path().to_owned())
    })
}
