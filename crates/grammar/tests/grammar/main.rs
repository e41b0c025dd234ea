//! Output that grammars allow, verified without the library that computes masks.

mod bounds;
mod brute_force;
#[cfg(unix)]
mod check;
mod numbers;
mod objects;
mod schemas;

use std::path::Path;
use std::sync::Arc;

use triad_grammar::Grammars;
use triad_model::tokenizer::Tokenizer;

/// A byte-level tokenizer of about a thousand tokens, which spells every byte.
fn byte_level() -> Arc<Tokenizer> {
    golden("bpe-gpt-2")
}

fn golden(name: &str) -> Arc<Tokenizer> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/golden/tokenizer")
        .join(name);
    let end = if name.starts_with("spm") { 2 } else { 1001 };
    Arc::new(Tokenizer::from_folder(&folder, None, &[end]).unwrap())
}

fn grammars(tokenizer: &Arc<Tokenizer>) -> Grammars {
    let tokenizer = Arc::clone(tokenizer);
    Grammars::new(tokenizer).unwrap()
}
