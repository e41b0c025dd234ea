//! Tells whether the files of a model are complete and of one version.
//!
//! A pull replaces one file after the other. Programs that read several files of a model look at the record of pulls
//! before and after that.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::cache::is_locked;
use super::hub;
use super::progress::fetch_error;
use crate::error::Result;

/// The files of a model that pulls have fetched, as they were at one time. Empty for a model that was not fetched.
#[derive(Debug, PartialEq, Eq)]
pub struct PulledFiles {
    model: PathBuf,
    /// The length and the time of the last change of each file.
    states: Vec<Option<(u64, Option<SystemTime>)>>,
}

/// Returns the fetched files of the model at `path`.
///
/// # Errors
/// A sentence, if a pull of the model is under way, or was broken off: the files may be of two versions.
pub fn pulled(path: &Path) -> Result<PulledFiles> {
    let model = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let mut states = Vec::new();
    if let Some(record) = hub::record(&model) {
        if !record.is_ended {
            return Err(fetch_error(match is_locked(&record.folder) {
                true => "the model is being fetched: try again later",
                false => "the model was not fetched completely: pull it again",
            }));
        }
        let state = |file: &PathBuf| {
            let data = fs::metadata(file).ok()?;
            Some((data.len(), data.modified().ok()))
        };
        states = record.files.iter().map(state).collect();
    }
    Ok(PulledFiles { model, states })
}

impl PulledFiles {
    /// Returns whether a pull that has ended has replaced a file since then, or the files are gone.
    pub fn is_replaced(&self) -> bool {
        pulled(&self.model).is_ok_and(|now| now != *self)
    }

    /// Checks that no pull has replaced a file since then.
    ///
    /// # Errors
    /// A sentence, if one has, or is about to.
    pub fn check(&self) -> Result<()> {
        if pulled(&self.model)? == *self {
            return Ok(());
        }
        Err(fetch_error(
            "the model was fetched again while its files were read: try again",
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::super::cache::FolderLock;
    use super::*;

    fn why(path: &Path) -> String {
        pulled(path).unwrap_err().to_string()
    }

    #[test]
    fn a_model_whose_pull_has_not_ended_is_refused_with_the_reason() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let record = |text: &str| fs::write(at("pulled.json"), text).unwrap();
        fs::create_dir(at("sub")).unwrap();
        for name in ["config.json", "a.gguf", "sub/b-00001-of-00002.gguf"] {
            fs::write(at(name), "1").unwrap();
        }
        let own = pulled(folder.path()).unwrap();
        own.check().unwrap();
        record(r#"{"open": "", "files": ["config.json"], "unfinished": ["config.json"]}"#);
        assert!(why(folder.path()).contains("not fetched completely: pull it again"));
        own.check().unwrap_err();
        pulled(&at("a.gguf")).unwrap();
        let lock = FolderLock::acquire(folder.path(), &()).unwrap();
        assert!(why(folder.path()).contains("is being fetched"));
        drop(lock);
        record(
            r#"{"open": "", "files": ["config.json"], "unfinished": ["sub/b-00002-of-00002.gguf"]}"#,
        );
        pulled(folder.path()).unwrap().check().unwrap();
        assert!(why(&at("sub/b-00001-of-00002.gguf")).contains("pull it again"));
    }

    #[test]
    fn a_file_that_was_replaced_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("config.json"), "1").unwrap();
        fs::write(
            at("pulled.json"),
            r#"{"open": "", "files": ["config.json"]}"#,
        )
        .unwrap();
        let before = pulled(folder.path()).unwrap();
        before.check().unwrap();
        assert!(!before.is_replaced());
        fs::write(at("config.json"), "12").unwrap();
        assert!(before.is_replaced());
        // Until a pull has ended, the files are not yet those of another version.
        let record = at("pulled.json");
        let whole = fs::read_to_string(&record).unwrap();
        fs::write(
            &record,
            r#"{"open": "", "files": ["config.json"], "unfinished": ["config.json"]}"#,
        )
        .unwrap();
        assert!(!before.is_replaced());
        fs::write(&record, whole).unwrap();
        assert!(
            before
                .check()
                .unwrap_err()
                .to_string()
                .contains("try again")
        );
    }
}
