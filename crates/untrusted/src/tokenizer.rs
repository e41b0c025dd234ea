//! Reads arbitrary bytes as `tokenizer.json`, if they begin as JSON, or else as `tokenizer.model`: what opens also encodes
//! and decodes, or is refused.

use std::fs;
use std::path::PathBuf;
use std::sync::LazyLock;

use triad_model::tokenizer::{EncodeOptions, Tokenizer};

/// A folder of this process.
static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = std::env::temp_dir().join(format!("triad-fuzz-tokenizer-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder for temporary files");
    folder
});

/// Reads one input.
pub fn read(bytes: &[u8]) {
    let names = ["tokenizer.json", "tokenizer.model"];
    let (name, other) = match bytes.first() {
        Some(b'{') => (names[0], names[1]),
        _ => (names[1], names[0]),
    };
    let _ = fs::remove_file(FOLDER.join(other));
    fs::write(FOLDER.join(name), bytes).expect("room for a file");
    let Ok(tokenizer) = Tokenizer::from_folder(&FOLDER, None, &[]) else {
        return;
    };
    for options in [EncodeOptions::TEXT, EncodeOptions::TEMPLATE] {
        let Ok(tokens) = tokenizer.encode("Hello, ab lo <|end|> \u{e9}\u{4f60}\n", options) else {
            continue;
        };
        assert!(
            tokens
                .iter()
                .all(|token| (*token as usize) < tokenizer.vocab_size())
        );
        let _ = tokenizer.decode(&tokens);
    }
}
