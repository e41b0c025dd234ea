//! The models in the cache: their names, those that are not finished, and suggestions for names.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::cache::{self, is_locked};
use super::hub::{self, Manifest};
use super::name::{DEFAULT_MODEL, Repository};
use super::package::PackagedModel;
use super::part::{PART, part_of};
use crate::error::{Error, ErrorKind, Result};
use crate::gguf::PartName;

/// Maximum depth of folders in a repository.
pub(super) const DEPTH: usize = 8;

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

/// A model in the cache whose fetch has not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnfinishedModel {
    /// The name by which a pull continues, and a removal deletes what is there.
    pub name: String,
    /// The bytes that are there.
    pub bytes: u64,
    /// Whether a process fetches it now.
    pub is_running: bool,
}

/// Returns the models in `cache` whose fetch has not ended, sorted by name.
pub(super) fn unfinished(cache: &Path) -> Result<Vec<UnfinishedModel>> {
    let mut models = Vec::new();
    let default = part_of(&PackagedModel::DEFAULT.path(cache));
    if default.is_file() {
        models.push(UnfinishedModel {
            name: DEFAULT_MODEL.into(),
            bytes: length(&default),
            is_running: is_locked(&cache.join(DEFAULT_MODEL)),
        });
    }
    for owner in folders(&cache.join("hf"))? {
        for folder in folders(&owner)? {
            let name = format!("hf:{}/{}", last(&owner), last(&folder));
            models.extend(unfinished_of(&name, &folder)?);
        }
    }
    models.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(models)
}

/// Returns the unfinished models in the folder of the repository `name`.
fn unfinished_of(name: &str, folder: &Path) -> Result<Vec<UnfinishedModel>> {
    let manifest = Manifest::read(folder).unwrap_or_default();
    // The bytes of each model, by the name of its first file; empty for the repository.
    let mut models = BTreeMap::new();
    let mut add = |file: &str| {
        let parts: Vec<_> = hub::parts(file).collect();
        let first = match (manifest.has_file(file), &parts[..]) {
            (true, _) => String::new(),
            (false, [first, ..]) => first.clone(),
            (false, []) => return,
        };
        models.entry(first).or_insert_with_key(|first| {
            let bytes = |file: &str| {
                let path = folder.join(file);
                length(&path) + length(&part_of(&path))
            };
            match first.is_empty() {
                true => manifest.files().map(bytes).sum::<u64>(),
                false => parts.iter().map(|file| bytes(file)).sum(),
            }
        });
    };
    manifest.unfinished().for_each(&mut add);
    for path in files(folder, DEPTH)? {
        let file = inside(folder, &path);
        let file = file.as_deref().and_then(|file| file.strip_suffix(PART));
        if let Some(file) = file.filter(|file| manifest.has_file(file) || is_gguf(file)) {
            add(file);
        }
    }
    let is_running = is_locked(folder);
    let model = |(file, bytes): (String, u64)| UnfinishedModel {
        name: match file.is_empty() {
            true => name.to_owned(),
            false => format!("{name}:{file}"),
        },
        bytes,
        is_running,
    };
    Ok(models.into_iter().map(model).collect())
}

/// Returns the length of a file, 0 if it is not there.
fn length(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |data| data.len())
}

fn last(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// Returns the name of a file in a repository's folder.
fn inside(folder: &Path, file: &Path) -> Option<String> {
    let inside = file.strip_prefix(folder).ok()?;
    Some(inside.to_string_lossy().replace('\\', "/"))
}

/// Returns whether a file can be a model by its own name.
pub(super) fn is_gguf(file: &str) -> bool {
    file.to_ascii_lowercase().ends_with(".gguf")
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
    let mut repository = Repository {
        owner: last(owner),
        name: last(folder),
        file: None,
    };
    let manifest = Manifest::read(folder).unwrap_or_default();
    let name = format!("hf:{}/{}", repository.owner, repository.name);
    let mut models = Vec::new();
    let whole = hub::cached(cache, &repository);
    let files = files(folder, DEPTH)?;
    if let Some(path) = &whole {
        let own = if path.is_dir() { &files[..] } else { &[] };
        models.push(model(name.clone(), path.clone(), own)?);
    }
    for file in &files {
        let Some(inside) = inside(folder, file).filter(|name| is_gguf(name)) else {
            continue;
        };
        let is_first = PartName::parse(&inside).is_none_or(|part| part.number == 1);
        // The file of the repository's own model has a second name if it was pulled by that.
        let is_own = whole.as_ref() == Some(file) && !manifest.is_named(&inside);
        if !is_first || is_own {
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

/// Returns the error of a file or folder that cannot be read.
pub(super) fn unreadable(path: &Path, error: &std::io::Error) -> Error {
    Error::new(ErrorKind::Io, format!("cannot read it: {error}")).at(path)
}

/// Returns the folders in a folder, or none if it is not there.
pub(super) fn folders(path: &Path) -> Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(unreadable(path, &error)),
    };
    let paths = entries.flatten().map(|entry| entry.path());
    Ok(paths.filter(|path| path.is_dir()).collect())
}

/// Returns all files in a folder and in its folders. Links to folders are not followed.
pub(super) fn files(folder: &Path, depth: usize) -> Result<Vec<PathBuf>> {
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
    let cached = cache::folder()
        .and_then(|cache| all(&cache))
        .unwrap_or_default();
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
pub(super) fn closest(given: &str, names: impl Iterator<Item = String>) -> Option<String> {
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
    use super::super::name::ModelName;
    use super::super::tests::cache;
    use super::*;

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
