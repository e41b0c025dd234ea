//! Preparation of packages with progress bars. Ctrl-C ends it cleanly, and the next preparation continues from there.

use std::path::{Path, PathBuf};

use anyhow::Result;
use triad_engine::{Cancel, Threads};
use triad_frontend::packages::Found;
use triad_frontend::{open, packages};
use triad_prepare::PrepareOptions;
use triad_prepare::calibration::pictures::CalibrationPictures;
use triad_prepare::calibration::text::CalibrationText;
use triad_prepare::package::{Prepared, Progress, Recipe};

use crate::failure::run_error;
use crate::interrupt::on_interrupt;
use crate::output;
use crate::progress::{self, Shown};

/// Returns the package of the model at `path`, which the user calls `name`. Prepares it if necessary and prints a note.
pub fn package_of(path: &Path, name: &str, threads: Threads) -> Result<PathBuf> {
    let mut read = progress::reading(path);
    let found = shown(
        |cancel, show| packages::package_of(path, threads, cancel, &mut read, show),
        name,
    )?;
    note_stored(&found, name);
    if let Some(time) = found.prepared {
        let (seconds, path) = (time.as_secs_f64(), found.path.display());
        output::note(&format!(
            "prepared {name} for INT8 in {seconds:.1} s, once (--no-quantize runs it unprepared): {path}"
        ));
    }
    Ok(found.path)
}

/// Prints a note if the model that the user calls `name` is never prepared.
pub fn note_stored(found: &Found, name: &str) {
    if let Some(part) = found.stored {
        output::note(&format!(
            "{name} {part}: it runs in the format in which it is stored"
        ));
    }
}

/// Returns the path in the cache of the package of the model at `path`, with a progress bar while its files are read.
pub fn cached(
    path: &Path,
    options: &PrepareOptions,
    calibration: (&CalibrationText, Option<&CalibrationPictures>),
) -> Result<PathBuf> {
    Ok(packages::cached(
        path,
        options,
        calibration,
        &mut progress::reading(path),
    )?)
}

/// Prepares the model that the user calls `name`.
pub fn prepare(recipe: &Recipe, destination: &Path, name: &str) -> Result<Prepared> {
    shown(
        |cancel, show| packages::prepare(recipe, destination, cancel, show),
        name,
    )
}

fn shown<R>(
    prepare: impl FnOnce(&Cancel, &mut dyn FnMut(Progress)) -> triad_frontend::Result<R>,
    name: &str,
) -> Result<R> {
    let cancel = Cancel::new();
    let on_ctrl_c = cancel.clone();
    let _guard = on_interrupt(move || on_ctrl_c.cancel());
    let mut screen = Screen { shown: None };
    prepare(&cancel, &mut |progress| screen.show(progress)).map_err(|error| run_error(error, name))
}

/// The progress bar or spinner of the current step of a preparation.
struct Screen {
    shown: Option<(&'static str, Shown)>,
}

impl Screen {
    fn show(&mut self, progress: Progress) {
        let what = open::sentence(progress);
        match progress {
            Progress::Waiting | Progress::Loading | Progress::Deciding => {
                self.step(what, progress::spinner);
            }
            Progress::Calibrating { done, total } => {
                self.step(what, |what| progress::tokens(what, total));
                self.set(done);
            }
            Progress::CalibratingPictures { done, total } => {
                self.step(what, |what| progress::pictures(what, total));
                self.set(done);
            }
            Progress::Measuring { done, total } | Progress::Writing { done, total } => {
                self.step(what, |what| progress::layers(what, total));
                self.set(done);
            }
        }
    }

    fn step(&mut self, what: &'static str, show: impl FnOnce(&'static str) -> Shown) {
        if self.shown.as_ref().is_none_or(|(shown, _)| *shown != what) {
            // Remove the old line before the new one is drawn.
            self.shown = None;
            self.shown = Some((what, show(what)));
        }
    }

    fn set(&self, position: usize) {
        if let Some((_, shown)) = &self.shown {
            shown.set(position);
        }
    }
}
