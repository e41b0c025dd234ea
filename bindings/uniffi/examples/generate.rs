//! Writes the sources in Kotlin and Swift for a built library: `generate LIBRARY DIRECTORY`

use std::path::Path;

use uniffi_bindgen::bindings::{GenerateOptions, TargetLanguage, generate};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [library, directory] = arguments.as_slice() else {
        return Err("usage: generate LIBRARY DIRECTORY".into());
    };
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("uniffi.toml");
    generate(GenerateOptions {
        languages: vec![TargetLanguage::Kotlin, TargetLanguage::Swift],
        source: library.into(),
        out_dir: directory.into(),
        config_override: Some(config.to_str().ok_or("the path is not UTF-8")?.into()),
        ..GenerateOptions::default()
    })?;
    Ok(())
}
