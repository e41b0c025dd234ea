//! `--lora`: the LoRA adapters of an answer.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::Result;
use triad_engine::{Adapters, Engine, Model, ScaledAdapter};
use triad_hetero::HeteroEngine;
use triad_plan::processors::ProcessorKind;

use triad_console::{inputs, output};

/// The path of an adapter, and its scale.
#[derive(Clone, Debug, PartialEq)]
pub struct ScaledPath {
    path: PathBuf,
    scale: f32,
}

impl FromStr for ScaledPath {
    type Err = String;

    /// Reads `adapter.gguf` or `adapter.gguf:0.5`.
    fn from_str(text: &str) -> Result<Self, String> {
        let whole = || Self {
            path: text.into(),
            scale: 1.0,
        };
        let Some((path, scale)) = text.rsplit_once(':').filter(|_| !Path::new(text).exists())
        else {
            return Ok(whole());
        };
        match scale.parse::<f32>() {
            Ok(scale) if scale.is_finite() => Ok(Self {
                path: path.into(),
                scale,
            }),
            Ok(scale) => Err(format!("the scale is {scale}, expected a finite number")),
            // A path with a colon, such as `C:\\adapter.gguf`.
            Err(_) => Ok(whole()),
        }
    }
}

/// Opens adapters for `model`, to be applied together.
pub fn open(model: &Model, paths: &[ScaledPath]) -> Result<Adapters> {
    let adapters = paths.iter().map(|ScaledPath { path, scale }| {
        inputs::add_adapter(path);
        Ok(ScaledAdapter {
            adapter: model.open_adapter(path)?,
            scale: *scale,
        })
    });
    Ok(Adapters::new(adapters.collect::<Result<Vec<_>>>()?)?)
}

/// Prints a note on adapters if processors other than CPUs are used.
pub fn note_processors(engine: &Engine) {
    let has_device = |engine: HeteroEngine| {
        let mut processors = engine.processors().iter();
        processors.any(|(_, processor)| processor.kind != ProcessorKind::Cpu)
    };
    if HeteroEngine::from_engine(engine).is_some_and(has_device) {
        output::note(
            "note: with an adapter, the CPU computes its part, and also the feed-forwards of an NPU or a GPU and the models of a \
             GPU that runs them whole",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_follows_the_last_colon() {
        let read = |text: &str| text.parse::<ScaledPath>().unwrap();
        let of = |path: &str, scale| ScaledPath {
            path: path.into(),
            scale,
        };
        assert_eq!(read("a.gguf"), of("a.gguf", 1.0));
        assert_eq!(read("a.gguf:0.5"), of("a.gguf", 0.5));
        assert_eq!(read("C:/a.gguf:-2"), of("C:/a.gguf", -2.0));
        assert_eq!(read("C:/a.gguf"), of("C:/a.gguf", 1.0));
        assert!("a.gguf:NaN".parse::<ScaledPath>().is_err());
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a:2");
        std::fs::write(&file, "").unwrap();
        assert_eq!(
            read(file.to_str().unwrap()),
            of(file.to_str().unwrap(), 1.0),
            "an existing file is a path"
        );
    }
}
