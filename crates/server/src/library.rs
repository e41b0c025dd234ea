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
    /// Returns the models that are there, or those of one repository, except for those that the server is started with.
    fn models(&self, repository: Option<&str>) -> Vec<HostedModel>;

    /// Fetches what is missing of the model `name`. Returns the model under this name; `None` for a file that is a part of
    /// other models. Blocks until it is there.
    ///
    /// # Errors
    /// If clients may not change it, there is no such model, it can't be fetched or served, or `progress` cancels.
    fn pull(
        &self,
        name: &str,
        progress: &dyn Progress,
    ) -> Result<Option<HostedModel>, LibraryError>;

    /// Returns whether the model `name` is one that the server is started with, or its folder has such a model in it.
    /// Whether its files are complete does not matter.
    ///
    /// # Errors
    /// If there is no such name, or the folder can't be read.
    fn is_given(&self, name: &str) -> Result<bool, LibraryError>;

    /// Checks that clients may fetch and delete the model `name`, whether it is there or not: its files are no part of what
    /// the server is started with.
    ///
    /// # Errors
    /// The reason why they may not.
    fn check_change(&self, name: &str) -> Result<(), LibraryError>;

    /// Begins the deletion of the model `name`. Until its end, no other program fetches it.
    ///
    /// # Errors
    /// If clients may not change it, it is not there, or `progress` cancels.
    fn delete(&self, name: &str, progress: &dyn Progress) -> Result<Deletion, LibraryError>;
}

/// A deletion that has begun. Without its end, all files stay.
pub struct Deletion {
    /// The names of all models that have no files afterwards.
    pub names: Vec<String>,
    /// Deletes the files.
    pub end: Box<dyn FnOnce() -> Result<(), LibraryError>>,
}

impl fmt::Debug for Deletion {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("Deletion")
            .field("names", &self.names)
            .finish_non_exhaustive()
    }
}

/// The reason why a model can't be fetched or deleted. The texts are for clients and name no files of this machine.
#[derive(Debug)]
pub enum LibraryError {
    /// There is no such model here.
    Missing(String),
    /// The name or the model is the reason.
    Refused(String),
    /// The hub or the network is the reason.
    Hub(String),
    /// The disk has no room.
    Full(String),
    /// The files belong to a repository of which the server is started with a model.
    Given,
    /// The files lie outside of the library: its owner has made a link to them.
    Linked,
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
            LibraryError::Hub(message) => Self::other_server(message).with_code("hub_failed"),
            LibraryError::Full(message) => {
                Self::refused(StatusCode::INSUFFICIENT_STORAGE, "disk_full", message)
            }
            LibraryError::Given => Self::refused(
                StatusCode::FORBIDDEN,
                "model_given",
                "the server was started with a model of this repository, so its files stay as they are",
            ),
            LibraryError::Linked => Self::refused(
                StatusCode::FORBIDDEN,
                "model_linked",
                "the owner of this machine has linked files of this model, so they stay as they are",
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
    fn a_status_tells_who_has_to_act() {
        let status = |error: LibraryError| ApiError::from(error).status.as_u16();
        let text = || "why".to_owned();
        assert_eq!(status(LibraryError::Missing(text())), 404);
        assert_eq!(status(LibraryError::Refused(text())), 400);
        assert_eq!(status(LibraryError::Hub(text())), 502);
        assert_eq!(status(LibraryError::Full(text())), 507);
        assert_eq!(status(LibraryError::Given), 403);
        assert_eq!(status(LibraryError::Linked), 403);
        assert_eq!(status(LibraryError::Failed(text().into())), 500);
        let hub = ApiError::from(LibraryError::Hub(text())).detail;
        assert_eq!((hub.kind, hub.code), ("server_error", Some("hub_failed")));
    }

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
