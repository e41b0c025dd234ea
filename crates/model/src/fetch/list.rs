//! The models in the cache: their names, and their removal.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::cache::FolderLock;
use super::hub;
use super::name::{DEFAULT_MODEL, ModelName, Repository};
use super::package::PackagedModel;
use super::{Progress, fetch_error};
use crate::error::{Error, ErrorKind, Result};
use crate::gguf::PartName;

/// The beginning of the name of a folder that is being removed.
const REMOVED: &str = ".removed-";

/// Maximum depth of folders in a repository.
const DEPTH: usize = 8;

/// A model in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedModel {
    /// The name by which commands take it.
    pub name: String,
    /// The file or folder that is opened.
    pub path: PathBuf,
    /// The bytes of its files.
    pub bytes: u64,
    /// The time of its last change.
    pub modified: Option<SystemTime>,
}

/// Returns the models in `cache`, sorted by name.
pub(super) fn all(cache: &Path) -> Result<Vec<CachedModel>> {
    let mut models = Vec::new();
    let default = PackagedModel::DEFAULT.path(cache);
    if default.is_file() {
        models.push(model(DEFAULT_MODEL.into(), default, &[])?);
    }
    for owner in folders(&cache.join("hf"))? {
        for folder in folders(&owner)? {
            models.extend(of_repository(cache, &owner, &folder)?);
        }
    }
    models.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(models)
}

/// Returns the model of a repository, and the GGUF files that were fetched by their names.
fn of_repository(cache: &Path, owner: &Path, folder: &Path) -> Result<Vec<CachedModel>> {
    let name_of = |path: &Path| {
        let name = path.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    };
    let mut repository = Repository {
        owner: name_of(owner),
        name: name_of(folder),
        file: None,
    };
    let name = format!("hf:{}/{}", repository.owner, repository.name);
    let mut models = Vec::new();
    let whole = hub::cached(cache, &repository);
    let files = files(folder, DEPTH)?;
    if let Some(path) = &whole {
        let own = if path.is_dir() { &files[..] } else { &[] };
        models.push(model(name.clone(), path.clone(), own)?);
    }
    for file in &files {
        let Ok(inside) = file.strip_prefix(folder) else {
            continue;
        };
        let inside = inside.to_string_lossy().replace('\\', "/");
        let is_first = PartName::parse(&inside).is_none_or(|part| part.number == 1);
        let is_gguf = inside.to_ascii_lowercase().ends_with(".gguf");
        if !is_gguf || !is_first || whole.as_ref() == Some(file) {
            continue;
        }
        repository.file = Some(inside.clone());
        if let Some(path) = hub::cached(cache, &repository) {
            models.push(model(format!("{name}:{inside}"), path, &[])?);
        }
    }
    Ok(models)
}

/// Describes a model. Its `files` are all parts of the file at `path` if they are not given.
fn model(name: String, path: PathBuf, files: &[PathBuf]) -> Result<CachedModel> {
    let parts = parts(&path);
    let files = if files.is_empty() { &parts[..] } else { files };
    let (mut bytes, mut modified) = (0, None);
    for file in files {
        let data = fs::metadata(file).map_err(|error| unreadable(file, &error))?;
        bytes += data.len();
        modified = modified.max(data.modified().ok());
    }
    Ok(CachedModel {
        name,
        path,
        bytes,
        modified,
    })
}

/// Returns the files of a model in one GGUF file or several.
fn parts(path: &Path) -> Vec<PathBuf> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    match PartName::parse(&name) {
        Some(part) => part.all().map(|name| path.with_file_name(name)).collect(),
        None => vec![path.to_path_buf()],
    }
}

/// Removes a model from `cache`.
pub(super) fn remove(cache: &Path, name: &str, progress: &dyn Progress) -> Result<u64> {
    remove_left(cache)?;
    let missing = || {
        let meant = closest(
            name,
            all(cache).unwrap_or_default().into_iter().map(|it| it.name),
        );
        let meant = meant.map_or_else(String::new, |name| format!("; did you mean `{name}`?"));
        fetch_error(format!(
            "there is no model `{name}` in the cache{meant}: `triad list` shows those that are there"
        ))
    };
    let (folder, files) = match ModelName::parse(name)? {
        // A path names a file of the user, which is not the cache's.
        ModelName::Path(_) => return Err(missing()),
        ModelName::Default => (cache.join(DEFAULT_MODEL), None),
        ModelName::Hub(repository) => {
            let folder = cache
                .join("hf")
                .join(&repository.owner)
                .join(&repository.name);
            // Others in the folder, such as the list of what was fetched, are no models.
            let file = repository.file.is_some().then(|| {
                let is_listed = all(cache).is_ok_and(|all| all.iter().any(|it| it.name == name));
                hub::cached(cache, &repository).filter(|_| is_listed)
            });
            match file {
                Some(None) => return Err(missing()),
                Some(Some(path)) => (folder, Some(parts(&path))),
                None => (folder, None),
            }
        }
    };
    if !folder.is_dir() {
        return Err(missing());
    }
    let lock = FolderLock::acquire(&folder, progress)?;
    let removed = match &files {
        Some(files) => files.clone(),
        None => self::files(&folder, DEPTH)?,
    };
    let bytes = removed
        .iter()
        .filter_map(|file| fs::metadata(file).ok())
        .map(|data| data.len())
        .sum();
    let cannot = |path: &Path, error: &std::io::Error| {
        Error::new(ErrorKind::Io, format!("cannot remove it: {error}")).at(path)
    };
    if let Some(files) = &files {
        for file in files {
            fs::remove_file(file).map_err(|error| cannot(file, &error))?;
        }
        return Ok(bytes);
    }
    // Under another name no other process fetches into it. Windows renames no folder with an open file, and removes none.
    let renamed = cache.join(format!("{REMOVED}{}", std::process::id()));
    let folder = match fs::rename(&folder, &renamed) {
        Ok(()) => renamed,
        Err(_) => folder,
    };
    drop(lock);
    remove_folder(&folder)?;
    Ok(bytes)
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
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            let message = format!("cannot remove it: {error}");
            Err(Error::new(ErrorKind::Io, message).at(folder))
        }
        _ => Ok(()),
    }
}

fn unreadable(path: &Path, error: &std::io::Error) -> Error {
    Error::new(ErrorKind::Io, format!("cannot read it: {error}")).at(path)
}

/// Returns the folders in a folder, or none if it is not there.
fn folders(path: &Path) -> Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(unreadable(path, &error)),
    };
    let paths = entries.flatten().map(|entry| entry.path());
    Ok(paths.filter(|path| path.is_dir()).collect())
}

/// Returns all files in a folder and in its folders. Links to folders are not followed.
fn files(folder: &Path, depth: usize) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let entries = fs::read_dir(folder).map_err(|error| unreadable(folder, &error))?;
    for entry in entries.flatten() {
        let (path, kind) = (entry.path(), entry.file_type());
        match kind {
            Ok(kind) if kind.is_dir() && depth > 0 => found.extend(files(&path, depth - 1)?),
            Ok(kind) if !kind.is_dir() && path.is_file() => found.push(path),
            _ => {}
        }
    }
    found.sort();
    Ok(found)
}

/// Returns the name of a model that is similar to `path`: the default model, one in the cache, or one next to the path.
pub(super) fn similar(path: &Path) -> Option<String> {
    let cached = super::cached().unwrap_or_default();
    let cached = cached.into_iter().map(|model| model.name);
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    let entries = fs::read_dir(folder.unwrap_or(Path::new("."))).into_iter();
    let near = entries.flatten().flatten().filter_map(|entry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_model = entry.path().is_dir() || name.to_ascii_lowercase().ends_with(".gguf");
        let path = folder.map_or_else(|| PathBuf::from(&name), |folder| folder.join(&name));
        is_model.then(|| path.to_string_lossy().into_owned())
    });
    let near: Vec<_> = near.take(1000).collect();
    let names = [DEFAULT_MODEL.to_owned()]
        .into_iter()
        .chain(cached)
        .chain(near);
    closest(&path.to_string_lossy(), names)
}

/// Returns the name with the fewest edits from `given`, if these are few, or if it begins with `given`.
fn closest(given: &str, names: impl Iterator<Item = String>) -> Option<String> {
    const SHORTEST: usize = 3;
    let given = given.to_lowercase();
    let most = (given.chars().count() / 4).clamp(1, 4);
    let scored = names.filter_map(|name| {
        let lower = name.to_lowercase();
        let begins = given.len() >= SHORTEST && lower.starts_with(&given);
        let edits = if begins { 0 } else { edits(&given, &lower) };
        (edits <= most).then_some((edits, name))
    });
    scored.min().map(|(_, name)| name)
}

/// Returns the number of characters to insert, remove or replace to make one text of the other.
fn edits(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (line, letter) in one.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], line + 1);
        for (column, there) in other.iter().enumerate() {
            let replaced = diagonal + usize::from(letter != *there);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(cache: &Path, path: &str, bytes: usize) {
        let path = cache.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, vec![b'x'; bytes]).unwrap();
    }

    /// Returns a cache with the default model, a whole repository, and files of others.
    fn cache() -> tempfile::TempDir {
        let cache = tempfile::tempdir().unwrap();
        let here = cache.path();
        write(here, "smollm2-135m/SmolLM2-135M-Instruct.Q4_1.gguf", 5);
        write(here, "hf/owner/folder/config.json", 2);
        write(here, "hf/owner/folder/model.safetensors", 10);
        let manifest = r#"{"open": "", "files": ["config.json", "model.safetensors"]}"#;
        fs::write(here.join("hf/owner/folder/pulled.json"), manifest).unwrap();
        write(here, "hf/owner/files/sub/a.gguf", 3);
        write(here, "hf/owner/files/b-00001-of-00002.gguf", 4);
        write(here, "hf/owner/files/b-00002-of-00002.gguf", 4);
        write(here, "hf/owner/files/c-00001-of-00002.gguf", 4);
        cache
    }

    #[test]
    fn complete_models_are_listed_by_the_names_that_commands_take() {
        let cache = cache();
        let models = all(cache.path()).unwrap();
        let names: Vec<_> = models.iter().map(|model| &*model.name).collect();
        assert_eq!(
            names,
            [
                "hf:owner/files:b-00001-of-00002.gguf",
                "hf:owner/files:sub/a.gguf",
                "hf:owner/folder",
                "smollm2-135m",
            ]
        );
        assert_eq!(
            (models[0].bytes, models[1].bytes, models[3].bytes),
            (8, 3, 5)
        );
        assert!(models[2].path.is_dir() && models[2].bytes > 12);
        for model in &models {
            ModelName::parse(&model.name).unwrap();
        }
        assert_eq!(all(&cache.path().join("none")).unwrap(), []);
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
            remove(cache.path(), "hf:owner/files:b-00001-of-00002.gguf", &()).unwrap(),
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
        assert!(remove(cache.path(), "hf:owner/folder", &()).unwrap() > 12);
        assert_eq!(remove(cache.path(), "smollm2-135m", &()).unwrap(), 5);
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
            let error = remove(cache.path(), missing, &()).unwrap_err().to_string();
            assert!(error.contains("there is no model"), "{error}");
        }
        assert!(!cache.path().join(".removed-1").exists());
        let error = remove(cache.path(), "hf:owner/files:sub/b.gguf", &()).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("did you mean `hf:owner/files:sub/a.gguf`"),
            "{error}"
        );
    }

    #[test]
    fn similar_names_are_found_and_others_are_not() {
        let names = || {
            ["smollm2-135m", "models/qwen.gguf"]
                .map(str::to_owned)
                .into_iter()
        };
        let closest = |given: &str| closest(given, names());
        assert_eq!(closest("smollm2").as_deref(), Some("smollm2-135m"));
        assert_eq!(closest("smolm2-135m").as_deref(), Some("smollm2-135m"));
        assert_eq!(closest("SMOLLM2-135M").as_deref(), Some("smollm2-135m"));
        assert_eq!(
            closest("models/qwem.gguf").as_deref(),
            Some("models/qwen.gguf")
        );
        assert_eq!(closest("llama"), None);
        assert_eq!(closest("s"), None);
        assert_eq!((edits("", "ab"), edits("kitten", "sitting")), (2, 3));
    }
}
