//! Pulls of the files of a hub repository that form a model, and their places in the cache.
//!
//! A GGUF model is one file, or several of which the first is opened; a safetensors model is a folder. [`Hub::pull`]
//! finishes the [`Manifest`] last, so that a folder counts as a model only when all its files are present and of one
//! version.

mod environment;
mod listing;
mod manifest;
mod room;
mod selection;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use listing::{LARGEST_LISTING, Listing, Sibling};
pub(super) use manifest::{Manifest, parts, record};
use selection::{INDEX, Selection, names, select, shards};
use ureq::http::Response;
use ureq::{Agent, Body, Proxy};

use super::cache::{self, FolderLock};
use super::disk::Disk;
use super::download::{Bounds, Download, refusal};
use super::get::{Get, without_login};
use super::name::{Repository, stays_inside};
use super::part::PART;
use super::progress::{Progress, PullOptions, hub_error};
use super::retry::{Interruption, interrupted};
use super::waiting::{pause, wait};
use crate::error::{Error, ErrorKind, Result};

/// The endpoint for the prefix `hf:`.
const HUGGING_FACE: &str = "https://huggingface.co";

/// A hub with the credentials to read from it.
pub(super) struct Hub {
    agent: Agent,
    endpoint: String,
    token: Option<String>,
    bounds: Bounds,
    /// Time limit for a listing.
    patience: Duration,
    disk: Disk,
}

/// Returns the folder of a repository.
pub(super) fn folder(cache: &Path, repository: &Repository) -> PathBuf {
    cache
        .join("hf")
        .join(&repository.owner)
        .join(&repository.name)
}

/// Returns the file or folder that a pull of `repository` writes.
pub(super) fn place(cache: &Path, repository: &Repository) -> PathBuf {
    let folder = folder(cache, repository);
    match &repository.file {
        Some(file) => folder.join(file),
        None => folder,
    }
}

/// Returns the path of a model that an earlier pull completed.
pub(super) fn cached(cache: &Path, repository: &Repository) -> Option<PathBuf> {
    let folder = folder(cache, repository);
    match &repository.file {
        Some(file) => Manifest::has(&folder, parts(file)).then(|| folder.join(file)),
        None => Manifest::complete(folder),
    }
}

impl Hub {
    /// Returns the hub that `HF_ENDPOINT` names, or Hugging Face, with the token of `HF_TOKEN`, if set and wanted.
    ///
    /// # Errors
    /// If one of the variables is not what it should be: a token must not go to another hub than the user's.
    pub(super) fn from_environment(options: PullOptions) -> Result<Self> {
        let endpoint = environment::endpoint()?.unwrap_or_else(|| HUGGING_FACE.into());
        let token = match options.uses_token {
            true => environment::token()?,
            false => None,
        };
        let hub = Self::new(&endpoint, token, Proxy::try_from_env());
        Ok(Self {
            disk: Disk::new(options.kept_free),
            ..hub
        })
    }

    /// Returns the hub at `endpoint`, reached through `proxy`.
    pub(super) fn new(endpoint: &str, token: Option<String>, proxy: Option<Proxy>) -> Self {
        let agent = Agent::config_builder()
            .user_agent(concat!("triad/", env!("CARGO_PKG_VERSION")))
            // Errors quote the hub's own message, see `refusal`.
            .http_status_as_error(false)
            // `Get` follows them.
            .max_redirects(0)
            .timeout_resolve(Some(Duration::from_secs(30)))
            .timeout_connect(Some(Duration::from_secs(30)))
            .timeout_send_request(Some(Duration::from_secs(60)))
            .timeout_recv_response(Some(Duration::from_secs(60)))
            .timeout_per_read(Some(Duration::from_secs(60)))
            .proxy(proxy)
            .build()
            .new_agent();
        Self {
            agent,
            endpoint: endpoint.trim_end_matches('/').into(),
            token: token.map(|token| token.trim().into()),
            bounds: Bounds::default(),
            patience: Duration::from_secs(120),
            disk: Disk::new(0),
        }
    }

    /// Fetches the files of the model in `repository` that are missing or have changed; returns the model's path.
    pub(super) fn pull(
        &self,
        cache: &Path,
        repository: &Repository,
        progress: &dyn Progress,
    ) -> Result<PathBuf> {
        progress.step(&format!(
            "asking for the files of {}/{}",
            repository.owner, repository.name
        ));
        let listing = self.listing(repository, progress)?;
        let revision = listing.revision()?;
        let folder = folder(cache, repository);
        let _lock = FolderLock::acquire(&folder, progress)?;
        let mut selection = select(&listing.siblings, repository)?;
        let expected = match names(&selection.files).any(|name| name == INDEX) {
            true => [&selection.files[..], &room::shards(&listing.siblings)].concat(),
            false => selection.files.clone(),
        };
        self.check_room(&folder, repository, &expected)?;
        let download =
            |file: &Sibling| self.download((repository, revision), file, &folder, progress);
        if let Some(file) = &repository.file {
            // A single file is replaced at once: it is never of two versions.
            if selection.files.len() > 1 {
                Manifest::begin_named(&folder, names(&selection.files))?;
            }
            selection.files.iter().try_for_each(download)?;
            Manifest::end_named(&folder, names(&selection.files))?;
            return Ok(folder.join(file));
        }
        Manifest::begin(&folder, names(&selection.files))?;
        selection.files.iter().try_for_each(download)?;
        if selection.files.iter().any(|file| file.name == INDEX) {
            let shards = shards(&folder.join(INDEX), &listing.siblings)?;
            self.check_room(&folder, repository, &shards)?;
            Manifest::begin(&folder, names(&shards))?;
            shards.iter().try_for_each(download)?;
            selection.files.extend(shards);
        }
        let Selection { files, open } = selection;
        Manifest::end(folder, open.as_deref(), names(&files))
    }

    fn listing(&self, repository: &Repository, progress: &dyn Progress) -> Result<Listing> {
        let Repository { owner, name, .. } = repository;
        let url = format!("{}/api/models/{owner}/{name}?blobs=true", self.endpoint);
        let get = Get {
            agent: self.agent.clone(),
            url: url.clone(),
            token: self.token.clone(),
            from: 0,
            time_out: Some(self.patience),
        };
        let url = without_login(&url);
        let mut response = self.answer(get, &url, progress)?;
        if response.status() != 200 {
            return Err(refusal(
                &format!("model {owner}/{name}"),
                &url,
                response.status(),
                self.token.is_some(),
            ));
        }
        let read = move || {
            let body = response.body_mut().with_config();
            body.limit(LARGEST_LISTING).read_to_string()
        };
        let body = wait(progress, read)?;
        let body = body.map_err(|error| hub_error(format!("cannot read {url}: {error}")))?;
        serde_json::from_str(&body)
            .map_err(|error| hub_error(format!("{url} is not a hub's answer: {error}")))
    }

    /// Returns the response to `get`, whose address is `url` for messages. A hub that cannot answer now is asked again.
    fn answer(&self, get: Get, url: &str, progress: &dyn Progress) -> Result<Response<Body>> {
        let get = Arc::new(get);
        let mut fruitless = 0;
        loop {
            let own = Arc::clone(&get);
            let response = wait(progress, move || own.call())?;
            let response =
                response.map_err(|error| hub_error(format!("cannot reach {url}: {error}")))?;
            fruitless += 1;
            let pauses = &self.bounds.pauses;
            match interrupted(&response) {
                Some(Interruption::Network { reason, wait }) => {
                    let Some(time) = pauses.after(fruitless, wait) else {
                        return Err(hub_error(format!("cannot read {url}: {reason}")));
                    };
                    pauses.report(progress, &reason, time);
                    pause(progress, time)?;
                }
                _ => return Ok(response),
            }
        }
    }

    /// Checks that the disk has room for what `files` of `repository` lack in `folder`.
    fn check_room(&self, folder: &Path, repository: &Repository, files: &[Sibling]) -> Result<()> {
        let Repository { owner, name, .. } = repository;
        let needed = room::needed(folder, files);
        self.disk.check(folder, &format!("{owner}/{name}"), needed)
    }

    fn download(
        &self,
        (repository, revision): (&Repository, &str),
        file: &Sibling,
        folder: &Path,
        progress: &dyn Progress,
    ) -> Result<()> {
        if !stays_inside(&file.name) {
            let message = format!(
                "the repository names a file outside its folder: {:?}; nothing of it is fetched",
                file.name
            );
            return Err(hub_error(message));
        }
        if is_own(&file.name) {
            let message = format!(
                "the repository has a file {:?}, a name of Triad's own files; nothing of it is fetched",
                file.name
            );
            return Err(hub_error(message));
        }
        let destination = folder.join(&file.name);
        if let Some(parent) = destination.parent() {
            fs::create_dir_all(parent).map_err(|error| {
                Error::new(ErrorKind::Io, format!("cannot create this folder: {error}")).at(parent)
            })?;
        }
        let Repository { owner, name, .. } = repository;
        Download {
            agent: &self.agent,
            token: self.token.as_deref(),
            url: format!(
                "{}/{owner}/{name}/resolve/{revision}/{}",
                self.endpoint,
                percent_encoded(&file.name)
            ),
            name: &file.name,
            expected: file.expected(),
            bounds: self.bounds,
            disk: self.disk,
        }
        .to(&destination, progress)
    }
}

/// Returns whether `path` names a file or folder that pulls make for themselves: a lock, a record, an unfinished file.
pub(super) fn is_own(path: &str) -> bool {
    path.split('/').any(|part| {
        // Some file systems don't tell apart small and capital letters.
        let part = part.to_ascii_lowercase();
        [Manifest::NAME, cache::LOCK].contains(&&*part) || part.ends_with(PART)
    })
}

/// Encodes `path` for a URL; `/` is kept.
fn percent_encoded(path: &str) -> String {
    path.bytes().fold(String::new(), |mut encoded, byte| {
        if byte.is_ascii_alphanumeric() || b"-_.~/".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
        encoded
    })
}

#[cfg(test)]
mod tests;
