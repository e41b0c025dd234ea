//! Output files of commands.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use triad_model::output;

use crate::inputs;

/// An output file that the user named. It can't be one of this command's inputs.
pub struct OutputFile {
    path: PathBuf,
    file: output::OutputFile,
}

impl OutputFile {
    /// Opens the file before the work starts, so that a path that can't be written is found at once. Fails if the path
    /// is one of the inputs known so far.
    pub fn create(path: &Path) -> Result<Self> {
        inputs::check(path)?;
        let file = output::OutputFile::create(path)
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self {
            path: path.into(),
            file,
        })
    }

    /// Writes the file by `content` and renames it to its final name.
    pub fn write(self, content: impl FnOnce(&mut File) -> io::Result<()>) -> Result<()> {
        self.finish(content, output::OutputFile::finish)
    }

    /// Does the same as [`Self::write`], but never replaces a file.
    ///
    /// # Errors
    /// With an [`io::Error`] of the kind `AlreadyExists` as a cause if there is one.
    pub fn write_new(self, content: impl FnOnce(&mut File) -> io::Result<()>) -> Result<()> {
        self.finish(content, output::OutputFile::finish_new)
    }

    fn finish(
        mut self,
        content: impl FnOnce(&mut File) -> io::Result<()>,
        finish: fn(output::OutputFile) -> io::Result<()>,
    ) -> Result<()> {
        // Checked again, because some inputs become known only when the model's name is resolved.
        inputs::check(&self.path)?;
        let written = content(self.file.file()).and_then(|()| finish(self.file));
        written.with_context(|| format!("cannot write {}", self.path.display()))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;

    use super::*;

    #[test]
    fn a_file_that_is_not_finished_leaves_the_old_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("figure.svg");
        fs::write(&path, "old").unwrap();
        let failed = OutputFile::create(&path).unwrap().write(|file| {
            file.write_all(b"half")?;
            Err(io::Error::other("the disk is full"))
        });
        assert!(format!("{:#}", failed.unwrap_err()).contains("figure.svg: the disk is full"));
        drop(OutputFile::create(&path).unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        OutputFile::create(&path)
            .unwrap()
            .write(|file| file.write_all(b"new"))
            .unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[cfg(unix)]
    #[test]
    fn an_output_is_not_written_through_a_link_next_to_it_and_replaces_no_device() {
        use std::os::unix::fs::{FileTypeExt, symlink};

        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("mine"), "mine").unwrap();
        symlink("mine", path("figure.svg.part")).unwrap();
        symlink("/dev/null", path("null")).unwrap();
        for name in ["figure.svg", "null"] {
            OutputFile::create(&path(name))
                .unwrap()
                .write(|file| file.write_all(b"new"))
                .unwrap();
        }
        assert_eq!(fs::read_to_string(path("mine")).unwrap(), "mine");
        assert_eq!(fs::read_to_string(path("figure.svg")).unwrap(), "new");
        assert!(
            fs::metadata(path("null"))
                .unwrap()
                .file_type()
                .is_char_device()
        );
    }
}
