//! The inputs of this process, which no command may overwrite.
//!
//! Code that opens an input calls [`add`] or [`add_model`]. Code that creates an output, which is [`OutputFile`] and
//! `triad prepare`, calls [`check`] before it writes anything.
//!
//! [`OutputFile`]: crate::output_file::OutputFile

#[cfg(unix)]
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Result, bail};
use triad_frontend::packages;

/// Paths of input files, without symbolic links.
static INPUTS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn inputs() -> MutexGuard<'static, Vec<PathBuf>> {
    INPUTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Records that the file at `path` is read. Ignores pipes and devices, which can't be overwritten.
pub fn add(path: &Path) {
    if let Some(path) = path.canonicalize().ok().filter(|path| path.is_file()) {
        inputs().push(path);
    }
}

/// Records that the model at `path` is read: a file, a package, or a folder of safetensors.
pub fn add_model(path: &Path) {
    packages::model_files(path)
        .iter()
        .for_each(|file| add(file));
}

/// Records that the adapter at `path` is read: a file, or a folder of PEFT.
pub fn add_adapter(path: &Path) {
    let folder = if path.is_dir() {
        path
    } else {
        add(path);
        path.parent().unwrap_or(Path::new(""))
    };
    if path.is_dir() || path.extension().is_some_and(|it| it == "safetensors") {
        ["adapter_config.json", "adapter_model.safetensors"]
            .iter()
            .for_each(|name| add(&folder.join(name)));
    }
}

/// Returns an error if the file or folder at `output` is an input under any name, or a folder that contains one.
pub fn check(output: &Path) -> Result<()> {
    let resolved = resolve(output);
    let output_identity = identity(output);
    for input in &*inputs() {
        // Compared now: the inode number of a removed file may have been reused for another file.
        if *input == resolved || (output_identity.is_some() && output_identity == identity(input)) {
            let (input, output) = (input.display(), output.display());
            bail!("cannot write {output}: this command reads it ({input}): expected another name");
        }
        if input.starts_with(&resolved) {
            let (input, output) = (input.display(), output.display());
            bail!(
                "cannot write {output}: this command reads {input} in it: expected another folder"
            );
        }
    }
    Ok(())
}

/// Returns `path` without symbolic links. If it does not exist, its folder is resolved.
fn resolve(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| {
        let folder = path
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty())
            .unwrap_or(Path::new("."));
        let folder = folder.canonicalize().unwrap_or_else(|_| folder.into());
        path.file_name()
            .map_or_else(|| folder.clone(), |name| folder.join(name))
    })
}

/// Returns the device and inode number of a file, which all its hard links share; `None` if the system does not report
/// them.
#[cfg(unix)]
fn identity(path: &Path) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    let metadata = fs::metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino()))
}

#[cfg(not(unix))]
fn identity(_: &Path) -> Option<(u64, u64)> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_input_is_refused_as_an_output_by_every_name_that_it_has() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let write = |name: &str| {
            fs::create_dir_all(path(name).parent().unwrap()).unwrap();
            fs::write(path(name), "content").unwrap();
        };
        for name in [
            "prompt.txt",
            "other.txt",
            "model/config.json",
            "model/model.safetensors",
            "model/notes.txt",
        ] {
            write(name);
        }
        add(&path("prompt.txt"));
        add_model(&path("model"));
        let mut refused = vec![
            "prompt.txt",
            "model/../prompt.txt",
            "model/config.json",
            "model/model.safetensors",
        ];
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink("prompt.txt", path("link.txt")).unwrap();
            fs::hard_link(path("prompt.txt"), path("hard.txt")).unwrap();
            std::os::unix::fs::symlink("model", path("linked")).unwrap();
            refused.extend(["link.txt", "hard.txt", "linked/config.json"]);
        }
        for name in refused {
            let error = check(&path(name)).unwrap_err().to_string();
            assert!(
                error.contains(name) && error.contains("this command reads it"),
                "{error}"
            );
        }
        assert!(
            check(&path("model"))
                .unwrap_err()
                .to_string()
                .contains("in it: expected another folder")
        );
        for name in [
            "other.txt",
            "new.txt",
            "model/notes.txt",
            "model/new.svg",
            "new/file.txt",
        ] {
            check(&path(name)).unwrap();
        }
    }
}
