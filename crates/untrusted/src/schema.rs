//! Compiles arbitrary text as a JSON schema, a regular expression or a grammar, by its first byte, and generates 32 tokens
//! of those that its masks allow: each allowed token is accepted.

use std::path::Path;
use std::sync::{Arc, LazyLock};

use triad_engine::constraint::ConstraintFactory;
use triad_grammar::{GrammarSource, Grammars};
use triad_model::gguf;
use triad_model::tokenizer::Tokenizer;

static TOKENIZER: LazyLock<Arc<Tokenizer>> = LazyLock::new(|| {
    let seed = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/corpus/gguf/sentence-piece-tokenizer");
    let bytes = std::fs::read(seed).expect("the seed");
    let file = gguf::read(&bytes).expect("a good file");
    Arc::new(Tokenizer::from_gguf(&file.metadata).expect("a good tokenizer"))
});

/// Reads one input.
pub fn read(bytes: &[u8]) {
    let Ok(source) = std::str::from_utf8(bytes) else {
        return;
    };
    let source = match source.chars().next() {
        Some('{') => GrammarSource::JsonSchema(source.to_owned()),
        Some('/') => GrammarSource::Regex(source[1..].to_owned()),
        _ => GrammarSource::Lark(source.to_owned()),
    };
    // A new compiler each time: grammars are kept by their source.
    let grammars = Grammars::new(TOKENIZER.clone()).expect("the tokenizer has an end token");
    let Ok(grammar) = grammars.compile(&source) else {
        return;
    };
    let mut constraint = grammar.constraint().expect("a thread can be started");
    for step in 0..32 {
        if constraint.is_complete() {
            return;
        }
        let Ok(mask) = constraint.mask() else {
            return;
        };
        let allowed: Vec<u32> = (0..TOKENIZER.vocab_size() as u32)
            .filter(|&token| mask.allows(token))
            .collect();
        if allowed.is_empty() {
            return;
        }
        let token = allowed[step * 7 % allowed.len()];
        constraint
            .accept(token)
            .expect("the mask allows this token");
    }
}
