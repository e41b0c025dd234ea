//! Tests that the lists of families agree, and that each entry has golden data and a line in the documents. A failure names
//! the step of `docs/adding/a-family.md` that is missing.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value as Json;

use super::super::{gguf_families, hugging_face, modules};
use crate::gguf;

/// `model_type` of models whose text is that of another entry, or whose layers are those of another entry.
const WITHOUT_CHECKPOINT: [&str; 6] = [
    "gemma3n",
    "gemma4",
    "gemma4_unified",
    "gemma4_unified_text",
    "ministral",
    "roberta",
];

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the entries of folders with golden data.
fn golden(folders: &[&str]) -> impl Iterator<Item = PathBuf> {
    folders.iter().flat_map(|folder| {
        let folder = repository().join("tests/golden").join(folder);
        let files = fs::read_dir(folder).expect("golden data");
        files.map(|file| file.expect("golden data").path())
    })
}

#[test]
fn every_model_type_has_a_golden_checkpoint() {
    let configs = golden(&["families", "encoders", "pictures"])
        .filter_map(|path| fs::read(path.join("config.json")).ok());
    let stated: BTreeSet<String> = configs
        .map(|bytes| serde_json::from_slice(&bytes).expect("JSON"))
        .flat_map(|config: Json| {
            [
                config["model_type"].clone(),
                config["text_config"]["model_type"].clone(),
            ]
        })
        .filter_map(|name| name.as_str().map(str::to_owned))
        .collect();
    let has = |name: &&str| stated.contains(*name) || WITHOUT_CHECKPOINT.contains(name);
    let names = hugging_face::FAMILIES.iter().map(|(name, _)| *name);
    let absent: Vec<&str> = names.filter(|name| !has(name)).collect();
    assert!(
        absent.is_empty(),
        "no checkpoint of {absent:?}: add a case to tests/golden/families/make.py and run it"
    );
}

#[test]
fn every_architecture_of_gguf_has_a_golden_file() {
    let files = golden(&["families", "encoders"])
        .filter(|path| path.extension().is_some_and(|it| it == "gguf"));
    let stated: BTreeSet<String> = files
        .map(|path| {
            let bytes = fs::read(&path).expect("golden data");
            let file = gguf::read(&bytes).expect("a GGUF file");
            let architecture = file.metadata.string("general.architecture");
            architecture.expect("a text").expect("a name").to_owned()
        })
        .collect();
    let names = gguf_families::FAMILIES.iter().map(|(name, ..)| *name);
    let absent: Vec<&str> = names.filter(|name| !stated.contains(*name)).collect();
    assert!(
        absent.is_empty(),
        "no file of {absent:?}: give its case in tests/golden/families/make.py an `architecture`, and run it"
    );
}

#[test]
fn every_family_that_writes_is_known_to_adapters() {
    let of_hugging_face = hugging_face::FAMILIES.iter().map(|(_, family)| *family);
    let of_gguf = gguf_families::FAMILIES.iter().map(|(_, family, _)| *family);
    let all = modules::ALL.map(|family| family.name);
    let absent: BTreeSet<&str> = of_hugging_face
        .chain(of_gguf)
        .filter(|family| !family.bidirectional && !all.contains(&family.name))
        .map(|family| family.name)
        .collect();
    assert!(
        absent.is_empty(),
        "{absent:?}: add the family to `ALL` in crates/model/src/family/modules.rs"
    );
}

#[test]
fn the_guide_names_every_family() {
    let page = fs::read_to_string(repository().join("docs/guide/models.md")).expect("a page");
    let table = page.lines().filter(|line| line.starts_with("| `"));
    let names: Vec<&str> = table
        .flat_map(|line| line.split('`').skip(1).step_by(2))
        .collect();
    let of_hugging_face = hugging_face::FAMILIES.iter().map(|(_, family)| *family);
    let of_gguf = gguf_families::FAMILIES.iter().map(|(_, family, _)| *family);
    let absent: BTreeSet<&str> = of_hugging_face
        .chain(of_gguf)
        .map(|family| family.name)
        .filter(|name| !names.contains(name))
        .collect();
    assert!(
        absent.is_empty(),
        "{absent:?}: add the family to the table of docs/guide/models.md"
    );
}
