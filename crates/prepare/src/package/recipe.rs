//! The input of a preparation, its options and its progress.

use std::path::Path;
use std::sync::Arc;

use triad_engine::Threads;
use triad_model::checkpoint::Checkpoint;

use crate::PrepareOptions;
use crate::calibration::pictures::CalibrationPictures;
use crate::calibration::text::CalibrationText;

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
    /// With W4A16, maximum bytes of second moments in memory, if those of one block are not more
    /// ([`MEMORY`](crate::int4::moments::MEMORY)). They do not affect the package.
    pub moment_memory: usize,
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
    /// Four bits are measured for one layer after another.
    Measuring {
        /// Measured layers.
        done: usize,
        /// Layers.
        total: usize,
    },
    /// Weights are quantized and written.
    Writing {
        /// Finished linear layers.
        done: usize,
        /// Linear layers.
        total: usize,
    },
}

/// Returns the name of a file without its folder.
pub(super) fn name_of(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// Returns the program's name and version, which packages record.
pub(super) fn program() -> String {
    format!("triad {}", env!("CARGO_PKG_VERSION"))
}
