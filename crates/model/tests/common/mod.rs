//! Helpers that several test programs share.

use std::path::PathBuf;

/// Variable with the folder of the real models, for tests of models that are not fetched.
const FOLDER: &str = "TRIAD_TEST_MODELS";
const SMOLLM2: &str = "smollm2-135m.gguf";

/// Returns the path of the real model `file`. SmolLM2 is required and is fetched if possible; `None` for another model
/// means that its tests are skipped.
pub fn real_model(file: &str) -> Option<PathBuf> {
    if let Some(folder) = std::env::var_os(FOLDER) {
        let path = PathBuf::from(folder).join(file);
        assert!(
            path.is_file(),
            "{FOLDER} is set, but there is no {}",
            path.display()
        );
        return Some(path);
    }
    (file == SMOLLM2).then(fetched)
}

#[cfg(feature = "fetch")]
fn fetched() -> PathBuf {
    use triad_model::fetch;
    fetch::resolve(fetch::DEFAULT_MODEL, &()).unwrap_or_else(|error| {
        panic!("SmolLM2 can't be fetched: {error}. Run `triad pull`, or set {FOLDER} to a folder with {SMOLLM2}")
    })
}

#[cfg(not(feature = "fetch"))]
fn fetched() -> PathBuf {
    panic!(
        "run this test with `--workspace` or `--features fetch`, or set {FOLDER} to a folder with {SMOLLM2}"
    )
}
