//! Arguments for the encoder of pictures.

use std::path::{Path, PathBuf};

use triad_frontend::pictures;

use crate::inputs;

/// Arguments for the pictures of a model.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct VisionArguments {
    /// Encoder of pictures for the model: an mmproj file of llama.cpp, or the folder of a model that reads pictures
    /// [default: that of the model's folder, or the only mmproj*.gguf next to it]
    #[arg(long, value_name = "FILE")]
    pub mmproj: Option<PathBuf>,
}

impl VisionArguments {
    /// Returns the encoder that is named, or that belongs to the model at `path`.
    pub fn encoder(&self, path: &Path) -> Option<PathBuf> {
        let named = self.mmproj.clone();
        let encoder = named.or_else(|| pictures::encoder_of(path))?;
        inputs::add_model(&encoder);
        Some(encoder)
    }
}
