//! Model files become packages: on request (`triad prepare`), or by themselves when one is run for the first time.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use serde_json::json;
use triad_engine::package::{self, Existing, Package, Prepared, Progress, Recipe};
use triad_engine::prepare::PrepareOptions;
use triad_engine::prepare::calibration::text::CalibrationText;
use triad_engine::{Cancel, Error, LoadOptions, Threads, memory};
use triad_kernels::int8;
use triad_model::checkpoint::Checkpoint;
use triad_model::fetch;

use crate::interrupt::{Interrupted, on_interrupt};
use crate::progress::{self, Shown};
use crate::{arguments, hashes, inputs, machine, output};

/// Hexadecimal digits of a key in the name of a folder: enough that no two packages of one user share them.
const KEY_DIGITS: usize = 16;

/// The package of the model at `path`, which the user calls `name`: itself if it is one, else one in the cache that is
/// made now if it is not there.
pub fn package_of(path: &Path, name: &str, threads: Threads) -> Result<PathBuf> {
    if Package::is_at(path) {
        return Ok(path.into());
    }
    let (options, text) = (PrepareOptions::default(), CalibrationText::builtin());
    let destination = cached(path, &options, &text)?;
    if Package::is_at(&destination) {
        return Ok(destination);
    }
    let start = Instant::now();
    let checkpoint = open(path, name)?;
    let recipe = Recipe { checkpoint, text, options, load: LoadOptions { threads }, existing: Existing::Keep };
    prepare(&recipe, &destination, name)?;
    let seconds = start.elapsed().as_secs_f64();
    let place = destination.display();
    output::note(&format!("prepared {name} for INT8 in {seconds:.1} s, once (--float runs it without): {place}"));
    Ok(destination)
}

/// Opens the model file at `path`, if it fits into memory in float.
pub fn open(path: &Path, name: &str) -> Result<Arc<Checkpoint>> {
    let checkpoint = Arc::new(Checkpoint::open(path)?);
    machine::check_memory(name, memory::of_weights(&checkpoint).widened)?;
    Ok(checkpoint)
}

/// Where the package of the model at `path` lies in the cache: each model, as its files are now, and each way to
/// prepare it has a place of its own. What counts is what the files hold, not where they are or how old: a copy of the
/// model finds the same package, and so does the model in a copy of the cache.
pub fn cached(path: &Path, options: &PrepareOptions, text: &CalibrationText) -> Result<PathBuf> {
    let files = inputs::model_files(path);
    let hashes = hashes::of_files(path, &files, &format!("reading {}", path.display()))?;
    let file_name = |file: &PathBuf| file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    // The parts of a folder have their names for a reason, a single file may be called anything.
    let files: Vec<_> = match &hashes[..] {
        [single] => vec![(String::new(), single.clone())],
        _ => files.iter().map(file_name).zip(hashes).collect(),
    };
    let key = json!({
        "program": env!("CARGO_PKG_VERSION"),
        "format": package::FORMAT,
        "layout": int8::LAYOUT,
        "files": files,
        "options": options,
        "text": package::sha256(json!(text.texts).to_string().as_bytes()),
    });
    let key = &package::sha256(key.to_string().as_bytes())[..KEY_DIGITS];
    let folder = fetch::packages_folder()?;
    // A copy of the model may have had another name when its package was made.
    let end = format!("-{key}");
    let made = fs::read_dir(&folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_made = |place: &PathBuf| place.to_string_lossy().ends_with(&end) && Package::is_at(place);
    if let Some(made) = made.filter(is_made).min() {
        return Ok(made);
    }
    let path = path.canonicalize().with_context(|| format!("cannot read {}", path.display()))?;
    let name = if path.is_dir() { path.file_name() } else { path.file_stem() };
    let name = name.unwrap_or_default().to_string_lossy().replace(|letter: char| !is_plain(letter), "-");
    Ok(folder.join(name + &end))
}

fn is_plain(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || matches!(letter, '.' | '-' | '_')
}

/// Prepares the model that the user calls `name`, with bars on the screen. Ctrl-C ends it cleanly: the next preparation goes on from there.
pub fn prepare(recipe: &Recipe, destination: &Path, name: &str) -> Result<Prepared> {
    if let Some(parent) = destination.parent() {
        fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
    }
    let cancel = Cancel::new();
    let on_ctrl_c = cancel.clone();
    let _guard = on_interrupt(move || on_ctrl_c.cancel());
    let mut screen = Screen { shown: None };
    match package::prepare(recipe, destination, &cancel, &mut |progress| screen.show(progress)) {
        Err(Error::Cancelled) => Err(Interrupted.into()),
        prepared => prepared.map_err(|error| arguments::run_error(error, name)),
    }
}

/// The bar or spinner of the step that a preparation is in.
struct Screen {
    shown: Option<(&'static str, Shown)>,
}

impl Screen {
    fn show(&mut self, progress: Progress) {
        match progress {
            Progress::Waiting => self.step("waiting for another process that prepares this model", progress::spinner),
            Progress::Loading => self.step("reading the model", progress::spinner),
            Progress::Deciding => self.step("choosing clip thresholds and shadows", progress::spinner),
            Progress::Calibrating { done, total } => {
                self.step("calibrating", |what| progress::tokens(what, total));
                self.set(done);
            }
            Progress::Writing { done, total } => {
                self.step("quantizing", |what| progress::layers(what, total));
                self.set(done);
            }
        }
    }

    fn step(&mut self, what: &'static str, show: impl FnOnce(&'static str) -> Shown) {
        if self.shown.as_ref().is_none_or(|(shown, _)| *shown != what) {
            // The old line goes before the new one comes.
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

/// What is said about a package, name by name, whoever asks.
pub fn fields(package: &Package) -> Vec<(&'static str, String)> {
    let manifest = package.manifest();
    let preparation = &manifest.preparation;
    let plan = &preparation.options.plan;
    let inputs = &preparation.inputs;
    let share = |part: usize, whole: usize| 100.0 * part as f64 / whole.max(1) as f64;
    let channels: usize = inputs.iter().map(|input| input.channels).sum();
    let outlier_channels = inputs.iter().map(|input| input.outlier_channels).sum();
    let hot = inputs.iter().map(|input| input.hot_channels.len()).sum();
    let values = |input: &triad_engine::prepare::plan::InputSummary| input.outlier_share * input.channels as f64;
    let outliers = 100.0 * inputs.iter().map(values).sum::<f64>() / channels.max(1) as f64;
    let kept = |place: triad_engine::LinearInput| {
        let kept = inputs.iter().filter(|input| input.input == place && input.shadow).count();
        format!("{} {kept}", place.name())
    };
    let shadows = inputs.iter().filter(|input| input.shadow).count();
    let files: Vec<_> =
        manifest.files.iter().map(|(name, file)| format!("{name} {}", output::bytes(file.bytes))).collect();
    vec![
        ("model", manifest.model.name.clone().unwrap_or_else(|| "unnamed".into())),
        ("family", manifest.model.family.clone()),
        ("package", package.path().display().to_string()),
        ("size", format!("{} ({})", output::bytes(package.bytes()), files.join(", "))),
        (
            "method",
            format!(
                "W8A8, activations static per tensor, weights per {}; decode with {}",
                name_of(&plan.weight_scales),
                name_of(&plan.decode_weights)
            ),
        ),
        (
            "calibration",
            format!("{}, {} tokens", preparation.calibration_text, output::count(preparation.calibration_tokens)),
        ),
        (
            "outliers",
            format!(
                "{outliers:.2} % of values, in {:.1} % of channels; {:.1} % of channels give {:.0} % of them",
                share(outlier_channels, channels),
                share(hot, channels),
                100.0 * plan.hot_share
            ),
        ),
        (
            "shadows",
            format!(
                "{shadows} of {} inputs keep theirs ({})",
                inputs.len(),
                triad_engine::LinearInput::ALL.map(kept).join(", ")
            ),
        ),
        ("made by", manifest.made_by.clone()),
    ]
}

/// A choice as the command line names it.
fn name_of(choice: &impl serde::Serialize) -> String {
    json!(choice).as_str().unwrap_or_default().to_owned()
}
