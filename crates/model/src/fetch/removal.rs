//! The removal of a model from the cache, in two steps: it is found and locked, then its files are deleted.

use std::fs;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

use super::cache::FolderLock;
use super::hub::{self, Manifest};
use super::list::{self, CachedModel, DEPTH, closest, files, folders, is_gguf};
use super::name::{DEFAULT_MODEL, ModelName};
use super::part::part_of;
use super::progress::{Progress, fetch_error};
use crate::error::{Error, ErrorKind, Result};
use crate::gguf::PartName;

/// The beginning of the name of a folder that is being removed.
const REMOVED: &str = ".removed-";

/// The number of folders that this process has renamed.
static RENAMED: AtomicU32 = AtomicU32::new(0);

/// A model that is about to be removed. While this exists, no pull of its repository begins.
pub struct Removal {
    cache: PathBuf,
    folder: PathBuf,
    /// The names of the files to remove, inside of the folder; `None` for the folder.
    named: Option<Vec<String>>,
    models: Vec<CachedModel>,
    lock: FolderLock,
}

/// Begins the removal of a model from `cache`.
pub(super) fn begin(cache: &Path, name: &str, progress: &dyn Progress) -> Result<Removal> {
    remove_left(cache)?;
    let missing = || {
        let there = list::all(cache).unwrap_or_default();
        let meant = closest(name, there.into_iter().map(|it| it.name));
        let meant = meant.map_or_else(String::new, |name| format!("; did you mean `{name}`?"));
        fetch_error(format!(
            "there is no model `{name}` in the cache{meant}: `triad list` shows those that are there"
        ))
    };
    let (folder, file) = match ModelName::parse(name)? {
        // A path names a file of the user, which is not the cache's.
        ModelName::Path(_) => return Err(missing()),
        ModelName::Default => (cache.join(DEFAULT_MODEL), None),
        ModelName::Hub(repository) => (hub::folder(cache, &repository), repository.file),
    };
    if !folder.is_dir() {
        return Err(missing());
    }
    let lock = FolderLock::acquire(&folder, progress)?;
    let named = match &file {
        None => None,
        Some(file) => {
            let named = files_of(&folder, file);
            if named.is_empty() {
                return Err(missing());
            }
            Some(named)
        }
    };
    let mut models = list::all(cache)?;
    models.retain(|model| match &named {
        None => model.path.starts_with(&folder),
        Some(named) => named.iter().any(|file| model.path == folder.join(file)),
    });
    Ok(Removal {
        cache: cache.to_owned(),
        folder,
        named,
        models,
        lock,
    })
}

/// Returns the names of the files of the model `file` in `folder` of which at least a beginning is there. Others in the
/// folder, such as the record of pulls, are no models.
fn files_of(folder: &Path, file: &str) -> Vec<String> {
    let is_first = PartName::parse(file).is_none_or(|part| part.number == 1);
    if !is_gguf(file) || hub::is_own(file) || !is_first {
        return Vec::new();
    }
    let is_there = |file: &String| {
        let path = folder.join(file);
        [part_of(&path), path]
            .iter()
            .any(|path| fs::symlink_metadata(path).is_ok_and(|data| !data.is_dir()))
    };
    hub::parts(file).filter(is_there).collect()
}

impl Removal {
    /// Returns the complete models that go: those of all names of its files.
    pub fn models(&self) -> &[CachedModel] {
        &self.models
    }

    /// Removes the files. Returns the bytes that they had.
    ///
    /// # Errors
    /// If a file cannot be removed.
    pub fn finish(self) -> Result<u64> {
        let Some(named) = &self.named else {
            return self.remove_folder();
        };
        let paths = named.iter().map(|file| self.folder.join(file));
        let paths: Vec<_> = paths.flat_map(|path| [part_of(&path), path]).collect();
        let bytes = bytes_of(&paths);
        for path in &paths {
            match fs::remove_file(path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(cannot(path, &error));
                }
                _ => {}
            }
        }
        Manifest::forget(&self.folder, named)?;
        Ok(bytes)
    }

    fn remove_folder(self) -> Result<u64> {
        let Self {
            cache,
            folder,
            lock,
            ..
        } = self;
        // The files of a link are not the cache's.
        if fs::symlink_metadata(&folder).is_ok_and(|data| data.is_symlink()) {
            drop(lock);
            fs::remove_file(&folder).map_err(|error| cannot(&folder, &error))?;
            return Ok(0);
        }
        let bytes = bytes_of(&files(&folder, DEPTH)?);
        // Under another name no other process fetches into it. Windows renames no folder with an open file, and removes
        // none.
        let number = RENAMED.fetch_add(1, Ordering::Relaxed);
        let renamed = cache.join(format!("{REMOVED}{}-{number}", process::id()));
        let folder = match fs::rename(&folder, &renamed) {
            Ok(()) => renamed,
            Err(_) => folder,
        };
        drop(lock);
        remove_folder(&folder)?;
        Ok(bytes)
    }
}

fn cannot(path: &Path, error: &std::io::Error) -> Error {
    Error::new(ErrorKind::Io, format!("cannot remove it: {error}")).at(path)
}

fn bytes_of(files: &[PathBuf]) -> u64 {
    let data = files.iter().filter_map(|file| fs::metadata(file).ok());
    data.map(|data| data.len()).sum()
}

/// Removes the folders that ended removals have left.
fn remove_left(cache: &Path) -> Result<()> {
    for folder in folders(cache)? {
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with(REMOVED) {
            remove_folder(&folder)?;
        }
    }
    Ok(())
}

/// Removes a folder, which another process may remove at the same time.
fn remove_folder(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(cannot(folder, &error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::list::{all, unfinished};
    use super::super::tests::{cache, write};
    use super::*;

    fn remove(cache: &Path, name: &str) -> Result<u64> {
        begin(cache, name, &())?.finish()
    }

    #[test]
    fn a_removed_model_is_gone_and_others_stay() {
        let cache = cache();
        let names = || {
            let models = all(cache.path()).unwrap();
            models
                .into_iter()
                .map(|model| model.name)
                .collect::<Vec<_>>()
        };
        assert_eq!(
            remove(cache.path(), "hf:owner/files:b-00001-of-00002.gguf").unwrap(),
            8
        );
        assert_eq!(
            names(),
            [
                "hf:owner/files:sub/a.gguf",
                "hf:owner/folder",
                "smollm2-135m"
            ]
        );
        assert!(remove(cache.path(), "hf:owner/folder").unwrap() > 12);
        assert_eq!(remove(cache.path(), "smollm2-135m").unwrap(), 5);
        assert_eq!(names(), ["hf:owner/files:sub/a.gguf"]);
        // A removal that was killed has left its folder.
        write(cache.path(), ".removed-1/model.gguf", 5);
        for missing in [
            "smollm2-135m",
            "hf:owner/folder",
            "hf:owner/files:x.gguf",
            "hf:owner/files:.lock",
            "model.gguf",
        ] {
            let error = remove(cache.path(), missing).unwrap_err().to_string();
            assert!(error.contains("there is no model"), "{error}");
        }
        assert!(!cache.path().join(".removed-1").exists());
        let error = remove(cache.path(), "hf:owner/files:sub/b.gguf").unwrap_err();
        assert!(
            error
                .to_string()
                .contains("did you mean `hf:owner/files:sub/a.gguf`"),
            "{error}"
        );
    }

    #[test]
    fn what_an_unfinished_pull_left_is_listed_and_removed() {
        let cache = cache();
        let here = cache.path();
        // A repository of which one file is there, one by its name, and one in two parts.
        write(here, "hf/o/whole/config.json", 2);
        write(here, "hf/o/whole/model.safetensors.part", 3);
        fs::write(
            here.join("hf/o/whole/pulled.json"),
            r#"{"open": "", "files": ["config.json", "model.safetensors"], "unfinished": ["model.safetensors"]}"#,
        )
        .unwrap();
        write(here, "hf/owner/files/sub/new.gguf.part", 7);
        write(here, "hf/o/parts/d-00001-of-00002.gguf", 4);
        write(here, "hf/o/parts/d-00002-of-00002.gguf.part", 1);
        fs::write(
            here.join("hf/o/parts/pulled.json"),
            r#"{"open": "", "files": [], "unfinished": ["d-00001-of-00002.gguf", "d-00002-of-00002.gguf"]}"#,
        )
        .unwrap();
        write(here, "smollm2-135m/SmolLM2-135M-Instruct.Q4_1.gguf.part", 6);
        let listed = || -> Vec<(String, u64)> {
            let models = unfinished(here).unwrap().into_iter();
            models.map(|model| (model.name, model.bytes)).collect()
        };
        let names = [
            ("hf:o/parts:d-00001-of-00002.gguf", 5),
            ("hf:o/whole", 5),
            ("hf:owner/files:sub/new.gguf", 7),
            ("smollm2-135m", 6),
        ];
        let names = names.map(|(name, bytes)| (name.to_owned(), bytes));
        assert_eq!(listed(), names);
        let complete = all(here).unwrap();
        assert!(!complete.iter().any(|model| model.name.starts_with("hf:o/")));
        for name in [
            "hf:o/parts:d-00002-of-00002.gguf",
            "hf:owner/files:sub/new.gguf.part",
            "hf:o/parts:pulled.json",
        ] {
            remove(here, name).expect_err(name);
        }
        for (name, bytes) in &names[..1] {
            assert_eq!(remove(here, name).unwrap(), *bytes);
        }
        assert!(!here.join("hf/o/parts/pulled.json").exists());
        assert!(remove(here, "hf:o/whole").unwrap() > 5);
        assert_eq!(remove(here, "hf:owner/files:sub/new.gguf").unwrap(), 7);
        assert_eq!(listed(), names[3..]);
        let [a, b] =
            ["sub/a.gguf", "b-00001-of-00002.gguf"].map(|file| format!("hf:owner/files:{file}"));
        let left = all(here).unwrap();
        assert!(
            [a, b]
                .iter()
                .all(|name| left.iter().any(|model| model.name == *name))
        );
    }

    #[test]
    fn all_names_of_a_file_go_with_it() {
        let cache = tempfile::tempdir().unwrap();
        write(cache.path(), "hf/o/n/c.gguf", 3);
        let record = cache.path().join("hf/o/n/pulled.json");
        fs::write(
            &record,
            r#"{"open": "c.gguf", "files": ["c.gguf"], "named": ["c.gguf"]}"#,
        )
        .unwrap();
        let names = |models: &[CachedModel]| {
            let names = models.iter().map(|model| model.name.clone());
            names.collect::<Vec<_>>()
        };
        let both = ["hf:o/n", "hf:o/n:c.gguf"];
        assert_eq!(names(&all(cache.path()).unwrap()), both);
        let removal = begin(cache.path(), "hf:o/n:c.gguf", &()).unwrap();
        assert_eq!(names(removal.models()), both);
        removal.finish().unwrap();
        assert_eq!(all(cache.path()).unwrap(), []);
        assert!(!record.exists());
    }

    #[cfg(unix)]
    #[test]
    fn a_link_to_files_elsewhere_is_removed_alone() {
        let (cache, mine) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        write(mine.path(), "model/a.gguf", 3);
        fs::create_dir_all(cache.path().join("hf/o")).unwrap();
        let link = cache.path().join("hf/o/n");
        std::os::unix::fs::symlink(mine.path().join("model"), &link).unwrap();
        assert_eq!(remove(cache.path(), "hf:o/n").unwrap(), 0);
        assert!(!link.exists() && mine.path().join("model/a.gguf").exists());
    }
}
