//! Selection of the files of a hub repository that form a model, and their places in the cache.
//!
//! A GGUF model is one file, or several of which the first is opened; a safetensors model is a folder. [`Hub::pull`]
//! finishes the [`Manifest`] last, so that a folder counts as a model only when all its files are present and of one
//! version.

mod environment;
mod manifest;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub(super) use manifest::record;
use manifest::{Manifest, parts};
use serde::Deserialize;
use ureq::{Agent, Proxy};

use super::cache::{self, FolderLock};
use super::download::{Bounds, Download, refusal};
use super::get::{Get, without_login};
use super::name::{Repository, stays_inside};
use super::part::{Expected, Hash, PART};
use super::waiting::wait;
use super::{Progress, fetch_error};
use crate::checkpoint;
use crate::error::{Error, ErrorKind, Result};
use crate::files;
use crate::gguf::PartName;

/// The endpoint for the prefix `hf:`.
const HUGGING_FACE: &str = "https://huggingface.co";

/// Maximum bytes of a response about a repository; thousands of files fit.
const LARGEST_LISTING: u64 = 32 << 20;

/// Maximum bytes of a file's name, and maximum number of names in an error.
const LONGEST_NAME: usize = 1024;
const MAX_NAMES: usize = 20;

/// Index of a sharded safetensors model.
const INDEX: &str = "model.safetensors.index.json";

/// A hub with the credentials to read from it.
pub(super) struct Hub {
    agent: Agent,
    endpoint: String,
    token: Option<String>,
    bounds: Bounds,
    /// Time limit for a listing.
    patience: Duration,
}

/// The hub's description of a repository.
#[derive(Deserialize)]
struct Listing {
    /// The commit that the list is of.
    sha: Option<String>,
    siblings: Vec<Sibling>,
}

/// One file of a repository, in the hub's own field names.
#[derive(Clone, Deserialize)]
struct Sibling {
    #[serde(rename = "rfilename")]
    name: String,
    size: Option<u64>,
    /// The sha1 of what git stores under this name: the file itself, or the description of a large file.
    #[serde(rename = "blobId")]
    blob: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Clone, Deserialize)]
struct Lfs {
    sha256: Option<String>,
    size: Option<u64>,
}

impl Listing {
    /// Returns the revision from which all files are fetched: the commit of the list, or the main branch of a hub that
    /// names none.
    fn revision(&self) -> Result<&str> {
        match self.sha.as_deref() {
            None => Ok("main"),
            Some(commit) if is_commit(commit) => Ok(commit),
            Some(other) => Err(fetch_error(format!(
                "the hub's list of files has the `sha` {:?}, expected the hexadecimal digits of a commit",
                other.chars().take(80).collect::<String>()
            ))),
        }
    }
}

/// Returns whether `id` is the name of a commit: a sha1 or a sha256.
fn is_commit(id: &str) -> bool {
    [40, 64].contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// The files to fetch and the one to open.
struct Selection {
    files: Vec<Sibling>,
    /// The GGUF file to open; `None`: the folder.
    open: Option<String>,
}

fn folder(cache: &Path, repository: &Repository) -> PathBuf {
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
    /// Returns the hub that `HF_ENDPOINT` names, or Hugging Face, with the token of `HF_TOKEN`, if set.
    ///
    /// # Errors
    /// If one of the variables is not what it should be: a token must not go to another hub than the user's.
    pub(super) fn from_environment() -> Result<Self> {
        let endpoint = environment::endpoint()?.unwrap_or_else(|| HUGGING_FACE.into());
        let token = environment::token()?;
        Ok(Self::new(&endpoint, token, Proxy::try_from_env()))
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
        let download =
            |file: &Sibling| self.download((repository, revision), file, &folder, progress);
        if let Some(file) = &repository.file {
            // A single file is replaced at once: it is never of two versions.
            // An interrupted pull of the whole repository may have left it as unfinished.
            let is_split = selection.files.len() > 1;
            if is_split {
                Manifest::begin_parts(&folder, names(&selection.files))?;
            }
            selection.files.iter().try_for_each(download)?;
            if is_split || Manifest::is_in(&folder) {
                Manifest::end_parts(&folder, names(&selection.files))?;
            }
            return Ok(folder.join(file));
        }
        Manifest::begin(&folder, names(&selection.files))?;
        selection.files.iter().try_for_each(download)?;
        if selection.files.iter().any(|file| file.name == INDEX) {
            let shards = shards(&folder.join(INDEX), &listing.siblings)?;
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
        let response = wait(progress, move || get.call())?;
        let url = without_login(&url);
        let mut response =
            response.map_err(|error| fetch_error(format!("cannot reach {url}: {error}")))?;
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
        let body = body.map_err(|error| fetch_error(format!("cannot read {url}: {error}")))?;
        serde_json::from_str(&body)
            .map_err(|error| fetch_error(format!("{url} is not a hub's answer: {error}")))
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
            return Err(fetch_error(message));
        }
        if is_own(&file.name) {
            let message = format!(
                "the repository has a file {:?}, a name of Triad's own files; nothing of it is fetched",
                file.name
            );
            return Err(fetch_error(message));
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
        }
        .to(&destination, progress)
    }
}

impl Sibling {
    fn expected(&self) -> Expected {
        let lfs = self.lfs.as_ref();
        Expected {
            bytes: lfs.and_then(|lfs| lfs.size).or(self.size),
            hash: match lfs {
                Some(lfs) => lfs.sha256.clone().map(Hash::Sha256),
                // Another length is a hash of another kind, which is not checked.
                None => {
                    let blob = self.blob.clone().filter(|blob| blob.len() == 40);
                    blob.map(Hash::GitBlob)
                }
            },
        }
    }
}

fn names(files: &[Sibling]) -> impl Iterator<Item = &str> {
    files.iter().map(|file| file.name.as_str())
}

/// Returns the beginning of a name, without control characters.
fn shown(name: &str) -> String {
    let beginning = name.chars().take(LONGEST_NAME / 4).collect::<String>();
    beginning.escape_debug().to_string()
}

/// Returns the files that `repository` selects.
fn select(siblings: &[Sibling], repository: &Repository) -> Result<Selection> {
    let model = format!("{}/{}", repository.owner, repository.name);
    if let Some(file) = siblings.iter().find(|file| file.name.len() > LONGEST_NAME) {
        return Err(fetch_error(format!(
            "{model} has a file whose name has {} bytes, expected at most {LONGEST_NAME}: `{}…`",
            file.name.len(),
            shown(&file.name)
        )));
    }
    let find = |name: &str| siblings.iter().find(|file| file.name == name);
    let gguf = |file: &Sibling| {
        if let Some(part) = PartName::parse(&file.name).filter(|part| part.number != 1) {
            return Err(fetch_error(format!(
                "`{}` is one of {} files of a model; ask for the first, `{}`",
                file.name,
                part.count,
                part.all().next().unwrap_or_default()
            )));
        }
        let part = |name: String| {
            find(&name).cloned().ok_or_else(|| {
                fetch_error(format!(
                    "{model} has no file `{name}`, which is a part of the model `{}`",
                    file.name
                ))
            })
        };
        Ok(Selection {
            files: parts(&file.name).map(part).collect::<Result<_>>()?,
            open: Some(file.name.clone()),
        })
    };
    // Of a model in several files, the first one stands for all.
    let is_other_part = |name: &str| PartName::parse(name).is_some_and(|part| part.number != 1);
    let ggufs: Vec<_> = siblings
        .iter()
        .filter(|file| file.name.ends_with(".gguf") && !is_other_part(&file.name))
        .collect();
    let names = |files: &[&Sibling]| {
        let first = files.iter().take(MAX_NAMES);
        let mut names: Vec<_> = first
            .map(|file| format!("`{}`", shown(&file.name)))
            .collect();
        if files.len() > MAX_NAMES {
            names.push(format!("and {} more", files.len() - MAX_NAMES));
        }
        names.join(", ")
    };
    if let Some(wanted) = &repository.file {
        if !wanted.ends_with(".gguf") {
            return Err(fetch_error(format!(
                "`{wanted}`: only a GGUF file can be asked for by name"
            )));
        }
        let Some(file) = find(wanted) else {
            let there = if ggufs.is_empty() {
                "no GGUF file".into()
            } else {
                names(&ggufs)
            };
            return Err(fetch_error(format!(
                "{model} has no file `{wanted}`; it has {there}"
            )));
        };
        return gguf(file);
    }
    let weights: Vec<_> = siblings
        .iter()
        .filter(|file| file.name.ends_with(".safetensors") && !file.name.contains('/'))
        .collect();
    let weights = match (
        find("model.safetensors"),
        find(INDEX),
        weights.as_slice(),
        ggufs.as_slice(),
    ) {
        (Some(single), ..) => single,
        (None, Some(index), ..) => index,
        (None, None, [], []) => {
            return Err(fetch_error(format!(
                "{model} has neither GGUF nor safetensors files"
            )));
        }
        (None, None, [], [only]) => return gguf(only),
        (None, None, [], several) => {
            let example = &several[0].name;
            let message = format!(
                "{model} has several GGUF files; ask for one, as in `hf:{model}:{example}`: {}",
                names(several)
            );
            return Err(fetch_error(message));
        }
        (None, None, others, _) => {
            let message = format!(
                "{model} has no `model.safetensors` and no `{INDEX}`, only {}",
                names(others)
            );
            return Err(fetch_error(message));
        }
    };
    let config =
        find("config.json").ok_or_else(|| fetch_error(format!("{model} has no `config.json`")))?;
    let side = siblings
        .iter()
        .filter(|file| file.name != config.name && checkpoint::describes_model(&file.name));
    Ok(Selection {
        files: [config]
            .into_iter()
            .chain(side)
            .chain([weights])
            .cloned()
            .collect(),
        open: None,
    })
}

/// Returns the shards that the index at `path` names.
fn shards(path: &Path, siblings: &[Sibling]) -> Result<Vec<Sibling>> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: std::collections::BTreeMap<String, String>,
    }
    let malformed = |message: String| Error::new(ErrorKind::Malformed, message).at(path);
    let bytes = files::read(path, LARGEST_LISTING)
        .map_err(|error| Error::new(ErrorKind::Io, error.to_string()).at(path))?;
    let index: Index = serde_json::from_slice(files::without_mark(&bytes))
        .map_err(|error| malformed(format!("not an index: {error}")))?;
    let names: std::collections::BTreeSet<_> = index.weight_map.into_values().collect();
    let find = |name: String| {
        let file = siblings.iter().find(|file| file.name == name).cloned();
        file.ok_or_else(|| {
            malformed(format!(
                "`weight_map` names `{}`, which the repository does not have",
                shown(&name)
            ))
        })
    };
    names.into_iter().map(find).collect()
}

/// Returns whether `path` names a file or folder that pulls make for themselves: a lock, a record, an unfinished file.
fn is_own(path: &str) -> bool {
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
