//! Reads arbitrary bytes as a package, `package.json` up to the first zero and the weights after it: what opens also
//! loads, or is refused.

use std::fs;
use std::path::PathBuf;
use std::sync::LazyLock;

use triad_engine::package::Package;
use triad_engine::{LoadOptions, Model, Threads};

/// A folder of this process.
static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = std::env::temp_dir().join(format!("triad-fuzz-package-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder for temporary files");
    folder
});

/// Reads one input.
pub fn read(bytes: &[u8]) {
    let end = bytes
        .iter()
        .position(|byte| *byte == 0)
        .unwrap_or(bytes.len());
    let (manifest, weights) = (&bytes[..end], bytes.get(end + 1..).unwrap_or_default());
    fs::write(FOLDER.join("package.json"), manifest).expect("room for a file");
    fs::write(FOLDER.join("weights.safetensors"), weights).expect("room for a file");
    if let Ok(package) = Package::open(&FOLDER) {
        let _ = Model::from_package(
            &package,
            &LoadOptions {
                threads: Threads::Count(1),
                ..Default::default()
            },
        );
    }
}
