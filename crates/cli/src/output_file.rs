//! A file that a command writes.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::inputs;

/// The file to come, written beside its place: when it has its name it is whole, and until then what had the
/// name before is as it was. Removed unless it is finished.
pub struct OutputFile {
    path: PathBuf,
    part: PathBuf,
    file: File,
}

impl OutputFile {
    /// Before the work begins, so that a place that can't be written is found at once. It can't be one of the inputs
    /// that are known by now, either.
    pub fn create(path: &Path) -> Result<Self> {
        let mut name = path.as_os_str().to_owned();
        name.push(".part");
        let part = PathBuf::from(name);
        inputs::check(path)?;
        inputs::check(&part)?;
        let file = File::create(&part).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self { path: path.into(), part, file })
    }

    /// Lets `content` write the file, and gives it its name.
    pub fn write(mut self, content: impl FnOnce(&mut File) -> io::Result<()>) -> Result<()> {
        // Once more: some inputs are known only when the model's name has been resolved.
        inputs::check(&self.path)?;
        let written = content(&mut self.file).and_then(|()| fs::rename(&self.part, &self.path));
        written.with_context(|| format!("cannot write {}", self.path.display()))
    }
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        // After a rename there is nothing to remove.
        let _ = fs::remove_file(&self.part);
    }
}

#[cfg(test)]
mod tests {
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
        OutputFile::create(&path).unwrap().write(|file| file.write_all(b"new")).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
