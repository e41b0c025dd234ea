//! The record of the files that pulls have fetched into a repository's folder.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::super::name::stays_inside;
use super::super::part::{Expected, Part, part_of};
use super::listing::LARGEST_LISTING;
use crate::error::{Error, ErrorKind, Result};
use crate::files;
use crate::gguf::PartName;

/// The record of pulls of a model.
pub(in crate::fetch) struct Record {
    /// The folder of its repository.
    pub(in crate::fetch) folder: PathBuf,
    /// Its files that pulls have fetched.
    pub(in crate::fetch) files: Vec<PathBuf>,
    /// Whether no pull of these has begun and not ended.
    pub(in crate::fetch) is_ended: bool,
}

/// Returns the record of the model at `path`, if pulls have written one.
pub(in crate::fetch) fn record(path: &Path) -> Option<Record> {
    let (folder, manifest) = Manifest::above(path)?;
    let files: Vec<String> = match path.strip_prefix(&folder).ok()?.to_str()? {
        "" => manifest.files().map(str::to_owned).collect(),
        file => parts(&file.replace('\\', "/")).collect(),
    };
    Some(Record {
        is_ended: !files.iter().any(|file| manifest.is_unfinished(file)),
        files: files.iter().map(|file| folder.join(file)).collect(),
        folder,
    })
}

/// Returns the names of all files of the model whose first file is called `name`.
pub(in crate::fetch) fn parts(name: &str) -> Box<dyn Iterator<Item = String> + '_> {
    match PartName::parse(name) {
        Some(part) => Box::new(part.all()),
        None => Box::new(std::iter::once(name.to_owned())),
    }
}

/// The files of a repository's folder that pulls have fetched.
#[derive(Default, Serialize, Deserialize)]
pub(in crate::fetch) struct Manifest {
    /// The name of the GGUF file to open; empty for the folder itself.
    open: String,
    /// Names of all files of the folder's own model.
    files: BTreeSet<String>,
    /// Names of files that were pulled by their own names. They stay when the folder's own model has them no more.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    named: BTreeSet<String>,
    /// Files of pulls that have begun and not ended: they may be of two versions of the model.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    unfinished: BTreeSet<String>,
}

impl Manifest {
    /// Its name in the folder.
    pub(super) const NAME: &str = "pulled.json";

    /// Reads the manifest in `folder`; `None` if there is no valid one.
    pub(in crate::fetch) fn read(folder: &Path) -> Option<Self> {
        let bytes = files::read(&folder.join(Self::NAME), LARGEST_LISTING).ok()?;
        serde_json::from_slice(&bytes).ok()
    }

    /// Returns the manifest of the folder at `path`, or of the file at `path`, and the folder that has it.
    fn above(path: &Path) -> Option<(PathBuf, Self)> {
        /// Maximum depth of a file in a repository.
        const DEPTH: usize = 9;
        let (first, depth) = if path.is_dir() { (0, 1) } else { (1, DEPTH) };
        let mut folders = path.ancestors().skip(first).take(depth);
        folders.find_map(|folder| Some((folder.to_owned(), Self::read(folder)?)))
    }

    /// Returns the names of the files of the folder's own model.
    pub(in crate::fetch) fn files(&self) -> impl Iterator<Item = &str> {
        self.files.iter().map(String::as_str)
    }

    /// Returns whether the folder's own model has this file.
    pub(in crate::fetch) fn has_file(&self, file: &str) -> bool {
        self.files.contains(file)
    }

    /// Returns whether a file was pulled by its own name.
    pub(in crate::fetch) fn is_named(&self, file: &str) -> bool {
        self.named.contains(file)
    }

    /// Returns whether a pull of this file has begun and not ended.
    fn is_unfinished(&self, file: &str) -> bool {
        self.unfinished.contains(file)
    }

    /// Returns the names of the files of pulls that have begun and not ended.
    pub(in crate::fetch) fn unfinished(&self) -> impl Iterator<Item = &str> {
        self.unfinished.iter().map(String::as_str)
    }

    /// Returns the path of the complete model in `folder`.
    pub(super) fn complete(folder: PathBuf) -> Option<PathBuf> {
        let manifest = Self::read(&folder).filter(|manifest| !manifest.files.is_empty())?;
        let files = manifest.files.iter();
        let is_whole = files.clone().all(|file| manifest.has_whole(&folder, file));
        is_whole.then(|| manifest.path(folder))
    }

    /// Returns whether `folder` has all of these files, in one version.
    pub(super) fn has(folder: &Path, mut files: impl Iterator<Item = String>) -> bool {
        let manifest = Self::read(folder).unwrap_or_default();
        files.all(|file| manifest.has_whole(folder, &file))
    }

    fn has_whole(&self, folder: &Path, file: &str) -> bool {
        !self.is_unfinished(file) && folder.join(file).is_file()
    }

    /// Records that a pull of `files` begins in `folder`. Files of earlier pulls stay in the record until it ends.
    pub(super) fn begin<'a>(folder: &Path, files: impl Iterator<Item = &'a str>) -> Result<()> {
        let mut manifest = Self::read(folder).unwrap_or_default();
        for file in files {
            manifest.files.insert(file.to_owned());
            manifest.unfinished.insert(file.to_owned());
        }
        manifest.write(folder)
    }

    /// Records that a pull by name of one model in several `files` begins, which does not change which files the folder's
    /// own model has.
    pub(super) fn begin_named<'a>(
        folder: &Path,
        files: impl Iterator<Item = &'a str>,
    ) -> Result<()> {
        let mut manifest = Self::read(folder).unwrap_or_default();
        manifest.unfinished.extend(files.map(str::to_owned));
        manifest.write(folder)
    }

    /// Records that a pull by name of the model in `files` has ended.
    pub(super) fn end_named<'a>(folder: &Path, files: impl Iterator<Item = &'a str>) -> Result<()> {
        let mut manifest = Self::read(folder).unwrap_or_default();
        for file in files {
            manifest.unfinished.remove(file);
            manifest.named.insert(file.to_owned());
        }
        manifest.write(folder)
    }

    /// Removes `files`, which are deleted, from the record. Without any file left, the record goes too.
    pub(in crate::fetch) fn forget(folder: &Path, files: &[String]) -> Result<()> {
        let Some(mut manifest) = Self::read(folder) else {
            return Ok(());
        };
        for set in [
            &mut manifest.files,
            &mut manifest.named,
            &mut manifest.unfinished,
        ] {
            set.retain(|file| !files.contains(file));
        }
        if [&manifest.files, &manifest.named, &manifest.unfinished]
            .iter()
            .any(|set| !set.is_empty())
        {
            return manifest.write(folder);
        }
        let path = folder.join(Self::NAME);
        fs::remove_file(&path)
            .map_err(|error| Error::new(ErrorKind::Io, format!("cannot remove: {error}")).at(path))
    }

    /// Records that the model in `folder` has `files`, and removes those that only earlier pulls of it fetched: readers
    /// look for files by their names. Files that were pulled by their own names stay. Returns the path to open, of `open`
    /// or of the folder.
    pub(super) fn end<'a>(
        folder: PathBuf,
        open: Option<&str>,
        files: impl Iterator<Item = &'a str>,
    ) -> Result<PathBuf> {
        let earlier = Self::read(&folder).unwrap_or_default();
        let files: BTreeSet<_> = files.map(str::to_owned).collect();
        // Those of a pull of another model in this folder stay.
        let is_of_another =
            |file: &String| earlier.is_named(file) || !earlier.files.contains(file.as_str());
        let goes_on = |file: &&String| !files.contains(*file) && is_of_another(file);
        let manifest = Self {
            open: open.unwrap_or_default().to_owned(),
            unfinished: earlier.unfinished.iter().filter(goes_on).cloned().collect(),
            files,
            named: earlier.named.clone(),
        };
        for name in earlier.files.difference(&manifest.files) {
            if !stays_inside(name) || is_of_another(name) {
                continue;
            }
            let path = folder.join(name);
            for path in [part_of(&path), path] {
                match fs::remove_file(&path) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => {
                        let message = format!(
                            "the model has this file no more, and it cannot be removed: {error}"
                        );
                        return Err(Error::new(ErrorKind::Io, message).at(path));
                    }
                    _ => {}
                }
            }
        }
        manifest.write(&folder)?;
        Ok(manifest.path(folder))
    }

    fn path(&self, folder: PathBuf) -> PathBuf {
        match self.open.is_empty() {
            true => folder,
            false => folder.join(&self.open),
        }
    }

    fn write(&self, folder: &Path) -> Result<()> {
        let mut part = Part::create(&folder.join(Self::NAME))?;
        let text = serde_json::to_string_pretty(self).expect("strings serialize");
        part.append(text.as_bytes())?;
        part.finish(&Expected::default())?;
        Ok(())
    }
}
