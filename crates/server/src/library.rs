//! The models of this machine that clients may fetch and delete, if the program that starts a server allows it.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::http::StatusCode;
use triad_model::fetch::Progress;

use crate::error::ApiError;
use crate::hosted::{HostedModel, LoadError};

/// Maximum number of models that are fetched or deleted at the same time.
const MAX_CHANGES: usize = 2;

/// A folder of models that clients may change.
pub trait ModelLibrary: fmt::Debug + Send + Sync {
    /// Returns the models that are there, except for those that the server is started with.
    fn models(&self) -> Vec<HostedModel>;

    /// Fetches what is missing of the model `name`. Returns the model under this name. Blocks until it is there.
    ///
    /// # Errors
    /// If there is no such model, it can't be fetched or served, or `progress` cancels.
    fn pull(&self, name: &str, progress: &dyn Progress) -> Result<HostedModel, LibraryError>;

    /// Returns whether the model `name` is one that the server is started with, or its folder has such a model in it.
    /// Whether its files are complete does not matter.
    ///
    /// # Errors
    /// If there is no such name, or the folder can't be read.
    fn is_given(&self, name: &str) -> Result<bool, LibraryError>;

    /// Deletes the files of the model `name`.
    ///
    /// # Errors
    /// If it is not there, its files can't be deleted, or `progress` cancels.
    fn delete(&self, name: &str, progress: &dyn Progress) -> Result<(), LibraryError>;
}

/// The reason why a model can't be fetched or deleted. The texts are for clients and name no files of this machine.
#[derive(Debug)]
pub enum LibraryError {
    /// There is no such model here.
    Missing(String),
    /// The hub, the network or the model is the reason.
    Refused(String),
    /// The files belong to a model that the server is started with.
    Given,
    /// This machine is the reason, which is logged.
    Failed(LoadError),
}

impl From<LibraryError> for ApiError {
    fn from(error: LibraryError) -> Self {
        match error {
            LibraryError::Missing(message) => {
                Self::refused(StatusCode::NOT_FOUND, "model_not_found", message)
            }
            LibraryError::Refused(message) => Self::invalid(message).with_code("pull_failed"),
            LibraryError::Given => Self::refused(
                StatusCode::FORBIDDEN,
                "model_given",
                "the server was started with a model of this folder, so its files stay as they are",
            ),
            LibraryError::Failed(cause) => {
                Self::failed("the files of the model can't be changed", &*cause)
            }
        }
    }
}

/// The models that are fetched or deleted now. Those of a repository have one folder and change together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Changes(Arc<Mutex<BTreeSet<String>>>);

/// A change of a model, which ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Change {
    changes: Changes,
    repository: String,
}

impl Changes {
    /// Begins a change of the model `name`.
    ///
    /// # Errors
    /// If a model of its repository is being changed, or others are and there are no more places.
    pub(crate) fn begin(&self, name: &str) -> Result<Change, ApiError> {
        let repository = repository(name);
        let mut names = self.names();
        if names.contains(repository) {
            let message = format!("{repository} is being fetched or deleted: try again later");
            return Err(ApiError::refused(
                StatusCode::CONFLICT,
                "model_in_use",
                message,
            ));
        }
        if names.len() >= MAX_CHANGES {
            let message = "other models are being fetched: try again later";
            return Err(ApiError::refused(
                StatusCode::TOO_MANY_REQUESTS,
                "too_many_pulls",
                message,
            ));
        }
        names.insert(repository.to_owned());
        Ok(Change {
            changes: self.clone(),
            repository: repository.to_owned(),
        })
    }

    fn names(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        self.changes.names().remove(&self.repository);
    }
}

/// Returns the repository of a model that may be named by a file: `hf:owner/name` of `hf:owner/name:file`.
pub fn repository(name: &str) -> &str {
    let mut parts = name.match_indices(':').map(|(place, _)| place);
    let end = match name.starts_with("hf:") {
        true => parts.nth(1),
        false => None,
    };
    &name[..end.unwrap_or(name.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_has_one_change_at_a_time_and_few_models_have_one() {
        let changes = Changes::default();
        let status = |name: &str| changes.begin(name).unwrap_err().status;
        let one = changes.begin("a").unwrap();
        assert_eq!(status("a"), StatusCode::CONFLICT);
        let _other = changes.begin("b").unwrap();
        assert_eq!(status("c"), StatusCode::TOO_MANY_REQUESTS);
        drop(one);
        changes.begin("c").unwrap();
    }

    #[test]
    fn the_files_of_a_repository_change_one_after_another() {
        let changes = Changes::default();
        let file = changes.begin("hf:o/n:a.gguf").unwrap();
        for name in ["hf:o/n", "hf:o/n:b.gguf"] {
            let error = changes.begin(name).unwrap_err();
            assert_eq!(error.status, StatusCode::CONFLICT, "{name}");
        }
        changes.begin("hf:o/n-2").unwrap();
        drop(file);
        changes.begin("hf:o/n").unwrap();
    }
}
