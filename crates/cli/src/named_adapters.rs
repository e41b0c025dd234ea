//! `--lora` of a server: LoRA adapters by name.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Result, bail};
use triad_engine::{Adapter, Model};

/// The path of an adapter, and its name in requests.
#[derive(Clone, Debug)]
pub struct NamedPath {
    name: String,
    path: PathBuf,
}

impl FromStr for NamedPath {
    type Err = String;

    /// Reads `pirate=adapter.gguf`.
    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((name, path)) if !name.is_empty() && !path.is_empty() => Ok(Self {
                name: name.to_owned(),
                path: path.into(),
            }),
            _ => Err("expected NAME=PATH, such as pirate=adapter.gguf".to_owned()),
        }
    }
}

/// Opens adapters for `model`, each with its name.
pub fn open(model: &Model, paths: &[NamedPath]) -> Result<Vec<(String, Arc<Adapter>)>> {
    for (index, NamedPath { name, .. }) in paths.iter().enumerate() {
        if paths[..index].iter().any(|other| other.name == *name) {
            bail!("two adapters have the name {name}: expected different names");
        }
    }
    paths
        .iter()
        .map(|NamedPath { name, path }| Ok((name.clone(), model.open_adapter(path)?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_and_a_path_are_both_needed() {
        assert!("=a".parse::<NamedPath>().is_err() && "a".parse::<NamedPath>().is_err());
        assert!("a=b".parse::<NamedPath>().is_ok());
    }
}
