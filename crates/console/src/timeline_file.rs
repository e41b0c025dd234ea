//! The argument `--timeline FILE`: a run as a trace for Chrome's and Perfetto's viewers, or as a picture.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use triad_plan::timeline::Record;

use crate::chart;
use crate::output_file::OutputFile;

/// A file for a timeline. The extension determines the format.
pub struct TimelineFile {
    file: OutputFile,
    format: Format,
}

#[derive(Clone, Copy)]
enum Format {
    Trace,
    Picture,
}

impl TimelineFile {
    /// Creates the file before the run, so that a path that can't be written is found at once.
    pub fn create(path: &Path) -> Result<Self> {
        let format = match path.extension().and_then(|extension| extension.to_str()) {
            Some("json") => Format::Trace,
            Some("svg") => Format::Picture,
            _ => bail!(
                "cannot write a timeline to {}: expected a name that ends in .json or .svg",
                path.display()
            ),
        };
        Ok(Self {
            file: OutputFile::create(path)?,
            format,
        })
    }

    /// Creates the file as [`TimelineFile::create`] does, if there is a path.
    pub fn create_if(path: Option<&PathBuf>) -> Result<Option<Self>> {
        path.map(|path| Self::create(path)).transpose()
    }

    /// Writes the file.
    pub fn write(self, record: &Record) -> Result<()> {
        let content = match self.format {
            Format::Trace => record.trace().to_string() + "\n",
            Format::Picture => chart::timeline::svg(record),
        };
        self.file.write(|file| file.write_all(content.as_bytes()))
    }
}
