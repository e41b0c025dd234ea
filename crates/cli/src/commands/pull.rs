//! `triad pull`: fetches a model into the cache.

use anyhow::Result;
use triad_model::fetch;

use triad_console::{output, progress};

/// Fetch a model into the cache and check it.
///
/// An interrupted download continues where it ended. The cache is the folder `triad` in the platform's cache folder, or
/// the folder in TRIAD_CACHE.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  triad pull                                        the default model
  triad pull hf:Qwen/Qwen2.5-0.5B-Instruct          a folder of safetensors
  triad pull hf:OWNER/NAME:model-q4_k_m.gguf        one GGUF file of several
  HF_TOKEN=hf_... triad pull hf:google/gemma-2b     a model with terms to accept")]
pub struct Arguments {
    /// `smollm2-135m` or `hf:owner/name[:file]`
    #[arg(default_value = fetch::DEFAULT_MODEL)]
    model: String,
}

/// Fetches the model, and prints its path.
pub fn run(arguments: &Arguments) -> Result<()> {
    let path = progress::fetch(|progress| Ok(fetch::pull(&arguments.model, progress)?))?;
    output::text(&path.display().to_string())
}
