//! Selection of the files of a repository that form a model.

use std::path::Path;

use serde::Deserialize;

use super::super::name::Repository;
use super::super::progress::{fetch_error, hub_error};
use super::listing::{LARGEST_LISTING, Sibling};
use super::manifest::parts;
use crate::checkpoint;
use crate::error::{Error, ErrorKind, Result};
use crate::files;
use crate::gguf::PartName;

/// Maximum bytes of a file's name, and maximum number of names in an error.
const LONGEST_NAME: usize = 1024;
const MAX_NAMES: usize = 20;

/// Index of a sharded safetensors model.
pub(super) const INDEX: &str = "model.safetensors.index.json";

/// The files to fetch and the one to open.
pub(super) struct Selection {
    pub(super) files: Vec<Sibling>,
    /// The GGUF file to open; `None`: the folder.
    pub(super) open: Option<String>,
}

/// Returns the beginning of a name, without control characters.
fn shown(name: &str) -> String {
    let beginning = name.chars().take(LONGEST_NAME / 4).collect::<String>();
    beginning.escape_debug().to_string()
}

/// Returns the files that `repository` selects.
pub(super) fn select(siblings: &[Sibling], repository: &Repository) -> Result<Selection> {
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
pub(super) fn shards(path: &Path, siblings: &[Sibling]) -> Result<Vec<Sibling>> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: std::collections::BTreeMap<String, String>,
    }
    let malformed = |message: String| hub_error(message).at(path);
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

/// Returns the names of files.
pub(super) fn names(files: &[Sibling]) -> impl Iterator<Item = &str> {
    files.iter().map(|file| file.name.as_str())
}
