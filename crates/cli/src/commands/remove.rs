//! `triad remove`: removes a model from the cache.

use anyhow::Result;
use triad_model::fetch;
use triad_prepare::PrepareOptions;
use triad_prepare::calibration::text::CalibrationText;

use triad_console::{output, preparing, progress};

/// Remove a model from the cache, with the package that was prepared from it.
///
/// A repository of the hub is removed with all of its files; `hf:owner/name:file` removes one file. Model files
/// outside of the cache are never removed.
#[derive(clap::Args)]
#[command(visible_alias = "rm")]
#[command(after_help = "Examples:
  triad remove smollm2-135m
  triad remove hf:Qwen/Qwen2.5-0.5B-Instruct
  triad remove hf:OWNER/NAME:model-q4_k_m.gguf")]
pub struct Arguments {
    /// `smollm2-135m` or `hf:owner/name[:file]`
    model: String,
}

/// Removes the model.
pub fn run(arguments: &Arguments) -> Result<()> {
    let name = &arguments.model;
    let models = fetch::cached()?;
    let found = models.into_iter().find(|model| model.name == *name);
    // The package is named by the files that it was prepared from, so it is found before they are removed.
    let package = found.and_then(|model| {
        let (options, text) = (PrepareOptions::default(), CalibrationText::builtin());
        preparing::cached(&model.path, &options, &text).ok()
    });
    let mut bytes = progress::fetch(|progress| Ok(fetch::remove(name, progress)?))?;
    if let Some(package) = package.filter(|package| package.join("package.json").is_file()) {
        let files = std::fs::read_dir(&package)?.flatten();
        let files = files.filter_map(|file| file.metadata().ok());
        bytes += files.map(|file| file.len()).sum::<u64>();
        std::fs::remove_dir_all(&package)?;
    }
    output::note(&format!("removed {name}, {}", output::bytes(bytes)));
    Ok(())
}
