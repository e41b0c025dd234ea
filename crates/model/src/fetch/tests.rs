//! Tests of names, and a small cache for tests.

use std::fs;
use std::path::Path;

use super::*;

/// Writes a file of `bytes` bytes at `path` in a cache.
pub(super) fn write(cache: &Path, path: &str, bytes: usize) {
    let path = cache.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, vec![b'x'; bytes]).unwrap();
}

/// Returns a cache with the default model, a whole repository, and files of others.
pub(super) fn cache() -> tempfile::TempDir {
    let cache = tempfile::tempdir().unwrap();
    let here = cache.path();
    write(here, "smollm2-135m/SmolLM2-135M-Instruct.Q4_1.gguf", 5);
    write(here, "hf/owner/folder/config.json", 2);
    write(here, "hf/owner/folder/model.safetensors", 10);
    let manifest = r#"{"open": "", "files": ["config.json", "model.safetensors"]}"#;
    fs::write(here.join("hf/owner/folder/pulled.json"), manifest).unwrap();
    write(here, "hf/owner/files/sub/a.gguf", 3);
    write(here, "hf/owner/files/b-00001-of-00002.gguf", 4);
    write(here, "hf/owner/files/b-00002-of-00002.gguf", 4);
    write(here, "hf/owner/files/c-00001-of-00002.gguf", 4);
    cache
}

#[test]
fn a_path_resolves_to_itself() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(
        resolve(folder.path().to_str().unwrap(), &()).unwrap(),
        folder.path()
    );
}

#[test]
fn a_path_that_does_not_exist_is_an_error_that_lists_what_a_name_may_be() {
    let error = resolve("no/such/model.gguf", &()).unwrap_err().to_string();
    assert!(
        error.starts_with("no/such/model.gguf: no such file"),
        "{error}"
    );
    assert!(
        error.contains("`smollm2-135m`") && error.contains("hf:owner/name"),
        "{error}"
    );
}
